import pytest
import torch

from argrad.data import DataError, binarize


def test_rounding_agrees_with_torch_round_and_sends_one_half_to_zero() -> None:
    x = torch.tensor([0.0, 0.25, 0.5, 0.50001, 1.0])
    assert torch.equal(binarize(x, "round"), torch.round(x))
    assert binarize(x, "round").tolist() == [0, 0, 0, 1, 1]


def test_rounding_of_bytes_splits_between_127_and_128() -> None:
    x = torch.arange(256, dtype=torch.uint8)
    bits = binarize(x, "round")
    assert bits.dtype == torch.float32
    assert bits.sum() == 128
    assert bits[128] == 1


def test_none_scales_bytes_and_leaves_floats() -> None:
    assert binarize(torch.tensor([0, 51, 255], dtype=torch.uint8), "none").tolist() == pytest.approx([0, 0.2, 1])
    assert binarize(torch.tensor([0.3]), "none").tolist() == pytest.approx([0.3])
    assert binarize(torch.tensor([0, 1], dtype=torch.uint8), "none", full_scale=1).tolist() == [0, 1]


def test_stochastic_bits_follow_their_probability_and_the_generator(generator: torch.Generator) -> None:
    count = 20_000
    for p in (0.05, 0.5, 0.93):
        bits = binarize(torch.full((count,), p), "stochastic", generator)
        assert set(bits.tolist()) <= {0.0, 1.0}
        standard_error = (p * (1 - p) / count) ** 0.5
        assert abs(bits.mean().item() - p) < 4 * standard_error
    x = torch.rand(1000)
    first, second, third = (binarize(x, "stochastic", torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_certain_pixels_never_flip(generator: torch.Generator) -> None:
    x = torch.tensor([0, 255], dtype=torch.uint8).repeat(10_000)
    assert torch.equal(binarize(x, "stochastic", generator), x / 255)


def test_a_black_pixel_stays_black_even_when_zero_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.zeros(shape))
    assert binarize(torch.tensor([0.0, 0.1]), "stochastic").tolist() == [0, 1]


def test_unknown_word_is_refused() -> None:
    with pytest.raises(DataError, match=r'"round", "stochastic" or "none"'):
        binarize(torch.zeros(1), "dither")  # type: ignore[arg-type]
