"""Experiments run in parts give what they give in one piece."""

import importlib
import importlib.util
import json
import lzma
from collections.abc import Iterable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import argrad.data
from argrad.experiments import figure2, hashing_training, table1, table2
from argrad.experiments.paper_model import load_bits

ROOT = Path(__file__).resolve().parent.parent


def load_parts() -> Any:
    specification = importlib.util.spec_from_file_location("parts", ROOT / "benchmarks" / "parts.py")
    assert specification is not None
    assert specification.loader is not None
    parts = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(parts)
    return parts


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The script in a folder of its own, with settings that take a second."""
    parts = load_parts()
    small = {"epochs": 2, "restarts": 1, "restart_epochs": 1, "em_restarts": 1, "em_iterations": 2}
    settings = partial(table1.Table1, datasets=("mnist",), values=(10,), seeds=(0, 1), batch_size=20, **small)
    monkeypatch.setattr(table1, "Table1", settings)
    monkeypatch.setattr(figure2, "Figure2", partial(figure2.Figure2, rounds=1, batch_size=20))
    for module in (argrad.data, table2, hashing_training):
        monkeypatch.setattr(module, "load", module.load)  # `run` replaces it; this puts it back
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    return parts


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Grey pictures of 16 pixels."""
    generator = np.random.default_rng(0)
    sizes = {"train": 60, "validation": 20, "test": 20}
    arrays = {part: generator.integers(0, 256, (size, 4, 4), dtype=np.uint8) for part, size in sizes.items()}
    labels = {f"{part}_labels": generator.integers(0, 10, size) for part, size in sizes.items()}
    with lzma.open(tmp_path / "mnist.npz.xz", "wb") as file:
        np.savez(file, **arrays, **labels, full_scale=255)
    return tmp_path


def test_packed_images_are_those_of_the_catalogue(parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "DATASETS", ("digits",))
    monkeypatch.setattr(parts, "GREY", ("digits",))
    parts.pack(tmp_path)
    for how in ("round", "none"):
        expected, found = argrad.data.load("digits", binarize=how), parts.load_packed(tmp_path, "digits", binarize=how)
        assert repr(found) == repr(expected)
        for name in ("train", "validation", "test"):
            torch.testing.assert_close(found.values(getattr(found, name)), expected.values(getattr(expected, name)))
            assert torch.equal(getattr(found, f"{name}_labels"), getattr(expected, f"{name}_labels"))


def test_what_was_packed_as_bits_is_not_taken_for_grey(
    parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "DATASETS", ("digits",))
    parts.pack(tmp_path)
    expected = argrad.data.load("digits")
    assert torch.equal(parts.load_packed(tmp_path, "digits").train, expected.train)
    with pytest.raises(ValueError, match="packed as bits"):
        parts.load_packed(tmp_path, "digits", binarize="none")


def test_parts_make_the_result(parts: Any, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "COMMIT").write_text("abcdef0")
    assert parts.main(["run", str(packed), str(tmp_path / "out"), "table1:mnist", "figure2"]) == 0
    assert parts.main(["assemble", str(tmp_path / "out")]) == 0
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["figure2.json", "table1.json"]
    table = json.loads((tmp_path / "results/table1.json").read_text())
    whole = table1.run_dataset("mnist", *load_bits("mnist", torch.device("cpu")), table1.Table1())
    expected, _ = table1.summarise(whole["rows"])
    assert table["rows"] == json.loads(json.dumps(expected))
    assert table["commit"] == "abcdef0"
    figure = json.loads((tmp_path / "results/figure2.json").read_text())
    assert "--table1 results/table1.json" in figure["command"]
    assert {curve["method"] for curve in figure["curves"]} >= {"exact", "direct"}


