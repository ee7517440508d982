r"""Gumbel-Sinkhorn: permutations softened to doubly stochastic matrices.

The best matching of the scores plus Gumbel noise is the limit τ → 0 of the matrix that solves the matching with an
entropy bonus of weight τ,

.. math:: y = S\big((h + \gamma) / \tau\big) = \arg\max_{Y\ \text{doubly stochastic}} \langle h + \gamma, Y\rangle -
    \tau\,\textstyle\sum Y \log Y,

and Sinkhorn's iteration finds it: exponentiate, then normalise rows and columns in turn (here in log space, columns
first, so that rows add up to one exactly and columns in the limit of many iterations). The gradient flows through the
iterations.

.. math:: \nabla E[c(z)] \approx \nabla_h\, c(y).

**Bias.** As for Gumbel-softmax, it is the exact gradient of another objective, E[c(y)]; the bias falls and the variance
grows as τ → 0. ``straight_through=True`` evaluates the cost at the matching itself and differentiates as if it were y:
value and the gradient of the cost's own parameters are then right for law "perturb", the law that is sampled whatever
the latent's. **Price**: one evaluation and its derivative; 2 n² operations an iteration, and small τ needs more
iterations.

Reference: Mena, Belanger, Linderman & Snoek, 2018, "Learning latent permutations with Gumbel-Sinkhorn networks".
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from argrad.costs import Cost, evaluate
from argrad.estimators.base import Estimator, positive_buffer
from argrad.latents import Latent, Permutation

__all__ = ["GumbelSinkhorn", "sinkhorn"]


@final
class GumbelSinkhorn(Estimator):
    """The relaxed gradient for permutations: biased, needs a cost that is differentiable in z.

    Args:
        temperature: τ > 0.
        iterations: how often rows and columns are normalised.
        straight_through: evaluate the cost at the best matching, differentiate as if it were the relaxation.

    >>> from argrad import Permutation
    >>> scores = torch.zeros(4, 3, 3, requires_grad=True)
    >>> GumbelSinkhorn(temperature=0.5)(Permutation(scores), lambda z: z[..., 0, 0]).shape
    torch.Size([4])
    """

    unbiased = False
    needs_cost_gradient = True
    temperature: Tensor

    def __init__(self, temperature: float = 0.5, *, iterations: int = 20, straight_through: bool = False) -> None:
        super().__init__()
        if iterations < 1 or iterations != int(iterations):
            raise ValueError(f"GumbelSinkhorn needs a whole number of iterations >= 1, got iterations={iterations}")
        self.iterations = iterations
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
        """The cost of the relaxed permutation, or of the best matching, ``[*batch]``."""
        self.require_support(latent)
        noise = self.draw_noise(latent, generator=generator) if noise is None else latent.check_noise(noise)
        perturbed = latent.scores + noise
        z = sinkhorn(perturbed, self.temperature, iterations=self.iterations).to(latent.scores.dtype)
        if self.straight_through:
            z = latent.solve(perturbed).to(z.dtype) + (z - z.detach())
        return evaluate(cost, latent, z)

    def draw_noise(self, latent: Latent, *, generator: torch.Generator | None = None) -> Tensor:
        """Gumbel noise ``[*batch, n, n]``."""
        return latent.draw_noise(generator=generator)

    def cost_evaluations(self, latent: Latent) -> int:
        """One, and its derivative."""
        return 1

    def supports(self, latent: Latent) -> bool:
        """Permutations only."""
        return isinstance(latent, Permutation)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return (
            f"temperature={self.temperature.item():.4g}, iterations={self.iterations}, "
            f"straight_through={self.straight_through}"
        )


def sinkhorn(scores: Tensor, temperature: Tensor | float, *, iterations: int = 20) -> Tensor:
    """The doubly stochastic matrix nearest to scores / temperature in relative entropy, ``[*batch, n, n]``.

    ``-inf`` gives entries of exactly 0. Rows add up to one, columns nearly.

    >>> sinkhorn(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), 1.0)
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    # As in Categorical.relax: the shift keeps the quotient from overflowing, the clamp keeps -inf out of gradients.
    log_y = (scores - scores.detach().amax((-1, -2), keepdim=True)).clamp_min(-1e6) / temperature
    for _ in range(iterations):
        log_y = log_y.log_softmax(-2).log_softmax(-1)
    return log_y.exp()
