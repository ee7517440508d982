"""A discrete VAE to explore: one code, several, or bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from argrad.app.explorable.base import Coordinate, Point, Posterior, Variable, examples_of, require_images
from argrad.data import Images
from argrad.data.binarization import Binarization
from argrad.models.discrete_vae.module import DiscreteVAEModule
from argrad.models.discrete_vae.run import load_run

__all__ = ["ExplorableVAE", "open_vae"]


@final
@dataclass(frozen=True)
class ExplorableVAE:
    """The module in eval mode, and its data."""

    module: DiscreteVAEModule
    images: Images
    coordinates: tuple[Coordinate, ...] = ()
    columns: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an image."""
        return self.images.shape

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Codes or bits, counted from 1; their values from 0."""
        word = "bit" if self.module.latent == "bits" else "code"
        values = tuple(str(value) for value in range(self.module.values))
        if self.module.variables == 1:
            return (Variable(word, values),)
        return tuple(Variable(f"{word} {number + 1}", values) for number in range(self.module.variables))

    @property
    def binarization(self) -> Binarization:
        """As the data was."""
        return self.images.binarization

    @torch.no_grad()
    def generate(self, points: Sequence[Point]) -> Tensor:
        """The mean image at each point."""
        choices = torch.tensor([point.choices for point in points])
        if self.module.latent == "bits":
            return self.module.decode(choices.float())
        z = one_hot(choices, self.module.values).float()
        return self.module.decode(z.reshape(len(points), *self.module.event_shape))

    @torch.no_grad()
    def posterior(self, image: Tensor) -> Posterior:
        """q(z|x)."""
        q = self.module.posterior(image.unsqueeze(0))
        mean = q.mean()[0]
        if self.module.latent == "bits":
            probabilities = torch.stack([1 - mean, mean], -1)
        else:
            probabilities = mean.reshape(self.module.variables, self.module.values)
        point = Point(tuple(probabilities.argmax(-1).tolist()))
        return Posterior(tuple(probabilities), point, (), self.generate([point])[0])

    def draw(self, generator: torch.Generator) -> Point:
        """From the prior, uniform or learnt."""
        z = self.module.sample(1, generator=generator)[0][0]
        if self.module.latent == "bits":
            return Point(tuple(int(bit) for bit in z.tolist()))
        return Point(tuple(z.reshape(self.module.variables, self.module.values).argmax(-1).tolist()))

    def examples(self, number: int, seed: int) -> Tensor:
        """Test images."""
        return examples_of(self.images, number, seed)

    def usage(self) -> Tensor:
        """The mean posterior of validation images."""
        stored = self.images.validation if len(self.images.validation) else self.images.train
        return self.module.usage(self.images.values(stored, torch.Generator().manual_seed(0)))


def open_vae(path: Path) -> ExplorableVAE:
    """The discrete VAE of a run folder."""
    module, _, images = load_run(path)
    require_images(images.shape)
    return ExplorableVAE(module, images)
