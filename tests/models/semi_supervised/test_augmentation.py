"""Augmentation: what moves, by how much, and what stays."""

import pytest
import torch

from argrad.models import AUGMENTATIONS, Augmentation


def middle(augmentation: Augmentation, features: int = 49) -> torch.Tensor:
    """Uniform numbers at which nothing is changed."""
    return torch.full((1, augmentation.numbers(features)), 0.5)


def dot(row: int, column: int) -> torch.Tensor:
    image = torch.zeros(7, 7)
    image[row, column] = 1.0
    return image.reshape(1, 49)


def place(image: torch.Tensor) -> tuple[int, int]:
    return divmod(int(image.argmax()), 7)


def test_the_middle_of_every_range_changes_nothing():
    augmentation = Augmentation(rotation=30, zoom=0.3, shear=0.3, shift=0.3)
    image = torch.rand(1, 49, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(augmentation(image, middle(augmentation), (7, 7)), image)


def test_a_shift_is_a_share_of_the_side():
    augmentation = Augmentation(shift=2 / 7)
    uniform = middle(augmentation)
    uniform[0, 3], uniform[0, 4] = 1.0, 0.0  # reads two columns further right and two rows further up
    moved = augmentation(dot(3, 3), uniform, (7, 7))
    assert place(moved) == (5, 1)
    torch.testing.assert_close(moved.max(), torch.tensor(1.0))


def test_a_quarter_turn():
    augmentation = Augmentation(rotation=90)
    uniform = middle(augmentation)
    uniform[0, 0] = 1.0
    assert place(augmentation(dot(3, 5), uniform, (7, 7))) == (1, 3)


def test_a_mirror():
    augmentation = Augmentation(mirror=True)
    uniform = middle(augmentation)
    uniform[0, 5] = 0.2
    assert place(augmentation(dot(2, 5), uniform, (7, 7))) == (2, 1)
    uniform[0, 5] = 0.8
    assert place(augmentation(dot(2, 5), uniform, (7, 7))) == (2, 5)


def test_a_rectangle_is_erased():
    augmentation = Augmentation(erase=0.5)
    uniform = middle(augmentation)
    uniform[0, 8], uniform[0, 9] = 1.0, 0.4  # half of the height, a fifth of the width
    kept = augmentation(torch.ones(1, 49), uniform, (7, 7)).reshape(7, 7)
    assert kept.sum() == 49 - 3
    assert (kept[2:5, 3] == 0).all()


def test_numbers_are_dropped():
    augmentation = Augmentation(drop=0.25)
    uniform = torch.rand(2000, 9, generator=torch.Generator().manual_seed(0))
    kept = augmentation(torch.ones(2000, 9), uniform, (9,))
    assert float(kept.mean()) == pytest.approx(0.75, abs=0.02)
    assert set(kept.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_named_ones_keep_shape_and_range(name):
    augmentation = AUGMENTATIONS[name]
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 5, 49, generator=generator).round()
    changed = augmentation(images, torch.rand(2, 5, augmentation.numbers(49), generator=generator), (7, 7), bits=True)
    assert changed.shape == images.shape
    assert set(changed.unique().tolist()) <= {0.0, 1.0}
    assert torch.equal(changed, images) == (name == "none")
    colour = torch.rand(4, 3 * 16, generator=generator)
    uniform = torch.rand(4, augmentation.numbers(48), generator=generator)
    assert augmentation(colour, uniform, (3, 4, 4)).shape == (4, 48)


def test_every_image_is_read_by_its_own_map():
    """A batch of images with different maps is what each is alone."""
    augmentation, generator = AUGMENTATIONS["digits"], torch.Generator().manual_seed(0)
    images = torch.rand(6, 35, generator=generator)
    uniform = torch.rand(6, augmentation.numbers(35), generator=generator)
    together = augmentation(images, uniform, (5, 7))
    alone = [augmentation(images[n : n + 1], uniform[n : n + 1], (5, 7)) for n in range(6)]
    torch.testing.assert_close(together, torch.cat(alone))


def test_what_is_no_image_cannot_be_moved():
    augmentation = Augmentation(shift=0.1)
    with pytest.raises(ValueError, match="are no images and cannot be moved"):
        augmentation(torch.ones(1, 9), torch.rand(1, augmentation.numbers(9)), (9,))
    with pytest.raises(ValueError, match="shift must be a number that is not negative"):
        Augmentation(shift=-0.1)
