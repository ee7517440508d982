"""Completions as files, for the command line and the web app."""

from __future__ import annotations

import io

import numpy as np
import torch
from torch import Tensor

from argrad.models.completion.report import as_pictures, with_hole
from argrad.training.page import mosaic_png

__all__ = ["completions_npz", "completions_png"]

PIXELS = 112
"""About how high each picture of a mosaic is made."""
COLUMNS = 9
"""The hole and eight completions."""


def completions_png(x: Tensor, mask: Tensor, completed: Tensor) -> bytes:
    """One picture of the hole and all completions.

    Args:
        x: the image, ``[1, *shape]``.
        mask: ``[1, H, W]``, True where hidden.
        completed: ``[n, *shape]``.
    """
    pictures = as_pictures(torch.cat([with_hole(x, mask), completed]))
    zoom = max(1, round(PIXELS / x.shape[-2]))
    return mosaic_png(pictures, columns=min(COLUMNS, len(pictures)), zoom=zoom)[0]


def completions_npz(completed: Tensor, which: Tensor) -> bytes:
    """The numbers: ``completions`` ``[n, *shape]``, and the ``components`` ``[n]`` that they came from."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, completions=completed.numpy(), components=which.numpy())
    return buffer.getvalue()
