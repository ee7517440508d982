"""Slips in the sources, shown as such: the right form holds, and the form in print does not. See docs/errata.md."""

import math

import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from argrad import Categorical, Direct, Exact, Gaussian, GumbelSoftmax, Reinforce, TableCost
from argrad.noise import gumbel
from problems import assert_mean

SCORES = torch.tensor([1.0, -0.5, 0.3, 2.0], dtype=torch.float64)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------------------------------------- Gumbel-max and friends


@pytest.mark.parametrize("k", range(4))
def test_probability_that_the_others_stay_below(k):
    """∏ F is P(max of the others ≤ z), and integrating it over the density of z gives the softmax."""
    others = [i for i in range(4) if i != k]

    def all_below(z: float) -> float:
        return math.prod(stats.gumbel_r.cdf(z, SCORES[i].item()) for i in others)

    perturbed = SCORES[others] + gumbel((100_000, 3), dtype=torch.float64, generator=seeded(k))
    highest = perturbed.amax(-1)
    assert_mean((highest <= 1.5).double(), torch.tensor(all_below(1.5)).double())
    assert not bool((highest == 1.5).any())  # equality has probability zero
    chosen = integrate.quad(lambda z: stats.gumbel_r.pdf(z, SCORES[k].item()) * all_below(z), -10, 40)[0]
    assert chosen == pytest.approx(SCORES.softmax(-1)[k].item(), abs=1e-7)


def test_temperature_divides_inside_the_exponent():
    """exp((μ + G)/τ); with exp(μ + G)/τ the temperature would cancel."""
    q, noise = Categorical(SCORES), gumbel((4,), dtype=torch.float64, generator=seeded())
    for temperature in (0.5, 2.0):
        inside = ((SCORES + noise) / temperature).exp()
        outside = (SCORES + noise).exp() / temperature
        torch.testing.assert_close(q.relax(q.perturb(noise), temperature), inside / inside.sum())
        torch.testing.assert_close(outside / outside.sum(), (SCORES + noise).softmax(-1))


def test_relaxed_code_is_a_mixture_of_codebook_vectors():
    """z = Σ α_i e_i with α = softmax((g + log π)/τ): log π is what the encoder gives, not log τ."""
    codebook = torch.randn(4, 6, generator=seeded(1), dtype=torch.float64)
    noise = gumbel((4,), dtype=torch.float64, generator=seeded(2))
    seen: list[Tensor] = []

    def cost(z: Tensor) -> Tensor:
        seen.append(z @ codebook)
        return seen[0].square().sum(-1)

    GumbelSoftmax(0.7)(Categorical(SCORES), cost, noise=noise)
    alpha = ((noise + SCORES.log_softmax(-1)) / 0.7).softmax(-1)
    torch.testing.assert_close(seen[0], sum(a * e for a, e in zip(alpha, codebook, strict=True)))


# ------------------------------------------------------------------------------------------- the continuous half, means


def test_gaussian_exponent_and_its_derivative():
    """N = exp(−½ (z − μ)²/σ²) / (√2π σ) integrates to one, and ∂N/∂μ = (z − μ)/σ² · N."""
    mu, sigma = torch.tensor([0.4], dtype=torch.float64, requires_grad=True), 1.7
    q = Gaussian(mu, torch.tensor([2 * math.log(sigma)], dtype=torch.float64))

    def density(z: float) -> Tensor:
        return q.log_prob(torch.tensor([z], dtype=torch.float64)).exp()

    assert integrate.quad(lambda z: density(z).item(), -20, 20)[0] == pytest.approx(1, abs=1e-7)
    without_half = integrate.quad(
        lambda z: math.exp(-(((z - 0.4) / sigma) ** 2)) / (math.sqrt(2 * math.pi) * sigma), -20, 20
    )[0]
    assert without_half == pytest.approx(math.sqrt(0.5), abs=1e-7)
    for z in (-1.0, 0.4, 2.5):
        (slope,) = torch.autograd.grad(density(z), mu)
        assert slope.item() == pytest.approx((z - 0.4) / sigma**2 * density(z).item(), abs=1e-12)


def test_monte_carlo_means_are_divided_by_the_number_of_samples():
    """Both the value and the gradient: without 1/N they would grow with the number of samples."""
    costs = torch.tensor([1.0, 4.0, 2.0, 3.0], dtype=torch.float64)
    for samples in (1, 8):
        scores = SCORES.expand(20_000, 4).clone().requires_grad_()
        value = Reinforce(samples, baseline="none")(Categorical(scores), TableCost(costs), generator=seeded(samples))
        value.sum().backward()
        exact = SCORES.clone().requires_grad_()
        expected = Exact()(Categorical(exact), TableCost(costs))
        expected.backward()
        assert_mean(value.detach(), expected.detach(), comparisons=4)
        assert_mean(scores.grad, exact.grad, comparisons=4)


