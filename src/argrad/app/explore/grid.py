"""A grid over two latents: what the model generates as each of them takes its values, all else as it is."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from argrad.app.explorable.base import Explorable, Point
from argrad.app.explore.pictures import image_html

__all__ = ["NOTHING", "axes", "grid_html", "usual_axes"]

NOTHING = "nothing"
"""The axis that is left out."""
ALONG = 10
"""The most values on an axis of two."""
ALONE = 60
"""The most values of a variable that is shown alone."""


@final
@dataclass(frozen=True)
class Step:
    """One place on an axis."""

    name: str
    variable: int | None
    coordinate: int | None
    value: float

    def at(self, point: Point) -> Point:
        """The point with this latent set."""
        if self.variable is not None:
            return point.with_choice(self.variable, int(self.value))
        assert self.coordinate is not None
        return point.with_coordinate(self.coordinate, self.value)


def axes(explorable: Explorable) -> list[tuple[str, str]]:
    """The latents that can be an axis: what a visitor reads, and the word for it."""
    discrete = [
        (variable.name.capitalize(), f"variable {number}") for number, variable in enumerate(explorable.variables)
    ]
    continuous = [(one.name.capitalize(), f"coordinate {number}") for number, one in enumerate(explorable.coordinates)]
    return [*discrete, *continuous]


def usual_axes(explorable: Explorable) -> tuple[str, str]:
    """What is shown at first: across, then down. The first variable and what comes next, or a cell in the middle."""
    words = [word for _, word in axes(explorable)]
    if explorable.columns is not None:
        rows = len(explorable.variables) // explorable.columns
        return words[rows // 2 * explorable.columns + explorable.columns // 2], NOTHING
    return words[0], words[1] if len(words) > 1 else NOTHING


def steps(explorable: Explorable, word: str, most: int, at: Point) -> list[Step]:
    """The places on an axis; of a variable with too many values some, evenly spaced, and the one that is chosen."""
    known = {key: name for name, key in axes(explorable)}
    if word not in known:
        raise ValueError("this latent belongs to another run; choose the axes again")
    kind, _, digits = word.partition(" ")
    number = int(digits)
    if kind == "variable":
        names = explorable.variables[number].values
        return [Step(names[value], number, None, value) for value in spaced(len(names), most, at.choices[number])]
    coordinate = explorable.coordinates[number]
    count = min(most, 9)
    width = (coordinate.high - coordinate.low) / (count - 1)
    values = [round(coordinate.low + width * place, 2) for place in range(count)]
    return [Step(f"{value:g}".replace("-", "−"), None, number, value) for value in values]


def spaced(count: int, most: int, chosen: int) -> list[int]:
    """All numbers below a count, or so many of them, among them the chosen one.

    >>> spaced(3, 5, 0), spaced(100, 5, 7)
    ([0, 1, 2], [7, 25, 50, 74, 99])
    """
    if count <= most:
        return list(range(count))
    values = [round(place * (count - 1) / (most - 1)) for place in range(most)]
    nearest = min(range(most), key=lambda place: abs(values[place] - chosen))
    values[nearest] = chosen
    return values


def grid_html(explorable: Explorable, point: Point, across: str, down: str) -> str:
    """The images as a table, or one after the other where only one latent is given.

    Args:
        explorable: the model.
        point: what all other latents are set to.
        across: the word of the latent that changes from left to right.
        down: that of the other, or :data:`NOTHING`.
    """
    if across == down:
        raise ValueError("the two latents of a grid must differ; choose another one across or down")
    if across == NOTHING:
        across, down = down, across
    names = {key: name for name, key in axes(explorable)}
    if down == NOTHING:
        alone = steps(explorable, across, ALONE, point)
        images = explorable.generate([step.at(point) for step in alone])
        return flowing(images, names[across], alone, size_of(explorable, across))
    columns, rows = steps(explorable, across, ALONG, point), steps(explorable, down, ALONG, point)
    images = explorable.generate([column.at(row.at(point)) for row in rows for column in columns])
    return table(images, (names[across], names[down]), columns, rows)


def size_of(explorable: Explorable, word: str) -> int | None:
    """How many values a variable has; None of a coordinate."""
    kind, _, digits = word.partition(" ")
    return len(explorable.variables[int(digits)].values) if kind == "variable" else None


def flowing(images: Tensor, name: str, alone: Sequence[Step], size: int | None) -> str:
    """Images one after the other, their values below them."""
    inside = "".join(
        f"<figure>{image_html(image, f'{name} {step.name}')}<figcaption>{html.escape(step.name)}</figcaption></figure>"
        for image, step in zip(images, alone, strict=True)
    )
    shown = f"{len(alone)} of its {size} values" if size and size > len(alone) else "every value"
    words = f"{name}: {shown}" if size else f"{name}: from {alone[0].name} to {alone[-1].name}"
    return f'<p class="soft">{html.escape(words)}</p><div class="explore-flow">{inside}</div>'


def table(images: Tensor, names: tuple[str, str], columns: Sequence[Step], rows: Sequence[Step]) -> str:
    """Images in rows and columns with their values at the edges."""
    head = "".join(f'<th scope="col">{html.escape(column.name)}</th>' for column in columns)
    body = ""
    pictures: Any = iter(images)
    for row in rows:
        cells = "".join(
            f"<td>{image_html(next(pictures), f'{names[0]} {column.name}, {names[1]} {row.name}')}</td>"
            for column in columns
        )
        body += f'<tr><th scope="row">{html.escape(row.name)}</th>{cells}</tr>'
    across, down = html.escape(names[0]), html.escape(names[1])
    # A few large cells are no use: a table of two columns is kept narrow.
    width = min(100, 12 * (len(columns) + 1))
    return (
        f'<table class="explore-grid" style="width:{width}%"><caption>Across: {across}. Down: {down}.</caption>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>"
    )
