"""`load`: one entrance for the data sets of the catalogue and for the user's own files."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from argrad.data.array_file import read_npy, read_npz
from argrad.data.binarization import Binarization, check_binarization
from argrad.data.catalogue import CATALOGUE
from argrad.data.errors import UnknownData, WrongOption
from argrad.data.folder import SUFFIXES, Colour, read_folder
from argrad.data.images import Images
from argrad.data.locate import find_files, suggestion
from argrad.data.parts import Labels, Part, Pixels, Raw
from argrad.data.pixels import check_labels, check_pixels
from argrad.data.splits import Fractions, split


def load(
    name_or_path: str | os.PathLike[str] = "digits",
    *,
    binarize: Binarization = "round",
    split_seed: int = 0,
    fractions: Fractions | None = None,
    size: tuple[int, int] | None = None,
    colour: Colour = "keep",
) -> Images:
    """Load a data set by name, or the user's own images by path. Nothing is ever downloaded.

    A string that is a catalogue name means that data set; write `./mnist` for a folder of that name.

    Args:
        name_or_path: a name of the catalogue, a folder of pictures, an `.npy` or an `.npz` file.
        binarize: "round": bits, 1 where a value is above 0.5; "stochastic": probabilities, from which `Images.values`
            draws fresh bits; "none": values from 0 to 1.
        split_seed: decides which images are for validation (and test, where there is no official test set).
        fractions: shares of train, validation and test for data without a split of its own; default (0.8, 0.1, 0.1).
        size: height and width to resize the pictures of a folder to.
        colour: "keep", or "grey" or "rgb" to convert the pictures of a folder.

    Returns:
        The three splits, as small as they come: uint8 for 8-bit pixels and bits, float32 otherwise.

    Raises:
        DataError: one line saying what was found, what was expected and what to do.

    Example:
        >>> load("digits", binarize="none").train.shape
        torch.Size([1437, 8, 8])
    """
    check_binarization(binarize)
    if isinstance(name_or_path, str) and name_or_path in CATALOGUE:
        check_folder_options(name_or_path, size, colour)
        source = CATALOGUE[name_or_path]
        raw = source.read(find_files(source))
        return finish(source.name, raw, binarize, split_seed, fractions)
    path = Path(name_or_path).expanduser()
    return finish(str(path), read_path(path, size, colour), binarize, split_seed, fractions)


def from_arrays(
    images: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    name: str = "arrays",
    binarize: Binarization = "round",
    split_seed: int = 0,
    fractions: Fractions | None = None,
) -> Images:
    """Make `Images` of arrays in memory, under the same rules as an `.npy` file.

    Args:
        images: [N, H, W], [N, 3, H, W], [N, H, W, 3] or [N, D]; uint8 (0 to 255, or bits) or floats (0 to 1).
        labels: whole numbers [N] or None.
        name: what to call the data.
        binarize: see `load`.
        split_seed: see `load`.
        fractions: see `load`.

    Example:
        >>> from_arrays(np.zeros((10, 4, 4)), name="black")
        Images('black', shape (4, 4), train 8, validation 1, test 1, no labels, round)
    """
    check_binarization(binarize)
    pixels, full_scale = check_pixels(np.asarray(images), name)
    checked = None if labels is None else check_labels(np.asarray(labels), len(pixels), f"labels of {name}")
    return finish(name, Raw(Part(pixels, checked), full_scale=full_scale), binarize, split_seed, fractions)


def read_path(path: Path, size: tuple[int, int] | None, colour: Colour) -> Raw:
    """Read the user's own images from a folder or an array file."""
    if path.is_dir():
        return read_folder(path, size=size, colour=colour)
    if not path.exists():
        raise UnknownData(f"{str(path)!r} is no file, folder or catalogue name: {suggestion(str(path))}")
    check_folder_options(str(path), size, colour)
    match path.suffix.lower():
        case ".npy":
            return read_npy(path)
        case ".npz":
            return read_npz(path)
        case suffix if suffix in SUFFIXES:
            raise WrongOption(f"{path} is a single picture: give the folder that holds the pictures")
    raise WrongOption(f"{path} is not a kind of file that holds images: give a folder of pictures, an .npy or an .npz")


def check_folder_options(what: str, size: tuple[int, int] | None, colour: str) -> None:
    """Raise `WrongOption` where resizing or conversion is asked for and cannot be had."""
    if size is not None or colour != "keep":
        raise WrongOption(f"size= and colour= apply to folders of pictures, not to {what}: leave them out")


def finish(name: str, raw: Raw, how: Binarization, seed: int, fractions: Fractions | None) -> Images:
    """Split a data set, binarise it and turn it into tensors."""
    train, validation, test = split(raw, seed, fractions)
    return Images(
        name=name,
        train=stored(train.pixels, how, raw.full_scale),
        validation=stored(validation.pixels, how, raw.full_scale),
        test=stored(test.pixels, how, raw.full_scale),
        train_labels=label_tensor(train.labels),
        validation_labels=label_tensor(validation.labels),
        test_labels=label_tensor(test.labels),
        binarization=how,
        full_scale=1 if how == "round" else raw.full_scale,
    )


def stored(pixels: Pixels, how: Binarization, full_scale: int) -> Tensor:
    """The form in which images are kept: bits under "round", otherwise uint8 or float32 as they are."""
    if how == "round":
        return torch.from_numpy((pixels > full_scale / 2).view(np.uint8))
    return torch.from_numpy(owned(pixels))


def owned(pixels: Pixels) -> Pixels:
    """A contiguous array of uint8 or float32 that may be written to, copied only if need be."""
    dtype: Any = np.uint8 if pixels.dtype == np.uint8 else np.float32
    return np.require(pixels, dtype, ["C", "W"])


def label_tensor(labels: Labels | None) -> Tensor | None:
    """Labels as a tensor of their own."""
    return None if labels is None else torch.from_numpy(np.require(labels, np.int64, ["C", "W"]))
