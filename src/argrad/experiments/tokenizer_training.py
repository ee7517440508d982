"""Training of one tokenizer or its rival on images that stay on the device; on a GPU one captured graph a step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from argrad.estimators import GumbelSoftmax
from argrad.experiments.tokenizer_vq import QuantizedModule
from argrad.models.dead_codes import perplexity
from argrad.models.tokenizer.codes import place_codes, revive_codes
from argrad.models.tokenizer.module import TokenizerModule
from argrad.models.tokenizer.task import AT_ONCE
from argrad.training.captured_step import CapturedStep
from argrad.training.matmul_precision import training_precision

__all__ = ["Learnt", "Pace", "Trainer", "as_values", "look", "train"]


LOOKED_AT = 1000
"""Validation images that are looked at."""


@final
@dataclass(frozen=True)
class Pace:
    """How long, how fast, and what changes meanwhile: with progress, from 0 to 1."""

    steps: int
    rounds: int = 24
    """After each of so many equal parts of the training the validation images are looked at."""
    batch_size: int = 100
    learning_rate: float = 1e-3
    """Adam's step size, until it falls."""
    clip_norm: float = 1.0
    """Norm that a gradient is scaled down to: one batch whose gradient is a thousand times that of others, as happens,
    would undo what hundreds have done."""
    temperature: tuple[float, float] = (1.0, 0.2)
    """τ at first, and at last."""
    kl_weight: tuple[float, float] = (1.0, 1.0)
    """β at first, once it has risen, and at last."""
    continuous: float = 0.05
    """Progress up to which there are no codes: the decoder reads the encoder's vectors, among which they are placed."""
    warm_up: float = 0.1
    """Progress up to which β rises from 0."""
    anneal: float = 1 / 3
    """Progress up to which τ and β fall, exponentially."""
    settle: float = 1 / 3
    """Progress from which the step size falls, in a straight line to 0."""
    sharpen: float = 8.0
    """From there on the precision of the codes rises by this factor, exponentially, beside what it learns: codes become
    sure."""
    revive: float = 0.9
    """Dead codes are revived after each round up to this progress, and the rival's replaced at each step up to it."""
    seed: int = 0

    def temperature_at(self, progress: float) -> float:
        """τ."""
        return between(self.temperature, min(1.0, progress / self.anneal))

    def kl_weight_at(self, progress: float) -> float:
        """β."""
        rise = min(1.0, progress / self.warm_up) if self.warm_up else 1.0
        return rise * between(self.kl_weight, min(1.0, progress / self.anneal))

    def learning_rate_at(self, progress: float) -> float:
        """Adam's step size."""
        return self.learning_rate * min(1.0, (1 - progress) / max(1 - self.settle, 1e-9))

    def sharpness_at(self, progress: float) -> float:
        """By which factor the precision of the codes has risen."""
        return between((1.0, self.sharpen), max(0.0, progress - self.settle) / max(1 - self.settle, 1e-9))

    def continuous_steps(self) -> int:
        """How many steps there are without codes."""
        return round(self.continuous * self.steps)

    def ends(self) -> list[int]:
        """The step after which each round ends."""
        rounds = min(self.rounds, self.steps)
        return [self.steps * (number + 1) // rounds for number in range(rounds)]


def between(ends: tuple[float, float], share: float) -> float:
    """From the first to the last, exponentially."""
    return float(ends[0] * (ends[1] / ends[0]) ** share)


@final
@dataclass
class Learnt:
    """What was seen on the way."""

    looked_after: list[int] = field(default_factory=list)
    """Steps."""
    hard_error: list[float] = field(default_factory=list)
    perplexity: list[float] = field(default_factory=list)
    revived: int = 0
    seconds: float = 0.0
    """Training time, evaluation left out."""


def as_values(stored: Tensor) -> Tensor:
    """Stored images as numbers from 0 to 1: 8-bit pixels are divided by 255, others are as they are."""
    return stored.float() / 255 if stored.dtype == torch.uint8 else stored


@torch.no_grad()
def look(model: TokenizerModule | QuantizedModule, stored: Tensor) -> tuple[float, Tensor]:
    """The squared error per pixel with hard codes, and how often each code is used ``[K]``, encoding once."""
    error, counts = torch.zeros((), device=stored.device), torch.zeros(model.codes, device=stored.device)
    for chunk in stored.split(AT_ONCE):
        x = as_values(chunk)
        codes = model.encode(x)
        error += (model.decode(codes) - x).square().flatten(1).mean(1).sum()
        counts += torch.bincount(codes.flatten(), minlength=model.codes)
    return float(error) / len(stored), counts / counts.sum()


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
        self.parameters = [one for one in model.parameters() if one.requires_grad]
        self.optimiser = torch.optim.Adam(
            self.parameters,
            torch.tensor(pace.learning_rate, device=device),  # a captured step reads it where it is
            fused=True,
            capturable=device.type == "cuda",
        )
        self.sharpness = 1.0
        self.order = torch.zeros(len(images), dtype=torch.int64, device=device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)
        self.offsets = torch.arange(min(pace.batch_size, len(images)), device=device)
        self.kl_weight = torch.zeros((), device=device)
        self.generator = torch.Generator(device).manual_seed(pace.seed)
        self.step = CapturedStep(self.one_step, self._tensors, device)
        """The next batch."""
        self.step.prepare()

    def advance(self, step: int) -> None:
        """Make the step of this number, the first being 0: a fresh order where one has ended, schedules, the batch."""
        if step % (len(self.images) // len(self.offsets)) == 0:
            self.order.copy_(torch.randperm(len(self.order), generator=self.generator, device=self.order.device))
            self.cursor.zero_()
        if step % 10 == 0:
            self.set_progress(step / self.pace.steps)
        if step < self.pace.continuous_steps():
            self.one_step(continuous=True)
            return
        if step == self.pace.continuous_steps() > 0:
            self.place_codes(self.generator)
        self.step()

    @torch.no_grad()
    def set_progress(self, progress: float) -> None:
        """Set what follows a schedule, in place."""
        self.kl_weight.fill_(self.pace.kl_weight_at(progress))
        for group in self.optimiser.param_groups:
            group["lr"].fill_(self.pace.learning_rate_at(progress))
        if isinstance(self.model, QuantizedModule):
            if progress > self.pace.revive:
                self.model.quantizer.replace_below.zero_()
            return
        before, self.sharpness = self.sharpness, self.pace.sharpness_at(progress)
        self.model.log_precision.add_(math.log(self.sharpness / before))
        if isinstance(self.model.estimator, GumbelSoftmax):
            self.model.estimator.temperature.fill_(self.pace.temperature_at(progress))

    @torch.no_grad()
    def place_codes(self, generator: torch.Generator) -> None:
        """Put the codes where the encoder's vectors are."""
        vectors = self.model.encoder(as_values(self.images[self.order[:AT_ONCE]])).flatten(0, 1)
        if isinstance(self.model, TokenizerModule):
            place_codes(self.model, vectors, generator)
        else:
            self.model.place_codes(vectors, generator)

    def one_step(self, *, continuous: bool = False) -> None:
        """Pick, encode, decode, differentiate, move; on a GPU with matrix products in TF32."""
        with training_precision(self.images.device):
            x = as_values(self.images[self.order.index_select(0, self.cursor + self.offsets)])
            for parameter in self.parameters:
                parameter.grad = None
            self._losses(x, continuous=continuous).mean().backward()
            torch.nn.utils.clip_grad_norm_(self.parameters, self.pace.clip_norm)
            self.optimiser.step()
            self.cursor.add_(len(x))

    def _losses(self, x: Tensor, *, continuous: bool) -> Tensor:
        if continuous:
            return self.model.continuous_losses(x)
        if isinstance(self.model, TokenizerModule):
            return self.model.losses(x, kl_weight=self.kl_weight)
        return self.model.losses(x)

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
        validation: stored; the first of them are looked at, and used to find dead codes.
        pace: how long and how fast.
        progress: is told how far it is.
    """
    device = images.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(pace.seed)
        model.train()
        trainer = Trainer(model, images, pace)
        learnt, done = Learnt(), 0
        validation = validation[:LOOKED_AT]
        for end in pace.ends():
            began = time.monotonic()
            for step in range(done, end):
                trainer.advance(step)
            done = end
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            learnt.seconds += time.monotonic() - began
            model.eval()
            if done <= pace.continuous_steps():
                trainer.place_codes(torch.Generator(device).manual_seed(pace.seed))
            error, usage = look(model, validation)
            learnt.looked_after.append(done)
            learnt.hard_error.append(error)
            learnt.perplexity.append(perplexity(usage))
            progress(
                f"step {done}/{pace.steps}: validation error {learnt.hard_error[-1]:.5f}, perplexity "
                f"{learnt.perplexity[-1]:.0f}, {learnt.seconds:.0f} s"
            )
            has_codes = done > pace.continuous_steps()
            if has_codes and done <= pace.revive * pace.steps and isinstance(model, TokenizerModule):
                some = as_values(images[trainer.order[:AT_ONCE]])
                learnt.revived += revive_codes(model, usage, some, trainer.optimiser, trainer.generator)
            model.train()
        model.eval()
    return learnt
