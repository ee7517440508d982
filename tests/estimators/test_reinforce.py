"""REINFORCE and its baselines."""

import pytest
import torch
from torch import nn

from argrad import Bits, Categorical, Reinforce, TableCost
from problems import draws, make, total_variance


def test_same_noise_algebra(generator):
    logits = torch.randn(4, 3, generator=generator, requires_grad=True)
    cost = TableCost(torch.randn(4, 3, generator=generator))
    noise = Categorical(logits).draw_noise(generator=generator)
    (ours,) = torch.autograd.grad(Reinforce(baseline="none")(Categorical(logits), cost, noise=noise).sum(), logits)
    z = Categorical(logits).sample(noise=noise)
    (theirs,) = torch.autograd.grad((cost(z) * Categorical(logits).log_prob(z)).sum(), logits)
    torch.testing.assert_close(ours, theirs)


def test_leave_one_out_is_the_mean_of_pairs(generator):
    logits = torch.randn(4, 3, generator=generator, requires_grad=True)
    cost = TableCost(torch.randn(4, 3, generator=generator))
    latent = Categorical(logits)
    noise = latent.draw_noise((3,), generator=generator)
    (ours,) = torch.autograd.grad(Reinforce(samples=3)(latent, cost, noise=noise).sum(), logits)
    z = latent.sample(noise=noise)
    costs, total = cost(z), 0
    for s in range(3):
        others = (costs.sum(0) - costs[s]) / 2
        total = total + ((costs[s] - others) * latent.log_prob(z[s])).sum() / 3
    torch.testing.assert_close(ours, torch.autograd.grad(total, logits)[0])


def test_one_sample_takes_plain_noise(generator):
    logits = torch.zeros(2, 3, requires_grad=True)
    noise = Categorical(logits).draw_noise(generator=generator)
    first = Reinforce(baseline="none")(Categorical(logits), TableCost(torch.ones(2, 3)), noise=noise)
    second = Reinforce(baseline="none")(Categorical(logits), TableCost(torch.ones(2, 3)), noise=noise.unsqueeze(0))
    torch.testing.assert_close(first, second)


def trained(estimator, problem, offset: float, steps: int = 300):
    scores = problem.latent.scores.expand(50, *problem.latent.scores.shape).clone().requires_grad_()
    latent = problem.latent.with_scores(scores)
    cost = problem.cost(problem.theta())
    generator = torch.Generator().manual_seed(1)
    optimiser = None
    for _ in range(steps):
        loss = estimator(latent, lambda z: cost(z) + offset, generator=generator).mean()
        parameters = list(estimator.parameters())
        if parameters:
            optimiser = optimiser or torch.optim.Adam(parameters, 0.01)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return estimator.eval()


@pytest.mark.parametrize("baseline", ["moving-average", "learnt"])
def test_baselines_take_away_an_offset(baseline):
    """A cost of 100 ± 1 has nearly the variance of ± 1 once the baseline has seen it."""
    problem = make("bits")
    offset = 100.0
    estimator = trained(Reinforce(baseline=baseline), problem, offset)
    scores = problem.latent.scores.expand(20_000, *problem.latent.scores.shape).clone().requires_grad_()
    cost = problem.cost(problem.theta())
    estimator(problem.latent.with_scores(scores), lambda z: cost(z) + offset).sum().backward()
    bare = draws(Reinforce(baseline="none"), problem, 20_000)[1]
    assert total_variance(scores.grad) < 1.5 * total_variance(bare)


def test_a_learnt_baseline_beats_the_average_where_examples_differ():
    problem = make("bits", scale=3.0)
    offsets = torch.tensor([0.0, 40.0, -25.0], dtype=torch.float64)
    variances = {}
    for baseline in ("moving-average", "learnt"):
        estimator = Reinforce(baseline=baseline)
        torch.manual_seed(0)
        scores = problem.latent.scores.expand(50, 3, 4).clone().requires_grad_()
        context = torch.eye(3, dtype=torch.float64).expand(50, 3, 3)
        optimiser = None
        cost = problem.cost(problem.theta())

        def shifted(z, cost=cost):
            return cost(z) + offsets

        generator = torch.Generator().manual_seed(1)
        for _ in range(300):
            loss = estimator(problem.latent.with_scores(scores), shifted, generator=generator, context=context).mean()
            if baseline == "learnt":
                optimiser = optimiser or torch.optim.Adam(estimator.parameters(), 0.01)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        estimator.eval()
        many = problem.latent.scores.expand(20_000, 3, 4).clone().requires_grad_()
        wide = torch.eye(3, dtype=torch.float64).expand(20_000, 3, 3)
        estimator(problem.latent.with_scores(many), shifted, generator=generator, context=wide).sum().backward()
        variances[baseline] = total_variance(many.grad)
    assert variances["learnt"] < 0.5 * variances["moving-average"], variances


def test_the_baseline_never_sees_its_own_sample():
    """The moving average of a call is that of the calls before it."""
    estimator = Reinforce(baseline="moving-average")
    logits = torch.zeros(1, 2, requires_grad=True)
    noise = torch.tensor([[5.0, 0.0]])
    cost = TableCost(torch.tensor([[3.0, 7.0]]))
    estimator(Categorical(logits), cost, noise=noise).sum().backward()
    assert logits.grad.tolist() == [[1.5, -1.5]]  # (3 − 0) (1 − ½)
    logits.grad = None
    estimator(Categorical(logits), cost, noise=noise).sum().backward()
    torch.testing.assert_close(logits.grad, torch.zeros(1, 2))  # the average is now 3


def test_own_module_as_baseline():
    estimator = Reinforce(baseline=nn.Linear(3, 1))
    estimator(Bits(torch.zeros(4, 3, requires_grad=True)), lambda z: z.sum(-1)).mean().backward()
    assert all(parameter.grad is not None for parameter in estimator.parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 0}, "at least one sample"),
        ({"baseline": "mean"}, "baseline must be one of"),
        ({"baseline": "leave-one-out"}, "samples >= 2"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Reinforce(**settings)


def test_wrong_context_and_network():
    latent = Bits(torch.zeros(4, 3, requires_grad=True))
    with pytest.raises(ValueError, match="context must have shape"):
        Reinforce(baseline="learnt")(latent, lambda z: z.sum(-1), context=torch.zeros(3, 2))
    with pytest.raises(ValueError, match="one number per example"):
        Reinforce(baseline=nn.Linear(3, 2))(latent, lambda z: z.sum(-1))
