r"""The exact gradient by enumeration.

.. math:: E_q[c(z)] = \sum_z q(z)\,c(z)

is differentiated as it stands, for the scores (pairwise and transition scores included) and for the cost's own
parameters. What is impossible counts for nothing, whatever it costs. There is no variance; the price is one evaluation
of every structure, which for one categorical variable and a shared cost (:class:`argrad.costs.Reconstruction`) is k
decoder rows in all.
"""

from typing import Any, final

import torch
from torch import Tensor

from argrad.costs import Cost, all_costs, possible_only
from argrad.estimators.base import Estimator
from argrad.latents import MAX_STATES, Latent
from argrad.latents.base import cheaply_known_finite

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
        costs = all_costs(cost, latent)
        if latent.is_one_of_k:
            return (latent.mean() * possible_only(costs, latent)).sum(-1)
        log_p = latent.log_prob_all()
        if not (latent.known_finite or cheaply_known_finite(log_p)):
            costs = costs.masked_fill(log_p == -torch.inf, 0.0)
        return (log_p.exp() * costs).sum(-1)

    def draw_noise(self, latent: Latent, *, generator: torch.Generator | None = None) -> Tensor:
        """An empty tensor: nothing is random."""
        return latent.scores.new_empty(0)

    def cost_evaluations(self, latent: Latent) -> int:
        """Every structure."""
        return latent.num_states

    def supports(self, latent: Latent) -> bool:
        """Latents with few enough structures, whose probabilities are known."""
        return latent.law == "gibbs" and latent.num_states <= MAX_STATES
