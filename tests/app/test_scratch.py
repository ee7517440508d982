"""Temporary folders: apart, kept while used, gone afterwards."""

import os
import time
from pathlib import Path

import pytest

from argrad.app.scratch import Scratch


def test_folders_are_apart_and_old_ones_are_removed() -> None:
    scratch = Scratch(keep=100)
    old, used, new = (scratch.folder() for _ in range(3))
    assert len({old, used, new}) == 3
    (old / "file").write_text("something")
    for folder in (old, used):
        os.utime(folder, (time.time() - 200,) * 2)
    Scratch.used(used)
    scratch.folder()
    assert not old.exists()
    assert used.exists()
    assert new.exists()
    with pytest.raises(ValueError, match="make it again"):
        Scratch.used(old)


def test_all_is_removed_with_it() -> None:
    scratch = Scratch()
    folder = scratch.folder()
    (folder / "file").write_text("something")
    place: Path = scratch.place
    del scratch
    assert not place.exists()
