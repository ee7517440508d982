r"""DisARM: ARM with the noise integrated out.

ARM's estimate depends on the noise only through the pair (z, z̃) and u; given the pair, u − ½ can be replaced by its
expectation. Where z_i = z̃_i that expectation is 0 by symmetry; where z_i = 1 and z̃_i = 0, λ_i > |h_i|, so u is
uniform on [σ(|h_i|), 1] and the expectation is σ(|h_i|) / 2 (and minus that the other way round):

.. math:: g_i = \tfrac12 (c(z) - c(\tilde z))\,(z_i - \tilde z_i)\,\sigma(|h_i|).

Same mean as ARM, less variance, by Rao-Blackwell.

Reference: Dong, Mnih & Tucker, 2020, "DisARM: an antithetic gradient estimator for binary latent variables"; also Yin
et al., 2020 (U2G).
"""

from typing import final

import torch
from torch import Tensor

from argrad.costs import Cost
from argrad.estimators.arm import antithetic_pair
from argrad.estimators.base import Estimator, attach
from argrad.latents import Bits, Latent

__all__ = ["DisArm"]


@final
class DisArm(Estimator):
    """Unbiased for bits, with two evaluations, no derivative of the cost, and less variance than ARM.

    >>> from argrad import Bits
    >>> DisArm()(Bits(torch.zeros(4, 3)), lambda z: z.sum(-1)).shape
    torch.Size([4])
    """

    unbiased = True
    needs_cost_gradient = False

    def forward(
        self,
        latent: Latent,
        cost: Cost,
        *,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """The mean cost of the pair, ``[*batch]``."""
        self.require_support(latent)
        noise = latent.draw_noise(generator=generator) if noise is None else noise
        z, costs = antithetic_pair(latent, cost, noise)
        difference = (costs[0] - costs[1]).detach().unsqueeze(-1)
        gradient = 0.5 * difference * (z[0] - z[1]) * latent.scores.detach().abs().sigmoid()
        return attach(costs.mean(0), latent.scores, gradient)

    def draw_noise(self, latent: Latent, *, generator: torch.Generator | None = None) -> Tensor:
        """The noise of the pair."""
        return latent.draw_noise(generator=generator)

    def cost_evaluations(self, latent: Latent) -> int:
        """The pair."""
        return 2

    def supports(self, latent: Latent) -> bool:
        """Bits only."""
        return isinstance(latent, Bits)
