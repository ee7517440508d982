"""Run parts of the long experiments side by side, each in a process of its own; see parts.py for what a part is.

python benchmarks/side_by_side.py 4 IMAGES OUT figure3:trials:0 figure3:0 table2:mnist:best   # four at a time

Parts start in the order given, a part that builds on another when that has ended. OUT/logs has what each of them says,
OUT/progress.txt when each began and ended. Parts that are written are not run again, so a run that was cut off is gone
on with by the same command, once what it had begun has ended: parts are in sessions of their own, and Ctrl-C does not
stop them. Under NVIDIA's MPS, by which several processes share a GPU, one that is killed takes all others with it.
What measures time (figure2, figure6, figure3:steps, step-profile) has to run alone.
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

from parts import builds_on, file_of, parts_of

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
    """Run parts, so many at a time; returns those that failed."""
    (out / "logs").mkdir(parents=True, exist_ok=True)
    waiting = [name for name in dict.fromkeys(names) if not all(file_of(out, one).exists() for one in parts_of(name))]
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
            if len(running) < workers and not any(builds_on(name, other) for other in (*waiting, *running)):
                waiting.remove(name)
                running[name] = Running(start(images, out, name), time.monotonic())
                say(out, f"{name}: begun")
        time.sleep(PAUSE)
    return failed


def start(images: Path, out: Path, name: str) -> subprocess.Popen[bytes]:
    """A process for one part, of one thread."""
    with (out / "logs" / f"{file_of(out, name).stem}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, str(PARTS), "run", str(images), str(out), name],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
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
