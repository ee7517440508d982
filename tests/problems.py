"""Small problems with enumerable answers, and the z-test that every statistical check uses."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from argrad import Bits, Categorical, Exact, Latent, Permutation
from argrad.estimators import Estimator

CHANCE = 1e-4
"""The chance that one corrected comparison fails for a right estimator."""


@dataclass(frozen=True)
class Problem:
    """A latent and a cost with two parameters of its own, none of them special in any way."""

    name: str
    latent: Latent
    weights: Tensor

    def cost(self, theta: Tensor) -> Callable[[Tensor], Tensor]:
        """A smooth, curved cost of z ``[*extra, *batch, *event]``; theta is ``[*extra, 1, 2]`` or ``[2]``."""
        event = tuple(range(-self.latent.event_dims, 0))

        def cost(z: Tensor) -> Tensor:
            mixed = (z * self.weights).sum(event)
            return theta[..., 0] * mixed + (mixed - theta[..., 1]).square()

        return cost

    def theta(self) -> Tensor:
        """The cost's parameters."""
        return torch.tensor([0.7, -0.3], dtype=self.latent.scores.dtype)

    def exact(self) -> tuple[Tensor, Tensor, Tensor]:
        """E[cost] per example, its gradient for the scores, and for the cost's parameters (summed over the batch)."""
        scores, theta = self.latent.scores.clone().requires_grad_(), self.theta().requires_grad_()
        value = Exact()(self.latent.with_scores(scores), self.cost(theta))
        gradients = torch.autograd.grad(value.sum(), (scores, theta))
        return value.detach(), *gradients


def make(name: str, seed: int = 0, scale: float = 1.0) -> Problem:
    """One of the problems in :data:`PROBLEMS`, or "permutation", in float64."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    if name == "categorical":
        latent: Latent = Categorical(normal(3, 5))
    elif name == "categoricals":
        latent = Categorical(normal(2, 3, 4), event_dims=2)
    elif name == "bits":
        latent = Bits(normal(3, 4))
    elif name == "one bit":
        latent = Bits(normal(2, 1))
    elif name == "impossible":
        logits = normal(2, 5)
        logits[:, 1] = -torch.inf
        latent = Categorical(logits)
    elif name == "permutation":
        latent = Permutation(normal(2, 3, 3), law="perturb")
    else:
        logits = normal(2, 3)
        logits[:, 1] = -torch.inf
        latent = Bits(logits)
    return Problem(name, latent, scale * normal(*latent.event_shape))


PROBLEMS = ("categorical", "categoricals", "bits", "one bit", "impossible", "impossible bits")


def draws(estimator: Estimator, problem: Problem, samples: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Values ``[S, *batch]``, score gradients ``[S, *batch, *event]``, theta gradients ``[S, 2]`` of S calls.

    Each draw has its own copy of the parameters, so that its gradients can be told apart.
    """
    scores = problem.latent.scores.expand(samples, *problem.latent.scores.shape).clone().requires_grad_()
    theta = problem.theta().expand(samples, 1, 2).clone().requires_grad_()
    generator = torch.Generator().manual_seed(seed)
    value = estimator(problem.latent.with_scores(scores), problem.cost(theta), generator=generator)
    gradients = torch.autograd.grad(value.sum(), (scores, theta))
    return value.detach(), gradients[0], gradients[1].squeeze(1)


def assert_mean(samples: Tensor, expected: Tensor, comparisons: int = 1) -> None:
    """z-test every coordinate of the mean over the first dimension, corrected (Bonferroni) for their number."""
    mean, error = samples.mean(0), samples.std(0) / math.sqrt(len(samples))
    rounding = 1e-9 * (1 + expected.abs())
    z = (mean - expected).abs() / (error + rounding)
    limit = NormalDist().inv_cdf(1 - CHANCE / (2 * expected.numel() * comparisons))
    assert z.max() < limit, f"{z.max():.1f} standard errors from the expected mean, allowed {limit:.1f}"


def total_variance(samples: Tensor) -> float:
    """The trace of the covariance over the first dimension."""
    return float(samples.var(0).sum())
