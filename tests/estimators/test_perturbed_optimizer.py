"""PerturbedOptimizer: its formula, its Jacobian against closed forms and finite differences."""

import pytest
import torch
from torch import Tensor

from argrad import Bits, Categorical, Chain, PairwiseBits, Permutation, PerturbedOptimizer, SpanningTree, Subset
from problems import assert_mean


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_formula_on_fixed_noise():
    scores = normal(3, 5).requires_grad_()
    latent, weights = Subset(scores, size=2), normal(5, seed=1)
    estimator = PerturbedOptimizer(0.6, samples=7)
    noise = estimator.draw_noise(latent, generator=torch.Generator().manual_seed(0))
    value = estimator(latent, lambda z: (z * weights).sum(-1).square(), noise=noise)
    value.sum().backward()
    z = latent.solve(scores.detach() + 0.6 * noise)
    mean = z.mean(0)
    slope = 2 * (mean * weights).sum(-1, keepdim=True) * weights
    torch.testing.assert_close(value.detach(), (mean * weights).sum(-1).square())
    expected = ((slope * (z - mean)).sum(-1, keepdim=True) * noise).sum(0) / (6 * 0.6)
    torch.testing.assert_close(scores.grad, expected)


def test_one_sample_is_not_centred():
    scores = normal(3, 5).requires_grad_()
    latent, weights = Subset(scores, size=2), normal(5, seed=1)
    estimator = PerturbedOptimizer(0.6, samples=1)
    noise = estimator.draw_noise(latent, generator=torch.Generator().manual_seed(0))
    estimator(latent, lambda z: (z * weights).sum(-1), noise=noise).sum().backward()
    z = latent.solve(scores.detach() + 0.6 * noise[0])
    torch.testing.assert_close(scores.grad, (z * weights).sum(-1, keepdim=True) * noise[0] / 0.6)


def copies(estimator, latent, cost, samples: int = 20_000) -> Tensor:
    """Independent gradients [samples, *event] for a latent without batch."""
    scores = latent.scores.expand(samples, *latent.scores.shape).clone().requires_grad_()
    estimator(latent.with_scores(scores), cost, generator=torch.Generator().manual_seed(0)).sum().backward()
    return scores.grad


@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_two_outcomes_in_closed_form(sigma, samples):
    """With two values and Gaussian noise, E[z] is a normal distribution function of the difference of the scores."""
    scores = torch.tensor([0.4, -0.3], dtype=torch.float64, requires_grad=True)
    width = sigma * 2**0.5
    mean = torch.special.ndtr((scores[0] - scores[1]) / width)
    weights = torch.tensor([1.5, -0.5], dtype=torch.float64)
    (exact,) = torch.autograd.grad((torch.stack([mean, 1 - mean]) * weights).sum(), scores)
    found = copies(
        PerturbedOptimizer(sigma, samples=samples), Categorical(scores.detach()), lambda z: (z * weights).sum(-1)
    )
    assert_mean(found, exact, comparisons=4)


@pytest.mark.parametrize("name", ["categorical", "bits"])
def test_the_latents_noise_gives_its_mean(name):
    """For a linear cost this is the gradient of E[z], known for independent variables."""
    latent = Categorical(normal(5)) if name == "categorical" else Bits(normal(5))
    weights = normal(5, seed=1)
    found = copies(PerturbedOptimizer(noise="latent", samples=3), latent, lambda z: (z * weights).sum(-1))
    assert_mean(found, latent.gradient_of_mean(weights), comparisons=2)


