"""A training that takes milliseconds, and ways to compare two of them to the last bit."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from argrad.data import Images
from argrad.models.discrete_vae.run import TrainSettings, build
from argrad.models.discrete_vae.task import VAETask
from argrad.training import RunFolder, World
from argrad.training.files import read_state

SHAPE = (3, 4)
NEVER = 1e9
"""As checkpoint_seconds: save at the end of epochs only."""
SETTINGS = TrainSettings(
    hidden=5, values=3, epochs=2, batch_size=8, learning_rate=0.01, checkpoint_seconds=NEVER, data="tiny"
)
"""21 examples in batches of 8, 8 and 5."""


def settings(**changes: Any) -> TrainSettings:
    """The tiny settings, but for some."""
    return replace(SETTINGS, **changes)


def images(binarization: str = "round", train: int = 21, validation: int = 6) -> Images:
    """Noisy copies of three patterns: bits, or grey values where bits are to be drawn."""
    generator = torch.Generator().manual_seed(7)
    grey = torch.rand(3, *SHAPE, generator=generator)[torch.arange(train + validation) % 3]
    grey = (grey + 0.2 * torch.rand(grey.shape, generator=generator)).clamp(0, 1)
    stored = (grey > 0.5).to(torch.uint8) if binarization == "round" else grey
    parts = stored[:train], stored[train:], stored[:0]
    return Images("tiny", *parts, binarization=binarization)  # type: ignore[arg-type]


def make_task(settings: TrainSettings, data: Images | None = None, world: World | None = None) -> VAETask:
    """What train_run trains."""
    data = data or images(settings.binarize)
    return VAETask(
        build(settings, SHAPE),
        data.train,
        data.validation,
        data.values,
        settings.schedules(),
        revive_until=settings.revive_until,
        world=world,
    )


class Hooked:
    """A task, with something done at the start of every step."""

    def __init__(self, task: VAETask, at_step: Callable[[int], object]) -> None:
        self.task, self.at_step = task, at_step

    def set_step(self, step: int) -> None:
        self.task.set_step(step)
        self.at_step(step)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)


class Watcher:
    """Progress that remembers all it was told."""

    def __init__(self) -> None:
        self.started: list[tuple[int, int]] = []
        self.steps: list[tuple[int, int, float]] = []
        self.epochs: list[dict[str, Any]] = []

    def start(self, steps: int, done: int) -> None:
        self.started.append((steps, done))

    def step(self, done: int, epoch: int, loss: float) -> None:
        self.steps.append((done, epoch, loss))

    def epoch(self, metrics: dict[str, Any]) -> None:
        self.epochs.append(metrics)


def new_folder(path: Path, settings: TrainSettings) -> RunFolder:
    """A run folder for these settings."""
    return RunFolder.create(path, asdict(settings))


def without_seconds(value: Any) -> Any:
    """Nested values without the entries that say how long something took, and tensors as lists of exact numbers."""
    if isinstance(value, dict):
        return {name: without_seconds(entry) for name, entry in value.items() if name != "seconds"}
    if isinstance(value, list):
        return [without_seconds(entry) for entry in value]
    if isinstance(value, Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    return value


def everything(folder: Path) -> dict[str, Any]:
    """All that a run holds, except how long it took."""
    from safetensors.torch import load_file

    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    state = read_state(folder / "state.pt")
    best = without_seconds(load_file(folder / "model.safetensors"))
    return {"state": without_seconds(state), "metrics": without_seconds(rows), "model": best}


def start(code: str, *arguments: object, launcher: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Run code in a Python of its own, on one thread, with this folder's helpers at hand."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, *launcher, *(() if launcher else ("-c",)), code, *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
