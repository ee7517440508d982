"""The Olivetti faces: upright, made smaller by averaging, people apart, and one line for what is wrong."""

from pathlib import Path

import numpy as np
import pytest
import scipy.io

from argrad.data import BrokenFile, MissingFiles, UnknownData, WrongImages, WrongOption
from argrad.data.olivetti import load_olivetti, read_olivetti

PEOPLE = 5


@pytest.fixture
def upright() -> np.ndarray:
    faces = np.random.RandomState(0).randint(0, 256, (10 * PEOPLE, 64, 64)).astype(np.uint8)
    faces[:, 0, 0] = np.arange(len(faces))
    return faces


def save(path: Path, **matrices: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(path, matrices)
    return path


@pytest.fixture
def file(folders: tuple[Path, Path], upright: np.ndarray) -> Path:
    matrix = np.stack([face.ravel(order="F") for face in upright], axis=1)
    return save(folders[0] / "olivetti" / "olivettifaces.mat", faces=matrix)


def test_people_are_apart_and_faces_upright(file: Path, upright: np.ndarray) -> None:
    faces = load_olivetti(reduce=1, test_people=2, validation_people=1)
    parts = [(faces.train, faces.train_labels), (faces.validation, faces.validation_labels)]
    parts.append((faces.test, faces.test_labels))
    assert [len(images) for images, _ in parts] == [20, 10, 20]
    seen: set[int] = set()
    for images, labels in parts:
        own = set(labels.tolist())
        assert not own & seen
        seen |= own
        for image, label in zip(images.numpy(), labels.tolist(), strict=True):
            assert label == image[0, 0] // 10
            assert np.array_equal(image, upright[image[0, 0]])
    assert seen == set(range(PEOPLE))
    assert faces.values(faces.test).max() <= 1


def test_smaller_faces_are_averages_and_the_seed_decides_who(file: Path, upright: np.ndarray) -> None:
    small = load_olivetti(file, reduce=4, test_people=2, validation_people=0)
    assert small.shape == (16, 16)
    first = upright[10 * int(small.train_labels[0])]
    assert int(small.train[0, 3, 5]) == round(first[12:16, 20:24].mean())
    splits = {
        tuple(load_olivetti(test_people=2, validation_people=0, split_seed=s).test_labels.unique().tolist())
        for s in range(5)
    }
    assert len(splits) > 1


def test_the_catalogue_gets_all_faces_with_the_person(file: Path) -> None:
    raw = read_olivetti({"olivettifaces.mat": file})
    assert raw.rest.pixels.shape == (50, 64, 64)
    assert raw.full_scale == 255
    assert raw.rest.labels.tolist() == [person for person in range(PEOPLE) for _ in range(10)]


def test_a_missing_file_says_where_to_put_it(folders: tuple[Path, Path]) -> None:
    with pytest.raises(MissingFiles, match=r"olivettifaces.mat .* does not download it; put it into .*chosen/olivetti"):
        load_olivetti()
    with pytest.raises(UnknownData, match=r"nowhere.mat' is no file"):
        load_olivetti("nowhere.mat")


def test_wrong_content_is_one_line(file: Path, tmp_path: Path) -> None:
    with pytest.raises(WrongOption, match="reduce=3"):
        load_olivetti(reduce=3)
    with pytest.raises(WrongOption, match="leave nobody to train on"):
        load_olivetti(test_people=5)
    with pytest.raises(WrongImages, match=r"'faces' of shape None, expected \(4096, 400\)"):
        load_olivetti(save(tmp_path / "other.mat", other=np.zeros((4096, 50))))
    with pytest.raises(WrongImages, match=r"'faces' of shape \(50, 4096\)"):
        load_olivetti(save(tmp_path / "turned.mat", faces=np.zeros((50, 4096))))
    with pytest.raises(WrongImages, match=r"values from .* expected 8-bit pixels"):
        load_olivetti(save(tmp_path / "wide.mat", faces=np.full((4096, 50), 300.0)))
    file.write_bytes(b"not MATLAB" * 100)
    with pytest.raises(BrokenFile, match="cannot be read as a MATLAB file"):
        load_olivetti()


def test_the_real_faces(data_root: Path) -> None:
    faces = load_olivetti(data_root / "olivetti" / "olivettifaces.mat")
    assert faces.shape == (32, 32)
    assert [len(part) for part in (faces.train, faces.validation, faces.test)] == [280, 40, 80]
    same = faces.values(faces.train[:10])  # pictures of one person are more alike than of two
    other = faces.values(faces.train[10:20])
    assert (same - same.mean(0)).square().mean() < (same - other.mean(0)).square().mean()
