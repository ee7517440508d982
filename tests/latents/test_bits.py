"""Bits against torch.distributions, and what is special to them. The common contract is in test_base.py."""

import math

import pytest
import torch
from torch import Tensor, distributions

from argrad import Bits, Categorical

BATCHES = [(), (1,), (4,), (2, 3)]  # torch.distributions does not take an empty batch everywhere


def scores(*shape: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def as_torch(h: Tensor) -> distributions.Independent:
    return distributions.Independent(distributions.Bernoulli(logits=h), 1)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("n", [1, 2, 6])
def test_equals_torch(batch, n):
    h, other = scores(*batch, n), scores(*batch, n, seed=2)
    q, reference = Bits(h), as_torch(h)
    z = torch.randint(2, (5, *batch, n), generator=torch.Generator().manual_seed(1)).double()
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(q.log_prob(z), reference.log_prob(z), **close)
    torch.testing.assert_close(q.entropy(), reference.entropy(), **close)
    torch.testing.assert_close(q.mean(), reference.mean, **close)
    torch.testing.assert_close(q.kl(Bits(other)), distributions.kl_divergence(reference, as_torch(other)), **close)
    uniform = as_torch(torch.zeros_like(h))
    torch.testing.assert_close(q.kl(), distributions.kl_divergence(reference, uniform), **close)
    assert torch.equal(q.mode(), (h > 0).double())


def test_the_same_as_two_valued_categoricals():
    """A bit with log-odds h is a categorical variable with scores (0, h)."""
    h = scores(4, 3)
    q, pair = Bits(h), Categorical(torch.stack([torch.zeros_like(h), h], -1), event_dims=2)
    torch.testing.assert_close(q.log_prob_all(), pair.log_prob_all())
    torch.testing.assert_close(q.entropy(), pair.entropy())
    torch.testing.assert_close(q.kl(), pair.kl())
    torch.testing.assert_close(q.mean(), pair.mean()[..., 1])
    table = scores(4, 3, 2, seed=5)
    torch.testing.assert_close(q.gradient_of_mean(q.linear(table)), pair.gradient_of_mean(pair.linear(table))[..., 1])


@pytest.mark.parametrize("impossible", [False, True])
def test_conversion_there_and_back(impossible):
    h = scores(4, 3)
    if impossible:
        h[:, 1] = -torch.inf
    q = Bits(h)
    back = Bits.from_distribution(q.to_distribution())
    assert torch.equal(back.logits, h)
    torch.testing.assert_close(q.to_distribution().mean, q.mean())
    if not impossible:  # torch has no log-probability for certain bits
        z = q.sample((2,))
        torch.testing.assert_close(q.to_distribution().log_prob(z), q.log_prob(z))
    torch.testing.assert_close(Bits.from_distribution(distributions.Bernoulli(logits=h)).mean(), q.mean())
    torch.testing.assert_close(Bits.from_distribution(distributions.Bernoulli(probs=h.sigmoid())).mean(), q.mean())


def test_impossible_bits_count_for_nothing():
    h = torch.tensor([-torch.inf, 0.4], dtype=torch.float64)
    q, short = Bits(h), Bits(h[1:])
    torch.testing.assert_close(q.entropy(), short.entropy())
    torch.testing.assert_close(q.kl(), short.kl() + math.log(2))
    assert q.log_prob(torch.tensor([1.0, 1.0])) == -torch.inf
    torch.testing.assert_close(q.log_prob(torch.tensor([0.0, 1.0])), short.log_prob(torch.tensor([1.0])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_scores_stay_finite(dtype):
    h = torch.tensor([1e4, -1e4, 1e30, -1e30, 0.0], dtype=dtype, requires_grad=True)
    q = Bits(h)
    for value in (q.entropy(), q.kl(), q.mean().sum(), q.relax(q.perturb(q.draw_noise()), 1e-3).sum()):
        assert bool(value.isfinite().all())
        assert bool(torch.autograd.grad(value, h)[0].isfinite().all())
    torch.testing.assert_close(q.kl().detach(), torch.tensor(4 * math.log(2), dtype=dtype))


def test_outcome_path_gradient_stays_finite_at_extreme_scores():
    h = torch.tensor([80.0, -80.0, 20.0, -20.0], requires_grad=True)
    q = Bits(h)
    noise = q.draw_noise((1000,), generator=torch.Generator().manual_seed(0))
    z, perturbed = q.sample(noise=noise), q.perturb(noise).detach()
    assert bool(q.outcome_path_gradient(z, perturbed, torch.ones_like(noise)).isfinite().all())
    given = q.perturb_given(z, noise)
    assert bool(given.isfinite().all())
    assert bool(torch.autograd.grad(given.sum(), h)[0].isfinite().all())


def test_even_odds_are_zero_in_the_mode():
    assert torch.equal(Bits(torch.zeros(3)).mode(), torch.zeros(3))


def test_counting_order():
    assert Bits(torch.zeros(2)).enumerate().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_linear_is_what_setting_a_bit_adds():
    table = torch.tensor([[1.0, 4.0], [5.0, 3.0]])
    assert torch.equal(Bits(torch.zeros(2)).linear(table), torch.tensor([3.0, -2.0]))


def test_entropy_and_kl_of_fair_bits():
    q = Bits(torch.zeros(7, dtype=torch.float64))
    assert q.entropy().item() == pytest.approx(7 * math.log(2), abs=1e-12)
    assert q.kl().item() == pytest.approx(0, abs=1e-12)
