"""MNIST and the sets that copy its format: four gzipped IDX files.

An IDX file is a big-endian header (magic number 2051 for images, 2049 for labels, then the length of each axis)
followed by the bytes. Validation is one sixth of the 60,000 training images, that is 10,000.
"""

import gzip
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from argrad.data.errors import BrokenFile, WrongImages
from argrad.data.parts import Part, Raw

IMAGES_MAGIC = 2051
LABELS_MAGIC = 2049
CONTENTS = {IMAGES_MAGIC: "images", LABELS_MAGIC: "labels"}


def read_idx_set(files: Mapping[str, Path]) -> Raw:
    """Read the four files of MNIST or Fashion-MNIST.

    Args:
        files: paths by catalogue name, `train-images-idx3-ubyte.gz` and so on.
    """
    rest = read_part(files["train-images-idx3-ubyte.gz"], files["train-labels-idx1-ubyte.gz"])
    test = read_part(files["t10k-images-idx3-ubyte.gz"], files["t10k-labels-idx1-ubyte.gz"])
    if rest.pixels.shape[1:] != test.pixels.shape[1:]:
        raise WrongImages(
            f"{files['t10k-images-idx3-ubyte.gz']} holds images of {test.pixels.shape[1:]}, but the training images "
            f"are {rest.pixels.shape[1:]}: the files belong to different data sets; get them again"
        )
    return Raw(rest, test, held_out=len(rest) // 6, full_scale=255)


def read_part(images: Path, labels: Path) -> Part:
    """Read one file of images and the file of their labels."""
    part = Part(read_idx(images, IMAGES_MAGIC), read_idx(labels, LABELS_MAGIC).astype(np.int64))
    if part.labels is not None and len(part.labels) != len(part):
        raise WrongImages(
            f"{labels} has {len(part.labels)} labels for the {len(part)} images of {images.name}: the files do not "
            "belong together; get them again"
        )
    return part


def read_idx(path: Path, magic: int) -> NDArray[np.uint8]:
    """Read a gzipped IDX file of bytes.

    Args:
        path: the `.gz` file.
        magic: what the file must hold, `IMAGES_MAGIC` or `LABELS_MAGIC`.

    Returns:
        uint8, [N, H, W] images or [N] labels; read-only.
    """
    content = gunzip(path)
    found = int.from_bytes(content[:4], "big")
    if found != magic:
        holds = (
            f"{CONTENTS[found]} (IDX magic {found})" if found in CONTENTS else f"no IDX data (it starts with {found})"
        )
        raise BrokenFile(
            f"{path} holds {holds}, where {CONTENTS[magic]} (IDX magic {magic}) belong: exchange the file or "
            "get it again"
        )
    axes = 3 if magic == IMAGES_MAGIC else 1
    start = 4 + 4 * axes
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    if len(content) != start + int(np.prod(shape)):
        raise BrokenFile(
            f"{path} has {max(0, len(content) - start)} bytes of data, where its header promises {shape}: get it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def gunzip(path: Path) -> bytes:
    """Decompress a whole file, or say that it is cut off or damaged."""
    try:
        with gzip.open(path) as file:
            return file.read()
    except EOFError as error:
        raise BrokenFile(f"{path} is cut off: the compressed data ends too early; get it again") from error
    except (OSError, zlib.error) as error:
        raise BrokenFile(f"{path} cannot be read as gzip ({error}): get it again") from error
