"""A discrete VAE from settings: build it, train it into a run folder, load it again.

The settings are one flat dataclass: the argument in Python, the flags on the command line, and ``config.json`` in the
run folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import torch

from argrad.data import Images, load
from argrad.data.folder import Colour
from argrad.estimators.by_name import EstimatorName, estimator_by_name
from argrad.models.discrete_vae.module import DiscreteVAEModule, LatentKind, Likelihood, default_networks, prepare
from argrad.models.discrete_vae.task import Schedules, VAETask
from argrad.training import (
    Decay,
    LoopSettings,
    Progress,
    RunFolder,
    Trained,
    WarmUp,
    World,
    settings_from_config,
    train,
)

__all__ = ["TrainSettings", "build", "choose_device", "load_images", "load_run", "train_run"]


@final
@dataclass(frozen=True)
class TrainSettings:
    """What is trained, on what, and how."""

    data: str = "digits"
    """A data set of the catalogue (argrad data list), a folder of images, or an .npy or .npz file."""
    binarize: Literal["round", "stochastic", "none"] = "round"
    """Round pixels at 0.5 once, draw them anew each time, or take them as they are."""
    split_seed: int = 0
    """Which examples are for training, validation and test."""
    image_size: int = 0
    """Resize the pictures of a folder to this many pixels on each side; 0 leaves them, and all must be of one size."""
    colour: Colour = "keep"
    """Make the pictures of a folder grey or rgb, or keep them, and all must be of one kind."""
    latent: LatentKind = "categorical"
    """What z is made of."""
    variables: int = 1
    """How many variables z has."""
    values: int = 10
    """How many values each categorical variable takes."""
    hidden: int = 300
    """Width of the hidden layer on each side."""
    prior: Literal["uniform", "learnt"] = "uniform"
    """The prior of z."""
    likelihood: Likelihood = "bernoulli"
    """Of the pixels given z."""
    estimator: EstimatorName = "direct"
    """Of the gradient through the sample."""
    epsilon: float | Literal["auto"] = "auto"
    """Direct's ε, or auto to adapt it to the spread of the cost."""
    epsilon_decay: float = 0.0
    """With a fixed ε: it falls as exp(−decay · step) …"""
    epsilon_minimum: float = 0.1
    """… to this."""
    temperature: float = 0.5
    """τ of the relaxations."""
    temperature_decay: float = 0.0
    """τ falls as exp(−decay · step) …"""
    temperature_minimum: float = 0.1
    """… to this."""
    decay_every: int = 500
    """Steps between two refreshes of a falling ε or τ."""
    samples: int = 2
    """Samples per example for reinforce."""
    kl_weight: float = 1.0
    """Weight of the KL term; 1 is the ELBO."""
    kl_warmup: int = 0
    """Steps over which the KL weight rises from 0."""
    revive_until: int = 0
    """Split busy codes into dead ones after each epoch up to this one; 0 never."""
    epochs: int = 100
    """Passes over the training data."""
    batch_size: int = 100
    """Examples per step, over all processes together."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    patience: int = 0
    """Stop after this many epochs without a better validation loss; 0 never stops early."""
    seed: int = 0
    """Where all randomness starts."""
    checkpoint_seconds: float = 60.0
    """Save within an epoch when this much time has passed."""

    @classmethod
    def from_config(cls, config: dict[str, Any], where: Path) -> TrainSettings:
        """From a run's config.json; refuses settings that this version does not know."""
        return settings_from_config(cls, config, where)

    def loop(self) -> LoopSettings:
        """The part that the training loop reads."""
        return LoopSettings(
            self.epochs, self.batch_size, self.learning_rate, self.seed, self.patience, self.checkpoint_seconds
        )

    def schedules(self) -> Schedules:
        """The part that changes as training goes on."""
        epsilon = None
        if self.epsilon != "auto":
            epsilon = Decay(float(self.epsilon), self.epsilon_minimum, self.epsilon_decay, self.decay_every)
        temperature = Decay(self.temperature, self.temperature_minimum, self.temperature_decay, self.decay_every)
        return Schedules(epsilon, temperature, WarmUp(self.kl_weight, self.kl_warmup))


def load_images(settings: TrainSettings) -> Images:
    """The data that the settings name."""
    if settings.image_size < 0:
        raise ValueError(f"image_size must be at least 0, got {settings.image_size}")
    return load(
        settings.data,
        binarize=settings.binarize,
        split_seed=settings.split_seed,
        size=(settings.image_size, settings.image_size) if settings.image_size else None,
        colour=settings.colour,
    )


def build(settings: TrainSettings, shape: tuple[int, ...]) -> DiscreteVAEModule:
    """The module that the settings describe, for examples of a given shape; its weights depend on the seed alone."""
    codes = settings.variables * (settings.values if settings.latent == "categorical" else 1)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(settings.seed)  # the GPU's is left alone
        encoder, decoder = default_networks(shape, codes, settings.hidden)
        estimator = estimator_by_name(
            settings.estimator, epsilon=settings.epsilon, temperature=settings.temperature, samples=settings.samples
        )
        module = DiscreteVAEModule(
            encoder,
            decoder,
            estimator,
            latent=settings.latent,
            variables=settings.variables,
            values=settings.values,
            prior=settings.prior,
            likelihood=settings.likelihood,
        )
        prepare(module, shape)
    return module


def choose_device(name: str = "auto") -> torch.device:
    """A device by name; cuda without a number is this process's GPU, and auto is that where there is one, else cpu."""
    gpus = torch.cuda.device_count()
    if name == "auto":
        name = "cuda" if gpus else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"there is no device {name!r}; give auto, cpu, cuda or cuda:NUMBER") from error
    if device.type == "cuda":
        if (device.index or 0) >= gpus:
            raise ValueError(f"device {name} is not on this machine, which has {gpus} GPUs; give cpu or auto")
        if name == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % gpus)
        torch.cuda.set_device(device)
    return device


def train_run(
    settings: TrainSettings,
    folder: RunFolder | None,
    *,
    images: Images | None = None,
    device: torch.device | None = None,
    progress: Progress | None = None,
    world: World | None = None,
) -> tuple[DiscreteVAEModule, Trained]:
    """Train, or go on with, the VAE that the settings describe.

    Args:
        settings: what and how.
        folder: where to save and resume; None keeps everything in memory.
        images: the data, if it is loaded already.
        device: where to train.
        progress: someone who watches.
        world: the processes that train together.

    Returns:
        the module with the weights of the best epoch, and the history.
    """
    device = device or torch.device("cpu")
    world = world or World()
    images = (images or load_images(settings)).to(device)
    module = build(settings, images.shape).to(device)
    task = VAETask(
        module,
        images.train,
        images.validation,
        images.values,
        settings.schedules(),
        revive_until=settings.revive_until,
        world=world,
    )
    return module, train(task, settings.loop(), folder=folder, world=world, progress=progress)


def load_run(
    path: Path | str, *, device: torch.device | None = None
) -> tuple[DiscreteVAEModule, TrainSettings, Images]:
    """The trained module of a run (the weights of its best epoch), its settings, and its data."""
    folder = RunFolder.open(path)
    settings = TrainSettings.from_config(folder.config, folder.path / "config.json")
    images = load_images(settings)
    module = build(settings, images.shape)
    folder.fill(module, made_from=" and its data")
    return module.to(device or torch.device("cpu")).eval(), settings, images
