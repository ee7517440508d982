"""Parts side by side: as many as asked for, in order, each after what it builds on."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
WRITES = "import pathlib, sys, time; time.sleep(0.05); pathlib.Path(sys.argv[1]).write_text('{}')"
FAILS = "raise SystemExit(3)"


@pytest.fixture
def side_by_side(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, whose parts are small programs of ours: those named after a fruit fail."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    specification = importlib.util.spec_from_file_location("side_by_side", ROOT / "benchmarks" / "side_by_side.py")
    assert specification is not None
    assert specification.loader is not None
    script = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "side_by_side", script)
    specification.loader.exec_module(script)

    def start(images: Path, out: Path, name: str) -> subprocess.Popen[bytes]:
        program = FAILS if name.endswith("trials:7") else WRITES
        return subprocess.Popen([sys.executable, "-c", program, str(script.file_of(out, name))])

    monkeypatch.setattr(script, "start", start)
    monkeypatch.setattr(script, "PAUSE", 0.01)
    return script


def events(out: Path) -> list[str]:
    return [line.split(" ", 1)[1].split(",")[0] for line in (out / "progress.txt").read_text().splitlines()]


def test_a_part_waits_for_what_it_builds_on(side_by_side: Any, tmp_path: Path) -> None:
    names = ["figure3:2", "figure3:trials:2", "table2:mnist:best"]
    assert side_by_side.run_side_by_side(3, tmp_path, tmp_path / "out", names) == []
    found = events(tmp_path / "out")
    assert found.index("figure3:trials:2: done") < found.index("figure3:2: begun")
    assert found.index("table2:mnist:best: begun") < found.index("figure3:trials:2: done")
    assert all(side_by_side.file_of(tmp_path / "out", name).exists() for name in names)


def test_no_more_run_at_a_time_than_asked_for_and_none_twice(side_by_side: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    side_by_side.file_of(out, "figure2").write_text("{}")
    names = ["figure2", *(f"hashing:{number}" for number in range(5)), "hashing:0"]
    assert side_by_side.run_side_by_side(2, tmp_path, out, names) == []
    running, most = set(), 0
    for line in events(out):
        name, _, what = line.rpartition(": ")
        running = running | {name} if what == "begun" else running - {name}
        most = max(most, len(running))
    assert most == 2
    assert sum(line.endswith("begun") for line in events(out)) == 5


def test_what_waits_for_a_part_that_fails_is_named(side_by_side: Any, tmp_path: Path) -> None:
    names = ["figure3:trials:7", "figure3:7", "figure3:9", "figure6"]
    failed = side_by_side.run_side_by_side(1, tmp_path, tmp_path / "out", names)
    assert sorted(failed) == ["figure3:7", "figure3:9", "figure3:trials:7"]  # 9's trials were never asked for
    assert "figure6: done" in events(tmp_path / "out")


def test_help_for_wrong_words(side_by_side: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert side_by_side.main(["many", "images", "out", "figure6"]) == 2
    assert "four at a time" in capsys.readouterr().err
