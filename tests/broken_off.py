"""A training that is broken off in the middle of an epoch."""

from typing import Any

import pytest

from argrad.training import Interrupted, loop


class BrokenOff:
    """Progress that breaks off one of several trainings at one of its steps, before that step is saved.

    Args:
        monkeypatch: lets it hear of every step.
        training: which one, from 1; 0 breaks off none, and only looks on.
        step: at which of its steps, counted over all epochs.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, training: int = 0, step: int = 0) -> None:
        monkeypatch.setattr(loop, "REPORT_SECONDS", -1.0)
        self.training, self.at = training, step
        self.began: list[tuple[int, int]] = []
        """Of each training: how many steps it has, and how many of them were done before."""

    def start(self, steps: int, done: int) -> None:
        self.began.append((steps, done))

    def step(self, done: int, epoch: int, loss: float) -> None:
        if (len(self.began), done) == (self.training, self.at):
            raise Interrupted("broken off")

    def epoch(self, metrics: dict[str, Any]) -> None: ...
