"""Concrete densities against torch.distributions, against numerical integration, and far out in the corners."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor, distributions

from argrad.latents import binary_concrete_log_prob, concrete_log_prob
from argrad.noise import gumbel, logistic

TEMPERATURES = [0.1, 0.5, 1.0, 3.0]


def scores(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def noise(draw, *shape: int, dtype=torch.float64, seed: int = 1) -> Tensor:
    return draw(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("k", [2, 3, 6])
def test_equals_torch(temperature, k):
    h = scores(4, k)
    log_x = scores(50, 4, k, seed=1).log_softmax(-1)  # torch works with x itself, so stay away from the corners
    reference = distributions.RelaxedOneHotCategorical(torch.tensor(temperature, dtype=torch.float64), logits=h)
    ours = concrete_log_prob(log_x, h, temperature)
    torch.testing.assert_close(ours, reference.log_prob(log_x.exp()), rtol=1e-10, atol=1e-10)
    assert ours.shape == (50, 4)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_binary_equals_torch(temperature):
    h = scores(4, 5)
    logit_x = 2 * scores(50, 4, 5, seed=1)
    reference = distributions.RelaxedBernoulli(torch.tensor(temperature, dtype=torch.float64), logits=h)
    per_bit = reference.log_prob(logit_x.sigmoid())
    ours = binary_concrete_log_prob(logit_x, h, temperature)
    torch.testing.assert_close(ours, per_bit.sum(-1), rtol=1e-10, atol=1e-10)
    assert ours.shape == (50, 4)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_integrates_to_one(temperature):
    """Over the segment x = (u, 1 − u), with u = σ(s) to resolve both ends."""
    h = torch.tensor([0.4, -0.9], dtype=torch.float64)

    def density(s: float, binary: bool) -> float:
        logit = torch.tensor([s], dtype=torch.float64)
        log_x = torch.stack([torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit)], -1)
        log_jacobian = log_x.sum().item()
        if binary:
            return math.exp(
                binary_concrete_log_prob(logit, (h[0] - h[1]).reshape(1), temperature).item() + log_jacobian
            )
        return math.exp(concrete_log_prob(log_x, h, temperature).item() + log_jacobian)

    reach = 60 / temperature
    for binary in (False, True):
        total = integrate.quad(density, -reach, reach, args=(binary,), limit=400, points=[0.0])[0]
        assert total == pytest.approx(1, abs=1e-6)


def test_two_values_are_one_bit():
    h, temperature = scores(7, 2), 0.6
    logit = scores(7, seed=3)
    log_x = torch.nn.functional.logsigmoid(torch.stack([logit, -logit], -1))
    as_bit = binary_concrete_log_prob(logit.unsqueeze(-1), (h[:, 0] - h[:, 1]).unsqueeze(-1), temperature)
    torch.testing.assert_close(concrete_log_prob(log_x, h, temperature), as_bit)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_form_at_temperature_one(n):
    """At τ = 1 the x factors stay: (n − 1)! Π e^μ x⁻² / (Σ e^μ x⁻¹)ⁿ."""
    mu, x = scores(n), scores(n, seed=4).softmax(-1)
    weighted = mu.exp() / x
    expected = math.factorial(n - 1) * (mu.exp() * x**-2).prod() / weighted.sum() ** n
    torch.testing.assert_close(concrete_log_prob(x.log(), mu, 1.0).exp(), expected)
    # Leaving the x factors out, as one source has it, is not the same density.
    without = math.factorial(n - 1) * mu.exp().prod() / weighted.sum() ** n
    assert not torch.isclose(without, expected)


def test_general_form():
    mu, x, tau, k = scores(4), scores(4, seed=4).softmax(-1), 0.7, 4
    expected = math.factorial(k - 1) * tau ** (k - 1) * (mu.exp() * x ** (-tau - 1)).prod()
    expected = expected / (mu.exp() * x**-tau).sum() ** k
    torch.testing.assert_close(concrete_log_prob(x.log(), mu, tau).exp(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0.01, 0.001])
def test_finite_at_low_temperature(temperature, dtype):
    h = (3 * scores(10, 8)).to(dtype).requires_grad_()
    temperature = torch.tensor(temperature, dtype=dtype, requires_grad=True)
    log_x = ((h + noise(gumbel, 100, 10, 8, dtype=dtype)) / temperature).log_softmax(-1)
    logit_x = (h + noise(logistic, 100, 10, 8, dtype=dtype)) / temperature
    assert bool((log_x.exp() == 0).any())
    for value in (concrete_log_prob(log_x, h, temperature), binary_concrete_log_prob(logit_x, h, temperature)):
        assert bool(value.isfinite().all())
        for gradient in torch.autograd.grad(value.sum(), (h, temperature), retain_graph=True):
            assert bool(gradient.isfinite().all())


def test_the_density_belongs_to_the_samples():
    """The distribution function of x₁ from the density against samples of softmax((h + γ)/τ)."""
    h, temperature = torch.tensor([0.8, -0.4], dtype=torch.float64), 0.8
    x = ((h + noise(gumbel, 4_000, 2)) / temperature).softmax(-1)[:, 0]
    u = torch.linspace(1e-6, 1 - 1e-6, 20_001, dtype=torch.float64)
    density = concrete_log_prob(torch.stack([u.log(), (1 - u).log()], -1), h, temperature).exp()
    cumulative = torch.cumulative_trapezoid(density, u)
    assert stats.kstest(x.numpy(), lambda at: np.interp(at, u[1:].numpy(), cumulative.numpy())).pvalue > 1e-4


def test_gradients_by_finite_differences():
    h, log_x = scores(2, 3).requires_grad_(), scores(2, 3, seed=5).log_softmax(-1).requires_grad_()
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(concrete_log_prob, (log_x, h, tau))
    assert torch.autograd.gradcheck(binary_concrete_log_prob, (log_x, h, tau))
