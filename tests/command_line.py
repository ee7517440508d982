"""The command `argrad` in a fresh process that has torch already: it is forked from one that did nothing but import."""

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["argrad.cli", "argrad.models.discrete_vae.report", "matplotlib.figure", "scipy.optimize", "sklearn.datasets"]
)


def run_argrad(arguments: list[str], folder: Path, seconds: float) -> tuple[int | None, str]:
    """Run `argrad` with these arguments in a folder; gives its exit code (None: it took too long) and what it said."""
    with tempfile.TemporaryDirectory() as beside:
        said = Path(beside, "said")
        said.touch()
        child = PROCESSES.Process(target=be_argrad, args=(arguments, str(folder), str(said)))
        child.start()
        child.join(seconds)
        code = child.exitcode
        if code is None:
            child.kill()
            child.join()
        child.close()
        return code, said.read_text(encoding="utf-8", errors="replace")


def be_argrad(arguments: list[str], folder: str, said: str) -> None:
    """What the child does."""
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream in (1, 2):
        os.dup2(os.open(said, os.O_WRONLY | os.O_APPEND), stream)
    from argrad.cli import main

    sys.exit(main(arguments))
