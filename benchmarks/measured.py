"""The few numbers that the README shows, from the results that have them; `fill_docs.py` writes them there."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from argrad.experiments.published import TABLE_1, TABLE_2

EM = "EM with location prior, fit"
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
    batch, number = (result["settings"][name] for name in ("batch", "highs_problems"))
    return [
        (
            f"The best of 2¹⁵ codes with pairwise scores, a batch of {batch}; HiGHS, in a loop over {number} of them, "
            f"its time times {batch / number:.3g}",
            f"{row['milliseconds']['median']:.1f} ms; {row['times_faster']['median']:,.0f} × that",
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


def table1(result: dict[str, Any]) -> Rows:
    """The paper's table."""
    cells = {(row["dataset"], row["k"], row["method"]): statistics.mean(row["nll"]) for row in result["rows"]}
    losses = {
        (row["dataset"], row["k"], row["method"]): statistics.mean(row["test_loss"])
        for row in result["rows"]
        if "test_loss" in row
    }
    paper = {(name, k): min(TABLE_1[name][k].values()) for name in ("mnist", "fashion-mnist") for k in TABLE_1[name]}
    below = sum(losses[(*cell, "best")] <= best for cell, best in paper.items())
    above = [cells[name, k, "best"] - cells[name, k, "em"] for name, k, method in cells if method == "em"]
    return [
        (
            "The paper's Table 1, MNIST and Fashion-MNIST: cells where our recipe is below the best of the paper",
            f"{below} of {len(paper)}; in all {len(above)}, NLL at most {max(above):.1f} nat above EM's",
        )
    ]


def figure3(result: dict[str, Any]) -> Rows:
    """What structure gains, and what it costs."""
    losses = {
        (row["method"], row["encoder"]): statistics.mean(row["test_loss"])
        for row in result["rows"]
        if row["input"] == "one-hot"
    }
    rivals = [loss for (method, encoder), loss in losses.items() if encoder == "unstructured" and method != "direct"]
    cost = result["step_cost"][0]["ratios"]["direct, general / direct, unstructured"]["median"]
    return [
        (
            "15 bits on Fashion-MNIST, test loss: `Direct` with a pairwise posterior, without, the best of 8 others",
            f"{losses['direct', 'general']:.1f}, {losses['direct', 'unstructured']:.1f}, {min(rivals):.1f} nats",
        ),
        ("A training step with that pairwise posterior, over one without", f"{cost:.2f}"),
    ]


def table2(result: dict[str, Any]) -> Rows:
    """Few labels."""
    names = list(dict.fromkeys(row["dataset"] for row in result["rows"]))
    cells = {
        (row["method"], row["dataset"]): statistics.mean(row["accuracy"])
        for row in result["rows"]
        if row["labels"] == 50
    }
    ours = [{name: cells[method, name] for name in names} for method in ("best", "direct")]
    paper = {name: TABLE_2[name][50]["direct"][0] for name in names}
    return [
        (
            "50 labels, accuracy on MNIST and Fashion-MNIST: our recipe; `Direct` and the paper's objective alone; the "
            "paper's",
            "; ".join(" and ".join(f"{found[name]:.1f}%" for name in names) for found in (*ours, paper)),
        )
    ]


def tokenizer(result: dict[str, Any]) -> Rows:
    """Codes of images."""
    errors = {
        row["method"]: statistics.mean(row["hard_error"]) for row in result["rows"] if row["dataset"] == "fashion-mnist"
    }
    return [
        (
            "Fashion-MNIST as 7 × 7 codes out of 512, squared error of a pixel: `Reinforce`, Gumbel-softmax, "
            "straight-through; VQ trained as long",
            f"{errors['reinforce']:.5f}, {errors['gumbel-softmax']:.5f}, {errors['straight-through']:.5f}; "
            f"{errors['vq']:.5f}",
        )
    ]


def hippocampus(result: dict[str, Any]) -> Rows:
    """Labels without labelled scans."""
    ours, em = (" and ".join(f"{v:.2f}" for v in result["rows"][name]["mean"]) for name in ("ours", EM))
    return [("Dice of two parts of the hippocampus, no scan labelled; EM with the location prior", f"{ours}; {em}")]


SOURCES: dict[str, Callable[[dict[str, Any]], Rows]] = {
    "benchmarks/results/estimators.json": estimators,
    "benchmarks/results/solvers.json": solvers,
    "results/structures.json": structures,
    "results/table1.json": table1,
    "results/figure3.json": figure3,
    "results/table2.json": table2,
    "results/tokenizer.json": tokenizer,
    "results/hippocampus.json": hippocampus,
}


def markdown(root: Path) -> str:
    """The table, with the command of every number and where it ran; without what has not been measured yet."""
    lines = ["| | | Command |", "|---|---|---|"]
    machines = {}
    for path, rows in SOURCES.items():
        if not (root / path).exists():
            continue
        result = json.loads((root / path).read_text())
        lines += [f"| {words} | {value} | `{result['command']}` |" for words, value in rows(result)]
        machines[result["hardware"]] = result["software"]
    said = "; ".join(f"{hardware} ({software})" for hardware, software in machines.items())
    return "\n".join([*lines, "", f"Medians and quartiles over rounds, means over seeds or scans. On {said}."])
