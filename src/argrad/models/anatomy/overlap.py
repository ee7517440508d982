"""How well a segmentation agrees with a reference: Dice overlap and the 95 % Hausdorff distance, per label.

Labels that are empty: where both are, there is nothing to agree on and the score is NaN, left out of means; where only
one is, Dice is 0 and the distance is the diagonal of the volume, the worst that there can be.

Distances come from an exact distance transform, one axis after the other: d²(i) = min_j [d²(j) + (i − j)²]. In a box of
V voxels it costs V times the sum of its sides, however many voxels the surfaces have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["dice", "hausdorff95"]

FAR = 1e12
"""A squared distance that is larger than any in a volume."""


def dice(found: Tensor, reference: Tensor, labels: int) -> Tensor:
    """2 |A ∩ B| / (|A| + |B|) of every label but background, ``[labels - 1]``.

    >>> dice(torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 2, 0]), 4)
    tensor([0.6667, 0.0000,    nan])
    """
    check_shapes(found, reference)
    scores = []
    for label in range(1, labels):
        a, b = found == label, reference == label
        both, total = int((a & b).sum()), int(a.sum()) + int(b.sum())
        scores.append(2 * both / total if total else math.nan)
    return torch.tensor(scores)


def hausdorff95(found: Tensor, reference: Tensor, labels: int, voxel_sizes: Sequence[float] | None = None) -> Tensor:
    """The 95 % quantile of the distances between the surfaces, the larger of both directions, ``[labels - 1]``.

    Args:
        found: label map in two or three dimensions.
        reference: another one.
        labels: how many there are, background included.
        voxel_sizes: in millimetres; 1 when None.

    >>> line = torch.zeros(1, 12, dtype=torch.long)
    >>> a, b = line.clone(), line.clone()
    >>> a[0, 2], b[0, 7] = 1, 1
    >>> hausdorff95(a, b, 2, (1.0, 0.5))
    tensor([2.5000])
    """
    check_shapes(found, reference)
    sizes = [1.0] * found.dim() if voxel_sizes is None else list(voxel_sizes)
    if len(sizes) != found.dim() or min(sizes) <= 0:
        raise ValueError(f"voxel_sizes must be {found.dim()} positive numbers, got {voxel_sizes}")
    diagonal = math.hypot(*(side * size for side, size in zip(found.shape, sizes, strict=True)))
    return torch.tensor(
        [surface_distance(found == label, reference == label, sizes, diagonal) for label in range(1, labels)]
    )


def surface_distance(found: Tensor, reference: Tensor, sizes: Sequence[float], diagonal: float) -> float:
    """The 95 % quantile for two masks."""
    either = found | reference
    if not bool(either.any()):
        return math.nan
    if not bool(found.any()) or not bool(reference.any()):
        return diagonal
    box = bounding_box(either)
    a, b = surface(found[box]), surface(reference[box])
    both_ways = (distances_to(b, sizes)[a], distances_to(a, sizes)[b])
    return max(float(distances.quantile(0.95)) for distances in both_ways)


def check_shapes(found: Tensor, reference: Tensor) -> None:
    """Refuse label maps of different shapes."""
    if found.shape != reference.shape:
        raise ValueError(
            f"the segmentation has shape {tuple(found.shape)} and the reference {tuple(reference.shape)}; "
            "they must be on the same grid"
        )


def bounding_box(mask: Tensor) -> tuple[slice, ...]:
    """The smallest box that holds all of a mask, which is not empty."""
    places = mask.nonzero()
    return tuple(slice(int(low), int(high) + 1) for low, high in zip(places.amin(0), places.amax(0), strict=True))


def surface(mask: Tensor) -> Tensor:
    """The voxels of a mask that have a neighbour outside it; beyond the edge is outside."""
    inner = mask.clone()
    for axis in range(mask.dim()):
        size = mask.shape[axis]
        inner.narrow(axis, 1, size - 1).logical_and_(mask.narrow(axis, 0, size - 1))
        inner.narrow(axis, 0, size - 1).logical_and_(mask.narrow(axis, 1, size - 1))
        inner.select(axis, 0).fill_(False)
        inner.select(axis, size - 1).fill_(False)
    return mask & ~inner


def distances_to(mask: Tensor, sizes: Sequence[float]) -> Tensor:
    """The distance of every voxel to the nearest one of a mask."""
    squared = torch.where(mask, 0.0, FAR)
    for axis, size in enumerate(sizes):
        before, side = squared.clone(), mask.shape[axis]
        for step in range(1, side):
            added = (step * size) ** 2
            for to, from_ in ((step, 0), (0, step)):
                part = squared.narrow(axis, to, side - step)
                torch.minimum(part, before.narrow(axis, from_, side - step) + added, out=part)
    return squared.sqrt()
