r"""Differentiation of black-box solvers: a second call of the solver, with scores moved against the cost's gradient.

There is no noise: z = arg max_z score(z) is the best structure, and the objective is its cost, c(z(h)), a piecewise
constant function of the scores. It is replaced by a piecewise affine one whose slope at h is

.. math:: g = \frac{\nabla_h\,\mathrm{score}(z) - \nabla_h\,\mathrm{score}(z_\lambda)}{\lambda}, \qquad
    z_\lambda = \arg\max_z \{\mathrm{score}(z) - \lambda \langle\nabla c(z^*), z\rangle\}.

(The original minimises a cost w = −h, which turns both signs around.) The interpolation keeps the values of the
linearised cost where z_λ = z, and λ says how far it reaches: a large λ smooths more and is less faithful. This is
:class:`argrad.Direct` with ``noise=False, changes="gradient"`` and ε = λ, a fact that a test holds fast.

**Bias.** Neither value nor gradient are those of E[c(z)]: everything is at the mode. **Variance**: none. Where λ is too
small the gradient is exactly zero. The law of the latent is not used.

Reference: Vlastelica, Paulus, Musil, Martius & Rolínek, 2020, "Differentiation of blackbox combinatorial solvers".
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from argrad.costs import Cost
from argrad.estimators.base import Estimator, attach_difference, positive_buffer
from argrad.estimators.implicit_mle import value_and_slope
from argrad.latents import Factorised, Latent, Structured

__all__ = ["BlackboxDifferentiation"]


@final
class BlackboxDifferentiation(Estimator):
    """The cost of the best structure, and the slope of its interpolation. Needs a cost that is differentiable in z.

    Args:
        interpolation: λ > 0, how far the interpolation reaches, in the unit of scores over cost.

    >>> from argrad import SpanningTree
    >>> scores = torch.randn(2, 4, 4, requires_grad=True)
    >>> BlackboxDifferentiation(5.0)(SpanningTree(scores), lambda z: z[..., 0, 1].square()).shape
    torch.Size([2])
    """

    unbiased = False
    needs_cost_gradient = True
    interpolation: Tensor

    def __init__(self, interpolation: float = 10.0) -> None:
        super().__init__()
        self.register_buffer("interpolation", positive_buffer("interpolation", interpolation))

    def forward(
        self,
        latent: Latent,
        cost: Cost,
        *,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """The cost of the best structure, ``[*batch]``; nothing is random."""
        self.require_support(latent)
        if noise is not None and noise.numel():
            raise ValueError("BlackboxDifferentiation uses no noise; leave noise out, or use ImplicitMLE")
        z = latent.mode()
        wanted = torch.is_grad_enabled() and latent.requires_grad
        value, slope = value_and_slope(latent, cost, z, wanted=wanted)
        if slope is None:
            return value
        better = latent.solve(torch.addcmul(latent.scores.detach(), slope, self.interpolation, value=-1))
        return attach_difference(value, latent, z, better.to(z.dtype), 1 / self.interpolation)

    def draw_noise(self, latent: Latent, *, generator: torch.Generator | None = None) -> Tensor:
        """An empty tensor: nothing is random."""
        return latent.scores.new_empty(0)

    def cost_evaluations(self, latent: Latent) -> int:
        """One, and its derivative."""
        return 1

    def supports(self, latent: Latent) -> bool:
        """Everything with a solver; the law does not matter."""
        return isinstance(latent, Factorised | Structured)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"interpolation={self.interpolation.item():.4g}"
