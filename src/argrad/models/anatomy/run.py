"""Segmentation from settings: train the prior and the model into run folders, load them again.

A run of stage 2 holds the prior too, so that it is all that labelling a scan needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, final

import torch
from torch import Tensor

from argrad.data.label_table import LabelTable
from argrad.data.working_grid import Alignment, common_grid, scale_intensities, to_grid
from argrad.models.anatomy.intensities import Classes, Mode
from argrad.models.anatomy.model import AnatomyModel, Reading, ScanTask
from argrad.models.anatomy.prior import AnatomyPrior, PriorTask, check_grid, check_networks
from argrad.training import BrokenFile, LoopSettings, Progress, RunFolder, Trained, train

__all__ = [
    "FitSettings",
    "PriorSettings",
    "build_model",
    "build_prior",
    "grid_scans",
    "load_model",
    "load_prior",
    "train_model",
    "train_prior",
]

PRIOR, MODEL = "anatomical prior", "anatomical segmentation"
"""What the run folders of the two stages say that they hold."""
HELD_OUT = 0.1
"""The share of cases that chooses the best epoch."""


@final
@dataclass(frozen=True)
class PriorSettings:
    """Stage 1: the shapes."""

    grid: tuple[int, ...] = ()
    """Sides of the working grid, multiples of 8; the mean size of the label maps unless given."""
    align: Alignment = "fit"
    """How cases come onto the grid: fit resamples the field of view, centre pads and crops."""
    latent: int = 32
    """Dimensions of the shape z."""
    width: int = 8
    """Of the networks, a multiple of 4."""
    augment: float = 1.0
    """Small random rotations, scalings and shifts of the label maps; 0 for none."""
    sigma: float = 0.5
    """Blur of the location prior, in voxels."""
    epochs: int = 150
    """Passes over the label maps."""
    batch_size: int = 10
    """Label maps per step."""
    learning_rate: float = 2e-3
    """Adam's step size."""
    seed: int = 0
    """Where all randomness starts."""

    def __post_init__(self) -> None:
        if self.grid:
            check_grid(self.grid)
        if self.align not in ("fit", "centre"):
            raise ValueError(f'align must be "fit" or "centre", got {self.align!r}')
        check_networks(self.latent, self.width)
        self.loop()

    def loop(self) -> LoopSettings:
        """The part that the training loop reads."""
        return LoopSettings(self.epochs, self.batch_size, self.learning_rate, self.seed)


