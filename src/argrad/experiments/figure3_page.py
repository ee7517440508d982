"""Figure 3 for a person: tables and the picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from argrad.experiments.drawing import COLOURS, new_figure, prepare, save

__all__ = ["format_table", "markdown", "plot"]


def mean(numbers: Sequence[float]) -> float:
    """The mean."""
    return sum(numbers) / len(numbers)


def spread(numbers: Sequence[float]) -> float:
    """The standard deviation, 0 for one number."""
    if len(numbers) < 2:
        return 0.0
    centre = mean(numbers)
    return float((sum((number - centre) ** 2 for number in numbers) / (len(numbers) - 1)) ** 0.5)


def lines_of(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Input, encoder, method, its setting and rate, test loss, distance to the exact gradient's, −log p, ms a step."""
    rows: list[tuple[str, ...]] = []
    exact = {
        (row["encoder"], row["input"]): mean(row["test_loss"]) for row in result["rows"] if row["method"] == "exact"
    }
    milliseconds = result["step_cost"][0]["milliseconds"]
    for row in result["rows"]:
        reference = exact.get((row["encoder"], row["input"]), exact.get((row["encoder"], "one-hot")))
        away = "–" if reference is None else f"{mean(row['test_loss']) - reference:+.2f}"
        setting = "–" if row["setting"] is None else f"{row['setting']:g}"
        rows.append(
            (
                row["input"],
                row["encoder"],
                row["method"],
                setting,
                f"{row['learning_rate']:g}",
                f"{mean(row['test_loss']):.2f} ± {spread(row['test_loss']):.2f}",
                away,
                f"{mean(row['nll']):.2f}",
                f"{milliseconds[row['method'] + ', ' + row['encoder']]['median']:.3f}",
            )
        )
    return rows


HEADINGS = ("input", "encoder", "method", "ε or τ", "rate", "test loss", "− exact", "−log p(x)", "ms a step")


def format_table(result: dict[str, Any]) -> str:
    """A line per method, and what steps cost."""
    lines = ["QUICK: small images, few bits and epochs; this is not the paper's figure."] if result["quick"] else []
    lines.append(f"Test negative ELBO, nats, mean ± sd over {len(result['rows'][0]['test_loss'])} seeds")
    table = [HEADINGS, *lines_of(result)]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADINGS))]
    lines += ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    for cost in result["step_cost"]:
        lines += ["", f"A step of one model on {cost['device']} ({cost['hardware']}); ratio to direct, unstructured"]
        for name, time in cost["milliseconds"].items():
            ratio = cost["ratios"][f"{name} / direct, unstructured"]
            quartiles = f"[{ratio['quartiles'][0]:.2f}, {ratio['quartiles'][1]:.2f}]"
            lines.append(f"  {name:<42} {time['median']:8.3f} ms  {ratio['median']:5.2f} {quartiles}")
    return "\n".join(lines)


def markdown(result: dict[str, Any]) -> str:
    """The same for the documentation."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(row) + " |" for row in lines_of(result)]
    lines += ["", "| A step of one model | " + " | ".join(c["hardware"] for c in result["step_cost"]) + " |"]
    lines += ["|---|" + "---|" * len(result["step_cost"])]
    for name in dict.fromkeys(name for cost in result["step_cost"] for name in cost["milliseconds"]):
        cells = []
        for cost in result["step_cost"]:
            time, ratio = cost["milliseconds"].get(name), cost["ratios"].get(f"{name} / direct, unstructured")
            cells.append(f"{time['median']:.3f} ms, {ratio['median']:.2f} ×" if time else "–")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(result: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Left and middle by epoch; the same by seconds and by codes decoded below; the first input."""
    first = result["settings"]["inputs"][0]
    rows = [row for row in result["rows"] if row["input"] == first]
    left = [row for row in rows if row["encoder"] == "unstructured"]
    middle = [row for row in rows if row["method"] in ("direct", "exact")]
    figure = new_figure(13.5, 7.6)
    grid = figure.subplots(2, 3)
    panels = (
        (left, "unstructured encoder", label_of_method),
        (middle, "structured encoders", label_of_encoder),
    )
    for column, (own, title, label) in enumerate(panels):
        above, below = grid[0][column], grid[1][column]
        prepare(above, title, "epoch", "test loss (nats)")
        prepare(below, title, "seconds of one model's steps", "test loss (nats)")
        for row in own:
            draw(above, row, 1.0, label(row))
            draw(below, row, row["seconds_per_epoch"], label(row))
        for axes in (above, below):
            axes.set_ylim(*limits(own))
            axes.set_xlim(left=0)
            axes.legend(fontsize=7, frameon=False)
    prepare(grid[0][2], "unstructured encoder", "codes decoded", "test loss (nats)")
    for row in left:
        per_epoch = row["steps_per_epoch"] * row["codes_decoded_per_step"]
        draw(grid[0][2], row, float(per_epoch), label_of_method(row))
    grid[0][2].set_xscale("log")
    grid[0][2].set_ylim(*limits(left))
    cost = result["step_cost"][0]
    prepare(grid[1][2], f"a step of one model ({cost['hardware']})", "milliseconds")
    times = {name: time["median"] for name, time in cost["milliseconds"].items()}
    bars = grid[1][2].barh([*times], [*times.values()], color="#9bb7d4")
    grid[1][2].bar_label(bars, [f" {time:.2f}" for time in times.values()], fontsize=7)
    grid[1][2].set_xlim(right=1.15 * max(times.values()))
    grid[1][2].invert_yaxis()
    grid[1][2].tick_params(axis="y", labelsize=7)
    bits, data = result["settings"]["bits"], result["settings"]["dataset"]
    save(figure, result, f"{bits} bits on {data}, decoder input {first}; bands: from the best seed to the worst", path)


DASHES = {"unstructured": "-", "supermodular": ":", "general": "--"}


def label_of_method(row: dict[str, Any]) -> str:
    """The method."""
    return str(row["method"])


def label_of_encoder(row: dict[str, Any]) -> str:
    """Encoder and method."""
    return f"{row['encoder']}, {row['method']}"


def draw(axes: Any, row: dict[str, Any], scale: float, label: str) -> None:
    """The mean over seeds, and the band of them."""
    by_look = list(zip(*row["curve"], strict=True))
    at = [scale * epoch for epoch in row["epochs"]]
    colour, dashes = COLOURS[row["method"]], DASHES[row["encoder"]]
    axes.plot(at, [mean(found) for found in by_look], color=colour, linestyle=dashes, linewidth=1.2, label=label)
    axes.fill_between(
        at, [min(found) for found in by_look], [max(found) for found in by_look], color=colour, alpha=0.15
    )


def limits(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """From the least loss to where the curves are after a twentieth of the looks."""
    early = max(seed[len(seed) // 20] for row in rows for seed in row["curve"])
    least = min(min(seed) for row in rows for seed in row["curve"])
    room = 0.05 * max(early - least, 1e-3)
    return least - room, early + room
