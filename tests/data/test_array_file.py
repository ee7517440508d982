import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from argrad.data import BrokenFile, DataError, load

GREY = np.random.RandomState(0).randint(0, 256, (20, 6, 5)).astype(np.uint8)
LABELS = np.arange(20)


def everything(images: object) -> set[bytes]:
    """All images of all splits, as bytes."""
    return {image.numpy().tobytes() for split in ("train", "validation", "test") for image in getattr(images, split)}


def test_npy_of_bytes(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", GREY)
    images = load(tmp_path / "x.npy", binarize="none")
    assert (len(images.train), len(images.validation), len(images.test)) == (16, 2, 2)
    assert (images.train.dtype, images.full_scale, images.shape) == (torch.uint8, 255, (6, 5))
    assert everything(images) == {image.tobytes() for image in GREY}
    assert load(str(tmp_path / "x.npy")).train.max() == 1


def test_npy_of_doubles_becomes_float32_and_can_be_written_to(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", GREY / 255)
    images = load(tmp_path / "x.npy", binarize="stochastic")
    assert (images.train.dtype, images.full_scale) == (torch.float32, 1)
    images.train.zero_()
    assert np.load(tmp_path / "x.npy").max() > 0


def test_npy_with_channels_last(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.stack([GREY] * 3, axis=-1))
    images = load(tmp_path / "x.npy", binarize="none")
    assert images.shape == (3, 6, 5)
    assert images.train.is_contiguous()


@pytest.mark.parametrize(
    ("arrays", "labelled"),
    [
        ({"images": GREY, "labels": LABELS, "more": LABELS}, True),
        ({"x_train": GREY, "y_train": LABELS}, True),
        ({"arr_0": GREY}, False),
        ({"pictures": GREY, "labels": LABELS}, True),
    ],
)
def test_npz_finds_images_and_labels(tmp_path: Path, arrays: dict[str, np.ndarray], labelled: bool) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    images = load(tmp_path / "x.npz", binarize="none")
    assert everything(images) == {image.tobytes() for image in GREY}
    assert (images.train_labels is not None) == labelled
    if images.train_labels is not None:
        assert (images.train.numpy() == GREY[images.train_labels.numpy()]).all()


def test_npz_with_a_test_set_keeps_it(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "x.npz", x_train=GREY[:18], y_train=LABELS[:18], x_test=GREY[18:], y_test=LABELS[18:]
    )
    images = load(tmp_path / "x.npz", binarize="none")
    assert (len(images.train), len(images.validation), len(images.test)) == (16, 2, 2)
    assert (images.test.numpy() == GREY[18:]).all()
    assert images.test_labels is not None
    assert images.test_labels.tolist() == [18, 19]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": GREY, "b": GREY}, "x.npz holds a, b: name the array of images `images`"),
        ({"labels": LABELS}, "x.npz holds labels: name"),
        ({}, "x.npz holds nothing"),
        ({"images": LABELS}, "'images' of .*x.npz has shape .* looks like labels"),
        ({"images": GREY, "labels": LABELS[:5]}, "one whole number for each of the 20 images"),
        ({"x_train": GREY, "x_test": GREY / 255}, "save both in the same form"),
        ({"images": GREY * np.nan}, "NaN pixels"),
        ({"images": np.array([None])}, "pickled Python objects, which are never loaded"),
    ],
)
def test_npz_that_cannot_be_used(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path / "x.npz")
    assert "\n" not in str(caught.value)


class Harmful:
    """An object that leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_pickles_are_refused_and_not_run(tmp_path: Path, suffix: str) -> None:
    trace, path = tmp_path / "trace", tmp_path / f"x{suffix}"
    path.write_bytes(pickle.dumps(Harmful(trace)))
    with pytest.raises(BrokenFile, match="pickled Python objects, which are never loaded"):
        load(path)
    array = io.BytesIO()
    np.save(array, np.array([Harmful(trace)], object), allow_pickle=True)
    if suffix == ".npz":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("images.npy", array.getvalue())
    else:
        path.write_bytes(array.getvalue())
    with pytest.raises(BrokenFile, match="pickled Python objects, which are never loaded"):
        load(path)
    assert not trace.exists()


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("keep", [0, 3, 100, 400])
def test_truncated_files(tmp_path: Path, suffix: str, keep: int) -> None:
    path = tmp_path / f"x{suffix}"
    np.save(path, GREY) if suffix == ".npy" else np.savez(path, images=GREY)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BrokenFile, match=f"x{suffix}"):
        load(path)


def test_files_with_the_other_ending(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", GREY)
    (tmp_path / "x.npy").rename(tmp_path / "y.npz")
    with pytest.raises(BrokenFile, match=r"y.npz holds a single array as an .npy file does"):
        load(tmp_path / "y.npz")
    np.savez(tmp_path / "x.npz", images=GREY)
    (tmp_path / "x.npz").rename(tmp_path / "y.npy")
    with pytest.raises(BrokenFile, match=r"y.npy holds several arrays as an .npz file does"):
        load(tmp_path / "y.npy")


def test_damaged_npz(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, images=GREY)
    content = bytearray(path.read_bytes())
    content[200] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(BrokenFile, match=r"x.npz"):
        load(path)


def test_labels_in_place_of_images(tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", LABELS)
    with pytest.raises(DataError, match=r"labels.npy has shape \(20,\), which looks like labels"):
        load(tmp_path / "labels.npy")
