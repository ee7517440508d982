"""Curves of several runs in one drawing, told apart by colours for everybody, by dashes, and by labels at the lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from matplotlib.figure import Figure

from argrad.app.compare.records import Record, is_number

__all__ = ["By", "curves", "in_words"]

By = Literal["epoch", "seconds"]
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8A6500", "#444444")
"""Okabe and Ito's, the light ones darkened."""
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), "-.", (0, (8, 2, 2, 2)), (0, (1, 1)))
LONGEST_LABEL = 22
"""Characters."""
LINE = 0.07
"""The height of a label, as a share of the drawing's."""


def points(record: Record, by: By) -> tuple[list[float], list[float]]:
    """Where a run was after each epoch."""
    rows = [row for row in record.history if is_number(row.get(by))]
    return [float(row[by]) for row in rows], [float(row["loss"]) for row in rows]


def curves(records: Sequence[Record], by: By) -> Figure:
    """Validation loss by epoch, or by seconds of training."""
    drawing = Figure(figsize=(6.2, 3.6))
    axes = drawing.add_axes((0.11, 0.15, 0.61, 0.8))
    ends = []
    for number, record in enumerate(records):
        x, y = points(record, by)
        if not x:
            continue
        marker = "." if len(x) < 3 else None
        axes.plot(x, y, color=COLOURS[number], linestyle=DASHES[number], marker=marker, linewidth=1.8)
        ends.append((y[-1], number))
    axes.set(xlabel="epoch" if by == "epoch" else "seconds of training", ylabel="validation loss")
    axes.spines[["top", "right"]].set_visible(False)
    if not ends:
        axes.text(0.5, 0.5, "no metrics were recorded", ha="center", transform=axes.transAxes)
        return drawing
    low, high = axes.get_ylim()
    heights = apart([(value - low) / (high - low) for value, _ in sorted(ends)], LINE)
    for (value, number), height in zip(sorted(ends), heights, strict=True):
        colour = COLOURS[number]
        axes.annotate(
            short_name(records[number].run.name),
            xy=(1.0, (value - low) / (high - low)),
            xytext=(1.06, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=colour,
            fontsize=8.5,
            va="center",
            annotation_clip=False,
            parse_math=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8, "linestyle": DASHES[number]},
        )
    return drawing


def apart(heights: Sequence[float], least: float) -> list[float]:
    """Rising heights moved so that none is nearer than so much to the next, as little as can be, and none below 0.

    >>> [round(height, 2) for height in apart([0.1, 0.12, 0.9], 0.1)]
    [0.06, 0.16, 0.9]
    """
    groups: list[list[float]] = []  # the heights that are wanted; a group stands together around their mean
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and lowest(groups[-1], least) < lowest(groups[-2], least) + len(groups[-2]) * least:
            last = groups.pop()
            groups[-1] += last
    return [lowest(group, least) + place * least for group in groups for place in range(len(group))]


def lowest(group: Sequence[float], least: float) -> float:
    """Where the lowest label of a group stands."""
    return max(0.0, sum(group) / len(group) - least * (len(group) - 1) / 2)


def short_name(name: str) -> str:
    """The end of a long name: folders begin alike.

    >>> short_name("demo-20190526-101500/direct-gradient")
    '…101500/direct-gradient'
    """
    return name if len(name) <= LONGEST_LABEL else "…" + name[-LONGEST_LABEL:]


def in_words(records: Sequence[Record], by: By) -> str:
    """The drawing for those who do not see it."""
    unit = "epochs" if by == "epoch" else "seconds"
    said = []
    for record in records:
        x, y = points(record, by)
        if x:
            said.append(f"{record.run.name} goes from {y[0]:.2f} to {y[-1]:.2f} in {x[-1]:g} {unit}")
    return f"Validation loss by {by}: {'; '.join(said) if said else 'nothing was recorded'}."
