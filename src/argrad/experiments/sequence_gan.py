"""A GAN whose generator draws symbols, with each estimator, beside maximum likelihood: a small grammar, and names.

Every seed trains an LSTM by maximum likelihood. From there it goes on in one of several ways, each for the same number
of passes over the text: maximum likelihood again, or the game against a discriminator, with the gradient through the
symbols by REINFORCE, by straight-through Gumbel-softmax or by Direct. All generators have the same size. Likelihood
keeps the weights with the best validation likelihood, the game those with the least n-gram divergence from validation
lines. What is reported is measured on fresh samples and on test lines that played no part. The settings were chosen on
another split of the lines, or other sentences, and with other seeds.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from multiprocessing import get_context
from typing import Any, final

import torch

from argrad.data.grammar import EXPRESSIONS
from argrad.data.text import Text
from argrad.experiments.drawing import new_figure, prepare, save
from argrad.experiments.paper_model import quickly
from argrad.experiments.provenance import command_line, provenance
from argrad.models.sequence_gan.module import SequenceGenerator
from argrad.models.sequence_gan.report import evaluate_sequence_gan
from argrad.models.sequence_gan.run import (
    SequenceGANSettings,
    build_sequence_gan,
    load_lines,
    train_adversarially,
    train_likelihood,
)

__all__ = ["SequenceGANStudy", "format_table", "markdown", "plot", "run"]

PROTOCOLS = {
    "expressions": SequenceGANSettings(
        "expressions", split_seed=1, likelihood_epochs=40, epochs=50, batch_size=128, warm_up=320
    ),
    "names": SequenceGANSettings(
        "names", split_seed=1, likelihood_epochs=4, epochs=4, learning_rate=2e-4, batch_size=128, warm_up=184
    ),
}
"""How long each text is trained on, and a split that no setting was chosen on: trials had split 0."""
FIRST_SEED = 100
"""Trials had smaller ones."""
METHODS: dict[str, dict[str, Any]] = {
    "Reinforce": {"estimator": "reinforce"},
    "Straight-through": {"estimator": "straight-through"},
    "Direct": {"estimator": "direct", "changes": 4},
}
"""The ways to play."""
START, LONGER = "Likelihood, where the game starts", "Likelihood, as long as the game"
COLOURS = {"Reinforce": "#d1662a", "Straight-through": "#a0307f", "Direct": "#1f5fa8"}
TITLES = {"expressions": "Expressions of the grammar", "names": "Names"}
COLUMNS = {
    "valid": ("valid, %", 100, 1),
    "productions": ("rules used", 1, 0),
    "divergence": ("n-gram divergence", 1, 4),
    "nll": ("test −log q", 1, 2),
    "novel": ("novel, %", 100, 1),
    "distinct": ("distinct, %", 100, 1),
    "commonest": ("commonest, %", 100, 1),
    "entropy": ("entropy", 1, 2),
    "distinct_4_grams": ("4-grams", 1, 2),
}
"""Scores that a table shows: heading, factor, digits."""


@final
@dataclass(frozen=True)
class SequenceGANStudy:
    """Settings of the experiment."""

    texts: tuple[str, ...] = ("expressions", "names")
    """Which of the two."""
    seeds: int = 3
    """Trainings of each."""
    hidden: int = 64
    """Width of the LSTMs."""
    workers: int = 1
    """Processes, each of which trains one generator at a time."""
    quick: bool = False
    """Small networks, one seed, few epochs, expressions only: the comparison says little."""

    def __post_init__(self) -> None:
        for name in ("seeds", "hidden", "workers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.texts or set(self.texts) - set(PROTOCOLS):
            raise ValueError(f"texts must be among {', '.join(PROTOCOLS)}, got {self.texts}")

    def effective(self) -> SequenceGANStudy:
        """The settings with ``quick`` spelt out."""
        return quickly(self, texts=("expressions",), seeds=1, hidden=16) if self.quick else self

    def protocol(self, text: str, seed: int) -> SequenceGANSettings:
        """How a text is trained on."""
        settings = replace(PROTOCOLS[text], hidden=self.hidden, seed=seed)
        return replace(settings, likelihood_epochs=1, epochs=1, warm_up=10) if self.quick else settings


Job = tuple[SequenceGANStudy, str, int, str]
"""Settings, text, seed, method."""


def run(settings: SequenceGANStudy, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """All texts, seeds and methods.

    Returns:
        A result ready for JSON. Each of its ``rows`` has a ``text`` and a ``method``, and by seed: ``scores``
        (:func:`~argrad.models.sequence_gan.report.evaluate_sequence_gan`), ``seconds`` of processor time (of a game
        without what came before it), and for games the ``best_epoch`` and ``curves``, the divergence from validation
        lines after each epoch. ``grammar_entropy`` is that of the grammar's own law.
    """
    record = provenance(command_line("argrad reproduce sequence-gan", settings))
    settings = settings.effective()
    for text in settings.texts:
        load_lines(settings.protocol(text, 0))  # what is not on this machine is said now, and not after an hour
    seeds = range(FIRST_SEED, FIRST_SEED + settings.seeds)
    jobs = [(settings, *job) for job in product(settings.texts, seeds, (START, LONGER, *METHODS))]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for (_, text, seed, method), result in zip(jobs, each_job(jobs, settings.workers), strict=True):
        found.setdefault((text, method), []).append(result)
        scores = result["scores"]
        shown = ", ".join(f"{name} {scores[name]:.4g}" for name in COLUMNS if name in scores)
        progress(f"{text}, {method}, seed {seed}: {shown}")
    rows = [
        {"text": text, "method": method, **{key: [result[key] for result in results] for key in results[0]}}
        for (text, method), results in found.items()
    ]
    protocols = {text: asdict(settings.protocol(text, FIRST_SEED)) for text in settings.texts}
    return {
        **record,
        "figure": "sequence_gan",
        "settings": asdict(settings),
        "quick": settings.quick,
        "protocols": protocols,
        "methods": METHODS,
        "grammar_entropy": grammar_entropy(),
        "rows": rows,
    }


def each_job(jobs: list[Job], workers: int) -> Iterator[dict[str, Any]]:
    """What each job finds, in their order."""
    if workers == 1:
        yield from map(train_one, jobs)
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        yield from pool.map(train_one, jobs)


def train_one(job: Job) -> dict[str, Any]:
    """Train one generator. Every game of a seed starts from the same one."""
    study, name, seed, method = job
    torch.set_num_threads(1)
    settings = replace(study.protocol(name, seed), **METHODS.get(method, {}))
    text = load_lines(settings)
    if method not in METHODS:
        passes = settings.likelihood_epochs + (settings.epochs if method == LONGER else 0)
        generator, seconds = by_likelihood(replace(settings, likelihood_epochs=passes))
        return {"scores": scores_of(generator, text, seed), "seconds": seconds}
    module = build_sequence_gan(settings, len(text.vocabulary), text.length)
    module.generator.load_state_dict(by_likelihood(study.protocol(name, seed))[0].state_dict())
    began = time.process_time()
    trained = train_adversarially(settings, None, module, text)
    seconds = round(time.process_time() - began, 1)
    curve = [round(row["divergence"], 5) for row in trained.history]
    scores = scores_of(module.writer, text, seed)
    return {"scores": scores, "seconds": seconds, "best_epoch": trained.best_epoch, "curves": curve}


@functools.lru_cache(maxsize=2)
def by_likelihood(settings: SequenceGANSettings) -> tuple[SequenceGenerator, float]:
    """A generator trained by likelihood alone, and the seconds of processor time; kept for the games to come."""
    text = load_lines(settings)
    module = build_sequence_gan(settings, len(text.vocabulary), text.length)
    began = time.process_time()
    train_likelihood(settings, None, module, text)
    return module.generator.requires_grad_(False), round(time.process_time() - began, 1)


def scores_of(generator: SequenceGenerator, text: Text, seed: int) -> dict[str, float]:
    """Test scores, rounded as a file keeps them."""
    scores = evaluate_sequence_gan(generator, text, seed=1000 + seed)
    return {name: round(value, 5) for name, value in scores.items()}


def grammar_entropy(number: int = 4000) -> float:
    """The entropy of the grammar's own law, nats per sentence, by sampling."""
    return round(-statistics.fmean(map(EXPRESSIONS.log_prob, EXPRESSIONS.sample(number, seed=2**31))), 3)


