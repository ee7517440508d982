"""Images and drawings as HTML, each with words for those who do not see it."""

from __future__ import annotations

import base64
import html
import io
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from argrad.training.page import mosaic_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["drawing_html", "image_html", "mosaic_html", "pixels_of", "source"]


def pixels_of(images: Tensor) -> np.ndarray[Any, Any]:
    """Images ``[N, H, W]`` or ``[N, C, H, W]`` as a mosaic takes them: numbers, grey without a channel."""
    return (images[:, 0] if images.dim() == 4 and images.shape[1] == 1 else images).numpy()


def source(png: bytes) -> str:
    """What an img element shows."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def image_html(image: Tensor, words: str, *, width: str = "100%") -> str:
    """One image, ``[H, W]`` or ``[C, H, W]``, at any width; the browser makes its pixels larger."""
    return mosaic_html(image.unsqueeze(0), words, columns=1, width=width)


def mosaic_html(images: Tensor, words: str, *, columns: int, width: str = "100%") -> str:
    """Small images in a grid."""
    png, _ = mosaic_png(pixels_of(images), columns=columns, gap=1)
    alt = html.escape(words, quote=True)
    return f'<img alt="{alt}" style="width:{width};height:auto;display:block" src="{source(png)}">'


def drawing_html(drawing: Figure, words: str) -> str:
    """A matplotlib figure, on white also where the page is dark."""
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=144)
    alt = html.escape(words, quote=True)
    width = round(drawing.get_figwidth() * 96)
    return (
        f'<img alt="{alt}" style="width:{width}px;max-width:100%;height:auto;background:#fff;border-radius:.5rem" '
        f'src="{source(buffer.getvalue())}">'
    )
