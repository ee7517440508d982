"""The Olivetti faces: 400 pictures, ten of each of 40 people, 64x64, grey.

Pictures of one person are much alike, so the splits are by person: whoever is in the test set is in no other.

Terms: credit to AT&T Laboratories Cambridge; there is no formal licence, and the pictures must not be passed on with
software. Nothing is ever downloaded.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from argrad.data.cmu_faces import split_people
from argrad.data.errors import BrokenFile, MissingFiles, UnknownData, WrongImages, WrongOption
from argrad.data.images import Images
from argrad.data.parts import Part, Raw

FILE = "olivettifaces.mat"
SIDE = 64
PICTURES_EACH = 10


def load_olivetti(
    path: str | os.PathLike[str] | None = None,
    *,
    reduce: int = 2,
    test_people: int = 8,
    validation_people: int = 4,
    split_seed: int = 0,
) -> Images:
    """Load the faces, values from 0 to 1, split by person.

    Args:
        path: ``olivettifaces.mat``; None looks for it in the folder ``olivetti`` of the data folders.
        reduce: how many times smaller the pictures are made, by averaging: 1, 2, 4 or 8.
        test_people: how many people are for testing only.
        validation_people: how many more are for validation.
        split_seed: decides who.

    Returns:
        The three splits, uint8, with the person's number as label.
    """
    if reduce not in (1, 2, 4, 8):
        raise WrongOption(f"reduce={reduce} cannot be used: faces can be made 1, 2, 4 or 8 times smaller")
    faces = shrunk(read_faces(find(path)), reduce)
    people = np.arange(len(faces)) // PICTURES_EACH
    names = np.array([f"{person:02d}" for person in people])
    parts = []
    for members in split_people(names, test_people, validation_people, split_seed).values():
        rows = np.flatnonzero(np.isin(names, members))
        parts.append((torch.tensor(faces[rows]), torch.tensor(people[rows])))
    (train, train_labels), (validation, validation_labels), (test, test_labels) = parts
    return Images(
        "olivetti",
        train,
        validation,
        test,
        train_labels,
        validation_labels,
        test_labels,
        binarization="none",
        full_scale=255,
    )


def read_olivetti(files: Mapping[str, Path]) -> Raw:
    """Read the pictures with the person's number as label, for the catalogue.

    Args:
        files: the path, by its catalogue name ``olivettifaces.mat``.
    """
    faces = read_faces(files[FILE])
    return Raw(Part(faces, np.arange(len(faces), dtype=np.int64) // PICTURES_EACH), full_scale=255)


def find(path: str | os.PathLike[str] | None) -> Path:
    """The user's path, or that of the file in the data folders."""
    if path is not None:
        found = Path(path).expanduser()
        if not found.is_file():
            raise UnknownData(f"{str(found)!r} is no file: give {FILE}")
        return found
    from argrad.data.locate import data_folders  # it imports the catalogue, which may import this

    places = [root / "olivetti" / FILE for root in data_folders()]
    for place in places:
        if place.is_file():
            return place
    folders = " or ".join(str(place.parent) for place in places) or "a folder olivetti below $ARGRAD_DATA"
    raise MissingFiles(f"olivetti: {FILE} is not on this machine: argrad does not download it; put it into {folders}")


def read_faces(path: Path) -> NDArray[np.uint8]:
    """All pictures, ``[400, 64, 64]``, from the matrix ``faces`` [4096, 400], a picture a column, column by column."""
    from scipy.io import loadmat  # type: ignore[import-untyped, unused-ignore]

    try:
        content: dict[str, Any] = loadmat(path, variable_names=["faces"])
    except Exception as error:  # scipy raises whatever its parser stumbles over
        raise BrokenFile(f"{path} cannot be read as a MATLAB file ({error}): get the file again") from error
    matrix = content.get("faces")
    if not isinstance(matrix, np.ndarray) or matrix.ndim != 2 or matrix.shape[0] != SIDE**2 or matrix.shape[1] < 20:
        shape = None if matrix is None else np.shape(matrix)
        raise WrongImages(f"{path} has 'faces' of shape {shape}, expected ({SIDE**2}, 400): is it the Olivetti faces?")
    if float(matrix.min()) < 0 or float(matrix.max()) > 255:
        raise WrongImages(f"{path} has values from {matrix.min()} to {matrix.max()}: expected 8-bit pixels, 0 to 255")
    return np.ascontiguousarray(matrix.T.astype(np.uint8).reshape(-1, SIDE, SIDE).transpose(0, 2, 1))


def shrunk(faces: NDArray[np.uint8], times: int) -> NDArray[np.uint8]:
    """Pictures made smaller by averaging squares of pixels.

    Example:
        >>> shrunk(np.array([[[0, 4], [4, 8]]], np.uint8), 2)
        array([[[4]]], dtype=uint8)
    """
    side = faces.shape[1] // times
    squares = faces.reshape(len(faces), side, times, side, times).mean((2, 4)).round()
    return np.asarray(squares, np.uint8)
