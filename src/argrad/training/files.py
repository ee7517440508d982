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
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["BrokenFile", "read_state", "read_tensors", "write_atomically", "write_json", "write_state", "write_tensors"]

MARK = b"\nargrad sha256 "
DIGEST_LENGTH = 64


class BrokenFile(ValueError):
    """A file of a run is cut short, altered, or not what its name says."""


def write_atomically(path: Path, contents: bytes) -> None:
    """Put contents at path; whatever happens, path holds either the old contents or the new ones."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, value: Any) -> None:
    """Write JSON that a person can read."""
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write tensors and plain values; ``torch.load(path, weights_only=True)`` reads the file too."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    payload = buffer.getvalue()
    write_atomically(path, payload + MARK + hashlib.sha256(payload).hexdigest().encode())


def read_state(path: Path) -> dict[str, Any]:
    """Read what :func:`write_state` wrote, after checking that it is whole; nothing in it is executed."""
    contents = path.read_bytes()
    tail = len(contents) - len(MARK) - DIGEST_LENGTH
    payload, mark, digest = (
        contents[: max(0, tail)],
        contents[max(0, tail) : max(0, tail) + len(MARK)],
        contents[-DIGEST_LENGTH:],
    )
    if mark != MARK or hashlib.sha256(payload).hexdigest().encode() != digest:
        raise BrokenFile(
            f"{path} is cut short or altered, so it is not used; restore it from a copy, or train into a new folder"
        )
    state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    assert isinstance(state, dict)
    return state


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file with a checksum among its metadata."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(plain, {**(metadata or {}), "sha256": checksum(plain)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and metadata, after checking that they are what was written."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise BrokenFile(f"{path} is cut short or not a safetensors file ({error}); restore it from a copy") from error
    if "sha256" in metadata and metadata["sha256"] != checksum(tensors):
        raise BrokenFile(
            f"{path} was altered after it was written; restore it from a copy, or resume the run to write it again"
        )
    return tensors, metadata


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """A digest of names, shapes, types and numbers."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()
