"""The Triton kernel of :mod:`argrad.experiments.softplus_sum`, which says what it does; imported where Triton is."""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["launch", "program"]


@triton.jit
def program(logits, bias, total, rows, D: tl.constexpr, BLOCK: tl.constexpr):
    """One row: its sum of softplus, and sigmoids in the place of its logits."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < D
    place = logits + row * D + column
    x = tl.load(place, mask=inside, other=0.0) + tl.load(bias + (row // rows) * D + column, mask=inside, other=0.0)
    small = tl.exp(-tl.abs(x))
    tl.store(total + row, tl.sum(tl.where(inside, tl.maximum(x, 0.0) + tl.log(1.0 + small), 0.0), 0))
    tl.store(place, tl.where(x >= 0, 1.0, small) / (1.0 + small), mask=inside)


def launch(logits: Tensor, bias: Tensor) -> Tensor:
    """Run it on every row of ``[M, N, D]``."""
    models, rows, pixels = logits.shape
    total = torch.empty(models, rows, dtype=logits.dtype, device=logits.device)
    program[(models * rows,)](logits, bias, total, rows, D=pixels, BLOCK=triton.next_power_of_2(pixels), num_warps=4)
    return total
