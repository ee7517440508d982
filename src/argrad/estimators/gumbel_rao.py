r"""Gumbel-Rao: straight-through Gumbel-softmax, averaged over the noise that leads to the same arg max.

The straight-through gradient is :math:`\nabla c(z)^\top \, \partial_h \mathrm{softmax}((h + \gamma)/\tau)`, and c is
evaluated at z alone, so the Jacobian may be replaced by its expectation given z: by Rao-Blackwell the mean stays and
the variance cannot grow. The expectation is taken over K draws of the noise conditioned on the outcome, which cost no
evaluation of c.

Reference: Paulus, Maddison & Krause, 2021, "Rao-Blackwellizing the straight-through Gumbel-softmax gradient estimator".
"""

from typing import final

import torch
from torch import Tensor

from argrad.costs import Cost, evaluate
from argrad.estimators.base import Estimator, is_factorised, positive_buffer
from argrad.latents import Factorised, Latent

__all__ = ["GumbelRao"]


@final
class GumbelRao(Estimator):
    """The straight-through gradient with less variance and the same bias.

    Args:
        temperature: τ > 0; the averaging allows lower ones than the plain straight-through estimator.
        draws: K, the number of conditional noise draws.
    """

    unbiased = False
    needs_cost_gradient = True
    temperature: Tensor

    def __init__(self, temperature: float = 0.5, *, draws: int = 10) -> None:
        super().__init__()
        if draws < 1:
            raise ValueError(f"GumbelRao needs at least one conditional draw, got draws={draws}")
        self.draws = draws
        self.register_buffer("temperature", positive_buffer("temperature", temperature))

    def forward(
        self,
        latent: Latent,
        cost: Cost,
        *,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """The cost of one sample, ``[*batch]``."""
        self.require_support(latent)
        assert isinstance(latent, Factorised)
        noise = self.draw_noise(latent, generator=generator) if noise is None else latent.check_noise(noise)
        if noise.shape != (1 + self.draws, *latent.scores.shape):
            raise ValueError(f"GumbelRao(draws={self.draws}) needs the noise that its own draw_noise(latent) returns")
        scores = latent.scores
        with torch.no_grad():
            z = latent.solve(scores + noise[0]).to(scores.dtype)
            conditional = latent.perturb_given(z.expand(self.draws, *z.shape), noise[1:]) - scores
            conditional = torch.where(scores > -torch.inf, conditional, 0.0)
        relaxed = latent.relax(scores + conditional, self.temperature).mean(0).to(scores.dtype)
        return evaluate(cost, latent, z + (relaxed - relaxed.detach()))

    def draw_noise(self, latent: Latent, *, generator: torch.Generator | None = None) -> Tensor:
        """``[1 + draws, *batch, *event]``: the sample's noise, then the conditional draws'."""
        return latent.draw_noise((1 + self.draws,), generator=generator)

    def cost_evaluations(self, latent: Latent) -> int:
        """One, and its derivative."""
        return 1

    def supports(self, latent: Latent) -> bool:
        """Latents with a relaxation and conditional noise."""
        return is_factorised(latent)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"temperature={self.temperature.item():.4g}, draws={self.draws}"
