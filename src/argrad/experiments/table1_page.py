"""Table 1 as the documentation shows it: every cell beside the paper's, what was claimed, what it took.

Everything here is read from the results file of :mod:`argrad.experiments.table1`; nothing is typed by hand.
"""

from __future__ import annotations

import statistics
from typing import Any

from argrad.experiments.published import TABLE_1

__all__ = ["markdown"]

COLUMNS = ("exact", "direct", "straight-through", "gumbel-softmax", "as-published", "best")
PUBLISHED = {"exact": "unbiased", "direct": "direct", "straight-through": "gumbel-softmax"}
"""Our rows, and the columns of the paper that they answer to."""
BEST_WITHIN, DIRECT_WITHIN, EM_WITHIN = 0.3, 1.0, 1.0
"""Nats above the paper's best cell, above the paper's direct, above the EM optimum."""

Cells = dict[tuple[str, int, str], dict[str, Any]]


def with_spread(numbers: list[float]) -> str:
    """Mean ± standard deviation over seeds; one number has no spread."""
    if len(numbers) == 1:
        return f"{numbers[0]:.2f}"
    return f"{statistics.mean(numbers):.2f} ± {statistics.stdev(numbers):.2f}"


def cell_text(cells: Cells, dataset: str, k: int, method: str) -> str:
    """Ours, and in brackets the paper's."""
    row = cells.get((dataset, k, method))
    if row is None or "test_loss" not in row:
        return "–"
    printed = TABLE_1.get(dataset, {}).get(k, {}).get(PUBLISHED.get(method, ""))
    return with_spread(row["test_loss"]) + (f" ({printed:.2f})" if printed is not None else "")


def nll_text(cells: Cells, dataset: str, k: int, method: str) -> str:
    """Exact −log p(x) of a row."""
    row = cells.get((dataset, k, method))
    return with_spread(row["nll"]) if row is not None and row.get("nll") else "–"


def markdown(result: dict[str, Any]) -> str:
    """A table per data set, the claims, the choices that validation made, and the time."""
    cells: Cells = {(row["dataset"], row["k"], row["method"]): row for row in result["rows"]}
    datasets = list(dict.fromkeys(row["dataset"] for row in result["rows"]))
    lines = []
    for dataset in datasets:
        values = sorted({row["k"] for row in result["rows"] if row["dataset"] == dataset})
        lines += [f"**{dataset}**", "", "| k | " + " | ".join(COLUMNS) + " | NLL of exact | NLL of best | NLL of EM |"]
        lines.append("|---|" + "---|" * (len(COLUMNS) + 3))
        for k in values:
            texts = [cell_text(cells, dataset, k, method) for method in COLUMNS]
            texts += [nll_text(cells, dataset, k, method) for method in ("exact", "best", "em")]
            lines.append(f"| {k} | " + " | ".join(texts) + " |")
        lines.append("")
    lines += [*claims(cells), "", *choices(result), *effort(result)]
    return "\n".join(lines).rstrip()


def claims(cells: Cells) -> list[str]:
    """In how many cells each claim holds, and where it does not."""
    best, direct, em = Claim(), Claim(), Claim()
    for (dataset, k, method), row in cells.items():
        paper = TABLE_1.get(dataset, {}).get(k)
        name = f"{dataset} k = {k}"
        if method == "best":
            if paper is not None and dataset != "omniglot":
                best.add(name, statistics.mean(row["test_loss"]) - min(paper.values()), BEST_WITHIN)
            optimum = cells.get((dataset, k, "em"))
            if optimum is not None:
                em.add(name, statistics.mean(row["nll"]) - optimum["nll"][0], EM_WITHIN)
        if method == "direct" and paper is not None and dataset != "omniglot":
            direct.add(name, statistics.mean(row["test_loss"]) - paper["direct"], DIRECT_WITHIN)
    return [
        f"- `best` at most {BEST_WITHIN} nat above the best of the paper's three: {best.words()}",
        f"- `direct` at most {DIRECT_WITHIN} nat above the paper's direct: {direct.words()}",
        f"- NLL of `best` at most {EM_WITHIN} nat above that of the EM mixture: {em.words()}",
    ]


class Claim:
    """Cells in which something was to hold."""

    def __init__(self) -> None:
        self.cells = 0
        self.missed: list[str] = []

    def add(self, name: str, excess: float, allowed: float) -> None:
        """One cell: by how much it is above, and what is allowed."""
        self.cells += 1
        if excess > allowed:
            self.missed.append(f"{name} (+{excess:.2f})")

    def words(self) -> str:
        """How many hold, and which do not."""
        held = f"{self.cells - len(self.missed)} of {self.cells} cells."
        return held + (f" Not in {', '.join(self.missed)}." if self.missed else "")


def choices(result: dict[str, Any]) -> list[str]:
    """What validation chose."""
    chosen = result.get("choices_on_validation", {})
    return [f"- Chosen on validation, `{label}` is `{choice}`." for label, choice in chosen.items()]


def effort(result: dict[str, Any]) -> list[str]:
    """Models, steps and time of each data set's populations."""
    lines = []
    total = 0.0
    for dataset, timing in result.get("timing", {}).items():
        parts = []
        for kind, spent in timing.items():
            if isinstance(spent, dict) and {"models", "steps", "seconds"} <= spent.keys():
                total += spent["seconds"]
                rate = spent["steps"] / spent["seconds"] if spent["seconds"] else float("nan")
                parts.append(
                    f"{spent['models']} {kind} models, {spent['steps']:,} steps in {spent['seconds']:.0f} s "
                    f"({rate:,.0f} a second, {rate * spent['models']:,.0f} model steps)"
                )
        if parts:
            lines.append(f"- {dataset}: {'; '.join(parts)}.")
    if lines:
        lines.append(f"- The seconds of all groups add up to {total / 60:.1f} minutes, evaluation left out.")
    return lines
