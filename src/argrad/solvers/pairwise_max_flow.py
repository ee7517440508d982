r"""Pairwise bits that only attract each other, by maximum flow: exact, polynomial time; CPU.

With W ≥ 0 the score is supermodular, and its maximum is a minimum cut (Picard & Ratliff, 1975; Kolmogorov & Zabih,
2004). Since :math:`z_i z_j = (z_i + z_j)/2 - |z_i - z_j|/2`,

.. math::

    \max_z \sum_i u_i z_i + \sum_{i<j} W_{ij} z_i z_j
    = \sum_i c_i^+ - \min_z \Big[ \sum_i c_i^+ (1 - z_i) + \sum_i c_i^- z_i + \sum_{i<j} \tfrac12 W_{ij} |z_i - z_j|
    \Big],

:math:`c_i = u_i + \frac12 \sum_j W_{ij}`: node i is joined to the source by :math:`c_i^+` or to the sink by
:math:`c_i^-`, and to j by :math:`\frac12 W_{ij}` both ways. The flow is found by push and relabel (Goldberg & Tarjan,
1988) on the dense matrix, O(n³) for each problem: excess is pushed towards the sink until none can get there; what can
still reach the sink is 0, all else is 1. Pushes take a minimum of two numbers away from both, so one of them becomes
exactly zero and no tolerance is needed with floating-point capacities.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from argrad.solvers.compiled import compile_function, prange
from argrad.solvers.pairwise_checks import check_pairwise
from argrad.solvers.pairwise_compiled import Problems, pack, run, settle

__all__ = ["pairwise_by_max_flow", "pairwise_by_pymaxflow"]

Array = NDArray[np.float64]


def pairwise_by_max_flow(unary: Tensor, pairwise: Tensor, *, validate: bool = True) -> Tensor:
    """The best bits where no pairwise score is negative: exact, in time O(n³) for each problem.

    Among equally good bits any may be returned.

    Args:
        unary: u, ``[*batch, n]``; -inf means that the bit is 0.
        pairwise: W ≥ 0, ``[*batch, n, n]``, of which the upper triangle is read; the two batches broadcast.
        validate: False leaves out the checks that read the numbers; negative pairwise scores then make the result
            meaningless.

    Returns:
        z, ``[*batch, n]``, 0 or 1, like ``unary``; never differentiable.

    >>> unary = torch.tensor([[-2.0, -2.0, 1.0], [-2.0, -3.0, 1.0]])
    >>> pairwise = torch.tensor([[0.0, 2.5, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    >>> pairwise_by_max_flow(unary, pairwise)
    tensor([[1., 1., 1.],
            [0., 0., 1.]])
    """
    problems, batch = attractive_problems(unary, pairwise, validate=validate)
    z = np.zeros_like(problems.unary)
    if len(z):
        run(compiled_kernel(), len(z), *problems, z)
    return torch.from_numpy(z).to(unary.device, unary.dtype).reshape(*batch, unary.shape[-1])


def pairwise_by_pymaxflow(unary: Tensor, pairwise: Tensor, *, validate: bool = True) -> Tensor:
    """As :func:`pairwise_by_max_flow`, by PyMaxflow, one problem at a time.

    PyMaxflow is under the GPL and is never used unless this function is called; ``pip install argrad[maxflow]``.
    """
    try:
        maxflow = importlib.import_module("maxflow")
    except ImportError as error:
        raise ImportError(
            "PyMaxflow is not installed: pip install 'argrad[maxflow]' (it is under the GPL); pairwise_by_max_flow "
            "does the same without it"
        ) from error
    problems, batch = attractive_problems(unary, pairwise, validate=validate)
    number, n = problems.unary.shape
    rows, columns = np.triu_indices(n, 1)
    z = np.zeros((number, n))
    for problem in range(number):
        half = problems.pairwise[problems.which[problem]][rows, columns] / 2
        c = np.maximum(problems.unary[problem], -4 * half.sum() - 1)
        c += np.bincount(rows, half, n) + np.bincount(columns, half, n)
        graph = maxflow.Graph[float](n, len(rows))
        nodes = graph.add_nodes(n)
        graph.add_edges(rows, columns, half, half)
        graph.add_grid_tedges(nodes, np.maximum(c, 0), np.maximum(-c, 0))
        graph.maxflow()
        z[problem] = 1 - graph.get_grid_segments(nodes)
    return torch.from_numpy(z).to(unary.device, unary.dtype).reshape(*batch, n)


def attractive_problems(unary: Tensor, pairwise: Tensor, *, validate: bool) -> tuple[Problems, torch.Size]:
    """The problems as arrays and the shape of their batch, or a ValueError if a pairwise score is negative."""
    batch = check_pairwise(unary, pairwise, validate=validate)
    if validate and pairwise.numel():
        lowest = pairwise.detach().triu(1).min().item()
        if lowest < 0:
            raise ValueError(
                f"max-flow needs pairwise scores of at least 0, got {lowest:.6g}; for scores of any sign use "
                "pairwise_by_branch_and_bound, pairwise_by_enumeration or solver='auto'"
            )
    return pack(unary, pairwise, batch), batch


# --------------------------------------------------------------------------------------------------- compiled by numba


@functools.cache
def compiled_kernel() -> Callable[..., Any]:
    """:func:`solve_all`, compiled."""
    cut_ = compile_function(cut, measure=compile_function(measure))
    solve_ = compile_function(solve, settle=compile_function(settle), cut=cut_)
    return compile_function(solve_all, parallel=True, solve=solve_)


def solve_all(unary: Array, pairwise: Array, which: NDArray[np.int64], z: Array) -> None:
    """Solve every problem into z."""
    for problem in prange(unary.shape[0]):
        solve(unary[problem], pairwise[which[problem]], z[problem])


def solve(unary: Array, pairwise: Array, z: Array) -> None:
    """Fill z with the best bits of one problem."""
    n = unary.shape[0]
    u, w = unary.copy(), np.zeros((n, n))
    for i in range(n):
        z[i] = -1.0
        for j in range(i + 1, n):
            w[i, j] = w[j, i] = pairwise[i, j]
    settle(u, w, z)
    index = np.empty(n, np.int64)
    count = 0
    for i in range(n):
        if z[i] < 0:
            index[count] = i
            count += 1
    if count == 0:
        return
    excess, capacity = np.empty(count), np.empty((count, count))
    for a in range(count):
        excess[a] = u[index[a]]
        for b in range(count):
            capacity[a, b] = w[index[a], index[b]] / 2
            excess[a] += capacity[a, b]
    level = cut(excess, capacity)
    for a in range(count):
        z[index[a]] = 1.0 if level[a] >= count else 0.0


def cut(excess: Array, capacity: Array) -> NDArray[np.int64]:
    """Push excess to nodes with a deficit until no more can get there; returns the distance to the deficits left.

    It is n where there is no way. ``excess`` is negative where a node is joined to the sink; both arguments are changed
    to what remains.
    """
    n = excess.shape[0]
    level, queue = np.empty(n, np.int64), np.empty(n, np.int64)
    waiting = np.zeros(n, np.bool_)
    measure(excess, capacity, level, queue)
    active = np.empty(n, np.int64)  # a ring of nodes with excess that may still get somewhere
    head = size = 0
    for i in range(n):
        if excess[i] > 0 and level[i] < n:
            active[size] = i
            waiting[i] = True
            size += 1
    lifted = 0
    while size > 0:
        i = active[head]
        head = head + 1 if head + 1 < n else 0
        size -= 1
        waiting[i] = False
        while excess[i] > 0 and level[i] < n:
            lowest = n
            for j in range(n):
                if capacity[i, j] > 0:
                    if level[j] < level[i]:
                        pushed = min(excess[i], capacity[i, j])
                        capacity[i, j] -= pushed
                        capacity[j, i] += pushed
                        excess[i] -= pushed
                        excess[j] += pushed
                        if excess[j] > 0 and not waiting[j]:
                            place = head + size if head + size < n else head + size - n
                            active[place] = j
                            waiting[j] = True
                            size += 1
                        if excess[i] == 0:
                            break
                    if capacity[i, j] > 0:
                        lowest = min(lowest, level[j])
            if excess[i] > 0:
                level[i] = min(n, lowest + 1)
                lifted += 1
        if lifted > n:  # distances have grown stale: measuring them anew saves many small lifts
            lifted = 0
            measure(excess, capacity, level, queue)
    measure(excess, capacity, level, queue)
    return level


def measure(excess: Array, capacity: Array, level: NDArray[np.int64], queue: NDArray[np.int64]) -> None:
    """The number of steps from each node to the nearest deficit along arcs with capacity left; n if there is no way."""
    n = excess.shape[0]
    found = 0
    for i in range(n):
        level[i] = n
        if excess[i] < 0:
            level[i] = 0
            queue[found] = i
            found += 1
    done = 0
    while done < found:
        j = queue[done]
        done += 1
        for i in range(n):
            if level[i] == n and capacity[i, j] > 0:
                level[i] = level[j] + 1
                queue[found] = i
                found += 1
