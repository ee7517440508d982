"""Learning to sort, and finding a tree: Direct beside its usual rivals on two structured latents.

Two small problems outside images as such: :mod:`argrad.experiments.structures_sorting` (a latent permutation) and
:mod:`argrad.experiments.structures_tree` (a latent directed spanning tree). Every method has the same network, the same
number of steps and of examples, and four noises for each example where it draws any. Its own parameter, where it has
one, is chosen from three values, and its learning rate from three: one training for each pair, compared on validation.
Then fresh seeds are trained with what was chosen, and judged by the share of places or heads that the *best* structure
has right on test, and by the processor time of a training.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, final

import torch

from argrad.experiments.drawing import new_figure, prepare, save
from argrad.experiments.paper_model import quickly
from argrad.experiments.provenance import command_line, provenance
from argrad.experiments.structures_sorting import METHODS as SORTING_METHODS
from argrad.experiments.structures_sorting import Sorting, digits_by_value
from argrad.experiments.structures_training import Method, Problem, train
from argrad.experiments.structures_tree import METHODS as TREE_METHODS
from argrad.experiments.structures_tree import Grid

__all__ = ["Structures", "format_table", "markdown", "plot", "run"]

TUNING_SEED = 1_000_000
"""Chooses parameters; no seed that is reported."""
TITLES = {"sorting": "Sorting: digits in their place", "tree": "Tree: houses with the right head"}
COLOURS = ("#1f5fa8", "#6ea6dc", "#d1662a", "#e0a040", "#a0307f", "#8a8a8a", "#2f7d4f", "#8c564b", "#111111")
"""By the order of the methods; Direct comes first and is blue in both halves."""


@final
@dataclass(frozen=True)
class Structures:
    """Settings of the experiment."""

    seeds: int = 5
    """Trainings of each method with the parameters that validation chose."""
    sorting_steps: int = 500
    """Training steps when sorting."""
    tree_steps: int = 300
    """Training steps with trees."""
    batch: int = 25
    """Examples in a step."""
    draws: int = 4
    """Noises for each example, for the methods that draw any."""
    rates: tuple[float, ...] = (0.01, 0.03, 0.1)
    """Learning rates to choose from."""
    digits: int = 6
    """In a set to sort."""
    houses: int = 8
    """On a map."""
    evaluated: int = 1000
    """Sets and maps that validation and test draw."""
    quick: bool = False
    """One learning rate, one seed, few steps: under a minute, and the order of the methods says little."""

    def __post_init__(self) -> None:
        for name, least in (("seeds", 1), ("sorting_steps", 1), ("tree_steps", 1), ("batch", 1), ("draws", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.rates or min(self.rates) <= 0 or self.evaluated < 1:
            raise ValueError("give at least one learning rate, all of them positive, and evaluated at least 1")

    def effective(self) -> Structures:
        """The settings with ``quick`` spelt out."""
        if not self.quick:
            return self
        return quickly(self, seeds=1, sorting_steps=60, tree_steps=60, rates=(0.03,), evaluated=200)


def run(settings: Structures, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """Both problems.

    Returns:
        A result ready for JSON. Each of its ``rows`` has a ``problem`` and a ``method``, the ``parameter`` and learning
        ``rate`` that validation chose, its ``test`` share and ``seconds`` of processor time, one number per seed, and
        validation ``curves`` at ``steps``; ``tuning`` has every candidate.
    """
    record = provenance(command_line("argrad reproduce structures", settings))
    settings = settings.effective()
    problems: list[tuple[Problem, tuple[Method, ...], int]] = [
        (Sorting(digits_by_value(), settings.digits), SORTING_METHODS, settings.sorting_steps),
        (Grid(settings.houses), TREE_METHODS, settings.tree_steps),
    ]
    tuning: list[dict[str, Any]] = []
    rows = []
    for problem, methods, steps in problems:
        for method in methods:
            candidates = tune(problem, method, steps, settings, progress)
            tuning += candidates
            best = max(candidates, key=lambda candidate: float(candidate["validation"]))
            rows.append(measure(problem, method, best, steps, settings, progress))
    return {**record, "settings": asdict(settings), "quick": settings.quick, "rows": rows, "tuning": tuning}


def tune(
    problem: Problem, method: Method, steps: int, settings: Structures, progress: Callable[[str], object]
) -> list[dict[str, Any]]:
    """One training for each value and each learning rate."""
    candidates = []
    for value in method.values if not settings.quick else method.values[len(method.values) // 2 :][:1]:
        for rate in settings.rates:
            progress(f"{problem.name}, {method.name}: {method.parameter} {value:g}, learning rate {rate:g}")
            found = train(
                problem,
                method.make(value, settings.draws),
                seed=TUNING_SEED,
                rate=rate,
                steps=steps,
                batch=settings.batch,
                evaluated=settings.evaluated,
                points=1,
            )
            candidates.append(
                {
                    "problem": problem.name,
                    "method": method.name,
                    "value": value if method.parameter else None,
                    "rate": rate,
                    "validation": round(found.validation, 4),
                }
            )
    return candidates


def measure(
    problem: Problem,
    method: Method,
    chosen: dict[str, Any],
    steps: int,
    settings: Structures,
    progress: Callable[[str], object],
) -> dict[str, Any]:
    """Train every seed with what was chosen."""
    value = method.values[0] if chosen["value"] is None else chosen["value"]
    found = []
    for seed in range(settings.seeds):
        progress(f"{problem.name}, {method.name}: seed {seed}")
        found.append(
            train(
                problem,
                method.make(value, settings.draws),
                seed=seed,
                rate=chosen["rate"],
                steps=steps,
                batch=settings.batch,
                evaluated=settings.evaluated,
            )
        )
    return {
        "problem": problem.name,
        "method": method.name,
        "parameter": f"{method.parameter} = {value:g}" if method.parameter else "",
        "rate": chosen["rate"],
        "test": [round(training.test, 4) for training in found],
        "seconds": [round(training.seconds, 2) for training in found],
        "steps": found[0].steps,
        "curves": [[round(share, 4) for share in training.curve] for training in found],
    }


# ------------------------------------------------------------------------------------------------------- for a person


def rows_of(result: dict[str, Any], problem: str) -> list[dict[str, Any]]:
    """The rows of a problem, the best first."""
    rows = [row for row in result["rows"] if row["problem"] == problem]
    return sorted(rows, key=lambda row: -statistics.fmean(row["test"]))


def cells(row: dict[str, Any]) -> tuple[str, str, str, str, str]:
    """Method, what was chosen, mean share with its spread over seeds, worst and best seed, seconds."""
    shares = [100 * share for share in row["test"]]
    spread = f" ± {statistics.stdev(shares):.1f}" if len(shares) > 1 else ""
    chosen = f"{row['parameter']}, " if row["parameter"] else ""
    return (
        row["method"],
        f"{chosen}rate {row['rate']:g}",
        f"{statistics.fmean(shares):.1f}{spread}",
        f"{min(shares):.1f} to {max(shares):.1f}",
        f"{statistics.median(row['seconds']):.1f}",
    )


def format_table(result: dict[str, Any]) -> str:
    """A table for each problem."""
    lines = ["QUICK: few steps and one seed."] if result["quick"] else []
    for problem, title in TITLES.items():
        lines += [f"{title}, % on test", f"{'':<38}{'chosen':<20}{'mean':>12}{'seeds':>16}{'CPU s':>8}"]
        for row in rows_of(result, problem):
            method, chosen, mean, seeds, seconds = cells(row)
            lines.append(f"{method:<38}{chosen:<20}{mean:>12}{seeds:>16}{seconds:>8}")
    return "\n".join(lines)


def by_value(result: dict[str, Any], problem: str, method: str) -> dict[float, float]:
    """What validation said about each value of a method's parameter, at the best learning rate for it."""
    found: dict[float, float] = {}
    for row in result["tuning"]:
        if (row["problem"], row["method"]) == (problem, method) and row["value"] is not None:
            found[row["value"]] = max(found.get(row["value"], 0.0), row["validation"])
    return found


