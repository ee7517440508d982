"""Whether float32 matrix products round their factors, as PyTorch may be told to let them.

``torch.set_float32_matmul_precision`` says how far factors may be rounded. On a GPU "high" rounds to 10 bits of
mantissa, and "medium" too. On a CPU only "medium" does anything: products are handed to oneDNN, with leave to round to
7 bits. Where the processor has no units for such products (AMX), oneDNN does not take that leave, but it multiplies by
its own code in place of MKL's, which on AMD's processors is up to twice as fast.
"""

from __future__ import annotations

from functools import cache

import torch

__all__ = ["cpu_never_rounds", "products_are_exact"]


@cache
def cpu_never_rounds() -> bool:
    """Whether this processor multiplies float32 matrices without rounding factors even where "medium" lets it.

    >>> cpu_never_rounds() in (True, False)
    True
    """
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch.backends.fp32_precision and its kin are set
        return False
    factor = torch.full((64, 64), 1 + 2.0**-12)  # 13 bits: rounded to 7 or to 10 of mantissa it is 1
    torch.set_float32_matmul_precision("medium")
    try:
        product = factor @ factor
    finally:
        torch.set_float32_matmul_precision(before)
    return bool((product > 64 * (1 + 2.0**-12)).all())


def products_are_exact(device: torch.device) -> bool:
    """Whether float32 products on a device round no factors; not known, so no, with PyTorch's newer settings."""
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:
        return False
    return precision == "highest" or (device.type == "cpu" and (precision == "high" or cpu_never_rounds()))
