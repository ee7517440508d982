"""kill -9 at random moments: every time the run resumes, and in the end it is the run that was never killed."""

import random
import signal
import time
from pathlib import Path

import pytest
import torch

import tiny_training as tiny
from argrad.models.discrete_vae.run import train_run
from argrad.training import RunFolder

pytestmark = pytest.mark.slow

KILLS = 20
DRIVER = """
import sys, time
print("started", flush=True)
from dataclasses import asdict
from pathlib import Path
import tiny_training as tiny
from argrad.models.discrete_vae.run import train_run
from argrad.training import RunFolder

path = Path(sys.argv[1])
settings = tiny.settings(**eval(sys.argv[2]))

class Slow(tiny.Watcher):
    def start(self, steps, done):
        print("training", flush=True)

    def step(self, done, epoch, loss):
        time.sleep(float(sys.argv[3]))

from argrad.training import loop
loop.REPORT_SECONDS = -1.0  # progress hears of every step
folder = RunFolder.open(path) if (path / "config.json").exists() else RunFolder.create(path, asdict(settings))
train_run(settings, folder, images=tiny.images(settings.binarize, train=210), progress=Slow())
print("finished", flush=True)
"""


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def wait_for(line: str, process) -> None:
    while process.stdout.readline() != f"{line}\n":
        assert process.poll() is None, process.communicate()


def kill(process) -> bool:
    """Whether it was still running."""
    process.kill()
    _, errors = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors
    return process.returncode != 0


@pytest.mark.parametrize(
    ("seconds", "changes"),
    [
        (0.0, {"estimator": "direct", "epsilon": "auto", "binarize": "stochastic"}),
        (0.1, {"estimator": "relax", "values": 6, "revive_until": 2}),
    ],
    ids=["saves-after-every-step", "saves-now-and-then"],
)
def test_killed_at_20_random_moments(tmp_path: Path, seconds: float, changes: dict):
    changes = {**changes, "epochs": 12, "checkpoint_seconds": seconds}
    settings = tiny.settings(**changes)
    images = tiny.images(settings.binarize, train=210)
    train_run(settings, tiny.new_folder(tmp_path / "whole", settings), images=images)
    expected = tiny.everything(tmp_path / "whole")
    steps = expected["state"]["at"]["step"]
    assert steps == 12 * 27

    path = tmp_path / "run"
    draw = random.Random(20190526)
    reached, leftovers = [], 0
    for number in range(KILLS):
        # Steps are slowed down so that 20 short sittings do not reach the end.
        process = tiny.start(DRIVER, path, repr(changes), 0.02)
        wait_for("started", process)
        if number % 5 == 4:  # anywhere in the start: importing, opening the folder, reading the checkpoint
            time.sleep(draw.uniform(0, 4.0))
        else:
            wait_for("training", process)
            time.sleep(draw.uniform(0, 0.6))
        assert kill(process), f"the run ended before kill {number + 1}"
        leftovers += len(list(path.glob(".*.partial"))) if path.exists() else 0
        state = path / "state.pt"
        reached.append(RunFolder.open(path).read_state()["at"]["step"] if state.exists() else 0)
    assert reached == sorted(reached)
    assert len(set(reached)) > KILLS // 2, reached
    assert reached[-1] < steps
    print(f"steps after each kill: {reached}; writes that were cut off: {leftovers}")

    process = tiny.start(DRIVER, path, repr(changes), 0)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "finished" in output
    assert tiny.everything(path) == expected
    assert not list(path.glob(".*.partial"))
