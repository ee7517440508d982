import numpy as np
import torch

from argrad.data import from_arrays, load


def test_values_are_floats_from_zero_to_one_however_stored() -> None:
    grey = np.random.RandomState(0).randint(0, 256, (40, 5, 5)).astype(np.uint8)
    plain = from_arrays(grey, binarize="none")
    assert plain.train.dtype == torch.uint8
    assert torch.equal(plain.values(plain.train), plain.train / 255)
    rounded = from_arrays(grey, binarize="round")
    assert rounded.train.dtype == torch.uint8
    assert torch.equal(rounded.values(rounded.train), (plain.train >= 128).float())


def test_stochastic_images_give_fresh_bits_at_every_call(generator: torch.Generator) -> None:
    images = from_arrays(np.full((40, 5, 5), 0.5), binarize="stochastic")
    assert images.train.dtype == torch.float32
    first, second = (images.values(images.train, generator) for _ in range(2))
    assert set(first.unique().tolist()) == {0.0, 1.0}
    assert not torch.equal(first, second)


def test_bits_stay_bits_whatever_is_asked() -> None:
    bits = np.random.RandomState(0).randint(0, 2, (40, 5, 5)).astype(np.uint8)
    expected = from_arrays(bits, binarize="none")
    for how in ("round", "stochastic"):
        images = from_arrays(bits, binarize=how)  # type: ignore[arg-type]
        assert torch.equal(images.values(images.train), expected.train.float())


def test_moving_keeps_everything() -> None:
    digits = load("digits")
    moved = digits.to("cpu")
    assert repr(moved) == repr(digits)
    assert torch.equal(moved.train, digits.train)
    away = digits.to("meta")
    assert away.test.device.type == "meta"
    assert away.test_labels is not None
    assert away.test_labels.device.type == "meta"
