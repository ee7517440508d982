"""A small completion model, trained from inside the app for those who have none: digits that ship with scikit-learn."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from argrad.app.library import Library
from argrad.models.completion.report import write_completion_report
from argrad.models.completion.run import CompletionSettings, completion_config, load_pictures, train_completion
from argrad.models.completion.scores import evaluate_completion
from argrad.training import Diverged, RunFolder

__all__ = ["SMALL", "train_on_digits"]

SMALL = CompletionSettings(data="digits", hidden=256, learning_rate=2e-3, epochs=30)
"""Good enough to see several ways to complete a digit, and done in less than half a minute."""


@final
class Steps:
    """Tells how far training is.

    Args:
        tell: called with the share that is done and words.
    """

    def __init__(self, tell: Callable[[float, str], Any]) -> None:
        self.tell = tell
        self.steps = 1

    def start(self, steps: int, done: int) -> None:
        """Training begins."""
        self.steps = max(1, steps)

    def step(self, done: int, epoch: int, loss: float) -> None:
        """Some steps later."""
        self.tell(done / self.steps, f"Epoch {epoch}, loss {loss:.1f}")

    def epoch(self, metrics: dict[str, Any]) -> None:
        """An epoch is over."""


def train_on_digits(library: Library, tell: Callable[[float, str], Any], settings: CompletionSettings = SMALL) -> Path:
    """Train into a new run folder, with its report, as `argrad complete train` does; gives the folder."""
    images = load_pictures(settings.data, settings.split_seed)
    where = library.place_for_new_run() / f"digits-completion-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = RunFolder.create(where, completion_config(settings, images.shape))
    try:
        with folder.locked():
            module, trained = train_completion(settings, folder, images, progress=Steps(tell))
    except Diverged as diverged:
        raise ValueError(str(diverged)) from diverged
    tell(1.0, "Writing the report")
    scores = evaluate_completion(module, images, masks=settings.masks)
    write_completion_report(folder.path, module, images, settings, trained.history, scores)
    return folder.path
