"""What a reader hands over: pixels as they lie in the files, before splitting and binarisation."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[Any]
"""uint8 or floating point, [N, *shape]."""

Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Part:
    """Images and, where there are any, their labels.

    Args:
        pixels: uint8 or floats, [N, *shape].
        labels: int64 [N] or None.
    """

    pixels: Pixels
    labels: Labels | None = None

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, index: NDArray[np.intp]) -> "Part":
        """Copy out some images, in the order of `index`."""
        return Part(self.pixels[index], None if self.labels is None else self.labels[index])


@dataclass(frozen=True, eq=False)
class Raw:
    """A data set as its files have it.

    Args:
        rest: the images that are still to be split.
        test: the official test set, or None: then it is taken from `rest`.
        validation: the official validation set, or None: then it is taken from `rest`.
        held_out: how many images of `rest` the data set's custom gives to validation; None: fractions decide.
        full_scale: the number that means 1.0 (255 for 8-bit pixels).
    """

    rest: Part
    test: Part | None = None
    validation: Part | None = None
    held_out: int | None = None
    full_scale: int = 1

    @property
    def splits_are_fixed(self) -> bool:
        """Whether the sizes of the three splits are given by the data set itself."""
        return self.test is not None and (self.validation is not None or self.held_out is not None)
