"""What the figures share: a canvas without a display, quiet axes, one colour for each method."""

from __future__ import annotations

import os
import textwrap
from typing import Any

__all__ = ["COLOURS", "new_figure", "prepare", "save"]

INK, FAINT = "#333333", "#8a8a8a"
COLOURS = {
    "exact": "#2f7d4f",
    "direct": "#1f5fa8",
    "gumbel-softmax": "#d1662a",
    "straight-through": "#a0307f",
    "local-expectation": "#7a5cc9",
    "arm": "#8c6d31",
    "disarm": "#c9a227",
    "rebar": "#17a2a2",
    "relax": "#c94c4c",
}


def new_figure(width: float, height: float) -> Any:
    """A figure that is only ever written to a file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def prepare(axes: Any, title: str, across: str, up: str = "") -> None:
    """Few lines, words on both axes."""
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.set_xlabel(across, fontsize=9)
    axes.set_ylabel(up, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)


def save(figure: Any, result: dict[str, Any], title: str, path: str | os.PathLike[str]) -> None:
    """Write a figure under a title that says so where the run was a quick one."""
    quick = "QUICK RUN, not the paper's protocol: " if result.get("quick") else ""
    characters = int(12 * figure.get_figwidth())
    figure.suptitle("\n".join(textwrap.wrap(quick + title, characters)), fontsize=10, color=INK)
    figure.savefig(path, dpi=110, format="png")
