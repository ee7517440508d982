"""Pictures that are kept with a result: grey or colour values as text, compressed."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["packed", "unpacked"]


def packed(images: Tensor) -> dict[str, Any]:
    """Values from 0 to 1, of any shape, as 8-bit pixels, compressed, in base 64: ready for JSON."""
    pixels = (images.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
    return {"shape": list(pixels.shape), "pixels": base64.b64encode(zlib.compress(pixels.tobytes())).decode()}


def unpacked(pictures: dict[str, Any]) -> NDArray[np.uint8]:
    """What :func:`packed` kept, from 0 to 255.

    >>> unpacked(packed(torch.tensor([[0.0, 1.0], [0.5, 2.0]]))).tolist()
    [[0, 255], [128, 255]]
    """
    pixels = zlib.decompress(base64.b64decode(pictures["pixels"]))
    return np.frombuffer(pixels, np.uint8).reshape(pictures["shape"])
