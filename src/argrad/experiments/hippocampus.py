"""Segmentation of the hippocampus without a single labelled scan, beside its baselines and a supervised ceiling.

130 label maps without their scans teach the shapes, 130 other scans without their labels are labelled; those labels are
only there to evaluate. Which cases are which depends on the seed alone. All choices (both weights of the model, with
each likelihood on its own; the number of intensity classes of EM) are made before, on cases of stage 1: label maps of
some of them are left out of the prior and their scans labelled. Reported is Dice per structure in the scans' own
voxels, and for the model also on the working grid. The rows with sampled segmentations, whose expectation is Jensen's
bound, are of the model fitted with that bound.

Baselines are the location prior alone, and EM of a Gaussian mixture with the location prior, each with both ways to
bring cases onto a grid: the crops of this data set are cut around the organ, so that their size says something about
it, and "fit", which uses that, is worth a lot by itself. The ceiling is a small U-Net trained on the scans and labels
of stage 1 together, which the task does not allow. Contrasts are changed in all scans of stage 2, and the model is
fitted anew to them. Torch and numpy are all it needs: the data are read from their tar file.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, final

import torch
from torch import Tensor

from argrad.data.working_grid import Alignment, scale_intensities, to_grid
from argrad.estimators import Direct, Estimator, GumbelSoftmax
from argrad.experiments.hippocampus_baselines import mixture, read_location, read_unet, train_unet
from argrad.experiments.hippocampus_data import Cases, load_hippocampus
from argrad.experiments.hippocampus_page import Rows, differences, format_table, markdown, summary
from argrad.experiments.hippocampus_readings import fitted, infer_all, infer_sampled, label_all, label_on_grid
from argrad.experiments.paper_model import quickly
from argrad.experiments.provenance import command_line, provenance
from argrad.models.anatomy.intensities import Classes
from argrad.models.anatomy.overlap import dice, hausdorff95
from argrad.models.anatomy.prior import AnatomyPrior, location_prior, region_of_interest
from argrad.models.anatomy.run import FitSettings, PriorSettings, grid_labels, train_prior
from argrad.models.discrete_vae.run import choose_device
from argrad.training import Trained

__all__ = ["Hippocampus", "format_table", "markdown", "run"]

IDS, NAMES = (0, 1, 2), ("anterior", "posterior")
SHARED = "1+2"
"""Both parts are the same tissue."""
GRIDS: tuple[tuple[Alignment, tuple[int, ...]], ...] = (("centre", (48, 64, 48)), ("fit", ()))
CONTRASTS = {"inverted": None, "gamma 0.6": 0.6, "gamma 1.6": 1.6}
Likelihood = Literal["exact", "jensen"]


@final
@dataclass(frozen=True)
class Hippocampus:
    """Settings of the comparison."""

    quick: bool = False
    """A few cases and epochs, to see that all works; the numbers mean nothing."""
    cases: int = 130
    """Of each half."""
    held_out: int = 30
    """Cases of stage 1 on which choices are made."""
    shape_weights: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3)
    """What is tried for the weight of a voxel in the inference of the shape."""
    label_weights: tuple[float, ...] = (0.1, 0.3, 1.0)
    """And for its weight when the voxel is labelled."""
    em_classes: tuple[int, ...] = (1, 2, 3, 4)
    """Background classes that are tried for EM."""
    prior_epochs: int = 150
    """Passes over the label maps."""
    epochs: int = 30
    """Passes over the scans."""
    unet_epochs: int = 60
    """Of the supervised ceiling."""
    refine: int = 40
    """Gradient steps on the shape of each scan."""
    seed: int = 0
    """Of the split and of all else."""
    device: str = "auto"
    """cpu, cuda, …"""

    def __post_init__(self) -> None:
        for name, least in (("cases", 2), ("held_out", 1), ("prior_epochs", 1), ("epochs", 1), ("unet_epochs", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.held_out >= self.cases:
            raise ValueError(f"held_out must be less than cases, got {self.held_out} of {self.cases}")
        if not self.shape_weights or not self.label_weights or not self.em_classes:
            raise ValueError("give at least one shape weight, one label weight and one number of EM classes to try")
        self.fit("exact", self.shape_weights[0], self.label_weights[0])

    def effective(self) -> Hippocampus:
        """The settings with ``quick`` spelt out."""
        if not self.quick:
            return self
        few = {"cases": 5, "held_out": 2, "shape_weights": (0.03,), "label_weights": (0.1, 0.3), "em_classes": (2, 3)}
        return quickly(self, **few, prior_epochs=2, epochs=2, unet_epochs=1, refine=2)

    def fit(self, likelihood: Likelihood, shape_weight: float, label_weight: float) -> FitSettings:
        """Stage 2 with these choices."""
        return FitSettings(
            likelihood=likelihood,
            shared=(SHARED,),
            shape_weight=shape_weight,
            label_weight=label_weight,
            refine=self.refine,
            epochs=self.epochs,
            pretrain_epochs=min(5, self.epochs // 4),
            seed=self.seed,
        )


@final
class Scores:
    """Dice of every scan by method, and when it was known."""

    def __init__(self, labels: list[Tensor], progress: Callable[[str], None]) -> None:
        self.labels, self.progress = labels, progress
        self.rows: Rows = {}
        self.seconds: dict[str, float] = {}
        self.began = time.monotonic()

    def add(self, name: str, found: list[Tensor], labels: list[Tensor] | None = None) -> None:
        """Measure a method's label maps, against the references unless others are given."""
        pairs = zip(found, self.labels if labels is None else labels, strict=True)
        self.rows[name] = [dice(a.cpu(), b, len(IDS)).tolist() for a, b in pairs]
        self.seconds[name] = round(time.monotonic() - self.began, 1)
        means = " ".join(f"{mean:.3f}" for mean in summary(self.rows[name])["mean"])
        self.progress(f"{name}: {means} ({self.seconds[name]:.0f} s)")


