r"""Subsets of a given size.

**Structures**: z in {0, 1}^n with m ones. **Score**: the sum of the chosen items' scores.

**law="gibbs"** is the conditional Bernoulli law :math:`p(z) \propto e^{\langle h, z\rangle}`, in O(n m) by the
recursion of :mod:`argrad.solvers.top_k`; the noise is one uniform number for each item. **law="perturb"** takes the m
largest of the scores plus Gumbel noise (Gumbel-top-k): m items drawn one after the other without replacement
(Plackett-Luce), which is another distribution unless m is 0, 1 or n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self, final

import torch
from torch import Tensor

from argrad.latents.base import Law
from argrad.latents.structured import (
    Solver,
    SumOfParts,
    all_finite,
    choose_law,
    choose_solver,
    draw_gumbel,
    solve_with,
)
from argrad.solvers.checks import check_possible, check_scores
from argrad.solvers.top_k import (
    ADVICE,
    enough,
    enumerate_subsets,
    sample_subset,
    subset_entropy,
    subset_log_partition,
    subset_marginals,
    top_k,
)

__all__ = ["Subset"]


@final
class Subset(SumOfParts):
    """A batch of distributions over the subsets of m of n items.

    Args:
        scores: ``[*batch, n]``; ``-inf`` is an item that is never chosen.
        size: m, how many items are chosen, 0 to n.
        law: "gibbs" or "perturb".
        solver: "auto", or a function that takes scores ``[*batch, n]`` and returns z of the same shape.
        validate: False leaves out the checks that read the numbers.

    >>> q = Subset(torch.zeros(4), size=2)
    >>> q.mean()
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    >>> q.entropy().exp()
    tensor(6.0000)
    """

    def __init__(
        self,
        scores: Tensor,
        size: int,
        *,
        law: Law = "gibbs",
        solver: str | Solver = "auto",
        validate: bool = True,
    ) -> None:
        check_scores("Subset", scores, "n", validate=validate)
        if size != int(size) or not 0 <= size <= scores.shape[-1]:
            raise ValueError(f"Subset needs a size between 0 and n={scores.shape[-1]}, got {size}")
        if validate:
            check_possible("Subset", enough(scores.detach(), size), ADVICE, validate=True)
        self.law = choose_law("Subset", law)
        self.solver = choose_solver("Subset", solver)
        self.scores = scores
        self.size = int(size)
        self.event_dims = 1
        self.known_finite = validate and all_finite(scores)

    @property
    def num_states(self) -> int:
        """C(n, m)."""
        return math.comb(self.scores.shape[-1], self.size)

    @property
    def noise_shape(self) -> torch.Size:
        """That of the scores."""
        return self.scores.shape

    def with_scores(self, scores: Tensor) -> Self:
        """The same kind of latent with other scores, unchecked."""
        return type(self)(scores, self.size, law=self.law, solver=self.solver, validate=False)

    def with_law(self, law: Law) -> Self:
        """The same scores under another law, unchecked."""
        return type(self)(self.scores, self.size, law=law, solver=self.solver, validate=False)

    def draw_noise(self, shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """``[*shape, *batch, n]``: uniform under the law "gibbs", Gumbel under "perturb"."""
        if self.law == "perturb":
            return draw_gumbel(self.scores, shape, generator)
        dtype = torch.promote_types(self.scores.dtype, torch.float32)
        return torch.rand((*shape, *self.scores.shape), dtype=dtype, device=self.scores.device, generator=generator)

    def solve(self, scores: Tensor) -> Tensor:
        """The items with the m largest scores."""
        if callable(self.solver):
            return solve_with(self.solver, scores, shape=scores.shape)
        return top_k(scores, self.size, validate=False)

    def enumerate(self) -> Tensor:
        """Every subset, ``[S, n]``, the first items first."""
        self.check_enumerable()
        like = self.scores
        return enumerate_subsets(like.shape[-1], self.size, dtype=like.dtype, device=like.device)

    def _read_scores(self) -> Tensor:
        return self.scores

    def _draw(self, noise: Tensor) -> Tensor:
        return sample_subset(self.scores, self.size, noise, validate=False)

    def _log_partition(self) -> Tensor:
        return subset_log_partition(self.scores, self.size, validate=False)

    def _mean(self) -> Tensor:
        return subset_marginals(self.scores, self.size, validate=False)

    def _entropy(self) -> Tensor:
        return subset_entropy(self.scores, self.size, validate=False)

    def _details(self) -> str:
        return f"items={self.scores.shape[-1]}, size={self.size}"
