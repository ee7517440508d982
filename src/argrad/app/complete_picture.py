"""What is to be completed: a picture of the run's own data or an uploaded one, and a hole that is drawn or painted."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from argrad.data.errors import DataError
from argrad.data.masks import draw_masks
from argrad.models.completion_module import CompletionModule
from argrad.models.completion_run import load_completion, load_pictures

__all__ = ["Completer", "drawn_mask", "load_completer", "painted_mask", "read_upload"]

MOST_SAMPLES = 100
"""Pictures of a run's data that can be chosen from."""
MOST_PIXELS = 2**25
"""Of an uploaded picture: more than cameras have, less than would fill the memory."""
FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP", "PPM", "GIF")
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
        path: a picture; what kind is seen from its contents, not from its name.
        shape: of one image, ``[H, W]``, ``[1, H, W]`` or ``[3, H, W]``.
    """
    from argrad.data.folder import read_picture

    check_upload(path)
    try:
        picture = read_picture(path, colour="rgb" if shape[0] == 3 and len(shape) == 3 else "grey")
    except DataError as error:
        raise ValueError(str(error).replace(str(path), path.name)) from error
    size = shape[-2], shape[-1]
    changed = picture.shape[-2:] != size
    if changed:
        picture = np.stack([fitted(channel, size) for channel in picture.reshape(-1, *picture.shape[-2:])])
    values = torch.tensor(picture, dtype=torch.float32) / (255 if picture.dtype == np.uint8 else 1)
    return values.reshape(shape), changed


def check_upload(path: Path) -> None:
    """Refuse what is no picture of a common kind, and what would be huge when unpacked, before its pixels are read."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the check below is stricter
            with Image.open(path, formats=FORMATS) as image:
                width, height = image.size
    except UnidentifiedImageError:
        raise ValueError(
            f"{path.name} is not a picture that can be read; give a PNG, JPEG, WebP or TIFF file"
        ) from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path.name} cannot be read as a picture ({error}); save it anew as PNG") from error
    if width * height > MOST_PIXELS:
        raise ValueError(f"{path.name} has {width:,} × {height:,} pixels, too many; make it smaller first")


def fitted(channel: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """The middle of a picture ``[H, W]``, as large as the proportions allow, in another size."""
    from PIL import Image

    height, width = channel.shape
    scale = min(height / size[0], width / size[1])
    inner_height, inner_width = (max(1, round(side * scale)) for side in size)
    top, left = (height - inner_height) // 2, (width - inner_width) // 2
    middle = Image.fromarray(np.ascontiguousarray(channel[top : top + inner_height, left : left + inner_width]))
    return np.asarray(middle.resize((size[1], size[0]), Image.Resampling.BILINEAR))


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
