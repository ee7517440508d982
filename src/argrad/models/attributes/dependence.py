r"""How much a remainder tells about attributes: a number to be made small.

The Hilbert-Schmidt independence criterion of a batch of remainders r and attributes y as −1 and 1,

.. math:: \frac{1}{B^2} \sum_{ij} k(r_i, r_j) \, (y_i - \bar y)^\top (y_j - \bar y),

with k the sum of two Gaussian kernels: for each attribute, how much more alike remainders are that share it than
remainders that do not, in any respect, not in their mean alone.

Reference: Gretton, Bousquet, Smola & Schölkopf, 2005, "Measuring statistical dependence with Hilbert-Schmidt norms".
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["dependence"]


def dependence(remainder: Tensor, known: Tensor) -> Tensor:
    """The criterion of a batch, one number; attributes that are not known take no part.

    Args:
        remainder: ``[B, d]``.
        known: attributes ``[B, n]``: 0, 1, or −1 where one is not known.

    >>> import torch
    >>> y = torch.tensor([[1], [1], [0], [0]])
    >>> carries, does_not = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]]), torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
    >>> dependence(carries, y) > dependence(does_not, y)
    tensor(True)
    """
    apart = (remainder[:, None] - remainder).square().mean(-1)
    alike = (-apart).exp() + (-apart / 4).exp()
    there = known >= 0
    signs = (2 * known - 1).masked_fill(~there, 0).to(remainder.dtype)
    mean = signs.sum(0) / there.sum(0).clamp_min(1)
    centred = (signs - mean) * there
    return (alike * (centred @ centred.T)).mean()
