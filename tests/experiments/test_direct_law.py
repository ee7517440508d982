"""The closed form of the direct gradient's law, against its margins, against draws, and where numbers are extreme."""

import pytest
import torch

from argrad import Categorical, Direct
from argrad.costs import TableCost
from argrad.experiments.direct_law import direct_moments, joint_law
from argrad.noise import gumbel
from problems import assert_mean, draws, make

EPSILONS = [0.03, 0.5, 4.0, -0.7]


def problem(generator: torch.Generator, batch: int = 3, k: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    scores, costs = torch.randn(2, batch, k, generator=generator, dtype=torch.float64)
    return scores, 3 * costs


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_margins_are_softmaxes(epsilon, generator):
    scores, costs = problem(generator)
    law = joint_law(scores, epsilon * costs)
    torch.testing.assert_close(law.sum(-1), scores.softmax(-1))
    torch.testing.assert_close(law.sum(-2), (scores - epsilon * costs).softmax(-1))
    assert law.min() >= 0


def test_the_arg_max_only_moves_to_cheaper_codes(generator):
    scores, costs = problem(generator)
    law = joint_law(scores, costs)
    dearer = costs.unsqueeze(-2) > costs.unsqueeze(-1)  # [i, j]: j costs more than i
    assert dearer.any()
    assert law[dearer].eq(0).all()
    assert law[~dearer].gt(0).all()


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_law_is_that_of_draws(epsilon, generator):
    scores, costs = problem(generator, batch=2, k=4)
    noise = gumbel((100_000, 2, 4), dtype=torch.float64, generator=generator)
    before = torch.nn.functional.one_hot((scores + noise).argmax(-1), 4).double()
    after = torch.nn.functional.one_hot((scores - epsilon * costs + noise).argmax(-1), 4).double()
    counts = (before.unsqueeze(-1) * after.unsqueeze(-2)).sum(0)
    expected = len(noise) * joint_law(scores, epsilon * costs)
    # The spread is that of the law, not of the sample: pairs too rare to be seen have a spread too.
    z = (counts - expected).abs() / (expected * (1 - expected / len(noise)) + 1).sqrt()
    assert z.max() < 4.9  # one in 10,000 for all comparisons together


@pytest.mark.parametrize("epsilon", EPSILONS[1:])  # at 0.03 most pairs are too rare for the spread of a sample
def test_moments_are_those_of_the_estimator(epsilon):
    toy = make("categorical")
    table = toy.cost(toy.theta())(toy.latent.enumerate().unsqueeze(1)).squeeze(-1)  # the same costs for every example
    costs = table.expand(toy.latent.scores.shape)
    _, gradients, _ = draws(Direct(epsilon), toy, 50_000)
    mean, covariance = direct_moments(toy.latent.scores, costs, epsilon)
    assert_mean(gradients, mean, 2 * len(EPSILONS))
    away = gradients - mean
    assert_mean(away.unsqueeze(-1) * away.unsqueeze(-2), covariance, 2 * len(EPSILONS))


def test_extreme_costs_stay_probabilities(generator):
    scores, costs = problem(generator)
    for factor in (1e-9, 1e4):
        law = joint_law(scores, factor * costs)
        assert law.isfinite().all()
        torch.testing.assert_close(law.sum((-1, -2)), torch.ones(3, dtype=torch.float64))


def test_equal_costs_do_not_move_the_arg_max(generator):
    scores, costs = problem(generator)
    costs[:, 1] = costs[:, 4]
    law = joint_law(scores, costs)
    assert law[:, 1, 4].eq(0).all()
    assert law[:, 4, 1].eq(0).all()
    torch.testing.assert_close(law.sum(-1), scores.softmax(-1))
    mean, covariance = direct_moments(scores, torch.zeros_like(costs), 0.1)
    assert mean.abs().max() == 0
    assert covariance.abs().max() < 1e-9


def test_the_estimator_agrees_on_a_table(generator):
    scores, costs = problem(generator)
    q = Categorical(scores.expand(20_000, -1, -1).clone().requires_grad_())
    Direct(0.5)(q, TableCost(costs), generator=generator).sum().backward()
    assert_mean(q.scores.grad, direct_moments(scores, costs, 0.5)[0])
