"""Small charts as SVG text: drawn in a millisecond, sharp at any size, in the page's own colours, light or dark."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, final

__all__ = ["FAINT", "INK", "NOTE", "Axis", "Chart", "side_by_side"]

INK, FAINT, GRID = "var(--body-text-color)", "var(--neutral-500)", "var(--border-color-primary)"
NOTE = "font-size:.85em;opacity:.75"
"""The style of what is said on the side: smaller, and still easy to read on white and on black."""


@final
@dataclass(frozen=True)
class Axis:
    """A range of numbers.

    Args:
        low: the smallest that is shown.
        high: the largest.
        name: what they are.
        logarithmic: whether equal factors are equally far apart.
        labels: what to write at some numbers, in place of the numbers themselves.
    """

    low: float
    high: float
    name: str = ""
    logarithmic: bool = False
    labels: tuple[tuple[float, str], ...] | None = None

    def place(self, value: float) -> float:
        """Where a number lies: 0 at the low end, 1 at the high end, and outside of these if it is outside the range."""
        if self.logarithmic:
            value = max(value, 1e-300)
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """A few round numbers in the range, as one writes them."""
        if self.labels is not None:
            return list(self.labels)
        if self.logarithmic:
            low, high = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            factors = (1,) if high - low > 2 else (1, 3) if high - low > 1 else (1, 2, 5)
            values = [factor * 10.0**power for power in range(low, high + 1) for factor in factors]
        else:
            step = 10.0 ** math.floor(math.log10((self.high - self.low) / 3))
            step *= next(factor for factor in (1, 2, 5, 10) if (self.high - self.low) / (factor * step) <= 5)
            values = [step * number for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        tolerance = 1e-9
        return [(value, f"{value:g}") for value in values if -tolerance <= self.place(value) <= 1 + tolerance]


@final
class Chart:
    """A chart that grows by what is put into it; what lies outside its axes is cut off.

    Args:
        across: the horizontal axis.
        up: the vertical axis.
        width: in the chart's own units, of which letters are 11 high.
        height: likewise.
    """

    LEFT, RIGHT, TOP, BOTTOM = 44, 8, 24, 36

    def __init__(self, across: Axis, up: Axis, *, width: int = 300, height: int = 230) -> None:
        self.across, self.up = across, up
        self.width, self.height = width, height
        self.inner_width, self.inner_height = width - self.LEFT - self.RIGHT, height - self.TOP - self.BOTTOM
        self._inside: list[str] = []

    def x(self, value: float) -> float:
        """Of the plot's inside."""
        return round(self.across.place(value) * self.inner_width, 2)

    def y(self, value: float) -> float:
        """Of the plot's inside, from the top; far outside is as good as outside."""
        return round((1 - min(max(self.up.place(value), -1.0), 2.0)) * self.inner_height, 2)

    def line(self, points: Iterable[tuple[float, float]], colour: str, *, width: float = 2, dashes: str = "") -> None:
        """A line through points."""
        places = " ".join(
            f"{self.x(x)},{self.y(y)}" for x, y in points if math.isfinite(y) and (y > 0 or not self.up.logarithmic)
        )
        self._inside.append(
            f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{width}" '
            f'stroke-dasharray="{dashes}" stroke-linejoin="round"/>'
        )

    def bar(self, at: float, start: float, end: float, width: float, colour: str, *, opacity: float = 1.0) -> None:
        """A bar around ``at`` from one height to another; the width is in units of the horizontal axis."""
        top, bottom = sorted((self.y(start), self.y(end)))
        left, right = self.x(at - width / 2), self.x(at + width / 2)
        self._inside.append(
            f'<rect x="{left:.2f}" y="{top}" width="{right - left:.2f}" height="{max(bottom - top, 0.75):.2f}" '
            f'fill="{colour}" opacity="{opacity}"/>'
        )

    def dot(
        self,
        x: float,
        y: float,
        colour: str,
        *,
        shape: Literal["circle", "square", "triangle", "diamond"] = "circle",
        hollow: bool = False,
        size: float = 4.0,
    ) -> None:
        """A mark at a point."""
        a, b = self.x(x), self.y(y)
        outlines: dict[str, list[tuple[float, float]]] = {
            "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
            "triangle": [(0, -1.2), (1.1, 0.9), (-1.1, 0.9)],
            "diamond": [(0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)],
        }
        look = f'fill="{"var(--background-fill-primary)" if hollow else colour}" stroke="{colour}" stroke-width="1.5"'
        if shape == "circle":
            self._inside.append(f'<circle cx="{a}" cy="{b}" r="{size}" {look}/>')
            return
        corners = " ".join(f"{a + size * p:.2f},{b + size * q:.2f}" for p, q in outlines[shape])
        self._inside.append(f'<polygon points="{corners}" {look}/>')

    def upright(self, x: float, colour: str, *, dashes: str = "3 3") -> None:
        """A vertical line."""
        a = self.x(x)
        self._inside.append(
            f'<line x1="{a}" x2="{a}" y1="0" y2="{self.inner_height}" stroke="{colour}" stroke-dasharray="{dashes}"/>'
        )

    def level(self, y: float, colour: str = INK) -> None:
        """A horizontal line."""
        b = self.y(y)
        self._inside.append(
            f'<line x1="0" x2="{self.inner_width}" y1="{b}" y2="{b}" stroke="{colour}" stroke-width="0.75"/>'
        )

    def word(self, x: float, y: float, words: str, colour: str = INK, *, above: float = 8, bold: bool = False) -> None:
        """Words over a point, kept inside from left to right."""
        half = 3.1 * len(words)
        a = min(max(self.x(x), half), self.inner_width - half)
        b = min(max(self.y(y) - above, 10), self.inner_height - 4)
        self._inside.append(
            f'<text x="{a:.2f}" y="{b:.2f}" text-anchor="middle" fill="{colour}" '
            f'font-weight="{"bold" if bold else "normal"}">{html.escape(words)}</text>'
        )

    def svg(self, title: str, description: str) -> str:
        """The whole chart.

        Args:
            title: written above it.
            description: what a reader who cannot see it is told.
        """
        parts = [
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{html.escape(f"{title}. {description}", quote=True)}" font-size="11" '
            f'font-family="inherit" style="width:100%;height:auto;display:block">',
            f'<text x="0" y="13" font-size="12" font-weight="bold" fill="{INK}">{html.escape(title)}</text>',
        ]
        bottom = self.TOP + self.inner_height
        for value, words in self.up.ticks():
            b = self.TOP + self.y(value)
            parts.append(f'<line x1="{self.LEFT}" x2="{self.width - self.RIGHT}" y1="{b}" y2="{b}" stroke="{GRID}"/>')
            parts.append(
                f'<text x="{self.LEFT - 5}" y="{b + 4}" text-anchor="end" fill="{FAINT}">{html.escape(words)}</text>'
            )
        for value, words in self.across.ticks():
            a = self.LEFT + self.x(value)
            parts.append(
                f'<text x="{a}" y="{bottom + 14}" text-anchor="middle" fill="{FAINT}">{html.escape(words)}</text>'
            )
        parts.append(
            f'<text x="{self.LEFT + self.inner_width / 2}" y="{self.height - 5}" text-anchor="middle" '
            f'fill="{INK}">{html.escape(self.across.name)}</text>'
        )
        parts.append(
            f'<svg x="{self.LEFT}" y="{self.TOP}" width="{self.inner_width}" height="{self.inner_height}" '
            f'overflow="hidden">{"".join(self._inside)}</svg></svg>'
        )
        return "".join(parts)


def side_by_side(charts: Sequence[str], *, least: int = 230) -> str:
    """Charts in a row, or below each other where the page is narrow.

    Args:
        charts: finished ones.
        least: pixels that each needs.
    """
    inside = "".join(f"<div>{chart}</div>" for chart in charts)
    columns = f"repeat(auto-fit,minmax(min(100%,{least}px),1fr))"
    return f'<div style="display:grid;grid-template-columns:{columns};gap:.75rem 1rem">{inside}</div>'
