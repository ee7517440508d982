"""What is to be completed: a picture of the run's own data or an uploaded one, and a hole that is drawn or painted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import torch
from numpy.typing import NDArray
from torch import Tensor

from argrad.app.uploaded_picture import cut_centre, read_uploaded, resized
from argrad.data.masks import draw_masks
from argrad.models.completion.module import CompletionModule
from argrad.models.completion.run import load_completion, load_pictures

__all__ = ["Completer", "drawn_mask", "load_completer", "painted_mask", "read_upload"]

MOST_SAMPLES = 100
"""Pictures of a run's data that can be chosen from."""
COVERED = 0.25
"""A pixel is hidden where the brush covered this share of it."""


@final
@dataclass(frozen=True)
class Completer:
    """A trained model, and pictures that it was not trained on."""

    module: CompletionModule
    samples: Tensor | None
    """Test images of the run's data, ``[n, *shape]``; None where they cannot be read."""
    reason: str
    """Why not."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.module.shape[-2], self.module.shape[-1]

    def sample(self, number: int) -> Tensor:
        """One of the pictures, counted from 1."""
        if self.samples is None:
            raise ValueError(f"the run's own pictures cannot be read here ({self.reason}); upload one instead")
        if not 1 <= number <= len(self.samples):
            raise ValueError(f"there are pictures 1 to {len(self.samples)}, not {number}; choose one of them")
        return self.samples[number - 1]


def load_completer(path: Path) -> Completer:
    """The model of a run folder; it can be used even where its data is on another machine."""
    module, settings = load_completion(path)
    try:
        images = load_pictures(settings.data, settings.split_seed)
    except (ValueError, OSError) as error:
        return Completer(module, None, str(error))
    if images.shape != module.shape:
        return Completer(module, None, f"{settings.data} now holds images of shape {images.shape}")
    return Completer(module, images.values(images.test[:MOST_SAMPLES]), "")


def read_upload(path: Path, shape: tuple[int, ...]) -> tuple[Tensor, bool]:
    """An uploaded picture as a model of this shape takes it, and whether it had to be cut or resized for that.

    Args:
        path: a picture.
        shape: of one image, ``[H, W]``, ``[1, H, W]`` or ``[3, H, W]``.
    """
    picture = read_uploaded(path, shape)
    size = shape[-2], shape[-1]
    changed = picture.shape[-2:] != size
    if changed:
        picture = resized(cut_centre(picture, size)[0], size)
    return picture.reshape(shape), changed


def drawn_mask(kind: Literal["centre", "rectangle", "irregular"], size: tuple[int, int], seed: int) -> Tensor:
    """A mask ``[H, W]`` of a kind, True where hidden; the one that `argrad complete --mask KIND --seed SEED` takes."""
    return draw_masks(kind, 1, size, generator=torch.Generator().manual_seed(seed))[0]


def painted_mask(layers: Sequence[NDArray[Any]], size: tuple[int, int]) -> Tensor:
    """The hole that was painted, ``[H, W]``.

    Args:
        layers: pictures ``[h, w, 4]`` of what was painted on top, of any size; transparent where nothing was.
        size: height and width of the mask.
    """
    hidden = torch.zeros(size, dtype=torch.bool)
    for layer in layers:
        covered = torch.tensor(layer[..., 3] > 0, dtype=torch.float32)
        share = torch.nn.functional.interpolate(covered[None, None], size=size, mode="area")[0, 0]
        hidden |= share >= COVERED
    if not bool(hidden.any()):
        raise ValueError("nothing is painted yet; paint over what shall be completed, or choose another hole")
    return hidden
