"""What every command shares: where its words go, and its settings as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

__all__ = ["Out", "settings_of", "use_threads"]


class Out:
    """Where a command's words go: results to standard output, or with ``--json`` one line of JSON in their place."""

    def __init__(self, *, json_only: bool) -> None:
        self.json_only = json_only
        self.live = sys.stderr.isatty()

    def say(self, text: str) -> None:
        """A line about what is going on."""
        self.clear()
        print(text, file=sys.stderr, flush=True)

    def progress(self, text: str) -> None:
        """A passing line: shown on a terminal only, each in place of the one before."""
        if self.live:
            print(f"\r\033[K{text[:100]}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the passing line."""
        if self.live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def result(self, text: str) -> None:
        """What the user asked for."""
        self.clear()
        print(text, file=sys.stderr if self.json_only else sys.stdout, flush=True)

    def machine(self, value: Any) -> None:
        """The one line of JSON, last."""
        if self.json_only:
            print(json.dumps(value, ensure_ascii=False, allow_nan=False, default=str), flush=True)


def use_threads(threads: int) -> None:
    """Problems this small gain nothing from threads, and lose much on a busy machine."""
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    import torch

    torch.set_num_threads(threads)


def settings_of(command: Any) -> dict[str, Any]:
    """The fields of a command as JSON has them."""
    assert is_dataclass(command)
    assert not isinstance(command, type)
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(command).items()}
