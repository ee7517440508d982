r"""The cost of all 2^n codes for every image of a batch, in few passes over its [codes, pixels] numbers.

Number the codes by pairs (a, b): a counts the first bits, b the last ones. A linear layer on bits is a sum of what
each half gives, :math:`A_a + B_b`, so the hidden units and the costs of code (a, b) and image i are

.. math:: h_{ab} = \max(A_a + B_b, 0), \qquad
    c_{i,ab} = \sum_d \mathrm{softplus}(h_{ab} W + \beta)_d - \langle h_{ab}, s_i\rangle - k_i.

The logits :math:`h W + \beta` are most of the memory that a step moves. PyTorch's own operations write or read them
about eleven times on the way there and back: bias, product, softplus, sum, and the same backwards. Here they are
written by the product, then read once and replaced by their sigmoids σ, while their softplus is summed; on a GPU one
kernel does that, in Triton. On the way back, with the gradients u of the costs and :math:`g = \sum_i u_i` of a code,

.. math:: \partial h = (g \odot \sigma W^\top - u^\top s) \odot [h > 0], \quad \partial A_a = \sum_b \partial h_{ab},
    \quad \partial B_b = \sum_a \partial h_{ab}, \\
    (\partial W, \partial\beta) = (g \odot h, g)^\top \sigma, \quad \partial s = -u h, \quad
    \partial k = -\sum_{ab} u_{ab},

so g meets the rows of h, and σ is only read.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from argrad.solvers.compiled import has_triton

__all__ = ["all_costs", "hidden_of_pairs"]

CHUNKS = 8
"""Pieces into which a GPU cuts sums over codes: their results are small, and would keep few of its cores busy."""


def all_costs(first: Tensor, last: Tensor, weight: Tensor, bias: Tensor, seen: Tensor, constant: Tensor) -> Tensor:
    """The cost c of every pair of halves of a code for every image, to be differentiated once.

    Args:
        first: A ``[M, S, H]``, what the first bits add to the hidden units before they are rectified.
        last: B ``[M, T, H]``, what the last bits and the bias add.
        weight: W ``[M, H, D]``.
        bias: β ``[M, 1, D]``.
        seen: s ``[M, B, H]``.
        constant: k ``[M, B]``.

    Returns:
        ``[M, B, S · T]``, the last half changing fastest.
    """
    costs: Tensor = AllCosts.apply(first, last, weight, bias, seen, constant)  # type: ignore[no-untyped-call]
    return costs


def hidden_of_pairs(first: Tensor, last: Tensor) -> Tensor:
    """max(A + B, 0) of every pair of rows of ``[M, S, H]`` and ``[M, T, H]``, ``[M, S · T, H]``; T changes fastest."""
    return (first.unsqueeze(2) + last.unsqueeze(1)).relu_().flatten(1, 2)


class AllCosts(torch.autograd.Function):
    """Sums of softplus forward, products with sigmoids backward."""

    @staticmethod
    def forward(
        ctx: Any, first: Tensor, last: Tensor, weight: Tensor, bias: Tensor, seen: Tensor, constant: Tensor
    ) -> Tensor:
        hidden = hidden_of_pairs(first, last)
        logits = torch.bmm(hidden, weight)
        total = sum_and_squash(logits, bias)
        ctx.save_for_backward(hidden, logits, weight, seen)
        ctx.halves = first.shape[1], last.shape[1]
        return torch.baddbmm(total.unsqueeze(1), seen, hidden.mT, alpha=-1).sub_(constant.unsqueeze(-1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden, squashed, weight, seen = ctx.saved_tensors
        needed = ctx.needs_input_grad
        of_codes = upstream.sum(1).unsqueeze(-1)
        to_first = to_last = to_weight = to_bias = to_seen = to_constant = None
        if needed[0] or needed[1]:
            to_hidden = torch.bmm(squashed, weight.mT).mul_(of_codes).baddbmm_(upstream.mT, seen, alpha=-1)
            to_pairs = mask_rectified(to_hidden, hidden).unflatten(1, ctx.halves)
            to_first, to_last = to_pairs.sum(2), to_pairs.sum(1)
        if needed[2] or needed[3]:
            to_weight, to_bias = layer_gradients(hidden, of_codes, squashed)
        if needed[4]:
            to_seen = sum_over_codes(upstream, hidden).neg_()
        if needed[5]:
            to_constant = -upstream.sum(-1)
        return to_first, to_last, to_weight, to_bias, to_seen, to_constant


def mask_rectified(gradient: Tensor, hidden: Tensor) -> Tensor:
    """Put 0 into the gradient, in place, where the hidden unit is 0: one pass, and no mask is written."""
    torch.ops.aten.threshold_backward.grad_input(gradient, hidden, 0, grad_input=gradient)
    return gradient


def layer_gradients(hidden: Tensor, of_codes: Tensor, squashed: Tensor) -> tuple[Tensor, Tensor]:
    """∂W ``[M, H, D]`` and ∂β ``[M, 1, D]`` from one product, (g ⊙ h, g)ᵀ σ.

    Args:
        hidden: h ``[M, N, H]``.
        of_codes: g ``[M, N, 1]``.
        squashed: σ ``[M, N, D]``.
    """
    models, rows, width = hidden.shape
    aligned = (width + 4) // 4 * 4  # products are much quicker where rows start at multiples of 16 bytes
    scaled = hidden.new_empty(models, rows, aligned)
    torch.mul(hidden, of_codes, out=scaled[..., :width])
    scaled[..., width:].zero_()
    scaled[..., width : width + 1] = of_codes
    both = sum_over_codes(scaled.mT, squashed)
    return both[:, :width], both[:, width : width + 1]


def sum_over_codes(left: Tensor, right: Tensor, chunks: int | None = None) -> Tensor:
    """The product of ``[M, K, N]`` and ``[M, N, D]``, as a sum of products of pieces of N where N is long.

    Args:
        left: of few rows K.
        right: of few columns D.
        chunks: how many pieces, a divisor of N; None for what suits the device.
    """
    if chunks is None:
        chunks = math.gcd(left.shape[-1], CHUNKS) if left.is_cuda else 1
    if chunks == 1:
        return torch.bmm(left, right)
    pieces = left.unflatten(2, (chunks, -1)).transpose(1, 2).flatten(0, 1)
    products = torch.bmm(pieces, right.unflatten(1, (chunks, -1)).flatten(0, 1))
    return products.reshape(-1, chunks, *products.shape[1:]).sum(1)


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
