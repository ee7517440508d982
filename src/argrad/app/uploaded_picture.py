"""A visitor's picture, made into an image that a model can read: checked before it is unpacked, cut, resized."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from argrad.data.binarization import Binarization, binarize
from argrad.data.folder import read_picture

__all__ = ["fit_picture", "read_uploaded"]

LARGEST_FILE = 20 * 2**20
"""Bytes."""
MOST_PIXELS = 25_000_000
"""A file of a few kilobytes can unpack to any number of pixels; a camera's picture has fewer than this."""
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")


def fit_picture(path: Path | str, shape: tuple[int, ...], binarization: Binarization) -> tuple[Tensor, str]:
    """Read a picture as a model's own images are.

    Args:
        path: of the file.
        shape: of the model's images, ``[H, W]`` or ``[C, H, W]``.
        binarization: what the model's data underwent.

    Returns:
        the image, and what was done to the picture, in words.
    """
    values = read_uploaded(Path(path), shape)
    height, width = values.shape[-2:]
    done = ["made " + ("colour" if is_colour(shape) else "grey")]
    values, cut = cut_centre(values, shape[-2:])
    if cut:
        done.append("the middle cut out")
    values = resized(values, shape[-2:])
    done.append(f"resized from {width} × {height} to {shape[-1]} × {shape[-2]} pixels")
    if binarization != "none":
        values = binarize(values, "round")
        done.append("each pixel rounded to black or white, as in training")
    return values.reshape(shape), f"Your picture: {', '.join(done)}."


def is_colour(shape: tuple[int, ...]) -> bool:
    """Whether images of a shape have three channels."""
    return len(shape) == 3 and shape[0] == 3


def read_uploaded(path: Path, shape: tuple[int, ...]) -> Tensor:
    """A picture in its own size, ``[*channels, h, w]`` from 0 to 1, grey or colour as images of a shape are.

    What kind of file it is is seen from its contents, not from its name.
    """
    check_picture(path)
    try:
        pixels = read_picture(path, colour="rgb" if is_colour(shape) else "grey")
    except ValueError as error:
        raise ValueError(str(error).replace(str(path), path.name)) from None
    return torch.from_numpy(pixels.astype(np.float32) / (255 if pixels.dtype == np.uint8 else 1))


def check_picture(path: Path) -> None:
    """Raise a ValueError for a file that is empty, no picture, or too large to unpack."""
    size = path.stat().st_size
    if size == 0:
        raise ValueError("this file is empty; give a picture, such as a PNG or JPEG file")
    if size > LARGEST_FILE:
        raise ValueError(
            f"this file has {size / 2**20:.0f} MiB, more than {LARGEST_FILE // 2**20}; give a smaller picture"
        )
    try:
        with Image.open(path, formats=FORMATS) as picture:
            width, height = picture.size
    except Image.DecompressionBombError:
        raise too_many_pixels("far more pixels") from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        raise ValueError("this file is no picture that can be read; give a PNG or JPEG file") from None
    if width * height > MOST_PIXELS:
        raise too_many_pixels(f"{width} × {height} pixels")


def too_many_pixels(what: str) -> ValueError:
    """The refusal of a picture that would fill the memory."""
    return ValueError(f"this picture has {what}, more than {MOST_PIXELS // 10**6} million; give a smaller one")


def cut_centre(values: Tensor, size: tuple[int, ...]) -> tuple[Tensor, bool]:
    """The largest middle part with the proportions of a size, and whether anything was cut off."""
    height, width = values.shape[-2:]
    wanted = size[1] / size[0]
    inner_height, inner_width = min(height, round(width / wanted)), min(width, round(height * wanted))
    inner_height, inner_width = max(1, inner_height), max(1, inner_width)
    top, left = (height - inner_height) // 2, (width - inner_width) // 2
    cut = (inner_height, inner_width) != (height, width)
    return values[..., top : top + inner_height, left : left + inner_width], cut


def resized(values: Tensor, size: tuple[int, ...]) -> Tensor:
    """Bilinear, averaging on reduction, as pictures of a folder are; ``[*channels, *size]``."""
    channels = values if values.dim() == 3 else values.unsqueeze(0)
    done = [
        np.asarray(Image.fromarray(one.numpy()).resize((size[1], size[0]), Image.Resampling.BILINEAR))
        for one in channels
    ]
    return torch.from_numpy(np.stack(done)).clamp(0, 1)
