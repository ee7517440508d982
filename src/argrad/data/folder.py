"""The user's own images: a folder of picture files, with or without a subfolder for each class.

Subfolders are searched too, hidden ones are not; files are taken in natural order (`2.png` before `10.png`), and
files that are not pictures are passed over. Where every picture lies in one of at least two subfolders, the
subfolders are the classes, numbered in natural order.

Grey pictures become [H, W], colour [3, H, W]. Transparent pixels are shown on white, as viewers do; a camera's
orientation mark is obeyed. 16-bit grey becomes float32 without loss; 16-bit colour is read with 8 bits, as Pillow
reads it.
"""

import os
import re
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from argrad.data.errors import BrokenFile, WrongImages, WrongOption
from argrad.data.parts import Labels, Part, Raw
from argrad.data.pixels import check_pixels

if TYPE_CHECKING:
    from PIL.Image import Image

Colour = Literal["keep", "grey", "rgb"]

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".pbm"})


def read_folder(folder: Path, *, size: tuple[int, int] | None = None, colour: Colour = "keep") -> Raw:
    """Read all pictures below a folder.

    Args:
        folder: where to look.
        size: height and width to resize to (bilinear, averaging on reduction); None: all must have the same size.
        colour: "grey" or "rgb" converts all pictures; "keep": all must be of the same kind.
    """
    check_options(size, colour)
    paths = find_pictures(folder)
    first = read_picture(paths[0], size, colour)
    pixels = np.empty((len(paths), *first.shape), first.dtype)
    for row, path in enumerate(paths):
        picture = read_picture(path, size, colour)
        if picture.shape != first.shape or picture.dtype != first.dtype:
            raise WrongImages(difference(path, picture, paths[0], first))
        pixels[row] = picture
    pixels, full_scale = check_pixels(pixels, str(folder))
    return Raw(Part(pixels, class_labels(folder, paths)), full_scale=full_scale)


def check_options(size: tuple[int, int] | None, colour: str) -> None:
    """Raise `WrongOption` for a size or a colour word that cannot be used."""
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise WrongOption(f"size={size} cannot be used: give height and width in pixels, such as (28, 28)")
    if colour not in get_args(Colour):
        raise WrongOption(f'colour={colour!r} is not known: choose "keep", "grey" or "rgb"')


def find_pictures(folder: Path) -> list[Path]:
    """List the picture files below a folder in natural order."""
    paths = []
    others = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__MACOSX"))]
        for name in names:
            if Path(name).suffix.lower() in SUFFIXES and not name.startswith("."):
                paths.append(Path(parent, name))
            else:
                others += 1
    if not paths:
        found = f"no pictures, only {others} other file(s)" if others else "no files"
        endings = " ".join(sorted(SUFFIXES))
        raise WrongImages(f"{folder} holds {found}: put images there ({endings}), or give an .npy or .npz file")
    return sorted(paths, key=lambda path: natural_key(path.relative_to(folder)))


def natural_key(path: Path) -> list[list[str | int]]:
    """Sorting key under which numbers in names count as numbers.

    Example:
        >>> [str(path) for path in sorted([Path("b10"), Path("b9"), Path("a/2")], key=natural_key)]
        ['a/2', 'b9', 'b10']
    """
    pieces = ([part.casefold() for part in path.parts], path.parts)
    return [[int(s) if s.isdecimal() else s for s in re.split(r"(\d+)", part)] for parts in pieces for part in parts]


def class_labels(folder: Path, paths: list[Path]) -> Labels | None:
    """Number the subfolders that the pictures lie in, or None where they are not sorted into subfolders."""
    parts = [path.relative_to(folder).parts for path in paths]
    classes = list(dict.fromkeys(part[0] for part in parts))  # paths are sorted, so first seen is first in order
    if len(classes) < 2 or any(len(part) < 2 for part in parts):
        return None
    number = {name: index for index, name in enumerate(classes)}
    return np.array([number[part[0]] for part in parts], np.int64)


def read_picture(path: Path, size: tuple[int, int] | None = None, colour: Colour = "keep") -> NDArray[Any]:
    """Read one picture.

    Returns:
        uint8 (or float32 in [0, 1] for more than 8 bits), [H, W] or [3, H, W].
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as file:
            image = plain(ImageOps.exif_transpose(file))
            if colour != "keep" and image.mode != "F":
                image = image.convert("L" if colour == "grey" else "RGB")
            if size is not None:
                image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            array = np.asarray(image)
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    ) as error:
        reason = str(error).split("\n")[0]
        raise BrokenFile(f"{path} cannot be read as an image ({reason}): repair or remove it") from error
    if array.ndim == 3:
        return np.moveaxis(array, 2, 0)
    return np.stack([array] * 3) if colour == "rgb" and array.ndim == 2 else array


def plain(image: "Image") -> "Image":
    """Reduce the many kinds of pictures to three: L (8-bit grey), RGB, and F (grey floats from 0 to 1)."""
    from PIL import Image

    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image) / 65535).astype(np.float32))
    if image.mode == "F":
        return image
    grey = image.mode in ("1", "L", "LA", "La") or (image.mode == "P" and has_grey_palette(image))
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return image.convert("L" if grey else "RGB")


def has_grey_palette(image: "Image") -> bool:
    """Whether all colours of a palette are shades of grey."""
    palette = image.getpalette("RGB") or []
    return palette[0::3] == palette[1::3] == palette[2::3]


def difference(path: Path, picture: NDArray[Any], first_path: Path, first: NDArray[Any]) -> str:
    """Say in what a picture differs from the first one, and what to do."""

    def describe(array: NDArray[Any]) -> str:
        kind = "RGB" if array.ndim == 3 else "grey"
        return f"{array.shape[-2]}x{array.shape[-1]} {kind} {'8-bit' if array.dtype == np.uint8 else 'float'}"

    cures = []
    if picture.shape[-2:] != first.shape[-2:]:
        cures.append("a size to resize to, such as size=(28, 28)")
    if picture.ndim != first.ndim:
        cures.append('colour="grey" or colour="rgb"')
    cure = f"give {' and '.join(cures)}" if cures else "save all with the same number of bits"
    return f"{path} is {describe(picture)}, but {first_path} is {describe(first)}: all must be alike; {cure}"
