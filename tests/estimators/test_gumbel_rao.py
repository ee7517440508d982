"""Gumbel-Rao: the mean of straight-through Gumbel-softmax, with less variance."""

import pytest
import torch

from argrad import GumbelRao, GumbelSoftmax
from problems import assert_mean, draws, make, total_variance


@pytest.mark.parametrize(
    "name", ["categorical", *(pytest.param(name, marks=pytest.mark.slow) for name in ("categoricals", "bits"))]
)
def test_same_mean_less_variance(name):
    problem = make(name)
    plain = draws(GumbelSoftmax(0.3, straight_through=True), problem, 100_000)[1]
    few = draws(GumbelRao(0.3, draws=2), problem, 100_000, seed=1)[1]
    many = draws(GumbelRao(0.3, draws=20), problem, 100_000, seed=2)[1]
    for averaged in (few, many):
        assert_mean(averaged - plain, torch.zeros_like(plain[0]), comparisons=2)
    assert total_variance(many) < total_variance(few) < total_variance(plain)


def test_wrong_settings():
    with pytest.raises(ValueError, match="at least one conditional draw"):
        GumbelRao(draws=0)
    with pytest.raises(ValueError, match="temperature"):
        GumbelRao(-0.5)
