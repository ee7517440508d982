"""Figures 2 and 6 of the paper: the test loss as training goes on, by epoch and by wall clock.

Exact, direct, and Gumbel-softmax (soft, and straight-through as the authors ran it, both with the authors' falling τ)
train the same model on the same objective from the same first weights, as one population; the test loss after each
epoch is the exact negative ELBO. k = 10 is Figure 2, k = 20 … 50 is Figure 6.

A population has no wall clock of one model. The seconds are the cost of one model's step with each method, measured in
the same run with all methods taking turns (:mod:`argrad.experiments.step_cost`), times the number of steps. Where there
is a GPU the cost is measured on the CPU too; the paper reports direct at 1.5 × Gumbel-softmax.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from argrad.experiments.drawing import COLOURS, new_figure, prepare, save
from argrad.experiments.paper_model import load_bits, networks, quickly
from argrad.experiments.provenance import command_line, provenance
from argrad.experiments.published import TABLE_1
from argrad.experiments.step_cost import METHODS, format_costs, measure_step_cost
from argrad.experiments.table1 import PAPER_TEMPERATURE
from argrad.training.population import Member, Population, stack_networks
from argrad.training.population_loop import train_population

__all__ = ["Figure2", "format_table", "markdown", "name_of", "plot", "run", "run_figure2"]

PUBLISHED = {"exact": "unbiased", "direct": "direct", "straight-through": "gumbel-softmax"}
"""Our names, and those of the paper's Table 1."""


