"""The training loop: epochs, validation, best weights, early stop, checkpoints.

Everything random in a step comes from the seed and the number of the step, so on the CPU a run that is interrupted at
any moment and resumed ends in the same weights, bit for bit, as one that was not; a GPU adds up gradients in an order
that varies. The data stays where the task keeps it: the loop hands out indices.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn, Protocol, final

import torch
from torch import Tensor, nn

from argrad.training.files import BrokenFile, dump_state, load_state
from argrad.training.run_folder import RunFolder
from argrad.training.world import World

__all__ = ["Diverged", "Interrupted", "LoopSettings", "Progress", "Task", "Trained", "train"]

REPORT_SECONDS = 0.25
"""How often progress is shown; reading the loss makes a GPU wait."""
AGREE_SECONDS = 0.5
"""How often, about, several processes ask each other whether to stop."""
AGREE_STEPS = 100
"""The most steps between two such questions."""
IMPATIENCE_SECONDS = 0.5
"""A second Ctrl-C within this time is an echo of the first: launchers pass on what the terminal has sent already."""


RUN_AWAY = 1e8
"""What a network makes of a parameter beyond this is no longer a number, sooner or later."""


class Diverged(RuntimeError):
    """The loss or a parameter is no longer a number; the run holds the last checkpoint at which all were."""


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
        """The losses of this process's share of a batch, one number per example; ``batch`` holds all its indices.

        The generator is in the same state in all processes: each draws for the whole batch and takes its share.
        """

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
        if not self.checkpoint_seconds >= 0:
            raise ValueError(f"checkpoint_seconds must be a number that is not negative, got {self.checkpoint_seconds}")


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
        folder: where to save; a folder that holds a checkpoint is gone on with. Of several processes only the leader
            reads and writes it, the others may leave it out.
        world: the processes that train together.
        progress: someone who watches.

    Raises:
        Interrupted: after Ctrl-C or a termination signal, when all is saved.
        Diverged: when the loss is not finite.
        BrokenFile: when the checkpoint is broken or belongs to something else.
    """
    world = world or World()
    folder = folder if world.leads else None
    with (
        torch.random.fork_rng(devices=[task.device] if task.device.type == "cuda" else []),
        folder.locked() if folder is not None else nullcontext(),
        stop_requests() as stop,
    ):
        return _Loop(task, settings, folder, world, progress, stop).run()


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or termination signal into a polite request; a second Ctrl-C is obeyed at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    first = 0.0

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if not asked.is_set():
            first = time.monotonic()
            asked.set()
        elif number == signal.SIGINT and time.monotonic() - first > IMPATIENCE_SECONDS:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


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
        self.layers = generator_of_layers(task.device)
        self.batches = math.ceil(task.train_size / settings.batch_size)
        self.at = Trained()
        self.began = self.saved_at = time.monotonic()
        self.saved_step = 0
        self.reported_at = 0.0
        self.agreed_at = time.monotonic(), 0
        self.agree_step = 0
        self.shares: dict[int, Tensor] = {}

    def run(self) -> Trained:
        self.world.copy_from_leader(self.task.module)
        self._restore()
        self.began = time.monotonic() - self.at.seconds
        if self.progress:
            self.progress.start(self.settings.epochs * self.batches, self.at.step)
        try:
            while self.at.epoch < self.settings.epochs and not self._out_of_patience():
                self._run_epoch()
        except ValueError as error:  # what checks its inputs meets the NaN before the loss does
            if not self._parameters_are_below(RUN_AWAY):
                raise self._diverged("a parameter grew without bound") from error
            raise
        if self.at.best:
            self.task.module.load_state_dict(self.at.best)
        return self.at

    def _out_of_patience(self) -> bool:
        return 0 < self.settings.patience <= self.at.epoch - self.at.best_epoch

    def _run_epoch(self) -> None:
        at, size = self.at, self.settings.batch_size
        order = self._order(at.epoch)
        total = torch.tensor(
            at.total, dtype=torch.float64 if self.task.device.type != "mps" else None, device=self.task.device
        )
        self.task.module.train()
        for start in range(at.batch * size, self.task.train_size, size):
            whole = order[start : start + size]
            total += self._step(whole)
            at.batch += 1
            at.step += 1
            self._between_steps(total, start + len(whole))
        train_loss = float(self.world.sum(total)) / self.task.train_size
        self._require_finite(train_loss)
        is_best = self._finish_epoch(train_loss)
        at.seconds = time.monotonic() - self.began
        self._save(is_best)
        if self.world.any(self.stop()) and at.epoch < self.settings.epochs:
            self._interrupt()

    def _step(self, whole: Tensor) -> Tensor:
        step = self.at.step
        seed = _mix(self.settings.seed, step, 0)
        # The noise is the same in all processes, each takes its share; what layers draw on their own is not.
        self.generator.manual_seed(seed)
        self.layers.manual_seed(seed ^ (1 + self.world.rank))
        self.task.set_step(step)
        total = self.task.losses(whole, self.generator, self.world).sum()
        for parameter in self.parameters:  # what zero_grad() does, without what it does around it
            parameter.grad = None
        total.backward(self._one_over(len(whole), total))
        self.world.add_up_gradients(self.parameters)
        self.optimiser.step()
        return total.detach()

    def _one_over(self, number: int, like: Tensor) -> Tensor:
        """What the gradient of a sum starts from to become that of the mean: cheaper than dividing the sum."""
        if number not in self.shares:
            self.shares[number] = torch.full_like(like, 1 / number, requires_grad=False)
        return self.shares[number]

    def _between_steps(self, total: Tensor, seen: int) -> None:
        now = time.monotonic()
        if self.progress and now - self.reported_at > REPORT_SECONDS:
            self.reported_at = now
            # Of several processes the leader shows its own share, scaled up.
            self.progress.step(self.at.step, self.at.epoch + 1, float(total) * self.world.size / seen)
        if self.at.batch == self.batches:
            return
        asked, due = self.stop(), now - self.saved_at > self.settings.checkpoint_seconds
        if self.world.size > 1:
            asked, due = self._agree(asked, due, now)
        if asked or due:
            self.at.total = float(self.world.sum(total.clone()))
            self.at.seconds = now - self.began
            self._require_finite(self.at.total)
            self._save()
        if asked:
            self._interrupt()

    def _agree(self, asked: bool, due: bool, now: float) -> tuple[bool, bool]:
        """Whether any process is asked to stop, or is due to save; all of them ask at the same steps."""
        if self.at.step < self.agree_step:
            return False, False
        before, step = self.agreed_at
        stop, save, seconds = self.world.sum_numbers(asked, due, now - before)
        per_step = seconds / self.world.size / max(1, self.at.step - step)
        self.agree_step = self.at.step + max(1, min(AGREE_STEPS, int(AGREE_SECONDS / max(per_step, 1e-9))))
        self.agreed_at = now, self.at.step
        return stop > 0, save > 0

    def _finish_epoch(self, train_loss: float) -> bool:
        """Measure, remember the best, record; returns whether this epoch is the best so far."""
        at = self.at
        self.task.module.eval()
        with torch.no_grad():
            metrics = self.task.validate(self.generator)
        # The leader's, since all must decide alike and machines may differ in the last digits.
        (loss,) = self.world.sum_numbers(metrics["loss"] if self.world.leads else 0.0)
        self._require_finite(loss)
        at.epoch, at.batch, at.total = at.epoch + 1, 0, 0.0
        is_best = loss < at.best_loss
        if is_best:
            at.best_loss, at.best_epoch = loss, at.epoch
            at.best = {name: tensor.detach().clone() for name, tensor in self.task.module.state_dict().items()}
        extra = self.task.after_epoch(at.epoch, self.optimiser, self.generator)
        seconds = round(time.monotonic() - self.began, 3)
        at.history.append(
            {"epoch": at.epoch, "train_loss": train_loss, **metrics, "loss": loss, **extra, "seconds": seconds}
        )
        if self.progress:
            self.progress.step(at.step, at.epoch, train_loss)
            self.progress.epoch(at.history[-1])
        return is_best

    def _parameters_are_below(self, bound: float) -> bool:
        return all(bool((parameter.detach().abs() < bound).all()) for parameter in self.parameters)

    def _require_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise self._diverged(f"the loss became {loss}")
        if not self._parameters_are_below(math.inf):
            raise self._diverged("a parameter grew without bound")

    def _diverged(self, what: str) -> Diverged:
        kept = ""
        if self.folder is not None and self.saved_step:
            kept = f"; {self.folder.path} keeps the last good checkpoint, after {self.saved_step} steps"
        return Diverged(f"{what} in epoch {self.at.epoch + 1}; lower the learning rate{kept}")

    def _order(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(_mix(self.settings.seed, epoch))
        return torch.randperm(self.task.train_size, generator=generator).to(self.task.device)

    def _save(self, is_best: bool = False) -> None:
        if self.folder is not None:
            state = {
                "module": self.task.module.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "train_size": self.task.train_size,
                "at": dict(vars(self.at)),
            }
            self.folder.write(state, self.at.history, self.at.best if is_best else None)
        self.saved_at, self.saved_step = time.monotonic(), self.at.step

    def _interrupt(self) -> NoReturn:
        self.world.wait()  # for the leader, which writes
        raise Interrupted(f"stopped in epoch {self.at.epoch + 1} after {self.at.step} steps")

    def _restore(self) -> None:
        """Go on from the leader's checkpoint, if there is one."""
        state = self.folder.read_state() if self.folder is not None and self.folder.has_state() else {}
        if self.world.size > 1:
            state = load_state(self.world.bytes_from_leader(dump_state(state)), "the leader's checkpoint")
        if not state:
            return
        where = self.folder.path / "state.pt" if self.folder is not None else "the checkpoint"
        if state["train_size"] != self.task.train_size:
            raise BrokenFile(
                f"{where} was made with {state['train_size']} training examples and the data now has "
                f"{self.task.train_size}; restore the data, or train into a new folder"
            )
        try:
            self.task.module.load_state_dict(state["module"])
        except RuntimeError as error:
            first = str(error).splitlines()[-1].strip()
            raise BrokenFile(
                f"{where} does not fit the model ({first}); restore the data, or train into a new folder"
            ) from error
        self.optimiser.load_state_dict(state["optimiser"])
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.learning_rate
        self.at = Trained(**state["at"])
        self.at.total /= self.world.size  # it is the sum over processes already
        self.saved_step = self.at.step
        if self.folder is not None:  # the run may have ended between one file and the next
            self.folder.write_derived(self.at.history, self.at.best)


def generator_of_layers(device: torch.device) -> torch.Generator:
    """What dropout and its like draw from."""
    if device.type != "cuda":
        return torch.default_generator
    torch.cuda.init()
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]


def _mix(*numbers: int) -> int:
    """A seed that depends on all of the numbers (a 64-bit multiply-and-add, as in splitmix)."""
    seed = 0x9E3779B97F4A7C15
    for number in numbers:
        seed = ((seed ^ (number + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9) % 2**64
        seed ^= seed >> 27
    return seed % 2**63
