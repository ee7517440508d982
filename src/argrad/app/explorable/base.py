"""What the app can look into: an image model with discrete variables, maybe a continuous part, and a way back.

Every kind of run is turned into an :class:`Explorable` by a file of its own, so that the tabs know one thing only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor

from argrad.data import Images
from argrad.data.binarization import Binarization

__all__ = [
    "Coordinate",
    "Explorable",
    "Point",
    "Posterior",
    "Variable",
    "examples_of",
    "require_images",
    "standard_normal",
]


@final
@dataclass(frozen=True)
class Variable:
    """A discrete variable.

    Args:
        name: what a visitor calls it.
        values: what its values are called.
    """

    name: str
    values: tuple[str, ...]


@final
@dataclass(frozen=True)
class Coordinate:
    """A number of the continuous part, which is standard normal under the prior.

    Args:
        name: what a visitor calls it.
        low: the least that can be chosen.
        high: the most.
    """

    name: str
    low: float = -4.0
    high: float = 4.0

    def inside(self, value: float) -> float:
        """The nearest number that can be chosen; two places are what a visitor can set and see."""
        return round(min(self.high, max(self.low, value)), 2)


@final
@dataclass(frozen=True)
class Point:
    """One setting of all latents.

    Args:
        choices: for each variable the number of its value.
        coordinates: the continuous part.
    """

    choices: tuple[int, ...]
    coordinates: tuple[float, ...] = ()

    def with_choice(self, variable: int, value: int) -> Point:
        """The same with one variable set to another value."""
        return Point((*self.choices[:variable], value, *self.choices[variable + 1 :]), self.coordinates)

    def with_coordinate(self, coordinate: int, value: float) -> Point:
        """The same with one coordinate set to another number."""
        numbers = (*self.coordinates[:coordinate], value, *self.coordinates[coordinate + 1 :])
        return Point(self.choices, numbers)


@final
@dataclass(frozen=True)
class Posterior:
    """What a model makes of an image.

    Args:
        probabilities: of every value, for each variable.
        point: the most probable values, and the mean of the continuous part.
        spreads: the standard deviation of each coordinate.
        reconstruction: the image that the model generates at the point.
    """

    probabilities: tuple[Tensor, ...]
    point: Point
    spreads: tuple[float, ...]
    reconstruction: Tensor


class Explorable(Protocol):
    """A trained model, ready to be asked by many visitors at once: nothing in it changes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an image: ``[H, W]`` grey, ``[C, H, W]`` otherwise."""

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The discrete part."""

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """The continuous part; empty where there is none."""

    @property
    def columns(self) -> int | None:
        """How many variables make a row, where they lie on a grid over the image; else None."""

    @property
    def binarization(self) -> Binarization:
        """What is done to grey values before the model reads them."""

    def generate(self, points: Sequence[Point]) -> Tensor:
        """The mean image at each point, ``[N, *shape]``."""

    def posterior(self, image: Tensor) -> Posterior:
        """What the model makes of an image of its shape."""

    def draw(self, generator: torch.Generator) -> Point:
        """A point from the prior."""

    def examples(self, number: int, seed: int) -> Tensor | None:
        """Some test images, ``[N, *shape]``; None where the data is not at hand."""

    def usage(self) -> Tensor | None:
        """How often each value is used by validation images, ``[variables, values]``, or ``[1, values]`` of a
        vocabulary that all variables share; None where the data is not at hand.
        """


def require_images(shape: Sequence[int]) -> None:
    """Raise a ValueError for examples that cannot be shown as images."""
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] not in (1, 3)):
        raise ValueError(
            f"this run was trained on examples of shape {tuple(shape)}, which are no images; choose a run on images"
        )


def examples_of(images: Images, number: int, seed: int) -> Tensor:
    """Test images of a data set, as the model reads them; others where there are no test images."""
    stored = next(part for part in (images.test, images.validation, images.train) if len(part))
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(stored), generator=generator)[:number]
    return images.values(stored[chosen], generator)


def standard_normal(number: int, generator: torch.Generator, coordinates: Sequence[Coordinate]) -> tuple[float, ...]:
    """Coordinates from the prior, kept where they can be shown."""
    drawn = torch.randn(number, generator=generator).tolist()
    return tuple(one.inside(value) for one, value in zip(coordinates, drawn, strict=True))
