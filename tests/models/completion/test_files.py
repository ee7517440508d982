"""Completions as files: a picture that begins with the hole, and the numbers bit for bit."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from argrad.models.completion.files import completions_npz, completions_png


@pytest.mark.parametrize("shape", [(8, 8), (1, 8, 8), (3, 8, 8)])
def test_the_picture_has_the_hole_and_then_all_completions(shape: tuple[int, ...]) -> None:
    x, mask = torch.ones(1, *shape), torch.zeros(1, 8, 8, dtype=torch.bool)
    mask[:, :4] = True
    completed = torch.stack([torch.full(shape, value) for value in (0.0, 1.0, 0.2)])
    with Image.open(io.BytesIO(completions_png(x, mask, completed))) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.shape == (112, 4 * 112 + 3 * 4, 3)
    assert (pixels[:56, :112] == 128).all()
    assert (pixels[56:, :112] == 255).all()
    assert [pixels[50, 50 + 116 * number, 0] for number in (1, 2, 3)] == [0, 255, 51]


def test_many_completions_take_several_rows() -> None:
    x, mask = torch.ones(1, 28, 28), torch.zeros(1, 28, 28, dtype=torch.bool)
    with Image.open(io.BytesIO(completions_png(x, mask, torch.rand(16, 28, 28)))) as image:
        assert image.size == (9 * 112 + 8 * 4, 2 * 112 + 4)


def test_the_numbers_come_back() -> None:
    completed, which = torch.rand(3, 8, 8), torch.tensor([2, 0, 2])
    with np.load(io.BytesIO(completions_npz(completed, which))) as found:
        np.testing.assert_array_equal(found["completions"], completed.numpy())
        assert found["components"].tolist() == [2, 0, 2]
