"""`Images`: three splits of one image data set, held in memory as small as they come."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from argrad.data.binarization import Binarization, binarize


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """Train, validation and test images of one data set.

    Images are stored as uint8 where that loses nothing (8-bit pixels, bits) and as float32 otherwise; `values` turns a
    batch of them into what a model reads. Grey images have no channel axis, colour images have theirs first.

    Args:
        name: catalogue name, or the path the images came from.
        train: images, [N, *shape], uint8 or float32.
        validation: images, [V, *shape].
        test: images, [T, *shape].
        train_labels: int64 [N], or None where the data has no labels.
        validation_labels: int64 [V] or None.
        test_labels: int64 [T] or None.
        binarization: "round" (the images are bits), "stochastic" (they are probabilities and `values` draws bits) or
            "none" (they are values from 0 to 1).
        full_scale: the stored number that means 1.0: 255 for 8-bit pixels, 1 for bits and floats.

    Example:
        >>> from argrad.data import load
        >>> digits = load("digits")
        >>> digits
        Images('digits', shape (8, 8), train 1437, validation 180, test 180, labels, round)
        >>> digits.values(digits.train[:100]).mean() > 0.2
        tensor(True)
    """

    name: str
    train: Tensor
    validation: Tensor
    test: Tensor
    train_labels: Tensor | None = None
    validation_labels: Tensor | None = None
    test_labels: Tensor | None = None
    binarization: Binarization = "round"
    full_scale: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return tuple(self.train.shape[1:])

    def values(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Turn stored images into float32 values in [0, 1]; under "stochastic" every call draws fresh bits.

        Args:
            images: any rows of `train`, `validation` or `test`, [*batch, *shape].
            generator: source of the bits, on the device of the images; PyTorch's global one when None.

        Returns:
            float32, [*batch, *shape].
        """
        how: Binarization = "stochastic" if self.binarization == "stochastic" else "none"
        return binarize(images, how, generator, full_scale=self.full_scale)

    def to(self, device: torch.device | str) -> "Images":
        """Copy every tensor to a device, in its stored (small) form."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **moved)

    def __repr__(self) -> str:
        labels = "no labels" if self.train_labels is None else "labels"
        sizes = f"train {len(self.train)}, validation {len(self.validation)}, test {len(self.test)}"
        return f"Images({self.name!r}, shape {self.shape}, {sizes}, {labels}, {self.binarization})"
