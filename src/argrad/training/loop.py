"""The training loop: epochs, validation, best weights, early stop, checkpoints.

Everything random comes from the seed, the epoch and one generator whose state is part of the checkpoint, so a run
that is interrupted at any moment and resumed ends in the same weights, bit for bit, as one that was not. The data stays
where the task keeps it: the loop hands out indices.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from argrad.training.run_folder import RunFolder
from argrad.training.world import World

__all__ = ["Diverged", "Interrupted", "LoopSettings", "Progress", "Task", "Trained", "train"]

REPORT_SECONDS = 0.25
"""How often progress is shown; reading the loss makes a GPU wait."""
AGREE_STEPS = 20
"""How often several processes ask each other whether to stop."""


class Diverged(RuntimeError):
    """The loss is no longer a number; the run holds the last epoch at which it was."""


class Interrupted(Exception):
    """Training was asked to stop, and has saved all it needs to go on."""


class Task(Protocol):
    """What is trained, on which data."""

    train_size: int
    """The number of training examples."""
    device: torch.device
    """Where module and data are."""

    @property
    def module(self) -> nn.Module:
        """All that is learnt or remembered, the estimator included."""

    def set_step(self, step: int) -> None:
        """Set what follows a schedule."""

    def losses(self, batch: Tensor, generator: torch.Generator, world: World) -> Tensor:
        """The losses of this process's share of a batch, one number per example; ``batch`` holds all its indices."""

    def validate(self, generator: torch.Generator) -> dict[str, float]:
        """Metrics by name; ``"loss"`` is what the best epoch has least of."""

    def after_epoch(self, epoch: int, optimiser: torch.optim.Optimizer, generator: torch.Generator) -> dict[str, float]:
        """Whatever is done between epochs; returns metrics to record."""


class Progress(Protocol):
    """Someone who watches."""

    def start(self, steps: int, done: int) -> None:
        """Training begins, or goes on after ``done`` steps."""

    def step(self, done: int, epoch: int, loss: float) -> None:
        """Some steps later: how many in all, and the mean loss of this epoch so far."""

    def epoch(self, metrics: dict[str, Any]) -> None:
        """An epoch is over."""


@final
@dataclass(frozen=True)
class LoopSettings:
    """How long and how fast."""

    epochs: int = 100
    """Passes over the training data."""
    batch_size: int = 100
    """Examples per step, over all processes together."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    seed: int = 0
    """Where all randomness starts."""
    patience: int = 0
    """Stop after this many epochs without a better validation loss; 0 never stops early."""
    checkpoint_seconds: float = 60.0
    """Save within an epoch when this much time has passed since the last checkpoint."""

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("patience", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be a positive number, got {self.learning_rate}")


@final
@dataclass
class Trained:
    """Where training stands, and in the end what came of it."""

    epoch: int = 0
    """Complete epochs."""
    batch: int = 0
    """Batches done in the epoch under way."""
    step: int = 0
    """Steps in all."""
    total: float = 0.0
    """The summed loss of the epoch under way."""
    best_loss: float = math.inf
    best_epoch: int = 0
    seconds: float = 0.0
    """Time spent training, over all sittings."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One dictionary per epoch."""
    best: dict[str, Tensor] = field(default_factory=dict)
    """The module's state at the best epoch."""


