"""The few numbers that the README shows, from the results that have them; `fill_docs.py` writes them there."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

Rows = list[tuple[str, str]]


def estimators(result: dict[str, Any]) -> Rows:
    """The price of a step."""
    ratio = next(row["ratio"] for row in result["rows"] if row["name"] == "Direct(0.1)" and row["values"] == 10)
    low, high = ratio["quartiles"]
    return [
        (
            "A training step with `Direct(0.1)`, k = 10, over one written around `F.gumbel_softmax`",
            f"{ratio['median']:.2f} [{low:.2f}, {high:.2f}]",
        )
    ]


def solvers(result: dict[str, Any]) -> Rows:
    """The price of structure."""
    row = next(row for row in result["rows"] if row["bits"] == 15 and row["name"] == "solve_pairwise")
    return [
        (
            "The best of 2¹⁵ codes with pairwise scores, a batch of 100",
            f"{row['milliseconds']['median']:.1f} ms; HiGHS, in a loop, {row['times_faster']['median']:,.0f} × that",
        )
    ]


def structures(result: dict[str, Any]) -> Rows:
    """A worked problem."""

    def mean(method: str) -> str:
        forms = [
            statistics.mean(row["test"])
            for row in result["rows"]
            if row["problem"] == "sorting" and row["method"].split(",")[0] == method
        ]
        return f"{max(forms):.1%}"

    return [
        (
            "Learning to sort: digits in place with `Direct`, and with `GumbelSinkhorn`, each in its better form",
            f"{mean('Direct')}, {mean('GumbelSinkhorn')}",
        )
    ]


SOURCES: dict[str, Callable[[dict[str, Any]], Rows]] = {
    "benchmarks/results/estimators.json": estimators,
    "benchmarks/results/solvers.json": solvers,
    "results/structures.json": structures,
}


def markdown(root: Path) -> str:
    """The table, with the command of every number and where it ran."""
    lines = ["| | | Command |", "|---|---|---|"]
    machines = {}
    for path, rows in SOURCES.items():
        result = json.loads((root / path).read_text())
        lines += [f"| {words} | {value} | `{result['command']}` |" for words, value in rows(result)]
        machines[result["hardware"]] = result["software"]
    said = "; ".join(f"{hardware} ({software})" for hardware, software in machines.items())
    return "\n".join([*lines, "", f"Medians and quartiles over rounds, means over seeds. On {said}."])
