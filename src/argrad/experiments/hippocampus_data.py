"""The hippocampus set of the Medical Segmentation Decathlon, read from its tar file with numpy alone.

The tar is looked up as ``msd-hippocampus/Task04_Hippocampus_train.tar`` below the data folders. Its files are all in
canonical orientation, so that nothing has to be turned; for files of one's own there is :mod:`argrad.data.nifti`.
"""

from __future__ import annotations

import gzip
import struct
import tarfile
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from argrad.data.errors import BrokenFile, MissingFiles
from argrad.data.locate import data_folders

__all__ = ["Cases", "load_hippocampus", "parse_nifti"]

NAME = "msd-hippocampus/Task04_Hippocampus_train.tar"
HEADER_BYTES = 348
DTYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2"}


@final
@dataclass(frozen=True)
class Cases:
    """Scans and label maps ``[X, Y, Z]`` of one half, in the same order."""

    names: list[str]
    scans: list[Tensor]
    labels: list[Tensor]

    def __getitem__(self, chosen: slice) -> Cases:
        """Some of them."""
        return Cases(self.names[chosen], self.scans[chosen], self.labels[chosen])


def parse_nifti(contents: bytes) -> NDArray[np.float32]:
    """The voxels of a single-file NIfTI-1 image, with its slope and offset applied."""
    try:
        order = "<" if struct.unpack_from("<i", contents, 0)[0] == HEADER_BYTES else ">"
        (size,) = struct.unpack_from(f"{order}i", contents, 0)
        dims = struct.unpack_from(f"{order}8h", contents, 40)
        (code,) = struct.unpack_from(f"{order}h", contents, 70)
        offset, slope, intercept = struct.unpack_from(f"{order}3f", contents, 108)
        if size != HEADER_BYTES or code not in DTYPES:
            raise ValueError(f"header of {size} bytes, voxels of kind {code}")
        shape = dims[1 : 1 + dims[0]]
        voxels = np.frombuffer(contents, f"{order}{DTYPES[code]}", int(np.prod(shape)), int(offset))
    except (struct.error, ValueError) as error:
        raise BrokenFile(f"not a whole NIfTI-1 file: {error}") from error
    array = voxels.reshape(shape, order="F")
    if slope not in (0.0, 1.0) or (slope and intercept):
        array = array * slope + intercept
    return np.ascontiguousarray(array.astype(np.float32))


def load_hippocampus(seed: int = 0, cases: int | None = None) -> tuple[Cases, Cases]:
    """The two halves: label maps of the first are for stage 1, scans of the second for stage 2; split by the seed.

    Args:
        seed: of the split.
        cases: how many of each half; all when None.
    """
    for folder in data_folders():
        if (folder / NAME).is_file():
            path = folder / NAME
            break
    else:
        raise MissingFiles(f"{NAME} is not on this machine: put it into a folder below $ARGRAD_DATA")
    with tarfile.open(path) as tar:
        members = {member.name: member for member in tar.getmembers() if member.name.endswith(".nii.gz")}

        def read(name: str) -> Tensor:
            file = tar.extractfile(members[name])
            assert file is not None
            return torch.from_numpy(parse_nifti(gzip.decompress(file.read())))

        scans = sorted(name for name in members if "/imagesTr/" in name)
        order = np.random.default_rng(seed).permutation(len(scans))
        half = len(scans) // 2
        halves = []
        for part in (order[:half], order[half:]):
            names = [scans[number] for number in part[:cases]]
            labels = [read(name.replace("/imagesTr/", "/labelsTr/")).round().to(torch.int16) for name in names]
            short = [name.split("/")[-1].removesuffix(".nii.gz") for name in names]
            halves.append(Cases(short, [read(name) for name in names], labels))
    return halves[0], halves[1]