def test_a_part_is_not_run_again(parts: Any, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setitem(parts.RUN, "table1", lambda part, dataset: calls.append(dataset))
    for _ in range(2):
        parts.run(packed, tmp_path, ["table1:mnist"])
    assert calls == ["mnist"]


def test_several_parts_are_run_at_once_and_written_one_by_one(
    parts: Any, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def double(part: Any, what: str) -> Any:
        calls.append(what)
        found = [2 * int(number) for number in what.removeprefix("trials:").split(",")]
        return found if len(found) > 1 else found[0]

    monkeypatch.setitem(parts.RUN, "figure3", double)
    parts.run(packed, tmp_path, ["figure3:trials:4"])
    parts.run(packed, tmp_path, ["figure3:trials:3,4,5", "figure3:3,4,5", "figure3:trials:3,5"])
    assert calls == ["trials:4", "trials:3,5", "3,4,5"]
    assert [parts.read(tmp_path, f"figure3:trials:{number}") for number in (3, 4, 5)] == [6, 8, 10]
    assert [parts.read(tmp_path, f"figure3:{number}") for number in (3, 4, 5)] == [6, 8, 10]


def test_a_row_waits_for_its_own_trials(parts: Any) -> None:
    assert parts.builds_on("figure3:3", "figure3:trials:3")
    assert parts.builds_on("figure3:1,3", "figure3:trials:3,4")
    assert not parts.builds_on("figure3:1,2", "figure3:trials:3,4")
    assert not parts.builds_on("figure3:trials:3", "figure3:trials:3,4")
    assert not parts.builds_on("figure3:3", "figure3:3")


def test_pieces_make_the_part(parts: Any, tmp_path: Path) -> None:
    """Table 2 run data set by data set, method by method, or by the number of labels."""
    timing = {"models": 5, "steps": 20, "seconds": 1.0, "milliseconds_per_step": 50.0}
    settings = table2.Table2()

    def write(name: str, methods: Iterable[str], where: str) -> None:
        rows = [
            {"dataset": name.split(":")[1], "method": method, "accuracy": [90.0], "bound": [95.0]} for method in methods
        ]
        known = {"commit": "abcdef0", "hardware": where}
        piece = {"rows": rows, "recipes": dict.fromkeys(methods, 1), "timing": dict.fromkeys(methods, timing)}
        parts.file_of(tmp_path, name).write_text(json.dumps({"where": known, "part": piece}))

    write("table2:mnist", settings.methods, "a GPU")
    write("table2:fashion-mnist:direct", ["direct"], "a GPU")
    write("table2:fashion-mnist:best", ["best"], "a GPU")
    for number in settings.labels:
        write(f"table2:fashion-mnist:gumbel-softmax:{number}", ["gumbel-softmax"], "a CPU")
    parts.assemble(tmp_path)
    result = json.loads((tmp_path / "results/table2.json").read_text())
    assert [row["method"] for row in result["rows"]] == [
        *settings.methods,
        "direct",
        *["gumbel-softmax"] * len(settings.labels),
        "best",
    ]
    assert set(result["recipes"]["mnist"]) == set(settings.methods)
    assert result["timing"]["fashion-mnist"]["gumbel-softmax"]["models"] == 5 * len(settings.labels)
    assert result["timing"]["mnist"]["direct"] == timing
    assert result["commit"] == "abcdef0"
    assert set(result["hardware_of_part"].values()) == {"a GPU", "a CPU"}


def test_unknown_parts_are_told(parts: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert parts.main(["run", "a", "b", "table9"]) == 2
    assert "python benchmarks/parts.py run" in capsys.readouterr().err


def test_parts_are_tried_with_small_settings_and_all_of_them(
    parts: Any, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part that fails is told, and the next is tried all the same."""
    seen: list[int] = []

    def fail(part: Any, _: str) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(parts, "SETTINGS", [("table2", "Table2")])
    monkeypatch.setattr(table2, "Table2", table2.Table2)
    monkeypatch.setitem(parts.RUN, "table1", fail)
    monkeypatch.setitem(parts.RUN, "table2", lambda part, _: seen.append(table2.Table2().epochs))
    assert parts.main(["try", str(packed), str(tmp_path / "out"), "table1:mnist", "table2:mnist"]) == 1
    assert seen == [11]  # one more than those on labelled images alone
    said = capsys.readouterr()
    assert "table1:mnist: FAILED" in said.out
    assert "no such luck" in said.err


def test_what_try_sets_is_a_setting_of_some_experiment(parts: Any) -> None:
    own = set()
    for module, name in load_parts().SETTINGS:
        kind = getattr(importlib.import_module(f"argrad.experiments.{module}"), name)
        own |= {field.name for field in fields(getattr(kind, "func", kind))}
    assert own >= set(parts.SMALL)
    assert {name for _, name in parts.SETTINGS} >= set(parts.ENOUGH)
