"""Figure 4 of the paper: generation without labels and with a few, a row for each class, side by side.

The paper's model is trained seven times on the same images, with the exact gradient over classes and averaged weights.
Five times on Eq. (9), whole or with parts missing, and nothing else, neither further terms nor augmentation: without
labels the classes are whatever reconstructs best, a style here and two digits there; with a few labels each row is one
class; with labels only there are no unlabelled images; without the KL terms (no regulariser) reconstruction alone
spreads the codes to where the prior never draws, so that samples are no images; and without the reconstruction the code
says nothing about the image. Labels are predicted as the authors did, by direct loss minimisation with their ε. Then
twice by the recipe of Table 2, whole and with the labelled images alone.

In every picture the continuous part is the same down each column. ``accuracy`` is that of the most probable class on
test images; without labels, of the class that most of the training images with that code have.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from argrad.data.labels import hide_labels
from argrad.experiments.drawing import new_figure, save
from argrad.experiments.paper_model import quickly
from argrad.experiments.pictures import packed, unpacked
from argrad.experiments.provenance import command_line, provenance
from argrad.experiments.table2 import BEST, PAPER, LabelledBits, Table2, load_labelled_bits, train_recipe
from argrad.models.discrete_vae.run import choose_device
from argrad.models.semi_supervised.loss import Terms
from argrad.models.semi_supervised.module import SemiSupervisedModule, member
from argrad.models.semi_supervised.recipe import Recipe
from argrad.models.semi_supervised.stack import evaluate_stack

__all__ = ["Figure4", "format_table", "markdown", "plot", "run", "variants"]

WITHOUT_LABELS = "Eq. (9), no labels"


@final
@dataclass(frozen=True)
class Figure4:
    """Settings of the experiment."""

    dataset: str = ""
    """Images to train on; fashion-mnist (whose licence allows pictures to be passed on) unless given, and digits (which
    need no download) with --quick."""
    labels: int = 100
    """How many training images are labelled."""
    draw: int = 0
    """Which of them."""
    epochs: int = 20
    """Passes over the training images, the label-first ones included."""
    columns: int = 10
    """Samples of each class."""
    batch_size: int = 100
    """Images per step."""
    learning_rate: float = 8e-4
    """Adam's step size."""
    device: str = "auto"
    """cpu, cuda …"""
    quick: bool = False
    """8×8 digits and a narrow model: a minute or two on a laptop, and not the paper's model."""

    def __post_init__(self) -> None:
        for name in ("epochs", "columns", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def effective(self) -> Figure4:
        """The settings with ``quick`` and the data set spelt out."""
        if not self.quick:
            return quickly(self, dataset="fashion-mnist")
        return quickly(self, dataset="digits", labels=50, epochs=30, learning_rate=2e-3)


def variants(settings: Figure4) -> dict[str, Recipe]:
    """What is trained, by name."""
    whole = BEST.get(settings.dataset, BEST["mnist"])
    if settings.quick:
        whole = replace(whole, hidden=120, latent=8, label_first=settings.epochs // 3, average=0.99)
    paper = replace(whole, augmentation="none", label_loss=PAPER.label_loss, label_epsilon=PAPER.label_epsilon)

    def equation_9(**missing: float) -> Recipe:
        return replace(paper, terms=Terms(**missing))

    # Whatever looks at unlabelled images is left out.
    labelled = replace(whole.terms, unlabelled=0.0, consistency=0.0, entropy=0.0, balance=0.0)
    return {
        WITHOUT_LABELS: replace(equation_9(labelled=0.0, prediction=0.0), label_first=0),
        "Eq. (9)": equation_9(),
        "Eq. (9), labels only": equation_9(unlabelled=0.0),
        "Eq. (9), no regulariser": equation_9(gaussian_kl=0.0, class_kl=0.0),
        "Eq. (9), no reconstruction": equation_9(reconstruction=0.0),
        "recipe": whole,
        "recipe, labels only": replace(whole, terms=labelled),
    }


@torch.no_grad()
def accuracy_by_majority(module: SemiSupervisedModule, data: LabelledBits) -> float:
    """The accuracy, in percent, of calling every code by the class that most training images with it have."""

    def codes(x: Tensor) -> Tensor:
        parts = [module.class_scores(module.trunk(part.float())).argmax(-1) for part in x.split(5000)]
        return torch.cat(parts)

    pairs = codes(data.train) * data.classes + data.train_labels
    counts = torch.bincount(pairs, minlength=data.classes**2).reshape(data.classes, data.classes)
    named = counts.argmax(1)[codes(data.test)]
    return float(100 * (named == data.test_labels).double().mean())


def run(settings: Figure4, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """Train every variant and draw from it."""
    command = command_line("argrad reproduce figure4", settings)
    settings = settings.effective()
    data = load_labelled_bits(settings.dataset, choose_device(settings.device))
    if len(data.shape) != 2:
        raise ValueError(f"{settings.dataset} has images of shape {data.shape}; the figure draws grey ones")
    labelled = (hide_labels(data.train_labels, settings.labels, settings.draw) >= 0).nonzero().flatten()
    table2 = Table2(epochs=settings.epochs, batch_size=settings.batch_size, learning_rate=settings.learning_rate)
    recipes = variants(settings)
    if max(recipe.label_first for recipe in recipes.values()) >= settings.epochs:
        raise ValueError(f"{settings.epochs} epochs are too few: the label-first ones alone are as many; give more")
    panels = []
    for name, recipe in recipes.items():
        stacked, seconds = train_recipe(
            recipe,
            data,
            [labelled],
            [settings.draw],
            table2,
            lambda line, name=name: progress(f"{settings.dataset}, {name}: {line}"),  # type: ignore[misc]
        )
        accuracy, bound = (float(each[0]) for each in evaluate_stack(stacked.predictor, data.test, data.test_labels))
        alone = member(stacked.predictor, 0).eval()
        if name == WITHOUT_LABELS:
            accuracy = accuracy_by_majority(alone, data)
        panels.append(
            {
                "name": name,
                "accuracy": round(accuracy, 2),
                "bound": round(bound, 3),
                "seconds": round(seconds, 1),
                "images": draw_classes(alone, settings.columns, data.shape),
            }
        )
    return {
        **provenance(command),
        "settings": asdict(settings),
        "quick": settings.quick,
        "recipes": {name: asdict(recipe) for name, recipe in recipes.items()},
        "shape": list(data.shape),
        "panels": panels,
    }


def draw_classes(module: SemiSupervisedModule, columns: int, shape: tuple[int, ...]) -> dict[str, Any]:
    """Samples ``[classes, columns, *shape]``, packed; the same vectors down a column."""
    device = module.trunk_enter.weight.device
    vectors = torch.randn((columns, module.latent), generator=torch.Generator().manual_seed(0)).to(device)
    labels = torch.arange(module.classes, device=device).repeat_interleave(columns)
    means = module.sample(labels, noise=vectors.repeat(module.classes, 1))
    return packed(means.reshape(module.classes, columns, *shape))


def format_table(result: dict[str, Any]) -> str:
    """Accuracy and bound of each variant."""
    lines = []
    if result["quick"]:
        lines.append("QUICK: small images, few epochs; this is not the paper's model.")
    lines.append(f"{'':<28}{'accuracy, %':>14}{'negative ELBO':>16}")
    for panel in result["panels"]:
        lines.append(f"{panel['name']:<28}{panel['accuracy']:>14.1f}{panel['bound']:>16.2f}")
    return "\n".join(lines)


def markdown(result: dict[str, Any]) -> str:
    """The same for the documentation."""
    rows = [f"| {p['name']} | {p['accuracy']:.1f} | {p['bound']:.2f} |" for p in result["panels"]]
    words = f"One draw of {result['settings']['labels']} labels and one seed."
    return "\n".join(["| Trained on | accuracy, % | negative ELBO, nats |", "|---|---|---|", *rows, "", words])


def plot(result: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """A picture of samples for each variant: rows are classes, columns share their continuous part."""
    figure = new_figure(14, 8)
    places = figure.subplots(2, 4).flatten()
    for axes, panel in zip(places, result["panels"], strict=False):
        images = unpacked(panel["images"])
        classes, columns, height, width = images.shape
        axes.imshow(images.transpose(0, 2, 1, 3).reshape(classes * height, columns * width), cmap="gray_r")
        numbers = f"{panel['accuracy']:.1f}%, {panel['bound']:.1f} nats"
        axes.set_title(f"{panel['name']}\n{numbers}", fontsize=9, loc="left")
        axes.set_axis_off()
    for axes in places[len(result["panels"]) :]:
        axes.set_axis_off()
    settings = result["settings"]
    words = f"{settings['dataset']}, {settings['labels']} labels, {settings['epochs']} epochs"
    save(figure, result, f"Samples, a row for each class: {words}", path)
