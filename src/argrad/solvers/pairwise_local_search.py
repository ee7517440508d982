r"""Pairwise bits by local search: a heuristic without any guarantee, for sizes beyond proof; CPU and GPU.

From many random starts at once, flip the bit that improves the score :math:`s(z)` most until no flip does:

.. math:: s(z \oplus i) - s(z) = (1 - 2 z_i)\Big(u_i + \sum_j W_{ij} z_j\Big).

The best of the local optima is returned. A flip costs O(n) for each start, and about n/2 flips are needed. All starts
of all problems take each step together.
"""

import torch
from torch import Tensor

from argrad.solvers.checks import can_read_values
from argrad.solvers.pairwise_checks import check_pairwise, working_dtype

__all__ = ["pairwise_by_local_search"]

LOOK_EVERY = 8
"""Steps between two looks whether anything still improves: a look waits for the GPU."""


def pairwise_by_local_search(
    unary: Tensor,
    pairwise: Tensor,
    *,
    starts: int = 64,
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
    n = unary.shape[-1]
    if batch.numel() == 0:
        return unary.new_zeros(*batch, n)
    with torch.no_grad(), torch.autocast(unary.device.type, enabled=False):
        dtype = working_dtype(unary, pairwise)
        u, w = without_excess(unary.to(dtype), pairwise.to(dtype))
        shape = (starts, *batch, n)
        z = torch.randint(2, shape, generator=generator, device=unary.device).to(dtype)
        z[0] = 0.0
        z = torch.where(unary > -torch.inf, z, 0.0)
        field = u + (z.unsqueeze(-2) @ w).squeeze(-2)
        rows = w.expand(*shape, n)
        for step in range(4 * n if steps is None else steps):
            gain = (1 - 2 * z) * field
            best = gain.argmax(-1, keepdim=True)
            worth = gain.gather(-1, best) > 0
            if step % LOOK_EVERY == 0 and can_read_values(worth) and not bool(worth.any()):
                break
            change = (1 - 2 * z.gather(-1, best)) * worth
            field = field + change * rows.gather(-2, best.unsqueeze(-1).expand(*shape[:-1], 1, n)).squeeze(-2)
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
