r"""Spanning trees, undirected and directed: the best one, and exact inference over all of them.

**Structures**: trees that span n nodes, as matrices z, ``[*batch, n, n]``.

- *Undirected* (``spanning_tree``): z[i, j] = 1 with i < j for each of the n − 1 edges. Only the upper triangle of the
  scores is read, and z is 0 elsewhere. There are n^(n − 2).
- *Directed* (``arborescence``): z[h, m] = 1 where node h is the head of node m. Every node but the root has exactly one
  head, and following heads leads to the root. The diagonal of the scores and the root's column are not read. There are
  n^(n − 2) for each root.

**Score**: the sum of the chosen edges, :math:`\langle s, z\rangle`.
**Law**: :math:`p(z) = e^{\langle s, z\rangle} / Z`. By the matrix-tree theorem Z is a determinant: with weights
:math:`w = e^s`, L[m, m] = Σ_h w[h, m] and L[h, m] = −w[h, m], Z is the determinant of L without the root's row and
column.

Gaussian elimination of that determinant needs no subtraction. Eliminating node k, whose total is :math:`d_k = \sum_{h
\neq k} w_{hk}`, leaves off the diagonal

.. math:: w'_{hm} = w_{hm} + w_{hk} w_{km} / d_k

for all the remaining heads h, the root included, and on the diagonal :math:`d_m - w_{mk} w_{km} / d_k`. That is again
the sum of the new column, :math:`\sum_{h \neq m, k} w'_{hm} = (d_m - w_{km}) + (d_k - w_{mk}) w_{km} / d_k`, so the
diagonal is never stored, only summed when its turn comes, and :math:`\log Z = \sum_k \log d_k`. In logarithms this is
exact to the last digits for scores of any range, where a numerical determinant has lost all digits once the weights
differ by more than the precision; −inf needs no special case. (Grassmann, Taksar & Heyman found it for Markov chains:
w'/d' is the walk along heads, watched only outside k.) An undirected tree becomes a directed one, of the same score, by
choosing a root and pointing all edges away from it; the law of the one is the law of the other with symmetric scores.

**Sampling** decides the head of one node after the other. Wilson's theorem says that the head of m is the last exit
from m of a random walk along heads that starts at m and ends at the root, so

.. math:: p(\text{head of } m = h) \propto w_{hm} \, P(\text{the walk from } h \text{ meets the root before } m),

and the probabilities on the right come from the same elimination. A node with a head is merged into it, and the rest
is a smaller problem of the same kind. The cost is O(n⁴ / 12) operations a draw whatever the scores, where the time of
Wilson's own walk grows exponentially with differences of scores; no step can close a cycle.

**Cost**: O(n²) a problem for either arg max, O(n³) for log partition, marginals and entropy. The arg max and the
sampler are compiled by numba, the batch divided among the cores; CUDA tensors are copied there and back, except that
undirected trees on a GPU are found there, in n − 1 steps vectorised over the batch. The rest is plain torch: it runs on
any device and with ``validate=False`` waits for nothing.

References: R. C. Prim (1957); Y. J. Chu & T. H. Liu (1965), J. Edmonds (1967) and, for dense graphs, R. E. Tarjan
(1977), "Finding optimum branchings", Networks 7; W. T. Tutte (1948) for the directed matrix-tree theorem; W. K.
Grassmann, M. I. Taksar & D. P. Heyman (1985), Operations Research 33; D. B. Wilson (1996), "Generating random spanning
trees more quickly than the cover time", STOC; T. Koo, A. Globerson, X. Carreras & M. Collins (2007), "Structured
prediction models via the matrix-tree theorem", EMNLP.
"""

import itertools
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from argrad.solvers.checks import check_possible, check_scores
from argrad.solvers.compiled import has_numba, run
from argrad.solvers.log_space import finite, is_possible, log_add, log_softmax, log_sum
from argrad.solvers.tree_kernels import choose_all_heads, choose_heads, edmonds, edmonds_all, prim, prim_all

