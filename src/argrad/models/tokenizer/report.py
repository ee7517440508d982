"""The report of a tokenizer: what is lost by its codes, how they are used, what its prior dreams of."""

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
from argrad.models.discrete_vae.report import dot, duration
from argrad.models.discrete_vae.task import evaluate_in_batches
from argrad.models.tokenizer.module import TokenizerModule
from argrad.models.tokenizer.prior import CodePrior
from argrad.models.tokenizer.run import TokenizerSettings, encode_in_batches, fixed_values
from argrad.models.tokenizer.task import at_once, squared_error, usage_in_batches
from argrad.training import page
from argrad.training.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["advice", "evaluate_tokenizer", "write_tokenizer_report"]


@torch.no_grad()
def evaluate_tokenizer(
    module: TokenizerModule,
    images: Images,
    split: str = "test",
    *,
    prior: CodePrior | None = None,
    temperature: float | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Scores on one split.

    Returns:
        squared errors per pixel of what is decoded (``hard_error``, ``soft_error``, ``sampled_error``, and with a
        temperature ``relaxed_error``); ``negative_elbo`` and ``kl`` in nats per image; ``perplexity`` and
        ``used_codes`` of the most probable codes; with a prior ``prior_nll``, nats per image of their codes.
    """
    stored: Tensor = getattr(images, split)
    if len(stored) == 0:
        raise ValueError(f"{images.name} has no {split} images; choose another split")
    device = module.decoder.codebook.device
    stored = stored.to(device)
    values = fixed_values(images, device)

    def noise() -> torch.Generator:
        return torch.Generator(device).manual_seed(seed)

    draws = noise()
    size = at_once(module.event_shape)
    usage = usage_in_batches(module, stored, values, size=size)
    scores: dict[str, Any] = {
        "split": split,
        "images": len(stored),
        "hard_error": squared_error(module, stored, values, "hard", size=size),
        "soft_error": squared_error(module, stored, values, "soft", size=size),
        "sampled_error": squared_error(module, stored, values, "sampled", generator=noise(), size=size),
        "negative_elbo": evaluate_in_batches(lambda x: module.negative_elbo(values(x), generator=draws), stored, size),
        "kl": evaluate_in_batches(lambda x: module.posterior(values(x)).kl(), stored, size),
        "perplexity": perplexity(usage),
        "used_codes": used(usage),
    }
    if temperature is not None:
        scores["relaxed_error"] = squared_error(
            module, stored, values, "relaxed", temperature=temperature, generator=noise(), size=size
        )
    if prior is not None:
        codes = encode_in_batches(module, stored, values)
        scores["prior_nll"] = evaluate_in_batches(lambda one: -prior.log_prob(one), codes, size)
    return scores


def advice(settings: TokenizerSettings, images: int, history: list[dict[str, Any]]) -> str:
    """What to try where the best epoch was one without codes; mostly nothing.

    Args:
        settings: of the run.
        images: trained on.
        history: of the training.

    Returns:
        a sentence, with the options to give, or none.
    """
    best = min(history, key=lambda row: float(row["loss"]))
    if "continuous" not in best:
        return ""
    if "continuous" not in history[-1]:
        return (
            f"No epoch with trained codes was better than epoch {best['epoch']}, after which they were only placed: "
            "try more --epochs, or a lower --learning-rate."
        )
    per_epoch = math.ceil(images / settings.batch_size)
    return (
        f"Codes were placed, but not trained: that begins after --continuous-steps {settings.continuous_steps}, and "
        f"an epoch has {per_epoch} steps: try --epochs {math.ceil(3 * settings.continuous_steps / per_epoch)}."
    )


def write_tokenizer_report(
    path: Path,
    module: TokenizerModule,
    prior: CodePrior | None,
    images: Images,
    settings: TokenizerSettings,
    history: list[dict[str, Any]],
    prior_history: list[dict[str, Any]],
    scores: dict[str, Any],
) -> Path:
    """Write ``report.html`` into the run folder from what :func:`evaluate_tokenizer` found; returns its path."""
    from argrad import __version__

    best = min(history, key=lambda row: float(row["loss"]))
    rows, columns = module.grid
    subtitle = (
        f"{settings.data} · {rows} × {columns} cells, each one of {module.codes} codes · {settings.estimator} · "
        f"argrad {__version__} · {datetime.datetime.now().strftime('%Y-%m-%d %H:%M')}"
    )
    numbers = {
        "test squared error per pixel, hard codes": f"{scores['hard_error']:.5f}",
        "the same, soft mixtures of codes": f"{scores['soft_error']:.5f}",
        f"perplexity of codes, of {module.codes}": f"{scores['perplexity']:.1f}",
        "of codes in use": f"{scores['used_codes']:.0%}",
        "test negative ELBO, nats (1 sample)": f"{scores['negative_elbo']:.2f}",
        f"best epoch, of {len(history)}": str(best["epoch"]),
        "training time": duration(float(history[-1]["seconds"])),
    }
    if "prior_nll" in scores:
        numbers["test −log p(codes) under the prior, nats"] = f"{scores['prior_nll']:.2f}"
    hint = advice(settings, len(images.train), history)
    sections = [
        page.cards(numbers),
        *([page.section("What to try", hint)] if hint else []),
        page.section(
            "How it learnt",
            "The objective in nats per image (in training, while there are no codes, its first term alone), and the "
            "squared error per pixel with hard and with soft codes.",
            page.figure(curves(history, prior_history), ""),
        ),
        *pictures(module, prior, images),
        page.section(
            "Which codes are used",
            "The share of each code among the most probable ones of all cells; the line is an equal share.",
            page.figure(usage_bars(module, images), ""),
        ),
        page.section("Settings", "As in config.json.", page.settings_table(asdict(settings))),
        page.section(
            "Go on",
            "From the folder in which training was started:",
            page.commands(
                [
                    f"argrad tokenize train --resume {path} --epochs {2 * settings.epochs}",
                    f"argrad tokenize encode {path} --output codes.npz",
                    f"argrad tokenize decode {path} codes.npz --output decoded.png",
                    f"argrad tokenize sample {path} --number 64",
                ]
            ),
        ),
    ]
    report = path / "report.html"
    write_atomically(report, page.page("Image tokenizer", subtitle, sections).encode())
    return report


def curves(history: list[dict[str, Any]], prior_history: list[dict[str, Any]]) -> Figure:
    """The objective, the errors, and the prior's loss where there is one, by epoch."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(9.5, 3.0), layout="constrained")
    panels = drawing.subplots(1, 3 if prior_history else 2)
    epochs = [row["epoch"] for row in history]
    lines = [
        (panels[0], history, "train_loss", "training", "#7a8794"),
        (panels[0], history, "loss", "validation", "#1f6feb"),
        (panels[1], history, "soft_error", "soft", "#d1662a"),
        (panels[1], history, "hard_error", "hard", "#1f6feb"),
    ]
    if prior_history:
        lines.append((panels[2], prior_history, "train_loss", "training", "#7a8794"))
        lines.append((panels[2], prior_history, "loss", "validation", "#1f6feb"))
    for axes, rows, key, label, colour in lines:
        at = epochs if rows is history else [row["epoch"] for row in rows]
        axes.plot(at, [row[key] for row in rows], label=label, color=colour, marker=dot(rows))
    words = ("objective, nats per image", "squared error per pixel", "prior, nats per image")
    for axes, text in zip(panels, words, strict=False):
        axes.set(xlabel="epoch", ylabel=text)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    return drawing


def usage_bars(module: TokenizerModule, images: Images) -> Figure:
    """The codes of the vocabulary, most used first."""
    from matplotlib.figure import Figure

    device = module.decoder.codebook.device
    stored = (images.validation if len(images.validation) else images.train).to(device)
    usage = usage_in_batches(module, stored, fixed_values(images, device)).cpu().numpy()
    drawing = Figure(figsize=(7.5, 2.4))
    axes = drawing.subplots()
    axes.bar(np.arange(len(usage)), np.sort(usage)[::-1], color="#1f6feb", width=1.0)
    axes.axhline(1 / module.codes, color="#7a8794", linewidth=1)
    axes.set(xlabel="code, most used first", ylabel="share")
    axes.spines[["top", "right"]].set_visible(False)
    return drawing


@torch.no_grad()
def pictures(module: TokenizerModule, prior: CodePrior | None, images: Images) -> list[str]:
    """Reconstructions from hard codes, and samples from the prior."""
    device = module.decoder.codebook.device
    x = fixed_values(images, device)(images.test[:12].to(device))
    rebuilt = module.decode(module.encode(x))
    parts = [
        page.section(
            "Reconstructions",
            "Test images above, below them what the decoder makes of their codes.",
            page.mosaic(as_pictures(torch.cat([x, rebuilt])), "", len(x)),
        )
    ]
    if prior is not None:
        drawn = module.decode(prior.sample(48, generator=torch.Generator(device).manual_seed(0)))
        words = "Codes drawn from the prior, cell by cell, and decoded to mean images."
        parts.append(page.section("Samples", words, page.mosaic(as_pictures(drawn), "", 12)))
    return parts


def as_pictures(images: Tensor) -> np.ndarray[Any, Any]:
    """Images ``[N, H, W]`` or ``[N, 3, H, W]``, as a mosaic takes them."""
    return (images[:, 0] if images.dim() == 4 and images.shape[1] == 1 else images).cpu().numpy()
