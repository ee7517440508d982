"""Subsets: what is their own, and both laws against closed forms."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from argrad import Categorical, Subset
from structured_latents import normal
from structures import assert_law


def plackett_luce(scores: Tensor, states: Tensor) -> Tensor:
    """Log-probabilities of sets whose items are drawn one after the other without replacement."""
    weights = scores.exp()
    chances = []
    for state in states:
        chance = torch.zeros_like(weights[0])
        for order in itertools.permutations(state.nonzero().flatten().tolist()):
            left, this = weights.sum(), torch.ones_like(chance)
            for item in order:
                this, left = this * weights[item] / left, left - weights[item]
            chance = chance + this
        chances.append(chance)
    return torch.stack(chances).log()


def test_one_item_is_a_categorical_variable():
    scores = normal(3, 4)
    ours, one = Subset(scores, 1), Categorical(scores)
    z = one.sample(generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours.log_prob(z), one.log_prob(z))
    torch.testing.assert_close(ours.mean(), one.mean())
    torch.testing.assert_close(ours.kl(), one.kl())
    perturbed = Subset(scores, 1, law="perturb")
    noise = perturbed.draw_noise(generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(perturbed.sample(noise=noise), one.sample(noise=noise))


def test_perturbed_subsets_are_drawn_without_replacement():
    scores = 1.5 * normal(5)
    q = Subset(scores, 2, law="perturb")
    z = q.sample((100_000,), generator=torch.Generator().manual_seed(1))
    expected = plackett_luce(scores, q.enumerate())
    assert math.isclose(expected.exp().sum(), 1)
    assert_law(z, expected, q.enumerate())
    with pytest.raises(AssertionError):
        assert_law(z, q.with_law("gibbs").log_prob_all(), q.enumerate())


@pytest.mark.parametrize(("size", "states"), [(0, 1), (4, 1), (2, 6)])
def test_sizes(size, states):
    q = Subset(normal(4), size)
    assert q.num_states == states
    assert q.sample(generator=torch.Generator().manual_seed(0)).sum() == size
    torch.testing.assert_close(q.mean().sum(), torch.tensor(float(size)).double())
    assert (q.entropy() == 0) == (states == 1)
