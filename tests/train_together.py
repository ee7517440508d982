"""A script for torchrun: train the tiny model among processes, and keep what every one of them saw.

It reads a list of jobs from a JSON file: settings, and perhaps where to put each process's record, whether to compute
in double precision, a run folder, and how long to sleep in every step.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tiny_training as tiny
from argrad.models.discrete_vae.task import VAETask
from argrad.training import Interrupted, RunFolder, World, files, train


class Recorder(tiny.Hooked):
    """A task that remembers the loss of every step, and the gradients before every step."""

    def __init__(self, task: Any, seconds: float) -> None:
        super().__init__(task, self.remember_gradients)
        self.seconds = seconds
        self.gradients: list[dict[str, Tensor]] = []
        self.step_losses: list[float] = []

    def remember_gradients(self, step: int) -> None:
        if self.seconds:
            print(f"step {step}", flush=True)
            time.sleep(self.seconds)
        named = self.task.module.named_parameters()
        gradients = {name: parameter.grad.clone() for name, parameter in named if parameter.grad is not None}
        if gradients:
            self.gradients.append(gradients)

    def losses(self, batch: Tensor, generator: torch.Generator, world: World) -> Tensor:
        losses = self.task.losses(batch, generator, world)
        self.step_losses.append(float(world.sum(losses.detach().double().sum())) / len(batch))
        return losses


def double(task: VAETask) -> None:
    """Compute in double precision."""
    values = task.values
    task.module.double()
    task.values = lambda stored, generator: values(stored, generator).double()


def run(job: dict[str, Any], world: World) -> dict[str, Any]:
    """Train, and return what this process saw."""
    settings = tiny.TrainSettings(**job["settings"])
    task = Recorder(tiny.make_task(settings, world=world), job.get("seconds", 0.0))
    if job.get("double"):
        double(task.task)
    folder = RunFolder.open(job["folder"]) if job.get("folder") else None
    stopped = None
    try:
        train(task, settings.loop(), folder=folder, world=world)  # type: ignore[arg-type]
    except Interrupted as error:
        stopped = str(error)
    return {
        "gradients": task.gradients,
        "losses": task.step_losses,
        "module": task.task.module.state_dict(),
        "estimator": task.task.module.estimator.state_dict(),
        "stopped": stopped,
    }


def main(jobs: list[dict[str, Any]]) -> None:
    """Do the jobs one after the other, and leave cleanly."""
    torch.set_num_threads(1)
    world = World.join(torch.device("cpu"))
    if not world.leads:

        def refuse(path: Path, contents: bytes) -> None:
            raise AssertionError(f"only the leader writes, not {path}")

        files.write_atomically = refuse
    for job in jobs:
        record = run(job, world)
        if job.get("record"):
            torch.save(record, f"{job['record']}.{world.rank}")
        del record
    gc.collect()
    world.leave()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
