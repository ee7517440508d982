"""The rules that every array of images must keep, whatever file it came from."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from argrad.data.errors import WrongImages
from argrad.data.parts import Labels, Pixels


def check_pixels(array: NDArray[Any], where: str) -> tuple[Pixels, int]:
    """Check that an array holds images and find out what number in it means 1.0. Nothing is copied if it can be helped.

    uint8 (and any whole numbers from 0 to 255) are pixels with 255 meaning 1.0, unless none is above 1: then they are
    bits. Booleans are bits. Floats must lie in [0, 1].

    Args:
        array: [N, D] vectors, [N, H, W] grey, [N, C, H, W] or [N, H, W, C] with C = 1 or 3.
        where: the array's name, for messages.

    Returns:
        The array, uint8 or floating point, channels first; and 255 or 1.
    """
    array = channels_first(array, where)
    if array.dtype == np.bool_:
        return array.view(np.uint8), 1
    if array.dtype.kind in "iu":
        return check_whole_numbers(array, where)
    if array.dtype.kind == "f":
        check_floats(array, where)
        return array, 1
    raise WrongImages(f"{where} holds values of type {array.dtype}: save images as uint8 (0 to 255) or floats (0 to 1)")


def channels_first(array: NDArray[Any], where: str) -> NDArray[Any]:
    """Check the number of axes, and bring a channel axis (of 1 or 3) before height and width."""
    if array.ndim == 1:
        raise WrongImages(
            f"{where} has shape {array.shape}, which looks like labels: images need [N, H, W], [N, 3, H, W], "
            "[N, H, W, 3] or [N, D]"
        )
    if 0 in array.shape:
        raise WrongImages(f"{where} has shape {array.shape}, which holds no pixel: give at least one image")
    if array.ndim in (2, 3) or (array.ndim == 4 and array.shape[1] in (1, 3)):
        return array
    if array.ndim == 4 and array.shape[3] in (1, 3):
        return np.moveaxis(array, 3, 1)
    raise WrongImages(
        f"{where} has shape {array.shape}: images need [N, H, W], [N, 3, H, W], [N, H, W, 3] or [N, D]; drop an alpha "
        "channel first"
    )


def check_whole_numbers(array: NDArray[Any], where: str) -> tuple[Pixels, int]:
    """Check that whole numbers lie in 0 .. 255; those that never exceed 1 are bits."""
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > 255:
        raise WrongImages(
            f"{where} has whole numbers from {low} to {high}: expected 0 to 255; scale them, or save floats from 0 to 1"
        )
    return array.astype(np.uint8, copy=False), 1 if high <= 1 else 255


def check_floats(array: NDArray[Any], where: str) -> None:
    """Check that floats are numbers from 0 to 1."""
    low, high = float(array.min()), float(array.max())
    if np.isnan(low):
        image = next(index for index, one in enumerate(array) if np.isnan(one).any())
        raise WrongImages(f"{where} has NaN pixels (first in image {image}): remove or fill them; expected 0 to 1")
    if low < 0 or high > 1:
        cure = "divide by 255, or save as uint8" if low >= 0 and 1 < high <= 255 else "scale or clip them"
        raise WrongImages(f"{where} has values from {low:g} to {high:g}: expected floats from 0 to 1; {cure}")


def check_labels(array: NDArray[Any], count: int, where: str) -> Labels:
    """Check that there is one whole number for each image.

    Args:
        array: [N] whole numbers; -1 may stand for "not labelled".
        count: N.
        where: the array's name, for messages.
    """
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise WrongImages(
            f"{where} has shape {array.shape} and type {array.dtype}: expected one whole number for each of the "
            f"{count} images; correct the labels or leave them out"
        )
    return array.astype(np.int64)
