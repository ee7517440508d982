"""`AttributeImages`: images with named attributes that are on, off or not known, in three splits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from argrad.data.errors import WrongOption


@dataclass(frozen=True, eq=False, repr=False)
class AttributeImages:
    """Train, validation and test images of one data set, with attributes.

    Args:
        name: what to call the data.
        names: of the attributes.
        train: images, uint8, [N, H, W] grey or [N, 3, H, W] colour; `values` turns them into numbers from 0 to 1.
        validation: images, [V, ...].
        test: images, [T, ...].
        train_attributes: int64 [N, attributes]: 1 on, 0 off, -1 not known.
        validation_attributes: int64 [V, attributes].
        test_attributes: int64 [T, attributes].
        groups: what train, validation and test have apart, such as the people in them; empty where nothing is.

    Example:
        >>> dark, on = torch.zeros(2, 4, 4, dtype=torch.uint8), torch.ones(2, 1, dtype=torch.int64)
        >>> AttributeImages("dark", ("night",), dark, dark, dark, on, on, on)
        AttributeImages('dark', shape (4, 4), train 2, validation 2, test 2, attributes night)
    """

    name: str
    names: tuple[str, ...]
    train: Tensor
    validation: Tensor
    test: Tensor
    train_attributes: Tensor
    validation_attributes: Tensor
    test_attributes: Tensor
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return tuple(self.train.shape[1:])

    def values(self, images: Tensor) -> Tensor:
        """Stored images as float32 from 0 to 1."""
        return images.float() / 255

    def column(self, attribute: str) -> int:
        """The place of an attribute."""
        return places(self.names, (attribute,), self.name)[0]

    def __repr__(self) -> str:
        sizes = f"train {len(self.train)}, validation {len(self.validation)}, test {len(self.test)}"
        return f"AttributeImages({self.name!r}, shape {self.shape}, {sizes}, attributes {', '.join(self.names)})"


def places(names: Sequence[str], wanted: Sequence[str] | None, where: str) -> list[int]:
    """The places of some attributes among all; of all of them when None.

    Example:
        >>> places(("left", "right", "up"), ("up", "left"), "poses")
        [2, 0]
    """
    if wanted is None:
        return list(range(len(names)))
    if isinstance(wanted, str):
        raise WrongOption(f"attributes={wanted!r} is one word: give a list of names, such as [{wanted!r}]")
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise WrongOption(f"{where} has no attribute {unknown[0]!r}: choose from {', '.join(names)}")
    if not wanted or len(set(wanted)) < len(wanted):
        raise WrongOption(f"attributes={tuple(wanted)} must be one or more names, each once")
    return [list(names).index(name) for name in wanted]


def as_tensors(images: NDArray[Any], attributes: NDArray[Any]) -> tuple[Tensor, Tensor]:
    """Arrays as tensors of their own."""
    return (
        torch.from_numpy(np.require(images, np.uint8, ["C", "W"])),
        torch.from_numpy(np.require(attributes, np.int64, ["C", "W"])),
    )
