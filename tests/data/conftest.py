"""Fixtures of the data tests: a place for files that is not the user's, and a web server on loopback."""

import gzip
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from argrad.data.catalogue import CATALOGUE, File, Source
from argrad.data.digits import read_digits
from loopback import Server, serve


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """An empty $ARGRAD_DATA and an empty cache folder (neither exists yet)."""
    chosen, cache = tmp_path / "chosen", tmp_path / "cache"
    monkeypatch.setenv("ARGRAD_DATA", str(chosen))
    monkeypatch.setattr("pooch.os_cache", lambda _: cache)
    return chosen, cache


@pytest.fixture
def server() -> Iterator[Server]:
    """Serve files for the time of a test."""
    with serve() as served:
        yield served


@pytest.fixture
def tiny(server: Server, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Source:
    """A data set `tiny` of one file of 200,000 bytes, in the catalogue and on the server."""
    body = np.random.RandomState(0).bytes(200_000)
    server.files["/tiny.bin"] = body
    file = File("tiny.bin", len(body), f"sha256:{hashlib.sha256(body).hexdigest()}", (f"{server.address}/tiny.bin",))
    source = Source("tiny", "noise", "none", (file,), read_digits, ("tiny",))
    monkeypatch.setitem(CATALOGUE, "tiny", source)
    return source


def idx(array: np.ndarray) -> bytes:
    """An array of bytes as a gzipped IDX file."""
    axes = b"".join(length.to_bytes(4, "big") for length in array.shape)
    return gzip.compress((2048 + array.ndim).to_bytes(4, "big") + axes + array.astype(np.uint8).tobytes())


@pytest.fixture
def small_mnist(folders: tuple[Path, Path]) -> Path:
    """A folder with four files like MNIST's: 60 + 10 images of 4x4, whose number is their first pixel and label."""
    folder = folders[0] / "mnist"
    folder.mkdir(parents=True)
    for split, count in (("train", 60), ("t10k", 10)):
        images = np.random.RandomState(count).randint(0, 256, (count, 4, 4))
        images[:, 0, 0] = np.arange(count)
        (folder / f"{split}-images-idx3-ubyte.gz").write_bytes(idx(images))
        (folder / f"{split}-labels-idx1-ubyte.gz").write_bytes(idx(np.arange(count)))
    return folder


@pytest.fixture
def idx_bytes() -> bytes:
    """An IDX file of ten images of 5x5."""
    return idx(np.zeros((10, 5, 5)))
