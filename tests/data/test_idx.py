import gzip
from pathlib import Path

import numpy as np
import pytest

from argrad.data import BrokenFile, DataError, load
from argrad.data.idx import IMAGES_MAGIC, read_idx


def test_a_small_set_is_read_and_split(small_mnist: Path) -> None:
    images = load("mnist", binarize="none", split_seed=3)
    assert images.shape == (4, 4)
    assert (len(images.train), len(images.validation), len(images.test)) == (50, 10, 10)
    assert images.train_labels is not None
    assert images.validation_labels is not None
    assert (images.train[:, 0, 0] == images.train_labels).all()
    assert sorted([*images.train_labels.tolist(), *images.validation_labels.tolist()]) == list(range(60))


def test_labels_where_images_belong(small_mnist: Path) -> None:
    (small_mnist / "train-images-idx3-ubyte.gz").write_bytes((small_mnist / "train-labels-idx1-ubyte.gz").read_bytes())
    with pytest.raises(BrokenFile, match=r"holds labels \(IDX magic 2049\), where images \(IDX magic 2051\) belong"):
        load("mnist")


def test_something_else_where_images_belong(small_mnist: Path) -> None:
    (small_mnist / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"hello world"))
    with pytest.raises(BrokenFile, match="holds no IDX data"):
        load("mnist")


@pytest.mark.parametrize("length", [5, 200, -1, -9])
def test_truncated_gz(small_mnist: Path, length: int) -> None:
    path = small_mnist / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(BrokenFile, match=r"train-images-idx3-ubyte.gz is cut off.*get it again") as caught:
        load("mnist")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"not gzip at all", b""])
def test_not_gzip(small_mnist: Path, content: bytes) -> None:
    (small_mnist / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(BrokenFile, match=r"train-images-idx3-ubyte.gz"):
        load("mnist")


def test_damaged_gz(small_mnist: Path) -> None:
    path = small_mnist / "train-images-idx3-ubyte.gz"
    content = bytearray(path.read_bytes())
    content[100] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(BrokenFile, match="get it again"):
        load("mnist")


@pytest.mark.parametrize("data", [b"", bytes(31), bytes(33)])
def test_header_that_promises_another_length(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 4]) + data))
    with pytest.raises(BrokenFile, match=r"its header promises \(2, 4, 4\)"):
        read_idx(path, IMAGES_MAGIC)


def test_labels_of_another_set(small_mnist: Path) -> None:
    (small_mnist / "train-labels-idx1-ubyte.gz").write_bytes((small_mnist / "t10k-labels-idx1-ubyte.gz").read_bytes())
    with pytest.raises(DataError, match="10 labels for the 60 images"):
        load("mnist")


def test_test_images_of_another_size(small_mnist: Path, idx_bytes: bytes) -> None:
    (small_mnist / "t10k-images-idx3-ubyte.gz").write_bytes(idx_bytes)
    with pytest.raises(DataError, match=r"images of \(5, 5\), but the training images are \(4, 4\)"):
        load("mnist")


@pytest.mark.parametrize(("name", "means"), [("mnist", (0.1307, 0.1325)), ("fashion-mnist", (0.2860, 0.2868))])
def test_the_real_files(data_root: Path, name: str, means: tuple[float, float]) -> None:
    if not (data_root / name).is_dir():
        pytest.skip(f"$ARGRAD_DATA has no {name}")
    images = load(name, binarize="none")
    assert [len(images.train), len(images.validation), len(images.test)] == [50_000, 10_000, 10_000]
    assert images.shape == (28, 28)
    rest = (images.train.sum() + images.validation.sum()).item() / (60_000 * 784 * 255)
    assert rest == pytest.approx(means[0], abs=1e-4)
    assert images.test.sum().item() / (10_000 * 784 * 255) == pytest.approx(means[1], abs=1e-4)
    assert images.train_labels is not None
    assert images.validation_labels is not None
    counts = np.bincount([*images.train_labels.tolist(), *images.validation_labels.tolist()])
    expected = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949] if name == "mnist" else [6000] * 10
    assert counts.tolist() == expected
