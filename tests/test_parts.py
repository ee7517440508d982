"""Experiments run in parts give what they give in one piece."""

import importlib.util
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from argrad.experiments import figure2, table1

ROOT = Path(__file__).resolve().parent.parent


def load_parts() -> Any:
    specification = importlib.util.spec_from_file_location("parts", ROOT / "benchmarks" / "parts.py")
    assert specification is not None
    assert specification.loader is not None
    parts = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(parts)
    return parts


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, with settings that take a second."""
    parts = load_parts()
    small = {"epochs": 2, "restarts": 1, "restart_epochs": 1, "em_restarts": 1, "em_iterations": 2}
    monkeypatch.setattr(table1, "Table1", partial(table1.Table1, values=(10,), seeds=(0, 1), batch_size=20, **small))
    monkeypatch.setattr(figure2, "Figure2", partial(figure2.Figure2, rounds=1, batch_size=20))
    monkeypatch.setattr(parts, "DATASETS", ("mnist",))
    return parts


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Pictures of 16 pixels."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"train": 60, "validation": 20, "test": 20}
    bits = {part: torch.randint(2, (size, 16), generator=generator) for part, size in sizes.items()}
    path = tmp_path / "images.npz"
    np.savez(
        path, **{f"mnist/{part}": np.packbits(found.numpy().astype(np.uint8), axis=1) for part, found in bits.items()}
    )
    return path


def test_parts_make_the_result(parts: Any, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "COMMIT").write_text("abcdef0")
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    assert parts.main(["run", str(packed), str(tmp_path / "out"), "table1:mnist", "figure2"]) == 0
    assert parts.main(["assemble", str(tmp_path / "out")]) == 0
    table = json.loads((tmp_path / "results/table1.json").read_text())
    whole = table1.run_dataset("mnist", *parts.Machine(packed, tmp_path).images("mnist"), table1.Table1())
    expected, _ = table1.summarise(whole["rows"])
    assert [row["method"] for row in table["rows"]] == [row["method"] for row in expected]
    exact = [row for row in expected if row["method"] == "exact"]
    assert [row for row in table["rows"] if row["method"] == "exact"] == exact
    assert table["commit"] == "abcdef0"
    figure = json.loads((tmp_path / "results/figure2.json").read_text())
    assert "--table1 results/table1.json" in figure["command"]
    assert {curve["method"] for curve in figure["curves"]} >= {"exact", "direct"}


def test_a_part_is_not_run_again(parts: Any, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setitem(parts.RUN, "table1", lambda machine, dataset: calls.append(dataset))
    for _ in range(2):
        parts.run(packed, tmp_path, ["table1:mnist"])
    assert calls == ["mnist"]


def test_unknown_parts_are_told(parts: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert parts.main(["run", "a", "b", "table9"]) == 2
    assert "python benchmarks/parts.py run" in capsys.readouterr().err
