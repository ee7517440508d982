r"""Pairwise bits by branch and bound: exact, any signs, beyond enumeration; CPU.

With :math:`x = 2z - 1` the score is :math:`\sum_i h_i x_i + \sum_{i<j} J_{ij} x_i x_j` up to a constant, where
:math:`J = W / 4` and :math:`h_i = u_i / 2 + \sum_j J_{ij}`. The variables are put in a fixed order, strongest first,
and the problems on the last 1, 2, …, n of them are solved one after the other, each by depth-first search (Verfaillie,
Lemaître & Schiex, 1996, "Russian doll search"). With variables k..m-1 set, at score v and with the fields
:math:`\delta_i = \sum_{j<m} J_{ij} x_j` on the others, nothing better can follow than

.. math::

    v + \min\Big\{\mathrm{opt}_m + \sum_{i \ge m} |\delta_i|,\;\;
    \sum_{i \ge m} |h_i + \delta_i| + \sum_{m \le i < j} |J_{ij}| \Big\},

where :math:`\mathrm{opt}_m` is the optimum of the problem on the last n - m variables, known by then. A node costs
O(n). Bits whose best value does not depend on the others are fixed beforehand.

The number of nodes grows exponentially, by a factor of about 1.3 for each bit where all scores are standard normal. The
search stops after ``node_limit`` nodes with the best bits found and a bound on what is possible.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from argrad.solvers.compiled import compile_function, prange
from argrad.solvers.pairwise_checks import check_pairwise
from argrad.solvers.pairwise_compiled import pack, run, settle

__all__ = ["NODE_LIMIT", "PairwiseSolution", "pairwise_by_branch_and_bound", "prove_pairwise"]

Array = NDArray[np.float64]

NODE_LIMIT = 10_000_000
"""Nodes that the search may visit for each problem, unless told otherwise: a fraction of a second."""
RESTARTS = 64
"""Random starts of the local search that stands in where the search hit its limit."""
ROUNDING = 4e-15
"""What is better by less than this part of the scores' sum is not better."""


class PairwiseSolution(NamedTuple):
    """The bits that a search found, and what it knows about them."""

    z: Tensor
    """``[*batch, n]``, 0 or 1."""
    value: Tensor
    """The score of z, ``[*batch]``, float64."""
    bound: Tensor
    """No bits score more than this, ``[*batch]``, float64; equal to the value where it is proven."""
    proven: Tensor
    """Whether z is the optimum for certain, up to rounding, ``[*batch]``, bool."""


def pairwise_by_branch_and_bound(
    unary: Tensor, pairwise: Tensor, *, node_limit: int = NODE_LIMIT, validate: bool = True
) -> Tensor:
    """The best bits, any signs, for problems too big to enumerate.

    Where the search hits its limit the best bits found are returned with a warning; :func:`prove_pairwise` says which
    problems that are, and how far from the optimum they may be at most. Among equally good bits any may be returned.

    Args:
        unary: u, ``[*batch, n]``; -inf means that the bit is 0.
        pairwise: W, ``[*batch, n, n]``, of which the upper triangle is read; the two batches broadcast.
        node_limit: nodes that the search may visit for each problem.
        validate: False leaves out the check that reads the numbers.

    Returns:
        z, ``[*batch, n]``, 0 or 1, like ``unary``; never differentiable.

    >>> unary = torch.tensor([1.0, 1.0, -1.0])
    >>> pairwise = torch.tensor([[0.0, -3.0, 2.0], [0.0, 0.0, 0.5], [0.0, 0.0, 0.0]])
    >>> pairwise_by_branch_and_bound(unary, pairwise)
    tensor([1., 0., 1.])
    """
    solution = prove_pairwise(unary, pairwise, node_limit=node_limit, validate=validate)
    open_problems = int((~solution.proven).sum())
    if open_problems:
        gap = (solution.bound - solution.value).max().item()
        warnings.warn(
            f"branch and bound stopped after {node_limit:,} nodes in {open_problems} of {solution.proven.numel()} "
            f"problems of {unary.shape[-1]} bits: the best bits found are used, at most {gap:.3g} below the optimum; "
            "raise node_limit for a proof",
            stacklevel=2,
        )
    return solution.z


