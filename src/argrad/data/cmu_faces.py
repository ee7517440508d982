"""The CMU face images: 624 pictures of 20 people, who look left, right, straight or up, with and without sunglasses.

Everything known about a picture is in its name, `faces/<person>/<person>_<pose>_<expression>_<eyes>[_2|_4].pgm`. The
head fills only part of the 60x64 frame (half size): what is kept is the fixed square of 40x40 pixels whose corner is at
row 6 and column 12, which holds nearly every head, resized to the size asked for. Nothing looks for the head.

Pictures of one person are much alike, so the splits are by person: whoever is in the test set is in no other.

Terms: free for any educational purpose with attribution (Tom Mitchell, "Machine Learning", 1997; UCI KDD archive).
The pictures must not be passed on with software.
"""

import io
import os
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from argrad.data.attribute_images import AttributeImages, as_tensors, places
from argrad.data.errors import BrokenFile, UnknownData, WrongImages, WrongOption
from argrad.data.parts import Part, Raw
from argrad.data.splits import permutation

POSES = ("left", "right", "straight", "up")
EXPRESSIONS = ("neutral", "happy", "sad", "angry")
ATTRIBUTES = ("sunglasses", *POSES, *EXPRESSIONS)
"""Of the poses exactly one is on, and so of the expressions."""

ARCHIVE = "cmu_faces_60x64.zip"
FRAME = (60, 64)
CORNER, SIDE = (6, 12), 40
PICTURE = re.compile(
    rf"(?:.*/)?(?P<person>[a-z0-9]+)_(?P<pose>{'|'.join(POSES)})_(?P<expression>{'|'.join(EXPRESSIONS)})"
    r"_(?P<eyes>open|sunglasses)(?P<half>_2)?\.pgm"
)


def load_cmu_faces(
    path: str | os.PathLike[str] | None = None,
    *,
    attributes: Sequence[str] | None = None,
    size: tuple[int, int] | None = (32, 32),
    test_people: int = 5,
    validation_people: int = 3,
    split_seed: int = 0,
) -> AttributeImages:
    """Load the faces, cropped to the head, with attributes 0 or 1, split by person. Nothing is ever downloaded.

    Args:
        path: the zip of half-size pictures or a folder that holds them; None looks where `argrad.data.load` looks.
        attributes: some of "sunglasses", the four poses and the four expressions; None is all nine.
        size: height and width to resize the crop to; None gives the whole frame, 60x64.
        test_people: how many people are for testing only.
        validation_people: how many more are for validation.
        split_seed: decides who.

    Returns:
        The three splits; `groups` names the people of each.
    """
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise WrongOption(f"size={size} cannot be used: give height and width in pixels, such as (32, 32)")
    chosen = places(ATTRIBUTES, attributes, "cmu-faces")
    where = find(path)
    pictures, known, people = read_faces(where)
    split = split_people(people, test_people, validation_people, split_seed)
    parts = []
    for members in split.values():
        rows = np.flatnonzero(np.isin(people, members))
        faces = pictures[rows] if size is None else [crop(pictures[row], size) for row in rows]
        parts.append(as_tensors(np.reshape(faces, (len(rows), *(size or FRAME))), known[rows][:, chosen]))
    (train, train_known), (validation, validation_known), (test, test_known) = parts
    return AttributeImages(
        name="cmu-faces",
        names=tuple(ATTRIBUTES[place] for place in chosen),
        train=train,
        validation=validation,
        test=test,
        train_attributes=train_known,
        validation_attributes=validation_known,
        test_attributes=test_known,
        groups=split,
    )


def read_cmu_faces(files: Mapping[str, Path]) -> Raw:
    """Read the whole frames with the person's number as label, people in alphabetical order.

    Args:
        files: the path, by its catalogue name `cmu_faces_60x64.zip`.
    """
    pictures, _, people = read_faces(files[ARCHIVE])
    return Raw(Part(pictures, np.unique(people, return_inverse=True)[1].astype(np.int64)), full_scale=255)


def find(path: str | os.PathLike[str] | None) -> Path:
    """The user's path, or that of the archive where the catalogue looks."""
    if path is None:
        from argrad.data.catalogue import CATALOGUE
        from argrad.data.locate import find_files

        return find_files(CATALOGUE["cmu-faces"])[ARCHIVE]
    found = Path(path).expanduser()
    if not found.exists():
        raise UnknownData(f"{str(found)!r} is no file or folder: give {ARCHIVE}, or the folder of the .pgm files")
    return found