@final
@dataclass(frozen=True)
class FitSettings:
    """Stage 2: the scans."""

    likelihood: Literal["exact", "jensen"] = "exact"
    """log p(x|z) as a sum over labels at every voxel, or Jensen's bound on it."""
    intensities: Mode = "image"
    """Intensity parameters for each image, global ones for all, or fixed ones."""
    background_classes: int = 4
    """Intensity classes that background is a mixture of."""
    label_classes: int = 1
    """Intensity classes of every other label."""
    shared: tuple[str, ...] = ()
    """Sets of label ids that have the same intensities, such as 1+2."""
    maps: bool = True
    """Learn from all scans which intensity class background has where, or do not."""
    shape_weight: float = 0.03
    """What a voxel's intensity counts for when the shape is inferred; 1 is the bound on log p(x)."""
    label_weight: float = 0.3
    """What it counts for when the voxel is labelled; 1 is the posterior, 0 the shape alone."""
    refine: int = 40
    """Gradient steps on the shape of each scan when it is labelled."""
    width: int = 8
    """Of the image encoder, a multiple of 4."""
    pretrain_epochs: int = 5
    """Passes over the scans as an image auto-encoder, before the others."""
    epochs: int = 30
    """Passes over the scans in all."""
    batch_size: int = 10
    """Scans per step."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    seed: int = 0
    """Where all randomness starts."""

    def __post_init__(self) -> None:
        if not 0 <= self.pretrain_epochs < self.epochs:
            raise ValueError(
                f"pretrain_epochs must be from 0 to less than epochs, got {self.pretrain_epochs} of {self.epochs}"
            )
        check_networks(1, self.width)
        self.loop()
        self.reading()

    def loop(self) -> LoopSettings:
        """The part that the training loop reads."""
        return LoopSettings(self.epochs, self.batch_size, self.learning_rate, self.seed)

    def reading(self) -> Reading:
        """The part that says how scans become labels."""
        return Reading(self.likelihood, self.intensities, self.maps, self.shape_weight, self.label_weight, self.refine)

    def classes(self, ids: Sequence[int]) -> Classes:
        """The intensity classes of the labels with these ids."""
        shared = []
        for together in self.shared:
            words = together.split("+")
            if not all(word.strip().isdigit() and int(word) in ids[1:] for word in words):
                raise ValueError(
                    f"shared must join ids of {', '.join(map(str, ids[1:]))} by +, such as 1+2, got {together!r}"
                )
            shared.append([list(ids).index(int(word)) for word in words])
        return Classes.of(len(ids), shared=shared, background=self.background_classes, others=self.label_classes)


def grid_labels(label_maps: Sequence[Tensor], settings: PriorSettings) -> tuple[Tensor, PriorSettings]:
    """Label maps (numbers from 0) on one grid, ``[N, *grid]``, and the settings with the grid that was chosen."""
    if not label_maps:
        raise ValueError("there are no label maps; give at least one")
    grid = settings.grid or common_grid([tuple(one.shape) for one in label_maps])
    check_grid(grid)
    gridded = [to_grid(one[None].to(torch.int16), grid, settings.align, labels=True)[0] for one in label_maps]
    return torch.stack(gridded), replace(settings, grid=tuple(grid))


def grid_scans(scans: Sequence[Tensor], grid: Sequence[int], align: Alignment) -> Tensor:
    """Scans of any size, scaled one by one, on one grid, ``[N, *grid]``."""
    if not scans:
        raise ValueError("there are no scans; give at least one")
    return torch.stack([to_grid(scale_intensities(one)[None], grid, align)[0] for one in scans])


def build_prior(maps: Tensor, labels: int, settings: PriorSettings) -> AnatomyPrior:
    """An untrained prior; its weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(settings.seed)
        return AnatomyPrior.from_label_maps(
            maps, labels, latent=settings.latent, width=settings.width, sigma=settings.sigma
        )


def build_model(prior: AnatomyPrior, ids: Sequence[int], settings: FitSettings, align: Alignment) -> AnatomyModel:
    """An untrained model of stage 2 for labels of these ids; its weights depend on the seed and the prior alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(settings.seed)
        return AnatomyModel(prior, settings.classes(ids), settings.reading(), width=settings.width, align=align)


def train_prior(
    maps: Tensor,
    labels: int,
    settings: PriorSettings,
    folder: RunFolder | None = None,
    *,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> tuple[AnatomyPrior, Trained]:
    """Train, or go on with, the prior on gridded label maps; a tenth of them chooses the best epoch."""
    maps = maps.to(device or torch.device("cpu"))
    training, validation = hold_out(maps, settings.seed)
    module = build_prior(training, labels, settings).to(maps.device)
    task = PriorTask(module, training, validation, augment=settings.augment)
    trained = train(task, settings.loop(), folder=folder, progress=progress)
    return module.eval(), trained


def train_model(
    prior: AnatomyPrior,
    ids: Sequence[int],
    scans: Tensor,
    settings: FitSettings,
    align: Alignment,
    folder: RunFolder | None = None,
    *,
    fixed: tuple[Tensor, Tensor] | None = None,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> tuple[AnatomyModel, Trained]:
    """Train, or go on with, the model of stage 2 on gridded scans; ``fixed`` are the means and spreads of classes."""
    scans = scans.to(device or torch.device("cpu"))
    module = build_model(prior, ids, settings, align).to(scans.device)
    if settings.intensities == "fixed":
        if fixed is None:
            raise ValueError('intensities="fixed" needs means and standard deviations, one for each intensity class')
        module.set_intensities(*fixed)
    module.learn_intensities(scans)
    training, validation = hold_out(scans, settings.seed)
    batches = -(-len(training) // settings.batch_size)
    task = ScanTask(module, training, validation, pretraining=settings.pretrain_epochs * batches)
    trained = train(task, settings.loop(), folder=folder, progress=progress)
    return module.eval(), trained


def hold_out(cases: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """A tenth of the cases, chosen by the seed, apart from the others; none where there are too few."""
    number = round(HELD_OUT * len(cases))
    order = torch.randperm(len(cases), generator=torch.Generator().manual_seed(seed)).to(cases.device)
    return cases[order[number:]], cases[order[:number]]


def prior_config(settings: PriorSettings, table: LabelTable, labels: str) -> dict[str, Any]:
    """What the run folder of stage 1 remembers, as JSON has it."""
    return {"kind": PRIOR, "labels": labels, "label_table": table.as_json(), **as_json(asdict(settings))}


def model_config(settings: FitSettings, prior_run: RunFolder, scans: str) -> dict[str, Any]:
    """What the run folder of stage 2 remembers; the prior's settings are part of it."""
    source = {"scans": scans, "prior": str(prior_run.path), "of_prior": prior_run.config}
    return {"kind": MODEL, **source, **as_json(asdict(settings))}


