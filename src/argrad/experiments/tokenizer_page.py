"""The tokenizer comparison for a person: tables, curves, and pictures where they may be kept."""

from __future__ import annotations

import os
import statistics
from typing import Any

import numpy as np

from argrad.experiments.drawing import COLOURS, new_figure, prepare, save
from argrad.experiments.pictures import unpacked

__all__ = ["format_table", "markdown", "plot"]

LOOKS = {**COLOURS, "direct-gradient": "#6ea6dc", "reinforce": "#8a8a8a", "vq": "#111111"}
HARD_OVER_SOFT, PERPLEXITY = 1.05, 100.0
"""Aims: hard codes at most so much worse than soft or relaxed ones, more than so many codes in use."""
HEADER = ("", "hard error", "soft error", "relaxed", "sampled", "perplexity", "codes used", "prior, nats")


def mean(numbers: list[float], digits: str) -> str:
    """The mean over seeds, and the spread where there are several."""
    spread = f" ± {statistics.stdev(numbers):{digits}}" if len(numbers) > 1 else ""
    return f"{statistics.fmean(numbers):{digits}}{spread}"


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    return (
        row["method"],
        mean(row["hard_error"], ".5f"),
        mean(row["soft_error"], ".5f"),
        *(mean(row[name], ".5f") if name in row else "–" for name in ("relaxed_error", "sampled_error")),
        mean(row["perplexity"], ".0f"),
        f"{statistics.fmean(row['used_codes']):.0%}",
        f"{row['prior_nll']:.1f}",
    )


def rows_of(result: dict[str, Any], dataset: str) -> list[dict[str, Any]]:
    """The rows of a data set, in the order in which they were trained."""
    return [row for row in result["rows"] if row["dataset"] == dataset]


def datasets_of(result: dict[str, Any]) -> list[str]:
    """The data sets of a result, in their order."""
    return list(dict.fromkeys(row["dataset"] for row in result["rows"]))


def format_table(result: dict[str, Any]) -> str:
    """A table for each data set."""
    lines = ["QUICK: small images, few codes, few steps, one seed."] if result["quick"] else []
    for dataset in datasets_of(result):
        rows = rows_of(result, dataset)
        codes, steps = (result["settings"][name] for name in ("codes", "steps"))
        lines.append(f"{dataset}: {codes} codes, {steps} steps, squared error per test pixel")
        table = [HEADER, *map(cells, rows)]
        wide = [max(len(line[column]) for line in table) for column in range(len(HEADER))]
        for line in table:
            first, *others = (text.rjust(width) for text, width in zip(line, wide, strict=True))
            lines.append("  ".join([line[0].ljust(len(first)), *others]))
    return "\n".join(lines)


def markdown(result: dict[str, Any]) -> str:
    """The same for the documentation."""
    parts = []
    for dataset in datasets_of(result):
        header = (dataset, *HEADER[1:])
        lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
        lines += ["| " + " | ".join(cells(row)) + " |" for row in rows_of(result, dataset)]
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, aims(result)])


def hard_over_softer(row: dict[str, Any]) -> float:
    """The error with hard codes over that with soft or relaxed ones, whichever is less; the mean over seeds."""
    soft = [row[name] for name in ("soft_error", "relaxed_error") if name in row]
    return statistics.fmean(hard / min(others) for hard, *others in zip(row["hard_error"], *soft, strict=True))


def aims(result: dict[str, Any]) -> str:
    """Which rows reach the aims, in the mean over seeds."""
    found = {
        f"{row['dataset']} {row['method']}": (hard_over_softer(row), statistics.fmean(row["perplexity"]))
        for row in result["rows"]
    }
    short = [
        f"{name} ({ratio:.3f}, {codes:.0f})"
        for name, (ratio, codes) in found.items()
        if ratio > HARD_OVER_SOFT or codes <= PERPLEXITY
    ]
    wanted = (
        f"Hard codes within {HARD_OVER_SOFT - 1:.0%} of soft and of relaxed ones, perplexity above {PERPLEXITY:.0f}"
    )
    missed = f"; not {', '.join(short)}" if short else ""
    return f"{wanted}: {len(found) - len(short)} of {len(found)} rows{missed}."


def beside(images: np.ndarray[Any, Any], columns: int) -> np.ndarray[Any, Any]:
    """Images ``[N, H, W]`` as one picture, row by row, with white gaps of a pixel."""
    framed = np.pad(images, ((0, 0), (0, 1), (0, 1)), constant_values=255)
    rows = framed.reshape(-1, columns, *framed.shape[1:])
    picture: np.ndarray[Any, Any] = rows.transpose(0, 2, 1, 3).reshape(rows.shape[0] * rows.shape[2], -1)
    return picture


def plot(result: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Validation error and perplexity by step; below, test images, what a method makes of them, and samples."""
    datasets = datasets_of(result)
    pictured = [row for row in result["rows"] if "pictures" in row]
    figure = new_figure(12, 3.4 * len(datasets) + 0.9 * len(pictured))
    heights = [3.4] * len(datasets) + [0.9] * len(pictured)
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
    for number, dataset in enumerate(datasets):
        panels = [figure.add_subplot(grid[number, side]) for side in (0, 1)]
        curves(panels, dataset, rows_of(result, dataset))
    for number, row in enumerate(pictured, start=len(datasets)):
        pictures = {name: unpacked(kept) for name, kept in row["pictures"].items()}
        both = np.concatenate([pictures["originals"], pictures["reconstructions"]])
        shown = ((both, 8, f"{row['method']}: test images, and from their codes"), (pictures["samples"], 12, "samples"))
        for side, (images, columns, words) in enumerate(shown):
            axes = figure.add_subplot(grid[number, side])
            axes.imshow(beside(images, columns), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            axes.set_title(words, fontsize=9, loc="left")
            axes.set_axis_off()
    title = "Image tokenizer: codes by every estimator, and vector quantisation; the mean over seeds"
    save(figure, result, title, path)


def curves(panels: list[Any], dataset: str, rows: list[dict[str, Any]]) -> None:
    """Error on the left, perplexity on the right."""
    prepare(panels[0], dataset, "step", "squared error, hard codes")
    prepare(panels[1], dataset, "step", "perplexity of hard codes")
    panels[0].set_yscale("log")
    for row in rows:
        for axes, key in zip(panels, ("curve", "perplexity_curve"), strict=True):
            line = np.mean(row[key], axis=0)
            axes.plot(row["looked_after"], line, label=row["method"], color=LOOKS[row["method"]], linewidth=1.5)
    panels[0].legend(frameon=False, fontsize=8)
