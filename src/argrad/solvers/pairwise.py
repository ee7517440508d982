r"""Pairwise bits: maximise :math:`\sum_i u_i z_i + \sum_{i<j} W_{ij} z_i z_j` over :math:`z \in \{0, 1\}^n`.

This is quadratic binary optimisation, NP-hard for general signs. :func:`solve_pairwise` chooses among the solvers, by
signs, size and device:

==============================  ====================================  ====================================
solver                          exact                                 cost for one problem
==============================  ====================================  ====================================
``"enumeration"``               always, n ≤ 26                        n/2 · 2^n, in matrix products
``"max-flow"``                  where no pairwise score is negative   n³
``"branch-and-bound"``          where it says so                      exponential, to a limit of nodes
``"local-search"``              never for certain                     n² for each start
==============================  ====================================  ====================================
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from argrad.solvers.checks import can_read_values
from argrad.solvers.compiled import has_numba
from argrad.solvers.pairwise_branch_and_bound import pairwise_by_branch_and_bound
from argrad.solvers.pairwise_checks import check_pairwise, working_dtype
from argrad.solvers.pairwise_enumeration import MAX_BITS, exact_product, pairwise_by_enumeration
from argrad.solvers.pairwise_local_search import pairwise_by_local_search_from_fixed_starts
from argrad.solvers.pairwise_max_flow import pairwise_by_max_flow

__all__ = ["PairwiseSolver", "PairwiseSolverName", "choose_pairwise_solver", "pairwise_score", "solve_pairwise"]

PairwiseSolver = Callable[[Tensor, Tensor], Tensor]
"""Takes unary scores ``[*batch, n]`` and pairwise scores ``[*batch, n, n]``, returns bits ``[*batch, n]``."""
PairwiseSolverName = Literal["auto", "enumeration", "branch-and-bound", "max-flow", "local-search"]
"""The names that :func:`solve_pairwise` knows."""

NAMED: dict[str, Callable[..., Tensor]] = {
    "enumeration": pairwise_by_enumeration,
    "branch-and-bound": pairwise_by_branch_and_bound,
    "max-flow": pairwise_by_max_flow,
    "local-search": pairwise_by_local_search_from_fixed_starts,
}
GPU_BITS = 20
"""Up to so many bits a GPU enumerates; beyond, exact solvers on the CPU are quicker."""
TINY_BITS = 4
"""Up to so many bits the CPU enumerates too: calling a compiled solver takes longer."""


def solve_pairwise(
    unary: Tensor,
    pairwise: Tensor,
    solver: PairwiseSolverName | PairwiseSolver = "auto",
    *,
    validate: bool = True,
) -> Tensor:
    """The best bits, by the solver that suits the problems, a named one, or your own.

    "auto" is exact, or warns where the limit of branch and bound left a proof open. It enumerates up to 20 bits on a
    GPU, and wherever numbers cannot be read (compiling, capturing a CUDA graph, vmap). Elsewhere it uses max-flow
    where no pairwise score is negative, and branch and bound otherwise; both run on the CPU.

    Args:
        unary: u, ``[*batch, n]``; -inf means that the bit is 0.
        pairwise: W, ``[*batch, n, n]``, of which the upper triangle is read; the two batches broadcast.
        solver: "auto", "enumeration", "branch-and-bound", "max-flow", "local-search", or a function that takes unary
            scores ``[*batch, n]`` and pairwise scores ``[*batch, n, n]`` (of which it reads the upper triangle) and
            returns bits ``[*batch, n]``. It is called with batches that may still have to broadcast.
        validate: False leaves out the checks that read the numbers.

    Returns:
        z, ``[*batch, n]``, 0 or 1, like ``unary``; never differentiable.

    >>> unary = torch.tensor([1.0, 1.0, -1.0])
    >>> pairwise = torch.tensor([[0.0, -3.0, 2.0], [0.0, 0.0, 0.5], [0.0, 0.0, 0.0]])
    >>> solve_pairwise(unary, pairwise)
    tensor([1., 0., 1.])
    """
    if not callable(solver):
        if solver != "auto" and solver not in NAMED:
            raise ValueError(f"solver must be 'auto', {', '.join(map(repr, NAMED))} or a function, got {solver!r}")
        check_pairwise(unary, pairwise, validate=validate)
        name = choose_pairwise_solver(unary, pairwise) if solver == "auto" else solver
        # Checked once already, but for the signs that max-flow needs.
        return NAMED[name](unary, pairwise, validate=validate and solver == "max-flow")
    batch = check_pairwise(unary, pairwise, validate=validate)
    with torch.no_grad():
        z = solver(unary.detach(), pairwise.detach())
    shape = (*batch, unary.shape[-1])
    if not isinstance(z, Tensor) or tuple(z.shape) != shape:
        given = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
        raise ValueError(f"the solver must return a tensor of bits of shape {shape}, got {given}")
    if validate and can_read_values(z) and not bool(((z == 0) | (z == 1)).all()):
        raise ValueError("the solver must return bits, 0 or 1; round what it found")
    return z.to(unary.device, unary.dtype)


def choose_pairwise_solver(unary: Tensor, pairwise: Tensor) -> PairwiseSolverName:
    """The name of the solver that "auto" stands for on these problems.

    Where numbers can be read and sizes leave a choice, the signs of the pairwise scores are looked at.
    """
    n = unary.shape[-1]
    readable = can_read_values(unary) and can_read_values(pairwise)
    if n <= TINY_BITS or (unary.device.type != "cpu" and n <= GPU_BITS):
        return "enumeration"
    if not readable:
        if n <= MAX_BITS:
            return "enumeration"
        raise ValueError(
            f"{n} bits cannot be solved exactly while compiling, capturing a CUDA graph or under vmap, where at most "
            f"{MAX_BITS} are enumerated; use solver='local-search', a heuristic, or solve outside"
        )
    if not has_numba():
        if n <= MAX_BITS:
            return "enumeration"
        raise ImportError(
            f"{n} bits need the solvers compiled with numba, which is not installed: pip install numba, or use "
            "solver='local-search', a heuristic"
        )
    if pairwise.numel() == 0 or pairwise.detach().triu(1).min().item() >= 0:
        return "max-flow"
    return "branch-and-bound"


def pairwise_score(unary: Tensor, pairwise: Tensor, z: Tensor) -> Tensor:
    """The score of bits, ``[*extra, *batch]``, differentiable in unary and pairwise; costs n².

    Args:
        unary: u, ``[*batch, n]``.
        pairwise: W, ``[*batch, n, n]``, of which the upper triangle is read.
        z: ``[*extra, *batch, n]``.

    >>> pairwise_score(torch.tensor([1.0, 2.0]), torch.tensor([[0.0, 5.0], [0.0, 0.0]]), torch.tensor([1.0, 1.0]))
    tensor(8.)
    """
    with torch.autocast(unary.device.type, enabled=False):
        dtype = working_dtype(unary, pairwise)
        pairs = exact_product(z.to(dtype).unsqueeze(-2), pairwise.to(dtype).triu(1)).squeeze(-2)
        return torch.where(z > 0, unary + pairs, 0.0).sum(-1)
