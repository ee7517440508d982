"""Problems to diagnose: a latent and a cost, random or from a user's file."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from argrad.costs import Cost, TableCost
from argrad.latents import Bits, Categorical, Latent

__all__ = ["Problem", "read_problem", "toy_problem"]


@dataclass(frozen=True)
class Problem:
    """A latent, its cost, and what they are in words."""

    latent: Latent
    cost: Cost
    description: str


def toy_problem(values: int = 10, bits: int | None = None, examples: int = 16, seed: int = 0) -> Problem:
    """Random scores, and random costs: a table for one categorical variable, a quadratic form for bits."""
    generator = torch.Generator().manual_seed(seed)
    if bits is None:
        if values < 2:
            raise ValueError(f"values must be at least 2, got {values}")
        scores, costs = torch.randn(2, examples, values, generator=generator)
        return Problem(Categorical(scores), TableCost(3 * costs), f"random costs, one of {values} codes")
    if bits < 1:
        raise ValueError(f"bits must be at least 1, got {bits}")
    scores = torch.randn(examples, bits, generator=generator)
    pairs = torch.randn(examples, bits, bits, generator=generator) * 3 / bits**0.5

    def quadratic(z: Tensor) -> Tensor:
        return torch.einsum("...bi,bij,...bj->...b", z, pairs, z)

    return Problem(Bits(scores), quadratic, f"a random quadratic cost of {bits} bits")


BROKEN = (
    *(ValueError, EOFError, TypeError, AttributeError, KeyError, RuntimeError, SyntaxError, OverflowError, MemoryError),
    *(struct.error, tokenize.TokenError, zlib.error, zipfile.BadZipFile),
)
"""What NumPy raises for damaged files: some byte of each kind was found by flipping them one by one."""


def read_problem(path: Path) -> Problem:
    """The user's own problem: an .npz file with ``logits`` and ``costs``, both ``[examples, k]``.

    Raises:
        ValueError: the file does not hold that; one line says what it holds instead.
        OSError: the file cannot be read.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give digits, toy, or an .npz file with logits and costs")
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in getattr(file, "files", ())}
    except BROKEN as error:
        raise ValueError(f"{path} is not an .npz file of plain numbers; write one with numpy.savez") from error
    missing = [name for name in ("logits", "costs") if name not in arrays]
    if missing:
        found = ", ".join(arrays) or "nothing"
        raise ValueError(f"{path} holds {found}; expected logits and costs, each [examples, k]")
    logits, costs = (as_numbers(path, name, arrays[name]) for name in ("logits", "costs"))
    if logits.dim() != 2 or logits.shape != costs.shape or logits.shape[0] < 1 or logits.shape[1] < 2:
        raise ValueError(
            f"{path} has logits of shape {tuple(logits.shape)} and costs of shape {tuple(costs.shape)}; "
            "both must be [examples, k], with k at least 2"
        )
    if not bool(costs.isfinite().all()):
        raise ValueError(
            f"{path}: {int((~costs.isfinite()).sum())} of the costs are NaN or infinite; costs must be finite"
        )
    return Problem(Categorical(logits), TableCost(costs), f"{path}, one of {logits.shape[1]} codes")


def as_numbers(path: Path, name: str, array: np.ndarray) -> Tensor:
    """A floating-point tensor; double precision stays, all else becomes single."""
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{path}: {name} holds {array.dtype}; expected numbers")
    return torch.from_numpy(array.astype(np.float64 if array.dtype == np.float64 else np.float32))
