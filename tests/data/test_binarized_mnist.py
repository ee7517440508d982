import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from argrad.data import BrokenFile, load
from argrad.data.binarized_mnist import read_amat


def text(bits: np.ndarray) -> bytes:
    """Bits [N, 28, 28] as the rows of an .amat file."""
    return b"".join(" ".join(str(bit) for bit in row.ravel()).encode() + b"\n" for row in bits)


@pytest.mark.parametrize("packed", [False, True])
def test_rows_become_upright_images_plain_or_packed(folders: tuple[Path, Path], packed: bool) -> None:
    folder = folders[0] / "binarized-mnist"
    folder.mkdir(parents=True)
    bits = {}
    for split, count in (("train", 5), ("valid", 3), ("test", 2)):
        bits[split] = np.random.RandomState(count).randint(0, 2, (count, 28, 28))
        content = text(bits[split])
        name = f"binarized_mnist_{split}.amat"
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
    images = load("binarized-mnist")
    assert images.train.dtype == torch.uint8
    for tensor, split in ((images.train, "train"), (images.validation, "valid"), (images.test, "test")):
        assert (tensor.numpy() == bits[split]).all()
    assert images.train_labels is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"0 1 0", "expected whole rows of 1568 bytes"),
        (b"", "expected whole rows"),
        (b"7 " * 784, "other characters than 0 and 1"),
    ],
)
def test_what_is_not_this_data(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.amat"
    path.write_bytes(content)
    with pytest.raises(BrokenFile, match=message):
        read_amat(path)


def test_truncated_gz(tmp_path: Path) -> None:
    path = tmp_path / "x.amat.gz"
    path.write_bytes(gzip.compress(b"0 " * 784)[:-4])
    with pytest.raises(BrokenFile, match=r"x.amat.gz is cut off"):
        read_amat(path)


def test_the_real_files(data_root: Path) -> None:
    if not (data_root / "binarized-mnist").is_dir():
        pytest.skip("$ARGRAD_DATA has no binarized-mnist")
    images = load("binarized-mnist")
    splits = (images.train, images.validation, images.test)
    assert [len(split) for split in splits] == [50_000, 10_000, 10_000]
    means = [split.sum().item() / split.numel() for split in splits]
    assert means == pytest.approx([0.13056, 0.13113, 0.13251], abs=1e-5)
