"""A run folder keeps what is in it: nothing is written over, no two processes write, nothing foreign is resumed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from argrad.training import BrokenFile, RunFolder, files
from argrad.training.files import read_state, read_tensors

CONFIG = {"epochs": 3, "learning_rate": 0.1, "name": "ε"}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", CONFIG)


@pytest.fixture
def saved(folder: RunFolder) -> RunFolder:
    folder.write({"step": 5}, [{"epoch": 1, "loss": 2.0}], {"w": torch.ones(2)})
    return folder


# --------------------------------------------------------------------------------------------------- create and open


def test_create_makes_parents_and_open_reads_the_same_settings(tmp_path):
    made = RunFolder.create(tmp_path / "a" / "b", CONFIG)
    assert RunFolder.open(str(made.path)).config == CONFIG
    assert not made.has_state()
    assert made.read_metrics() == []


def test_create_takes_an_empty_folder_and_one_in_which_a_first_try_was_killed(tmp_path):
    RunFolder.create(tmp_path, CONFIG)
    (tmp_path / "config.json").rename(tmp_path / ".config.json.7.partial")
    RunFolder.create(tmp_path, CONFIG)


@pytest.mark.parametrize(
    ("name", "message"),
    [("config.json", "--resume"), ("state.pt", "--resume"), ("holiday.jpg", "not empty")],
)
def test_create_writes_over_nothing(tmp_path, name, message):
    (tmp_path / name).write_bytes(b"precious")
    with pytest.raises(ValueError, match=message) as caught:
        RunFolder.create(tmp_path, CONFIG)
    assert str(tmp_path) in str(caught.value)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {name: b"precious"}


def test_create_refuses_a_file_of_that_name(tmp_path):
    (tmp_path / "run").write_bytes(b"precious")
    with pytest.raises(ValueError, match="choose another folder"):
        RunFolder.create(tmp_path / "run", CONFIG)
    assert (tmp_path / "run").read_bytes() == b"precious"


def test_open_refuses_what_is_not_a_run(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ValueError, match=r"not a run folder: it has no config\.json"):
            RunFolder.open(path)


@pytest.mark.parametrize("contents", ['{"epochs": 3', "", "[1, 2]", "\x00\x01"])
def test_open_refuses_broken_settings(folder, contents):
    (folder.path / "config.json").write_text(contents)
    with pytest.raises(BrokenFile, match=r"config\.json .*restore it from a copy"):
        RunFolder.open(folder.path)


def test_open_refuses_settings_that_are_not_text(folder):
    (folder.path / "config.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(BrokenFile, match=r"config\.json .*restore it from a copy"):
        RunFolder.open(folder.path)


# ----------------------------------------------------------------------------------------------------------- contents


def test_what_was_written_is_read(saved):
    again = RunFolder.open(saved.path)
    assert again.has_state()
    assert again.read_state()["step"] == 5
    assert again.read_metrics() == [{"epoch": 1, "loss": 2.0}]
    assert torch.equal(read_tensors(saved.path / "model.safetensors")[0]["w"], torch.ones(2))
    saved.write({"step": 6}, [], None)
    assert torch.equal(read_tensors(saved.path / "model.safetensors")[0]["w"], torch.ones(2))


def test_no_model_is_written_before_there_is_one(folder):
    folder.write({"step": 1}, [], {})
    assert not (folder.path / "model.safetensors").exists()


@pytest.mark.parametrize("file", ["state.pt", "metrics.jsonl", "model.safetensors"])
def test_a_crash_at_any_file_leaves_a_checkpoint_that_is_whole(saved, monkeypatch, file):
    original = files.os.replace

    def fail(source, target):
        if Path(target).name == file:
            raise OSError(28, "No space left on device")
        original(source, target)

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(OSError, match=f"No space left on device.*{file}"):
        saved.write({"step": 6}, [{"epoch": 1}, {"epoch": 2}], {"w": torch.zeros(2)})
    monkeypatch.undo()
    again = RunFolder.open(saved.path)
    assert again.read_state()["step"] == (5 if file == "state.pt" else 6)
    assert len(again.read_metrics()) == (2 if file == "model.safetensors" else 1)
    assert torch.equal(read_tensors(saved.path / "model.safetensors")[0]["w"], torch.ones(2))
    assert not list(saved.path.glob(".*partial"))


def test_broken_metrics_are_refused(saved):
    (saved.path / "metrics.jsonl").write_text('{"epoch": 1}\n{"epo')
    with pytest.raises(BrokenFile, match=r"metrics\.jsonl .*--resume .* writes it again"):
        saved.read_metrics()


# ----------------------------------------------------------------------------------------------------------- settings


def test_altered_settings_are_refused(saved):
    config = saved.path / "config.json"
    config.write_text(config.read_text().replace("0.1", "0.2"))
    with pytest.raises(BrokenFile, match=r"config\.json was altered after training began; restore it from a copy"):
        RunFolder.open(saved.path).read_state()


def test_a_state_of_something_else_is_refused(saved):
    files.write_state(saved.path / "state.pt", {"step": 5})
    with pytest.raises(BrokenFile, match="restore it from a copy"):
        saved.read_state()


def test_change_changes_both_files(saved):
    saved.change(epochs=9)
    again = RunFolder.open(saved.path)
    assert again.config == {**CONFIG, "epochs": 9}
    assert again.read_state()["step"] == 5
    assert json.loads(read_state(saved.path / "state.pt")["config"])["epochs"] == 9


def test_change_before_the_first_checkpoint(folder):
    folder.change(epochs=9)
    assert RunFolder.open(folder.path).config["epochs"] == 9
    assert not folder.has_state()


def test_change_to_the_same_touches_nothing(saved):
    before = {entry.name: entry.stat().st_mtime_ns for entry in saved.path.iterdir()}
    saved.change(epochs=3)
    assert {entry.name: entry.stat().st_mtime_ns for entry in saved.path.iterdir()} == before


@pytest.mark.parametrize("file", ["state.pt", "config.json"])
def test_a_crash_while_settings_change_does_no_harm(saved, monkeypatch, file):
    original = files.os.replace

    def fail(source, target):
        if Path(target).name == file:
            raise OSError(28, "No space left on device")
        original(source, target)

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        saved.change(epochs=9)
    assert saved.config == CONFIG
    monkeypatch.undo()
    again = RunFolder.open(saved.path)
    assert again.config == CONFIG
    assert again.read_state()["step"] == 5
    again.change(epochs=9)
    assert RunFolder.open(saved.path).read_state()["step"] == 5


# --------------------------------------------------------------------------------------------------------------- lock


HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "wb")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def test_the_lock_excludes_another_process_and_dies_with_it(folder):
    holder = subprocess.Popen(
        [sys.executable, "-S", "-c", HOLDER, str(folder.path / ".lock")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=f"another process is training in {folder.path}"):
            folder.lock()
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        folder.lock()
    finally:
        holder.kill()
        holder.communicate()
    with pytest.raises(ValueError, match="another process"):
        RunFolder.open(folder.path).lock()
    folder.unlock()
    other = RunFolder.open(folder.path)
    other.lock()
    other.unlock()


def test_holding_the_lock_twice_is_holding_it_once(folder):
    with folder.locked():
        folder.lock()
        with folder.locked():
            pass
        with pytest.raises(ValueError, match="another process"):
            RunFolder.open(folder.path).lock()
    with RunFolder.open(folder.path).locked():
        pass


def test_whoever_takes_the_lock_clears_up(folder):
    (folder.path / ".state.pt.7.partial").write_bytes(b"half")
    with folder.locked():
        assert sorted(entry.name for entry in folder.path.iterdir()) == [".lock", "config.json"]
