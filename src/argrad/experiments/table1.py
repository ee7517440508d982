"""Table 1 of the paper: the test loss of a VAE with one categorical variable, by data set, k and estimator.

Protocol: 50,000 / 10,000 / 10,000 images (Omniglot: its resized drawings, by their own split), rounded at 0.5;
784-300-k and back; 300 epochs of batches of 100, Adam 1e-3; the test loss is that of the epoch with the best validation
loss; seeds are fixed; every choice is made on validation. All rows train the negative ELBO with its KL, except
``as-published``.

Rows: ``exact``, the paper's "unbiased"; ``direct``, one rule for ε in all cells, chosen on validation among those in
:data:`DIRECT_RULES`; ``gumbel-softmax`` and ``straight-through`` with the authors' temperatures (theirs was
straight-through); ``as-published``, the authors' ε and no KL in the gradient; ``best``, our recipe, chosen on
validation among :func:`recipes`: the same model and objective with dead codes revived and weights averaged over the
last thousand steps or so, from the best of several restarts. A restart trains for a few epochs from first weights of
its own; for each k and seed, validation says which goes on, for as many epochs as the other rows have. Beside them the
mixture that the model is, fitted by EM on the same images: its −log p(x) is what the rows' ``nll`` can reach.

The rows of a data set are trained in three groups, each one population: those that read the table of costs, the
relaxed ones, and the recipes. On a GPU the matrix products of training are in TF32, those of evaluation in float32.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import Tensor

from argrad.experiments.bernoulli_mixture import fit_mixture, mixture_nll
from argrad.experiments.paper_model import load_bits, networks, quickly
from argrad.experiments.provenance import command_line, provenance
from argrad.experiments.published import TABLE_1
from argrad.training import Decay
from argrad.training.population import Member, Population, Weights, join_members, pick_members, stack_networks
from argrad.training.population_loop import PopulationHistory, train_population

__all__ = ["GROUPS", "Table1", "format_table", "join_groups", "run", "run_dataset", "run_group", "summarise"]

PAPER_EPSILON = Decay(1.0, minimum=0.1, rate=1e-5, every=500)
PAPER_TEMPERATURE = Decay(1.0, minimum=0.1, rate=1e-5, every=1000)
DIRECT_RULES = ("direct ε=0.1", "direct auto")
WITH_CURVES = ("exact", "direct ε=0.1", "direct auto", "gumbel-softmax", "straight-through")
"""Rows whose test loss by epoch is kept: Figures 2 and 6."""
GROUPS = ("table", "relaxed", "best")
"""What is trained side by side."""
AVERAGE = 0.999
"""Decay of the averaged weights of the recipes."""
RESTART_SEEDS = 1000
"""Restart r of a seed has first weights number seed + r · this; restart 0 is where the other rows start."""


@final
@dataclass(frozen=True)
class Table1:
    """Settings of the experiment."""

    datasets: tuple[str, ...] = ("mnist", "fashion-mnist", "omniglot")
    """Which data sets."""
    values: tuple[int, ...] = (10, 20, 30, 40, 50)
    """Which k."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """First weights, orders and noise."""
    epochs: int = 300
    """Passes over the training images."""
    batch_size: int = 100
    """Images per step."""
    revive_share: float = 0.5
    """The share of the epochs after which dead codes are still revived, in the recipes that do."""
    restarts: int = 16
    """First weights that each seed of a recipe may choose from."""
    restart_epochs: int = 20
    """Epochs after which validation chooses among them."""
    em_restarts: int = 8
    """Restarts of EM, of which validation chooses one."""
    em_iterations: int = 200
    """Of EM."""
    device: str = "auto"
    """cpu, cuda …"""
    quick: bool = False
    """A few epochs, one seed, two k: minutes on a laptop, and not the paper's protocol."""

    def effective(self) -> Table1:
        """The settings with ``quick`` spelt out."""
        if not self.quick:
            return self
        return quickly(
            self,
            values=(10, 50),
            seeds=(0,),
            epochs=3,
            restarts=2,
            restart_epochs=1,
            em_restarts=2,
            em_iterations=30,
        )


def members_that_read_a_table(settings: Table1) -> dict[str, list[Member]]:
    """Exact and direct rows by name, one member per k."""
    return {
        "exact": [Member(k, "exact") for k in settings.values],
        "direct ε=0.1": [Member(k, "direct", epsilon=0.1) for k in settings.values],
        "direct auto": [Member(k, "direct", epsilon="auto") for k in settings.values],
        "as-published": [Member(k, "direct", epsilon=PAPER_EPSILON, kl_weight=0.0) for k in settings.values],
    }


def recipes(settings: Table1) -> dict[str, list[Member]]:
    """What ``best`` is chosen from, by name, one member per k."""
    until = round(settings.revive_share * settings.epochs)

    return {
        "exact, revived": [Member(k, "exact", revive_until=until) for k in settings.values],
        "direct ε=0.1, revived": [Member(k, "direct", epsilon=0.1, revive_until=until) for k in settings.values],
    }