def train(
    task: Task,
    settings: LoopSettings,
    *,
    folder: RunFolder | None = None,
    world: World | None = None,
    progress: Progress | None = None,
) -> Trained:
    """Train until the epochs are over or patience is; the module is left with the weights of the best epoch.

    Args:
        task: what is trained.
        settings: how long and how fast.
        folder: where to save; a folder that holds a checkpoint is gone on with.
        world: the processes that train together.
        progress: someone who watches.

    Raises:
        Interrupted: after Ctrl-C or a termination signal, when all is saved.
        Diverged: when the loss is not finite.
    """
    with torch.random.fork_rng(devices=[task.device] if task.device.type == "cuda" else []), stop_requests() as stop:
        return _Loop(task, settings, folder, world or World(), progress, stop).run()


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or termination signal into a polite request; a second Ctrl-C is obeyed at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def remember(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@final
class _Loop:
    def __init__(
        self,
        task: Task,
        settings: LoopSettings,
        folder: RunFolder | None,
        world: World,
        progress: Progress | None,
        stop: Callable[[], bool],
    ) -> None:
        self.task, self.settings, self.folder, self.world = task, settings, folder, world
        self.progress = progress if world.leads else None
        self.stop = stop
        self.parameters = [parameter for parameter in task.module.parameters() if parameter.requires_grad]
        self.optimiser = torch.optim.Adam(self.parameters, settings.learning_rate, fused=True)
        self.generator = torch.Generator(task.device)
        self.batches = math.ceil(task.train_size / settings.batch_size)
        self.at = Trained()
        self.saved_at = time.monotonic()
        self.reported_at = 0.0
        self.best_is_new = False

    def run(self) -> Trained:
        self.world.copy_from_leader(self.task.module)
        if self.folder is not None and self.folder.has_state():
            self._restore(self.folder.read_state())
        began = time.monotonic() - self.at.seconds
        if self.progress:
            self.progress.start(self.settings.epochs * self.batches, self.at.step)
        while self.at.epoch < self.settings.epochs and not self._out_of_patience():
            self._run_epoch(began)
            self.at.seconds = time.monotonic() - began
            self._save()
        if self.at.best:
            self.task.module.load_state_dict(self.at.best)
        return self.at

    def _out_of_patience(self) -> bool:
        waited = self.at.epoch - self.at.best_epoch
        return 0 < self.settings.patience <= waited and self.at.epoch > 0

    def _run_epoch(self, began: float) -> None:
        at, settings = self.at, self.settings
        order = self._order(at.epoch)
        if at.batch == 0:
            self._seed(at.epoch)
        total = torch.tensor(
            at.total, dtype=torch.float64 if self.task.device.type != "mps" else None, device=self.task.device
        )
        self.task.module.train()
        for start in range(at.batch * settings.batch_size, self.task.train_size, settings.batch_size):
            whole = order[start : start + settings.batch_size]
            total += self._step(whole)
            at.batch += 1
            at.step += 1
            self._between_steps(total, began, start + len(whole))
        at.total = 0.0
        train_loss = float(self.world.sum(total)) / self.task.train_size
        self._check_finite(train_loss)
        self._finish_epoch(train_loss, began)

    def _step(self, whole: Tensor) -> Tensor:
        self.task.set_step(self.at.step)
        losses = self.task.losses(whole, self.generator, self.world)
        self.optimiser.zero_grad(set_to_none=True)
        (losses.sum() / len(whole)).backward()
        self.world.add_up_gradients(self.parameters)
        self.optimiser.step()
        return losses.detach().sum()

    def _between_steps(self, total: Tensor, began: float, seen: int) -> None:
        now = time.monotonic()
        if self.progress and now - self.reported_at > REPORT_SECONDS:
            self.reported_at = now
            # Of several processes the leader shows its own share, scaled up.
            self.progress.step(self.at.step, self.at.epoch + 1, float(total) * self.world.size / seen)
        if self.at.batch == self.batches:
            return
        asked, due = self.stop(), now - self.saved_at > self.settings.checkpoint_seconds
        if self.world.size > 1:
            agree = self.at.step % AGREE_STEPS == 0
            asked, due = agree and self.world.any(asked), agree and self.world.any(due)
        if asked or due:
            self.at.total = float(self.world.sum(total.clone()))
            self.at.seconds = now - began
            self._save(stopping=asked)

    def _finish_epoch(self, train_loss: float, began: float) -> None:
        at = self.at
        self.task.module.eval()
        with torch.no_grad():
            metrics = self.task.validate(self.generator)
        self._check_finite(metrics["loss"])
        at.epoch, at.batch = at.epoch + 1, 0
        self.best_is_new = metrics["loss"] < at.best_loss
        if self.best_is_new:
            at.best_loss, at.best_epoch = metrics["loss"], at.epoch
            at.best = {name: tensor.detach().clone() for name, tensor in self.task.module.state_dict().items()}
        extra = self.task.after_epoch(at.epoch, self.optimiser, self.generator)
        seconds = time.monotonic() - began
        at.history.append(
            {"epoch": at.epoch, "train_loss": train_loss, **metrics, **extra, "seconds": round(seconds, 3)}
        )
        if self.progress:
            self.progress.epoch(at.history[-1])

    def _check_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            kept = (
                f"; {self.folder.path} keeps epoch {self.at.epoch}" if self.folder is not None and self.at.epoch else ""
            )
            raise Diverged(f"the loss became {loss} in epoch {self.at.epoch + 1}; lower the learning rate{kept}")

    def _order(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(_mix(self.settings.seed, epoch, 1))
        return torch.randperm(self.task.train_size, generator=generator).to(self.task.device)

    def _seed(self, epoch: int) -> None:
        """The noise is the same in all processes, each takes its share; what layers draw on their own is not."""
        self.generator.manual_seed(_mix(self.settings.seed, epoch, 2))
        torch.manual_seed(_mix(self.settings.seed, epoch, 3 + self.world.rank))

    def _save(self, stopping: bool = False) -> None:
        if self.folder is not None and self.world.leads:
            state = {
                "module": self.task.module.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "generator": self.generator.get_state(),
                "torch": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state(self.task.device) if self.task.device.type == "cuda" else None,
                "at": dict(vars(self.at)),
            }
            self.folder.write(state, self.at.history, self.at.best if self.best_is_new or stopping else None)
        self.best_is_new = False
        self.saved_at = time.monotonic()
        if stopping or (self.at.batch == 0 and self.world.any(self.stop()) and self.at.epoch < self.settings.epochs):
            self.world.wait()
            raise Interrupted(f"stopped in epoch {self.at.epoch + 1} after {self.at.step} steps")

    def _restore(self, state: dict[str, Any]) -> None:
        self.task.module.load_state_dict(state["module"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"])
        torch.set_rng_state(state["torch"])
        if state["cuda"] is not None and self.task.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"], self.task.device)
        self.at = Trained(**state["at"])
        if not self.world.leads:
            self.at.total = 0.0  # it is the sum over processes already
        self.best_is_new = True  # model.safetensors may be older than the state


def _mix(*numbers: int) -> int:
    """A seed that depends on all of the numbers (a 64-bit multiply-and-add, as in splitmix)."""
    seed = 0x9E3779B97F4A7C15
    for number in numbers:
        seed = ((seed ^ (number + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9) % 2**64
        seed ^= seed >> 27
    return seed % 2**63
