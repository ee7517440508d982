"""What the compiled pairwise solvers share: batches as arrays, and settling the easy bits."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from argrad.solvers.compiled import pytorch_threads

__all__ = ["Problems", "pack", "run", "settle"]

Array = NDArray[np.float64]


class Problems(NamedTuple):
    """A flat list of N problems in float64."""

    unary: Array
    """``[N, n]``."""
    pairwise: Array
    """``[P, n, n]``, upper triangle; problems may share one, as draws of noise do."""
    which: NDArray[np.int64]
    """``[N]``: the number of each problem's pairwise scores."""


def pack(unary: Tensor, pairwise: Tensor, batch: torch.Size) -> Problems:
    """Tensors of any device and precision as arrays; pairwise scores are not repeated over dimensions they lack."""
    n = unary.shape[-1]
    own = pairwise.shape[:-2]
    which = torch.arange(math.prod(own)).reshape(own).expand(batch).reshape(-1)
    flat = unary.detach().to("cpu", torch.float64).expand(*batch, n).reshape(-1, n)
    square = pairwise.detach().to("cpu", torch.float64).reshape(-1, n, n)
    return Problems(flat.contiguous().numpy(), square.contiguous().numpy(), which.contiguous().numpy())


def run(kernel: Callable[..., Any], problems: int, *arguments: Any) -> None:
    """Call a parallel kernel with as many threads as PyTorch may use, which share the problems a few at a time."""
    import numba

    # Some problems take far longer than others: dealt out in advance, one thread would wait for the other.
    with pytorch_threads(), numba.parallel_chunksize(max(1, problems // 64)):
        kernel(*arguments)


def settle(u: Array, w: Array, z: Array) -> float:
    """Fix every bit whose best value is the same whatever the others are; returns the score of what is fixed.

    A bit is 0 in some optimum if its score is not positive even when every bit that attracts it is 1, and 1 if it is
    not negative even when every bit that repels it is 1. This is repeated until nothing changes.

    Args:
        u: unary scores ``[n]``; those of open bits are changed to include the bits fixed at 1.
        w: pairwise scores ``[n, n]``, symmetric, zero on the diagonal.
        z: ``[n]``, -1 where a bit is open.
    """
    n = u.shape[0]
    score = 0.0
    changed = True
    while changed:
        changed = False
        for i in range(n):
            if z[i] >= 0:
                continue
            low = high = u[i]
            for j in range(n):
                if z[j] < 0:
                    low += min(w[i, j], 0.0)
                    high += max(w[i, j], 0.0)
            if high <= 0:
                z[i] = 0.0
                changed = True
            elif low >= 0:
                z[i] = 1.0
                changed = True
                score += u[i]
                for j in range(n):
                    if z[j] < 0:
                        u[j] += w[i, j]
    return score
