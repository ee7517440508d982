"""The report of a semi-supervised VAE: how well it classifies, beside simpler ways, and what its classes look like."""

from __future__ import annotations

import datetime
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from argrad.models.discrete_vae.report import curves, duration
from argrad.models.discrete_vae.task import evaluate_in_batches
from argrad.models.semi_supervised.module import SemiSupervisedModule
from argrad.models.semi_supervised.run import ClassifySettings, FewLabels
from argrad.training import page
from argrad.training.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["baselines", "evaluate_classifier", "write_classifier_report"]

MOST_TO_SPREAD_OVER = 20_000
"""Label spreading compares every image with every other; beyond this it is left out."""


@torch.no_grad()
def evaluate_classifier(
    module: SemiSupervisedModule, data: FewLabels, split: str = "test", *, seed: int = 0
) -> dict[str, Any]:
    """Accuracy and bound on one split.

    Returns:
        ``accuracy`` (a share of 1), ``confusion`` (rows: true classes, columns: predicted ones), ``negative_elbo`` in
        nats per image, and how many images there were.
    """
    device = module.trunk_enter.weight.device
    stored: Tensor = getattr(data.images, split)
    known: Tensor | None = getattr(data.images, f"{split}_labels")
    if len(stored) == 0 or known is None:
        raise ValueError(f"{data.images.name} has no labelled {split} images; choose another split")
    labels = data.numbered(known)
    generator = torch.Generator(device).manual_seed(seed)
    predicted = torch.cat([predict(module, data, chunk.to(device), generator).cpu() for chunk in stored.split(1000)])
    judged = labels >= 0
    pairs = labels[judged] * len(data.classes) + predicted[judged]
    confusion = torch.bincount(pairs, minlength=len(data.classes) ** 2).reshape(len(data.classes), -1)
    generator.manual_seed(seed)

    def bound(chunk: Tensor) -> Tensor:
        return module.negative_elbo(data.images.values(chunk.to(device), generator).flatten(1), generator=generator)

    return {
        "split": split,
        "images": int(judged.sum()),
        "accuracy": float(confusion.diag().sum()) / max(1, int(judged.sum())),
        "negative_elbo": evaluate_in_batches(bound, stored),
        "confusion": confusion.tolist(),
    }


def predict(module: SemiSupervisedModule, data: FewLabels, stored: Tensor, generator: torch.Generator) -> Tensor:
    """The most probable class of stored images."""
    x = data.images.values(stored, generator).flatten(1)
    return module.class_scores(module.trunk(x)).argmax(-1)


