"""Both forms of the lower bound, on a linear Gaussian model in which everything is known."""

import math

import pytest
import torch

from argrad import Gaussian
from argrad.models.anatomy.variational_bounds import joint_contrastive_bound, prior_contrastive_bound
from problems import assert_mean

X = torch.tensor([[1.0, -0.5]], dtype=torch.float64)


def log_normal(away: torch.Tensor, variance: float = 1.0) -> torch.Tensor:
    return (-0.5 * away.square() / variance - 0.5 * math.log(2 * math.pi * variance)).sum(-1)


def log_likelihood(z: torch.Tensor) -> torch.Tensor:
    return log_normal(X - z)


def log_joint(z: torch.Tensor) -> torch.Tensor:
    return log_likelihood(z) + log_normal(z)


def other_q() -> Gaussian:
    return Gaussian(torch.tensor([[0.2, 0.3]]).double(), torch.tensor([[-1.0, 0.4]]).double())


def exact_bound(q: Gaussian) -> torch.Tensor:
    """E_q[log p(x|z)] in closed form, minus KL."""
    assert q.logvar is not None
    return log_likelihood(q.mean) - 0.5 * q.logvar.exp().sum(-1) - q.kl()


def test_at_the_true_posterior_the_joint_form_is_the_evidence_for_every_draw(generator):
    posterior = Gaussian(X / 2, torch.full_like(X, 0.5).log())
    evidence = log_normal(X, 2.0)
    for _ in range(3):
        torch.testing.assert_close(joint_contrastive_bound(log_joint, posterior, generator=generator), evidence)
    torch.testing.assert_close(exact_bound(posterior), evidence)


@pytest.mark.parametrize("form", ["joint", "prior"])
def test_both_forms_estimate_the_same_bound(form, generator):
    q = other_q()
    assert q.logvar is not None
    many = Gaussian(q.mean.expand(100_000, 2), q.logvar.expand(100_000, 2))
    if form == "joint":
        values = joint_contrastive_bound(log_joint, many, generator=generator)
    else:
        values = prior_contrastive_bound(log_likelihood, many, generator=generator)
    assert_mean(values, exact_bound(q)[0])
    assert bool((exact_bound(q) < log_normal(X, 2.0)).all())


def test_many_draws_at_once_are_a_mean(generator):
    q, noise = other_q(), torch.randn(5, 1, 2, dtype=torch.float64, generator=generator)
    singles = torch.stack([prior_contrastive_bound(log_likelihood, q, noise=one[None]) for one in noise])
    torch.testing.assert_close(prior_contrastive_bound(log_likelihood, q, samples=5, noise=noise), singles.mean(0))


def test_gradients_reach_q(generator):
    mean = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    logvar = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    noise = torch.randn(1, 1, 2, dtype=torch.float64, generator=generator)
    prior_contrastive_bound(log_likelihood, Gaussian(mean, logvar), noise=noise).sum().backward()
    # d/dμ [log N(x; μ + ε, 1) − ½ μ²] at μ = 0 is x − ε
    torch.testing.assert_close(mean.grad, X - noise[0])
    assert bool((logvar.grad != 0).all())


def test_a_log_density_of_the_wrong_shape_is_refused():
    with pytest.raises(ValueError, match="one number for each draw"):
        prior_contrastive_bound(lambda z: z, other_q())
    with pytest.raises(ValueError, match="samples must be at least 1"):
        joint_contrastive_bound(log_joint, other_q(), samples=0)
