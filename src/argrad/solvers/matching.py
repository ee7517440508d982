r"""Permutations: the best assignment of n rows to n columns, and exact inference over all of them.

**Structures**: permutation matrices z, ``[*batch, n, n]``, z[r, c] = 1 where row r gets column c; there are n!.
**Score**: the sum of the chosen entries, :math:`\langle h, z\rangle`.
**Law**: :math:`p(z) = e^{\langle h, z\rangle} / Z`, where Z is the permanent of :math:`e^h`. Inference assigns row
after row and remembers only which columns are taken. With the first \|S\| rows on the columns S, the sum over all
ways to assign the others is

.. math:: V(S) = \sum_{c \notin S} e^{h_{|S|, c}} V(S \cup \{c\}), \qquad V(\text{all}) = 1, \qquad Z = V(\emptyset),

kept as logarithms: 2^n numbers, no term of which is ever subtracted (Ryser's formula for the permanent alternates in
sign and loses its digits). Row \|S\| takes column c with probability :math:`e^{h_{|S|, c}} V(S \cup \{c\}) / V(S)`;
sampling, marginals and entropy follow from these conditionals. With the maximum in place of the sum the same recursion
is a solver that runs on the GPU.

**Cost**: O(n³) a problem for the arg max on the CPU (shortest augmenting paths, compiled by numba, the batch divided
among the cores; CUDA tensors are copied there and back); O(n 2^n) time and memory a problem for everything else, as n
steps vectorised over the batch, up to n = 16. Those are plain torch: they run on any device, under vmap, and with
``validate=False`` wait for nothing once the index tables for n are on the device (the first call puts them there).

References: R. Jonker & A. Volgenant (1987), "A shortest augmenting path algorithm for dense and sparse linear
assignment problems", Computing 38; M. Held & R. M. Karp (1962) for recursions over subsets; G. Mena, D. Belanger, S.
Linderman & J. Snoek (2018), "Learning latent permutations with Gumbel-Sinkhorn networks", ICLR.
"""

import functools
import itertools
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from argrad.solvers.checks import check_possible, check_scores, worth_keeping
from argrad.solvers.compiled import has_numba, prange, run
from argrad.solvers.log_space import finite, impossible, is_possible, log_softmax, log_sum, softmax

__all__ = [
    "enumerate_permutations",
    "matching",
    "permutation_entropy",
    "permutation_log_partition",
    "permutation_marginals",
    "sample_permutation",
    "sinkhorn",
]

MAX_ROWS = 16
"""Largest n for the recursion over subsets: at 16 it takes 4 MiB a problem in float32."""
MAX_ROWS_ON_DEVICE = 10
"""Largest n for which a matching on the GPU is found there rather than on the CPU."""
MAX_ROWS_LISTED = 9
"""Largest n that :func:`enumerate_permutations` lists."""


def matching(scores: Tensor, *, method: Literal["auto", "numba", "torch"] = "auto", validate: bool = True) -> Tensor:
    """The permutation with the largest sum of scores (linear assignment); never differentiable.

    Args:
        scores: ``[*batch, n, n]``; ``-inf`` is a pair that may not be matched.
        method: "numba" is O(n³) on the CPU; "torch" is O(n 2^n) on the tensor's own device, up to n = 16. "auto" takes
            "torch" on a GPU up to n = 10 or where numba is not installed.
        validate: False leaves out the checks that read the numbers; where no permutation is possible, "numba" then
            returns zeros and "torch" any permutation.

    Returns:
        Permutation matrices z ``[*batch, n, n]``. Among equal scores any may win.

    >>> matching(torch.tensor([[3.0, 2.0], [2.5, 0.0]]))
    tensor([[0., 1.],
            [1., 0.]])
    """
    if method not in ("auto", "numba", "torch"):
        raise ValueError(f'method must be "auto", "numba" or "torch", got {method!r}')
    check_scores("matching", scores, "n, n", validate=validate)
    n = scores.shape[-1]
    if method == "auto":
        on_device = scores.is_cuda and n <= MAX_ROWS_ON_DEVICE
        method = "torch" if n <= MAX_ROWS and (on_device or not has_numba()) else "numba"
    if method == "torch":
        return best_by_subsets(scores.detach(), validate=validate)
    z = run(assign_all, assign, scores)
    check_possible("matching", z.sum((-1, -2)) > n - 0.5, ADVICE, validate=validate)
    return z


