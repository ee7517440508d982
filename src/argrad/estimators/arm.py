r"""ARM: augment, REINFORCE, merge, for bits.

Let λ be logistic noise, z = 1[h + λ > 0] and z̃ = 1[h − λ > 0] its antithetic twin. Then with u = σ(λ), uniform,

.. math:: \nabla_h E[c(z)] = E_\lambda[(c(z) - c(\tilde z))\,(u - \tfrac12)].

For one bit: :math:`E[c(z)(u - ½)]` is c(1)∫_{u > σ(−h)}(u − ½)du + c(0)∫_{u < σ(−h)}(u − ½)du = ½σ(h)σ(−h)(c(1) −
c(0)), half the gradient, and the twin supplies the other half with the opposite sign. For n bits the same holds for
each bit given the noise of the others, whose law the sign change leaves alone.

Reference: Yin & Zhou, 2019, "ARM: augment-REINFORCE-merge gradient for stochastic binary networks".
"""

from typing import final

import torch
from torch import Tensor

from argrad.costs import Cost, evaluate
from argrad.estimators.base import Estimator, attach
from argrad.latents import Bits, Latent

__all__ = ["Arm", "antithetic_pair"]


def antithetic_pair(latent: Latent, cost: Cost, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Samples from the noise and from minus the noise, ``[2, *batch, n]``, and their costs, ``[2, *batch]``."""
    z = latent.sample(noise=torch.stack([latent.check_noise(noise), -noise]))
    return z, evaluate(cost, latent, z)


@final
class Arm(Estimator):
    """Unbiased for bits, with two evaluations and no derivative of the cost.

    >>> from argrad import Bits
    >>> Arm()(Bits(torch.zeros(4, 3)), lambda z: z.sum(-1)).shape
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
        _, costs = antithetic_pair(latent, cost, noise)
        difference = (costs[0] - costs[1]).detach().unsqueeze(-1)
        # A bit that cannot be 1 has gradient 0; without the mask it would get noise with mean 0.
        centred = torch.where(latent.scores > -torch.inf, noise.sigmoid() - 0.5, 0.0)
        return attach(costs.mean(0), latent.scores, difference * centred)

    def draw_noise(self, latent: Latent, *, generator: torch.Generator | None = None) -> Tensor:
        """The noise of the pair."""
        return latent.draw_noise(generator=generator)

    def cost_evaluations(self, latent: Latent) -> int:
        """The pair."""
        return 2

    def supports(self, latent: Latent) -> bool:
        """Bits only."""
        return isinstance(latent, Bits)
