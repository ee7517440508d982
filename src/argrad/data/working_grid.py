"""Volumes of any size on one working grid, and back into their own voxels.

"fit" resamples the whole field of view onto the grid, for scans cut out around an organ or aligned to a template;
"centre" keeps voxels as they are, padding and cropping around the middle, so that the way back is exact wherever scan
and grid overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor
from torch.nn.functional import interpolate, pad

__all__ = ["Alignment", "common_grid", "from_grid", "scale_intensities", "to_grid"]

Alignment = Literal["fit", "centre"]
LINEAR = {2: "bilinear", 3: "trilinear"}
LOW, HIGH = 0.01, 0.99
"""The quantiles of a scan's intensities that become 0 and 1."""
LIMITS = (-0.5, 2.0)
"""Where scaled intensities end."""


def common_grid(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """A working grid for volumes of these shapes: the mean of each side, rounded to a multiple of 8, at least 8.

    >>> common_grid([(35, 51, 35), (36, 49, 33)])
    (32, 48, 32)
    """
    sides = zip(*shapes, strict=True)
    return tuple(max(8, 8 * round(sum(side) / len(side) / 8)) for side in sides)


def to_grid(volume: Tensor, grid: Sequence[int], align: Alignment, *, labels: bool = False) -> Tensor:
    """Put volumes ``[channels, *shape]`` on the grid, ``[channels, *grid]``.

    Args:
        volume: all channels of one case.
        grid: its sides.
        align: "fit" or "centre".
        labels: whole numbers: the nearest voxel is taken, and 0 is what lies beyond the volume. Otherwise intensities,
            interpolated linearly, which go on beyond the edge as they are at the edge.
    """
    if align == "fit":
        return _resize(volume, grid, nearest=labels)
    volume = _crop(volume, grid)
    before_after = [side for own, wanted in zip(volume.shape[1:], grid, strict=True) for side in _margins(own, wanted)]
    # torch wants the last dimension first
    padding = [number for i in range(len(grid) - 1, -1, -1) for number in before_after[2 * i : 2 * i + 2]]
    return pad(volume, padding) if labels else pad(volume.unsqueeze(0), padding, mode="replicate").squeeze(0)


def from_grid(volume: Tensor, shape: Sequence[int], align: Alignment, *, beyond: float = 0.0) -> Tensor:
    """The way back: ``[channels, *grid]`` to ``[channels, *shape]``.

    Args:
        volume: on the grid; floating-point numbers, interpolated linearly by "fit".
        shape: the sides that the volume had before :func:`to_grid`.
        align: as it was there.
        beyond: what stands where the grid does not reach.
    """
    if align == "fit":
        return _resize(volume, shape, nearest=False)
    result = volume.new_full((len(volume), *shape), beyond)
    inside, source = [slice(None)], [slice(None)]
    for own, wanted in zip(volume.shape[1:], shape, strict=True):
        before, after = _margins(min(own, wanted), max(own, wanted))
        here, there = slice(before, max(own, wanted) - after), slice(None)
        inside.append(here if wanted > own else there)
        source.append(there if wanted > own else here)
    result[tuple(inside)] = volume[tuple(source)]
    return result


def scale_intensities(scan: Tensor) -> Tensor:
    """One scan with its 1 % and 99 % quantiles at 0 and 1, what lies far beyond cut off.

    >>> import torch
    >>> scale_intensities(torch.arange(101.0).view(1, 101)).quantile(torch.tensor([0.01, 0.99]))
    tensor([0., 1.])
    """
    numbers = scan.flatten().float().sort().values
    low, high = (numbers[round(share * (len(numbers) - 1))] for share in (LOW, HIGH))
    if not bool(high > low):
        low, high = numbers[0], numbers[-1]
    if not bool(high > low):
        raise ValueError(f"all voxels of the scan are {float(low):g}, so there is nothing to be told apart in it")
    return ((scan.float() - low) / (high - low)).clamp(*LIMITS)


def _resize(volume: Tensor, sides: Sequence[int], *, nearest: bool) -> Tensor:
    if tuple(volume.shape[1:]) == tuple(sides):
        return volume
    kind = volume.dtype if nearest else None
    mode = "nearest-exact" if nearest else LINEAR[len(sides)]
    result = interpolate(volume.unsqueeze(0).float(), size=tuple(sides), mode=mode).squeeze(0)
    return result.to(kind) if kind is not None else result


def _crop(volume: Tensor, grid: Sequence[int]) -> Tensor:
    where = [slice(None)]
    for own, wanted in zip(volume.shape[1:], grid, strict=True):
        before, after = _margins(wanted, own) if own > wanted else (0, 0)
        where.append(slice(before, own - after))
    return volume[tuple(where)]


def _margins(small: int, large: int) -> tuple[int, int]:
    """How many voxels lie before and after the smaller side in the middle of the larger one."""
    extra = max(0, large - small)
    return extra // 2, extra - extra // 2
