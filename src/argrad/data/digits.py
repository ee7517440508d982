"""The 1,797 handwritten 8x8 digits that ship with scikit-learn: nothing to download."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from argrad.data.parts import Part, Raw


def read_digits(files: Mapping[str, Path] | None = None) -> Raw:
    """Read the digits; their pixels 0 .. 16 become floats 0 .. 1 (exact, in sixteenths).

    Args:
        files: not used; every reader of the catalogue takes the files that it needs, and here there are none.

    Example:
        >>> read_digits().rest.pixels.shape
        (1797, 8, 8)
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]

    bunch = load_digits()
    return Raw(Part((bunch.images / 16).astype(np.float32), bunch.target.astype(np.int64)))
