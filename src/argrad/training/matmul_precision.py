"""How float32 matrix products round, for a while.

A GPU multiplies several times faster where it may round the factors of a float32 product to 10 bits of mantissa (TF32);
sums keep all their bits. Gradients are far noisier than that, so training may; what is reported is computed without it.
On a CPU nothing is rounded; what may change is whose code multiplies (:mod:`argrad.solvers.rounding`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from argrad.solvers.rounding import cpu_never_rounds

__all__ = ["matmul_precision", "training_precision"]


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Set how float32 matrix products round ("highest" not at all, "high" to TF32 on a GPU), and set it back.

    Whoever uses PyTorch's newer settings (``torch.backends.fp32_precision`` and its kin) has chosen for themselves, and
    is left alone.

    >>> with matmul_precision("high"):
    ...     torch.get_float32_matmul_precision()
    'high'
    >>> torch.get_float32_matmul_precision()
    'highest'
    """
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:
        yield
        return
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def training_precision(device: torch.device) -> AbstractContextManager[None]:
    """How products round while a model trains on a device: to TF32 on a GPU; on a CPU as they do anyway.

    On a CPU that never rounds, "medium" lets PyTorch take oneDNN's products, which are the faster ones on AMD's
    processors, and no slower on others that we know of.
    """
    if device.type == "cuda":
        return matmul_precision("high")
    return matmul_precision("medium") if device.type == "cpu" and cpu_never_rounds() else nullcontext()
