import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from argrad.data import CATALOGUE, DataError, MissingFiles, UnknownData, from_arrays, load


def test_digits_are_the_default_and_split_eighty_ten_ten() -> None:
    digits = load()
    assert digits.name == "digits"
    assert (len(digits.train), len(digits.validation), len(digits.test)) == (1437, 180, 180)
    assert digits.train.dtype == torch.uint8
    grey = load(binarize="none")
    assert torch.equal(digits.train, (grey.train > 0.5).to(torch.uint8))


def test_seed_decides_the_split() -> None:
    first, again, other = load(split_seed=1), load(split_seed=1), load(split_seed=2)
    assert torch.equal(first.train, again.train)
    assert not torch.equal(first.train, other.train)


def test_fractions() -> None:
    digits = load(fractions=(0.5, 0.0, 0.5))
    assert (len(digits.train), len(digits.validation), len(digits.test)) == (899, 0, 898)
    assert digits.validation.shape == (0, 8, 8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("minst", "'minst' is no file, folder or catalogue name: did you mean mnist?"),
        ("Fashion_MNIST", "did you mean fashion-mnist?"),
        ("no/such/folder", "choose one of digits, mnist,"),
        (Path("mnist"), "'mnist' is no file, folder"),
    ],
)
def test_paths_that_do_not_exist(
    given: str | Path, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownData) as caught:
        load(given)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", [name for name, source in CATALOGUE.items() if source.files])
def test_known_data_that_is_not_there_says_how_to_get_it(name: str, folders: tuple[Path, Path]) -> None:
    with pytest.raises(MissingFiles) as caught:
        load(name)
    text = str(caught.value)
    assert (f"`argrad data get {name}`" in text) == bool(CATALOGUE[name].files[0].urls)
    assert str(folders[0] / name) in text
    assert str(folders[1] / name) in text
    assert not folders[0].exists()
    assert not folders[1].exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [("notes.txt", "not a kind of file that holds images"), ("one.png", "give the folder that holds the pictures")],
)
def test_files_of_other_kinds(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_text("x")
    with pytest.raises(DataError, match=message):
        load(tmp_path / name)


def test_options_that_do_not_apply(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5, 2, 2)))
    for given in ("digits", tmp_path / "x.npy"):
        with pytest.raises(DataError, match="apply to folders of pictures"):
            load(given, size=(4, 4))
    with pytest.raises(DataError, match="binarize='dither' is not known"):
        load("digits", binarize="dither")  # type: ignore[arg-type]


def test_a_name_means_the_data_set_and_dot_slash_the_folder(
    tmp_path: Path, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mnist").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingFiles):
        load("mnist")
    with pytest.raises(DataError, match="holds no files"):
        load("./mnist")


def test_arrays_in_memory_are_not_changed_or_shared() -> None:
    array = np.random.RandomState(0).rand(20, 3, 3).astype(np.float32)
    copy = array.copy()
    images = from_arrays(array, labels=list(range(20)), binarize="none")
    images.train.zero_()
    assert (array == copy).all()
    assert images.train_labels is not None
    assert len(images.train_labels) == 16


def test_importing_needs_neither_pillow_nor_scikit_learn_nor_pooch() -> None:
    heavy = ("PIL", "sklearn", "scipy", "pooch", "requests")
    code = f"import sys, argrad.data; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
