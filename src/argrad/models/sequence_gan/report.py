"""The report of a sequence GAN: how the game went, what it writes, and whether that is always the same."""

from __future__ import annotations

import datetime
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from argrad.data.grammar import EXPRESSIONS
from argrad.data.text import Text
from argrad.models.discrete_vae.report import dot, duration
from argrad.models.sequence_gan.module import SequenceGenerator
from argrad.models.sequence_gan.run import SequenceGANSettings
from argrad.models.sequence_gan.scores import mean_divergence, score_sequences
from argrad.models.sequence_gan.task import DRAWN
from argrad.training import page
from argrad.training.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["evaluate_sequence_gan", "grammar_scores", "write_sequence_gan_report"]

SHOWN = 40
"""Samples in a report."""


@torch.no_grad()
def evaluate_sequence_gan(
    generator: SequenceGenerator, text: Text, split: str = "test", *, seed: int = 1, number: int = DRAWN
) -> dict[str, float]:
    """Scores of fresh draws against one split.

    Returns:
        what :func:`score_sequences` finds, ``floor``: the n-gram divergence of as many training lines from that split,
        and for expressions what :func:`grammar_scores` finds.
    """
    held_out = getattr(text, split)
    noise = torch.Generator(held_out.device).manual_seed(seed)
    drawn = generator.sample(min(number, len(held_out)), generator=noise)
    scores = score_sequences(generator, drawn, text.train, held_out)
    scores["floor"] = mean_divergence(text.train[: len(drawn)], held_out, generator.symbols)
    if text.name == "expressions":
        scores.update(grammar_scores(text.vocabulary.decode(drawn)))
    return scores


def grammar_scores(lines: list[str]) -> dict[str, float]:
    """``valid``: the share of lines that the grammar can say; ``productions``: how many of its rules they use;
    ``rarest``: the least use of a rule, over that in the grammar's own sentences.
    """
    sentences = [line.split() for line in lines]
    uses = EXPRESSIONS.count_productions(sentences)
    usual = EXPRESSIONS.count_productions(EXPRESSIONS.sample(len(lines), seed=2**31))
    return {
        "valid": sum(EXPRESSIONS.is_valid(sentence) for sentence in sentences) / len(sentences),
        "productions": sum(use > 0 for use in uses),
        "rarest": min(use / max(1, one) for use, one in zip(uses, usual, strict=True)),
    }


def write_sequence_gan_report(
    path: Path,
    generator: SequenceGenerator,
    text: Text,
    settings: SequenceGANSettings,
    history: list[dict[str, Any]],
    likelihood_history: list[dict[str, Any]],
    scores: dict[str, float],
) -> Path:
    """Write ``report.html`` into the run folder from what :func:`evaluate_sequence_gan` found; returns its path."""
    from argrad import __version__

    subtitle = (
        f"{settings.data} · {len(text.vocabulary) - 1} {text.vocabulary.level}, at most {text.length - 1} in a line · "
        f"{settings.estimator} · argrad {__version__} · {datetime.datetime.now().strftime('%Y-%m-%d %H:%M')}"
    )
    best = min(history, key=lambda row: float(row["loss"]))
    numbers = {
        "n-gram divergence to test lines, nats": f"{scores['divergence']:.4f}",
        "the same of as many training lines": f"{scores['floor']:.4f}",
        "of samples are novel": f"{scores['novel']:.0%}",
        "of samples are distinct": f"{scores['distinct']:.0%}",
        "entropy, nats per line": f"{scores['entropy']:.2f}",
        "test −log q, nats per line": f"{scores['nll']:.2f}",
        f"best epoch, of {len(history)}": str(best["epoch"]),
        "training time of the game": duration(float(history[-1]["seconds"])),
    }
    if "valid" in scores:
        numbers["of samples are valid"] = f"{scores['valid']:.1%}"
        numbers[f"rules of the grammar used, of {len(EXPRESSIONS.productions)}"] = str(int(scores["productions"]))
    sections = [
        page.cards(numbers),
        page.section(
            "How it learnt",
            "Maximum likelihood, then the game: n-gram divergence to validation lines, and how varied the draws are.",
            page.figure(curves(history, likelihood_history), ""),
        ),
        page.section("Samples", "Drawn one symbol after the other.", page.commands(samples(generator, text))),
        page.section(
            "The commonest",
            f"How often, of {DRAWN} samples; a generator that has collapsed says little else.",
            page.commands(commonest(generator, text)),
        ),
        page.section("Settings", "As in config.json.", page.settings_table(asdict(settings))),
        page.section(
            "Go on",
            "From the folder in which training was started:",
            page.commands(
                [
                    f"argrad write train --resume {path} --epochs {2 * settings.epochs}",
                    f"argrad write sample {path} --number 100 --output new.txt",
                ]
            ),
        ),
    ]
    report = path / "report.html"
    write_atomically(report, page.page("Sequence GAN", subtitle, sections).encode())
    return report


def samples(generator: SequenceGenerator, text: Text) -> list[str]:
    """New lines."""
    noise = torch.Generator(text.train.device).manual_seed(0)
    return text.vocabulary.decode(generator.sample(SHOWN, generator=noise))


def commonest(generator: SequenceGenerator, text: Text) -> list[str]:
    """The ten commonest of many draws."""
    noise = torch.Generator(text.train.device).manual_seed(0)
    counts = Counter(text.vocabulary.decode(generator.sample(DRAWN, generator=noise)))
    return [f"{count:5d}  {line}" for line, count in counts.most_common(10)]


def curves(history: list[dict[str, Any]], likelihood_history: list[dict[str, Any]]) -> Figure:
    """Likelihood where there was that stage, divergence, diversity, by epoch."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(9.5, 3.0), layout="constrained")
    panels = list(drawing.subplots(1, 3 if likelihood_history else 2))
    lines = [
        (panels[-2], history, "divergence", "", "#1f6feb"),
        (panels[-1], history, "distinct", "distinct", "#1f6feb"),
        (panels[-1], history, "novel", "novel", "#d1662a"),
    ]
    if likelihood_history:
        lines.append((panels[0], likelihood_history, "train_loss", "training", "#7a8794"))
        lines.append((panels[0], likelihood_history, "loss", "validation", "#1f6feb"))
    for axes, rows, key, label, colour in lines:
        axes.plot(
            [row["epoch"] for row in rows], [row[key] for row in rows], label=label, color=colour, marker=dot(rows)
        )
    words = ["−log q, nats per line", "n-gram divergence, nats", "share of samples"]
    for axes, text in zip(panels, words[-len(panels) :], strict=True):
        axes.set(xlabel="epoch", ylabel=text)
        axes.spines[["top", "right"]].set_visible(False)
        if axes is not panels[-2]:
            axes.legend(frameon=False)
    return drawing
