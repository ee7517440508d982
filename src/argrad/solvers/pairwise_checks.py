"""What the pairwise solvers check about their scores, and how their batches broadcast."""

import math

import torch
from torch import Tensor

from argrad.solvers.checks import can_read_values

__all__ = ["check_pairwise", "working_dtype"]


def working_dtype(unary: Tensor, pairwise: Tensor) -> torch.dtype:
    """The precision that the solvers written in torch compute in: that of the scores, float32 at least."""
    return torch.promote_types(torch.promote_types(unary.dtype, pairwise.dtype), torch.float32)


def check_pairwise(unary: Tensor, pairwise: Tensor, *, validate: bool) -> torch.Size:
    """The shape of the batch of problems, or a ValueError that says what is wrong with them.

    Args:
        unary: ``[*batch, n]``.
        pairwise: ``[*batch, n, n]``; the two batches broadcast.
        validate: False checks types and shapes only. Where values cannot be read (compiling, capturing a CUDA graph,
            vmap) they are not.
    """
    for name, scores in (("unary", unary), ("pairwise", pairwise)):
        if not isinstance(scores, Tensor) or not scores.is_floating_point():
            given = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(f"{name} scores must be a floating-point tensor, got {given}; convert with .float()")
    n = unary.shape[-1] if unary.dim() else 0
    if n == 0 or pairwise.shape[-2:] != (n, n):
        raise ValueError(
            f"a pairwise problem needs unary scores [*batch, n] and pairwise scores [*batch, n, n] with n at least 1, "
            f"got shapes {tuple(unary.shape)} and {tuple(pairwise.shape)}"
        )
    if unary.device != pairwise.device:
        raise ValueError(
            f"unary and pairwise scores must be on one device, got {unary.device} and {pairwise.device}; move one"
        )
    try:
        batch = torch.Size(torch.broadcast_shapes(unary.shape[:-1], pairwise.shape[:-2]))
    except RuntimeError:
        raise ValueError(
            f"the batches of unary scores {tuple(unary.shape)} and pairwise scores {tuple(pairwise.shape)} do not "
            f"broadcast: {tuple(unary.shape[:-1])} against {tuple(pairwise.shape[:-2])}"
        ) from None
    if validate and can_read_values(unary) and can_read_values(pairwise):
        check_values(unary.detach(), pairwise.detach())
    return batch


def check_values(unary: Tensor, pairwise: Tensor) -> None:
    """Raise a ValueError at NaN or +inf, and at -inf among the pairwise scores that are read."""
    upper = pairwise.triu(1)  # what is below may be anything
    if math.isfinite(unary.sum().item() + upper.sum().item()):
        return
    for name, scores, bad in (
        ("unary", unary, ~(unary < torch.inf)),
        ("pairwise", upper, ~upper.isfinite()),
    ):
        if bool(bad.any()):
            where = tuple(bad.nonzero()[0].tolist())
            raise ValueError(
                f"{name} scores hold {scores[where].item()} in {int(bad.sum())} of {bad.numel()} places, first at "
                f"index {where}; every score must be finite, but for unary -inf, which means that the bit is 0"
            )
