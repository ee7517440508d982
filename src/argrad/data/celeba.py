"""CelebA in its standard folder: 202,599 pictures of celebrities with 40 attributes. Users bring the data themselves.

```
img_align_celeba/000001.jpg ...    aligned pictures, 178 wide and 218 high
list_attr_celeba.txt               how many pictures; names of attributes; then a picture and its -1s and 1s
list_eval_partition.txt            a picture and its part: 0 train, 1 validation, 2 test
```

The two lists and the folder must name the same pictures. Of each picture the largest centred rectangle with the
proportions of `size` is kept and resized.

Reference: Liu, Luo, Wang & Tang, 2015, "Deep learning face attributes in the wild". The data is for non-commercial
research only.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from argrad.data.attribute_images import AttributeImages, as_tensors, places
from argrad.data.errors import BrokenFile, MissingFiles, WrongImages, WrongOption
from argrad.data.folder import SUFFIXES

PICTURES, ATTRIBUTES, PARTITION = "img_align_celeba", "list_attr_celeba.txt", "list_eval_partition.txt"
PARTS = ("train", "validation", "test")


def load_celeba(
    folder: str | os.PathLike[str],
    *,
    attributes: Sequence[str] | None = None,
    size: tuple[int, int] = (64, 64),
    colour: bool = True,
    limit: int | None = None,
) -> AttributeImages:
    """Load the standard CelebA folder in its own split. Nothing is ever downloaded.

    Args:
        folder: holds `img_align_celeba/`, `list_attr_celeba.txt` and `list_eval_partition.txt`.
        attributes: some of the names in the attribute file, such as "Eyeglasses"; None is all.
        size: height and width of the pictures in memory.
        colour: False gives grey pictures.
        limit: at most so many pictures of each part, the first ones; all of them at 64x64 in colour are 2.5 GB.

    Returns:
        The three parts, attributes 0 and 1.

    Raises:
        DataError: one line saying in what the folder and its lists do not match.
    """
    if len(size) != 2 or min(size) < 1:
        raise WrongOption(f"size={size} cannot be used: give height and width in pixels, such as (64, 64)")
    if limit is not None and limit < 1:
        raise WrongOption(f"limit={limit} must be at least 1, or None for all pictures")
    root = Path(folder).expanduser()
    for name in (PICTURES, ATTRIBUTES, PARTITION):
        if not (root / name).exists():
            raise MissingFiles(
                f"{root} has no {name}: give the folder that holds {PICTURES}, {ATTRIBUTES} and {PARTITION}"
            )
    names, known = read_attributes(root / ATTRIBUTES)
    chosen = places(names, attributes, ATTRIBUTES)
    partition = read_partition(root / PARTITION)
    compare(set(known), set(partition), ATTRIBUTES, PARTITION)
    present = {entry.name for entry in os.scandir(root / PICTURES) if Path(entry.name).suffix.lower() in SUFFIXES}
    compare(set(known), present, ATTRIBUTES, f"{PICTURES}/")
    parts = []
    for number, part in enumerate(PARTS):
        rows = sorted(name for name in known if partition[name] == number)[:limit]
        if not rows:
            raise WrongImages(f"{PARTITION} gives no picture to {part} ({number}): every part needs at least one")
        pictures = np.stack([read_picture(root / PICTURES / name, size, colour) for name in rows])
        parts.append(as_tensors(pictures, np.array([known[name] for name in rows])[:, chosen]))
    (train, train_known), (validation, validation_known), (test, test_known) = parts
    return AttributeImages(
        name=str(root),
        names=tuple(names[place] for place in chosen),
        train=train,
        validation=validation,
        test=test,
        train_attributes=train_known,
        validation_attributes=validation_known,
        test_attributes=test_known,
    )


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that hold something."""
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BrokenFile(f"{path} cannot be read as text ({error}): get it again") from error


def read_attributes(path: Path) -> tuple[tuple[str, ...], dict[str, list[int]]]:
    """The names of the attributes, and for each picture 0 or 1 for each of them."""
    lines = read_lines(path)
    if len(lines) < 3 or not lines[0].strip().isdecimal():
        raise BrokenFile(
            f"{path} must start with the number of pictures and the names of the attributes, got {start(lines)!r}"
        )
    names = tuple(lines[1].split())
    if len(set(names)) < len(names):
        raise BrokenFile(f"{path} names an attribute twice in line 2: every attribute needs a name of its own")
    known: dict[str, list[int]] = {}
    for number, line in enumerate(lines[2:], start=3):
        picture, *words = line.split()
        if len(words) != len(names):
            raise BrokenFile(f"{path}, line {number}: {picture} has {len(words)} values for {len(names)} attributes")
        wrong = next((place for place, word in enumerate(words) if word not in ("-1", "1")), None)
        if wrong is not None:
            raise BrokenFile(f"{path}, line {number}: {names[wrong]} is {words[wrong]!r}, expected -1 or 1")
        if picture in known:
            raise BrokenFile(f"{path}, line {number}: {picture} comes twice")
        known[picture] = [int(word == "1") for word in words]
    if len(known) != int(lines[0]):
        raise BrokenFile(f"{path} says that it has {lines[0].strip()} pictures, but lists {len(known)}: get it again")
    return names, known


def read_partition(path: Path) -> dict[str, int]:
    """The part of each picture: 0, 1 or 2."""
    partition: dict[str, int] = {}
    for number, line in enumerate(read_lines(path), start=1):
        words = line.split()
        if len(words) != 2 or words[1] not in ("0", "1", "2"):
            raise BrokenFile(f"{path}, line {number}: expected a picture and 0, 1 or 2, got {line.strip()!r}")
        if words[0] in partition:
            raise BrokenFile(f"{path}, line {number}: {words[0]} comes twice")
        partition[words[0]] = int(words[1])
    return partition


def start(lines: list[str]) -> str:
    """The first line, shortened."""
    return lines[0][:60] if lines else ""


def compare(listed: set[str], found: set[str], first: str, second: str) -> None:
    """Raise `WrongImages` unless both name the same pictures."""
    for missing, has, lacks in ((listed - found, first, second), (found - listed, second, first)):
        if missing:
            others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise WrongImages(f"{min(missing)}{others} in {has} but not in {lacks}: both must name the same pictures")


def read_picture(path: Path, size: tuple[int, int], colour: bool) -> NDArray[np.uint8]:
    """One picture, cropped around the middle and resized: [H, W], or [3, H, W] in colour."""
    from PIL import Image

    height, width = size
    try:
        with Image.open(path) as file:
            image = file.convert("RGB" if colour else "L")
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise BrokenFile(f"{path} cannot be read as an image ({str(error).splitlines()[0]}): get it again") from error
    scale = min(image.width / width, image.height / height)
    left, top = (image.width - scale * width) / 2, (image.height - scale * height) / 2
    box = (left, top, left + scale * width, top + scale * height)
    array = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR, box=box))
    return np.moveaxis(array, 2, 0) if colour else array
