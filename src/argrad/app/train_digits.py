"""Train the digits model from the page: a process of its own, which writes a new run folder and its report.

A process rather than a thread: training seeds PyTorch's global generator and keeps Python busy, and other visitors
should notice neither.
"""

from __future__ import annotations

import datetime
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["EPOCHS", "train_digits"]

EPOCHS = 150
"""As in `argrad demo`."""
POLL_SECONDS = 0.2
"""How often progress is looked for."""


def new_folder(place: Path, name: str) -> Path:
    """A new empty folder; who asks at the same moment gets another one."""
    place.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        path = place / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise ValueError(f"{place} holds a thousand runs of the same second; remove some")


def train_digits(place: Path, *, epochs: int = EPOCHS, told: Callable[[int, int], object] | None = None) -> Path:
    """Train a discrete VAE with one of ten codes on the digits that ship with scikit-learn.

    Args:
        place: where the run folder is made.
        epochs: passes over the data.
        told: is told how many epochs are done, and of how many.

    Returns:
        the run folder, complete with its report.
    """
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = new_folder(place, f"digits-{now}")
    command = [sys.executable, "-m", "argrad", "train", "--data", "digits", "--epochs", str(epochs)]
    command += ["--run-folder", str(folder), "--device", "cpu", "--threads", "1", "--json"]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said)
        try:
            while process.poll() is None:
                if told is not None:
                    told(epochs_done(folder), epochs)
                time.sleep(POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if process.returncode != 0:
            said.seek(0)
            shutil.rmtree(folder, ignore_errors=True)
            lines = said.read().decode(errors="replace").strip().splitlines() or ["it ended without a word"]
            raise ValueError(f"training stopped: {lines[-1]}")
    return folder


def epochs_done(folder: Path) -> int:
    """How many epochs a run has recorded."""
    try:
        return len((folder / "metrics.jsonl").read_text().splitlines())
    except OSError:
        return 0
