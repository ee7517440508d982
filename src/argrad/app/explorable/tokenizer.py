"""An image tokenizer to explore: a grid of cells, each one of many codes, and maybe a prior to draw them from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from argrad.app.explorable.base import Coordinate, Point, Posterior, Variable, examples_of, require_images
from argrad.data import Images
from argrad.data.binarization import Binarization
from argrad.models.tokenizer.module import TokenizerModule
from argrad.models.tokenizer.prior import CodePrior
from argrad.models.tokenizer.run import load_images, load_prior, load_tokenizer, prior_path
from argrad.training import read_tensors

__all__ = ["ExplorableTokenizer", "open_tokenizer"]


@final
@dataclass(frozen=True)
class ExplorableTokenizer:
    """The module in eval mode; its prior, its data and the use of its codes, where they are at hand."""

    module: TokenizerModule
    prior: CodePrior | None
    images: Images | None
    binarization: Binarization
    shares: Tensor | None
    coordinates: tuple[Coordinate, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an image."""
        return self.module.shape

    @property
    def columns(self) -> int:
        """Of the grid of cells."""
        return self.module.grid[1]

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The cells, row by row."""
        rows, columns = self.module.grid
        values = tuple(str(code) for code in range(self.module.codes))
        return tuple(
            Variable(f"row {row + 1}, column {column + 1}", values) for row in range(rows) for column in range(columns)
        )

    @torch.no_grad()
    def generate(self, points: Sequence[Point]) -> Tensor:
        """The mean image at each point."""
        codes = torch.tensor([point.choices for point in points]).reshape(len(points), *self.module.grid)
        return self.module.decode(codes)

    @torch.no_grad()
    def posterior(self, image: Tensor) -> Posterior:
        """q(z|x), cell by cell."""
        self.module.check_images(image.unsqueeze(0))
        probabilities = self.module.scores(image.unsqueeze(0))[0].softmax(-1)
        point = Point(tuple(probabilities.argmax(-1).tolist()))
        return Posterior(tuple(probabilities), point, (), self.generate([point])[0])

    def draw(self, generator: torch.Generator) -> Point:
        """From the prior that was trained on codes of images; without one, each cell on its own, by use or evenly."""
        if self.prior is not None:
            return Point(tuple(self.prior.sample(1, generator=generator).flatten().tolist()))
        cells, codes = self.module.event_shape
        shares = torch.ones(codes) if self.shares is None else self.shares
        return Point(tuple(torch.multinomial(shares, cells, replacement=True, generator=generator).tolist()))

    def examples(self, number: int, seed: int) -> Tensor | None:
        """Test images."""
        return None if self.images is None else examples_of(self.images, number, seed)

    def usage(self) -> Tensor | None:
        """How often a code is the most probable one of a cell."""
        return None if self.shares is None else self.shares.unsqueeze(0)


def open_tokenizer(path: Path) -> ExplorableTokenizer:
    """The tokenizer of a run folder."""
    module, settings = load_tokenizer(path)
    require_images(module.shape)
    prior = load_prior(path) if (prior_path(path) / "model.safetensors").is_file() else None
    try:
        images: Images | None = load_images(settings)
    except (OSError, ValueError):  # the model alone is enough
        images = None
    vocabulary = path / "vocabulary.safetensors"
    shares = read_tensors(vocabulary)[0]["usage"] if vocabulary.is_file() else None
    return ExplorableTokenizer(module, prior, images, settings.binarize, shares)
