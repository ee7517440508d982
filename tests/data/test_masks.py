"""Masks hide something and leave something, are where they are said to be, and are read from files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from argrad.data import BrokenFile, DataError, UnknownData
from argrad.data.masks import draw_masks, read_mask

KINDS = ("centre", "rectangle", "irregular", "mixed")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(4, 4), (8, 8), (28, 28), (32, 20)])
def test_every_mask_hides_a_part(kind, size, generator):
    masks = draw_masks(kind, 500, size, generator=generator)
    assert masks.shape == (500, *size)
    assert masks.dtype == torch.bool
    hidden = masks.flatten(1).double().mean(1)
    assert hidden.min() > 0
    assert hidden.max() < 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_generator_decides(kind):
    first, again, other = (
        draw_masks(kind, 20, (16, 16), generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (kind == "centre")


def test_the_centre_is_the_middle_quarter():
    mask = draw_masks("centre", 1, (8, 12))[0]
    expected = torch.zeros(8, 12, dtype=torch.bool)
    expected[2:6, 3:9] = True
    assert torch.equal(mask, expected)


def test_rectangles_are_rectangles_of_all_sizes_anywhere(generator):
    masks = draw_masks("rectangle", 2000, (16, 16), generator=generator)
    rows, columns = masks.any(2), masks.any(1)
    assert torch.equal(masks, rows[:, :, None] & columns[:, None, :])
    for sides in (rows, columns):
        lengths = sides.sum(1)
        assert set(lengths.tolist()) == set(range(4, 13))
        ends = torch.stack([sides.int().argmax(1), 15 - sides.flip(1).int().argmax(1)])
        assert torch.equal(ends[1] - ends[0] + 1, lengths)  # without gaps
        assert ends[0].min() == 0
        assert ends[1].max() == 15
    assert masks.any(0).all()  # no pixel is always visible


def test_irregular_masks_have_the_share_they_should_and_no_straight_edges(generator):
    masks = draw_masks("irregular", 500, (28, 28), generator=generator)
    share = masks.flatten(1).double().mean(1)
    assert 0.2 <= share.min() < 0.22
    assert 0.48 < share.max() <= 0.5 + 1 / 784
    boxes = (masks.any(2)[:, :, None] & masks.any(1)[:, None, :]).sum((1, 2))
    assert (boxes > 1.3 * masks.sum((1, 2))).double().mean() > 0.95
    neighbours = (masks[:, :, 1:] == masks[:, :, :-1]).double().mean()
    assert neighbours > 0.85  # blobs, not single pixels


def test_mixed_masks_are_of_all_kinds(generator):
    masks = draw_masks("mixed", 3000, (16, 16), generator=generator)
    middle = draw_masks("centre", 1, (16, 16))
    boxes = masks.any(2)[:, :, None] & masks.any(1)[:, None, :]
    is_centre, is_rectangle = (masks == middle).all((1, 2)), (masks == boxes).all((1, 2))
    for share in (is_centre.double().mean(), (is_rectangle & ~is_centre).double().mean()):
        assert abs(share - 1 / 3) < 4 * (2 / 9 / 3000) ** 0.5 + 0.005  # a rectangle may be the centre by chance


def test_wrong_options_are_refused():
    with pytest.raises(DataError, match="no 'round' masks: choose one of centre, rectangle, irregular, mixed"):
        draw_masks("round", 1, (8, 8))
    with pytest.raises(DataError, match="4 x 4 pixels at least, got 3 x 8"):
        draw_masks("centre", 1, (3, 8))


def test_a_mask_is_read_from_a_picture_or_an_array(tmp_path: Path):
    mask = draw_masks("irregular", 1, (10, 12), generator=torch.Generator().manual_seed(0))[0].numpy()
    Image.fromarray(np.where(mask, 255, 0).astype(np.uint8)).save(tmp_path / "mask.png")
    Image.fromarray(mask).save(tmp_path / "bits.png")
    np.save(tmp_path / "mask.npy", mask)
    np.save(tmp_path / "floats.npy", mask.astype(np.float32))
    for name in ("mask.png", "bits.png", "mask.npy", "floats.npy"):
        assert np.array_equal(read_mask(tmp_path / name), mask), name


def test_mistakes_in_mask_files_are_one_line(tmp_path: Path):
    with pytest.raises(UnknownData, match=r"is no file: give a mask .* or one of the words centre, rectangle"):
        read_mask(tmp_path / "missing.png")
    (tmp_path / "mask.txt").write_text("white")
    with pytest.raises(DataError, match=r"mask.txt is no picture and no .npy file"):
        read_mask(tmp_path / "mask.txt")
    (tmp_path / "broken.npy").write_bytes(b"nothing")
    with pytest.raises(BrokenFile, match=r"broken.npy cannot be read"):
        read_mask(tmp_path / "broken.npy")
    np.save(tmp_path / "deep.npy", np.zeros((2, 3, 3)))
    with pytest.raises(DataError, match=r"shape \(2, 3, 3\).*one array \[height, width\]"):
        read_mask(tmp_path / "deep.npy")
