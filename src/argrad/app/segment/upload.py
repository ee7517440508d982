"""Scans that visitors upload: looked at with care before they are read, since a small file can unpack to a huge one."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from argrad.data.errors import BrokenFile, DataError
from argrad.data.nifti import Volume, nibabel, read_scan

__all__ = ["MOST_NUMBERS", "MOST_VOXELS", "read_upload"]

MOST_VOXELS = 2**24
"""256 × 256 × 256."""
MOST_NUMBERS = 2**27
"""Voxels times labels: half a gibibyte of probabilities, a few times over while the scan is labelled."""
LARGEST_EXTENSION = 2**20
"""Bytes between the header and the voxels that are put up with; they are not looked at."""
PACKED, PLAIN = ".nii.gz", ".nii"
GZIP = b"\x1f\x8b"
LONGEST_HEADER = 540


def read_upload(path: Path, labels: int, folder: Path) -> Volume:
    """The scan in an uploaded file, checked before its voxels are read.

    Args:
        path: of the file.
        labels: how many each voxel can have, background included.
        folder: to unpack it in; what is put there is removed again.

    Raises:
        ValueError: in words for the visitor, in which the file has its name and not its place.
    """
    unpacked = folder / "unpacked.nii"
    try:
        size = checked_size(path, labels)
        if not is_packed(path):
            return read_scan(path)
        unpack(path, unpacked, size)
        scan = read_scan(unpacked)
        return replace(scan, data=np.array(scan.data))  # it may be a view into the file
    except DataError as error:
        words = str(error).replace(str(path), path.name).replace(str(unpacked), path.name)
        raise ValueError(words) from error
    finally:
        unpacked.unlink(missing_ok=True)


def is_packed(path: Path) -> bool:
    """Whether the name says that the file is compressed."""
    return path.name.lower().endswith(PACKED)


def checked_size(path: Path, labels: int) -> int:
    """How many bytes the file has at most when it is unpacked, by its header; refuses what cannot be labelled here."""
    if not path.name.lower().endswith((PACKED, PLAIN)):
        raise BrokenFile(f"{path} does not end in .nii or .nii.gz; convert the scan to NIfTI first")
    package = nibabel()
    start = first_bytes(path)
    for kind in (package.Nifti1Header, package.Nifti2Header):
        if kind.may_contain_header(start):
            break
    else:
        raise BrokenFile(f"{path} is not a NIfTI file, though it is called so; convert the scan to NIfTI first")
    try:
        header = kind(start[: kind.template_dtype.itemsize], check=False)
        shape, numbers, begin = header.get_data_shape(), header.get_data_dtype(), int(header["vox_offset"])
    except (package.spatialimages.HeaderDataError, ValueError, OverflowError) as error:
        raise BrokenFile(f"{path} has a broken header ({' '.join(str(error).split())})") from error
    if not shape or min(shape) < 1:
        raise BrokenFile(f"{path} has no voxels: its header says {shape}")
    if numbers.kind not in "iuf":
        raise BrokenFile(f"{path} holds colours or complex numbers; give a scan with one intensity for each voxel")
    voxels = math.prod(shape)
    if voxels > MOST_VOXELS or voxels * labels > MOST_NUMBERS:
        most = min(MOST_VOXELS, MOST_NUMBERS // labels)
        raise BrokenFile(
            f"{path} has {' × '.join(map(str, shape))} voxels, and {most:,} in all are the most that can be labelled "
            "here; cut or resample it, or use argrad segment apply"
        )
    if not 0 <= begin <= LONGEST_HEADER + LARGEST_EXTENSION:
        raise BrokenFile(f"{path} has a broken header (its voxels are said to begin at byte {begin:,})")
    most_bytes: int = voxels * numbers.itemsize + LONGEST_HEADER + 2 * LARGEST_EXTENSION
    return most_bytes


def first_bytes(path: Path) -> bytes:
    """As many as a header has at most."""
    with path.open("rb") as file:
        if (file.read(len(GZIP)) == GZIP) != is_packed(path):
            packed = "not " if is_packed(path) else ""
            raise BrokenFile(f"{path} is {packed}compressed, and its name says otherwise; rename it")
    try:
        with gzip.open(path) if is_packed(path) else path.open("rb") as file:
            return file.read(LONGEST_HEADER)
    except (OSError, EOFError, zlib.error) as error:
        raise BrokenFile(f"{path} is cut short or damaged ({error})") from error


def unpack(path: Path, to: Path, most: int) -> None:
    """Uncompress a file, unless there is more in it than its header says."""
    written = 0
    try:
        with gzip.open(path) as packed, to.open("wb") as plain:
            while piece := packed.read(2**20):
                written += len(piece)
                if written > most:
                    raise BrokenFile(f"{path} holds more than its header says; save it anew")
                plain.write(piece)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BrokenFile(f"{path} is cut short or damaged ({error})") from error
