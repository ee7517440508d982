r"""The exact gradient by enumeration.

.. math:: E_q[c(z)] = \sum_z q(z)\,c(z)

is differentiated as it stands, for the scores (pairwise and transition scores included) and for the cost's own
parameters. It has no variance; it costs one evaluation of every structure, which for one categorical variable and a
shared cost (:class:`argrad.costs.Reconstruction`) is k decoder rows in all.
"""

from typing import Any, final

import torch
from torch import Tensor

from argrad.costs import Cost, all_costs
from argrad.estimators.base import Estimator
from argrad.latents import MAX_STATES, Latent

__all__ = ["Exact"]


@final
class Exact(Estimator):
    """The exact value and gradient of E[cost].

    >>> from argrad import Categorical, TableCost
    >>> logits = torch.zeros(1, 2, requires_grad=True)
    >>> Exact()(Categorical(logits), TableCost(torch.tensor([[0.0, 1.0]]))).sum().backward()
    >>> logits.grad
    tensor([[-0.2500,  0.2500]])
    """

    unbiased = True
    needs_cost_gradient = False

    def forward(
        self, latent: Latent, cost: Cost, *, generator: torch.Generator | None = None, noise: Any = None
    ) -> Tensor:
        """E[cost] for every example, ``[*batch]``; generator and noise are not used."""
        if isinstance(latent, Latent):
            latent.check_enumerable()
        self.require_support(latent)
        probabilities = latent.mean() if latent.is_one_of_k else latent.log_prob_all().exp()
        return (probabilities * all_costs(cost, latent)).sum(-1)

    def draw_noise(self, latent: Latent, *, generator: torch.Generator | None = None) -> Tensor:
        """An empty tensor: nothing is random."""
        return latent.scores.new_empty(0)

    def cost_evaluations(self, latent: Latent) -> int:
        """Every structure."""
        return latent.num_states

    def supports(self, latent: Latent) -> bool:
        """Latents with few enough structures, whose probabilities are known."""
        return latent.law == "gibbs" and latent.num_states <= MAX_STATES
