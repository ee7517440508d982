r"""Gumbel-softmax, the Concrete relaxation: replace the arg max by a softmax at temperature τ.

.. math:: y = \mathrm{softmax}((h + \gamma) / \tau), \qquad \nabla E[c(z)] \approx \nabla_h\, c(y)

with the gradient flowing through y (for bits, y = σ((h + λ) / τ)). It is the exact gradient of a different objective,
E[c(y)]: the bias falls and the variance grows as τ → 0. The straight-through form evaluates the cost at the arg max of
y and lets the gradient pass as if it had been y; its value is then E[c(z)], and the cost's own parameters get an
unbiased gradient, which the soft form does not give them. In a :class:`argrad.Sequence` each step reads what the one
before it relaxed to.

References: Jang, Gu & Poole, 2017, "Categorical reparameterization with Gumbel-softmax"; Maddison, Mnih & Teh, 2017,
"The Concrete distribution".
"""

from typing import final

import torch
from torch import Tensor

from argrad.costs import Cost, evaluate
from argrad.estimators.base import Estimator, is_factorised, positive_buffer
from argrad.latents import Factorised, Latent, Sequence

__all__ = ["GumbelSoftmax"]


@final
class GumbelSoftmax(Estimator):
    """The relaxed gradient: biased, needs a cost that is differentiable in z.

    Args:
        temperature: τ > 0.
        straight_through: evaluate the cost at the arg max, differentiate as if it were the softmax.

    >>> from argrad import Categorical
    >>> logits = torch.zeros(4, 3, requires_grad=True)
    >>> GumbelSoftmax(temperature=0.5)(Categorical(logits), lambda z: z[..., 0]).shape
    torch.Size([4])
    """

    unbiased = False
    needs_cost_gradient = True
    temperature: Tensor

    def __init__(self, temperature: float = 0.5, *, straight_through: bool = False) -> None:
        super().__init__()
        self.straight_through = straight_through
        self.register_buffer("temperature", positive_buffer("temperature", temperature))

    def forward(
        self,
        latent: Latent,
        cost: Cost,
        *,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """The cost of the relaxed sample, or of its arg max, ``[*batch]``."""
        self.require_support(latent)
        if isinstance(latent, Sequence):
            noise = latent.draw_noise(generator=generator) if noise is None else latent.check_noise(noise)
            return evaluate(cost, latent, latent.relax(noise, self.temperature, straight_through=self.straight_through))
        assert isinstance(latent, Factorised)
        noise = latent.draw_noise(generator=generator) if noise is None else noise
        perturbed = latent.perturb(noise)
        z = latent.relax(perturbed, self.temperature).to(latent.scores.dtype)
        if self.straight_through:
            z = latent.solve(perturbed).to(z.dtype) + (z - z.detach())
        return evaluate(cost, latent, z)

    def draw_noise(self, latent: Latent, *, generator: torch.Generator | None = None) -> Tensor:
        """The noise of one sample."""
        return latent.draw_noise(generator=generator)

    def cost_evaluations(self, latent: Latent) -> int:
        """One, and its derivative."""
        return 1

    def supports(self, latent: Latent) -> bool:
        """Latents with a relaxation."""
        return is_factorised(latent) or isinstance(latent, Sequence)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"temperature={self.temperature.item():.4g}, straight_through={self.straight_through}"