def read_faces(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.str_]]:
    """All half-size pictures in the order of their names.

    Returns:
        pictures [N, 60, 64], attributes [N, 9] of 0 and 1, and the people [N].
    """
    found = from_folder(path) if path.is_dir() else from_archive(path)
    if not found:
        raise WrongImages(
            f"{path} holds no picture named <person>_<pose>_<expression>_<eyes>_2.pgm: is it the half-size CMU faces?"
        )
    names = sorted(found)
    pictures = np.stack([decode(found[name], f"{name} in {path}") for name in names])
    matches = [PICTURE.fullmatch(name) for name in names]
    attributes = [
        [int(match["eyes"] == "sunglasses")]
        + [int(match["pose"] == pose) for pose in POSES]
        + [int(match["expression"] == expression) for expression in EXPRESSIONS]
        for match in matches
        if match is not None
    ]
    people = [match["person"] for match in matches if match is not None]
    return pictures, np.array(attributes, np.int64), np.array(people)


def from_archive(path: Path) -> dict[str, bytes]:
    """The pictures of a zip file by name."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist() if is_half_size(name)}
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise BrokenFile(f"{path} cannot be read as a zip of faces ({error}): get it again") from error


def from_folder(path: Path) -> dict[str, bytes]:
    """The pictures below a folder by name."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*.pgm") if is_half_size(file.name)}


def is_half_size(name: str) -> bool:
    """Whether the name is that of a half-size picture, marked `_2`.

    Example:
        >>> is_half_size("faces/an2i/an2i_left_sad_open_2.pgm"), is_half_size("an2i_left_sad_open.pgm")
        (True, False)
    """
    match = PICTURE.fullmatch(name)
    return match is not None and match["half"] is not None


def decode(content: bytes, where: str) -> NDArray[np.uint8]:
    """One picture, its size checked."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            picture = np.asarray(image.convert("L"))
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise BrokenFile(f"{where} cannot be read as a picture ({str(error).splitlines()[0]}): get it again") from error
    if picture.shape != FRAME:
        raise WrongImages(f"{where} has {picture.shape[0]}x{picture.shape[1]} pixels: half-size faces have 60x64")
    return picture


def crop(picture: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """The square around the head, resized (bilinear, averaging on reduction)."""
    from PIL import Image

    (row, column), (height, width) = CORNER, size
    head = Image.fromarray(np.ascontiguousarray(picture[row : row + SIDE, column : column + SIDE]))
    return np.asarray(head.resize((width, height), Image.Resampling.BILINEAR))


def split_people(people: NDArray[np.str_], test: int, validation: int, seed: int) -> dict[str, tuple[str, ...]]:
    """Who is for training, for validation and for testing, by seed."""
    everyone = np.unique(people)
    if test < 1 or validation < 0 or test + validation >= len(everyone):
        raise WrongOption(
            f"test_people={test} and validation_people={validation} leave nobody to train on or to test: there are "
            f"{len(everyone)} people"
        )
    order = [str(everyone[place]) for place in permutation(len(everyone), seed)]
    cut = len(order) - test
    return {
        "train": tuple(sorted(order[: cut - validation])),
        "validation": tuple(sorted(order[cut - validation : cut])),
        "test": tuple(sorted(order[cut:])),
    }


def mirrored(images: torch.Tensor, attributes: torch.Tensor, names: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures turned round, left for right, and their attributes with "left" and "right" exchanged.

    Example:
        >>> faces = torch.tensor([[[0, 255]]], dtype=torch.uint8)
        >>> mirrored(faces, torch.tensor([[1, 0]]), ("left", "right"))
        (tensor([[[255,   0]]], dtype=torch.uint8), tensor([[0, 1]]))
    """
    other = {"left": "right", "right": "left"}
    order = [list(names).index(other[name]) if other.get(name) in names else place for place, name in enumerate(names)]
    if ("left" in names) != ("right" in names):
        raise WrongOption('a mirrored face needs both "left" and "right" among its attributes, or neither')
    return images.flip(-1), attributes[:, order]
