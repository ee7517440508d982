from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch

from argrad.data import BrokenFile, DataError, MissingFiles, load


def save(folder: Path, **matrices: np.ndarray) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(folder / "chardata.mat", matrices)
    return folder / "chardata.mat"


@pytest.mark.parametrize("place", ["omniglot-28", "omniglot"])
def test_columns_become_upright_images(folders: tuple[Path, Path], place: str) -> None:
    upright = np.random.RandomState(0).rand(40, 28, 28)
    matrix = np.stack([image.ravel(order="F") for image in upright], axis=1)
    save(folders[1] / place, data=matrix[:, :37], testdata=matrix[:, 37:])
    images = load("omniglot-28", binarize="none")
    assert images.train.dtype == torch.float32
    assert (len(images.train), len(images.validation), len(images.test)) == (35, 2, 3)
    assert np.allclose(images.test.numpy(), upright[37:])
    assert images.train_labels is None


def test_missing_file_says_that_it_is_not_downloaded(folders: tuple[Path, Path]) -> None:
    with pytest.raises(MissingFiles, match=r"chardata.mat.*does not download it.*put it into .*chosen/omniglot-28"):
        load("omniglot-28")


def test_wrong_content(folders: tuple[Path, Path]) -> None:
    good = np.zeros((784, 20))
    path = save(folders[0] / "omniglot-28", data=good)
    with pytest.raises(DataError, match=r"'testdata' of shape None, expected \(784, N\)"):
        load("omniglot-28")
    save(path.parent, data=good.T, testdata=good)
    with pytest.raises(DataError, match=r"'data' of shape \(20, 784\)"):
        load("omniglot-28")
    save(path.parent, data=good - 1, testdata=good)
    with pytest.raises(DataError, match="from -1 to -1"):
        load("omniglot-28")
    path.write_bytes(b"not MATLAB" * 100)
    with pytest.raises(BrokenFile, match=r"chardata.mat cannot be read as a MATLAB file"):
        load("omniglot-28")
