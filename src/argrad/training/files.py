"""Files that are whole or not there: written beside their place, flushed, then moved over it.

A crash, a kill or a full disk at any moment leaves the file as it was before. Every file carries a checksum of its
contents, so that one that was cut short or altered is refused by name.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "BrokenFile",
    "dump_state",
    "load_state",
    "read_state",
    "read_tensors",
    "remove_partial_files",
    "write_atomically",
    "write_json",
    "write_state",
    "write_tensors",
]

MARK = b"\nargrad sha256 "
DIGEST_LENGTH = 64
DIGEST_IN_HEADER = re.compile(rb'"sha256":"([0-9a-f]{64})"')
PARTIAL = ".partial"
"""How the names of files end that are not whole yet."""


class BrokenFile(ValueError):
    """A file of a run is cut short, altered, or not what its name says."""


def write_atomically(path: Path, contents: bytes) -> None:
    """Put contents at path; whatever happens, path holds either the old contents or the new ones."""
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        with partial.open("wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError) and error.errno is not None:  # say which file it was
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def remove_partial_files(folder: Path) -> None:
    """Clear away what processes left behind that were killed while they wrote."""
    for partial in folder.glob(f".*{PARTIAL}"):
        partial.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON that a person can read."""
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write tensors and plain values; ``torch.load(path, weights_only=True)`` reads the file too."""
    payload = dump_state(state)
    write_atomically(path, payload + MARK + sha256(payload))


def dump_state(state: Mapping[str, Any]) -> bytes:
    """Tensors and plain values as ``torch.save`` writes them."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def read_state(path: Path) -> dict[str, Any]:
    """Read what :func:`write_state` wrote, after checking that it is whole; nothing in it is executed."""
    contents = path.read_bytes()
    length = len(MARK) + DIGEST_LENGTH
    payload, tail = contents[:-length], contents[-length:]
    if tail != MARK + sha256(payload):
        raise BrokenFile(
            f"{path} is cut short or altered, so it is not used; restore it from a copy, or train into a new folder"
        )
    return load_state(payload, str(path))


def load_state(payload: bytes, name: str) -> dict[str, Any]:
    """Tensors and plain values from what ``torch.save`` wrote; anything else is refused, not executed."""
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # which kind depends on what the payload holds in place of tensors
        raise BrokenFile(
            f"{name} holds more than tensors and plain values, so it is not used; train into a new folder"
        ) from error
    if not isinstance(state, dict):
        raise BrokenFile(f"{name} does not hold a checkpoint; restore it from a copy, or train into a new folder")
    return state


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file that carries its own checksum: that of all its bytes, with zeros in its place."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    contents = save(plain, {**(metadata or {}), "sha256": "0" * DIGEST_LENGTH})
    write_atomically(path, with_digest(contents, sha256(contents)))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and metadata, after checking that they are what was written."""
    from safetensors.torch import load

    contents = path.read_bytes()
    found = DIGEST_IN_HEADER.search(contents)
    if found is None or sha256(with_digest(contents, b"0" * DIGEST_LENGTH)) != found[1]:
        raise BrokenFile(
            f"{path} is cut short or altered, so it is not used; restore it from a copy, or resume the run to write it "
            "again"
        )
    header = json.loads(contents[8 : 8 + int.from_bytes(contents[:8], "little")])
    return load(contents), header["__metadata__"]


def with_digest(contents: bytes, digest: bytes) -> bytes:
    """A safetensors file with another digest among its metadata."""
    found = DIGEST_IN_HEADER.search(contents)
    assert found is not None
    return contents[: found.start(1)] + digest + contents[found.end(1) :]


def sha256(contents: bytes) -> bytes:
    """The digest in hexadecimal."""
    return hashlib.sha256(contents).hexdigest().encode()
