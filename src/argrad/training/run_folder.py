"""A run: a folder that holds everything a training produced.

``config.json`` the settings; ``state.pt`` all that is needed to go on, bit for bit; ``metrics.jsonl`` one line per
epoch; ``model.safetensors`` the weights of the best epoch; ``report.html`` what a person reads. ``state.pt`` is the
truth: it is written first and in one piece, and the others are derived from it, so a crash between two files loses
nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import IO, Any, TypeVar, final

from torch import Tensor, nn

from argrad.training.files import (
    PARTIAL,
    BrokenFile,
    read_state,
    read_tensors,
    remove_partial_files,
    write_atomically,
    write_json,
    write_state,
    write_tensors,
)

__all__ = ["RunFolder", "settings_from_config"]

Settings = TypeVar("Settings")


@final
class RunFolder:
    """One run's folder. Make it with :meth:`create` or :meth:`open`."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self._lock: IO[bytes] | None = None

    @classmethod
    def create(cls, path: Path | str, config: Mapping[str, Any]) -> RunFolder:
        """A new run; refuses a folder that already holds something."""
        path = Path(path)
        if path.exists() and (not path.is_dir() or any(entry.suffix != PARTIAL for entry in path.iterdir())):
            if (path / "state.pt").exists() or (path / "config.json").exists():
                raise ValueError(
                    f"{path} already holds a run; go on with it by --resume {path}, or choose another folder"
                )
            raise ValueError(f"{path} exists and is not empty; choose another folder, so that nothing is written over")
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / "config.json", dict(config))
        return cls(path, dict(config))

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """An existing run."""
        path = Path(path)
        if not (path / "config.json").is_file():
            raise ValueError(f"{path} is not a run folder: it has no config.json; give the folder that training named")
        try:
            config = json.loads((path / "config.json").read_text())
        except ValueError as error:
            raise BrokenFile(
                f"{path / 'config.json'} is cut short or not JSON ({error}); restore it from a copy"
            ) from error
        if not isinstance(config, dict):
            raise BrokenFile(f"{path / 'config.json'} does not hold settings; restore it from a copy")
        return cls(path, config)

    def lock(self) -> None:
        """Keep other processes from training in this folder until :meth:`unlock` or the end of the process."""
        if self._lock is not None or os.name != "posix":
            return
        import fcntl

        self._lock = (self.path / ".lock").open("wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            self._lock = None
            raise ValueError(
                f"another process is training in {self.path}; wait for it or choose another folder"
            ) from error
        remove_partial_files(self.path)

    def unlock(self) -> None:
        """Let other processes in again."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for a while, unless it is held already."""
        held = self._lock is not None
        self.lock()
        try:
            yield
        finally:
            if not held:
                self.unlock()

    def has_state(self) -> bool:
        """Whether training got as far as its first checkpoint."""
        return (self.path / "state.pt").exists()

    def read_state(self) -> dict[str, Any]:
        """The last checkpoint; refuses one that is broken, or that belongs to other settings."""
        state = read_state(self.path / "state.pt")
        if as_text(self.config) not in (state.get("config"), state.get("config_before")):
            raise BrokenFile(
                f"{self.path / 'config.json'} was altered after training began; restore it from a copy, "
                "or train into a new folder"
            )
        return state

    def write(self, state: Mapping[str, Any], history: list[dict[str, Any]], best: Mapping[str, Tensor] | None) -> None:
        """Write a checkpoint; ``best`` is given when the best weights are new."""
        write_state(self.path / "state.pt", {**state, "config": as_text(self.config)})
        self.write_derived(history, best)

    def write_derived(self, history: list[dict[str, Any]], best: Mapping[str, Tensor] | None) -> None:
        """Write the files that repeat, for others to read, what is in the state."""
        lines = "".join(json.dumps(row) + "\n" for row in history)
        write_atomically(self.path / "metrics.jsonl", lines.encode())
        if best:
            write_tensors(self.path / "model.safetensors", best, {"format": "pt"})

    def read_weights(self) -> dict[str, Tensor]:
        """The weights of the best epoch."""
        weights = self.path / "model.safetensors"
        if not weights.exists():
            raise ValueError(f"{self.path} has no model yet: no epoch is complete; go on with --resume {self.path}")
        return read_tensors(weights)[0]

    def fill(self, module: nn.Module, tensors: Mapping[str, Tensor] | None = None, *, made_from: str = "") -> None:
        """Put the weights of the best epoch into a module that was built as config.json says.

        Args:
            module: to be filled.
            tensors: the weights, where they are read already.
            made_from: what its shapes depend on besides, for the message that they do not fit.
        """
        try:
            module.load_state_dict(self.read_weights() if tensors is None else tensors)
        except RuntimeError as error:
            first = str(error).splitlines()[-1].strip()
            weights, config = self.path / "model.safetensors", self.path / "config.json"
            raise BrokenFile(f"{weights} does not belong to {config}{made_from} ({first})") from error

    def change(self, **settings: Any) -> None:
        """Change settings of a run that is about to be resumed, in both files that hold them."""
        if all(self.config.get(name) == value for name, value in settings.items()):
            return
        config = {**self.config, **settings}
        if self.has_state():
            # A crash between the two writes does no harm: the state goes with either config.json.
            state = {**self.read_state(), "config": as_text(config), "config_before": as_text(self.config)}
            write_state(self.path / "state.pt", state)
        write_json(self.path / "config.json", config)
        self.config = config

    def read_metrics(self) -> list[dict[str, Any]]:
        """One dictionary per epoch."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        try:
            return [json.loads(line) for line in path.read_text().splitlines()]
        except ValueError as error:
            raise BrokenFile(
                f"{path} is cut short or altered ({error}); --resume {self.path} writes it again"
            ) from error


def settings_from_config(
    kind: type[Settings],
    config: Mapping[str, Any],
    where: Path,
    *,
    task: str | None = None,
    wanted: str = "",
    besides: Collection[str] = (),
) -> Settings:
    """The settings that a config.json holds; refuses other runs, and settings that this version does not know.

    Args:
        kind: a dataclass.
        config: what the file holds.
        where: the file, for messages.
        task: what its "task" must be, if it has one.
        wanted: the end of the message that it is another one: whose it is not, and what to give.
        besides: what it holds that is no setting.
    """
    if task is not None and config.get("task") != task:
        raise BrokenFile(f"{where} is not that of {wanted}")
    own = {name: value for name, value in config.items() if name not in besides and (task is None or name != "task")}
    unknown = sorted(set(own) - {field.name for field in fields(kind)})  # type: ignore[arg-type]
    if unknown:
        raise BrokenFile(f"{where} has settings that this version does not know: {', '.join(unknown)}")
    return kind(**own)


def as_text(config: Mapping[str, Any]) -> str:
    """Settings in one fixed form, to compare."""
    return json.dumps(config, sort_keys=True)