def prove_pairwise(
    unary: Tensor, pairwise: Tensor, *, node_limit: int = NODE_LIMIT, validate: bool = True
) -> PairwiseSolution:
    """The best bits with their score, an upper bound on the optimum, and whether the search proved them best.

    Arguments as for :func:`pairwise_by_branch_and_bound`; nothing is warned about.

    >>> solution = prove_pairwise(torch.tensor([1.0, 1.0]), torch.tensor([[0.0, -3.0], [0.0, 0.0]]))
    >>> solution.value.item(), solution.proven.item()
    (1.0, True)
    """
    batch = check_pairwise(unary, pairwise, validate=validate)
    if node_limit < 0:
        raise ValueError(f"node_limit must be 0 or more, got {node_limit}")
    problems = pack(unary, pairwise, batch)
    number, n = problems.unary.shape
    z, value, bound = np.zeros((number, n)), np.zeros(number), np.zeros(number)
    proven = np.zeros(number, np.bool_)
    if number:
        run(compiled_kernel(), number, *problems, node_limit, z, value, bound, proven)
    bound = np.where(proven, value, np.maximum(bound, value))
    return PairwiseSolution(
        torch.from_numpy(z).to(unary.device, unary.dtype).reshape(*batch, n),
        torch.from_numpy(value).to(unary.device).reshape(batch),
        torch.from_numpy(bound).to(unary.device).reshape(batch),
        torch.from_numpy(proven).to(unary.device).reshape(batch),
    )


# --------------------------------------------------------------------------------------------------- compiled by numba


@functools.cache
def compiled_kernel() -> Callable[..., Any]:
    """:func:`solve_all`, compiled."""
    climb_ = compile_function(climb)
    search_ = compile_function(search, climb=climb_)
    solve_ = compile_function(solve, settle=compile_function(settle), search=search_)
    return compile_function(solve_all, parallel=True, solve=solve_, evaluate=compile_function(evaluate))


def solve_all(
    unary: Array,
    pairwise: Array,
    which: NDArray[np.int64],
    limit: int,
    z: Array,
    value: Array,
    bound: Array,
    proven: NDArray[np.bool_],
) -> None:
    """Solve every problem into z, value, bound and proven."""
    for problem in prange(unary.shape[0]):
        u, w, bits = unary[problem], pairwise[which[problem]], z[problem]
        bound[problem], proven[problem] = solve(u, w, limit, bits)
        value[problem] = evaluate(u, w, bits)


def evaluate(unary: Array, pairwise: Array, z: Array) -> float:
    """The score of z by its definition."""
    score = 0.0
    for i in range(z.shape[0]):
        if z[i] > 0:
            score += unary[i]
            for j in range(i + 1, z.shape[0]):
                if z[j] > 0:
                    score += pairwise[i, j]
    return score


def solve(unary: Array, pairwise: Array, limit: int, z: Array) -> tuple[float, bool]:
    """Fill z with the best bits of one problem; returns an upper bound and whether z is proven to be best."""
    n = unary.shape[0]
    u, w = unary.copy(), np.zeros((n, n))
    for i in range(n):
        z[i] = -1.0
        for j in range(i + 1, n):
            w[i, j] = w[j, i] = pairwise[i, j]
    constant = settle(u, w, z)
    index = np.empty(n, np.int64)
    count = 0
    gain = np.empty(n)
    for i in range(n):
        if z[i] < 0:
            index[count] = i
            count += 1
            gain[i] = max(u[i], 0.0)
            for j in range(n):
                if z[j] < 0:
                    gain[i] += max(w[i, j], 0.0)
    if count == 0:
        return constant, True
    # A pair that is repelled by more than either bit can gain is never chosen. How much more does not matter, and
    # cutting it off keeps huge numbers from swallowing the digits of the others. Then to ±1.
    strength = np.empty(count)
    h, coupling = np.empty(count), np.zeros((count, count))
    for a in range(count):
        i = index[a]
        h[a] = u[i] / 2
        constant += u[i] / 2
        for b in range(count):
            if b != a:
                j = index[b]
                coupling[a, b] = max(w[i, j], -2 * min(gain[i], gain[j])) / 4
                h[a] += coupling[a, b]
                constant += coupling[a, b] / 2
    for a in range(count):
        strength[a] = abs(h[a])
        for b in range(count):
            strength[a] += abs(coupling[a, b])
    order = np.empty(count, np.int64)
    for a in range(count):  # sorting by insertion, strongest first
        b = a
        while b > 0 and strength[order[b - 1]] < strength[a]:
            order[b] = order[b - 1]
            b -= 1
        order[b] = a
    sorted_h, sorted_coupling, x = np.empty(count), np.empty((count, count)), np.empty(count)
    for a in range(count):
        sorted_h[a] = h[order[a]]
        for b in range(count):
            sorted_coupling[a, b] = coupling[order[a], order[b]]
    bound, proven = search(sorted_h, sorted_coupling, limit, x)
    for a in range(count):
        z[index[order[a]]] = 1.0 if x[a] > 0 else 0.0
    return bound + constant, proven