def baselines(data: FewLabels, split: str = "test") -> dict[str, float | None]:
    """The accuracy of scikit-learn's logistic regression and label spreading with the same labels.

    None for what is left out: spreading over too many images, and both where no image of the split has a label.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.semi_supervised import LabelSpreading

    generator = torch.Generator().manual_seed(0)
    x, labels = data.images.values(data.images.train, generator).flatten(1).numpy(), data.labels.numpy()
    known = data.numbered(getattr(data.images, f"{split}_labels")).numpy()
    tested = data.images.values(getattr(data.images, split), generator).flatten(1).numpy()[known >= 0]
    known = known[known >= 0]
    if len(known) == 0:
        return {"logistic regression": None, "label spreading": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        regression = LogisticRegression(max_iter=1000).fit(x[labels >= 0], labels[labels >= 0])
        spread = None
        if len(x) <= MOST_TO_SPREAD_OVER:
            spread = float(LabelSpreading(kernel="knn").fit(x, labels).score(tested, known))
    return {"logistic regression": float(regression.score(tested, known)), "label spreading": spread}


def write_classifier_report(
    path: Path,
    module: SemiSupervisedModule,
    data: FewLabels,
    settings: ClassifySettings,
    history: list[dict[str, Any]],
    scores: dict[str, Any],
    others: dict[str, float | None],
) -> Path:
    """Write ``report.html`` into the run folder; returns its path."""
    from argrad import __version__

    used = int((data.labels >= 0).sum())
    best = min(history, key=lambda row: float(row["loss"]))
    subtitle = (
        f"{settings.data} · {used} labels · {settings.recipe.estimator} · argrad {__version__} · "
        f"{datetime.datetime.now().strftime('%Y-%m-%d %H:%M')}"
    )
    numbers = {
        f"accuracy on {scores['images']} test images": f"{scores['accuracy']:.1%}",
        **{name: "left out" if value is None else f"{value:.1%}" for name, value in others.items()},
        "test negative ELBO, nats": f"{scores['negative_elbo']:.2f}",
        f"best epoch, of {len(history)}": str(best["epoch"]),
        "training time": duration(float(history[-1]["seconds"])),
    }
    sections = [
        page.cards(numbers),
        page.section(
            "How it learnt",
            "The training objective and the bound on held-out images (negative ELBO, nats per image); the first "
            f"{settings.recipe.label_first} epochs saw labelled images alone.",
            page.figure(curves(history), ""),
        ),
        *pictures(module, data),
        page.section(
            "What it takes for what",
            "Test images by their true class (rows) and the predicted one (columns).",
            page.figure(confusion_figure(scores["confusion"], data.classes), ""),
        ),
        page.section("Settings", "As in config.json.", page.settings_table(asdict(settings))),
        page.section(
            "Go on",
            "From the folder in which training was started:",
            page.commands(
                [
                    f"argrad train --resume {path} --epochs {2 * settings.epochs}",
                    f"argrad evaluate {path}",
                    f"argrad sample {path} --label {data.classes[0]}",
                ]
            ),
        ),
    ]
    report = path / "report.html"
    write_atomically(report, page.page("Semi-supervised VAE", subtitle, sections).encode())
    return report


def confusion_figure(confusion: list[list[int]], classes: tuple[int, ...]) -> Figure:
    """Counts as a grid of grey cells."""
    from matplotlib.figure import Figure

    counts = np.array(confusion)
    drawing = Figure(figsize=(4.2, 4.2))
    axes = drawing.subplots()
    axes.imshow(np.sqrt(counts), cmap="Blues")
    if len(classes) <= 20:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                shade = "white" if count > counts.max() / 4 else "black"
                axes.text(column, row, str(count), ha="center", va="center", fontsize=7, color=shade)
        axes.set_xticks(range(len(classes)), map(str, classes))
        axes.set_yticks(range(len(classes)), map(str, classes))
    axes.set(xlabel="predicted", ylabel="true")
    return drawing


@torch.no_grad()
def pictures(module: SemiSupervisedModule, data: FewLabels) -> list[str]:
    """A row of samples for each class, and reconstructions; nothing for data that is not an image."""
    images = data.images
    if len(images.shape) not in (2, 3):
        return []
    device = module.trunk_enter.weight.device
    generator = torch.Generator(device).manual_seed(0)
    columns = 12
    labels = torch.arange(len(data.classes), device=device).repeat_interleave(columns)
    same = torch.randn((columns, module.latent), generator=generator, device=device).repeat(len(data.classes), 1)
    drawn = module.sample(labels, noise=same).reshape(-1, *images.shape)
    x = images.values(images.test[:columns].to(device), generator)
    scores, gaussian = module.encode(x.flatten(1))
    z = torch.nn.functional.one_hot(scores.argmax(-1), module.classes).to(scores.dtype)
    rebuilt = module.decode(z, gaussian.mean).reshape(x.shape)
    return [
        page.section(
            "A row for each class",
            "Samples of the class; the continuous part is the same down each column.",
            page.mosaic(drawn.cpu().numpy(), "", columns),
        ),
        page.section(
            "Reconstructions",
            "Test images above, below them what the decoder makes of their class and the mean of its Gaussian.",
            page.mosaic(torch.cat([x, rebuilt]).cpu().numpy(), "", columns),
        ),
    ]