# ------------------------------------------------------------------------------------------------------- for a person


def cells(row: dict[str, Any]) -> list[str]:
    """Mean of each score over seeds, with its spread."""
    shown = []
    for name, (_, factor, digits) in COLUMNS.items():
        values = [factor * scores[name] for scores in row["scores"] if name in scores]
        if values:
            spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 and digits else ""
            shown.append(f"{statistics.fmean(values):.{digits}f}{spread}")
    return shown


def headings(row: dict[str, Any]) -> list[str]:
    """Of the columns that a text has."""
    return [heading for name, (heading, _, _) in COLUMNS.items() if name in row["scores"][0]]


def rows_of(result: dict[str, Any], text: str) -> list[dict[str, Any]]:
    """The rows of a text."""
    return [row for row in result["rows"] if row["text"] == text]


def floor_of(result: dict[str, Any], text: str) -> float:
    """The divergence of as many training lines."""
    return float(rows_of(result, text)[0]["scores"][0]["floor"])


def format_table(result: dict[str, Any]) -> str:
    """A table for each text."""
    lines = ["QUICK: small networks, one seed, one epoch."] if result["quick"] else []
    for text in result["settings"]["texts"]:
        rows = rows_of(result, text)
        lines.append(f"{TITLES[text]}; n-gram divergence of training lines {floor_of(result, text):.4f}")
        lines.append(" " * 36 + "".join(f"{heading:>20}" for heading in headings(rows[0])))
        lines += [f"{row['method']:<36}" + "".join(f"{cell:>20}" for cell in cells(row)) for row in rows]
    return "\n".join(lines)


