"""Images with attributes to explore: switches with names, and a continuous remainder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from argrad.app.explorable.base import Coordinate, Point, Posterior, Variable, require_images, standard_normal
from argrad.data.binarization import Binarization
from argrad.models.attributes.module import AttributeModule
from argrad.models.attributes.scikit_learn import AttributeVAE

__all__ = ["ExplorableAttributes", "open_attributes"]


@final
@dataclass(frozen=True)
class ExplorableAttributes:
    """The module in eval mode. Its run does not say where the images came from, so there are no examples."""

    module: AttributeModule
    names: tuple[str, ...]
    shape: tuple[int, ...]
    columns: int | None = None
    binarization: Binarization = "none"

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The attributes."""
        return tuple(Variable(name, ("off", "on")) for name in self.names)

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """The remainder."""
        return tuple(Coordinate(f"remainder {number + 1}") for number in range(self.module.remainder))

    @torch.no_grad()
    def generate(self, points: Sequence[Point]) -> Tensor:
        """The mean image at each point."""
        attributes = torch.tensor([point.choices for point in points], dtype=torch.float32)
        remainder = torch.tensor([point.coordinates for point in points], dtype=torch.float32)
        return self.module.decode(attributes, remainder)

    @torch.no_grad()
    def posterior(self, image: Tensor) -> Posterior:
        """q(a|x), whose most probable combination need not be that of the single attributes, and q(r|x)."""
        x = image.unsqueeze(0)
        q, r = self.module.posterior(x)
        on = self.module.probabilities(x, generator=torch.Generator().manual_seed(0))[0]
        numbers = tuple(one.inside(value) for one, value in zip(self.coordinates, r.mean[0].tolist(), strict=True))
        point = Point(tuple(int(bit) for bit in q.mode()[0].tolist()), numbers)
        assert r.logvar is not None
        spreads = tuple((r.logvar[0] / 2).exp().tolist())
        return Posterior(tuple(torch.stack([1 - on, on], -1)), point, spreads, self.generate([point])[0])

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> Point:
        """Attributes from the learnt prior."""
        bits = self.module.draw_attributes(1, generator=generator)[0].tolist()
        remainder = standard_normal(self.module.remainder, generator, self.coordinates)
        return Point(tuple(int(bit) for bit in bits), remainder)

    def examples(self, number: int, seed: int) -> None:
        """None are at hand."""

    def usage(self) -> None:
        """Without images it is not known."""


def open_attributes(path: Path) -> ExplorableAttributes:
    """The attribute model of a run folder."""
    model = AttributeVAE.from_run(path, device="cpu")
    require_images(model.example_shape_)
    return ExplorableAttributes(model.module_, model.attribute_names_, model.example_shape_)
