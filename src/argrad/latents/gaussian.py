r"""Gaussian vectors: the continuous half of a mixed latent.

Diagonal (``logvar``, the log of the variance) or full (``scale_tril``, a Cholesky factor of the covariance). Sampling
is re-parameterised, so no estimator is needed: :math:`z = \mu + L\,\eta` with standard normal η.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self, final

import torch
from torch import Tensor

from argrad.latents.base import broadcasts, can_read_values

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
        if not broadcasts(mean.shape[:-1], spread.shape[: spread.dim() - len(event)]):
            raise ValueError(
                f"Gaussian got a mean of shape {tuple(mean.shape)} and a spread of shape {tuple(spread.shape)}, "
                "whose batch dimensions do not agree; give both the same batch shape"
            )
        if not (mean.is_floating_point() and spread.is_floating_point()):
            raise ValueError(
                f"Gaussian needs floating-point parameters, got {mean.dtype} and {spread.dtype}; "
                "convert them with .float()"
            )
        if validate and can_read_values(mean):
            _check_values(mean, spread, full=logvar is None)
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
        noise = self.draw_noise(shape, generator=generator) if noise is None else self._check_noise(noise)
        if self.logvar is not None:
            return (self.mean + noise * (0.5 * self.logvar).exp()).to(self.mean.dtype)
        dtype = torch.promote_types(self.mean.dtype, noise.dtype)
        return (self.mean + (self._scale_tril().to(dtype) @ noise.to(dtype).unsqueeze(-1)).squeeze(-1)).to(
            self.mean.dtype
        )

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

        .. math:: \tfrac12 [\mathrm{tr}(M M^\top) - d - \log|M M^\top| + \|L_p^{-1}(\mu - \mu_p)\|^2]

        with :math:`M = L_p^{-1} L`. The first three terms are computed as :math:`\sum_i (M_{ii}^2 - 1 - \log M_{ii}^2)
        + \sum_{i>j} M_{ij}^2`, which rounding does not make negative. To the standard normal with a diagonal covariance
        all of it is :math:`-\tfrac12 \sum (1 + \log\sigma^2 - \mu^2 - \sigma^2)`.
        """
        d = self.mean.shape[-1]
        log_ratio, mahalanobis = self._log_diagonal(), self.mean.square().sum(-1)
        if prior is not None:
            if prior.mean.shape[-1] != d:
                raise ValueError(f"the prior has {prior.mean.shape[-1]} dimensions, this Gaussian {d}; they must agree")
            log_ratio, mahalanobis = log_ratio - prior._log_diagonal(), prior._mahalanobis(self.mean)
        return 0.5 * ((log_ratio.expm1() - log_ratio).sum(-1) + self._off_diagonal(prior) + mahalanobis)

    def to_distribution(self) -> torch.distributions.Distribution:
        """The same distribution as ``torch.distributions`` has it."""
        if self.logvar is not None:
            return torch.distributions.Independent(torch.distributions.Normal(self.mean, (0.5 * self.logvar).exp()), 1)
        return torch.distributions.MultivariateNormal(self.mean, scale_tril=self.scale_tril)

    @classmethod
    def from_distribution(cls, distribution: torch.distributions.Distribution) -> Self:
        """From ``Normal`` (last batch dimension: the vector), ``Independent(Normal, 1)`` or ``MultivariateNormal``."""
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

    def _check_noise(self, noise: Tensor) -> Tensor:
        expected = (*self.batch_shape, self.mean.shape[-1])
        if noise.shape[max(0, noise.dim() - len(expected)) :] != expected:
            raise ValueError(
                f"noise has shape {tuple(noise.shape)}, but {self!r} needs [*extra, {', '.join(map(str, expected))}]; "
                "draw it with draw_noise()"
            )
        return noise

    def _scale_tril(self) -> Tensor:
        assert self.scale_tril is not None
        return self.scale_tril

    def _log_det(self) -> Tensor:
        return self._log_diagonal().sum(-1)

    def _log_diagonal(self) -> Tensor:
        """The log of the squared diagonal of the Cholesky factor, ``[*batch, d]``."""
        return self.logvar if self.logvar is not None else 2 * self._scale_tril().diagonal(dim1=-2, dim2=-1).log()

    def _mahalanobis(self, z: Tensor) -> Tensor:
        away = z - self.mean
        if self.logvar is not None:
            return (away.square() * (-self.logvar).exp()).sum(-1)
        return _solve(self._scale_tril(), away.unsqueeze(-1)).square().sum((-2, -1))

    def _off_diagonal(self, prior: Gaussian | None) -> Tensor | float:
        """The sum of squares below the diagonal of prior factor⁻¹ times own factor."""
        if self.logvar is not None and (prior is None or prior.logvar is not None):
            return 0.0
        factor = torch.diag_embed((0.5 * self.logvar).exp()) if self.logvar is not None else self._scale_tril()
        if prior is not None and prior.logvar is not None:
            factor = factor * (-0.5 * prior.logvar).exp().unsqueeze(-1)
        elif prior is not None:
            factor = _solve(prior._scale_tril(), factor)
        return factor.tril(-1).square().sum((-2, -1))


def _check_values(mean: Tensor, spread: Tensor, *, full: bool) -> None:
    if not bool(mean.isfinite().all() & spread.isfinite().all()):
        raise ValueError("Gaussian parameters hold NaN or infinite numbers; the network that made them has diverged")
    if full and not bool((spread.diagonal(dim1=-2, dim2=-1) > 0).all() & (spread.triu(1) == 0).all()):
        raise ValueError(
            "Gaussian needs a lower triangular scale_tril with a positive diagonal, got another matrix; "
            "use torch.linalg.cholesky(covariance)"
        )


def _solve(scale_tril: Tensor, right: Tensor) -> Tensor:
    dtype = torch.promote_types(torch.promote_types(scale_tril.dtype, right.dtype), torch.float32)
    scale_tril, right = scale_tril.to(dtype), right.to(dtype)
    batch = torch.broadcast_shapes(scale_tril.shape[:-2], right.shape[:-2])
    solution: Tensor = torch.linalg.solve_triangular(
        scale_tril.expand(*batch, *scale_tril.shape[-2:]), right.expand(*batch, *right.shape[-2:]), upper=False
    )
    return solution
