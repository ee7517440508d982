"""Many visitors at once: `argrad app` on this machine, each clicking, waiting for the answer, and clicking again.

python benchmarks/app_load.py RUNS                        # 20 visitors for a minute; prints one line of JSON
python benchmarks/app_load.py RUNS --visitors 5 --seconds 10

A click is an event of the tabs Explore and Compare, or two in a row, sent as the page sends them: to the queue, the
answer as a stream. What the browser does before and after is not in the times, nor is the grid over two latents, which
the page asks for after it has shown the image. Memory is that of the server's process, after the first
quarter of the time, when every visitor has opened what he opens, and at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from argrad.experiments.provenance import provenance

os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # of the client
PAUSE = (0.3, 1.0)
"""Seconds between an answer and the next click, from … to."""


@dataclass
class Notes:
    """What the visitors saw; a visitor adds his own at the end."""

    seconds: list[tuple[str, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    finished: int = 0


def visit(address: str, runs: list[str], until: float, seed: int, notes: Notes) -> None:
    """One visitor: opens a run, draws codes, looks at grids, compares runs."""
    from gradio_client import Client

    chance = random.Random(seed)
    seconds: list[tuple[str, float]] = []

    def click(what: str, *events: tuple[str, Any]) -> None:
        """Events that follow from one click, one after the other."""
        began = time.perf_counter()
        for event, arguments in events:
            client.predict(*arguments, api_name=event)
        seconds.append((what, time.perf_counter() - began))
        time.sleep(chance.uniform(*PAUSE))

    try:
        client = Client(address, verbose=False, download_files=False)
        for event in client.view_api(print_info=False, return_format="dict")["named_endpoints"]:
            if event.startswith("/refresh"):  # what the page asks for when it opens: which runs there are
                client.predict(None, api_name=event)
        run = chance.choice(runs)
        click("open a run", ("/open_run", [run]))
        while time.monotonic() < until:
            what = chance.random()
            if what < 0.6:
                click("draw a code anew", ("/redraw", [run, chance.randrange(10_000), None]))
            elif what < 0.8:
                click("compare three runs", ("/show", [runs[:3]]), ("/show_cards", [runs[:3]]))
            else:
                run = chance.choice(runs)
                click("open a run", ("/open_run", [run]))
        notes.finished += 1
    except Exception as error:  # a visitor who gets an error leaves
        notes.errors.append(f"visitor {seed}: {error!r}")
    finally:
        notes.seconds.extend(seconds)


def memory(process: int) -> float:
    """Resident memory of a process in MiB."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {process} has no memory to speak of")


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Of answer times."""
    middle, slow, slowest = np.percentile(seconds, [50, 95, 100])
    return {"median": round(middle, 3), "p95": round(slow, 3), "slowest": round(slowest, 3)}


def measure(places: list[Path], visitors: int, duration: float) -> dict[str, Any]:
    """Serve, let them click, add up."""
    from argrad.app.library import Library

    names = [run.name for run in Library(places).runs("vae")]
    if not names:
        raise ValueError(f"there is no discrete VAE in {', '.join(map(str, places))}; `argrad demo` trains three")
    command = [sys.executable, "-m", "argrad", "app", *map(str, places), "--port", "0", "--json"]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            address = json.loads(server.stdout.readline())["address"]
            start = time.perf_counter() - began
            notes, until = Notes(), time.monotonic() + duration
            threads = [
                threading.Thread(target=visit, args=(address, names, until, seed, notes)) for seed in range(visitors)
            ]
            for thread in threads:
                thread.start()
            time.sleep(duration / 4)
            early = memory(server.pid)
            for thread in threads:
                thread.join()
            late = memory(server.pid)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(20)
    by_event = {event: [took for name, took in notes.seconds if name == event] for event, _ in notes.seconds}
    return {
        **provenance(f"python benchmarks/app_load.py RUNS --visitors {visitors} --seconds {duration:g}"),
        "visitors": visitors,
        "finished": notes.finished,
        "clicks": len(notes.seconds),
        "errors": notes.errors,
        "start_seconds": round(start, 2),
        "answer_seconds": {
            "all": percentiles([took for _, took in notes.seconds]),
            **{event: percentiles(took) for event, took in sorted(by_event.items())},
        },
        "memory_mib": {"after a quarter": round(early), "at the end": round(late)},
    }


def markdown(result: dict[str, Any]) -> str:
    """For the documentation."""
    times, memory_used = result["answer_seconds"], result["memory_mib"]
    early, late = memory_used["after a quarter"], memory_used["at the end"]
    lines = [
        f"{result['visitors']} visitors, {result['clicks']} clicks, {len(result['errors']) or 'no'} errors. "
        f"The page could be opened {result['start_seconds']:.1f} s after the command. "
        f"Memory: {early} MiB after a quarter of the time, {late} MiB at the end. "
        "Visitors and server share the machine. The grid over two latents is not in the times.",
        "",
        "| Seconds to an answer | median | 95 % within | slowest |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {event} | {took['median']:.2f} | {took['p95']:.2f} | {took['slowest']:.2f} |"
        for event, took in times.items()
    ]
    return "\n".join(lines)


def main() -> int:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", help="run folders, or folders that hold some")
    parser.add_argument("--visitors", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    result = measure(arguments.runs, arguments.visitors, arguments.seconds)
    print(json.dumps(result))
    return 0 if result["finished"] == result["visitors"] else 1


if __name__ == "__main__":
    sys.exit(main())
