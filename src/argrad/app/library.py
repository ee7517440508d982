"""The runs that the app shows: found in folders, told apart by kind, loaded once and shared by all visitors."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, final

__all__ = ["KINDS", "Kind", "Library", "Run"]

Kind = Literal["vae", "classify", "attributes", "tokenize", "complete", "write", "segment"]
KINDS: dict[Kind, str] = {
    "vae": "discrete VAE",
    "classify": "classifier from a few labels",
    "attributes": "images with attributes",
    "tokenize": "image tokenizer",
    "complete": "image completion",
    "write": "sequences of symbols",
    "segment": "segmentation of scans",
}
"""What the app knows, and how it calls it."""

DEPTH = 3
"""How many folders deep runs are looked for: runs/demo-DATE/direct is two below the usual folder."""
KEPT = 6
"""How many loaded models are kept in memory."""
PAGES_KEPT = 64
"""How many pieces of a page, such as drawings, are kept in memory."""

Loaded = TypeVar("Loaded")


@final
@dataclass(frozen=True)
class Run:
    """One run folder.

    Args:
        name: what a visitor calls it, unique in the library: the path below the folder in which it was found.
        path: of the folder.
        kind: what was trained.
        config: its settings.
        finished: whether there are weights to look at.
    """

    name: str
    path: Path
    kind: Kind
    config: dict[str, Any]
    finished: bool

    @property
    def report(self) -> Path | None:
        """The page about it, where there is one."""
        page = self.path / "report.html"
        return page if page.is_file() else None


@final
class Library:
    """The runs below some folders. New ones are found whenever somebody asks.

    Args:
        places: run folders, or folders that hold some.
    """

    def __init__(self, places: Sequence[Path | str]) -> None:
        self.places = [Path(place).expanduser().resolve() for place in places]
        self._loaded: OrderedDict[tuple[Path, int, str], Any] = OrderedDict()
        self._lock = threading.Lock()
        self._made: OrderedDict[tuple[Any, ...], str] = OrderedDict()

    def runs(self, *kinds: Kind) -> list[Run]:
        """All runs with weights, or those of some kinds, the newest first."""
        found: dict[str, tuple[float, Run]] = {}
        for place in self.places:
            for path in run_folders(place, DEPTH):
                run = read_run(path, place)
                if run is None or not run.finished or (kinds and run.kind not in kinds):
                    continue
                name = run.name
                while name in found and found[name][1].path != path:
                    name += "′"  # the same name below another place
                found[name] = (path.joinpath("model.safetensors").stat().st_mtime, Run(name, path, *fields_after(run)))
        return [run for _, run in sorted(found.values(), key=lambda pair: (-pair[0], pair[1].name))]

    def names(self, *kinds: Kind) -> list[str]:
        """What the runs are called, the newest first."""
        return [run.name for run in self.runs(*kinds)]

    def find(self, name: str | None, *kinds: Kind) -> Run:
        """The run of that name; an error that can be shown where it is gone, or of another kind."""
        if not name:
            raise ValueError("choose a run first")
        for run in self.runs(*kinds):
            if run.name == name:
                return run
        raise ValueError(f"there is no run {name!r} any more; reload the page to see which there are")

    def load(self, run: Run, loader: Callable[[Path], Loaded]) -> Loaded:
        """What the loader makes of a run's folder, kept for the next visitor until the run's weights change.

        Loaders run one at a time: two visitors who open the same run load it once.
        """
        key = (run.path, run.path.joinpath("model.safetensors").stat().st_mtime_ns, loader.__qualname__)
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = loader(run.path)
                while len(self._loaded) > KEPT:
                    self._loaded.popitem(last=False)
            self._loaded.move_to_end(key)
            loaded: Loaded = self._loaded[key]
            return loaded

    def once(self, what: str, runs: Sequence[Run], make: Callable[[], str]) -> str:
        """A piece of a page about some runs, made once and shown to all until the files of a run change.

        Two visitors who ask at the same moment may both make it; nobody waits.
        """
        key = (what, *((run.name, run.path, last_change(run)) for run in runs))
        found = self._made.get(key)
        if found is None:
            found = make()
            with self._lock:
                self._made[key] = found
                while len(self._made) > PAGES_KEPT:
                    self._made.popitem(last=False)
        return found


def last_change(run: Run) -> int:
    """When a run was last written to, in nanoseconds; folders tell when files in them are replaced."""
    return max(path.stat().st_mtime_ns for path in (run.path, run.path / "model.safetensors"))


def fields_after(run: Run) -> tuple[Kind, dict[str, Any], bool]:
    """All fields but name and path."""
    return run.kind, run.config, run.finished


def run_folders(place: Path, depth: int) -> list[Path]:
    """Folders with a config.json at or below a place; what is inside a run, such as its first stage, is part of it."""
    if (place / "config.json").is_file():
        return [place]
    if depth == 0 or not place.is_dir():
        return []
    below = sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [found for path in below for found in run_folders(path, depth - 1)]


def read_run(path: Path, place: Path) -> Run | None:
    """The run in a folder; None where it is none of ours, or broken: one bad folder must not hide the others."""
    try:
        config = json.loads((path / "config.json").read_text())
    except (OSError, ValueError):
        return None
    kind = kind_of(config)
    if kind is None:
        return None
    name = path.name if path == place else path.relative_to(place).as_posix()
    return Run(name, path, kind, config, (path / "model.safetensors").is_file())


def kind_of(config: Any) -> Kind | None:
    """What was trained with these settings."""
    if not isinstance(config, dict):
        return None
    if config.get("kind") == "anatomical segmentation":
        return "segment"
    task = config.get("task", "vae" if "latent" in config and "estimator" in config else None)
    return task if task in KINDS else None