STRUCTURES = {
    "subset": lambda: Subset(normal(5), size=2),
    "permutation": lambda: Permutation(normal(3, 3)),
    "tree": lambda: SpanningTree(normal(4, 4)),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_jacobian_against_finite_differences(name):
    """Differences of the mean of many samples, the noise in common, along one direction."""
    latent = STRUCTURES[name]()
    weights, direction, event = (
        normal(*latent.event_shape, seed=1),
        normal(*latent.event_shape, seed=2),
        latent.event_dims,
    )
    noise = normal(200_000, *latent.event_shape, seed=3)
    step = 0.1

    def along(sign: int) -> Tensor:
        z = latent.solve(latent.scores + sign * step * direction + noise)
        return (z * weights).flatten(-event).sum(-1)

    differences = (along(1) - along(-1)) / (2 * step)
    found = copies(PerturbedOptimizer(samples=4), latent, lambda z: (z * weights).flatten(-event).sum(-1))
    projected = (found * direction).flatten(-event).sum(-1)
    error = (projected.var() / len(projected) + differences.var() / len(differences)).sqrt()
    assert (projected.mean() - differences.mean()).abs() < 4 * error + 0.02 * differences.mean().abs()


@pytest.mark.parametrize("build", [PairwiseBits, Chain])
def test_scores_without_noise_get_the_right_gradient(build):
    """Pairwise and transition scores: against finite differences of the mean with the noise in common."""
    unary = normal(4) if build is PairwiseBits else normal(3, 3)
    other, direction = normal(*([unary.shape[-1]] * 2), seed=1), normal(*([unary.shape[-1]] * 2), seed=2)
    weights, event = normal(*unary.shape, seed=3), unary.dim()
    noise, step = normal(100_000, *unary.shape, seed=4), 0.1

    def along(sign: int) -> Tensor:
        z = build(unary, other + sign * step * direction).solve(unary + noise)
        return (z * weights).flatten(-event).sum(-1)

    differences = (along(1) - along(-1)) / (2 * step)
    samples = 20_000
    copied = other.expand(samples, *([1] if build is Chain else []), *other.shape).clone().requires_grad_()
    latent = build(unary.expand(samples, *unary.shape), copied)
    cost = PerturbedOptimizer(samples=4)(latent, lambda z: (z * weights).flatten(-event).sum(-1))
    (found,) = torch.autograd.grad(cost.sum(), copied)
    projected = (found * direction).flatten(1).sum(-1)
    error = (projected.var() / len(projected) + differences.var() / len(differences)).sqrt()
    assert (projected.mean() - differences.mean()).abs() < 4 * error + 0.02 * differences.mean().abs()


def test_centring_lowers_the_variance():
    latent, weights = Subset(normal(6), size=2), 3 + normal(6, seed=1)
    plain, centred = (
        copies(PerturbedOptimizer(samples=samples), latent, lambda z: (z * weights).sum(-1), 5000).var(0).sum()
        for samples in (1, 8)
    )
    assert centred < plain / 16  # 8 from the number alone


def test_the_cost_gets_its_gradient_once():
    theta, scores = torch.tensor(2.0, requires_grad=True), torch.zeros(3, 4, requires_grad=True)
    PerturbedOptimizer()(Subset(scores, 2), lambda z: theta * (1 + 0 * z.sum(-1))).sum().backward()
    assert theta.grad == 3


def test_unread_and_impossible_scores_get_no_gradient():
    tree = SpanningTree(normal(2, 4, 4).requires_grad_())
    PerturbedOptimizer()(tree, lambda z: (z * normal(4, 4, seed=1)).sum((-1, -2)).square()).sum().backward()
    assert (tree.scores.grad.tril() == 0).all()
    scores = normal(2, 4)
    scores[:, 1] = -torch.inf
    scores.requires_grad_()
    PerturbedOptimizer()(Subset(scores, 2), lambda z: (z * normal(4, seed=1)).sum(-1).square()).sum().backward()
    assert scores.grad.isfinite().all()
    assert (scores.grad[:, 1] == 0).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"sigma": 0}, "sigma must be a positive"), ({"samples": 0}, "samples >= 1"), ({"noise": "x"}, '"gaussian" or')],
)
def test_wrong_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        PerturbedOptimizer(**settings)
