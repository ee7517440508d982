"""The question that the paper ends with: how do ε and the learning rate play together?

One population of direct VAEs, every ε with every learning rate, on the same batches; beside them ε = "auto", and the
exact gradient with every learning rate. What is reported is the negative ELBO on validation images at each model's
best epoch. Direct's expected gradient is that of E[c] − (ε/2) Var[c] + …, bounded by 1/ε, and its variance grows as
1/ε: a large ε is a bias that no learning rate mends, a small one is noise that a small learning rate averages out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor

from argrad.experiments.drawing import new_figure, save
from argrad.experiments.paper_model import load_bits, networks, quickly
from argrad.experiments.provenance import command_line, provenance
from argrad.training.population import Member, Population, stack_networks
from argrad.training.population_loop import train_population

__all__ = ["EpsilonLearningRate", "format_table", "markdown", "plot", "run", "run_epsilon_learning_rate"]


@final
@dataclass(frozen=True)
class EpsilonLearningRate:
    """Settings of the experiment."""

    dataset: str | None = None
    """Images to train on; mnist unless given, and digits (which need no download) with --quick."""
    k: int = 10
    """Values of the categorical variable."""
    epsilons: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    """ε of direct."""
    learning_rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
    """Of Adam."""
    epochs: int = 30
    """Passes over the training images."""
    seeds: tuple[int, ...] = (0, 1)
    """First weights, orders and noise."""
    batch_size: int = 100
    """Images per step."""
    device: str = "auto"
    """cpu, cuda …"""
    quick: bool = False
    """8×8 digits, 3 × 3 models: seconds on a laptop, and says little about the paper's model."""

    def __post_init__(self) -> None:
        for name, least in (("k", 2), ("epochs", 1), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not (self.epsilons and self.learning_rates and self.seeds) or min(*self.epsilons, *self.learning_rates) <= 0:
            raise ValueError("give at least one ε, one learning rate and one seed; ε and learning rates are positive")

    def effective(self) -> EpsilonLearningRate:
        """The settings with ``quick`` and the data set spelt out."""
        if not self.quick:
            return quickly(self, dataset="mnist")
        small = {"epsilons": (0.03, 0.3, 3.0), "learning_rates": (3e-4, 1e-3, 3e-3)}
        return quickly(self, dataset="digits", epochs=20, seeds=(0,), **small)


def run_epsilon_learning_rate(
    train: Tensor,
    validation: Tensor,
    test: Tensor,
    settings: EpsilonLearningRate,
    progress: Callable[[str], object] = print,
) -> dict[str, Any]:
    """The whole map from tensors.

    Args:
        train: bits ``[N, D]``, uint8, on the device to train on.
        validation: bits.
        test: bits.
        settings: of the experiment.
        progress: is told how far it is.

    Returns:
        A result ready for JSON; each of its ``rows`` has ``epsilon`` (a number, "auto" or "exact"), ``learning_rate``,
        ``validation_loss``, ``test_loss`` and ``best_epoch``, one number per seed.
    """
    record = provenance(command_line("argrad reproduce epsilon-learning-rate", settings))
    settings = settings.effective()
    choices: list[float | Literal["auto", "exact"]] = [*settings.epsilons, "auto", "exact"]
    cells = [(choice, rate) for choice in choices for rate in settings.learning_rates]
    members = [
        Member(settings.k, "exact", learning_rate=rate)
        if choice == "exact"
        else Member(settings.k, "direct", learning_rate=rate, epsilon=choice)
        for choice, rate in cells
    ]
    stacked = stack_networks(networks(train.shape[1]), members, settings.seeds)
    population = Population({name: tensor.to(train.device) for name, tensor in stacked.items()}, members)
    with torch.random.fork_rng(devices=[]):
        history = train_population(
            population,
            train,
            validation,
            test,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            progress=lambda line: progress(f"{len(members) * len(settings.seeds)} models: {line}"),
        )
    chosen, tested = (population.evaluate(images, history.best)[0] for images in (validation, test))
    rows = [
        {
            "epsilon": choice,
            "learning_rate": rate,
            "validation_loss": [round(v, 3) for v in chosen[:, number].tolist()],
            "test_loss": [round(v, 3) for v in tested[:, number].tolist()],
            "best_epoch": history.best_epoch[:, number].tolist(),
        }
        for number, (choice, rate) in enumerate(cells)
    ]
    return {
        **record,
        "settings": asdict(settings),
        "quick": settings.quick,
        "training_seconds": round(float(history.seconds[-1]), 1),
        "rows": rows,
    }


def run(settings: EpsilonLearningRate, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """The map from the catalogue's images."""
    from argrad.models.discrete_vae.run import choose_device

    dataset = settings.effective().dataset
    assert dataset is not None
    train, validation, test = load_bits(dataset, choose_device(settings.device))
    return run_epsilon_learning_rate(train, validation, test, settings, progress)


# ------------------------------------------------------------------------------------------------------- for a person


def grid(result: dict[str, Any]) -> tuple[list[Any], list[float], list[list[float]]]:
    """Rows (ε), columns (learning rates), and the mean validation losses."""
    choices = list(dict.fromkeys(row["epsilon"] for row in result["rows"]))
    rates = list(dict.fromkeys(row["learning_rate"] for row in result["rows"]))
    losses = {
        (row["epsilon"], row["learning_rate"]): sum(row["validation_loss"]) / len(row["validation_loss"])
        for row in result["rows"]
    }
    return choices, rates, [[losses[choice, rate] for rate in rates] for choice in choices]


def label(choice: Any) -> str:
    """A row's name."""
    return str(choice) if isinstance(choice, str) else f"ε = {choice:g}"


def description(result: dict[str, Any]) -> str:
    """The problem in a line."""
    settings = result["settings"]
    return (
        f"Validation loss at the best of {settings['epochs']} epochs, {settings['dataset']}, k = {settings['k']}, "
        f"mean over {len(settings['seeds'])} seeds"
    )


def format_table(result: dict[str, Any]) -> str:
    """A line per ε, a column per learning rate."""
    choices, rates, losses = grid(result)
    lines = ["QUICK: small images and few models."] if result["quick"] else []
    lines += [description(result), f"{'learning rate':<14}" + " ".join(f"{rate:>9g}" for rate in rates)]
    lines += [
        f"{label(choice):<14}" + " ".join(f"{v:>9.2f}" for v in row)
        for choice, row in zip(choices, losses, strict=True)
    ]
    return "\n".join(lines)


def markdown(result: dict[str, Any]) -> str:
    """The same for the documentation; the best of each learning rate among fixed ε is bold."""
    choices, rates, losses = grid(result)
    fixed = [number for number, choice in enumerate(choices) if not isinstance(choice, str)]
    best = [min(fixed, key=lambda number: losses[number][column]) for column in range(len(rates))]
    lines = [f"{description(result)}.", "", "| | " + " | ".join(f"{rate:g}" for rate in rates) + " |"]
    lines.append("|---|" + "---|" * len(rates))
    for number, (choice, row) in enumerate(zip(choices, losses, strict=True)):
        cells = [f"**{v:.2f}**" if best[column] == number else f"{v:.2f}" for column, v in enumerate(row)]
        lines.append(f"| {label(choice)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(result: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """The heat map; losses far above the median are all drawn in the last colour."""
    choices, rates, losses = grid(result)
    flat = sorted(v for row in losses for v in row)
    figure = new_figure(1.6 + 1.0 * len(rates), 1.4 + 0.55 * len(choices))
    axes = figure.subplots()
    top = flat[0] + 2 * max(flat[len(flat) // 2] - flat[0], 1e-3)
    image = axes.imshow(losses, cmap="viridis_r", vmin=flat[0], vmax=top, aspect="auto")
    axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    axes.set_yticks(range(len(choices)), [label(choice) for choice in choices])
    axes.set_xlabel("learning rate")
    for i, row in enumerate(losses):
        for j, value in enumerate(row):
            dark = value > (flat[0] + top) / 2
            axes.text(j, i, f"{value:.1f}", ha="center", va="center", fontsize=8, color="white" if dark else "black")
    figure.colorbar(image, ax=axes, extend="max", label="nats")
    save(figure, result, description(result), path)
