"""The user's own arrays: an `.npy` or `.npz` file. Pickled content is never loaded."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from argrad.data.errors import BrokenFile, DataError, WrongImages
from argrad.data.parts import Part, Raw
from argrad.data.pixels import check_labels, check_pixels

IMAGE_KEYS = ("images", "x_train")
LABEL_KEYS = ("labels", "y_train")
TEST_KEYS = ("x_test", "y_test")


def read_npy(path: Path) -> Raw:
    """Read images from an `.npy` file; it is mapped into memory, so only the splits themselves are copied.

    Args:
        path: file with one array, [N, H, W], [N, 3, H, W], [N, H, W, 3] or [N, D].
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise unreadable(path, error) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise BrokenFile(f"{path} holds several arrays as an .npz file does: give it that ending")
    pixels, full_scale = check_pixels(array, str(path))
    return Raw(Part(pixels), full_scale=full_scale)


def read_npz(path: Path) -> Raw:
    """Read images, and labels if there are any, from an `.npz` file.

    Images are the array `images`, or `x_train`, or the only one beside the labels; labels are `labels` or `y_train`.
    `x_test` with `y_test`, where present, is kept as the test set.
    """
    try:
        with path.open("rb") as file:
            arrays = np.load(file, allow_pickle=False)
            if isinstance(arrays, np.ndarray):
                raise BrokenFile(f"{path} holds a single array as an .npy file does: give it that ending")
            return assemble(arrays, path)
    except DataError:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise unreadable(path, error) from error


def assemble(arrays: Mapping[str, NDArray[Any]], path: Path) -> Raw:
    """Find and check the arrays of an `.npz` file and put them together."""
    key = image_key(list(arrays), path)
    labels = next((label for label in LABEL_KEYS if label in arrays), None)
    part, full_scale = one_part(arrays, key, labels, path)
    if "x_test" not in arrays or key != "x_train":
        return Raw(part, full_scale=full_scale)
    test, test_scale = one_part(arrays, "x_test", "y_test" if "y_test" in arrays else None, path)
    if (test.pixels.shape[1:], test.pixels.dtype, test_scale) != (part.pixels.shape[1:], part.pixels.dtype, full_scale):
        raise WrongImages(
            f"{path} has test images {test.pixels.shape} of {test.pixels.dtype} up to {test_scale}, but training "
            f"images {part.pixels.shape} of {part.pixels.dtype} up to {full_scale}: save both in the same form"
        )
    return Raw(part, test, full_scale=full_scale)


def one_part(arrays: Mapping[str, NDArray[Any]], images: str, labels: str | None, path: Path) -> tuple[Part, int]:
    """Check one array of images and its labels."""
    pixels, full_scale = check_pixels(arrays[images], f"{images!r} of {path}")
    if labels is None:
        return Part(pixels), full_scale
    return Part(pixels, check_labels(arrays[labels], len(pixels), f"{labels!r} of {path}")), full_scale


def image_key(keys: list[str], path: Path) -> str:
    """Find out which array of an `.npz` file holds the images."""
    for key in IMAGE_KEYS:
        if key in keys:
            return key
    others = [key for key in keys if key not in (*LABEL_KEYS, *TEST_KEYS)]
    if len(others) == 1:
        return others[0]
    found = ", ".join(keys) or "nothing"
    raise WrongImages(f"{path} holds {found}: name the array of images `images` (and that of labels `labels`)")


def unreadable(path: Path, error: Exception) -> BrokenFile:
    """Say why NumPy could not read a file."""
    if "pickle" in str(error).lower() or "python objects" in str(error).lower():
        return BrokenFile(
            f"{path} is not a plain NumPy file or holds pickled Python objects, which are never loaded: save an array "
            "of uint8 or float32 with np.save"
        )
    return BrokenFile(f"{path} cannot be read as a NumPy file ({error}): save it again with np.save or np.savez")
