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
    """The script, whose parts are small programs of ours; figure3:trials:7 fails."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "parts", None)  # put back afterwards, whatever the script imports
    monkeypatch.delitem(sys.modules, "parts")
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


def test_figures_wait_for_the_table_that_they_read(side_by_side: Any, tmp_path: Path) -> None:
    names = ["figure6", "table1:mnist:table", "table1:omniglot", "hashing:1"]
    assert side_by_side.run_side_by_side(4, tmp_path, tmp_path / "out", names) == []
    found = events(tmp_path / "out")
    assert found.index("figure6: begun") > max(found.index(f"{name}: done") for name in names[1:3])


def test_what_fails_is_named_and_the_others_go_on(side_by_side: Any, tmp_path: Path) -> None:
    names = ["figure3:trials:7", "hashing:1"]
    assert side_by_side.run_side_by_side(1, tmp_path, tmp_path / "out", names) == ["figure3:trials:7"]
    assert events(tmp_path / "out")[-1] == "hashing:1: done"


def test_a_part_says_in_its_log_why_it_failed(tmp_path: Path) -> None:
    """The script as it is: a part that does not exist."""
    script = [sys.executable, str(ROOT / "benchmarks" / "side_by_side.py")]
    found = subprocess.run([*script, "1", str(tmp_path), str(tmp_path / "out"), "figure99"], capture_output=True)
    assert found.returncode == 1
    assert b"figure99: FAILED" in found.stdout
    assert "python benchmarks/parts.py run" in (tmp_path / "out" / "logs" / "figure99.log").read_text()


def test_help_for_wrong_words(side_by_side: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert side_by_side.main(["many", "images", "out", "figure6"]) == 2
    assert "four at a time" in capsys.readouterr().err
