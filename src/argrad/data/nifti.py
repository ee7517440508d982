"""Scans and label maps in NIfTI files (and FreeSurfer's .mgz): any orientation in, canonical inside, the same out.

Inside, axes run from left to right, back to front and bottom to top. What is written is turned back, so that it
overlays the scan it came from voxel by voxel, with the scan's own affine. Needs nibabel: ``pip install
'argrad[medical]'``.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from argrad.data.errors import BrokenFile, DataError, UnknownData
from argrad.data.label_table import LabelTable, read_label_table

__all__ = ["Case", "Volume", "find_cases", "find_table", "image_bytes", "read_labels", "read_scan"]

SUFFIXES = (".nii.gz", ".nii", ".mgz")
CHANNEL = "_0000"
"""What nnU-Net puts behind the names of scans of one channel."""
WHOLE = 1e-3
"""How far a label may be from a whole number by rounding."""


@final
@dataclass(frozen=True)
class Volume:
    """Voxels in canonical orientation, and how to get back to those of the file."""

    data: NDArray[Any]
    """``[X, Y, Z]``."""
    affine: NDArray[np.float64]
    """The file's own, from its voxels to millimetres."""
    orientation: NDArray[np.float64]
    """nibabel's: for each axis of the file, which canonical axis it is, and whether it is flipped."""
    header: Any
    """The file's own, for units and codes."""

    @property
    def voxel_sizes(self) -> tuple[float, ...]:
        """Millimetres along the canonical axes."""
        sizes = np.linalg.norm(self.affine[:3, :3], axis=0)
        along = {int(axis): float(size) for (axis, _), size in zip(self.orientation, sizes, strict=True)}
        return tuple(along[axis] for axis in range(3))

    @property
    def voxel_volume(self) -> float:
        """Cubic millimetres, also where axes are not at right angles."""
        return float(abs(np.linalg.det(self.affine[:3, :3])))

    def in_file_order(self, canonical: NDArray[Any]) -> NDArray[Any]:
        """Turn canonical voxels ``[X, Y, Z, ...]`` back into the order of the file."""
        back = nibabel().orientations.ornt_transform([[0, 1], [1, 1], [2, 1]], self.orientation)
        turned: NDArray[Any] = nibabel().orientations.apply_orientation(canonical, back)
        return turned


@final
@dataclass(frozen=True)
class Case:
    """One file of a data set."""

    name: str
    path: Path


def nibabel() -> Any:
    """The package, or an error that says what to install."""
    try:
        import nibabel as package
    except ImportError as error:
        raise DataError("reading NIfTI files needs the package nibabel: pip install 'argrad[medical]'") from error
    return package


def read_scan(path: Path) -> Volume:
    """A scan, its intensities as numbers, checked."""
    volume = _read(path)
    bad = int((~np.isfinite(volume.data)).sum())
    if bad:
        raise BrokenFile(f"{path} has {bad} voxels that are NaN or infinite; give them a value, such as 0, first")
    if volume.data.min() == volume.data.max():
        raise BrokenFile(f"{path} has the same intensity everywhere; it is not a scan")
    return volume


def read_labels(path: Path) -> Volume:
    """A label map, its ids as whole numbers."""
    volume = _read(path)
    if not np.isfinite(volume.data).all():
        raise BrokenFile(f"{path} has voxels that are NaN or infinite; a label map holds whole numbers")
    whole = np.rint(volume.data)
    if np.abs(volume.data - whole).max() > WHOLE or whole.min() < 0:
        raise BrokenFile(
            f"{path} is not a label map: it holds {volume.data.min():g} to {volume.data.max():g} with values that are "
            "not whole numbers from 0 up"
        )
    return Volume(whole.astype(np.int32), volume.affine, volume.orientation, volume.header)