__all__ = [
    "arborescence",
    "arborescence_entropy",
    "arborescence_log_partition",
    "arborescence_marginals",
    "enumerate_arborescences",
    "enumerate_spanning_trees",
    "sample_arborescence",
    "sample_spanning_tree",
    "spanning_tree",
    "spanning_tree_entropy",
    "spanning_tree_log_partition",
    "spanning_tree_marginals",
]

MAX_NODES_LISTED = 8
"""Largest n whose trees are listed, 262,144 of them."""

# ------------------------------------------------------------------------------------------------- undirected trees


def spanning_tree(
    scores: Tensor, *, method: Literal["auto", "numba", "torch"] = "auto", validate: bool = True
) -> Tensor:
    """The undirected spanning tree with the largest sum of scores (Prim's algorithm); never differentiable.

    Args:
        scores: ``[*batch, n, n]``, upper triangle; ``-inf`` is an edge that may not be used.
        method: "numba" runs on the CPU, "torch" on the tensor's own device; "auto" takes "torch" on a GPU or where
            numba is not installed.
        validate: False leaves out the checks that read the numbers; where no tree is possible, "numba" then returns
            zeros and "torch" a tree with impossible edges.

    Returns:
        z ``[*batch, n, n]`` with n − 1 ones in the upper triangle. Among equal scores any may win.

    >>> spanning_tree(torch.tensor([[0.0, 1.0, 3.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]])).nonzero().tolist()
    [[0, 2], [1, 2]]
    """
    if method not in ("auto", "numba", "torch"):
        raise ValueError(f'method must be "auto", "numba" or "torch", got {method!r}')
    check_undirected("spanning_tree", scores, validate=validate)
    if method == "auto":
        method = "torch" if scores.is_cuda or not has_numba() else "numba"
    if method == "torch":
        return grow_tree(scores.detach(), validate=validate)
    z = run(prim_all, prim, scores)
    check_possible("spanning_tree", is_complete(z), UNDIRECTED_ADVICE, validate=validate)
    return z


def spanning_tree_log_partition(scores: Tensor, *, validate: bool = True) -> Tensor:
    """log Z, the logarithm of the sum of exp(score) over all undirected spanning trees; differentiable.

    Its gradient is the marginals.

    Args:
        scores: ``[*batch, n, n]``, upper triangle.
        validate: False leaves out the checks that read the numbers; an empty support is then −inf.

    Returns:
        ``[*batch]``.

    >>> spanning_tree_log_partition(torch.zeros(4, 4)).exp()
    tensor(16.0000)
    """
    name = "spanning_tree_log_partition"
    mirrored = prepare(name, scores, None, validate=validate)
    return log_partition_of_trees(name, mirrored, advice=UNDIRECTED_ADVICE, validate=validate)


def spanning_tree_marginals(scores: Tensor, *, validate: bool = True) -> Tensor:
    """The probability of each edge to be in the tree, ``[*batch, n, n]``, upper triangle; differentiable.

    >>> spanning_tree_marginals(torch.zeros(3, 3))
    tensor([[0.0000, 0.6667, 0.6667],
            [0.0000, 0.0000, 0.6667],
            [0.0000, 0.0000, 0.0000]])
    """
    name = "spanning_tree_marginals"
    mirrored = prepare(name, scores, None, validate=validate)
    heads = marginals_of_trees(name, mirrored, advice=UNDIRECTED_ADVICE, validate=validate)
    return (heads + heads.mT).triu(1)


def spanning_tree_entropy(scores: Tensor, *, validate: bool = True) -> Tensor:
    """Entropy in nats, ``[*batch]``; differentiable.

    >>> spanning_tree_entropy(torch.zeros(4, 4)).exp()
    tensor(16.0000)
    """
    name = "spanning_tree_entropy"
    mirrored = prepare(name, scores, None, validate=validate)
    return entropy_of_trees(name, mirrored, advice=UNDIRECTED_ADVICE, validate=validate)


