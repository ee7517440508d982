r"""A mixture of Gaussians of which only the component that fits best is trained: the back-propagate-max loss.

The latent :math:`z_c` of the missing part of an image has the prior :math:`p(z_c|z_v) = \sum_j \alpha_j N(z_c;
\hat\mu_j, \hat\Sigma_j)`, all of it predicted from the visible part, and the encoder of the missing part gives
:math:`N(\mu, \Sigma)`. All covariances are diagonal, and log-variances are what is stored. One component is picked by a
hard max,

.. math:: j = \arg\max_j\, [\log\alpha_j + \log N(z_c; \hat\mu_j, \hat\Sigma_j)],

and the loss is that of this component alone, in one of three forms:

- ``"kl"``: :math:`-\log\alpha_j + KL(\hat N_j \| N)`, with :math:`KL = \tfrac12\sum[\log v - \log\hat v - 1 + \hat v/v
  + (\hat\mu - \mu)^2/v]`.
- ``"evidence"``: :math:`-\log\alpha_j + KL(N \| \hat N_j)`. As :math:`\log\sum_j \ge \log` of any one term, this is
  never below :math:`KL(N \| p(z_c|z_v))`, so with it the objective is a bound on :math:`-\log p(x_c|x_v)`.
- ``"as-published"``: :math:`\tfrac12\sum[\log v - \log\hat v + \hat v/v - (\hat\mu - \mu)^2/v]`, with the sign of the
  last term as printed. It equals KL − Mahalanobis + d/2, and is unbounded below: pushing the mean away lowers it for
  ever. It is here for comparison, and does not train.

:math:`-\log\alpha_j` is what teaches the weights; the published loss has no such term.

Reference: "Pluralistic image completion with Gaussian mixture models", 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from torch import Tensor

from argrad.latents import Gaussian

__all__ = ["GaussianMixture", "MixtureLoss", "back_propagate_max"]

MixtureLoss = Literal["kl", "evidence", "as-published"]


@final
@dataclass(frozen=True)
class GaussianMixture:
    """A batch of mixtures of k diagonal Gaussians in d dimensions.

    Args:
        log_weights: log α, ``[*batch, k]``, normalised.
        means: ``[*batch, k, d]``.
        logvars: log-variances ``[*batch, k, d]``.

    >>> one = GaussianMixture(torch.zeros(5, 1), torch.zeros(5, 1, 2), torch.zeros(5, 1, 2))
    >>> one.log_prob(torch.zeros(5, 2))[0]
    tensor(-1.8379)
    """

    log_weights: Tensor
    means: Tensor
    logvars: Tensor

    def joint(self, z: Tensor) -> Tensor:
        """log α_j + log N(z; μ̂_j, Σ̂_j) for every component: z ``[*extra, *batch, d]`` to ``[*extra, *batch, k]``."""
        components = Gaussian(self.means, self.logvars, validate=False)
        return self.log_weights + components.log_prob(z.unsqueeze(-2))

    def log_prob(self, z: Tensor) -> Tensor:
        """log p(z), ``[*extra, *batch]``."""
        return self.joint(z).logsumexp(-1)

    @torch.no_grad()
    def pick(self, z: Tensor) -> Tensor:
        """The component that fits z best, whole numbers ``[*extra, *batch]``."""
        return self.joint(z).argmax(-1)

    def component(self, which: Tensor) -> tuple[Tensor, Gaussian]:
        """Log-weight and Gaussian of one component for each of the batch; ``which`` is ``[*extra, *batch]``."""
        extra = which.dim() - self.log_weights.dim() + 1
        shape = (*which.shape[:extra], *(-1 for _ in self.means.shape))
        index = which[..., None, None].expand(*which.shape, 1, self.means.shape[-1])
        mean = self.means.expand(shape).gather(-2, index).squeeze(-2)
        logvar = self.logvars.expand(shape).gather(-2, index).squeeze(-2)
        weight = self.log_weights.expand(shape[:-1]).gather(-1, which[..., None]).squeeze(-1)
        return weight, Gaussian(mean, logvar, validate=False)

    @torch.no_grad()
    def sample(self, number: int, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw several z for each of the batch: ``[number, *batch, d]``, and their components, ``[number, *batch]``.

        Each is a draw from the mixture. Together they are spread evenly over it (systematic sampling): component j
        comes up number · α_j times, rounded up or down.
        """
        weights = self.log_weights.exp()
        shape = (*weights.shape[:-1], 1)
        start = torch.rand(shape, generator=generator, device=weights.device, dtype=weights.dtype)
        places = (torch.arange(number, device=weights.device) + start) / number
        which = torch.searchsorted(weights.cumsum(-1), places.contiguous(), right=True)
        which = which.clamp_max(weights.shape[-1] - 1).movedim(-1, 0)
        _, gaussian = self.component(which)
        return gaussian.sample(generator=generator), which


def back_propagate_max(mixture: GaussianMixture, posterior: Gaussian, z: Tensor, form: MixtureLoss = "kl") -> Tensor:
    """The loss of the component that is picked for z, ``[*batch]``, in nats; see the head of this file.

    Args:
        mixture: the prior that the visible part predicts.
        posterior: N(μ, Σ), what the encoder of the missing part gives; diagonal.
        z: a draw from it, ``[*batch, d]``.
        form: "kl", "evidence" or "as-published".
    """
    if form not in get_args(MixtureLoss):
        raise ValueError(f"loss must be one of {', '.join(get_args(MixtureLoss))}, got {form!r}")
    log_weight, component = mixture.component(mixture.pick(z))
    if form == "evidence":
        return posterior.kl(component) - log_weight
    if form == "kl":
        return component.kl(posterior) - log_weight
    assert posterior.logvar is not None
    assert component.logvar is not None
    apart = (component.mean - posterior.mean).square() * (-posterior.logvar).exp()
    log_ratio = component.logvar - posterior.logvar
    return 0.5 * (log_ratio.exp() - log_ratio - apart).sum(-1)
