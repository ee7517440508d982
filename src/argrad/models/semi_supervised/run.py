"""A semi-supervised VAE from settings: build it, train it into a run folder, load it again.

The settings are one dataclass: the argument in Python, the flags on the command line, and ``config.json`` in the run
folder.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor

from argrad.data import Images, load
from argrad.data.errors import WrongImages
from argrad.data.labels import UNLABELLED, hide_labels
from argrad.models.semi_supervised.loss import Terms
from argrad.models.semi_supervised.module import SemiSupervisedModule
from argrad.models.semi_supervised.recipe import (
    DEFAULT,
    DEFAULT_EPOCHS,
    DEFAULT_LEARNING_RATE,
    Recipe,
    build_trainee,
    check_label_first,
)
from argrad.models.semi_supervised.task import SemiSupervisedTask, Trainee
from argrad.training import BrokenFile, LoopSettings, Progress, RunFolder, Trained, train

__all__ = ["ClassifySettings", "FewLabels", "few_labels", "load_classifier", "train_classifier"]


@final
@dataclass(frozen=True)
class ClassifySettings:
    """What is trained, on what, with which labels, and how."""

    data: str = "digits"
    """A data set of the catalogue with labels (argrad data list), or an .npz file with images and labels, of which −1
    means not labelled."""
    labels: int = 50
    """How many labels of training images to use, as many of each class; 0 uses all that they have."""
    label_seed: int = 0
    """Which labels."""
    binarize: Literal["round", "stochastic", "none"] = "none"
    """Round pixels at 0.5 once, draw them anew each time, or take them as they are."""
    split_seed: int = 0
    """Which examples are for training, validation and test."""
    recipe: Recipe = field(default_factory=lambda: DEFAULT)
    """Model, estimator and objective."""
    epochs: int = DEFAULT_EPOCHS
    """Passes over the training data, those on labelled images alone included."""
    batch_size: int = 100
    """Images per step."""
    labelled_batch_size: int = 50
    """Labelled images per step, drawn with replacement."""
    learning_rate: float = DEFAULT_LEARNING_RATE
    """Adam's step size."""
    seed: int = 0
    """Where all randomness starts."""
    checkpoint_seconds: float = 60.0
    """Save within an epoch when this much time has passed."""

    def __post_init__(self) -> None:
        if self.labels < 0 or self.labelled_batch_size < 1:
            raise ValueError(
                "labels must be at least 0 and labelled_batch_size at least 1, got "
                f"{self.labels} and {self.labelled_batch_size}"
            )

    @classmethod
    def from_config(cls, config: dict[str, Any], where: Path) -> ClassifySettings:
        """From a run's config.json; refuses settings that this version does not know."""
        try:
            recipe = dict(config["recipe"])
            terms = Terms(**recipe.pop("terms"))
            plain = {name: value for name, value in config.items() if name != "task"}
            return cls(**{**plain, "recipe": Recipe(**recipe, terms=terms)})
        except (KeyError, TypeError) as error:
            raise BrokenFile(f"{where} has settings that this version does not know ({error})") from error

    def config(self) -> dict[str, Any]:
        """What config.json holds."""
        return {"task": "classify", **asdict(self)}

    def loop(self) -> LoopSettings:
        """The part that the training loop reads; refuses a warm start that leaves no epoch for the rest."""
        check_label_first(self.recipe.label_first, self.epochs)
        return LoopSettings(
            self.epochs,
            self.batch_size,
            self.learning_rate,
            self.seed,
            checkpoint_seconds=self.checkpoint_seconds,
        )


@final
@dataclass(frozen=True)
class FewLabels:
    """Images of which a few are labelled."""

    images: Images
    labels: Tensor
    """Class numbers of the training images, −1 where hidden."""
    classes: tuple[int, ...]
    """What each class number was called in the data."""

    def numbered(self, labels: Tensor) -> Tensor:
        """The data's own labels as class numbers, −1 where they are none of the classes."""
        numbers = torch.full_like(labels, UNLABELLED)
        for number, name in enumerate(self.classes):
            numbers[labels == name] = number
        return numbers


def few_labels(settings: ClassifySettings) -> FewLabels:
    """The data of a run, with all but a few labels hidden."""
    images = load(settings.data, binarize=settings.binarize, split_seed=settings.split_seed)
    if images.train_labels is None:
        raise WrongImages(
            f"{images.name} has no labels to learn classes from: give an .npz file with `images` and `labels`, or a "
            "data set of the catalogue that has some"
        )
    kept = hide_labels(images.train_labels, settings.labels, settings.label_seed)
    names = tuple(int(name) for name in kept[kept != UNLABELLED].unique())
    few = FewLabels(images, kept, names)
    return FewLabels(images, few.numbered(kept), names)


def build(settings: ClassifySettings, data: FewLabels) -> Trainee:
    """The model that the settings describe; its weights depend on the seed alone."""
    return build_trainee(
        settings.recipe,
        data.images.shape,
        len(data.classes),
        settings.seed,
        bits=data.images.binarization != "none",
    )


def train_classifier(
    settings: ClassifySettings,
    folder: RunFolder | None,
    *,
    data: FewLabels | None = None,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> tuple[SemiSupervisedModule, Trained]:
    """Train, or go on with, the model that the settings describe.

    Args:
        settings: what and how.
        folder: where to save and resume; None keeps everything in memory.
        data: if it is loaded already.
        device: where to train.
        progress: someone who watches.

    Returns:
        the module that predicts, with the weights of the best epoch, and the history.
    """
    device = device or torch.device("cpu")
    data = data or few_labels(settings)
    images = data.images.to(device)
    trainee = build(settings, data).to(device)
    known = images.validation_labels
    task = SemiSupervisedTask(
        trainee,
        images.train,
        data.labels.to(device),
        images.validation,
        images.values,
        label_first=settings.recipe.label_first * math.ceil(len(images.train) / settings.batch_size),
        labelled_batch=settings.labelled_batch_size,
        validation_labels=None if known is None else data.numbered(known),
    )
    trained = train(task, settings.loop(), folder=folder, progress=progress)
    return trainee.predictor, trained


def load_classifier(
    path: Path | str, *, device: torch.device | None = None
) -> tuple[SemiSupervisedModule, ClassifySettings, FewLabels]:
    """The trained module of a run (the one that predicts, at the best epoch), its settings, and its data."""
    folder = RunFolder.open(path)
    settings = ClassifySettings.from_config(folder.config, folder.path / "config.json")
    data = few_labels(settings)
    trainee = build(settings, data)
    folder.fill(trainee, made_from=" and its data")
    return trainee.predictor.to(device or torch.device("cpu")).eval(), settings, data