@final
@dataclass(frozen=True)
class Figure2:
    """Settings of the experiment."""

    datasets: tuple[str, ...] = ()
    """Images to train on; mnist unless given, and digits (which need no download) with --quick."""
    k: tuple[int, ...] = (10,)
    """Values of the categorical variable; --k 20 30 40 50 is Figure 6."""
    epochs: int = 300
    """Passes over the training images."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """First weights, orders and noise."""
    batch_size: int = 100
    """Images per step."""
    epsilon: float = 0.1
    """Direct's ε."""
    rounds: int = 30
    """Rounds in which all methods take turns at being timed."""
    table1: str | None = None
    """Take the curves from this results file of `argrad reproduce table1` in place of training."""
    device: str = "auto"
    """cpu, cuda …"""
    quick: bool = False
    """8×8 digits, 20 epochs: seconds on a laptop, and not the paper's model."""

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("rounds", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.k or min(self.k) < 2 or not self.seeds:
            raise ValueError(
                f"give at least one k, all at least 2, and one seed; got k {self.k} and seeds {self.seeds}"
            )
        if not self.epsilon > 0:
            raise ValueError(f"epsilon must be positive, got {self.epsilon}")

    def effective(self) -> Figure2:
        """The settings with ``quick`` and the data sets spelt out."""
        if not self.quick:
            return quickly(self, datasets=("mnist",))
        return quickly(self, datasets=("digits",), epochs=20, seeds=(0,), rounds=10)


def name_of(settings: Figure2) -> str:
    """Figure 2 has k = 10; others are Figure 6."""
    return "figure2" if settings.k == (10,) else "figure6"


def train_curves(
    dataset: str,
    train: Tensor,
    validation: Tensor,
    test: Tensor,
    settings: Figure2,
    progress: Callable[[str], object],
) -> list[dict[str, Any]]:
    """Train every method, k and seed: the test loss after each epoch, one list per seed."""
    kinds = [
        [Member(k, "exact") for k in settings.k] + [Member(k, "direct", epsilon=settings.epsilon) for k in settings.k],
        [Member(k, "gumbel-softmax", temperature=PAPER_TEMPERATURE) for k in settings.k]
        + [Member(k, "straight-through", temperature=PAPER_TEMPERATURE) for k in settings.k],
    ]
    curves = []
    for members in kinds:
        stacked = stack_networks(networks(train.shape[1]), members, settings.seeds)
        population = Population({name: tensor.to(train.device) for name, tensor in stacked.items()}, members)
        words = " and ".join(dict.fromkeys(member.method for member in members))
        history = train_population(
            population,
            train,
            validation,
            test,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            progress=lambda line, words=words: progress(f"{dataset}, {words}: {line}"),  # type: ignore[misc]
        )
        for number, member in enumerate(members):
            chosen = population.evaluate(test, history.best)[0][:, number]
            curves.append(
                {
                    "dataset": dataset,
                    "k": member.values,
                    "method": member.method,
                    "steps_per_epoch": history.steps // settings.epochs,
                    "test_loss": [[round(v, 3) for v in row] for row in history.test[:, :, number].T.tolist()],
                    "test_loss_at_best_validation": [round(v, 3) for v in chosen.tolist()],
                }
            )
    return curves


def curves_of_table1(result: dict[str, Any], dataset: str, settings: Figure2, images: int) -> list[dict[str, Any]]:
    """The curves of a result of Table 1: means over its seeds."""
    rows = {(row["dataset"], row["k"], row["method"]): row for row in result["rows"]}
    curves = []
    for k in settings.k:
        for method in METHODS:
            row = rows.get((dataset, k, method))
            label = row.get("is", method) if row else method
            values = result["curves"].get(dataset, {}).get(f"{label} k={k}")
            if row is None or values is None:
                raise ValueError(f"{settings.table1} has no curve of {method} on {dataset} with k = {k}")
            rows_of_seeds = values if isinstance(values[0], list) else [values]
            curves.append(
                {
                    "dataset": dataset,
                    "k": k,
                    "method": method,
                    "is": label,
                    "steps_per_epoch": images // settings.batch_size,
                    "test_loss": rows_of_seeds,
                    "test_loss_at_best_validation": row["test_loss"],
                }
            )
    return curves


def run_figure2(
    images: dict[str, tuple[Tensor, Tensor, Tensor]],
    settings: Figure2,
    progress: Callable[[str], object] = print,
) -> dict[str, Any]:
    """The whole figure from tensors.

    Args:
        images: train, validation and test bits ``[N, D]``, uint8, on the device to train on, by name of the data set.
        settings: of the experiment; its data sets are not looked at.
        progress: is told how far it is.

    Returns:
        A result ready for JSON: ``step_cost``, one entry per device and k, and ``curves``, one per data set, k and
        method, with ``test_loss`` by seed and epoch and ``seconds_per_epoch`` of one model.
    """
    record = provenance(command_line("argrad reproduce figure2", settings))
    settings = settings.effective()
    first = next(iter(images.values()))[0]
    costs = [
        measure_step_cost(
            first.to(device), k, rounds=settings.rounds, batch_size=settings.batch_size, progress=progress
        )
        for device in dict.fromkeys((first.device, torch.device("cpu")))
        for k in settings.k
    ]
    curves = []
    with torch.random.fork_rng(devices=[]):
        for dataset, (train, validation, test) in images.items():
            if settings.table1 is not None:
                table = json.loads(Path(settings.table1).expanduser().read_text())
                curves += curves_of_table1(table, dataset, settings, len(train))
            else:
                curves += train_curves(dataset, train, validation, test, settings, progress)
    order = list(images)
    curves.sort(
        key=lambda curve: (order.index(curve["dataset"]), settings.k.index(curve["k"]), METHODS.index(curve["method"]))
    )
    milliseconds = {(cost["k"], cost["device"]): cost["milliseconds"] for cost in costs}
    for curve in curves:
        step = milliseconds[curve["k"], first.device.type][curve["method"]]["median"]
        curve["seconds_per_epoch"] = float(f"{curve['steps_per_epoch'] * step / 1000:.4g}")
    return {
        **record,
        "figure": name_of(settings),
        "settings": {**asdict(settings), "datasets": list(images)},
        "quick": settings.quick,
        "seconds": f"the median step of one model, measured on {first.device.type} in this run, times the steps",
        "step_cost": costs,
        "curves": curves,
    }


def run(settings: Figure2, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """The figure from the catalogue's images."""
    from argrad.models.discrete_vae.run import choose_device

    device = choose_device(settings.device)
    images = {name: load_bits(name, device) for name in settings.effective().datasets}
    return run_figure2(images, settings, progress)


# ------------------------------------------------------------------------------------------------------- for a person


def mean(numbers: Iterable[float]) -> float:
    """The mean."""
    found = list(numbers)
    return sum(found) / len(found)


def rows_of(result: dict[str, Any]) -> list[tuple[str, int, str, str, str, str, str]]:
    """Data set, k, method, test loss at a third of the epochs, at the end, at the best, the paper's."""
    rows = []
    for curve in result["curves"]:
        losses = curve["test_loss"]
        third = max(1, len(losses[0]) // 3)
        early, late = mean(row[third - 1] for row in losses), mean(row[-1] for row in losses)
        best = mean(curve["test_loss_at_best_validation"])
        paper = TABLE_1.get(curve["dataset"], {}).get(curve["k"], {}).get(PUBLISHED.get(curve["method"], ""))
        numbers = (f"{early:.2f}", f"{late:.2f}", f"{best:.2f}", f"{paper:.2f}" if paper else "–")
        rows.append((curve["dataset"], curve["k"], curve["method"], *numbers))
    return rows


def headings(result: dict[str, Any]) -> tuple[str, str, str, str]:
    """Of the four numbers."""
    epochs = max(len(curve["test_loss"][0]) for curve in result["curves"])
    return f"epoch {max(1, epochs // 3)}", f"epoch {epochs}", "at the best validation", "the paper"


def format_table(result: dict[str, Any]) -> str:
    """Test losses on the way, and the cost of a step."""
    lines = ["QUICK: small images and few epochs; this is not the paper's figure."] if result["quick"] else []
    lines.append(f"Test negative ELBO, nats, mean over {len(result['curves'][0]['test_loss'])} seeds")
    head = " ".join(f"{word:>{max(9, len(word))}}" for word in headings(result))
    lines.append(f"{'':<16}{'k':>3} {'':<18}{head}")
    for dataset, k, method, *numbers in rows_of(result):
        cells = " ".join(f"{n:>{max(9, len(word))}}" for n, word in zip(numbers, headings(result), strict=True))
        lines.append(f"{dataset:<16}{k:>3} {method:<18}{cells}")
    lines += ["", "The step of one model; ratios within rounds, median [quartiles]; the paper says 1.5"]
    return "\n".join([*lines, *format_costs(result["step_cost"])])


def markdown(result: dict[str, Any]) -> str:
    """The same for the documentation."""
    lines = ["| Data | k | Method | " + " | ".join(headings(result)) + " |", "|---|---|---|---|---|---|---|"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows_of(result)]
    lines += ["", "The step of one model, milliseconds, and its ratio to Gumbel-softmax's (median [quartiles]):", ""]
    lines += ["| Device | k | " + " | ".join(METHODS) + " | direct / soft | direct / straight-through |"]
    lines += ["|---|---|" + "---|" * (len(METHODS) + 2)]
    for cost in result["step_cost"]:
        times = [f"{cost['milliseconds'][method]['median']:.3f}" for method in METHODS]
        ratios = [cost["ratios"][f"direct / {other}"] for other in ("gumbel-softmax", "straight-through")]
        cells = [f"{r['median']:.2f} [{r['quartiles'][0]:.2f}, {r['quartiles'][1]:.2f}]" for r in ratios]
        lines.append(f"| {cost['device']}, {cost['hardware']} | {cost['k']} | " + " | ".join([*times, *cells]) + " |")
    return "\n".join([*lines, "", f"Seconds on the wall clock are {result['seconds']}."])


def plot(result: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Rows by epoch and by seconds for each data set; a column per k; the band is from the best seed to the worst."""
    datasets = list(dict.fromkeys(curve["dataset"] for curve in result["curves"]))
    values = list(dict.fromkeys(curve["k"] for curve in result["curves"]))
    figure = new_figure(max(6.5, 3.4 * len(values)), 0.6 + 3 * 2 * len(datasets))
    grid = figure.subplots(2 * len(datasets), len(values), squeeze=False)
    for place, dataset in enumerate(datasets):
        for column, k in enumerate(values):
            own = [curve for curve in result["curves"] if (curve["dataset"], curve["k"]) == (dataset, k)]
            for axes, by_seconds in ((grid[2 * place][column], False), (grid[2 * place + 1][column], True)):
                across = "seconds of one model's steps" if by_seconds else "epoch"
                prepare(axes, f"{dataset}, k = {k}", across, "test loss (nats)" if column == 0 else "")
                for curve in own:
                    draw_losses(axes, curve, curve["seconds_per_epoch"] if by_seconds else 1.0)
                axes.set_ylim(*limits(own))
                axes.set_xlim(left=0)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    save(figure, result, f"Test loss; seconds: {result['seconds']}", path)


def draw_losses(axes: Any, curve: dict[str, Any], scale: float) -> None:
    """The mean over seeds, and the band of them."""
    by_epoch = list(zip(*curve["test_loss"], strict=True))
    at = [scale * (epoch + 1) for epoch in range(len(by_epoch))]
    colour = COLOURS[curve["method"]]
    axes.plot(at, [mean(row) for row in by_epoch], color=colour, linewidth=1.3, label=curve["method"])
    axes.fill_between(at, [min(row) for row in by_epoch], [max(row) for row in by_epoch], color=colour, alpha=0.15)


def limits(curves: list[dict[str, Any]]) -> tuple[float, float]:
    """From the least loss to where the curves are after a twentieth of the epochs."""
    early = max(row[len(row) // 20] for curve in curves for row in curve["test_loss"])
    least = min(min(row) for curve in curves for row in curve["test_loss"])
    room = 0.05 * max(early - least, 1e-3)
    return least - room, early + room
