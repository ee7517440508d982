r"""The variational lower bound on log p(x), in its two forms, for a Gaussian q(z|x) and a re-parameterised draw of z.

Joint-contrastive, which needs nothing in closed form:
:math:`\frac1L \sum_l [\log p(x, z_l) - \log q(z_l|x)]`.

Prior-contrastive, with the KL term in closed form:
:math:`\frac1L \sum_l \log p(x|z_l) - \mathrm{KL}(q(z|x) \,\|\, p(z))`.

Both have the same expectation. The second has usually less variance, since its KL term has none; the first has none at
all where q is the true posterior: it is log p(x) for every z.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from argrad.latents import Gaussian

__all__ = ["joint_contrastive_bound", "prior_contrastive_bound"]

LogDensity = Callable[[Tensor], Tensor]
"""From z ``[samples, *batch, d]`` to one number for each, ``[samples, *batch]``."""


def joint_contrastive_bound(
    log_joint: LogDensity,
    q: Gaussian,
    *,
    samples: int = 1,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    """E_q[log p(x, z) − log q(z|x)], estimated; differentiable with respect to both models.

    Args:
        log_joint: log p(x, z) for z ``[samples, *batch, d]``.
        q: q(z|x), a batch of Gaussians.
        samples: L, draws of z for each example.
        generator: where the draws come from.
        noise: the draws themselves, standard normal, ``[samples, *batch, d]``.

    Returns:
        ``[*batch]``.

    >>> q = Gaussian(torch.tensor([[0.5]]), torch.tensor([[0.5]]).log())  # the posterior of x = 1 = z + noise
    >>> x_given_z, prior = torch.distributions.Normal(0, 1), torch.distributions.Normal(0, 1)
    >>> joint_contrastive_bound(lambda z: (x_given_z.log_prob(1 - z) + prior.log_prob(z)).sum(-1), q)  # log N(1; 0, 2)
    tensor([-1.5155])
    """
    z = _draw(q, samples, generator, noise)
    return (_checked(log_joint, z) - q.log_prob(z)).mean(0)


def prior_contrastive_bound(
    log_likelihood: LogDensity,
    q: Gaussian,
    *,
    prior: Gaussian | None = None,
    samples: int = 1,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    """E_q[log p(x|z)] − KL(q(z|x) || p(z)), the first term estimated; differentiable with respect to both models.

    Args:
        log_likelihood: log p(x|z) for z ``[samples, *batch, d]``.
        q: q(z|x), a batch of Gaussians.
        prior: p(z); standard normal when None.
        samples: L, draws of z for each example.
        generator: where the draws come from.
        noise: the draws themselves, standard normal, ``[samples, *batch, d]``.

    Returns:
        ``[*batch]``.

    >>> q = Gaussian(torch.zeros(2, 3), torch.zeros(2, 3))
    >>> prior_contrastive_bound(lambda z: 0 * z.sum(-1) - 2, q)
    tensor([-2., -2.])
    """
    return _checked(log_likelihood, _draw(q, samples, generator, noise)).mean(0) - q.kl(prior)


def _draw(q: Gaussian, samples: int, generator: torch.Generator | None, noise: Tensor | None) -> Tensor:
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    return q.rsample((samples,), generator=generator, noise=noise)


def _checked(log_density: LogDensity, z: Tensor) -> Tensor:
    value = log_density(z)
    if value.shape != z.shape[:-1]:
        raise ValueError(
            f"the log-density of z {tuple(z.shape)} must have shape {tuple(z.shape[:-1])}, one number for each draw, "
            f"got {tuple(value.shape)}"
        )
    return value
