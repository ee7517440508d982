"""A file is whole or not there; one that was cut short or altered is refused by name; nothing in it is executed."""

import errno
import hashlib
import io
import os
import pickle
import random
import subprocess
from pathlib import Path

import pytest
import torch

from argrad.training import files
from argrad.training.files import (
    MARK,
    BrokenFile,
    read_state,
    read_tensors,
    remove_partial_files,
    write_atomically,
    write_json,
    write_state,
    write_tensors,
)

STATE = {
    "weights": torch.arange(12.0).reshape(3, 4),
    "step": torch.tensor(7),
    "none": None,
    "nested": {"numbers": [1, 2.5, float("inf")], "text": "ε"},
}
TENSORS = {"weight": torch.arange(6.0).reshape(2, 3), "empty": torch.zeros(0, 2), "count": torch.tensor(3)}


class Crash(BaseException):
    """The process ends here."""


def write_file(path: Path, number: int) -> None:
    if path.suffix == ".pt":
        write_state(path, {**STATE, "number": number})
    else:
        write_tensors(path, {**TENSORS, "number": torch.tensor(number)}, {"format": "pt"})


def read_number(path: Path) -> int:
    return int(read_state(path)["number"] if path.suffix == ".pt" else read_tensors(path)[0]["number"])


@pytest.fixture(params=["state.pt", "model.safetensors"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    write_file(path, 1)
    return path


def test_what_is_read_is_what_was_written(tmp_path):
    write_state(tmp_path / "state.pt", STATE)
    state = read_state(tmp_path / "state.pt")
    assert torch.equal(state.pop("weights"), STATE["weights"])
    assert torch.equal(state.pop("step"), STATE["step"])
    assert state == {"none": None, "nested": STATE["nested"]}
    write_tensors(tmp_path / "model.safetensors", TENSORS, {"format": "pt"})
    tensors, metadata = read_tensors(tmp_path / "model.safetensors")
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert metadata["format"] == "pt"


def test_others_read_the_files_too(tmp_path):
    from safetensors.torch import load_file

    write_state(tmp_path / "state.pt", STATE)
    assert torch.load(tmp_path / "state.pt", weights_only=True)["nested"] == STATE["nested"]
    write_tensors(tmp_path / "model.safetensors", TENSORS)
    assert torch.equal(load_file(tmp_path / "model.safetensors")["weight"], TENSORS["weight"])


def test_one_tensor_under_two_names_and_views_are_written(tmp_path):
    whole = torch.arange(6.0)
    with pytest.raises(RuntimeError, match="share memory"):
        write_tensors(tmp_path / "model.safetensors", {"a": whole, "b": whole})
    assert not list(tmp_path.iterdir())
    write_tensors(tmp_path / "model.safetensors", {"a": whole.reshape(2, 3).T})
    assert torch.equal(read_tensors(tmp_path / "model.safetensors")[0]["a"], whole.reshape(2, 3).T)


# ------------------------------------------------------------------------------------------------- crashes and no space


@pytest.mark.parametrize("call", ["write", "flush", "fsync", "replace"])
@pytest.mark.parametrize("error", [Crash(), KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
@pytest.mark.parametrize("name", ["state.pt", "model.safetensors"])
def test_old_contents_survive_a_crash_at_any_call(tmp_path, monkeypatch, call, error, name):
    path = tmp_path / name
    write_file(path, 1)

    def fail(*arguments):
        raise error

    class Failing(io.FileIO):
        pass

    if call in ("fsync", "replace"):
        monkeypatch.setattr(files.os, call, fail)
    else:
        setattr(Failing, call, fail)
        monkeypatch.setattr(Path, "open", lambda self, mode: Failing(self, mode))
    with pytest.raises(type(error)) as caught:
        write_file(path, 2)
    monkeypatch.undo()
    if isinstance(error, OSError):
        assert caught.value.errno == errno.ENOSPC
        assert str(path) in str(caught.value)
    assert read_number(path) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    write_file(path, 3)
    assert read_number(path) == 3


def test_a_crash_after_the_move_keeps_the_new_contents(tmp_path, monkeypatch):
    path = tmp_path / "state.pt"
    write_file(path, 1)
    calls = []

    def second_fails(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:  # the folder's own
            raise Crash

    monkeypatch.setattr(files.os, "fsync", second_fails)
    with pytest.raises(Crash):
        write_file(path, 2)
    monkeypatch.undo()
    assert read_number(path) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.pt"]


def test_half_a_write_leaves_no_trace(tmp_path, monkeypatch):
    """The disk fills up in the middle of the file."""
    path = tmp_path / "state.pt"
    write_file(path, 1)

    class Full(io.FileIO):
        def write(self, contents):
            super().write(contents[: len(contents) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", lambda self, mode: Full(self, mode))
    with pytest.raises(OSError, match=r"No space left on device.*state\.pt"):
        write_file(path, 2)
    monkeypatch.undo()
    assert read_number(path) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.pt"]


def test_a_disk_that_is_really_full_loses_no_earlier_file(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small disk needs rights that this user does not have")
    try:
        write_state(disk / "state.pt", {"number": 1})
        write_tensors(disk / "model.safetensors", {"number": torch.tensor(1)})
        for write in (
            lambda: write_state(disk / "state.pt", {"number": 2, "big": torch.zeros(100_000)}),
            lambda: write_tensors(disk / "model.safetensors", {"number": torch.tensor(2), "big": torch.zeros(100_000)}),
        ):
            with pytest.raises(OSError, match="No space left on device") as caught:
                write()
            assert str(disk) in str(caught.value)
        assert read_number(disk / "state.pt") == read_number(disk / "model.safetensors") == 1
        assert sorted(entry.name for entry in disk.iterdir()) == ["model.safetensors", "state.pt"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing.*state\.pt"):
        write_state(tmp_path / "missing" / "state.pt", STATE)


def test_permissions_are_those_of_any_new_file(tmp_path):
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    plain.write_text("")
    write_atomically(ours, b"")
    assert ours.stat().st_mode == plain.stat().st_mode


def test_what_a_killed_process_left_is_cleared_away(tmp_path):
    write_json(tmp_path / "config.json", {"ε": 1})
    (tmp_path / ".state.pt.123.partial").write_bytes(b"half")
    remove_partial_files(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.json"]
    assert (tmp_path / "config.json").read_text() == '{\n  "ε": 1\n}\n'


# ------------------------------------------------------------------------------------------------------ broken files


def refused(path: Path) -> None:
    """Reading raises an error that names the file and says what to do."""
    with pytest.raises(BrokenFile) as caught:
        read_number(path)
    message = str(caught.value)
    assert str(path) in message
    assert "restore it from a copy" in message
    assert "\n" not in message


def test_a_file_cut_short_anywhere_is_refused(written):
    contents = written.read_bytes()
    lengths = {0, 1, 7, 8, 9, len(contents) - 1, *random.Random(0).sample(range(len(contents)), 50)}
    for length in lengths:
        written.write_bytes(contents[:length])
        refused(written)


def test_a_file_altered_in_any_byte_is_refused(written):
    contents = written.read_bytes()
    draw = random.Random(1)
    # All places of the small safetensors file: its header has many kinds of them.
    places = range(len(contents)) if written.suffix == ".safetensors" else draw.sample(range(len(contents)), 50)
    for place in places:
        altered = bytearray(contents)
        altered[place] ^= 1 << draw.randrange(8)
        written.write_bytes(bytes(altered))
        refused(written)
    written.write_bytes(contents)
    assert read_number(written) == 1


def test_a_file_with_something_added_is_refused(written):
    written.write_bytes(written.read_bytes() + b"\n")
    refused(written)


def test_a_file_of_another_kind_is_refused(written):
    written.write_bytes(b"hello, world " * 20)
    refused(written)


def with_valid_checksum(payload: bytes) -> bytes:
    return payload + MARK + hashlib.sha256(payload).hexdigest().encode()


class Evil:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("inside", [False, True])
def test_no_pickle_is_executed(tmp_path, inside):
    path, trace = tmp_path / "state.pt", tmp_path / "trace"
    if inside:
        buffer = io.BytesIO()
        torch.save({"weights": torch.zeros(2), "evil": Evil(trace)}, buffer)
        payload = buffer.getvalue()
    else:
        payload = pickle.dumps(Evil(trace))
    path.write_bytes(with_valid_checksum(payload))
    with pytest.raises(BrokenFile, match=r"state\.pt holds more than tensors and plain values"):
        read_state(path)
    assert not trace.exists()


def test_a_checkpoint_is_a_dictionary(tmp_path):
    path = tmp_path / "state.pt"
    buffer = io.BytesIO()
    torch.save([1, 2], buffer)
    path.write_bytes(with_valid_checksum(buffer.getvalue()))
    refused(path)
