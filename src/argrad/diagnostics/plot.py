"""The picture of a diagnosis: bias and standard deviation against ε and τ, as in Figure 1 of Lorberbom et al., 2019."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from argrad.diagnostics.diagnosis import Diagnosis, Row

__all__ = ["plot"]

INK, FAINT = "#333333", "#8a8a8a"
SEEN = 2.0
"""A bias counts as seen when it is this many standard errors from zero."""


@dataclass(frozen=True)
class Style:
    """How the rows of one family are drawn."""

    label: str
    colour: str
    marker: str
    swept: str


STYLES = {
    ("Direct", "epsilon"): Style("Direct", "#1f5fa8", "o", "ε"),
    ("Direct", "epsilon", "two_sided", True): Style("Direct, two-sided", "#45b0d4", "s", "ε"),
    ("GumbelSoftmax", "temperature"): Style("Gumbel-softmax", "#d1662a", "^", "τ"),
    ("GumbelSoftmax", "temperature", "straight_through", True): Style("straight-through", "#a0307f", "D", "τ"),
    ("GumbelRao", "temperature"): Style("Gumbel-Rao", "#6b4c9a", "v", "τ"),
}


def plot(diagnosis: Diagnosis, path: str | os.PathLike[str]) -> None:
    """Draw the diagnosis and write it to a file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 4.9), layout="constrained")
    FigureCanvasAgg(figure)
    bias_axes, deviation_axes = figure.subplots(1, 2, sharex=True)
    norm = diagnosis.gradient_norm or 1.0
    families = swept_families(diagnosis.rows)
    for axes, title in ((bias_axes, "Bias"), (deviation_axes, "Standard deviation of one draw")):
        prepare(axes, title)
    bias_axes.set_ylabel("relative to the norm of the gradient" if diagnosis.gradient_norm > 0 else "absolute")
    draw_closed_form(diagnosis, bias_axes, deviation_axes, norm)
    for style, rows in families:
        draw_family(style, rows, bias_axes, deviation_axes, norm, joined=not has_closed_form(diagnosis, style))
    draw_adapted(diagnosis.rows, bias_axes, deviation_axes, norm)
    bias_axes.set_xlim(*horizontal_range(families))
    limit_bias(families, bias_axes, norm)
    limit_deviation(diagnosis.rows, deviation_axes, norm)
    draw_others(diagnosis.rows, deviation_axes, norm)
    explain_bias(diagnosis.rows, bias_axes)
    handles = legend_handles(diagnosis, families)
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    reference = "the exact gradient" if diagnosis.reference == "exact" else diagnosis.reference
    figure.suptitle(f"{diagnosis.latent}, compared with {reference}", fontsize=10, color=INK)
    figure.savefig(path, dpi=110)


def has_closed_form(diagnosis: Diagnosis, style: Style) -> bool:
    """Whether the family is drawn as points on its exact curve."""
    return diagnosis.closed_form is not None and style.swept == "ε"


def legend_handles(diagnosis: Diagnosis, families: Sequence[tuple[Style, Any]]) -> list[Any]:
    """One entry for each family, one for the stars."""
    from matplotlib.lines import Line2D

    handles = []
    for style, _ in families:
        label = f"{style.label} (line: closed form)" if has_closed_form(diagnosis, style) else style.label
        handles.append(
            Line2D([], [], color=style.colour, marker=style.marker, markersize=5, linewidth=1.2, label=label)
        )
    if any(row.adapted is not None for row in diagnosis.rows):
        handles.append(Line2D([], [], color=INK, marker="*", markersize=11, linestyle="", label='ε = "auto"'))
    return handles


def explain_bias(rows: Sequence[Row], axes: Any) -> None:
    """Say in a corner what has no place on a logarithmic axis."""
    names = sorted({row.estimator for row in rows if row.unbiased})
    lines = textwrap.wrap("no bias: " + ", ".join(names), 48) if names else []
    if any(row.bias_error > 0 and row.bias <= SEEN * row.bias_error for row in rows if not row.unbiased):
        lines.append("arrows: bias too small to be seen")
    axes.text(
        0.985, 0.02, "\n".join(lines), transform=axes.transAxes, ha="right", va="bottom", fontsize=8, color=FAINT,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 2, "alpha": 0.85},
    )  # fmt: skip


def prepare(axes: Any, title: str) -> None:
    """Log-log axes with few lines."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(title, fontsize=11, color=INK, loc="left")
    axes.set_xlabel("ε (Direct) or τ (Gumbel-softmax)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)


def swept_families(rows: Sequence[Row]) -> list[tuple[Style, list[tuple[float, Row]]]]:
    """Rows that differ only in ε or τ, in order of it."""
    families = []
    for key, style in STYLES.items():
        name = "epsilon" if style.swept == "ε" else "temperature"
        members = [(abs(float(row.settings[name])), row) for row in rows if row.family == key]
        if members:
            families.append((style, sorted(members, key=lambda member: member[0])))
    return families


def draw_closed_form(diagnosis: Diagnosis, bias_axes: Any, deviation_axes: Any, norm: float) -> None:
    """Direct's expectation and variance where they are known exactly."""
    known = diagnosis.closed_form
    measured = {row.family for row in diagnosis.rows}
    if known is None:
        return
    for key, bias, deviation in (
        (("Direct", "epsilon"), known.bias, known.standard_deviation),
        (("Direct", "epsilon", "two_sided", True), known.bias_two_sided, known.standard_deviation_two_sided),
    ):
        if key in measured:
            style = STYLES[key]
            line = {"color": style.colour, "linewidth": 1.2, "alpha": 0.75, "zorder": 2}
            bias_axes.plot(known.epsilons, [value / norm for value in bias], **line)
            deviation_axes.plot(known.epsilons, [value / norm for value in deviation], **line)