def permutation_log_partition(scores: Tensor, *, validate: bool = True) -> Tensor:
    r"""log Z, the logarithm of the permanent of exp(scores); differentiable, its gradient is the marginals.

    Args:
        scores: ``[*batch, n, n]``, n at most 16.
        validate: False leaves out the checks that read the numbers; an empty support is then −inf.

    Returns:
        ``[*batch]``.

    >>> permutation_log_partition(torch.zeros(4, 4)).exp()
    tensor(24.0000)
    """
    choices = conditionals("permutation_log_partition", scores, validate=validate)
    total = log_sum(choices[0].squeeze(-2))
    return total.masked_fill(~is_possible(total), -torch.inf).to(scores.dtype)


def permutation_marginals(scores: Tensor, *, validate: bool = True) -> Tensor:
    """The probability of each pair to be matched, ``[*batch, n, n]``, doubly stochastic; differentiable.

    >>> permutation_marginals(torch.tensor([[0.0, 0.0], [-torch.inf, 0.0]]))
    tensor([[1., 0.],
            [0., 1.]])
    """
    choices = conditionals("permutation_marginals", scores, validate=validate)
    levels = tables(scores.shape[-1], scores)
    marginals = []
    state = torch.ones_like(choices[0][..., 0])
    for choice, level in zip(choices, levels, strict=True):
        taken = state.unsqueeze(-1) * softmax(choice)
        marginals.append(taken.sum(-2))
        state = advance(taken, level)
    return torch.stack(marginals, -2).to(scores.dtype)


def permutation_entropy(scores: Tensor, *, validate: bool = True) -> Tensor:
    """Entropy in nats, ``[*batch]``; differentiable.

    By the chain rule it is the expected sum of the entropies of the rows' choices, all of them ≥ 0.

    >>> permutation_entropy(torch.zeros(4, 4)).exp()
    tensor(24.0000)
    """
    choices = conditionals("permutation_entropy", scores, validate=validate)
    levels = tables(scores.shape[-1], scores)
    state = torch.ones_like(choices[0][..., 0])
    entropy = state.new_zeros(scores.shape[:-2])
    for choice, level in zip(choices, levels, strict=True):
        log_p = log_softmax(choice)
        p = log_p.exp()
        entropy = entropy - (state * (p * log_p).sum(-1)).sum(-1)
        state = advance(state.unsqueeze(-1) * p, level)
    return entropy.to(scores.dtype)


def sample_permutation(scores: Tensor, noise: Tensor, *, validate: bool = True) -> Tensor:
    """Draw permutations exactly, row by row, each by Gumbel-max given the columns already taken; no gradient.

    Args:
        scores: ``[*batch, n, n]``, n at most 16.
        noise: standard Gumbel noise ``[*extra, *batch, n, n]``.
        validate: False leaves out the checks that read the numbers.

    Returns:
        Permutation matrices z ``[*extra, *batch, n, n]``.

    >>> sample_permutation(torch.zeros(2, 2), torch.tensor([[0.0, 1.0], [0.0, 9.0]]))
    tensor([[0., 1.],
            [1., 0.]])
    """
    with torch.no_grad():
        choices = conditionals("sample_permutation", scores, validate=validate)
        n = scores.shape[-1]
        lead = torch.broadcast_shapes(noise.shape[:-2], scores.shape[:-2])
        noise = noise.expand(*lead, n, n)
        state = torch.zeros((*lead, 1), dtype=torch.long, device=scores.device)
        columns = []
        for r, (choice, level) in enumerate(zip(choices, tables(n, scores), strict=True)):
            here = state.unsqueeze(-1).expand(*lead, 1, n)
            given = choice.expand(*lead, *choice.shape[-2:]).gather(-2, here).squeeze(-2)
            columns.append((given + noise[..., r, :]).argmax(-1, keepdim=True))
            state = level.after[state.squeeze(-1)].gather(-1, columns[-1])
        return permutation_matrix(torch.cat(columns, -1), scores)


