r"""Permutations.

**Structures**: permutation matrices, z[r, c] = 1 where row r gets column c. **Score**: the sum of the chosen entries.

**law="gibbs"** is :math:`p(z) \propto e^{\langle h, z\rangle}`, whose Z is a permanent: O(n 2^n) by the recursion over
subsets of columns of :mod:`argrad.solvers.matching`, up to n = 16. **law="perturb"** is the best matching of the scores
plus Gumbel noise, O(n³) at any size.
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
    refuse_empty_support,
    solve_with,
)
from argrad.solvers.checks import can_read_values, check_scores
from argrad.solvers.matching import (
    ADVICE,
    MAX_ROWS,
    enumerate_permutations,
    matching,
    permutation_entropy,
    permutation_log_partition,
    permutation_marginals,
    sample_permutation,
)

__all__ = ["Permutation"]


@final
class Permutation(SumOfParts):
    """A batch of distributions over the permutations of n.

    Args:
        scores: ``[*batch, n, n]``, row by column; ``-inf`` is a pair that is never matched.
        law: "gibbs" (n at most 16) or "perturb".
        solver: "auto", or a function that takes scores ``[*batch, n, n]`` and returns z of the same shape.
        validate: False leaves out the checks that read the numbers.

    >>> q = Permutation(torch.tensor([[0.0, 0.0], [-torch.inf, 0.0]]))
    >>> q.mode()
    tensor([[1., 0.],
            [0., 1.]])
    >>> q.kl()  # one of two permutations is possible
    tensor(0.6931)
    """

    def __init__(
        self, scores: Tensor, *, law: Law = "gibbs", solver: str | Solver = "auto", validate: bool = True
    ) -> None:
        check_scores("Permutation", scores, "n, n", validate=validate)
        self.law = choose_law("Permutation", law)
        self.solver = choose_solver("Permutation", solver)
        self.scores = scores
        self.event_dims = 2
        if validate and can_read_values(scores):
            self.known_finite = all_finite(scores)
            if not self.known_finite:
                best = matching(scores, validate=False)
                refuse_empty_support("Permutation", self.score(best), best.sum((-1, -2)) == scores.shape[-1], ADVICE)

    @property
    def num_states(self) -> int:
        """n!."""
        return math.factorial(self.scores.shape[-1])

    @property
    def noise_shape(self) -> torch.Size:
        """That of the scores."""
        return self.scores.shape

    def with_scores(self, scores: Tensor) -> Self:
        """The same kind of latent with other scores, unchecked."""
        return type(self)(scores, law=self.law, solver=self.solver, validate=False)

    def with_law(self, law: Law) -> Self:
        """The same scores under another law, unchecked."""
        return type(self)(self.scores, law=law, solver=self.solver, validate=False)

    def draw_noise(self, shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Standard Gumbel noise ``[*shape, *batch, n, n]``."""
        return draw_gumbel(self.scores, shape, generator)

    def solve(self, scores: Tensor) -> Tensor:
        """The best matching of rows and columns."""
        if callable(self.solver):
            return solve_with(self.solver, scores, shape=scores.shape)
        return matching(scores, validate=False)

    def enumerate(self) -> Tensor:
        """Every permutation matrix, ``[n!, n, n]``, in the order of ``itertools.permutations``."""
        self.check_enumerable()
        return enumerate_permutations(self.scores.shape[-1], dtype=self.scores.dtype, device=self.scores.device)

    def _checked_size(self) -> Tensor:
        if self.scores.shape[-1] > MAX_ROWS:
            self._too_large(f"{MAX_ROWS} rows")
        return self.scores

    def _read_scores(self) -> Tensor:
        return self.scores

    def _draw(self, noise: Tensor) -> Tensor:
        return sample_permutation(self._checked_size(), noise, validate=False)

    def _log_partition(self) -> Tensor:
        return permutation_log_partition(self._checked_size(), validate=False)

    def _mean(self) -> Tensor:
        return permutation_marginals(self._checked_size(), validate=False)

    def _entropy(self) -> Tensor:
        return permutation_entropy(self._checked_size(), validate=False)

    def _details(self) -> str:
        return f"rows={self.scores.shape[-1]}"
