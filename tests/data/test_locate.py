import sys
from pathlib import Path

import pytest

from argrad.data import UnknownData, data_folders
from argrad.data.catalogue import BINARIZED_MNIST, MNIST
from argrad.data.locate import find_file, find_source


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_chosen_folder_comes_before_the_cache(folders: tuple[Path, Path]) -> None:
    assert data_folders() == list(folders)
    file = MNIST.files[0]
    assert find_file(MNIST, file) is None
    cached = put(folders[1] / "mnist" / file.name)
    assert find_file(MNIST, file) == cached
    chosen = put(folders[0] / "mnist" / file.name)
    assert find_file(MNIST, file) == chosen


def test_unset_or_empty_variable_leaves_the_cache(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARGRAD_DATA", "")
    assert data_folders() == [folders[1]]
    monkeypatch.delenv("ARGRAD_DATA")
    assert data_folders() == [folders[1]]


def test_cache_folder_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARGRAD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (folder,) = data_folders()
    assert folder.name == "argrad"
    if sys.platform == "linux":
        assert folder.parent == tmp_path


def test_without_pooch_the_chosen_folder_still_works(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert data_folders() == [folders[0]]


def test_other_wrapping_is_found(folders: tuple[Path, Path]) -> None:
    path = put(folders[0] / "binarized-mnist" / "binarized_mnist_train.amat.gz")
    assert find_file(BINARIZED_MNIST, BINARIZED_MNIST.files[0]) == path


def test_unknown_names() -> None:
    with pytest.raises(UnknownData, match=r"did you mean omniglot\?"):
        find_source("omnigloth")
    with pytest.raises(UnknownData, match="choose one of digits, mnist"):
        find_source("imagenet")