def sinkhorn(
    scores: Tensor, temperature: Tensor | float = 1.0, *, iterations: int = 20, validate: bool = True
) -> Tensor:
    r"""The Sinkhorn operator: :math:`e^{h / \tau}` with rows and columns scaled in turn to sum to 1; differentiable.

    As the temperature goes to 0 it goes to :func:`matching`, and on scores with Gumbel noise it is the Gumbel-Sinkhorn
    relaxation. It is neither a sample nor the marginals of the law above. Columns come last: they sum to 1 exactly,
    rows as far as the iterations have got; at low temperatures more of them are needed.

    Args:
        scores: ``[*batch, n, n]``; ``-inf`` stays 0.
        temperature: τ > 0, a number or a tensor that broadcasts to the scores.
        iterations: how often both are scaled.
        validate: False leaves out the check that reads the scores.

    Returns:
        ``[*batch, n, n]``.

    >>> sinkhorn(torch.tensor([[1.0, 0.0], [0.0, 0.0]])).sum(-2)
    tensor([1., 1.])
    """
    check_scores("sinkhorn", scores, "n, n", validate=validate)
    if iterations < 1:
        raise ValueError(f"sinkhorn needs at least one iteration, got {iterations}")
    # The clamp after the division too: a small temperature makes the stand-in for -inf overflow.
    log_z = finite(finite(scores) / temperature)
    open_rows, open_columns = ((scores > -torch.inf).any(dim).all(-1) for dim in (-1, -2))
    check_possible("sinkhorn", open_rows & open_columns, ADVICE, validate=validate)
    for _ in range(iterations):
        log_z = log_z - log_sum(log_z, -1).unsqueeze(-1)
        log_z = log_z - log_sum(log_z, -2).unsqueeze(-2)
    return log_z.exp().to(scores.dtype)


