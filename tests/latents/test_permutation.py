"""Permutations: what is their own."""

import torch

from argrad import Bits, Permutation
from structured_latents import normal


def test_two_rows_are_one_bit():
    scores = normal(5, 2, 2)
    odds = scores[:, 0, 0] + scores[:, 1, 1] - scores[:, 0, 1] - scores[:, 1, 0]
    ours, bit = Permutation(scores), Bits(odds.unsqueeze(-1))
    torch.testing.assert_close(ours.mean()[:, 0, 0], bit.mean()[:, 0])
    torch.testing.assert_close(ours.entropy(), bit.entropy())
    torch.testing.assert_close(ours.kl(), bit.kl())


def test_marginals_are_doubly_stochastic():
    mean = Permutation(2 * normal(3, 6, 6)).mean()
    for dim in (-1, -2):
        torch.testing.assert_close(mean.sum(dim), torch.ones(3, 6).double())


def test_transposing_scores_transposes_everything():
    scores = normal(4, 4)
    q, turned = Permutation(scores), Permutation(scores.mT.contiguous())
    torch.testing.assert_close(turned.mean(), q.mean().mT)
    torch.testing.assert_close(turned.mode(), q.mode().mT)
    torch.testing.assert_close(turned.entropy(), q.entropy())
