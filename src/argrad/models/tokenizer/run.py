"""A tokenizer from settings: build it, train it and its prior into a run folder, load both again.

The run folder holds what every run does, and ``vocabulary.safetensors``: the codebook ``[K, dimension]`` and how often
each code is used, ``[K]``. The prior is a run of its own inside, in a folder named after the weights of the tokenizer
whose codes it was trained on, so that a tokenizer that is trained on gets a new one.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from argrad.data import Images, load
from argrad.estimators import Direct, Estimator
from argrad.estimators.by_name import estimator_by_name
from argrad.estimators.control import prepare_for
from argrad.latents import Categorical
from argrad.models.discrete_vae.module import Likelihood
from argrad.models.discrete_vae.task import Schedules
from argrad.models.tokenizer.module import TokenizerModule
from argrad.models.tokenizer.prior import CodePrior, PriorTask
from argrad.models.tokenizer.task import TokenizerTask, at_once, usage_in_batches
from argrad.training import (
    Decay,
    LoopSettings,
    Progress,
    RunFolder,
    Trained,
    WarmUp,
    read_tensors,
    settings_from_config,
    train,
)
from argrad.training.files import write_tensors

__all__ = [
    "TokenizerEstimator",
    "TokenizerSettings",
    "as_whole_numbers",
    "build_tokenizer",
    "decode_in_batches",
    "encode_in_batches",
    "load_images",
    "load_prior",
    "load_tokenizer",
    "make_estimator",
    "tokenizer_config",
    "train_prior",
    "train_tokenizer",
    "write_vocabulary",
]

TASK = "tokenize"
TokenizerEstimator = Literal["gumbel-softmax", "straight-through", "direct", "direct-gradient", "reinforce"]


@final
@dataclass(frozen=True)
class TokenizerSettings:
    """What is trained, on what, and how."""

    data: str = "digits"
    """A data set of the catalogue (argrad data list), a folder of images, or an .npy or .npz file."""
    binarize: Literal["round", "stochastic", "none"] = "none"
    """Take pixels as they are, round them at 0.5 once, or draw them anew each time."""
    split_seed: int = 0
    """Which images are for training, validation and test."""
    codes: int = 512
    """Size of the vocabulary."""
    width: int = 64
    """Channels of the convolutions."""
    dimension: int = 64
    """Numbers in a code's vector."""
    blocks: int = 1
    """Residual blocks on each side."""
    likelihood: Likelihood = "bernoulli"
    """Of the pixels given the codes."""
    scale: float = 1.0
    """Standard deviation of the gaussian likelihood."""
    estimator: TokenizerEstimator = "straight-through"
    """Of the gradient through the codes."""
    epsilon: float | Literal["auto"] = "auto"
    """ε of the direct ones, or auto to adapt it to the spread of the cost."""
    changes: int = 8
    """Of direct: changes of codes, drawn at random from likely ones, that are tried per image and step."""
    samples: int = 4
    """Of reinforce: draws per image, each the baseline of the others."""
    temperature: float = 1.0
    """τ of the relaxations at first …"""
    temperature_minimum: float = 0.2
    """… and at last."""
    anneal_epochs: int = 10
    """Epochs with codes over which τ falls; 0 keeps it as it is at first."""
    continuous_steps: int = 200
    """Steps at first without codes, which are placed then where the encoder's vectors are; a shorter training places
    them after each epoch, and does not train them. 0 starts with random codes."""
    kl_weight: float = 0.1
    """Weight β of the KL term of an image; 1 is the ELBO, less gives sharper codes and pictures."""
    kl_warmup_epochs: int = 2
    """Epochs with codes over which the KL weight rises from 0."""
    revive_until: int = 25
    """Move codes that no image uses to where codes are lacking, after each of the first so many epochs with codes."""
    epochs: int = 30
    """Passes over the training images."""
    prior_epochs: int = 20
    """Passes over their codes, for the prior that samples come from; 0 trains none."""
    prior_width: int = 256
    """Width of the prior's network."""
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
        for name in ("anneal_epochs", "continuous_steps", "kl_warmup_epochs", "prior_epochs", "revive_until"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if not 0 < self.temperature_minimum <= self.temperature:
            raise ValueError(
                f"τ falls from temperature to temperature_minimum, above 0, got {self.temperature} and "
                f"{self.temperature_minimum}"
            )
        if not 0 <= self.kl_weight < math.inf:
            raise ValueError(f"kl_weight must be a finite number that is not negative, got {self.kl_weight}")
        if self.prior_width < 1:
            raise ValueError(f"prior_width must be at least 1, got {self.prior_width}")

    @classmethod
    def from_config(cls, config: dict[str, Any], where: Path) -> TokenizerSettings:
        """From a run's config.json; refuses other runs, and settings that this version does not know."""
        wanted = "a tokenizer; give a folder that argrad tokenize train made"
        older = {"continuous_steps": 0}  # what runs did before there was the setting
        return settings_from_config(cls, {**older, **config}, where, task=TASK, wanted=wanted, besides=("shape",))

    def loop(self) -> LoopSettings:
        """The part that the training loop reads."""
        return LoopSettings(
            self.epochs, self.batch_size, self.learning_rate, self.seed, self.patience, self.checkpoint_seconds
        )

    def prior_loop(self) -> LoopSettings:
        """The same for the prior."""
        return LoopSettings(
            max(1, self.prior_epochs), self.batch_size, 1e-3, self.seed, checkpoint_seconds=self.checkpoint_seconds
        )

    def schedules(self, train_size: int) -> Schedules:
        """The part that changes as training goes on, for so many training images."""
        per_epoch = -(-train_size // self.batch_size)
        temperature = Decay(self.temperature)
        if self.anneal_epochs and self.temperature > self.temperature_minimum:
            rate = torch.tensor(self.temperature / self.temperature_minimum).log() / (self.anneal_epochs * per_epoch)
            temperature = Decay(self.temperature, self.temperature_minimum, float(rate), 10)
        epsilon = None if self.epsilon == "auto" else Decay(float(self.epsilon))
        return Schedules(epsilon, temperature, WarmUp(self.kl_weight, self.kl_warmup_epochs * per_epoch))


def make_estimator(settings: TokenizerSettings) -> Estimator:
    """The estimator that the settings name."""
    if settings.estimator not in get_args(TokenizerEstimator):
        names = ", ".join(get_args(TokenizerEstimator))
        raise ValueError(f"a tokenizer has no estimator {settings.estimator!r}; choose one of {names}")
    if settings.estimator == "direct":
        return Direct(settings.epsilon, changes=settings.changes)
    if settings.estimator == "direct-gradient":
        return Direct(settings.epsilon, changes="gradient")
    if settings.estimator == "reinforce" and settings.samples < 2:
        raise ValueError(f"leave-one-out needs samples of at least 2, got {settings.samples}")
    return estimator_by_name(settings.estimator, temperature=settings.temperature, samples=settings.samples)


def build_tokenizer(
    settings: TokenizerSettings, shape: tuple[int, ...], estimator: Estimator | None = None
) -> TokenizerModule:
    """The module that the settings describe, for images of a given shape; its weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(settings.seed)  # the GPU's is left alone
        module = TokenizerModule(
            shape,
            make_estimator(settings) if estimator is None else estimator,
            codes=settings.codes,
            width=settings.width,
            dimension=settings.dimension,
            blocks=settings.blocks,
            likelihood=settings.likelihood,
            scale=settings.scale,
        )
        one = Categorical(torch.zeros(1, *module.event_shape, requires_grad=True), event_dims=2)
        prepare_for(module.estimator, one)
        return module


def build_prior(settings: TokenizerSettings, module: TokenizerModule) -> CodePrior:
    """The prior that the settings describe."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(settings.seed)
        return CodePrior(module.grid, module.codes, settings.prior_width)


def tokenizer_config(settings: TokenizerSettings, shape: tuple[int, ...]) -> dict[str, Any]:
    """What config.json holds."""
    return {"task": TASK, "shape": list(shape), **asdict(settings)}


def train_tokenizer(
    settings: TokenizerSettings,
    folder: RunFolder | None,
    images: Images,
    *,
    device: torch.device | None = None,
    estimator: Estimator | None = None,
    progress: Progress | None = None,
) -> tuple[TokenizerModule, Trained]:
    """Train, or go on with, the tokenizer that the settings describe.

    Args:
        settings: what and how.
        folder: where to save and resume; None keeps everything in memory.
        images: the data.
        device: where to train.
        estimator: in place of the one that the settings name.
        progress: someone who watches.

    Returns:
        the module with the weights of the best epoch, and the history.
    """
    images = images.to(device or torch.device("cpu"))
    module = build_tokenizer(settings, images.shape, estimator).to(images.train.device)
    task = TokenizerTask(
        module,
        images.train,
        images.validation,
        images.values,
        settings.schedules(len(images.train)),
        revive_until=settings.revive_until,
        continuous_steps=settings.continuous_steps,
    )
    trained = train(task, settings.loop(), folder=folder, progress=progress)
    module.eval()
    if folder is not None:
        write_vocabulary(folder, module, images)
    return module, trained


def write_vocabulary(folder: RunFolder, module: TokenizerModule, images: Images) -> Path:
    """Write the codebook and the use of its codes on validation images; returns the path."""
    device = module.decoder.codebook.device
    stored = (images.validation if len(images.validation) else images.train).to(device)
    usage = usage_in_batches(module, stored, fixed_values(images, device), size=at_once(module.event_shape))
    path = folder.path / "vocabulary.safetensors"
    write_tensors(path, {"codebook": module.decoder.codebook, "usage": usage}, {"format": "pt"})
    return path


def fixed_values(images: Images, device: torch.device) -> Any:
    """Stored images to numbers, the same each time."""
    return lambda stored: images.values(stored, torch.Generator(device).manual_seed(1))


def encode_in_batches(module: TokenizerModule, stored: Tensor, values: Any) -> Tensor:
    """The codes of many stored images, ``[N, rows, columns]``, on the module's device."""
    device = module.decoder.codebook.device
    parts = [module.encode(values(chunk.to(device))) for chunk in stored.split(at_once(module.event_shape))]
    return torch.cat(parts) if parts else torch.zeros(0, *module.grid, dtype=torch.int64, device=device)


def decode_in_batches(module: TokenizerModule, codes: Any) -> Tensor:
    """The images of many codes, ``[N, *shape]`` on the CPU, given as an array or a tensor ``[N, rows, columns]``."""
    known = codes.detach() if isinstance(codes, Tensor) else as_whole_numbers(np.asarray(codes))
    module.check_codes(known)
    device = module.decoder.codebook.device
    chunks = known.split(at_once(module.event_shape))
    return torch.cat([module.decode(chunk.to(device)).cpu() for chunk in chunks])


def as_whole_numbers(array: NDArray[Any]) -> Tensor:
    """An array of whole numbers of any size, sign and order of bytes as int64."""
    if array.dtype.kind not in "iu":
        raise ValueError(f"codes must be whole numbers, as encode() returns them, got an array of {array.dtype}")
    if array.size and int(array.max()) > torch.iinfo(torch.int64).max:
        raise ValueError(f"codes must be numbers of a vocabulary, got {int(array.max())}")
    return torch.from_numpy(array.astype(np.int64))


def train_prior(
    settings: TokenizerSettings,
    folder: RunFolder | None,
    module: TokenizerModule,
    images: Images,
    *,
    progress: Progress | None = None,
) -> tuple[CodePrior, Trained]:
    """Train, or go on with, the prior over a trained tokenizer's codes.

    Args:
        settings: of the tokenizer.
        folder: of the tokenizer; None keeps everything in memory.
        module: the trained tokenizer, on its device.
        images: whose codes are learnt.
        progress: someone who watches.
    """
    device = module.decoder.codebook.device
    values = fixed_values(images, device)
    codes = [encode_in_batches(module, stored, values) for stored in (images.train, images.validation)]
    prior = build_prior(settings, module).to(device)
    own = None
    if folder is not None:
        path = prior_path(folder.path)
        config = {"task": "prior", "epochs": settings.prior_epochs, "width": settings.prior_width}
        own = RunFolder.open(path) if (path / "config.json").exists() else RunFolder.create(path, config)
    trained = train(PriorTask(prior, *codes), settings.prior_loop(), folder=own, progress=progress)
    return prior.eval(), trained


def prior_path(run: Path) -> Path:
    """Where the prior of a run's tokenizer is, or will be."""
    # Of the tensors, and not of the file: the same weights may be written again with other bytes around them.
    digest = hashlib.sha256()
    for name, tensor in sorted(read_tensors(run / "model.safetensors")[0].items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return run / f"prior-{digest.hexdigest()[:12]}"


def load_tokenizer(
    path: Path | str, *, device: torch.device | None = None
) -> tuple[TokenizerModule, TokenizerSettings]:
    """The trained tokenizer of a run (the weights of its best epoch), and its settings; the data is not needed."""
    folder = RunFolder.open(path)
    settings = TokenizerSettings.from_config(folder.config, folder.path / "config.json")
    module = build_tokenizer(settings, tuple(folder.config["shape"]))
    folder.fill(module)
    return module.to(device or torch.device("cpu")).eval(), settings


def load_prior(path: Path | str, *, device: torch.device | None = None) -> CodePrior:
    """The prior of a run's tokenizer."""
    run = Path(path)
    module, settings = load_tokenizer(run)
    prior = build_prior(settings, module)
    where = prior_path(run)
    if not (where / "model.safetensors").exists():
        raise ValueError(
            f"{run} has no prior for its codes; train one with argrad tokenize train --resume {run}, or with "
            "--prior-epochs above 0 in a new run"
        )
    RunFolder.open(where).fill(prior)
    return prior.to(device or torch.device("cpu")).eval()


def load_images(settings: TokenizerSettings) -> Images:
    """The data of a run."""
    return load(settings.data, binarize=settings.binarize, split_seed=settings.split_seed)