def enumerate_permutations(
    n: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Tensor:
    """Every permutation matrix, ``[n!, n, n]``, in the order of ``itertools.permutations``; n at most 9.

    >>> enumerate_permutations(2).tolist()
    [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]]
    """
    if not 1 <= n <= MAX_ROWS_LISTED:
        raise ValueError(f"enumerate_permutations lists those of 1 to {MAX_ROWS_LISTED} rows, got n={n}")
    like = torch.empty(0, n, dtype=dtype, device=device)
    return permutation_matrix(permutations(n, like), like)


def permutations(n: int, like: Tensor) -> Tensor:
    """The columns of every permutation, ``[n!, n]``, on the device of another tensor."""
    make = kept_permutations if worth_keeping(like) else new_permutations
    return make(n, like.device)


def new_permutations(n: int, device: torch.device) -> Tensor:
    """List them."""
    with torch.inference_mode(False):  # else a first call in inference mode would spoil them for autograd
        return torch.tensor(list(itertools.permutations(range(n))), device=device)


kept_permutations = functools.lru_cache(maxsize=4)(new_permutations)


# ---------------------------------------------------------------------------------------------------- the recursion

ADVICE = "leave at least one way to match every row with a column of its own"


class Level(NamedTuple):
    """The subsets S of r columns, numbered in the order of ``itertools.combinations``, and where each column leads."""

    after: Tensor
    """``[C(n, r), n]``: the number of S ∪ {c} among the subsets of r + 1 columns, or C(n, r + 1) where c is in S."""
    before: Tensor
    """``[C(n, r + 1), r + 1]``: for each subset of r + 1 columns the places S * n + c that lead to it."""


def tables(n: int, like: Tensor) -> tuple[Level, ...]:
    """The n levels of the recursion, the last of which leads to the full set, on the device of another tensor."""
    make = kept_tables if worth_keeping(like) else new_tables
    return make(n, like.device)


def new_tables(n: int, device: torch.device) -> tuple[Level, ...]:
    """Put them on the device; on the CPU they share their memory with what is kept."""
    with torch.inference_mode(False):  # else a first call in inference mode would spoil the tables for autograd
        return tuple(Level(*(torch.from_numpy(places).to(device) for places in level)) for level in places_of(n))


kept_tables = functools.cache(new_tables)


@functools.cache
def places_of(n: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The numbers of :class:`Level`, level by level."""
    if n > MAX_ROWS:
        raise ValueError(
            f"exact inference over permutations needs n at most {MAX_ROWS}, got n={n}; for larger n use samples of "
            "perturbed matchings"
        )
    levels = []
    for r in range(n):
        subsets = list(itertools.combinations(range(n), r))
        number = {subset: i for i, subset in enumerate(itertools.combinations(range(n), r + 1))}
        after = [
            [len(number) if c in subset else number[tuple(sorted((*subset, c)))] for c in range(n)]
            for subset in subsets
        ]
        index = {subset: i for i, subset in enumerate(subsets)}
        before = [[index[larger[:i] + larger[i + 1 :]] * n + larger[i] for i in range(r + 1)] for larger in number]
        levels.append((np.array(after, np.int64), np.array(before, np.int64)))
    return levels


def conditionals(name: str, scores: Tensor, *, validate: bool) -> list[Tensor]:
    """For each row the unnormalised log-probability of each column given the set of columns taken.

    Returns:
        n tensors, row r's ``[*batch, C(n, r), n]``.
    """
    check_scores(name, scores, "n, n", validate=validate)
    levels = tables(scores.shape[-1], scores)
    scores = finite(scores)
    nowhere = scores.new_full((*scores.shape[:-2], 1), impossible(scores.dtype))
    value = torch.zeros_like(nowhere)  # of the full set
    result = []
    for r in reversed(range(len(levels))):
        values = torch.cat([value, nowhere], -1)
        result.append(scores[..., r, None, :] + values[..., levels[r].after])
        value = log_sum(result[-1])
    check_possible(name, is_possible(value.detach().squeeze(-1)), ADVICE, validate=validate)
    return result[::-1]


def advance(taken: Tensor, level: Level) -> Tensor:
    """The probability of each larger set of columns, from that of each set and column."""
    return taken.flatten(-2)[..., level.before].sum(-1)


def best_by_subsets(scores: Tensor, *, validate: bool) -> Tensor:
    """The recursion over subsets with the maximum in place of the sum, then the path of the best choices."""
    levels = tables(scores.shape[-1], scores)
    possible = finite(scores)
    nowhere = possible.new_full((*scores.shape[:-2], 1), -torch.inf)  # lower than any pair, impossible ones included
    value = torch.zeros_like(nowhere)
    choices = []
    for r in reversed(range(len(levels))):
        values = torch.cat([value, nowhere], -1)
        value, choice = (possible[..., r, None, :] + values[..., levels[r].after]).max(-1)
        choices.append(choice)
    check_possible("matching", is_possible(value.squeeze(-1)), ADVICE, validate=validate)
    state = torch.zeros((*scores.shape[:-2], 1), dtype=torch.long, device=scores.device)
    columns = []
    for choice, level in zip(reversed(choices), levels, strict=True):
        columns.append(choice.gather(-1, state))
        state = level.after[state.squeeze(-1)].gather(-1, columns[-1])
    return permutation_matrix(torch.cat(columns, -1), scores)


def permutation_matrix(columns: Tensor, like: Tensor) -> Tensor:
    """The matrix of a permutation given as the column of each row, ``[*batch, n]``, in the dtype of another tensor."""
    zeros = torch.zeros((*columns.shape, columns.shape[-1]), dtype=like.dtype, device=like.device)
    return zeros.scatter(-1, columns.unsqueeze(-1), 1.0)


# ------------------------------------------------------------------------------------------------------ the kernel


def assign_all(scores: NDArray[np.float64], z: NDArray[np.float64]) -> None:
    """:func:`assign` for each problem."""
    for problem in prange(len(z)):
        assign(scores[problem], z[problem])


def assign(scores: NDArray[np.float64], z: NDArray[np.float64]) -> None:
    """Shortest augmenting paths with prices (Jonker & Volgenant), O(n³); z is left at 0 where nothing is possible.

    The invariant is that of linear programming: profit(r) + price(c) ≥ scores[r, c] for all pairs, with equality for
    the matched ones, so that a complete matching is optimal. Rows are matched one at a time along the path of least
    total slack from the new row to a free column; a Dijkstra search finds it and tells how to change the prices.
    """
    n = scores.shape[0]
    profit, price = np.zeros(n), np.zeros(n)
    row_of, came_from = np.full(n, -1), np.empty(n, np.int64)  # by column: its row; the column before it on the path
    slack, seen = np.empty(n), np.empty(n, np.bool_)
    z[:] = 0.0
    for new_row in range(n):
        slack[:] = np.inf
        seen[:] = False
        row, column, distance = new_row, -1, 0.0
        while True:
            nearest, least = -1, np.inf
            for c in range(n):
                if not seen[c]:
                    reach = distance + (profit[row] + price[c] - scores[row, c])
                    if reach < slack[c]:
                        slack[c] = reach
                        came_from[c] = column
                    if slack[c] < least:
                        least = slack[c]
                        nearest = c
            if nearest < 0:  # every remaining pair is impossible
                return
            column, distance = nearest, least
            seen[column] = True
            if row_of[column] < 0:
                break
            row = row_of[column]
        # Lower the profits and raise the prices of what was reached so that the whole path becomes tight.
        profit[new_row] -= distance
        for c in range(n):
            if seen[c] and c != column:
                profit[row_of[c]] -= distance - slack[c]
                price[c] += distance - slack[c]
        while column >= 0:
            before = came_from[column]
            row_of[column] = new_row if before < 0 else row_of[before]
            column = before
    for c in range(n):
        z[row_of[c], c] = 1.0
