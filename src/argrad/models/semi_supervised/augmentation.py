r"""Small random changes of images under which the class stays what it is.

A batch is changed at once, on its device, as a function of uniform numbers: one affine map per image (rotation, zoom,
shear, shift, mirror), read off by bilinear interpolation, then a rectangle or single numbers set to 0. What is right to
change depends on what the images show: a mirrored shirt is a shirt, a mirrored 2 is not a 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

__all__ = ["AUGMENTATIONS", "Augmentation", "AugmentationName"]

MAP_NUMBERS = 10
"""Uniform numbers that the map and the rectangle of one image take."""


@final
@dataclass(frozen=True)
class Augmentation:
    """How far images are changed; a default changes nothing.

    >>> shifted = Augmentation(shift=0.25)
    >>> images, uniform = torch.rand(5, 64), torch.rand(5, shifted.numbers(64))
    >>> shifted(images, uniform, (8, 8)).shape
    torch.Size([5, 64])
    """

    rotation: float = 0.0
    """Largest angle, in degrees, either way."""
    zoom: float = 0.0
    """Largest growth or shrinking, as a share of the size."""
    shear: float = 0.0
    """Largest slant: a share of the height that the top moves against the middle."""
    shift: float = 0.0
    """Largest shift, as a share of the side, in each direction."""
    mirror: bool = False
    """Whether half of the images are seen in a mirror."""
    erase: float = 0.0
    """Largest side of a rectangle that is set to 0, as a share of the image's side."""
    drop: float = 0.0
    """Share of single numbers set to 0; the only change that data other than images can take."""

    def __post_init__(self) -> None:
        for name in ("rotation", "zoom", "shear", "shift", "erase", "drop"):
            value = getattr(self, name)
            if not 0 <= value < math.inf or (name in ("zoom", "drop") and value >= 1):
                raise ValueError(f"{name} must be a number that is not negative (zoom and drop below 1), got {value}")

    @property
    def moves(self) -> bool:
        """Whether images are moved or erased, which takes an image."""
        return self.mirror or max(self.rotation, self.zoom, self.shear, self.shift, self.erase) > 0

    def numbers(self, features: int) -> int:
        """How many uniform numbers one image takes."""
        return (MAP_NUMBERS if self.moves else 0) + (features if self.drop > 0 else 0)

    def __call__(self, x: Tensor, uniform: Tensor, shape: tuple[int, ...], *, bits: bool = False) -> Tensor:
        """Changed images, without gradient.

        Args:
            x: ``[*batch, features]``.
            uniform: numbers in [0, 1), ``[*batch, numbers(features)]``.
            shape: of one image: height and width, or channels, height and width.
            bits: round at 0.5, for images of bits.
        """
        with torch.no_grad():
            if self.moves:
                if len(shape) not in (2, 3):
                    raise ValueError(
                        f"examples of shape {shape} are no images and cannot be moved; give X as [n, height, width], "
                        "or an augmentation that only drops numbers"
                    )
                flat = uniform[..., :MAP_NUMBERS].reshape(-1, MAP_NUMBERS).to(x.dtype)
                images = x.reshape(-1, *((1, *shape) if len(shape) == 2 else shape))
                x = self._erase(self._move(images, flat), flat).reshape(x.shape)
                if bits:
                    x = (x > 0.5).to(x.dtype)
            if self.drop > 0:
                x = x * (uniform[..., -x.shape[-1] :] >= self.drop).to(x.dtype)
            return x

    def _move(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Read every image at the points that its own map sends the grid to."""
        way = 2 * uniform - 1
        angle, zoom = math.radians(self.rotation) * way[:, 0], 1 + self.zoom * way[:, 1]
        shear, across, down = self.shear * way[:, 2], 2 * self.shift * way[:, 3], 2 * self.shift * way[:, 4]
        side = torch.where(way[:, 5] < 0, -1.0, 1.0) if self.mirror else torch.ones_like(zoom)
        cos, sin = angle.cos() * zoom, angle.sin() * zoom
        maps = torch.stack([side * cos, side * (shear * cos - sin), across, sin, shear * sin + cos, down], -1)
        grid = centres(images) @ maps.reshape(-1, 2, 3).mT
        grid = grid.unflatten(-2, tuple(images.shape[-2:]))
        moved: Tensor = grid_sample(images, grid, align_corners=False)
        return moved

    def _erase(self, images: Tensor, uniform: Tensor) -> Tensor:
        if self.erase == 0:
            return images
        inside = None
        for number, size in enumerate(images.shape[-2:]):
            at = (torch.arange(size, device=images.device, dtype=images.dtype) + 0.5) / size
            centre, half = uniform[:, 6 + number, None], self.erase / 2 * uniform[:, 8 + number, None]
            along = (at - centre).abs() < half
            inside = along[:, :, None] if inside is None else inside & along[:, None, :]
        assert inside is not None
        return images.masked_fill(inside.unsqueeze(1), 0.0)


def centres(images: Tensor) -> Tensor:
    """The centres of the pixels ``[pixels, 3]``: across and down, from −1 to 1 between the borders, and 1."""
    down, across = (
        (2 * torch.arange(size, device=images.device, dtype=images.dtype) + 1) / size - 1 for size in images.shape[-2:]
    )
    ones = torch.ones(len(down) * len(across), device=images.device, dtype=images.dtype)
    return torch.stack([across.repeat(len(down)), down.repeat_interleave(len(across)), ones], -1)


AugmentationName = Literal["none", "digits", "clothes", "drop"]
AUGMENTATIONS: dict[str, Augmentation] = {
    "none": Augmentation(),
    "digits": Augmentation(rotation=15, zoom=0.15, shear=0.15, shift=0.1),
    "clothes": Augmentation(rotation=5, zoom=0.1, shift=0.08, mirror=True, erase=0.5),
    "drop": Augmentation(drop=0.3),
}
"""By name: for handwriting, for pictures of clothes and the like, and for data other than images."""
