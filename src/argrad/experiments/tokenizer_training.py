"""Training of one tokenizer or its rival on images that stay on the device; on a GPU one captured graph a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from argrad.estimators import GumbelSoftmax
from argrad.experiments.tokenizer_vq import QuantizedModule
from argrad.models.dead_codes import perplexity
from argrad.models.tokenizer_codes import revive_codes
from argrad.models.tokenizer_module import TokenizerModule
from argrad.models.tokenizer_task import AT_ONCE, squared_error, usage_in_batches
from argrad.training.captured_step import CapturedStep

__all__ = ["Learnt", "Pace", "Trainer", "as_values", "train"]


@final
@dataclass(frozen=True)
class Pace:
    """How long, how fast, and what changes meanwhile."""

    epochs: int
    batch_size: int = 100
    learning_rate: float = 1e-3
    temperature: tuple[float, float] = (1.0, 0.2)
    """τ at first, and at last."""
    anneal_epochs: float = 10
    """Epochs over which τ falls, exponentially."""
    kl_weight: float = 1.0
    kl_warmup_epochs: float = 2
    revive_until: int = 10
    """Dead codes are revived after each epoch up to this one."""
    look_every: int = 1
    """Epochs between two looks at the validation images."""
    seed: int = 0

    def temperature_at(self, progress: float) -> float:
        """τ after so many epochs."""
        first, last = self.temperature
        share = min(1.0, progress / self.anneal_epochs) if self.anneal_epochs else 0.0
        return float(first * (last / first) ** share)

    def kl_weight_at(self, progress: float) -> float:
        """β after so many epochs."""
        return self.kl_weight * (min(1.0, progress / self.kl_warmup_epochs) if self.kl_warmup_epochs else 1.0)


@final
@dataclass
class Learnt:
    """What was seen on the way."""

    epochs: list[int] = field(default_factory=list)
    hard_error: list[float] = field(default_factory=list)
    perplexity: list[float] = field(default_factory=list)
    revived: int = 0
    steps: int = 0
    seconds: float = 0.0
    """Training time, evaluation left out."""


def as_values(stored: Tensor) -> Tensor:
    """Stored images as numbers from 0 to 1: 8-bit pixels are divided by 255, others are as they are."""
    return stored.float() / 255 if stored.dtype == torch.uint8 else stored


@final
class Trainer:
    """Steps of one model through its images.

    Args:
        model: on its device, in train mode.
        images: stored ``[N, *shape]``, uint8 or float32, on the same device.
        pace: how fast.
    """

    def __init__(self, model: TokenizerModule | QuantizedModule, images: Tensor, pace: Pace) -> None:
        self.model, self.images, self.pace = model, images, pace
        device = images.device
        self.optimiser = torch.optim.Adam(
            [one for one in model.parameters() if one.requires_grad],
            pace.learning_rate,
            fused=True,
            capturable=device.type == "cuda",
        )
        self.order = torch.zeros(len(images), dtype=torch.int64, device=device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)
        self.offsets = torch.arange(min(pace.batch_size, len(images)), device=device)
        self.kl_weight = torch.zeros((), device=device)
        self.generator = torch.Generator(device).manual_seed(pace.seed)
        self.step = CapturedStep(self._one_step, self._tensors, device)
        """The next batch."""
        self.step.prepare()

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches."""
        return len(self.images) // len(self.offsets)

    def shuffle(self) -> None:
        """A fresh order."""
        self.order.copy_(torch.randperm(len(self.order), generator=self.generator, device=self.order.device))
        self.cursor.zero_()

    def set_progress(self, epochs: float) -> None:
        """Set what follows a schedule, in place."""
        self.kl_weight.fill_(self.pace.kl_weight_at(epochs))
        if isinstance(self.model, TokenizerModule) and isinstance(self.model.estimator, GumbelSoftmax):
            self.model.estimator.temperature.fill_(self.pace.temperature_at(epochs))

    def _one_step(self) -> None:
        x = as_values(self.images[self.order.index_select(0, self.cursor + self.offsets)])
        if isinstance(self.model, TokenizerModule):
            loss = self.model.losses(x, kl_weight=self.kl_weight).mean()
        else:
            loss = self.model.losses(x).mean()
        for parameter in self.model.parameters():
            parameter.grad = None
        loss.backward()
        self.optimiser.step()
        self.cursor.add_(len(x))

    def _tensors(self) -> list[Tensor]:
        memory = [tensor for state in self.optimiser.state.values() for tensor in state.values()]
        return [*self.model.parameters(), *self.model.buffers(), *memory, self.cursor]


def train(
    model: TokenizerModule | QuantizedModule,
    images: Tensor,
    validation: Tensor,
    pace: Pace,
    progress: Callable[[str], object] = print,
) -> Learnt:
    """Train to the end of the pace; the model has its last weights.

    Args:
        model: on the device of the images.
        images: stored.
        validation: stored; looked at, and used to find dead codes.
        pace: how long and how fast.
        progress: is told how far it is.
    """
    device = images.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(pace.seed)
        model.train()
        trainer = Trainer(model, images, pace)
        learnt = Learnt()
        for epoch in range(1, pace.epochs + 1):
            began = time.monotonic()
            trainer.shuffle()
            for number in range(trainer.steps_per_epoch):
                if number % 10 == 0:
                    trainer.set_progress(epoch - 1 + number / trainer.steps_per_epoch)
                trainer.step()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            learnt.seconds += time.monotonic() - began
            learnt.steps += trainer.steps_per_epoch
            model.eval()
            if epoch % pace.look_every == 0 or epoch == pace.epochs:
                learnt.epochs.append(epoch)
                learnt.hard_error.append(squared_error(model, validation, as_values))
                learnt.perplexity.append(perplexity(usage_in_batches(model, validation, as_values)))
                progress(
                    f"epoch {epoch}/{pace.epochs}: validation error {learnt.hard_error[-1]:.5f}, perplexity "
                    f"{learnt.perplexity[-1]:.0f}, {learnt.seconds:.0f} s"
                )
            if epoch <= pace.revive_until and isinstance(model, TokenizerModule):
                usage = usage_in_batches(model, validation, as_values)
                some = as_values(images[trainer.order[:AT_ONCE]])
                learnt.revived += revive_codes(model, usage, some, trainer.optimiser, trainer.generator)
            model.train()
        model.eval()
    return learnt
