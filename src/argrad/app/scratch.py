"""Temporary folders for what visitors make, each apart from the others; removed when they are old, all when it ends."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path
from typing import final

__all__ = ["Scratch"]

KEEP_SECONDS = 3600.0
"""After which a folder that nobody looked into is removed."""


@final
class Scratch:
    """A place for temporary folders.

    Args:
        keep: seconds for which a folder is kept after it was last used.
    """

    def __init__(self, keep: float = KEEP_SECONDS) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="argrad-app-"))
        self.keep = keep
        weakref.finalize(self, shutil.rmtree, self.place, ignore_errors=True)  # also when the interpreter ends

    def folder(self) -> Path:
        """A new, empty folder. Those that are too old are removed first."""
        now = time.time()
        for path in self.place.iterdir():
            try:
                if now - path.stat().st_mtime > self.keep:
                    shutil.rmtree(path, ignore_errors=True)
            except FileNotFoundError:  # another visitor's request removed it
                continue
        return Path(tempfile.mkdtemp(dir=self.place))

    @staticmethod
    def used(folder: Path) -> None:
        """Keep a folder for longer, because somebody looks into it; an error that can be shown where it is gone."""
        try:
            os.utime(folder)
        except FileNotFoundError:
            raise ValueError("this result is too old and was removed; make it again") from None

    @staticmethod
    def remove(folder: Path | None) -> None:
        """Remove a folder that is not needed any more."""
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