def run(settings: Hippocampus, progress: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Choose on stage 1, train both stages and measure everything; ready for JSON."""
    used = settings.effective()
    device = choose_device(used.device)
    first, second = load_hippocampus(used.seed, used.cases)
    scores = Scores(second.labels, progress)
    chosen = choose(first, used, device, progress)
    maps, prior, trained = shapes_of(first.labels, used, device)
    progress(f"prior: {trained.best_loss:.0f} nats per label map, {trained.seconds:.0f} s")
    add_baselines(scores, first, second.scans, chosen["em_background_classes"], device)
    distances = add_ours(scores, prior, second, chosen, used, device)
    network = train_unet(first, maps.shape[1:], epochs=used.unet_epochs, seed=used.seed, device=device)
    scores.add("supervised U-Net", [read_unet(network, scan, maps.shape[1:], device) for scan in second.scans])
    return {
        **provenance(command_line("argrad reproduce hippocampus", settings)),
        "quick": settings.quick,
        "settings": asdict(settings),
        "structures": list(NAMES),
        "cases": {"stage 1": first.names, "stage 2": second.names},
        "chosen": chosen,
        "prior": {"loss": trained.best_loss, "best_epoch": trained.best_epoch, "seconds": round(trained.seconds, 1)},
        "rows": {name: summary(values) for name, values in scores.rows.items()},
        "differences": differences(scores.rows),
        "hd95_mm": summary(distances)["mean"],
        "seconds": scores.seconds,
        "dice": {name: [[round(v, 4) for v in row] for row in values] for name, values in scores.rows.items()},
    }


def shapes_of(
    labels: list[Tensor], settings: Hippocampus, device: torch.device
) -> tuple[Tensor, AnatomyPrior, Trained]:
    """Stage 1 on these label maps: the maps on the grid, the prior, and how training went."""
    maps, with_grid = grid_labels(labels, PriorSettings(epochs=settings.prior_epochs, seed=settings.seed))
    return maps, *train_prior(maps, len(IDS), with_grid, device=device)


def choose(
    cases: Cases, settings: Hippocampus, device: torch.device, progress: Callable[[str], None]
) -> dict[str, Any]:
    """What is best on cases of stage 1: label maps of most teach the shapes, scans of the others are labelled."""
    shapes, others = cases[: -settings.held_out], cases[-settings.held_out :]
    scores = Scores(others.labels, progress)
    for number in settings.em_classes:
        scores.add(f"EM, {number} background classes", mixtures(shapes, others.scans, "fit", (), number, device))
    best_em = max(settings.em_classes, key=lambda number: mean_of(scores, f"EM, {number} background classes"))
    prior = shapes_of(shapes.labels, settings, device)[1]
    chosen: dict[str, Any] = {"em_background_classes": best_em}
    likelihoods: tuple[Likelihood, ...] = ("exact", "jensen")
    for likelihood in likelihoods:
        tried = {}
        for weight in settings.shape_weights:
            fit = settings.fit(likelihood, weight, settings.label_weights[0])
            model = fitted(prior, IDS, others.scans, fit, device)
            found = infer_all(model, others.scans)
            for label_weight in settings.label_weights:
                model.reading = replace(fit.reading(), label_weight=label_weight)
                name = f"choosing, {likelihood}, {weight:g}, {label_weight:g}"
                scores.add(name, label_all(model, others.scans, found))
                tried[weight, label_weight] = mean_of(scores, name)
        best = max(tried, key=lambda pair: tried[pair])
        chosen[likelihood] = {"shape_weight": best[0], "label_weight": best[1]}
    return {**chosen, "tried": {name: summary(values)["mean"] for name, values in scores.rows.items()}}


def mean_of(scores: Scores, name: str) -> float:
    """Dice of a method over all scans and structures."""
    means: list[float] = summary(scores.rows[name])["mean"]
    return sum(means) / len(means)


def add_baselines(
    scores: Scores, first: Cases, scans: list[Tensor], background_classes: int, device: torch.device
) -> None:
    """The location prior and EM with it, on both grids."""
    for align, grid in GRIDS:
        location, _ = location_of(first.labels, align, grid, device)
        scores.add(f"location prior, {align}", [read_location(location, scan, align) for scan in scans])
        found = mixtures(first, scans, align, grid, background_classes, device)
        scores.add(f"EM with location prior, {align}", found)


def location_of(
    labels: list[Tensor], align: Alignment, grid: tuple[int, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """The location prior of label maps, and the region of interest."""
    maps, _ = grid_labels(labels, PriorSettings(grid=grid, align=align))
    return location_prior(maps, len(IDS)).to(device), region_of_interest(maps).to(device)


def mixtures(
    cases: Cases, scans: list[Tensor], align: Alignment, grid: tuple[int, ...], number: int, device: torch.device
) -> list[Tensor]:
    """Scans labelled by EM with the location prior of these cases."""
    location, region = location_of(cases.labels, align, grid, device)
    classes = Classes.of(len(IDS), shared=((1, 2),), background=number)
    return [mixture(location, region, scan.to(device), align, classes) for scan in scans]


def add_ours(
    scores: Scores,
    prior: AnatomyPrior,
    second: Cases,
    chosen: dict[str, Any],
    settings: Hippocampus,
    device: torch.device,
) -> list[list[float]]:
    """The model and its variants; returns the HD95 of the model, for every scan."""
    scans, fit = second.scans, settings.fit("exact", **chosen["exact"])
    model = fitted(prior, IDS, scans, fit, device)
    shapes = infer_all(model, scans)
    found = label_all(model, scans, shapes)
    scores.add("ours", found)
    on_grid = [to_grid(one[None], prior.grid, "fit", labels=True)[0] for one in second.labels]
    scores.add("ours, on the working grid", label_on_grid(model, scans, shapes), on_grid)
    reading = model.reading
    model.reading = replace(reading, label_weight=0.0)
    scores.add("ours, shape alone", label_all(model, scans, shapes))
    model.reading = replace(reading, refine=0)
    scores.add("ours, encoder alone", label_all(model, scans, infer_all(model, scans)))
    bound = fitted(prior, IDS, scans, settings.fit("jensen", **chosen["jensen"]), device)
    estimators: dict[str, Estimator] = {
        "straight-through": GumbelSoftmax(0.5, straight_through=True),
        "direct": Direct(0.1, changes="gradient"),
    }
    for name, estimator in estimators.items():
        sampled = infer_sampled(bound, scans, estimator, settings.seed)
        scores.add(f"ours, sampled, {name}", label_all(bound, scans, sampled))
    scores.add("ours, Jensen's bound", label_all(bound, scans, infer_all(bound, scans)))
    variants = {
        "both weights 1": replace(fit, shape_weight=1.0, label_weight=1.0),
        "global intensities": replace(fit, intensities="global"),
    }
    for name, variant in variants.items():
        scores.add(f"ours, {name}", labelled(prior, scans, variant, device))
    for name, gamma in CONTRASTS.items():
        changed = [change_contrast(scan, gamma) for scan in scans]
        scores.add(f"ours, contrast {name}", labelled(prior, changed, fit, device))
    return [hausdorff95(a.cpu(), b, len(IDS)).tolist() for a, b in zip(found, second.labels, strict=True)]


def labelled(prior: AnatomyPrior, scans: list[Tensor], fit: FitSettings, device: torch.device) -> list[Tensor]:
    """Scans labelled by a model fitted to them."""
    model = fitted(prior, IDS, scans, fit, device)
    return label_all(model, scans, infer_all(model, scans))


def change_contrast(scan: Tensor, gamma: float | None) -> Tensor:
    """What another scanner might give: intensities inverted (None), or to a power on the scale from 0 to 1."""
    scaled = scale_intensities(scan).clamp(0, 1)
    return 1 - scaled if gamma is None else scaled.pow(gamma)