def markdown(result: dict[str, Any]) -> str:
    """The same for the documentation, and what ε does."""
    parts = []
    for problem, title in TITLES.items():
        name, _, what = title.partition(": ")
        lines = [f"| {name} | Chosen on validation | {what.capitalize()}, % | Worst and best seed | CPU s |"]
        lines += ["|---|---|---|---|---|"]
        lines += ["| " + " | ".join(cells(row)) + " |" for row in rows_of(result, problem)]
        direct = [row["method"] for row in result["rows"] if row["problem"] == problem and "Direct" in row["method"]]
        swept = {method: by_value(result, problem, method) for method in direct}
        said = [
            f"{method}: " + ", ".join(f"{100 * share:.1f} at ε = {value:g}" for value, share in values.items())
            for method, values in swept.items()
        ]
        parts += ["\n".join(lines), f"Validation by ε, at the best learning rate. {'. '.join(said)}."]
    return "\n\n".join(parts)


def plot(result: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Validation by step, sorting on the left, trees on the right; the mean over seeds."""
    figure = new_figure(12, 4.8)
    for axes, (problem, title) in zip(figure.subplots(1, 2), TITLES.items(), strict=True):
        prepare(axes, title, "training step", "% on validation, mean over seeds")
        order = [row["method"] for row in result["rows"] if row["problem"] == problem]
        for row in rows_of(result, problem):
            mean = 100 * torch.tensor(row["curves"]).mean(0)
            look: dict[str, Any] = {"color": COLOURS[order.index(row["method"]) % len(COLOURS)], "linewidth": 1.3}
            if row["method"].startswith("Direct"):
                look["linewidth"] = 2.6
            elif row["method"] == "Told the answer":
                look.update(color="#111111", linestyle=":")
            axes.plot(row["steps"], mean, label=row["method"], **look)
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    seeds = len(result["rows"][0]["test"])
    save(figure, result, f"The best structure on held-out examples, {seeds} seeds; the thick lines are Direct", path)
