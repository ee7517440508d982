r"""Pairwise bits by local search: a heuristic without any guarantee, for sizes beyond proof; CPU and GPU.

From many random starts at once, flip the bit that improves the score :math:`s(z)` most until no flip does:

.. math:: s(z \oplus i) - s(z) = (1 - 2 z_i)\Big(u_i + \sum_j W_{ij} z_j\Big).

The best of the local optima is returned. A flip costs O(n) for each start, and about n/2 flips are needed. All starts
of all problems take each step together.

:func:`pairwise_by_local_search` draws its starts. A latent has to get the same answer for the same scores, so
``solver="local-search"`` stands for :func:`pairwise_by_local_search_from_fixed_starts`.
"""

import torch
from torch import Tensor

from argrad.solvers.checks import can_read_values
from argrad.solvers.pairwise_checks import check_pairwise, working_dtype

__all__ = ["pairwise_by_local_search", "pairwise_by_local_search_from_fixed_starts"]

STARTS = 64
"""Starts for each problem, unless told otherwise."""

LOOK_EVERY = 8
"""Steps between two looks whether anything still improves: a look waits for the GPU."""


def pairwise_by_local_search(
    unary: Tensor,
    pairwise: Tensor,
    *,
    starts: int = STARTS,
    steps: int | None = None,
    generator: torch.Generator | None = None,
    validate: bool = True,
) -> Tensor:
    """Good bits, not always the best: the best of many one-flip local optima.

    Args:
        unary: u, ``[*batch, n]``; -inf means that the bit is 0.
        pairwise: W, ``[*batch, n, n]``, of which the upper triangle is read; the two batches broadcast.
        starts: the number of starts: all zeros, and random bits.
        steps: flips for each start at most; 4 n unless given. While a CUDA graph is captured or code is compiled all of
            them are taken, else the search ends when nothing improves.
        generator: where the random starts come from.
        validate: False leaves out the check that reads the numbers.

    Returns:
        z, ``[*batch, n]``, 0 or 1, like ``unary``; never differentiable.

    >>> unary, pairwise = torch.tensor([1.0, 1.0]), torch.tensor([[0.0, -3.0], [0.0, 0.0]])
    >>> pairwise_by_local_search(unary, pairwise, generator=torch.Generator().manual_seed(0)).sum()
    tensor(1.)
    """
    batch = check_pairwise(unary, pairwise, validate=validate)
    if starts < 1 or (steps is not None and steps < 0):
        raise ValueError(f"starts must be at least 1 and steps at least 0, got starts={starts}, steps={steps}")
    z = torch.randint(2, (starts, *batch, unary.shape[-1]), generator=generator, device=unary.device)
    z[0] = 0
    return climb(z, unary, pairwise, steps)


def pairwise_by_local_search_from_fixed_starts(unary: Tensor, pairwise: Tensor, *, validate: bool = True) -> Tensor:
    """The same from starts that are always the same: a function of the scores alone, problem by problem.

    Args:
        unary: u, ``[*batch, n]``; -inf means that the bit is 0.
        pairwise: W, ``[*batch, n, n]``, of which the upper triangle is read; the two batches broadcast.
        validate: False leaves out the check that reads the numbers.

    Returns:
        z, ``[*batch, n]``, 0 or 1, like ``unary``; never differentiable.

    >>> unary, pairwise = torch.tensor([1.0, 2.0]), torch.tensor([[0.0, -3.0], [0.0, 0.0]])
    >>> pairwise_by_local_search_from_fixed_starts(unary, pairwise)
    tensor([0., 1.])
    """
    batch = check_pairwise(unary, pairwise, validate=validate)
    z = fixed_starts(STARTS, unary.shape[-1], unary.device)
    z = z.reshape(STARTS, *[1] * len(batch), -1).expand(STARTS, *batch, -1)
    return climb(z, unary, pairwise, None)


def fixed_starts(starts: int, n: int, device: torch.device) -> Tensor:
    """All zeros, and bits that look random, ``[starts, n]``.

    They are scrambled numbers of their places (a hash whose products stay below 2^63), so they need no generator, and
    are the same on every device, while compiling, capturing a CUDA graph and under vmap.
    """
    start = torch.arange(starts, device=device).unsqueeze(-1)
    number = start * n + torch.arange(n, device=device)
    for factor in (0x7FEB352D, 0x6C62272F, 0x45D9F3B5):
        number = (number ^ (number >> 15)) * factor & 0xFFFFFFFF
    return (number >> 16 & 1) * (start > 0)


def climb(z: Tensor, unary: Tensor, pairwise: Tensor, steps: int | None) -> Tensor:
    """The best of the local optima that are reached from bits ``[starts, *batch, n]``."""
    starts, *batch, n = z.shape
    if 0 in batch:
        return unary.new_zeros(*batch, n)
    with torch.no_grad(), torch.autocast(unary.device.type, enabled=False):
        dtype = working_dtype(unary, pairwise)
        u, w = without_excess(unary.to(dtype), pairwise.to(dtype))
        z = torch.where(unary > -torch.inf, z.to(dtype), 0.0)
        field = u + (z.unsqueeze(-2) @ w).squeeze(-2)
        rows = w.expand(starts, *batch, n, n)
        for step in range(4 * n if steps is None else steps):
            gain = (1 - 2 * z) * field
            best = gain.argmax(-1, keepdim=True)
            worth = gain.gather(-1, best) > 0
            if step % LOOK_EVERY == 0 and can_read_values(worth) and not bool(worth.any()):
                break
            change = (1 - 2 * z.gather(-1, best)) * worth
            index = best.unsqueeze(-1).expand(starts, *batch, 1, n)
            field = field + change * rows.gather(-2, index).squeeze(-2)
            z = z.scatter_add(-1, best, change)
        # s = ½ Σ z (u + field), counting each pair once.
        score = (z * (u + field)).sum(-1)
        winner = score.argmax(0)[None, ..., None].expand(1, *batch, n)
        return z.gather(0, winner).squeeze(0).to(unary.dtype)


def without_excess(unary: Tensor, pairwise: Tensor) -> tuple[Tensor, Tensor]:
    """Unary and symmetric pairwise scores with the same optima, huge negative ones cut off.

    How far below zero a score is does not matter beyond what the bits can gain elsewhere, and huge numbers would
    swallow the digits of the others when a flip is taken back.
    """
    w = pairwise.triu(1)
    w = w + w.mT
    tiny = torch.finfo(w.dtype).tiny
    others = w.clamp_min(0).sum(-1)
    gain = unary.clamp_min(0) + others
    floor = -2 * torch.minimum(gain[..., :, None], gain[..., None, :]) - tiny
    return torch.maximum(unary, -2 * others - tiny), torch.maximum(w, floor)
