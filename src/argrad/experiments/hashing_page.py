"""The hashing experiment for a person: tables, what the search takes, and mean average precision by bits."""

from __future__ import annotations

import os
import statistics
from typing import Any

from argrad.experiments.drawing import COLOURS, new_figure, prepare, save

__all__ = ["MEASURES", "format_table", "markdown", "plot"]

MEASURES = ("recall@1", "recall@10", "map")
LOOKS = {**COLOURS, "float": COLOURS["exact"], "float, signs": "#8fc4a3", "pca, signs": "#8a8a8a"}


def cell(numbers: list[float]) -> str:
    """Mean and standard deviation over seeds, in percent."""
    percent = [100 * number for number in numbers]
    return f"{statistics.fmean(percent):.1f}" + (f" ± {statistics.stdev(percent):.1f}" if len(percent) > 1 else "")


def lines_of(result: dict[str, Any]) -> list[list[str]]:
    """A line for each data set, loss, number of bits and method; the best first."""
    places = {(row["dataset"], row["loss"] or "", row["bits"]): None for row in result["rows"]}
    lines = [["data", "bits", "loss", "method", "recall@1", "recall@10", "mAP"]]
    for dataset, loss, bits in sorted(places, key=lambda place: (place[0], place[2], place[1])):
        rows = [
            row for row in result["rows"] if (row["dataset"], row["loss"] or "", row["bits"]) == (dataset, loss, bits)
        ]
        for row in sorted(rows, key=lambda row: -statistics.fmean(row["map"])):
            lines.append([dataset, str(bits), loss, row["method"], *(cell(row[name]) for name in MEASURES)])
    return lines


def about_search(result: dict[str, Any]) -> str:
    """The times of the search in words."""
    found = result["search"]
    if found is None:
        return "The search was not timed: numba is not installed."
    times = {name: statistics.median(found[name]) for name in ("milliseconds", "float_milliseconds")}
    processor = statistics.fmean(found["processor_milliseconds"])
    low, high = min(found["milliseconds"]), max(found["milliseconds"])
    return (
        f"{found['queries']} queries among {found['codes']:,} codes of {found['bits']} bits, {found['neighbours']} "
        f"neighbours each: {times['milliseconds']:.1f} ms (median of {len(found['milliseconds'])}, from {low:.1f} to "
        f"{high:.1f}), {processor:.1f} ms of processor time (mean); with {found['bits']} floats in "
        f"place of bits {times['float_milliseconds']:.1f} ms; {found['threads']} threads on {found['hardware']}."
    )


def format_table(result: dict[str, Any]) -> str:
    """What was found, in percent, and how fast."""
    words = ["QUICK: small images, few steps, one seed."] if result["quick"] else []
    lines = lines_of(result)
    if len(lines) > 1:
        wide = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        words.append("Recall and mean average precision on test, in percent (mean and deviation over seeds)")
        for line in lines:
            padded = [
                text.ljust(width) if column < 4 else text.rjust(width)
                for column, (text, width) in enumerate(zip(line, wide, strict=True))
            ]
            words.append("  ".join(padded))
    return "\n".join([*words, about_search(result)])


def markdown(result: dict[str, Any]) -> str:
    """The tables for the documentation, one for each data set, and the search."""
    settings = result["settings"]
    parts = []
    for dataset in settings["datasets"]:
        rows = [row for row in result["rows"] if row["dataset"] == dataset]
        lines = [f"| loss | method | {' | '.join(f'{bits} bits' for bits in settings['bits'])} |"]
        lines.append(f"|---|---|{'---|' * len(settings['bits'])}")
        for loss, method in sorted({(row["loss"] or "", row["method"]): None for row in rows}, key=lambda one: one[0]):
            by_bits = {row["bits"]: row for row in rows if (row["loss"] or "", row["method"]) == (loss, method)}
            lines.append(f"| {loss} | {method} | {' | '.join(short(by_bits[bits]) for bits in settings['bits'])} |")
        parts.append("\n".join([f"{dataset}:", "", *lines]))
    words = (
        f"Recall@1 · recall@10 · mean average precision, in percent, mean over {settings['seeds']} seeds; the last "
        "with its standard deviation over them."
    )
    return "\n\n".join([*parts, *([words] if parts else []), about_search(result)])


def short(row: dict[str, Any]) -> str:
    """The three measures, and how much the last of them varies."""
    return " · ".join([*(f"{100 * statistics.fmean(row[name]):.1f}" for name in MEASURES[:2]), cell(row["map"])])


def plot(result: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Mean average precision by bits, a panel for each data set and loss."""
    settings = result["settings"]
    places = [(dataset, loss) for dataset in settings["datasets"] for loss in settings["losses"]]
    figure = new_figure(5 * max(1, len(settings["losses"])), 4 * max(1, len(settings["datasets"])))
    panels = figure.subplots(max(1, len(settings["datasets"])), max(1, len(settings["losses"])), squeeze=False)
    for axes, (dataset, loss) in zip(panels.flatten(), places, strict=False):
        prepare(axes, f"{dataset}, {loss} loss", "bits (dimensions of float)", "mean average precision, %")
        for method in dict.fromkeys(row["method"] for row in result["rows"]):
            rows = [
                row
                for row in result["rows"]
                if (row["dataset"], row["method"]) == (dataset, method) and row["loss"] in (loss, None)
            ]
            if rows:
                rows.sort(key=lambda row: int(row["bits"]))
                means = [100 * statistics.fmean(row["map"]) for row in rows]
                style = "--" if method.startswith(("float", "pca")) else "-"
                axes.plot([row["bits"] for row in rows], means, style, marker="o", color=LOOKS[method], label=method)
        axes.set_xticks(settings["bits"])
        axes.set_ylim(bottom=0)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    save(figure, result, f"What codes find, mean over {settings['seeds']} seeds; dashed: no bits in training", path)