def image_bytes(like: Volume, canonical: NDArray[Any], path: Path) -> bytes:
    """The contents of a file that overlays the one that ``like`` came from.

    Args:
        like: the scan.
        canonical: voxels ``[X, Y, Z]``, or ``[X, Y, Z, C]`` for several maps; whole numbers or floating point.
        path: what the file will be called: .nii, .nii.gz or .mgz.
    """
    suffix = suffix_of(path)
    voxels = like.in_file_order(canonical)
    voxels = voxels.astype(np.float32 if voxels.dtype.kind == "f" else np.int32)
    if suffix == ".mgz":
        mgz: bytes = nibabel().MGHImage(voxels, like.affine).to_bytes()
        return gzip.compress(mgz, mtime=0)
    header = like.header.copy() if isinstance(like.header, nibabel().Nifti1Header) else None
    image = nibabel().Nifti1Image(voxels, like.affine, header, dtype=voxels.dtype)
    image.header.set_slope_inter(1, 0)
    for name, value in (("cal_min", 0), ("cal_max", 0), ("descrip", b"argrad segment")):
        image.header[name] = value
    contents: bytes = image.to_bytes()
    return gzip.compress(contents, mtime=0) if suffix == ".nii.gz" else contents


def suffix_of(path: Path) -> str:
    """The ending that says what kind of file it is."""
    for suffix in SUFFIXES:
        if path.name.lower().endswith(suffix):
            return suffix
    raise DataError(f"{path} must end in .nii.gz, .nii or .mgz")


def case_name(path: Path) -> str:
    """The name of a case: without ending and channel.

    >>> case_name(Path("imagesTr/la_007_0000.nii.gz"))
    'la_007'
    """
    return path.name[: -len(suffix_of(path))].removesuffix(CHANNEL)


def find_cases(folder: Path, inside: Sequence[str]) -> list[Case]:
    """The files of a folder, or of one of the named folders in an nnU-Net data set, by name.

    Args:
        folder: a folder of files, an nnU-Net data set, or one file.
        inside: where to look in a data set, such as ("labelsTr",).
    """
    if folder.is_file():
        return [Case(case_name(folder), folder)]
    if not folder.is_dir():
        raise UnknownData(f"{folder} does not exist; give a folder of NIfTI files, or an nnU-Net data set")
    for name in inside:
        if (folder / name).is_dir():
            folder = folder / name
            break
    paths = [path for path in sorted(folder.iterdir()) if path.name.lower().endswith(SUFFIXES) and path.name[:1] != "."]
    if not paths:
        raise UnknownData(f"{folder} holds no .nii, .nii.gz or .mgz file")
    cases = [Case(case_name(path), path) for path in paths]
    names = {case.name for case in cases}
    for case in cases:
        base, _, channel = case.name.rpartition("_")
        if len(channel) == len(CHANNEL) - 1 and channel.isdigit() and base in names:
            raise DataError(f"{case.path} is another channel of {base}; several channels are not supported")
    for one, next_one in pairwise(cases):
        if one.name == next_one.name:
            raise DataError(f"{one.path} and {next_one.path.name} are the same case; keep one of them")
    return cases


def find_table(folder: Path) -> LabelTable | None:
    """The names that an nnU-Net data set gives its labels, if the folder is one or lies in one."""
    for place in (folder, folder.parent):
        if (place / "dataset.json").is_file():
            return read_label_table(place / "dataset.json")
    return None


def _read(path: Path) -> Volume:
    """A three-dimensional file in canonical orientation, floating point."""
    suffix_of(path)
    if not path.is_file():
        raise UnknownData(f"{path} does not exist")
    package = nibabel()
    try:
        image = package.load(path)
        data = np.asarray(image.dataobj, dtype=np.float32)
    except (
        OSError,
        EOFError,
        ValueError,
        zlib.error,
        package.filebasedimages.ImageFileError,
        package.spatialimages.HeaderDataError,
    ) as error:
        raise BrokenFile(f"{path} is cut short or not what its name says ({' '.join(str(error).split())})") from error
    while data.ndim > 3 and data.shape[-1] == 1:
        data = data[..., 0]
    if data.ndim != 3:
        raise BrokenFile(f"{path} has {data.ndim} dimensions, {data.shape}; give one three-dimensional volume")
    if abs(np.linalg.det(image.affine[:3, :3])) < 1e-9 or not np.isfinite(image.affine).all():
        raise BrokenFile(f"{path} has an affine that is singular, so its orientation is not known; set it first")
    orientation = package.orientations.io_orientation(image.affine)
    canonical = package.orientations.apply_orientation(data, orientation)
    return Volume(np.ascontiguousarray(canonical), np.asarray(image.affine, float), orientation, image.header)
