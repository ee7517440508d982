"""Image completion from settings: load images, build the model, train it into a run folder, load it again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from argrad.data import Images, load, load_cmu_faces
from argrad.data.masks import MaskKind, draw_masks
from argrad.data.olivetti import load_olivetti
from argrad.models.completion.mixture import MixtureLoss
from argrad.models.completion.module import CompletionModule
from argrad.models.completion.task import CompletionTask
from argrad.training import (
    LoopSettings,
    Progress,
    RunFolder,
    Trained,
    WarmUp,
    settings_from_config,
    train,
)
from argrad.training.files import write_tensors

__all__ = [
    "CompletionSettings",
    "build_completion",
    "completion_config",
    "load_completion",
    "load_pictures",
    "save_completion",
    "train_completion",
]

TASK = "complete"


@final
@dataclass(frozen=True)
class CompletionSettings:
    """What is trained, on what, and how."""

    data: str = "digits"
    """A data set of the catalogue (argrad data list; of olivetti and cmu-faces people are held out), a folder of
    pictures, or an .npy or .npz file."""
    split_seed: int = 0
    """Which images are for training, validation and test."""
    masks: MaskKind = "mixed"
    """What is hidden in training: the centre, a random rectangle, irregular blobs, or one of these for each image."""
    mirror: bool = False
    """Turn images round, left for right, every other time."""
    components: int = 8
    """Gaussians in the mixture; with 1 there is nothing to pick."""
    dimension: int = 16
    """Numbers in the latent of the missing part."""
    features: int = 128
    """Numbers in the latent of the visible part."""
    hidden: int = 512
    """Width of the hidden layers."""
    loss: MixtureLoss = "kl"
    """Form of the back-propagate-max loss; as-published has a wrong sign and diverges."""
    scale: float = 0.1
    """Standard deviation of a pixel given both latents; smaller makes the latent of the missing part say more."""
    kl_weight: float = 1.0
    """Weight of the back-propagate-max loss …"""
    kl_warmup_epochs: int = 5
    """… and epochs over which it rises from 0."""
    epochs: int = 100
    """Passes over the training images."""
    batch_size: int = 100
    """Images per step."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    patience: int = 0
    """Stop after this many epochs without a better validation loss; 0 never stops early."""
    seed: int = 0
    """Where all randomness starts."""
    checkpoint_seconds: float = 60.0
    """Save within an epoch when this much time has passed."""

    def __post_init__(self) -> None:
        if self.kl_warmup_epochs < 0:
            raise ValueError(f"kl_warmup_epochs must not be negative, got {self.kl_warmup_epochs}")
        if not 0 <= self.kl_weight < math.inf:
            raise ValueError(f"kl_weight must be a finite number that is not negative, got {self.kl_weight}")

    @classmethod
    def from_config(cls, config: dict[str, Any], where: Path) -> CompletionSettings:
        """From a run's config.json; refuses other runs, and settings that this version does not know."""
        wanted = "image completion; give a folder that argrad complete train made"
        return settings_from_config(cls, config, where, task=TASK, wanted=wanted, besides=("shape",))

    def loop(self) -> LoopSettings:
        """The part that the training loop reads."""
        return LoopSettings(
            self.epochs, self.batch_size, self.learning_rate, self.seed, self.patience, self.checkpoint_seconds
        )

    def warm_up(self, train_size: int) -> WarmUp:
        """The weight of the back-propagate-max loss, for so many training images."""
        return WarmUp(self.kl_weight, self.kl_warmup_epochs * -(-train_size // self.batch_size))


def load_pictures(data: str, split_seed: int = 0) -> Images:
    """Images with their grey values; of the two sets of faces, 32x32 and with people held out."""
    if data == "olivetti":
        return load_olivetti(split_seed=split_seed)
    if data == "cmu-faces":
        faces = load_cmu_faces(split_seed=split_seed)
        return Images(data, faces.train, faces.validation, faces.test, binarization="none", full_scale=255)
    return load(data, binarize="none", split_seed=split_seed)


def build_completion(settings: CompletionSettings, shape: tuple[int, ...]) -> CompletionModule:
    """The module that the settings describe, for images of a given shape; its weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(settings.seed)  # the GPU's is left alone
        return CompletionModule(
            shape,
            components=settings.components,
            dimension=settings.dimension,
            features=settings.features,
            hidden=settings.hidden,
            loss=settings.loss,
            scale=settings.scale,
        )


def completion_config(settings: CompletionSettings, shape: tuple[int, ...]) -> dict[str, Any]:
    """What config.json holds."""
    return {"task": TASK, "shape": list(shape), **asdict(settings)}


def train_completion(
    settings: CompletionSettings,
    folder: RunFolder | None,
    images: Images,
    *,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> tuple[CompletionModule, Trained]:
    """Train, or go on with, the model that the settings describe.

    Args:
        settings: what and how.
        folder: where to save and resume; None keeps everything in memory.
        images: the data.
        device: where to train.
        progress: someone who watches.

    Returns:
        the module with the weights of the best epoch, and the history.
    """
    images = images.to(device or torch.device("cpu"))
    module = build_completion(settings, images.shape).to(images.train.device)
    draw_masks(settings.masks, 0, (images.shape[-2], images.shape[-1]))  # refuses what it does not know
    task = CompletionTask(
        module,
        images.train,
        images.validation,
        images.values,
        masks=settings.masks,
        kl_weight=settings.warm_up(len(images.train)),
        mirror=settings.mirror,
    )
    trained = train(task, settings.loop(), folder=folder, progress=progress)
    return module.eval(), trained


def save_completion(
    path: Path | str, settings: CompletionSettings, shape: tuple[int, ...], tensors: Mapping[str, Tensor]
) -> Path:
    """Write a trained model into a new folder that :func:`load_completion` reads."""
    folder = RunFolder.create(path, completion_config(settings, shape))
    write_tensors(folder.path / "model.safetensors", tensors, {"format": "pt"})
    return folder.path


def load_completion(
    path: Path | str, *, device: torch.device | None = None
) -> tuple[CompletionModule, CompletionSettings]:
    """The trained model of a run (the weights of its best epoch), and its settings; the data is not needed."""
    folder = RunFolder.open(path)
    settings = CompletionSettings.from_config(folder.config, folder.path / "config.json")
    module = build_completion(settings, tuple(folder.config["shape"]))
    folder.fill(module)
    return module.to(device or torch.device("cpu")).eval(), settings
