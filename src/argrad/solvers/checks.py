"""The checks that the solvers share."""

import math

import torch
from torch import Tensor

__all__ = ["can_read_values", "check_possible", "check_scores", "worth_keeping"]


def can_read_values(tensor: Tensor) -> bool:
    """Whether Python may look at the numbers: not while compiling or capturing a CUDA graph, nor under vmap."""
    if torch.compiler.is_compiling() or tensor.is_meta:
        return False
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return torch._C._functorch.peek_interpreter_stack() is None


def worth_keeping(like: Tensor) -> bool:
    """Whether a list made for the device of this tensor should be kept: on a GPU, for real, and not while compiling.

    A CUDA graph that is being captured cannot bring the list from the CPU; it has to be there from a call before.
    """
    return like.is_cuda and type(like) is Tensor and not torch.compiler.is_compiling()


def check_scores(name: str, scores: Tensor, event: str, *, validate: bool) -> None:
    """Raise a ValueError that says what is wrong with scores.

    Args:
        name: the solver, for the message.
        scores: ``[*batch, *event]``.
        event: the event dimensions as the message writes them, such as "n, n"; equal names mean equal sizes.
        validate: False checks type and shape only.
    """
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        given = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(f"{name} needs a floating-point tensor of scores, got {given}; convert it with .float()")
    names = event.split(", ")
    shape = tuple(scores.shape[scores.dim() - len(names) :])
    sizes = dict(zip(names, shape, strict=False))
    if scores.dim() < len(names) or 0 in shape or tuple(sizes[one] for one in names) != shape:
        raise ValueError(
            f"{name} needs scores [*batch, {event}] with no empty event dimension, got shape {tuple(scores.shape)}"
        )
    if not validate or scores.numel() == 0 or not can_read_values(scores):
        return
    scores = scores.detach()
    if math.isfinite(scores.sum().item()):
        return
    bad = ~(scores < torch.inf)
    if bool(bad.any()):
        where = tuple(bad.nonzero()[0].tolist())
        kind = "NaN" if bool(scores[where].isnan()) else "+inf"
        raise ValueError(
            f"{name} scores are {kind} in {int(bad.sum())} of {bad.numel()} places, first at index {where}; use finite "
            "numbers, or -inf for what is impossible"
        )


def check_possible(name: str, possible: Tensor, advice: str, *, validate: bool) -> None:
    """Raise a ValueError where no structure is possible.

    Args:
        name: the solver, for the message.
        possible: ``[*batch]`` of bool.
        advice: what to do about it.
        validate: False checks nothing.
    """
    if validate and possible.numel() and can_read_values(possible) and not bool(possible.all()):
        where = tuple((~possible).nonzero()[0].tolist())
        raise ValueError(
            f"{name} has no possible structure in {int((~possible).sum())} of {possible.numel()} examples, first at "
            f"index {where}; {advice}"
        )