def as_json(settings: dict[str, Any]) -> dict[str, Any]:
    """Tuples as lists, so that what is written equals what is read."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


Settings = TypeVar("Settings", PriorSettings, FitSettings)


def settings_from(kind: type[Settings], config: dict[str, Any], where: Path) -> Settings:
    """Settings out of a run's config.json."""
    names = {field.name for field in fields(kind)}
    if not names <= set(config):
        missing = ", ".join(sorted(names - set(config)))
        raise BrokenFile(f"{where} lacks settings: {missing}; it was written by another version, or altered")
    values = {name: config[name] for name in names}
    for name in ("grid", "shared"):
        if name in values:
            values[name] = tuple(values[name])
    return kind(**values)


def open_run(path: Path | str, kind: str) -> RunFolder:
    """A run folder of the kind that is wanted."""
    folder = RunFolder.open(path)
    found = folder.config.get("kind", "something else")
    if found != kind:
        raise ValueError(f"{path} is a run of {found}, not of {kind}; give the other folder")
    return folder


def table_of(config: dict[str, Any]) -> LabelTable:
    """The label table that a run remembers."""
    names = config.get("label_table", config.get("of_prior", {}).get("label_table", {}))
    return LabelTable.of({int(number): name for number, name in names.items()})


def load_prior(path: Path | str) -> tuple[AnatomyPrior, PriorSettings, LabelTable, RunFolder]:
    """The trained prior of a run of stage 1."""
    folder = open_run(path, PRIOR)
    settings = settings_from(PriorSettings, folder.config, folder.path / "config.json")
    tensors = folder.read_weights()
    module = AnatomyPrior(tensors["location"], tensors["region"], latent=settings.latent, width=settings.width)
    folder.fill(module, tensors)
    return module.eval(), settings, table_of(folder.config), folder


def load_model(path: Path | str, *, device: torch.device | None = None) -> tuple[AnatomyModel, LabelTable, RunFolder]:
    """The trained model of a run of stage 2, its prior included."""
    folder = open_run(path, MODEL)
    where = folder.path / "config.json"
    settings = settings_from(FitSettings, folder.config, where)
    of_prior = settings_from(PriorSettings, folder.config["of_prior"], where)
    tensors = folder.read_weights()
    prior = AnatomyPrior(
        tensors["prior.location"], tensors["prior.region"], latent=of_prior.latent, width=of_prior.width
    )
    table = table_of(folder.config)
    module = build_model(prior, table.ids, settings, of_prior.align)
    folder.fill(module, tensors)
    return module.to(device or torch.device("cpu")).eval(), table, folder
