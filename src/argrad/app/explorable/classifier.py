"""A classifier from a few labels to explore: a class, and a Gaussian vector for all that the class leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from argrad.app.explorable.base import (
    Coordinate,
    Point,
    Posterior,
    Variable,
    examples_of,
    require_images,
    standard_normal,
)
from argrad.data.binarization import Binarization
from argrad.models.semi_supervised.module import SemiSupervisedModule
from argrad.models.semi_supervised.run import FewLabels, load_classifier

__all__ = ["ExplorableClassifier", "open_classifier"]


@final
@dataclass(frozen=True)
class ExplorableClassifier:
    """The module in eval mode, and its data."""

    module: SemiSupervisedModule
    data: FewLabels
    columns: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an image."""
        return self.data.images.shape

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The class, by the name that it has in the data."""
        return (Variable("class", tuple(str(name) for name in self.data.classes)),)

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """The Gaussian vector."""
        return tuple(Coordinate(f"style {number + 1}") for number in range(self.module.latent))

    @property
    def binarization(self) -> Binarization:
        """As the data was."""
        return self.data.images.binarization

    @torch.no_grad()
    def generate(self, points: Sequence[Point]) -> Tensor:
        """The mean image at each point."""
        labels = torch.tensor([point.choices[0] for point in points])
        vectors = torch.tensor([point.coordinates for point in points], dtype=torch.float32)
        return self.module.sample(labels, noise=vectors).reshape(len(points), *self.shape)

    @torch.no_grad()
    def posterior(self, image: Tensor) -> Posterior:
        """q(c|x), and the Gaussian of the most probable class."""
        scores, gaussian = self.module.encode(image.reshape(1, -1))
        probabilities = scores[0].softmax(-1)
        label = int(probabilities.argmax())
        assert gaussian.logvar is not None
        mean, spread = gaussian.mean[0, label].tolist(), (gaussian.logvar[0, label] / 2).exp().tolist()
        numbers = tuple(one.inside(value) for one, value in zip(self.coordinates, mean, strict=True))
        point = Point((label,), numbers)
        return Posterior((probabilities,), point, tuple(spread), self.generate([point])[0])

    def draw(self, generator: torch.Generator) -> Point:
        """Every class is as probable as the others."""
        label = int(torch.randint(len(self.data.classes), (), generator=generator))
        return Point((label,), standard_normal(self.module.latent, generator, self.coordinates))

    def examples(self, number: int, seed: int) -> Tensor:
        """Test images."""
        return examples_of(self.data.images, number, seed)

    @torch.no_grad()
    def usage(self) -> Tensor:
        """The mean of q(c|x) over validation images."""
        images = self.data.images
        stored = images.validation if len(images.validation) else images.train
        x = images.values(stored, torch.Generator().manual_seed(0)).flatten(1)
        return self.module.class_scores(self.module.trunk(x)).softmax(-1).mean(0, keepdim=True)


def open_classifier(path: Path) -> ExplorableClassifier:
    """The classifier of a run folder."""
    module, _, data = load_classifier(path)
    require_images(data.images.shape)
    return ExplorableClassifier(module, data)