def relaxed_members(settings: Table1) -> dict[str, list[Member]]:
    """Gumbel-softmax rows by name, one member per k."""
    return {
        "gumbel-softmax": [Member(k, "gumbel-softmax", temperature=PAPER_TEMPERATURE) for k in settings.values],
        "straight-through": [Member(k, "straight-through", temperature=PAPER_TEMPERATURE) for k in settings.values],
    }


def first_weights(members: list[Member], settings: Table1, pixels: int, restart: int = 0) -> Weights:
    """Stacked first weights, by seed and restart."""
    return stack_networks(networks(pixels), members, [seed + RESTART_SEEDS * restart for seed in settings.seeds])


def best_restarts(
    members: list[Member], train: Tensor, validation: Tensor, settings: Table1, progress: Callable[[str], object]
) -> tuple[Weights, dict[str, Any]]:
    """Weights to go on from, for every seed and member the best of the restarts on validation, and what they took."""
    count = len(members)
    parts = [first_weights(members, settings, train.shape[1], restart) for restart in range(settings.restarts)]
    stacked = {name: tensor.to(train.device) for name, tensor in join_members(parts).items()}
    population = Population(stacked, members * settings.restarts, average=AVERAGE)
    history = train_population(
        population,
        train,
        validation,
        None,
        epochs=settings.restart_epochs,
        batch_size=settings.batch_size,
        progress=progress,
    )
    losses = history.validation[-1].unflatten(1, (settings.restarts, count))
    chosen = losses.argmin(1) * count + torch.arange(count)
    timing = timing_of(population, history)
    timing["revived_in_chosen"] = history.revived.gather(1, chosen).tolist()
    return pick_members(population.averaged(), chosen.to(train.device)), timing


def timing_of(population: Population, history: PopulationHistory) -> dict[str, Any]:
    """How many models were trained for how many steps, and how long that took."""
    seconds = float(history.seconds[-1])
    return {
        "models": population.seeds * population.count,
        "steps": history.steps,
        "seconds": round(seconds, 1),
        "milliseconds_per_step": round(1000 * seconds / history.steps, 4),
    }


def run_dataset(
    name: str,
    train: Tensor,
    validation: Tensor,
    test: Tensor,
    settings: Table1,
    progress: Callable[[str], object] = print,
) -> dict[str, Any]:
    """All rows of one data set; arguments as in :func:`run_group`."""
    return join_groups([run_group(group, name, train, validation, test, settings, progress) for group in GROUPS])


def run_group(
    group: str,
    name: str,
    train: Tensor,
    validation: Tensor,
    test: Tensor,
    settings: Table1,
    progress: Callable[[str], object] = print,
) -> dict[str, Any]:
    """The rows of one data set that are trained side by side; those of EM come with ``best``.

    Args:
        group: one of :data:`GROUPS`.
        name: of the data set.
        train: bits ``[N, 784]``, uint8, on the device to train on.
        validation: bits.
        test: bits.
        settings: of the experiment.
        progress: is told how far it is.
    """

    def told(kind: str) -> Callable[[str], object]:
        return lambda line: progress(f"{name}, {kind}: {line}")

    kinds = {"table": members_that_read_a_table, "relaxed": relaxed_members, "best": recipes}
    members = kinds[group](settings)
    flat = [member for same in members.values() for member in same]
    timing: dict[str, Any] = {}
    if group == "best":
        weights, timing["restarted"] = best_restarts(flat, train, validation, settings, told("restarts"))
    else:
        weights = {
            key: tensor.to(train.device) for key, tensor in first_weights(flat, settings, train.shape[1]).items()
        }
    population = Population(weights, flat, average=AVERAGE if group == "best" else 0.0)
    history = train_population(
        population,
        train,
        validation,
        test,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        progress=told(group),
    )
    timing[group] = timing_of(population, history)
    methods = [method for method, same in members.items() for _ in same]
    rows = read_rows(name, methods, population, history, validation, test)
    curves: dict[str, Any] = {}
    for index, method in enumerate(methods):
        if method in WITH_CURVES:
            by_seed = history.test[:, :, index].T.tolist()
            curves[f"{method} k={flat[index].values}"] = [[round(v, 2) for v in seed] for seed in by_seed]
    if group == "best":
        em, timing["em_seconds"] = fit_em(name, train, validation, test, settings)
        rows += em
    return {"rows": rows, "curves": curves, "timing": timing}


