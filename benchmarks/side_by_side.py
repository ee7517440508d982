"""Run parts of the long experiments side by side, each in a process of its own; see parts.py for what a part is.

python benchmarks/side_by_side.py 4 IMAGES OUT figure3:trials:0 figure3:0 table2:mnist:best   # four at a time

Parts start in the order given, a part that builds on another when that is written. OUT/logs has what each of them says,
OUT/progress.txt when each began and ended. Parts that are written are not run again, so a run that was cut off is gone
on with by the same command. Small models leave a GPU idle between their kernels: under NVIDIA's MPS several share it.
Nothing here ever stops a part that runs: under MPS a process that is killed takes all others with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import final

sys.path.insert(0, str(Path(__file__).resolve().parent))

from parts import file_of, needs

PARTS = Path(__file__).resolve().parent / "parts.py"
PAUSE = 0.5
"""Seconds between two looks at what runs."""


@final
@dataclass
class Running:
    """A part that runs."""

    process: subprocess.Popen[bytes]
    began: float


def run_side_by_side(workers: int, images: Path, out: Path, names: Iterable[str]) -> list[str]:
    """Run parts, so many at a time; returns those that failed, or that waited for one that did."""
    (out / "logs").mkdir(parents=True, exist_ok=True)
    waiting = [name for name in dict.fromkeys(names) if not file_of(out, name).exists()]
    running: dict[str, Running] = {}
    failed: list[str] = []
    while waiting or running:
        for name, part in list(running.items()):
            code = part.process.poll()
            if code is not None:
                del running[name]
                if code:
                    failed.append(name)
                say(out, f"{name}: {'FAILED' if code else 'done'}, {time.monotonic() - part.began:.0f} s")
        for name in list(waiting):
            missing = [other for other in needs(name) if other in running or not file_of(out, other).exists()]
            if any(other not in waiting and other not in running for other in missing):
                waiting.remove(name)
                failed.append(name)
                say(out, f"{name}: not run, since {', '.join(missing)} is missing")
            elif not missing and len(running) < workers:
                waiting.remove(name)
                running[name] = Running(start(images, out, name), time.monotonic())
                say(out, f"{name}: begun")
        time.sleep(PAUSE)
    return failed


def start(images: Path, out: Path, name: str) -> subprocess.Popen[bytes]:
    """A process for one part, on one core of the processor."""
    with (out / "logs" / f"{file_of(out, name).stem}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, str(PARTS), "run", str(images), str(out), name],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )


def say(out: Path, line: str) -> None:
    """A line for whoever watches, here or in the file."""
    print(line, flush=True)
    with (out / "progress.txt").open("a") as file:
        file.write(f"{time.strftime('%H:%M:%S')} {line}\n")


def main(words: list[str]) -> int:
    """Read the command."""
    if len(words) < 4 or not words[0].isdigit() or words[0] == "0":
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    return int(bool(run_side_by_side(int(words[0]), Path(words[1]), Path(words[2]), words[3:])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