def sample_spanning_tree(scores: Tensor, noise: Tensor, *, validate: bool = True) -> Tensor:
    """Draw undirected spanning trees exactly; never differentiable.

    Args:
        scores: ``[*batch, n, n]``, upper triangle.
        noise: standard Gumbel noise ``[*extra, *batch, n, n]``. All of it is used but the diagonal and the first
            column: the tree is drawn as a directed one with node 0 as its root.
        validate: False leaves out the checks that read the numbers.

    Returns:
        z ``[*extra, *batch, n, n]`` with n − 1 ones in the upper triangle.

    >>> sample_spanning_tree(torch.zeros(2, 2), torch.zeros(3, 2, 2)).sum((-1, -2))
    tensor([1., 1., 1.])
    """
    name = "sample_spanning_tree"
    mirrored = prepare(name, scores, None, validate=validate)
    z = draw(name, mirrored, noise, advice=UNDIRECTED_ADVICE, validate=validate)
    return (z + z.mT).triu(1)


def enumerate_spanning_trees(
    n: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Tensor:
    """Every undirected spanning tree, ``[n^(n − 2), n, n]``, in the order of the Prüfer sequences; n at most 8.

    A tree is read off a sequence of n − 2 nodes, in which each node stands as often as it has edges beyond its last: go
    through the sequence, join its node to the smallest one that has a single edge still open, and strike both; then
    join the two nodes that are left.

    >>> enumerate_spanning_trees(3).sum(0)
    tensor([[0., 2., 2.],
            [0., 0., 2.],
            [0., 0., 0.]])
    """
    if not 1 <= n <= MAX_NODES_LISTED:
        raise ValueError(f"spanning trees are listed for 1 to {MAX_NODES_LISTED} nodes, got n={n}")
    if n == 1:
        return torch.zeros(1, 1, 1, dtype=dtype, device=device)
    sequences = np.array(list(itertools.product(range(n), repeat=n - 2)), dtype=np.int64).reshape(n ** (n - 2), n - 2)
    every = np.arange(len(sequences))
    open_edges = 1 + (sequences[:, :, None] == np.arange(n)).sum(1)
    z = np.zeros((len(sequences), n, n))
    for node in sequences.T:
        leaf = (open_edges == 1).argmax(1)
        z[every, np.minimum(node, leaf), np.maximum(node, leaf)] = 1.0
        open_edges[every, leaf] -= 1
        open_edges[every, node] -= 1
    first = (open_edges == 1).argmax(1)
    last = n - 1 - (open_edges == 1)[:, ::-1].argmax(1)
    z[every, first, last] = 1.0
    return torch.from_numpy(z).to(device, torch.get_default_dtype() if dtype is None else dtype)


# --------------------------------------------------------------------------------------------------- directed trees


def arborescence(scores: Tensor, *, root: int = 0, validate: bool = True) -> Tensor:
    """The directed spanning tree with the largest sum of scores (Chu-Liu/Edmonds); never differentiable.

    Compiled by numba and run on the CPU, wherever the scores are.

    Args:
        scores: ``[*batch, n, n]``, head by modifier; ``-inf`` is an edge that may not be used.
        root: the node without a head.
        validate: False leaves out the checks that read the numbers; z is then 0 where no tree is possible.

    Returns:
        z ``[*batch, n, n]`` with one 1 in each column but the root's. Among equal scores any may win.

    >>> best = arborescence(torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 5.0], [0.0, 9.0, 0.0]]))
    >>> best.nonzero().tolist()  # 2 → 1 scores 9, but then 1 → 2 would close a cycle
    [[0, 2], [2, 1]]
    """
    turned = prepare("arborescence", scores, root, validate=validate)
    z = root_back(run(edmonds_all, edmonds, turned), root)
    check_possible("arborescence", is_complete(z), DIRECTED_ADVICE, validate=validate)
    return z


def arborescence_log_partition(scores: Tensor, *, root: int = 0, validate: bool = True) -> Tensor:
    """log Z, the logarithm of the sum of exp(score) over all directed trees with that root; differentiable.

    Its gradient is the marginals.

    Args:
        scores: ``[*batch, n, n]``, head by modifier.
        root: the node without a head.
        validate: False leaves out the checks that read the numbers; an empty support is then −inf.

    Returns:
        ``[*batch]``.

    >>> arborescence_log_partition(torch.zeros(4, 4), root=2).exp()
    tensor(16.0000)
    """
    name = "arborescence_log_partition"
    turned = prepare(name, scores, root, validate=validate)
    return log_partition_of_trees(name, turned, advice=DIRECTED_ADVICE, validate=validate)


def arborescence_marginals(scores: Tensor, *, root: int = 0, validate: bool = True) -> Tensor:
    """The probability of each edge to be in the tree, ``[*batch, n, n]``; columns sum to 1, the root's to 0.

    Differentiable.

    >>> arborescence_marginals(torch.zeros(3, 3))
    tensor([[0.0000, 0.6667, 0.6667],
            [0.0000, 0.0000, 0.3333],
            [0.0000, 0.3333, 0.0000]])
    """
    name = "arborescence_marginals"
    turned = prepare(name, scores, root, validate=validate)
    return root_back(marginals_of_trees(name, turned, advice=DIRECTED_ADVICE, validate=validate), root)


def arborescence_entropy(scores: Tensor, *, root: int = 0, validate: bool = True) -> Tensor:
    """Entropy in nats, ``[*batch]``; differentiable.

    >>> arborescence_entropy(torch.zeros(4, 4)).exp()
    tensor(16.0000)
    """
    name = "arborescence_entropy"
    turned = prepare(name, scores, root, validate=validate)
    return entropy_of_trees(name, turned, advice=DIRECTED_ADVICE, validate=validate)


def sample_arborescence(scores: Tensor, noise: Tensor, *, root: int = 0, validate: bool = True) -> Tensor:
    """Draw directed spanning trees exactly, one head after the other by Gumbel-max; never differentiable.

    Args:
        scores: ``[*batch, n, n]``, head by modifier.
        noise: standard Gumbel noise ``[*extra, *batch, n, n]``, of which the diagonal and the root's column are unused.
        root: the node without a head.
        validate: False leaves out the checks that read the numbers.

    Returns:
        z ``[*extra, *batch, n, n]`` with one 1 in each column but the root's.

    >>> sample_arborescence(torch.zeros(2, 2), torch.zeros(2, 2), root=1)
    tensor([[0., 0.],
            [1., 0.]])
    """
    name = "sample_arborescence"
    turned = prepare(name, scores, root, validate=validate)
    return root_back(draw(name, turned, root_first(noise, root), advice=DIRECTED_ADVICE, validate=validate), root)


def enumerate_arborescences(
    n: int, *, root: int = 0, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Tensor:
    """Every directed spanning tree with that root, ``[n^(n − 2), n, n]``; n at most 8.

    The undirected ones in their order, all edges pointed away from the root.

    >>> enumerate_arborescences(2, root=1).tolist()
    [[[0.0, 0.0], [1.0, 0.0]]]
    """
    if not 0 <= root < n:
        raise ValueError(f"the root must be one of the n={n} nodes, 0 to {n - 1}, got {root}")
    trees = enumerate_spanning_trees(n, dtype=dtype, device=device)
    trees = trees + trees.mT
    reached = torch.zeros(len(trees), n, dtype=trees.dtype, device=device)
    reached[:, root] = 1.0
    z = torch.zeros_like(trees)
    for _ in range(n - 1):  # one step further from the root each time
        new = trees * reached.unsqueeze(-1) * (1 - reached).unsqueeze(-2)
        z = z + new
        reached = reached + new.sum(-2)
    return z


# ----------------------------------------------------------------------------------------------------------- shared

UNDIRECTED_ADVICE = "the possible edges must join all nodes"
DIRECTED_ADVICE = "every node must be reachable from the root along possible edges"


def check_undirected(name: str, scores: Tensor, *, validate: bool) -> None:
    """Raise a ValueError for scores that no function of undirected trees takes."""
    check_scores(name, scores, "n, n", validate=False)
    check_scores(name, scores.detach().triu(1), "n, n", validate=validate)


def check_directed(name: str, scores: Tensor, root: int, *, validate: bool) -> None:
    """Raise a ValueError for scores or a root that no function of directed trees takes."""
    check_scores(name, scores, "n, n", validate=False)
    n = scores.shape[-1]
    if not 0 <= root < n:
        raise ValueError(f"{name}: the root must be one of the n={n} nodes, 0 to {n - 1}, got {root}")
    if validate:
        unread = torch.eye(n, dtype=torch.bool, device=scores.device)
        unread[:, root] = True
        check_scores(name, scores.detach().masked_fill(unread, 0.0), "n, n", validate=True)


def root_first(matrix: Tensor, root: int) -> Tensor:
    """Nodes renumbered round the circle so that the root is node 0."""
    return matrix.roll((-root, -root), (-2, -1)) if root else matrix


def root_back(matrix: Tensor, root: int) -> Tensor:
    """Undo :func:`root_first`."""
    return matrix.roll((root, root), (-2, -1)) if root else matrix


def symmetric(scores: Tensor) -> Tensor:
    """The upper triangle, mirrored: an undirected problem as a directed one with root 0."""
    upper = scores.triu(1)
    return upper + upper.mT


def directed(scores: Tensor, root: int) -> Tensor:
    """Directed scores with the root as node 0, and 0 for the entries that are not read."""
    unread = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
    unread[:, 0] = True
    return root_first(scores, root).masked_fill(unread, 0.0)


def log_sum_of_trees(scores: Tensor) -> Tensor:
    """log Z of directed trees with root 0 by elimination, the last node first; finite, and very low for Z = 0."""
    weights = finite(scores)
    total = 0.0 * weights[..., 0, 0]  # zeros that belong to the graph of the scores, also where there is one node only
    for k in range(scores.shape[-1] - 1, 0, -1):
        heads = weights[..., :k, k]
        through = log_sum(heads)
        total = total + through
        by_way_of_k = (heads - through.unsqueeze(-1)).unsqueeze(-1) + weights[..., k, None, :k]
        weights = log_add(weights[..., :k, :k], by_way_of_k)
    return total


def prepare(name: str, scores: Tensor, root: int | None, *, validate: bool) -> Tensor:
    """Checked scores with the root as node 0; root None is for undirected trees."""
    if root is None:
        check_undirected(name, scores, validate=validate)
        return symmetric(scores)
    check_directed(name, scores, root, validate=validate)
    return directed(scores, root)


def log_partition_of_trees(name: str, scores: Tensor, *, advice: str, validate: bool) -> Tensor:
    """log Z of directed trees with root 0, checked."""
    total = log_sum_of_trees(scores)
    check_possible(name, is_possible(total.detach()), advice, validate=validate)
    return total.masked_fill(~is_possible(total), -torch.inf).to(scores.dtype)


def marginals_of_trees(name: str, scores: Tensor, *, advice: str, validate: bool) -> Tensor:
    """Marginals of directed trees with root 0: the gradient of log Z, itself differentiable."""

    def log_partition(scores: Tensor) -> tuple[Tensor, Tensor]:
        total = log_sum_of_trees(scores)
        return total.sum(), total

    gradient, total = torch.func.grad(log_partition, has_aux=True)(scores)
    check_possible(name, is_possible(total.detach()), advice, validate=validate)
    assert isinstance(gradient, Tensor)
    return gradient.clamp(0.0, 1.0)  # rounding alone takes it out of this range


def entropy_of_trees(name: str, scores: Tensor, *, advice: str, validate: bool) -> Tensor:
    r"""The entropy of directed trees with root 0, by the same elimination.

    The entropy is :math:`H = X - \langle s, \nabla X\rangle` at X = log Z. Give every logarithm X in the elimination
    its own H: it is 0 for a single score, it adds up where logarithms are added or subtracted, and X = log Σ exp X_i
    has :math:`H = \sum_i p_i (H_i - \log p_i)` with p the softmax of the X_i. The scores themselves never enter, so
    that no digits are lost where they are large.
    """
    weights = finite(scores)
    entropies = torch.zeros_like(weights)
    log_partition = total = 0.0 * weights[..., 0, 0]
    for k in range(scores.shape[-1] - 1, 0, -1):
        heads = weights[..., :k, k]
        through, entropy = log_sum(heads), mixed_entropy(heads, entropies[..., :k, k], -1)
        log_partition, total = log_partition + through, total + entropy
        by_way_of_k = (heads - through.unsqueeze(-1)).unsqueeze(-1) + weights[..., k, None, :k]
        their_entropy = (entropies[..., :k, k] - entropy.unsqueeze(-1)).unsqueeze(-1) + entropies[..., k, None, :k]
        both = torch.stack([weights[..., :k, :k], by_way_of_k])
        entropies = mixed_entropy(both, torch.stack([entropies[..., :k, :k], their_entropy]), 0)
        weights = log_sum(both, 0)
    check_possible(name, is_possible(log_partition.detach()), advice, validate=validate)
    return total.clamp_min(0.0).to(scores.dtype)


def mixed_entropy(scores: Tensor, entropies: Tensor, dim: int) -> Tensor:
    """The entropy of choosing by softmax(scores) and then having the entropy of what was chosen."""
    log_p = log_softmax(scores, dim)
    return (log_p.exp() * (entropies - log_p)).sum(dim)


def draw(name: str, scores: Tensor, noise: Tensor, *, advice: str, validate: bool) -> Tensor:
    """Directed trees with root 0 from Gumbel noise."""
    z = run(choose_all_heads, choose_heads, scores, noise)
    check_possible(name, is_complete(z), advice, validate=validate)
    return z


def is_complete(z: Tensor) -> Tensor:
    """Whether a tree was found: n − 1 edges, where the kernels leave none if there is no tree."""
    return z.sum((-1, -2)) > z.shape[-1] - 1.5


def grow_tree(scores: Tensor, *, validate: bool) -> Tensor:
    """Prim's algorithm from node 0, one node a step in all examples at once."""
    n = scores.shape[-1]
    links = finite(symmetric(scores))
    key = links[..., 0, :].clone()  # the best edge from each node to the tree, and below where it comes from
    source = torch.zeros(key.shape, dtype=torch.long, device=key.device)
    outside = torch.ones(key.shape, dtype=torch.bool, device=key.device)
    outside[..., 0] = False
    lowest = torch.zeros(key.shape[:-1], dtype=key.dtype, device=key.device)
    for _ in range(n - 1):
        best, node = key.masked_fill(~outside, -torch.inf).max(-1, keepdim=True)
        lowest = torch.minimum(lowest, best.squeeze(-1))
        outside = outside.scatter(-1, node, False)
        offered = links.gather(-2, node.unsqueeze(-1).expand(*node.shape, n)).squeeze(-2)
        better = outside & (offered > key)
        key, source = torch.where(better, offered, key), torch.where(better, node, source)
    check_possible("spanning_tree", is_possible(lowest), UNDIRECTED_ADVICE, validate=validate)
    z = torch.zeros_like(scores).scatter(-1, source.unsqueeze(-1), 1.0)
    return (z + z.mT).triu(1)  # node 0 is its own source, on the diagonal