def draw_family(
    style: Style, rows: Sequence[tuple[float, Row]], bias_axes: Any, deviation_axes: Any, norm: float, *, joined: bool
) -> None:
    """Markers with error bars; a bias lost in noise is an arrow down from the largest it could be."""
    line = "-" if joined else ""
    seen = [(x, row) for x, row in rows if row.bias > SEEN * row.bias_error]
    look = {"color": style.colour, "marker": style.marker, "markersize": 5, "linewidth": 1.2, "zorder": 3}
    bias_axes.errorbar(
        [x for x, _ in seen],
        [row.bias / norm for _, row in seen],
        yerr=[row.bias_error / norm for _, row in seen],
        linestyle=line,
        elinewidth=0.8,
        **look,
    )
    for x, row in rows:
        if row.bias <= SEEN * row.bias_error and row.bias_error > 0:
            top = (row.bias + SEEN * row.bias_error) / norm
            bias_axes.annotate(
                "", xy=(x, top / 1.7), xytext=(x, top), zorder=3,
                arrowprops={"arrowstyle": "->", "color": style.colour, "alpha": 0.45, "shrinkA": 0, "shrinkB": 0},
            )  # fmt: skip
    deviation_axes.plot(
        [x for x, _ in rows], [row.standard_deviation / norm for _, row in rows], linestyle=line, **look
    )


def draw_adapted(rows: Sequence[Row], bias_axes: Any, deviation_axes: Any, norm: float) -> None:
    """Direct with an ε that it found itself, as a star at that ε."""
    for row in rows:
        if row.adapted is None or "changes" in row.settings:
            continue
        style = STYLES[("Direct", "epsilon", *(("two_sided", True) if row.settings.get("two_sided") else ()))]
        star = {"color": style.colour, "marker": "*", "markersize": 14, "markeredgecolor": "white", "zorder": 4}
        if row.bias > 0:
            bias_axes.plot([row.adapted], [row.bias / norm], linestyle="", **star)
        deviation_axes.plot([row.adapted], [row.standard_deviation / norm], linestyle="", **star)


def horizontal_range(families: Sequence[tuple[Style, Sequence[tuple[float, Row]]]]) -> tuple[float, float]:
    """From below the smallest ε or τ to above the largest."""
    values = [x for _, rows in families for x, _ in rows] or [0.1, 1.0]
    return min(values) / 1.6, max(values) * 1.6


def limit_bias(families: Sequence[tuple[Style, Sequence[tuple[float, Row]]]], axes: Any, norm: float) -> None:
    """As low as the smallest bias that was seen, or could have been."""
    rows = [row for _, members in families for _, row in members]
    floors = [max(row.bias, row.bias_error) / norm for row in rows if max(row.bias, row.bias_error) > 0]
    if floors:
        tops = [row.bias / norm for row in rows if row.bias > 0] or floors
        axes.set_ylim(min(floors) / 3, max(max(tops), 1.0) * 2)


def limit_deviation(rows: Sequence[Row], axes: Any, norm: float) -> None:
    """All that was measured."""
    values = [row.standard_deviation / norm for row in rows if row.standard_deviation > 0]
    if values:
        axes.set_ylim(min(values) / 2, max(values) * 2)


def draw_others(rows: Sequence[Row], axes: Any, norm: float) -> None:
    """Estimators without ε and τ: a faint line across the standard deviations, named at the right edge."""
    others = sorted(
        (row.standard_deviation / norm, row.name)
        for row in rows
        if row.family not in STYLES and row.standard_deviation > 0 and row.estimator != "Direct"
    )
    low, high = (math.log10(limit) for limit in axes.get_ylim())
    right = axes.get_xlim()[1]
    places = spread_out([math.log10(value) for value, _ in others], 0.043 * (high - low))
    line = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0}
    for place, (value, name) in zip(places, others, strict=True):
        axes.axhline(value, color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        axes.annotate(
            name, xy=(right, value), xytext=(right * 1.3, 10**place), fontsize=8, color=INK, va="center",
            annotation_clip=False, arrowprops=line,
        )  # fmt: skip


def spread_out(values: Sequence[float], gap: float) -> list[float]:
    """Places for labels, at least a gap apart and as near to their sorted values as that allows (least squares).

    Less i gaps each, the places must not fall: isotonic regression, by pooling neighbours that are out of order.
    """
    pools: list[tuple[float, int]] = []
    for index, value in enumerate(values):
        mean, size = value - index * gap, 1
        while pools and pools[-1][0] > mean:
            other, other_size = pools.pop()
            mean, size = (mean * size + other * other_size) / (size + other_size), size + other_size
        pools.append((mean, size))
    flat = [mean for mean, size in pools for _ in range(size)]
    return [mean + index * gap for index, mean in enumerate(flat)]