def search(h: Array, coupling: Array, limit: int, best: Array) -> tuple[float, bool]:
    """Russian doll search for x = ±1 into ``best``; returns an upper bound and whether it is attained."""
    n = h.shape[0]
    rest = np.zeros(n)  # of a row, |J| to later variables
    inside = np.zeros(n + 1)  # |J| among the last variables
    scale = 0.0
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            rest[i] += abs(coupling[i, j])
        inside[i] = inside[i + 1] + rest[i]
        scale += abs(h[i])
    rounding = ROUNDING * (scale + inside[0])
    optimum = np.zeros(n + 1)
    field = np.zeros((n + 1, n))
    value = np.zeros(n + 1)
    tried = np.zeros(n + 1, np.int64)
    x, g = np.zeros(n), np.zeros(n)
    nodes = 0
    proven = True
    for k in range(n - 1, -1, -1):
        # Starting from the previous optimum, a climb nearly always finds this one; the search then only proves it.
        f = h[k]
        for j in range(k + 1, n):
            f += coupling[k, j] * best[j]
        best[k] = 1.0 if f > 0 else -1.0
        top = climb(h, coupling, k, best, g, rounding)
        p = k
        tried[k] = 0
        while p >= k and proven:
            f = h[p] + field[p, p]
            side = 1.0 if f > 0 else -1.0
            if tried[p] == 2 or (tried[p] == 1 and abs(f) >= rest[p]):
                p -= 1  # both sides are done, or no later variable can make up for the worse one
                continue
            if tried[p] == 1:
                side = -side
            tried[p] += 1
            nodes += 1
            if nodes > limit:
                proven = False
            x[p] = side
            v = value[p] + side * f
            away = together = 0.0
            for j in range(p + 1, n):
                t = field[p, j] + side * coupling[p, j]
                field[p + 1, j] = t
                away += abs(t)
                together += abs(t + h[j])
            if v + min(optimum[p + 1] + away, together + inside[p + 1]) <= top + rounding:
                continue
            if p == n - 1:
                top = v
                for j in range(k, n):
                    best[j] = x[j]
                continue
            p += 1
            value[p] = v
            tried[p] = 0
        # Without a proof, what is known about the variables after k still bounds all of them.
        optimum[k] = top if proven else optimum[k + 1] + abs(h[k]) + rest[k]
    if not proven:
        top = climb(h, coupling, 0, best, g, rounding)
        state = 12345
        for _ in range(RESTARTS):
            for i in range(n):
                state = (state * 1103515245 + 12345) % 2147483648
                x[i] = 1.0 if state > 1073741824 else -1.0
            v = climb(h, coupling, 0, x, g, rounding)
            if v > top:
                top = v
                for i in range(n):
                    best[i] = x[i]
    return optimum[0], proven


def climb(h: Array, coupling: Array, k: int, x: Array, g: Array, rounding: float) -> float:
    """Flip the best of the variables from k on until none improves; returns their score. g is scratch space."""
    n = h.shape[0]
    for i in range(k, n):
        g[i] = h[i]
        for j in range(k, n):
            g[i] += coupling[i, j] * x[j]
    while True:
        flip, most = -1, rounding
        for i in range(k, n):
            if -x[i] * g[i] > most:
                flip, most = i, -x[i] * g[i]
        if flip < 0:
            break
        x[flip] = -x[flip]
        for j in range(k, n):
            g[j] += 2 * coupling[flip, j] * x[flip]
    score = 0.0
    for i in range(k, n):
        score += x[i] * (g[i] + h[i]) / 2
    return score
