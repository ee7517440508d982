"""Omniglot as Burda, Grosse and Salakhutdinov prepared it: `chardata.mat`, 28x28, 24,345 + 8,070 images.

Published log-likelihoods on "Omniglot 28x28" refer to this file. It comes without a licence, so argrad does not
download it: put it into the data folder yourself. Validation is 1,345 of the training images, the custom of
later papers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from argrad.data.errors import BrokenFile, WrongImages
from argrad.data.parts import Part, Raw
from argrad.data.pixels import check_floats

TRAINING_IMAGES = 24_345
VALIDATION_IMAGES = 1_345


def read_omniglot_28(files: Mapping[str, Path]) -> Raw:
    """Read `chardata.mat`; its `data` and `testdata` are [784, N], every image column by column.

    Args:
        files: the path, by its catalogue name `chardata.mat`.
    """
    path = files["chardata.mat"]
    content = read_mat(path)
    rest, test = (Part(upright(content, key, path)) for key in ("data", "testdata"))
    return Raw(rest, test, held_out=len(rest) * VALIDATION_IMAGES // TRAINING_IMAGES)


def read_mat(path: Path) -> dict[str, Any]:
    """Read the two matrices of a MATLAB file."""
    from scipy.io import loadmat  # type: ignore[import-untyped, unused-ignore]

    try:
        content: dict[str, Any] = loadmat(path, variable_names=["data", "testdata"])
    except Exception as error:  # scipy raises whatever its parser stumbles over
        raise BrokenFile(f"{path} cannot be read as a MATLAB file ({error}): get the file again") from error
    return content


def upright(content: Mapping[str, Any], key: str, path: Path) -> NDArray[np.float32]:
    """Bring one matrix [784, N] to images float32 [N, 28, 28] and check their values."""
    matrix = content.get(key)
    if not isinstance(matrix, np.ndarray) or matrix.ndim != 2 or matrix.shape[0] != 784 or matrix.shape[1] == 0:
        shape = None if matrix is None else np.shape(matrix)
        raise WrongImages(f"{path} has {key!r} of shape {shape}, expected (784, N): is it Burda's chardata.mat?")
    images = np.ascontiguousarray(matrix.T.astype(np.float32).reshape(-1, 28, 28).transpose(0, 2, 1))
    check_floats(images, f"{key!r} of {path}")
    return images
