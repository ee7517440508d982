"""Sums of exponentials that survive impossible parts, huge scores and being differentiated twice."""

import torch
from torch import Tensor

__all__ = ["finite", "impossible", "is_possible", "log_add", "log_softmax", "log_sum", "softmax"]


def impossible(dtype: torch.dtype) -> float:
    """The finite number that stands for −inf: far below any score, and far enough from overflow to be summed."""
    return -1e300 if dtype == torch.float64 else -1e34


def finite(scores: Tensor) -> Tensor:
    """The scores in float32 at least, with −inf replaced by a number so low that its exponential is 0.

    With −inf itself, −inf − (−inf) = NaN turns up in the gradient of every sum whose terms are all impossible.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return scores.clamp_min(impossible(scores.dtype))


def is_possible(total: Tensor) -> Tensor:
    """Whether a sum of scores, or the logarithm of a sum of their exponentials, holds only possible parts."""
    return total > impossible(total.dtype) / 2


def log_sum(values: Tensor, dim: int = -1) -> Tensor:
    """The logarithm of the sum of exponentials of finite values.

    Unlike that of ``torch.logsumexp``, its gradient is a softmax that adds up to 1 however large the values are:
    there it is exp(value − result), in which the result has been rounded.
    """
    top = values.detach().amax(dim, keepdim=True)
    return (values - top).exp().sum(dim).log() + top.squeeze(dim)


def log_add(first: Tensor, second: Tensor) -> Tensor:
    """log(e^first + e^second); the second derivatives of ``torch.logaddexp`` are NaN where the two are far apart."""
    return log_sum(torch.stack(torch.broadcast_tensors(first, second)), 0)


def log_softmax(values: Tensor, dim: int = -1) -> Tensor:
    """The same as ``torch.log_softmax``, which on the CPU takes four times as long for so few values."""
    if values.is_cuda:
        return values.log_softmax(dim)
    below = values - values.detach().amax(dim, keepdim=True)
    return below - below.exp().sum(dim, keepdim=True).log()


def softmax(values: Tensor, dim: int = -1) -> Tensor:
    """The same as ``torch.softmax``, sooner done on the CPU."""
    if values.is_cuda:
        return values.softmax(dim)
    weights = (values - values.detach().amax(dim, keepdim=True)).exp()
    return weights / weights.sum(dim, keepdim=True)
