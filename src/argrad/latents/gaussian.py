r"""Gaussian vectors: the continuous half of a mixed latent.

Diagonal (``logvar``, the log of the variance) or full (``scale_tril``, a Cholesky factor of the covariance).
Sampling is
re-parameterised, so no estimator is needed: :math:`z = \mu + L\,\eta` with standard normal η.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self, final

import torch
from torch import Tensor

from argrad.latents.base import can_read_values

__all__ = ["Gaussian"]


@final
class Gaussian:
    """A batch of d-dimensional Gaussians.

    Args:
        mean: ``[*batch, d]``.
        logvar: log-variances ``[*batch, d]``; exactly one of ``logvar`` and ``scale_tril`` is given.
        scale_tril: lower triangular with positive diagonal, ``[*batch, d, d]``; the covariance is its square.
        validate: False leaves out the check that reads the numbers.

    >>> q = Gaussian(torch.zeros(2, 3), torch.zeros(2, 3))
    >>> q.kl()
    tensor([0., 0.])
    >>> q.rsample(generator=torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self, mean: Tensor, logvar: Tensor | None = None, *, scale_tril: Tensor | None = None, validate: bool = True
    ) -> None:
        if (logvar is None) == (scale_tril is None):
            raise ValueError("Gaussian needs exactly one of logvar (diagonal) and scale_tril (full covariance)")
        spread = logvar if logvar is not None else scale_tril
        assert spread is not None
        event = mean.shape[-1:] if logvar is not None else mean.shape[-1:] * 2
        if mean.dim() < 1 or spread.shape[-len(event) :] != event:
            name = "logvar" if logvar is not None else "scale_tril"
            raise ValueError(
                f"Gaussian with mean {tuple(mean.shape)} needs {name} [*batch, {', '.join(map(str, event))}], "
                f"got {tuple(spread.shape)}"
            )
        if validate and can_read_values(mean) and not bool(mean.isfinite().all() and spread.isfinite().all()):
            raise ValueError(
                "Gaussian parameters hold NaN or infinite numbers; the network that made them has diverged"
            )
        self.mean = mean
        self.logvar = logvar
        self.scale_tril = scale_tril

    @property
    def batch_shape(self) -> torch.Size:
        """The shape of the batch of distributions."""
        spread = self.logvar if self.logvar is not None else self._scale_tril()[..., 0]
        return torch.Size(torch.broadcast_shapes(self.mean.shape, spread.shape)[:-1])

    def draw_noise(self, shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Standard normal noise ``[*shape, *batch, d]``."""
        shape = (*shape, *self.batch_shape, self.mean.shape[-1])
        dtype = torch.promote_types(self.mean.dtype, torch.float32)
        return torch.randn(shape, dtype=dtype, device=self.mean.device, generator=generator)

    def rsample(
        self, shape: Sequence[int] = (), *, generator: torch.Generator | None = None, noise: Tensor | None = None
    ) -> Tensor:
        """Draw ``[*shape, *batch, d]``, differentiable with respect to the parameters."""
        noise = self.draw_noise(shape, generator=generator) if noise is None else noise
        if self.logvar is not None:
            return (self.mean + noise * (0.5 * self.logvar).exp()).to(self.mean.dtype)
        return (self.mean + (self._scale_tril() @ noise.unsqueeze(-1)).squeeze(-1)).to(self.mean.dtype)

    def sample(
        self, shape: Sequence[int] = (), *, generator: torch.Generator | None = None, noise: Tensor | None = None
    ) -> Tensor:
        """Draw ``[*shape, *batch, d]`` without gradient."""
        with torch.no_grad():
            return self.rsample(shape, generator=generator, noise=noise)

    def log_prob(self, z: Tensor) -> Tensor:
        """The log-density, ``[*extra, *batch]``."""
        return -0.5 * (self._mahalanobis(z) + self._log_det() + z.shape[-1] * math.log(2 * math.pi))

    def entropy(self) -> Tensor:
        """Differential entropy in nats, ``[*batch]``."""
        entropy = 0.5 * (self._log_det() + self.mean.shape[-1] * (1 + math.log(2 * math.pi)))
        return entropy.expand(self.batch_shape)

    def kl(self, prior: Gaussian | None = None) -> Tensor:
        r"""KL(self || prior) in nats, ``[*batch]``; the prior is standard normal when None.

        .. math:: \tfrac12 [\mathrm{tr}(\Sigma_p^{-1}\Sigma) + (\mu_p - \mu)^\top \Sigma_p^{-1} (\mu_p - \mu) - d +
        \log|\Sigma_p| - \log|\Sigma|]

        To the standard normal with a diagonal covariance this is :math:`-\tfrac12 \sum (1 + \log\sigma^2 - \mu^2 -
        \sigma^2)`.
        """
        d = self.mean.shape[-1]
        if prior is None:
            trace = self.logvar.exp().sum(-1) if self.logvar is not None else self._scale_tril().square().sum((-2, -1))
            return 0.5 * (trace + self.mean.square().sum(-1) - d - self._log_det())
        if prior.mean.shape[-1] != d:
            raise ValueError(f"the prior has {prior.mean.shape[-1]} dimensions, this Gaussian {d}")
        return 0.5 * (self._trace_under(prior) + prior._mahalanobis(self.mean) - d + prior._log_det() - self._log_det())

    def to_distribution(self) -> torch.distributions.Distribution:
        """The same distribution as ``torch.distributions`` has it."""
        if self.logvar is not None:
            return torch.distributions.Independent(torch.distributions.Normal(self.mean, (0.5 * self.logvar).exp()), 1)
        return torch.distributions.MultivariateNormal(self.mean, scale_tril=self.scale_tril)

    @classmethod
    def from_distribution(cls, distribution: torch.distributions.Distribution) -> Self:
        """From ``Normal`` (its last batch dimension is the vector), ``Independent(Normal, 1)``, ``MultivariateNormal``."""
        if isinstance(distribution, torch.distributions.MultivariateNormal):
            return cls(distribution.loc, scale_tril=distribution.scale_tril)
        base, extra = distribution, 1
        if isinstance(distribution, torch.distributions.Independent):
            base, extra = distribution.base_dist, distribution.reinterpreted_batch_ndims
        if not isinstance(base, torch.distributions.Normal) or extra != 1:
            raise ValueError(
                "Gaussian.from_distribution needs a Normal, Independent(Normal, 1) or MultivariateNormal, "
                f"got {distribution}"
            )
        return cls(base.loc, 2 * base.scale.log())

    def __repr__(self) -> str:
        """Name the shapes, not the numbers."""
        kind = "diagonal" if self.logvar is not None else "full"
        return f"Gaussian(batch={tuple(self.batch_shape)}, dimensions={self.mean.shape[-1]}, {kind})"

    def _scale_tril(self) -> Tensor:
        assert self.scale_tril is not None
        return self.scale_tril

    def _log_det(self) -> Tensor:
        if self.logvar is not None:
            return self.logvar.sum(-1)
        return 2 * self._scale_tril().diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def _mahalanobis(self, z: Tensor) -> Tensor:
        away = z - self.mean
        if self.logvar is not None:
            return (away.square() * (-self.logvar).exp()).sum(-1)
        return _solve(self._scale_tril(), away.unsqueeze(-1)).square().sum((-2, -1))

    def _trace_under(self, prior: Gaussian) -> Tensor:
        """The trace of prior covariance⁻¹ times own covariance."""
        if self.logvar is not None and prior.logvar is not None:
            return (self.logvar - prior.logvar).exp().sum(-1)
        factor = torch.diag_embed((0.5 * self.logvar).exp()) if self.logvar is not None else self._scale_tril()
        if prior.logvar is not None:
            return ((-prior.logvar).exp() * factor.square().sum(-1)).sum(-1)
        return _solve(prior._scale_tril(), factor).square().sum((-2, -1))


def _solve(scale_tril: Tensor, right: Tensor) -> Tensor:
    batch = torch.broadcast_shapes(scale_tril.shape[:-2], right.shape[:-2])
    solution: Tensor = torch.linalg.solve_triangular(
        scale_tril.expand(*batch, *scale_tril.shape[-2:]), right.expand(*batch, *right.shape[-2:]), upper=False
    )
    return solution
