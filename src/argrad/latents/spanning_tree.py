r"""Spanning trees of the complete graph on n nodes, undirected or directed with a given root.

**Structures**: z[i, j] = 1 for the n − 1 edges of the tree: i < j (the upper triangle) for undirected trees, head by
modifier for directed ones. **Score**: the sum of the chosen edges' scores.

**law="gibbs"** is :math:`p(z) \propto e^{\langle h, z\rangle}`, in O(n³) by the matrix-tree theorem in the log-space
form of :mod:`argrad.solvers.spanning_tree`. **law="perturb"** is the best tree for the scores plus Gumbel noise on
every edge. Exact samples, and the best directed tree, are found on the CPU.
"""

from __future__ import annotations

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
from argrad.solvers.checks import can_read_values
from argrad.solvers.spanning_tree import (
    DIRECTED_ADVICE,
    UNDIRECTED_ADVICE,
    arborescence,
    arborescence_entropy,
    arborescence_log_partition,
    arborescence_marginals,
    check_directed,
    check_undirected,
    enumerate_arborescences,
    enumerate_spanning_trees,
    is_complete,
    sample_arborescence,
    sample_spanning_tree,
    spanning_tree,
    spanning_tree_entropy,
    spanning_tree_log_partition,
    spanning_tree_marginals,
)

__all__ = ["SpanningTree"]


@final
class SpanningTree(SumOfParts):
    """A batch of distributions over spanning trees of n nodes.

    Args:
        scores: ``[*batch, n, n]``; ``-inf`` is an edge that is never used. Undirected trees read the upper triangle,
            directed ones head by modifier, without the diagonal and the root's column.
        directed: whether edges point away from a root.
        root: the node without a head; for directed trees only.
        law: "gibbs" or "perturb".
        solver: "auto", or a function that takes scores ``[*batch, n, n]`` and returns z of the same shape.
        validate: False leaves out the checks that read the numbers.

    >>> q = SpanningTree(torch.zeros(4, 4))
    >>> q.entropy().exp()
    tensor(16.0000)
    >>> q.mean()[0]
    tensor([0.0000, 0.5000, 0.5000, 0.5000])
    """

    def __init__(
        self,
        scores: Tensor,
        *,
        directed: bool = False,
        root: int = 0,
        law: Law = "gibbs",
        solver: str | Solver = "auto",
        validate: bool = True,
    ) -> None:
        if directed:
            check_directed("SpanningTree", scores, root, validate=validate)
        else:
            check_undirected("SpanningTree", scores, validate=validate)
            if root != 0:
                raise ValueError(f"SpanningTree(root={root}) needs directed=True: undirected trees have no root")
        self.law = choose_law("SpanningTree", law)
        self.solver = choose_solver("SpanningTree", solver)
        self.scores = scores
        self.directed = directed
        self.root = root
        self.event_dims = 2
        if validate and can_read_values(scores) and not all_finite(self._read_scores()):
            best = self._best(scores)
            advice = DIRECTED_ADVICE if directed else UNDIRECTED_ADVICE
            refuse_empty_support("SpanningTree", self.score(best), is_complete(best), advice)

    @property
    def num_states(self) -> int:
        """n^(n − 2), Cayley's formula."""
        n = self.scores.shape[-1]
        return int(n ** (n - 2)) if n > 1 else 1

    @property
    def noise_shape(self) -> torch.Size:
        """That of the scores."""
        return self.scores.shape

    def with_scores(self, scores: Tensor) -> Self:
        """The same kind of latent with other scores, unchecked."""
        return self._copy(scores, self.law)

    def with_law(self, law: Law) -> Self:
        """The same scores under another law, unchecked."""
        return self._copy(self.scores, law)

    def draw_noise(self, shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Standard Gumbel noise ``[*shape, *batch, n, n]``."""
        return draw_gumbel(self.scores, shape, generator)

    def solve(self, scores: Tensor) -> Tensor:
        """The best tree."""
        if callable(self.solver):
            return solve_with(self.solver, scores, shape=scores.shape)
        return self._best(scores)

    def enumerate(self) -> Tensor:
        """Every tree, ``[S, n, n]``, in the order of the Prüfer sequences."""
        self.check_enumerable()
        n, dtype, device = self.scores.shape[-1], self.scores.dtype, self.scores.device
        if self.directed:
            return enumerate_arborescences(n, root=self.root, dtype=dtype, device=device)
        return enumerate_spanning_trees(n, dtype=dtype, device=device)

    def _copy(self, scores: Tensor, law: Law) -> Self:
        return type(self)(scores, directed=self.directed, root=self.root, law=law, solver=self.solver, validate=False)

    def _best(self, scores: Tensor) -> Tensor:
        if self.directed:
            return arborescence(scores, root=self.root, validate=False)
        return spanning_tree(scores, validate=False)

    def _read_scores(self) -> Tensor:
        n = self.scores.shape[-1]
        if not self.directed:
            return self.scores.triu(1)
        unread = torch.eye(n, dtype=torch.bool, device=self.scores.device)
        unread[:, self.root] = True
        return self.scores.masked_fill(unread, 0.0)

    def _draw(self, noise: Tensor) -> Tensor:
        if self.directed:
            return sample_arborescence(self.scores, noise, root=self.root, validate=False)
        return sample_spanning_tree(self.scores, noise, validate=False)

    def _log_partition(self) -> Tensor:
        if self.directed:
            return arborescence_log_partition(self.scores, root=self.root, validate=False)
        return spanning_tree_log_partition(self.scores, validate=False)

    def _mean(self) -> Tensor:
        if self.directed:
            return arborescence_marginals(self.scores, root=self.root, validate=False)
        return spanning_tree_marginals(self.scores, validate=False)

    def _entropy(self) -> Tensor:
        if self.directed:
            return arborescence_entropy(self.scores, root=self.root, validate=False)
        return spanning_tree_entropy(self.scores, validate=False)

    def _details(self) -> str:
        kind = f"directed=True, root={self.root}" if self.directed else "directed=False"
        return f"nodes={self.scores.shape[-1]}, {kind}"
