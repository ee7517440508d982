"""The report of image completion: how good and how different the completions are, and what they look like."""

from __future__ import annotations

import datetime
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from argrad.data import Images
from argrad.models.completion.module import CompletionModule, on_channels
from argrad.models.completion.run import CompletionSettings
from argrad.models.completion.task import fixed_masks
from argrad.models.discrete_vae.report import dot, duration
from argrad.training import page
from argrad.training.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["as_pictures", "with_hole", "write_completion_report"]

HOLE = 0.5
"""Grey, what hidden pixels are shown as."""


def write_completion_report(
    path: Path,
    module: CompletionModule,
    images: Images,
    settings: CompletionSettings,
    history: list[dict[str, Any]],
    scores: dict[str, Any],
) -> Path:
    """Write ``report.html`` into the run folder from what ``evaluate_completion`` found; returns its path."""
    from argrad import __version__

    best = min(history, key=lambda row: float(row["loss"]))
    subtitle = (
        f"{settings.data} · {module.components} components in {module.dimension} dimensions · {settings.masks} masks · "
        f"argrad {__version__} · {datetime.datetime.now().strftime('%Y-%m-%d %H:%M')}"
    )
    numbers = {
        "test squared error per hidden pixel, best of 8": f"{scores['best_error']:.5f}",
        "the same, mean of 8": f"{scores['mean_error']:.5f}",
        "standard deviation over completions, per hidden pixel": f"{scores['diversity']:.4f}",
        f"components in use, of {module.components}": f"{scores['components']:.1f}",
        "test log p(z_c | z_v), nats": f"{scores['latent_log_likelihood']:.2f}",
        "test log p(x_c | x_v), nats (lower bound)": f"{scores['bound']:.2f}",
        f"best epoch, of {len(history)}": str(best["epoch"]),
        "training time": duration(float(history[-1]["seconds"])),
    }
    sections = [
        page.cards(numbers),
        page.section(
            "How it learnt",
            "The objective in nats per image, lower is better; and how many components the hard max picks.",
            page.figure(curves(history), ""),
        ),
        page.section(
            "Completions",
            "Test images: with the hole, eight completions, and the truth. Visible pixels are the image's own.",
            page.mosaic(rows_of_completions(module, images, settings), "", 10),
        ),
        page.section("Settings", "As in config.json.", page.settings_table(asdict(settings))),
        page.section(
            "Go on",
            "From the folder in which training was started:",
            page.commands(
                [
                    f"argrad complete train --resume {path} --epochs {2 * settings.epochs}",
                    f"argrad complete IMAGE --mask MASK -n 8 --run {path}",
                ]
            ),
        ),
    ]
    report = path / "report.html"
    write_atomically(report, page.page("Image completion", subtitle, sections).encode())
    return report


def curves(history: list[dict[str, Any]]) -> Figure:
    """The objective and the number of components by epoch."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(9.5, 3.0), layout="constrained")
    losses, components = drawing.subplots(1, 2)
    epochs = [row["epoch"] for row in history]
    for name, label, colour in (("train_loss", "training", "#7a8794"), ("loss", "validation", "#1f6feb")):
        losses.plot(epochs, [row[name] for row in history], label=label, color=colour, marker=dot(history))
    losses.set(xlabel="epoch", ylabel="nats per image")
    losses.legend(frameon=False)
    components.plot(epochs, [row["components"] for row in history], color="#1f6feb", marker=dot(history))
    components.set(xlabel="epoch", ylabel="components in use", ylim=(0, None))
    for axes in (losses, components):
        axes.spines[["top", "right"]].set_visible(False)
    return drawing


@torch.no_grad()
def rows_of_completions(
    module: CompletionModule, images: Images, settings: CompletionSettings, rows: int = 8
) -> np.ndarray[Any, Any]:
    """For some test images a row each: with the hole, eight completions, the truth."""
    device = next(module.parameters()).device
    x = images.values(images.test[:rows].to(device))
    mask = fixed_masks(settings.masks, len(x), (images.shape[-2], images.shape[-1]), device)
    completed, _ = module.complete(x, mask, 8, generator=torch.Generator(device).manual_seed(0))
    return as_pictures(torch.cat([with_hole(x, mask)[:, None], completed, x[:, None]], 1).flatten(0, 1))


def with_hole(x: Tensor, mask: Tensor) -> Tensor:
    """Images whose hidden pixels are grey."""
    return x.masked_fill(on_channels(mask, x), HOLE)


def as_pictures(images: Tensor) -> np.ndarray[Any, Any]:
    """Images ``[N, H, W]`` or ``[N, 3, H, W]``, as a mosaic takes them."""
    return (images[:, 0] if images.dim() == 4 and images.shape[1] == 1 else images).cpu().numpy()
