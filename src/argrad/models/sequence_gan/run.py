"""A sequence GAN from settings: build it, train it into a run folder, load it again.

Training has two stages. The first, maximum likelihood, is a run of its own in the folder ``likelihood`` inside; what it
finds is where the game of the two players starts. ``config.json`` holds the vocabulary, so that a trained model needs
no text.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, final, get_args

import torch

from argrad.data.text import Level, Text, Vocabulary, load_text
from argrad.estimators import Direct, Estimator
from argrad.estimators.by_name import estimator_by_name
from argrad.models.sequence_gan.module import SequenceDiscriminator, SequenceGANModule, SequenceGenerator
from argrad.models.sequence_gan.scores import check_symbols
from argrad.models.sequence_gan.task import LikelihoodTask, SequenceGANTask
from argrad.training import (
    BrokenFile,
    LoopSettings,
    Progress,
    RunFolder,
    Trained,
    settings_from_config,
    train,
)

__all__ = [
    "LIKELIHOOD",
    "SequenceEstimator",
    "SequenceGANSettings",
    "build_sequence_gan",
    "load_lines",
    "load_sequence_gan",
    "require_same_text",
    "sequence_gan_config",
    "train_adversarially",
    "train_likelihood",
]

TASK = "write"
LIKELIHOOD = "likelihood"
"""The folder of the first stage."""
SequenceEstimator = Literal["reinforce", "straight-through", "gumbel-softmax", "direct", "local-expectation"]


@final
@dataclass(frozen=True)
class SequenceGANSettings:
    """What is trained, on what, and how."""

    data: str = "expressions"
    """A text file with one sequence per line, or expressions (a small grammar), names or captions."""
    level: Literal["auto", "characters", "words"] = "auto"
    """What the symbols of a line are; auto: characters, or what is usual for the named text."""
    length: int = 0
    """The most symbols that a line may have; 0: as many as the longest has."""
    split_seed: int = 0
    """Which lines are for training, validation and test."""
    hidden: int = 64
    """Width of the two LSTMs, generator and discriminator."""
    estimator: SequenceEstimator = "reinforce"
    """Of the gradient through the symbols."""
    epsilon: float | Literal["auto"] = "auto"
    """ε of direct, or auto to adapt it to the spread of the cost."""
    changes: int = 4
    """Of direct: changes of symbols, drawn at random from likely ones, that are tried per sequence and step."""
    temperature: float = 1.0
    """τ of the relaxations."""
    likelihood_epochs: int = 10
    """Passes over the text by maximum likelihood, before the game; 0 starts it from nothing."""
    likelihood_rate: float = 1e-3
    """Adam's step size in that stage."""
    epochs: int = 20
    """Passes over the text in the game of generator and discriminator."""
    learning_rate: float = 3e-4
    """Adam's step size in the game, of both players."""
    discriminator_steps: int = 2
    """The discriminator moves at every step, the generator at every so many, with as many times the lines."""
    warm_up: int = 200
    """Steps at the start of the game in which the discriminator moves alone."""
    average: float = 0.98
    """What writes has a running average of the generator's weights: the share that it keeps at each move; 0: none."""
    batch_size: int = 64
    """Lines per step; as many are drawn."""
    patience: int = 0
    """Stop after this many epochs without a smaller n-gram divergence on validation; 0 never stops early."""
    seed: int = 0
    """Where all randomness starts."""
    checkpoint_seconds: float = 60.0
    """Save within an epoch when this much time has passed."""

    def __post_init__(self) -> None:
        for name, least in (
            ("length", 0),
            ("hidden", 1),
            ("likelihood_epochs", 0),
            ("discriminator_steps", 1),
            ("warm_up", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 < self.likelihood_rate < math.inf:
            raise ValueError(f"likelihood_rate must be a positive number, got {self.likelihood_rate}")
        if not 0 <= self.average < 1:
            raise ValueError(f"average must be at least 0 and below 1, got {self.average}")
        if self.estimator == "reinforce" and self.batch_size < 2:
            raise ValueError(
                f"reinforce needs a batch_size of at least 2, each other's baseline, got {self.batch_size}"
            )

    @classmethod
    def from_config(cls, config: dict[str, Any], where: Path) -> SequenceGANSettings:
        """From a run's config.json; refuses other runs, and settings that this version does not know."""
        wanted = "a sequence GAN; give a folder that argrad write train made"
        besides = ("symbols", "kind", "sequence")
        return settings_from_config(cls, config, where, task=TASK, wanted=wanted, besides=besides)

    def loop(self) -> LoopSettings:
        """The part that the training loop reads in the game."""
        return LoopSettings(
            self.epochs, self.batch_size, self.learning_rate, self.seed, self.patience, self.checkpoint_seconds
        )

    def likelihood_loop(self) -> LoopSettings:
        """The same for maximum likelihood."""
        return LoopSettings(
            max(1, self.likelihood_epochs),
            self.batch_size,
            self.likelihood_rate,
            self.seed,
            checkpoint_seconds=self.checkpoint_seconds,
        )


def load_lines(settings: SequenceGANSettings) -> Text:
    """The text of a run."""
    level: Level | None = None if settings.level == "auto" else settings.level
    return load_text(settings.data, level=level, length=settings.length or None, split_seed=settings.split_seed)


def make_estimator(settings: SequenceGANSettings) -> Estimator:
    """The estimator that the settings name; REINFORCE takes a whole batch as samples of the one distribution."""
    if settings.estimator not in get_args(SequenceEstimator):
        names = ", ".join(get_args(SequenceEstimator))
        raise ValueError(f"a sequence GAN has no estimator {settings.estimator!r}; choose one of {names}")
    if settings.estimator == "direct":
        return Direct(settings.epsilon, changes=settings.changes)
    return estimator_by_name(settings.estimator, temperature=settings.temperature, samples=settings.batch_size)


def build_sequence_gan(
    settings: SequenceGANSettings, symbols: int, length: int, estimator: Estimator | None = None
) -> SequenceGANModule:
    """The module that the settings describe; its weights depend on the seed alone."""
    check_symbols(symbols)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(settings.seed)  # the GPU's is left alone
        return SequenceGANModule(
            SequenceGenerator(symbols, length, settings.hidden),
            SequenceDiscriminator(symbols, settings.hidden),
            make_estimator(settings) if estimator is None else estimator,
        )


def sequence_gan_config(settings: SequenceGANSettings, text: Text) -> dict[str, Any]:
    """What config.json holds: the settings, and what is needed to read what the model writes."""
    vocabulary = text.vocabulary
    return {
        "task": TASK,
        "symbols": list(vocabulary.symbols),
        "kind": vocabulary.level,
        "sequence": text.length,
        **asdict(settings),
    }


def require_same_text(folder: RunFolder, text: Text) -> None:
    """Raise a BrokenFile where the text has other symbols than when training began."""
    now = sequence_gan_config(SequenceGANSettings(), text)
    if any(folder.config.get(name) != now[name] for name in ("symbols", "kind", "sequence")):
        raise BrokenFile(
            f"{text.name} has other symbols or longer lines than when {folder.path} was begun; restore it, or train "
            "into a new folder"
        )


def train_likelihood(
    settings: SequenceGANSettings,
    folder: RunFolder | None,
    module: SequenceGANModule,
    text: Text,
    *,
    progress: Progress | None = None,
) -> Trained:
    """The first stage, or what is left of it: generator and writer get the weights with the best validation likelihood.

    Args:
        settings: what and how.
        folder: of the whole run; None keeps everything in memory.
        module: on the device of the text.
        text: the data.
        progress: someone who watches.
    """
    own = None
    if folder is not None:
        path = folder.path / LIKELIHOOD
        config = {"task": LIKELIHOOD, "epochs": settings.likelihood_epochs}
        own = RunFolder.open(path) if (path / "config.json").exists() else RunFolder.create(path, config)
    trained = train(LikelihoodTask(module.generator, text), settings.likelihood_loop(), folder=own, progress=progress)
    module.follow(0.0)
    return trained


def train_adversarially(
    settings: SequenceGANSettings,
    folder: RunFolder | None,
    module: SequenceGANModule,
    text: Text,
    *,
    progress: Progress | None = None,
) -> Trained:
    """The second stage, or what is left of it: the weights with the least n-gram divergence on validation are kept.

    The discriminator starts with what the generator has learnt to read, the writer with all that it has learnt.
    """
    module.discriminator.read_like(module.generator)
    module.follow(0.0)
    task = SequenceGANTask(
        module,
        text,
        discriminator_steps=settings.discriminator_steps,
        warm_up=settings.warm_up,
        average=settings.average,
    )
    return train(task, settings.loop(), folder=folder, progress=progress)


def load_sequence_gan(
    path: Path | str, *, device: torch.device | None = None
) -> tuple[SequenceGANModule, Vocabulary, SequenceGANSettings]:
    """The trained model of a run (the weights of its best epoch), its vocabulary and its settings."""
    folder = RunFolder.open(path)
    settings = SequenceGANSettings.from_config(folder.config, folder.path / "config.json")
    vocabulary = Vocabulary(tuple(folder.config["symbols"]), folder.config["kind"])
    module = build_sequence_gan(settings, len(vocabulary), folder.config["sequence"])
    folder.fill(module)
    return module.to(device or torch.device("cpu")).eval(), vocabulary, settings
