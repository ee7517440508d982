"""What each run generates, and which codes it uses."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from argrad.app.compare.records import report_link
from argrad.app.explorable.base import Explorable, Point
from argrad.app.explorable.runs import EXPLORABLE, open_explorable
from argrad.app.explore.pictures import drawing_html, mosaic_html
from argrad.app.explore.writing import write_lines
from argrad.app.library import KINDS, Library, Run

__all__ = ["cards_html", "samples", "usage_bars"]

SAMPLES = 24
LINES = 8
"""Of a run that writes."""


def cards_html(library: Library, runs: Sequence[Run]) -> str:
    """A card for each run; one that cannot be loaded says why, and the others are shown all the same."""
    return f'<div class="compare-cards">{"".join(card(library, run) for run in runs)}</div>'


def card(library: Library, run: Run) -> str:
    """What one run generates and uses."""
    try:
        inside = library.once("card", [run], lambda: contents(library, run))
    except (OSError, ValueError) as error:
        inside = f'<p class="compare-note">{html.escape(str(error))}</p>'
    return f"<section><h4>{report_link(run)}</h4>{inside}</section>"


def contents(library: Library, run: Run) -> str:
    """Pictures, or lines."""
    if run.kind == "write":
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in write_lines(library, run.name, LINES, 0))
        return f'<p class="soft">Lines that it writes:</p><ul class="compare-lines">{lines}</ul>'
    if run.kind not in EXPLORABLE:
        return f'<p class="soft">A run of {KINDS[run.kind]} has a tab of its own.</p>'
    explorable = open_explorable(library, run)
    words, images = samples(explorable)
    picture = mosaic_html(images, f"{words} of {run.name}", columns=8)
    shares = explorable.usage()
    if shares is None:
        used = '<p class="soft">Its data is not at hand, so the use of its codes is not known.</p>'
    else:
        drawing, said = usage_bars(explorable, shares)
        used = drawing_html(drawing, said)
    return f'<p class="soft">{words}</p><div class="pixels">{picture}</div>{used}'


def samples(explorable: Explorable) -> tuple[str, Tensor]:
    """Images that the model generates, and what they are: every value where there are few, else draws."""
    few = len(explorable.variables) == 1 and len(explorable.variables[0].values) <= SAMPLES
    if few and not explorable.coordinates:
        count = len(explorable.variables[0].values)
        return "The image of every code", explorable.generate([Point((value,)) for value in range(count)])
    generator = torch.Generator().manual_seed(0)
    drawn = [explorable.draw(generator) for _ in range(SAMPLES)]
    return "Images drawn from the prior", explorable.generate(drawn)


def usage_bars(explorable: Explorable, shares: Tensor) -> tuple[Figure, str]:
    """How often each value is used, and the same in words.

    Args:
        explorable: the model.
        shares: ``[variables, values]``, or ``[1, values]`` of a shared vocabulary.
    """
    values = shares.shape[1]
    switches = values == 2 and len(shares) > 1
    if switches:
        heights, label, share = shares[:, 1].numpy(), "bit", "share of 1s"
    else:
        heights = np.sort(shares.numpy(), -1)[:, ::-1].reshape(-1)
        label = f"{'value' if len(shares) == 1 else 'value of each variable'}, most used first"
        share = "share"
    drawing = Figure(figsize=(4.2, 1.9), layout="constrained")
    axes = drawing.subplots()
    axes.bar(np.arange(len(heights)), heights, color="#0072B2", width=0.85 if len(heights) <= 60 else 1.0)
    axes.axhline(1 / values, color="#555555", linewidth=1, linestyle="--")
    axes.set(xlabel=label, ylabel=share)
    axes.spines[["top", "right"]].set_visible(False)
    said = (
        f"Use of {len(heights)} {'bits' if switches else 'values'} on validation images: the shares go from "
        f"{float(heights.max()):.1%} down to {float(heights.min()):.1%}; an equal share is {1 / values:.1%}."
    )
    return drawing, said
