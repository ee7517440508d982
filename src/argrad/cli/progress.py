"""A progress bar with the loss and the time that is left; off a terminal, a line per tenth of the way."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from argrad.cli.out import Out

__all__ = ["Bar"]


@final
class Bar:
    """Watches a training loop (see :class:`argrad.training.Progress`)."""

    def __init__(self, out: Out, epochs: int, tensorboard: Path | None, *, quiet: bool = False) -> None:
        self.out = out
        self.epochs = epochs
        self.quiet = quiet
        self.writer = tensorboard_writer(tensorboard) if tensorboard is not None else None
        self.display: Any = None
        self.job: Any = None
        self.validation = ""

    def __enter__(self) -> Self:
        """Show nothing yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if self.display is not None:
            self.display.stop()
        if self.writer is not None:
            self.writer.close()

    def start(self, steps: int, done: int) -> None:
        """Show the bar, if there is a terminal to show it on."""
        if done:
            self.out.say(f"Going on after {done} of {steps} steps")
        if not self.out.live:
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self.display = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self.display.start()
        self.job = self.display.add_task("", total=steps, completed=done, epoch="", loss="")

    def step(self, done: int, epoch: int, loss: float) -> None:
        """Move the bar."""
        if self.display is not None:
            text = f"loss {loss:.2f}{self.validation}"
            self.display.update(self.job, completed=done, epoch=f"{epoch}/{self.epochs}", loss=text)

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Show the validation loss; off a terminal, say it now and then."""
        self.validation = f", validation {metrics['loss']:.2f}"
        number = int(metrics["epoch"])
        if not self.out.live and not self.quiet and (number == self.epochs or number % max(1, self.epochs // 10) == 0):
            self.out.say(
                f"epoch {number}/{self.epochs}: loss {metrics['train_loss']:.2f}{self.validation}, "
                f"{metrics['seconds']:.0f} s"
            )
        if self.writer is not None:
            for name, value in metrics.items():
                if name != "epoch":
                    self.writer.add_scalar(name, value, number)


def tensorboard_writer(folder: Path | None) -> Any:
    """A TensorBoard writer, or an error that says what to install; without a folder only the error."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError("--tensorboard needs the package tensorboard: pip install 'argrad[log]'") from error
    return SummaryWriter(str(folder)) if folder is not None else None
