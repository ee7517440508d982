"""Which runs the app finds, and how it keeps them."""

import json
import os
from pathlib import Path

import pytest

from argrad.app.library import KEPT, PAGES_KEPT, Library, kind_of


def make(path: Path, config: object, *, weights: bool = True) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if weights:
        (path / "model.safetensors").write_bytes(b"")
    return path


VAE = {"latent": "bits", "estimator": "direct"}


def test_runs_are_found_in_folders_the_newest_first(tmp_path: Path) -> None:
    older = make(tmp_path / "demo" / "direct", VAE)
    make(tmp_path / "tokens", {"task": "tokenize"})
    os.utime(older / "model.safetensors", (1, 1))
    library = Library([tmp_path])
    assert library.names() == ["tokens", "demo/direct"]
    assert library.names("vae") == ["demo/direct"]
    assert library.find("tokens").kind == "tokenize"
    make(tmp_path / "later", {"task": "classify"})
    assert "later" in library.names()


def test_a_run_can_be_a_place_itself(tmp_path: Path) -> None:
    assert Library([make(tmp_path / "mine", VAE)]).names() == ["mine"]


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    make(tmp_path / "a" / "mine", VAE)
    make(tmp_path / "b" / "mine", VAE)
    library = Library([tmp_path / "a", tmp_path / "b"])
    assert sorted(library.names()) == ["mine", "mine′"]
    assert {library.find(name).path.parent.name for name in library.names()} == {"a", "b"}


def test_what_is_no_finished_run_is_left_out(tmp_path: Path) -> None:
    make(tmp_path / "broken", "{")
    make(tmp_path / "list", "[]")
    make(tmp_path / "foreign", {"task": "fly"})
    make(tmp_path / "odd", {"task": []})
    make(tmp_path / "begun", VAE, weights=False)
    make(tmp_path / "whole", VAE)
    make(tmp_path / "whole" / "likelihood", {"task": "write"})  # a stage of the run, not a run
    make(tmp_path / ".hidden", VAE)
    assert Library([tmp_path]).names() == ["whole"]


def test_missing_runs_are_told(tmp_path: Path) -> None:
    library = Library([tmp_path])
    with pytest.raises(ValueError, match="choose a run"):
        library.find(None)
    with pytest.raises(ValueError, match="no run 'gone'"):
        library.find("gone")


def test_models_are_loaded_once_and_the_last_few_kept(tmp_path: Path) -> None:
    for number in range(KEPT + 1):
        make(tmp_path / f"run{number}", VAE)
    library, loaded = Library([tmp_path]), []

    def loader(path: Path) -> str:
        loaded.append(path.name)
        return path.name

    runs = {run.name: run for run in library.runs()}
    for name in ("run0", "run0", *sorted(runs)):
        assert library.load(runs[name], loader) == name
    assert loaded == sorted(runs)
    library.load(runs["run0"], loader)  # the oldest had to go
    assert loaded[-1] == "run0"
    os.utime(runs["run0"].path / "model.safetensors", (1, 1))  # trained again
    library.load(runs["run0"], loader)
    assert loaded[-2:] == ["run0", "run0"]


def test_pieces_of_a_page_are_made_once_until_a_run_changes(tmp_path: Path) -> None:
    make(tmp_path / "mine", VAE)
    library, made = Library([tmp_path]), []

    def piece() -> str:
        made.append(len(made))
        return f"piece {len(made)}"

    run = library.find("mine")
    assert [library.once("curves", [run], piece) for _ in range(2)] == ["piece 1", "piece 1"]
    assert library.once("card", [run], piece) == "piece 2"
    os.utime(run.path / "model.safetensors", (2**33, 2**33))
    assert library.once("curves", [run], piece) == "piece 3"
    for number in range(PAGES_KEPT + 1):
        library.once(f"other {number}", [run], piece)
    library.once("curves", [run], piece)
    assert len(made) == PAGES_KEPT + 5


def test_kinds() -> None:
    assert kind_of(VAE) == "vae"
    assert kind_of({"task": "attributes"}) == "attributes"
    assert kind_of({"kind": "anatomical segmentation"}) == "segment"
    assert kind_of({"kind": "anatomical prior"}) is None
    assert kind_of({"task": "write", "kind": "characters"}) == "write"