def test_kl_to_the_standard_normal_has_mean_zero():
    """The printed result belongs to a prior with mean 0, not 1."""
    mean, logvar = torch.tensor([0.5, -1.0]).double(), torch.tensor([0.2, -0.7]).double()
    q = Gaussian(mean, logvar)
    printed = 0.5 * (logvar.exp() + mean.square() - 1 - logvar).sum()
    zero, one = (Gaussian(torch.full((2,), at).double(), torch.zeros(2).double()) for at in (0.0, 1.0))
    torch.testing.assert_close(q.kl(zero), printed)
    torch.testing.assert_close(q.kl(), printed)
    assert not torch.isclose(q.kl(one), printed)


def test_change_of_variable_needs_the_absolute_slope():
    """f_Y = f_X |dx/dy|: for a falling map such as y = −log x the plain slope gives a negative density."""
    y = torch.linspace(0.1, 4, 20, dtype=torch.float64, requires_grad=True)
    x = (-y).exp()  # uniform x makes y exponential
    (slope,) = torch.autograd.grad(x.sum(), y)
    assert bool((slope < 0).all())
    torch.testing.assert_close(slope.abs(), torch.distributions.Exponential(1.0).log_prob(y.detach()).exp())


# -------------------------------------------------------------------------------------------------- direct optimisation


def test_the_trained_objective_is_a_bound_on_the_likelihood():
    """−E[f] + KL is least, and equal to −log p(x), at the true posterior; +E[f] + KL is least at the wrong one."""
    log_likelihood = torch.tensor([-3.0, -1.0, -2.0, -6.0], dtype=torch.float64)
    evidence = (log_likelihood - math.log(4)).logsumexp(-1)

    def objective(scores: Tensor, cost: Tensor) -> Tensor:
        q = Categorical(scores)
        return Exact()(q, TableCost(cost)) + q.kl()

    def trained(cost: Tensor) -> Tensor:
        scores = torch.zeros(4, dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.Adam([scores], 0.1)
        for _ in range(500):
            optimiser.zero_grad()
            objective(scores, cost).backward()
            optimiser.step()
        return scores.detach()

    right, wrong = trained(-log_likelihood), trained(log_likelihood)
    torch.testing.assert_close(right.softmax(-1), log_likelihood.softmax(-1), rtol=0, atol=1e-4)
    torch.testing.assert_close(objective(right, -log_likelihood), -evidence, rtol=0, atol=1e-6)
    torch.testing.assert_close(wrong.softmax(-1), (-log_likelihood).softmax(-1), rtol=0, atol=1e-4)
    assert objective(wrong, -log_likelihood) > -evidence + 1


def test_the_value_is_the_cost_of_the_first_arg_max():
    """f(x, z*): value and decoder gradient belong to z*, the arg max without the cost; z(ε) is for the scores only."""
    theta = torch.tensor([5.0, 0.0, 0.0, 9.0], dtype=torch.float64, requires_grad=True)
    scores, noise = SCORES.clone().requires_grad_(), torch.zeros(4, dtype=torch.float64)
    value = Direct(1.0)(Categorical(scores), lambda z: (z * theta).sum(-1), noise=noise)
    value.backward()
    first, second = torch.eye(4, dtype=torch.float64)[[3, 2]]  # arg max of h, and of h − θ
    assert value.item() == 9.0
    torch.testing.assert_close(theta.grad, first)
    torch.testing.assert_close(scores.grad, first - second)


@pytest.mark.parametrize("epsilon", [-0.5, 0.1, 1.0])
def test_the_direct_gradient_is_that_of_a_soft_mean(epsilon):
    """(softmax(h) − softmax(h − ε c))/ε is the gradient of −(1/ε) log E_q[exp(−ε c)] = E[c] − (ε/2) Var[c] + O(ε²)."""
    costs = torch.tensor([1.0, 4.0, 2.0, 3.0], dtype=torch.float64)
    scores = SCORES.clone().requires_grad_()
    q = Categorical(scores)

    def soft_mean(at: float) -> Tensor:
        return -(q.log_prob_all() - at * costs).logsumexp(-1) / at

    closed = (SCORES.softmax(-1) - (SCORES - epsilon * costs).softmax(-1)) / epsilon
    torch.testing.assert_close(torch.autograd.grad(soft_mean(epsilon), scores)[0], closed)
    mean = (q.mean() * costs).sum()
    variance = (q.mean() * (costs - mean).square()).sum()
    torch.testing.assert_close(soft_mean(1e-3), mean - 0.5e-3 * variance, rtol=0, atol=1e-6)
