"""The report of an attribute model: how it learnt, and what its switches do."""

from __future__ import annotations

import datetime
from pathlib import Path

import torch
from torch import Tensor

from argrad.models.attributes.module import AttributeModule
from argrad.models.discrete_vae.report import curves, duration
from argrad.training import RunFolder, page
from argrad.training.files import write_atomically

__all__ = ["switched_samples", "write_attribute_report"]

ROWS = 6
"""Samples that are shown with their switches."""


@torch.no_grad()
def switched_samples(module: AttributeModule, rows: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Figure 5 of the paper, from samples: one remainder along a row, every attribute off but one across.

    Returns:
        ``[rows, 1 + attributes, *shape]``: first all attributes off, then each of them on alone.
    """
    n, device = module.attributes, module.prior_scores.device
    remainder = torch.randn(rows, 1, module.remainder, generator=generator, device=device).expand(-1, n + 1, -1)
    switches = torch.cat([torch.zeros(1, n), torch.eye(n)]).to(device).expand(rows, -1, -1)
    images = module.decode(switches.flatten(0, 1), remainder.flatten(0, 1))
    return images.reshape(rows, n + 1, *images.shape[1:])


def write_attribute_report(folder: RunFolder, module: AttributeModule) -> Path:
    """Write ``report.html`` into the run folder; returns its path."""
    from argrad import __version__

    history, names = folder.read_metrics(), folder.config["attribute_names"]
    best = min(history, key=lambda row: float(row["loss"]))
    numbers = {
        "of known attributes right, validation": f"{best['accuracy']:.1%}" if "accuracy" in best else "not known",
        f"best epoch, of {len(history)}": str(best["epoch"]),
        "training time": duration(float(history[-1]["seconds"])),
    }
    device = module.prior_scores.device
    samples = switched_samples(module, ROWS, generator=torch.Generator(device).manual_seed(0)).clamp(0, 1)
    sections = [
        page.cards(numbers),
        page.section(
            "How it learnt",
            "The objective per image; lower is better. In training it also counts what switching costs.",
            page.figure(curves(history), ""),
        ),
        page.section(
            "Switches",
            f"New images, one a row: all attributes off, then one of them on: {', '.join(names)}.",
            page.mosaic(samples.flatten(0, 1).cpu().numpy(), "", 1 + len(names)),
        ),
        page.section("Settings", "As in config.json.", page.settings_table(folder.config["settings"])),
    ]
    shape = " × ".join(map(str, folder.config["shape"]))
    subtitle = f"images {shape} · argrad {__version__} · {datetime.datetime.now().strftime('%Y-%m-%d %H:%M')}"
    report = folder.path / "report.html"
    write_atomically(report, page.page("Attribute VAE", subtitle, sections).encode())
    return report
