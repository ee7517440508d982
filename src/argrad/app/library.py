"""The runs that the app shows: found in folders, told apart by kind, loaded once and shared by all visitors."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    """

    name: str
    path: Path
    kind: Kind
    config: dict[str, Any]

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
        self._seen: dict[str, Run] = {}
        """The runs of the last scan, by name."""
        self._loaded: OrderedDict[tuple[Path, float, str], Any] = OrderedDict()
        self._loading = threading.Lock()
        """Held while a model is loaded; whoever wants one that is there already does not wait for it."""
        self._lock = threading.Lock()
        self._made: OrderedDict[tuple[Any, ...], str] = OrderedDict()

    def runs(self, *kinds: Kind) -> list[Run]:
        """All runs with weights, or those of some kinds, the newest first."""
        return [run for run in self._scan() if not kinds or run.kind in kinds]

    def _scan(self) -> list[Run]:
        found: dict[str, tuple[float, Run]] = {}
        for place in self.places:
            for path in run_folders(place, DEPTH):
                run, written = read_run(path, place), when_written(path)
                if run is None or written is None:
                    continue
                name = run.name
                while name in found and found[name][1].path != path:
                    name += "′"  # the same name below another place
                found[name] = (written, replace(run, name=name))
        self._seen = {name: run for name, (_, run) in found.items()}
        return [run for _, run in sorted(found.values(), key=lambda pair: (-pair[0], pair[1].name))]

    def names(self, *kinds: Kind) -> list[str]:
        """What the runs are called, the newest first."""
        return [run.name for run in self.runs(*kinds)]

    def find(self, name: str | None, *kinds: Kind) -> Run:
        """The run of that name; an error that can be shown where it is gone, or of another kind."""
        if not name:
            raise ValueError("choose a run first")
        run = self._seen.get(name)
        if run is None or when_written(run.path) is None:
            self._scan()
            run = self._seen.get(name)
        if run is not None and (not kinds or run.kind in kinds):
            return run
        raise ValueError(f"there is no run {name!r} any more; reload the page to see which there are")

    def place_for_new_run(self) -> Path:
        """The first place that may hold a new run; an error that can be shown where each is a run itself."""
        for place in self.places:
            if not (place / "config.json").exists():
                return place
        raise ValueError(
            "the app was started with single runs, so there is no folder for a new one; start it with a folder of runs"
        )

    def load(self, run: Run, loader: Callable[[Path], Loaded]) -> Loaded:
        """What the loader makes of a run's folder, kept for the next visitor until the run's weights change.

        Loaders run one at a time: two visitors who open the same run load it once.
        """
        written = when_written(run.path)
        if written is None:
            raise ValueError(f"the weights of {run.name} are gone; reload the page to see which runs there are")
        key = (run.path, written, loader.__qualname__)
        kept = self._look_up(key)
        if kept is None:
            with self._loading:
                kept = self._look_up(key)
                if kept is None:
                    kept = loader(run.path)
                    with self._lock:
                        self._loaded[key] = kept
                        while len(self._loaded) > KEPT:
                            self._loaded.popitem(last=False)
        loaded: Loaded = kept
        return loaded

    def _look_up(self, key: tuple[Path, float, str]) -> Any:
        with self._lock:
            if key in self._loaded:
                self._loaded.move_to_end(key)
            return self._loaded.get(key)

    def once(self, what: str, runs: Sequence[Run], make: Callable[[], str]) -> str:
        """A piece of a page about some runs, made once and shown to all until the files of a run change.

        Two visitors who ask at the same moment may both make it; nobody waits.
        """
        files = ("model.safetensors", "metrics.jsonl")
        key = (what, *((run.name, run.path, *(when_written(run.path, file) for file in files)) for run in runs))
        found = self._made.get(key)
        if found is None:
            found = make()
            with self._lock:
                self._made[key] = found
                while len(self._made) > PAGES_KEPT:
                    self._made.popitem(last=False)
        return found


def when_written(path: Path, file: str = "model.safetensors") -> float | None:
    """When the weights in a run folder, or another file, were written; None where there are none, or not any more."""
    try:
        return path.joinpath(file).stat().st_mtime
    except OSError:
        return None


def run_folders(place: Path, depth: int) -> list[Path]:
    """Folders with a config.json at or below a place; what is inside a run, such as its first stage, is part of it."""
    if (place / "config.json").is_file():
        return [place]
    if depth == 0 or not place.is_dir():
        return []
    try:
        below = sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:  # not ours to look into
        return []
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
    return Run(name, path, kind, config)


def kind_of(config: Any) -> Kind | None:
    """What was trained with these settings."""
    if not isinstance(config, dict):
        return None
    if config.get("kind") == "anatomical segmentation":
        return "segment"
    task = config.get("task", "vae" if "latent" in config and "estimator" in config else None)
    return task if isinstance(task, str) and task in KINDS else None
