import numpy as np
import pytest

from argrad.data import DataError
from argrad.data.pixels import check_labels, check_pixels


@pytest.mark.parametrize(
    ("array", "full_scale"),
    [
        (np.array([[[0, 255]]], np.uint8), 255),
        (np.array([[[0, 2]]], np.uint8), 255),
        (np.array([[[0, 1]]], np.uint8), 1),
        (np.array([[[0, 200]]], np.int64), 255),
        (np.array([[[0, 1]]], np.int32), 1),
        (np.array([[[False, True]]]), 1),
        (np.array([[[0, 0.5]]], np.float64), 1),
        (np.array([[[0, 1]]], np.float16), 1),
    ],
)
def test_the_number_that_means_one(array: np.ndarray, full_scale: int) -> None:
    pixels, scale = check_pixels(array, "x")
    assert scale == full_scale
    assert pixels.dtype == np.uint8 or pixels.dtype.kind == "f"
    assert (pixels == array).all()


def test_bytes_and_floats_are_not_copied() -> None:
    for array in (np.full((2, 3, 3), 9, np.uint8), np.zeros((2, 3, 3), np.float32)):
        assert np.shares_memory(check_pixels(array, "x")[0], array)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 7), (5, 7)),
        ((5, 7, 9), (5, 7, 9)),
        ((5, 3, 7, 9), (5, 3, 7, 9)),
        ((5, 1, 7, 9), (5, 1, 7, 9)),
        ((5, 7, 9, 3), (5, 3, 7, 9)),
        ((5, 7, 9, 1), (5, 1, 7, 9)),
    ],
)
def test_channels_come_first(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert check_pixels(np.zeros(shape), "x")[0].shape == expected


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(10, np.int64), r"x has shape \(10,\), which looks like labels"),
        (np.zeros((0, 4, 4)), "holds no pixel: give at least one image"),
        (np.zeros((2, 8, 8, 4)), "drop an alpha channel"),
        (np.zeros((2, 2, 2, 2, 2)), r"images need \[N, H, W\]"),
        (np.array([[[0, np.nan]], [[0, 0]]]), r"NaN pixels \(first in image 0\)"),
        (np.array([[[0, 0]], [[np.nan, 5]]]), r"NaN pixels \(first in image 1\)"),
        (np.array([[[0, 255.0]]]), "from 0 to 255: expected floats from 0 to 1; divide by 255, or save as uint8"),
        (np.array([[[-1.0, 1.0]]]), "from -1 to 1: expected floats from 0 to 1; scale or clip"),
        (np.array([[[0, np.inf]]]), "from 0 to inf"),
        (np.array([[[0, 256]]]), "whole numbers from 0 to 256: expected 0 to 255"),
        (np.array([[[0, -1]]], np.int8), "whole numbers from -1 to 0"),
        (np.array([[["a"]]]), "values of type <U1: save images as uint8"),
        (np.array([[[1j]]]), "values of type complex128"),
    ],
)
def test_what_is_not_a_set_of_images(array: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        check_pixels(array, "x")
    assert "\n" not in str(caught.value)


def test_labels() -> None:
    assert check_labels(np.array([-1, 3], np.int8), 2, "y").dtype == np.int64
    for wrong in (np.zeros(3, np.int64), np.zeros(2), np.zeros((2, 10), np.int64)):
        with pytest.raises(DataError, match="one whole number for each of the 2 images"):
            check_labels(wrong, 2, "y")
