"""Larochelle's statically binarised MNIST: three text files of zeros and ones, with their own split.

A row is 784 digits with a space or the end of the line after each, 1,568 bytes, row by row of a 28x28 image. Training
and validation images are shuffled MNIST training images; the test images are sorted by class, so shuffle before
taking a slice of them. The files hold no labels.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from argrad.data.errors import BrokenFile
from argrad.data.idx import gunzip
from argrad.data.parts import Part, Raw

ROW_BYTES = 2 * 28 * 28


def read_binarized_mnist(files: Mapping[str, Path]) -> Raw:
    """Read the three files; a `.gz` of each will do as well.

    Args:
        files: paths by catalogue name, `binarized_mnist_train.amat` and so on.
    """
    train, validation, test = (
        Part(read_amat(files[f"binarized_mnist_{split}.amat"])) for split in ("train", "valid", "test")
    )
    return Raw(train, test, validation)


def read_amat(path: Path) -> NDArray[np.uint8]:
    """Read one text file of bits, plain or gzipped.

    Returns:
        uint8 in {0, 1}, [N, 28, 28].
    """
    content = np.frombuffer(gunzip(path) if path.suffix == ".gz" else path.read_bytes(), np.uint8)
    if len(content) == 0 or len(content) % ROW_BYTES:
        raise BrokenFile(
            f"{path} has {len(content)} bytes of text, expected whole rows of {ROW_BYTES} bytes: it is cut off or not "
            "this data set; get it again"
        )
    bits = content.reshape(-1, ROW_BYTES)[:, ::2] - ord("0")
    if bits.max() > 1:
        raise BrokenFile(f"{path} holds other characters than 0 and 1 where bits belong: get it again")
    return bits.reshape(-1, 28, 28)
