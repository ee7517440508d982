"""Chains: what is their own, and what they are when all transitions score the same."""

import pytest
import torch

from argrad import Categorical, Chain, PairwiseBits
from structured_latents import normal
from structures import assert_law

UNARY, TRANSITION = normal(2, 4, 3), normal(3, 3, seed=1)


@pytest.mark.parametrize("level", [0.0, 1.7])
def test_with_equal_transitions_variables_are_independent(level):
    transition = torch.full((3, 3), level, dtype=torch.float64)
    ours, independent = Chain(UNARY, transition), Categorical(UNARY, event_dims=2)
    z = independent.sample((7,), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours.score(z), independent.score(z) + 3 * level)
    torch.testing.assert_close(ours.log_prob(z), independent.log_prob(z))
    torch.testing.assert_close(ours.entropy(), independent.entropy())
    torch.testing.assert_close(ours.kl(), independent.kl())
    torch.testing.assert_close(ours.mean(), independent.mean())
    torch.testing.assert_close(ours.log_prob_all(), independent.log_prob_all())
    torch.testing.assert_close(ours.mode(), independent.mode())
    for law in ("gibbs", "perturb"):
        noise = ours.draw_noise((50,), generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(ours.with_law(law).sample(noise=noise), independent.sample(noise=noise))


def test_a_chain_of_bits_is_a_case_of_pairwise_bits():
    unary, transition = normal(4, 2), normal(3, 2, 2, seed=1)
    single = unary[:, 1] - unary[:, 0]
    single[:-1] += transition[:, 1, 0] - transition[:, 0, 0]
    single[1:] += transition[:, 0, 1] - transition[:, 0, 0]
    both = transition[:, 1, 1] - transition[:, 1, 0] - transition[:, 0, 1] + transition[:, 0, 0]
    chain, bits = Chain(unary, transition), PairwiseBits(single, torch.diag(both, 1))
    torch.testing.assert_close(chain.mean()[:, 1], bits.mean())
    torch.testing.assert_close(chain.entropy(), bits.entropy())
    torch.testing.assert_close(chain.log_prob_all(), bits.log_prob_all())
    torch.testing.assert_close(chain.mode()[:, 1], bits.mode())


def test_score_by_hand():
    transition = torch.tensor([[0.0, 10.0], [20.0, 30.0]])
    q = Chain(torch.tensor([[1.0, 2.0], [4.0, 8.0], [0.0, 0.5]]), transition)
    z = torch.nn.functional.one_hot(torch.tensor([0, 1, 0]), 2).float()
    assert q.score(z) == 1 + 8 + 0 + 10 + 20


def test_shared_transitions_are_those_of_every_step():
    shared, own = Chain(UNARY, TRANSITION), Chain(UNARY, TRANSITION.expand(2, 3, 3, 3))
    torch.testing.assert_close(shared.log_prob_all(), own.log_prob_all())
    torch.testing.assert_close(shared.kl(own), torch.zeros(2).double())


def test_the_laws_differ():
    q = Chain(UNARY[0], 2 * TRANSITION)
    perturbed = q.with_law("perturb").sample((50_000,), generator=torch.Generator().manual_seed(2))
    with pytest.raises(AssertionError):
        assert_law(perturbed, q.log_prob_all(), q.enumerate())
