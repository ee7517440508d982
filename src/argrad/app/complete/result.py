"""Completions of one picture: made, shown, and put into files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from argrad.app.picture_tags import picture_tag
from argrad.models.completion.files import completions_npz, completions_png
from argrad.models.completion.module import CompletionModule
from argrad.models.completion.report import as_pictures, with_hole
from argrad.training.page import mosaic_png

__all__ = ["MOST_COMPLETIONS", "Completions", "complete", "show_hole"]

MOST_COMPLETIONS = 16
PIXELS = 128
"""About how high a picture is made before the page scales it."""
GRID = "display:grid;grid-template-columns:repeat(auto-fill,minmax({}rem,1fr));gap:.75rem"


@final
@dataclass(frozen=True)
class Completions:
    """One picture, completed in several ways."""

    x: Tensor
    """The picture, ``[1, *shape]``."""
    mask: Tensor
    """``[1, H, W]``, True where hidden."""
    completed: Tensor
    """``[n, *shape]``."""
    components: Tensor
    """Which component of the mixture each came from, ``[n]``, from 0."""
    weights: Tensor
    """Of all components, ``[k]``, summing to 1."""

    def show(self) -> str:
        """All completions as HTML, each with its component."""
        figures = [
            picture_tag(
                png_of(one),
                f"Completion {number} of {len(self.completed)}, from component {component}",
                caption=f"component {component} ({self.weights[component]:.0%})",
            )
            for number, (one, component) in enumerate(
                zip(self.completed, self.components.tolist(), strict=True), start=1
            )
        ]
        return f'<div style="{GRID.format(7)}">{"".join(figures)}</div>'

    def summary(self) -> str:
        """How many, and from where."""
        used = len(self.components.unique())
        return (
            f"{len(self.completed)} completion{'s' if len(self.completed) > 1 else ''} from {used} of "
            f"{len(self.weights)} components; in brackets how probable the model finds each component for this "
            "picture. Visible pixels are those of the picture."
        )

    def write(self, folder: Path) -> tuple[Path, Path]:
        """A picture of all, and the numbers, as `argrad complete` writes them."""
        picture, numbers = folder / "completions.png", folder / "completions.npz"
        picture.write_bytes(completions_png(self.x, self.mask, self.completed))
        numbers.write_bytes(completions_npz(self.completed, self.components))
        return picture, numbers


def complete(module: CompletionModule, x: Tensor, mask: Tensor, number: int, seed: int) -> Completions:
    """Complete one picture.

    Args:
        module: trained.
        x: ``[*shape]``.
        mask: ``[H, W]``, True where hidden.
        number: of completions.
        seed: of their draws.
    """
    if not 1 <= number <= MOST_COMPLETIONS:
        raise ValueError(f"1 to {MOST_COMPLETIONS} completions can be asked for, not {number}")
    x, mask = x.unsqueeze(0), mask.unsqueeze(0)
    module.check(x, mask)
    completed, which = module.complete(x, mask, number, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        weights = module.mixture(module.look(x, mask)).log_weights[0].exp()
    return Completions(x, mask, completed[0], which[0], weights)


def show_hole(x: Tensor, mask: Tensor | None) -> str:
    """A picture ``[*shape]`` as HTML, and beside it what the model sees of it, where there is a mask ``[H, W]``."""
    figures = [picture_tag(png_of(x), "The whole picture", caption="the picture")]
    if mask is not None:
        hole = with_hole(x.unsqueeze(0), mask.unsqueeze(0))[0]
        share = float(mask.float().mean())
        words = f"The picture with a hole: {share:.0%} of its pixels are hidden"
        figures.append(picture_tag(png_of(hole), words, caption=f"what the model sees ({share:.0%} hidden)"))
    return f'<div style="{GRID.format(9)};max-width:28rem">{"".join(figures)}</div>'


def png_of(image: Tensor) -> bytes:
    """One image ``[*shape]``."""
    return mosaic_png(as_pictures(image.unsqueeze(0)), columns=1, zoom=max(1, round(PIXELS / image.shape[-2])))[0]
