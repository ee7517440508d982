"""The report of a discrete VAE: what it scored, how it learnt, what its codes mean."""

from __future__ import annotations

import datetime
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from argrad.data import Images
from argrad.models.dead_codes import perplexity, used
from argrad.models.discrete_vae.module import DiscreteVAEModule
from argrad.models.discrete_vae.run import TrainSettings
from argrad.models.discrete_vae.task import evaluate_in_batches
from argrad.training import page
from argrad.training.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["advice", "evaluate", "write_report"]

EXACT_UP_TO = 2**16
"""Up to this many structures an evaluation sums over all of them."""
FEW_UPDATES = 1000
"""Training with fewer is seldom done."""


@torch.no_grad()
def evaluate(
    module: DiscreteVAEModule, images: Images, split: str = "test", *, samples: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """Scores on one split, in nats per image.

    Returns:
        ``negative_elbo`` and ``nll``, each with how it was computed, ``perplexity`` and ``used_codes``.
    """
    stored: Tensor = getattr(images, split)
    if len(stored) == 0:
        raise ValueError(f"{images.name} has no {split} images; choose another split")
    device = next(module.parameters()).device
    stored = stored.to(device)
    states = module.values**module.variables
    exact = states <= EXACT_UP_TO

    def generator() -> torch.Generator:
        return torch.Generator(device).manual_seed(seed)

    noise, bits = generator(), generator()
    width = max(math.prod(images.shape), math.prod(module.event_shape))
    size = max(1, min(1000, 2**24 // states)) if exact else max(1, min(1000, 2**25 // (samples * width)))
    negative_elbo = evaluate_in_batches(
        lambda x: module.negative_elbo(images.values(x, bits), generator=noise, exact_up_to=EXACT_UP_TO), stored, size
    )
    noise, bits = generator(), generator()
    nll = evaluate_in_batches(
        lambda x: module.negative_log_likelihood(
            images.values(x, bits), samples=samples, generator=noise, exact_up_to=EXACT_UP_TO
        ),
        stored,
        size,
    )
    usage = module.usage(images.values(stored, generator()))
    return {
        "split": split,
        "images": len(stored),
        "negative_elbo": negative_elbo,
        "negative_elbo_by": "exact" if exact else "1 sample",
        "nll": nll,
        "nll_by": "exact" if exact else f"importance-weighted bound, {samples} samples",
        "perplexity": perplexity(usage),
        "used_codes": used(usage),
    }


def advice(settings: TrainSettings, images: int, scores: dict[str, Any]) -> list[str]:
    """What to try where training was too short, or left codes unused; mostly nothing.

    Args:
        settings: of the run.
        images: trained on.
        scores: of :func:`evaluate`.

    Returns:
        sentences, with the options to give.

    Example:
        >>> advice(TrainSettings(), 38, {"used_codes": 1.0})
        ['38 images in batches of 100 make 100 updates, which is few: try --batch-size 8 --epochs 400.']
    """
    found = []
    batch_size, epochs = settings.batch_size, settings.epochs
    updates = epochs * math.ceil(images / batch_size)
    if updates < FEW_UPDATES:
        batch_size = min(batch_size, max(8, images // 20))
        epochs = max(epochs, math.ceil(2 * FEW_UPDATES / math.ceil(images / batch_size) / 100) * 100)
        found.append(
            f"{images:,} images in batches of {settings.batch_size:,} make {updates:,} updates, which is few: "
            f"try --batch-size {batch_size} --epochs {epochs}."
        )
    if settings.latent == "categorical" and settings.revive_until == 0 and scores["used_codes"] <= 0.5:
        found.append(
            f"Only {scores['used_codes']:.0%} of the codes are in use: "
            f"try --revive-until {math.ceil(epochs / 2)}, which gives the others a new start."
        )
    return found


def write_report(
    path: Path,
    module: DiscreteVAEModule,
    images: Images,
    settings: TrainSettings,
    history: list[dict[str, Any]],
    scores: dict[str, Any],
) -> Path:
    """Write ``report.html`` into the run folder from what :func:`evaluate` found; returns its path."""
    from argrad import __version__

    best = min(history, key=lambda row: float(row["loss"]))
    subtitle = (
        f"{settings.data} · {describe_latent(module)} · {settings.estimator} · argrad {__version__} · "
        f"{datetime.datetime.now().strftime('%Y-%m-%d %H:%M')}"
    )
    numbers = {
        f"test negative ELBO, nats ({scores['negative_elbo_by']})": f"{scores['negative_elbo']:.2f}",
        f"test −log p(x), nats ({'exact' if scores['nll_by'] == 'exact' else 'upper bound'})": f"{scores['nll']:.2f}",
        f"perplexity of codes, of {module.values}": f"{scores['perplexity']:.1f}",
        "of codes in use": f"{scores['used_codes']:.0%}",
        f"best epoch, of {len(history)}": str(best["epoch"]),
        "training time": duration(float(history[-1]["seconds"])),
    }
    hints = advice(settings, len(images.train), scores)
    sections = [
        page.cards(numbers),
        *([page.section("What to try", " ".join(hints))] if hints else []),
        page.section(
            "How it learnt", "Negative ELBO in nats per image; lower is better.", page.figure(curves(history), "")
        ),
        *pictures(module, images),
        page.section(
            "Which codes are used",
            "The share of each value in the mean posterior of the validation images; the line is an equal share.",
            page.figure(usage_bars(module, images), ""),
        ),
        page.section("Settings", "As in config.json.", page.settings_table(asdict(settings))),
        page.section(
            "Go on",
            "From the folder in which training was started:",
            page.commands(
                [
                    f"argrad train --resume {path} --epochs {2 * settings.epochs}",
                    f"argrad evaluate {path}",
                    f"argrad sample {path} --number 64",
                ]
            ),
        ),
    ]
    report = path / "report.html"
    write_atomically(report, page.page("Discrete VAE", subtitle, sections).encode())
    return report


def describe_latent(module: DiscreteVAEModule) -> str:
    """The latent in words."""
    if module.latent == "bits":
        return f"{module.variables} bits"
    return (
        f"one of {module.values}"
        if module.variables == 1
        else f"{module.variables} variables, each one of {module.values}"
    )


def duration(seconds: float) -> str:
    """Seconds for people."""
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def curves(history: list[dict[str, Any]]) -> Figure:
    """Training and validation loss by epoch, the best epoch marked."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(7.5, 3.2))
    axes = drawing.subplots()
    epochs = [row["epoch"] for row in history]
    best = min(history, key=lambda row: float(row["loss"]))
    axes.plot(epochs, [row["train_loss"] for row in history], label="training", color="#7a8794", marker=dot(history))
    axes.plot(epochs, [row["loss"] for row in history], label="validation", color="#1f6feb", marker=dot(history))
    axes.plot(best["epoch"], best["loss"], "o", color="#1f6feb", label=f"best, {best['loss']:.2f}")
    axes.set(xlabel="epoch", ylabel="nats per image")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return drawing


def dot(history: list[dict[str, Any]]) -> str | None:
    """A marker where a line alone would not show."""
    return "." if len(history) < 3 else None


def usage_bars(module: DiscreteVAEModule, images: Images) -> Figure:
    """Bars of usage, one group per variable; for bits, how often each is 1."""
    from matplotlib.figure import Figure

    device = next(module.parameters()).device
    stored = images.validation if len(images.validation) else images.train
    usage = module.usage(images.values(stored.to(device), torch.Generator(device).manual_seed(0))).cpu().numpy()
    shares = usage[:, 1] if module.latent == "bits" else np.sort(usage, -1)[:, ::-1].reshape(-1)
    drawing = Figure(figsize=(7.5, 2.4))
    axes = drawing.subplots()
    axes.bar(np.arange(len(shares)), shares, color="#1f6feb", width=0.85)
    axes.axhline(1 / module.values, color="#7a8794", linewidth=1)
    label = (
        "bit"
        if module.latent == "bits"
        else "value, most used first" + ("" if module.variables == 1 else ", by variable")
    )
    axes.set(xlabel=label, ylabel="share of 1s" if module.latent == "bits" else "share")
    axes.spines[["top", "right"]].set_visible(False)
    return drawing


@torch.no_grad()
def pictures(module: DiscreteVAEModule, images: Images) -> list[str]:
    """Reconstructions, samples, and for one categorical variable every code; nothing for data that is not an image."""
    if len(images.shape) not in (2, 3):
        return []
    device = next(module.parameters()).device
    generator = torch.Generator(device).manual_seed(0)
    x = images.values(images.test[:12].to(device), generator)
    rebuilt = module.decode(module.posterior(x).mode())
    parts = [
        page.section(
            "Reconstructions",
            "Test images above, below them what the decoder makes of their most probable code.",
            page.mosaic(torch.cat([x, rebuilt]).cpu().numpy(), "", len(x)),
        )
    ]
    if module.latent == "categorical" and module.variables == 1:
        codes = torch.eye(module.values, device=device)
        order = module.usage(
            x if len(images.validation) == 0 else images.values(images.validation.to(device), generator)
        )
        ranked = module.decode(codes[order[0].argsort(descending=True)])
        words = "The mean image of every code, most used first."
        parts.append(page.section("Codes", words, page.mosaic(ranked.cpu().numpy(), "", min(10, module.values))))
    else:
        _, drawn = module.sample(48, generator=generator)
        words = "Codes drawn from the prior, decoded to mean images."
        parts.append(page.section("Samples", words, page.mosaic(drawn.cpu().numpy(), "", 12)))
    return parts