def join_groups(groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What :func:`run_group` gave for each group, as one."""
    return {
        "rows": [row for group in groups for row in group["rows"]],
        "curves": {key: curve for group in groups for key, curve in group["curves"].items()},
        "timing": {key: spent for group in groups for key, spent in group["timing"].items()},
    }


def read_rows(
    name: str,
    methods: list[str],
    population: Population,
    history: PopulationHistory,
    validation: Tensor,
    test: Tensor,
) -> list[dict[str, Any]]:
    """One row per method and k, with one number per seed, at each model's best validation epoch."""
    chosen, _ = population.evaluate(validation, history.best)
    loss, nll = population.evaluate(test, history.best)
    dead = population.dead(population.usage(validation, history.best)).sum(-1)
    rows = []
    for index, method in enumerate(methods):
        rows.append(
            {
                "dataset": name,
                "k": population.members[index].values,
                "method": method,
                "test_loss": [round(v, 4) for v in loss[:, index].tolist()],
                "nll": [round(v, 4) for v in nll[:, index].tolist()],
                "validation_loss": [round(v, 4) for v in chosen[:, index].tolist()],
                "best_epoch": history.best_epoch[:, index].tolist(),
                "epsilon": [round(v, 5) for v in population.epsilon[:, index].tolist()],
                "revived": history.revived[:, index].tolist(),
                "dead_codes": dead[:, index].tolist(),
            }
        )
    return rows


def fit_em(
    name: str, train: Tensor, validation: Tensor, test: Tensor, settings: Table1
) -> tuple[list[dict[str, Any]], float]:
    """The EM optimum for every k, the restart chosen on validation."""
    began, rows = time.monotonic(), []
    for k in settings.values:
        logits = fit_mixture(train, k, restarts=settings.em_restarts, iterations=settings.em_iterations)
        chosen = int(mixture_nll(validation, logits).argmin())
        scores = mixture_nll(test, logits)
        rows.append(
            {
                "dataset": name,
                "k": k,
                "method": "em",
                "nll": [round(float(scores[chosen]), 4)],
                "nll_of_restarts": [round(v, 4) for v in scores.tolist()],
            }
        )
    return rows, round(time.monotonic() - began, 1)


def mean(numbers: list[float]) -> float:
    """The mean."""
    return sum(numbers) / len(numbers)


def summarise(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Add the rows ``direct`` and ``best``: the rule and the recipe with the least validation loss over all cells."""
    choices = {}
    for label, candidates in (("direct", DIRECT_RULES), ("best", tuple(recipes(Table1())))):
        totals = {
            method: mean([mean(row["validation_loss"]) for row in rows if row["method"] == method])
            for method in candidates
        }
        choices[label] = min(totals, key=lambda method: totals[method])
    added = [
        {**row, "method": label, "is": choice}
        for label, choice in choices.items()
        for row in rows
        if row["method"] == choice
    ]
    return rows + added, choices


def run(settings: Table1, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """The whole table, from the catalogue's data sets."""
    from argrad.models.discrete_vae.run import choose_device

    command = command_line("argrad reproduce table1", settings)
    settings = settings.effective()
    device = choose_device(settings.device)
    parts = {name: run_dataset(name, *load_bits(name, device), settings, progress) for name in settings.datasets}
    return assemble(parts, settings, command)


def assemble(parts: dict[str, dict[str, Any]], settings: Table1, command: str) -> dict[str, Any]:
    """One result from the parts of the data sets."""
    rows, choices = summarise([row for part in parts.values() for row in part["rows"]])
    return {
        **provenance(command),
        "settings": asdict(settings),
        "quick": settings.quick,
        "choices_on_validation": choices,
        "timing": {name: part["timing"] for name, part in parts.items()},
        "rows": rows,
        "curves": {name: part["curves"] for name, part in parts.items()},
    }


def format_table(result: dict[str, Any]) -> str:
    """Test loss (mean over seeds) beside the paper's numbers."""
    methods = ("exact", "direct", "straight-through", "gumbel-softmax", "as-published", "best")
    lines = []
    if result["quick"]:
        lines.append("QUICK: a few epochs and one seed; these are not the paper's protocol and not its numbers.")
    lines.append("Test negative ELBO, nats (mean over seeds), in brackets the paper's; em: −log p(x) of the EM mixture")
    head = " ".join(f"{method:>18}" for method in methods)
    lines.append(f"{'':<16}{'k':>3} {head} {'best nll':>9} {'em':>8}")
    cells = {(row["dataset"], row["k"], row["method"]): row for row in result["rows"]}
    for name in result["settings"]["datasets"]:
        for k in result["settings"]["values"]:
            paper = TABLE_1[name].get(k, {})
            published = {"exact": "unbiased", "direct": "direct", "straight-through": "gumbel-softmax"}
            texts = []
            for method in methods:
                text = f"{mean(cells[name, k, method]['test_loss']):.2f}"
                printed = paper.get(published.get(method, ""))
                texts.append(f"{text} ({printed:.2f})" if printed else text)
            line = " ".join(f"{text:>18}" for text in texts)
            best, em = mean(cells[name, k, "best"]["nll"]), cells[name, k, "em"]["nll"][0]
            lines.append(f"{name:<16}{k:>3} {line} {best:>9.2f} {em:>8.2f}")
    return "\n".join(lines)