def markdown(result: dict[str, Any]) -> str:
    """The same for the documentation."""
    parts = []
    for text in result["settings"]["texts"]:
        rows = rows_of(result, text)
        titles = [TITLES[text], *(heading[0].upper() + heading[1:] for heading in headings(rows[0]))]
        lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
        lines += ["| " + " | ".join([row["method"], *cells(row)]) + " |" for row in rows]
        said = f"As many training lines have an n-gram divergence of {floor_of(result, text):.4f}."
        if text == "expressions":
            said += (
                f" The grammar has {len(EXPRESSIONS.productions)} rules, and its own entropy is "
                f"{result['grammar_entropy']:.2f} nats per sentence."
            )
        parts += ["\n".join(lines), said]
    return "\n\n".join(parts)


def plot(result: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """The divergence from validation lines by epoch of the game, every seed."""
    texts = result["settings"]["texts"]
    figure = new_figure(5.5 * len(texts), 4.2)
    for axes, text in zip(figure.subplots(1, len(texts), squeeze=False)[0], texts, strict=True):
        prepare(axes, TITLES[text], "epoch of the game", "n-gram divergence from validation lines, nats")
        axes.axhline(floor_of(result, text), color="#8a8a8a", linestyle=":", label="training lines")
        for row in rows_of(result, text):
            for number, curve in enumerate(row.get("curves", ())):
                label = row["method"] if number == 0 else None
                axes.plot(range(1, len(curve) + 1), curve, color=COLOURS[row["method"]], label=label, linewidth=1.4)
        axes.locator_params(axis="x", integer=True)
        axes.legend(frameon=False, fontsize=8)
    save(figure, result, "A generator of symbols against a discriminator, by estimator; every seed is a line", path)
