r"""The sum over pixels of softplus(h W + b) for very many rows h, in few passes over its [rows, pixels] numbers.

With all 2^n codes of Figure 3 the logits h W + b are most of the memory that a step moves. PyTorch's own operations
write or read them about eleven times on the way there and back: bias, product, softplus, sum, and the same backwards.
Here they are written by the product, then read once and replaced by their sigmoids σ, while their softplus is summed;
on a GPU one kernel does that, in Triton. On the way back, with the gradient g of each row's sum,

.. math:: \partial h = g \odot (\sigma W^\top), \quad \partial W = (g \odot h)^\top \sigma, \quad \partial b = g^\top
    \sigma,

so g meets the rows of h, and σ is only read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from argrad.solvers.compiled import has_triton

__all__ = ["softplus_sum"]


def softplus_sum(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The sum over the last dimension of softplus(hidden weight + bias), to be differentiated once.

    Args:
        hidden: ``[M, N, H]``.
        weight: ``[M, H, D]``.
        bias: ``[M, 1, D]``.

    Returns:
        ``[M, N]``.
    """
    total: Tensor = SoftplusSum.apply(hidden, weight, bias)  # type: ignore[no-untyped-call]
    return total


class SoftplusSum(torch.autograd.Function):
    """Sums forward, products with sigmoids backward."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        logits = torch.bmm(hidden, weight)
        total = sum_and_squash(logits, bias)
        ctx.save_for_backward(hidden, weight, logits)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden, weight, squashed = ctx.saved_tensors
        rows = upstream.unsqueeze(-1)
        to_weight = torch.bmm((hidden * rows).mT, squashed)
        to_bias = torch.bmm(rows.mT, squashed)
        return torch.bmm(squashed, weight.mT).mul_(rows), to_weight, to_bias


def sum_and_squash(logits: Tensor, bias: Tensor) -> Tensor:
    """Sum softplus(logits + bias) over the last dimension, and put sigmoid(logits + bias) in the place of the logits.

    Args:
        logits: ``[M, N, D]``, contiguous; overwritten.
        bias: ``[M, 1, D]``.
    """
    if logits.is_cuda and has_triton() and logits.numel():
        from argrad.experiments.softplus_sum_kernel import launch

        return launch(logits, bias.contiguous())
    logits.add_(bias)
    total = softplus(logits, threshold=40).sum(-1)
    logits.sigmoid_()
    return total
