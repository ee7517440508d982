r"""Sampling pairwise bits and the KL to the uniform distribution as one GPU kernel, written in Triton.

Between the scores of 2^n structures and what is wanted of them (one sample, the KL, and the KL's gradient, which is n +
n (n − 1) / 2 numbers) lie a dozen passes over those 2^n numbers, each of which PyTorch would write to memory and read
again. Here one program per example keeps them in registers, 16 rows of the split grid (a, b) at a time
(:mod:`argrad.solvers.pairwise_enumeration`):

1. scores S(a, b) = f(a) + g(b) + aᵀ T b of 16 halves a and all b, as one small product;
2. their running sum of exponentials, the running mean of S, and the log-sum over b of each row, which with Gumbel noise
   chooses a; then b given a;
3. again through the grid with weights ω = p (S − E[S]), whose first and second moments are the gradient of
   :math:`\mathrm{KL} = E[S] - \log Z + n \log 2`, because :math:`\partial_\theta \mathrm{KL} = \mathrm{Cov}(S,
   \partial_\theta S)`.

Triton comes with PyTorch for CUDA; without it, on a CPU, and for sizes other than 8 to 17 bits the same is done by
PyTorch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from argrad.solvers.compiled import has_triton

__all__ = ["can_fuse", "sample_and_kl"]

ROWS = 16
"""Rows of the grid at a time: what a small matrix product takes at least."""


def can_fuse(unary: Tensor, pairwise: Tensor) -> bool:
    """Whether the kernel takes these scores: float32 on a GPU, 8 to 17 bits, pairwise ones of each or shared by all."""
    return (
        unary.is_cuda
        and unary.dtype == pairwise.dtype == torch.float32
        and 8 <= unary.shape[-1] <= 17
        and (pairwise.dim() == 2 or pairwise.shape[:-2] == unary.shape[:-1])
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.peek_interpreter_stack()
        and has_triton()
    )


def sample_and_kl(
    unary: Tensor, pairwise: Tensor, noise: Tensor, *, gradient: bool = True
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One sample per example, the KL to the uniform distribution, and its gradients.

    Args:
        unary: ``[*batch, n]``; -inf is a bit that is 0.
        pairwise: ``[*batch, n, n]`` or ``[n, n]``, upper triangle.
        noise: Gumbel, ``[*batch, 2^⌊n/2⌋ + 2^⌈n/2⌉]``.
        gradient: False leaves out the KL and its gradients, which are then not filled.

    Returns:
        z ``[*batch, n]``, KL ``[*batch]``, and its gradients for the unary ``[*batch, n]`` and for the pairwise scores
        ``[*batch, n, n]``.
    """
    n = unary.shape[-1]
    batch = unary.shape[:-1]
    flat, draw = rows_of(unary.detach().reshape(-1, n)), noise.contiguous()
    pairs = rows_of(pairwise.detach().reshape(-1, n * n))
    z = flat.new_empty(len(flat), n)
    kl = flat.new_empty(len(flat))
    to_unary = torch.empty_like(z) if gradient else z
    to_pairwise = flat.new_empty(len(flat), n, n) if gradient else z
    if len(flat):
        from argrad.solvers.pairwise_kernel import program

        program[(len(flat),)](
            flat,
            pairs,
            draw,
            z,
            kl,
            to_unary,
            to_pairwise,
            flat.stride(0),
            0 if pairwise.dim() == 2 else pairs.stride(0),
            n=n,
            first=n // 2,
            second=n - n // 2,
            A=2 ** (n // 2),
            B=2 ** (n - n // 2),
            R=ROWS,
            GRADIENT=gradient,
            num_warps=8,
        )
    if not gradient:
        return z.reshape(unary.shape), kl.reshape(batch), z, z
    return z.reshape(unary.shape), kl.reshape(batch), to_unary.reshape(unary.shape), to_pairwise.reshape(*batch, n, n)


def rows_of(matrix: Tensor) -> Tensor:
    """The matrix itself where the numbers of each row lie side by side, as in a slice of wider rows; else a copy."""
    return matrix if matrix.stride(-1) == 1 else matrix.contiguous()
