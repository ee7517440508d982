r"""The local expectation gradient: enumerate one variable at a time.

For independent variables, with :math:`c_i(v) = c(z_1, …, z_i = v, …, z_n)` at a sample z,

.. math:: \nabla_{h_i} E_q[c] = E_{z_{-i}}\big[\nabla_{h_i} \textstyle\sum_v q_i(v)\,c_i(v)\big],

since given the others the expectation over variable i is a finite sum. The bracket is the estimate: unbiased for any
sample, at n (k − 1) + 1 evaluations. For bits it is :math:`\sigma'(h_i)\,(c_i(1) - c_i(0))`. With one variable it is
the exact gradient. On a :class:`argrad.Sequence` the other values of a step are followed by sequences that go on with
the same noise.

Reference: Titsias & Lázaro-Gredilla, 2015, "Local expectation gradients for black box variational inference".
"""

from typing import final

import torch
from torch import Tensor

from argrad.costs import Cost, evaluate, has_table, possible_only, single_changes, table
from argrad.estimators.base import Estimator, along_a_sample, attach, is_factorised
from argrad.latents import Factorised, Latent, Sequence

__all__ = ["LocalExpectation"]


@final
class LocalExpectation(Estimator):
    """Unbiased, with one sample and every single change of it.

    >>> from argrad import Bits
    >>> logits = torch.zeros(1, 2, requires_grad=True)
    >>> LocalExpectation()(Bits(logits), lambda z: z.sum(-1)).sum().backward()
    >>> logits.grad
    tensor([[0.2500, 0.2500]])
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
        """The cost of one sample, ``[*batch]``."""
        self.require_support(latent)
        if isinstance(latent, Sequence):
            noise = latent.draw_noise(generator=generator) if noise is None else latent.check_noise(noise)
            latent, cost = along_a_sample(latent, cost, noise)
        assert isinstance(latent, Factorised)
        z = latent.sample(generator=generator, noise=noise)
        if has_table(cost, latent):
            weights = possible_only(table(cost, latent), latent)
            value = (weights * z).sum(-1)
        else:
            value = evaluate(cost, latent, z)
            weights = possible_only(latent.linear(single_changes(cost, latent, z, value)), latent)
        gradient = latent.gradient_of_mean(weights.detach())
        return attach(value, latent.scores, gradient, known_finite=latent.known_finite)

    def draw_noise(self, latent: Latent, *, generator: torch.Generator | None = None) -> Tensor:
        """The noise of one sample."""
        return latent.draw_noise(generator=generator)

    def cost_evaluations(self, latent: Latent) -> int:
        """One sample and its single changes."""
        if isinstance(latent, Sequence):
            return 1 + latent.length * (latent.values - 1)
        assert isinstance(latent, Factorised)
        return 1 + latent.num_changes

    def supports(self, latent: Latent) -> bool:
        """Latents with independent variables, and sequences."""
        return is_factorised(latent) or isinstance(latent, Sequence)
