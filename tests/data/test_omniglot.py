import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from argrad.data import BrokenFile, load
from argrad.data.omniglot import read_archive


def drawing(number: int) -> bytes:
    """A black square on white, 1-bit, 105x105; its place depends on the number."""
    image = Image.new("1", (105, 105), 1)
    ImageDraw.Draw(image).rectangle((15 * (number % 5), 30, 15 * (number % 5) + 29, 59), fill=0)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def archive(path: Path, part: str, characters: range) -> None:
    """A zip with two drawings of each character, a folder entry and a stray file."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"images_{part}/", "")
        file.writestr("__MACOSX/._x.png", "stray")
        for character in reversed(characters):
            for drawer in (1, 2):
                name = f"images_{part}/Alphabet/character{character:02}/{character:04}_{drawer:02}.png"
                file.writestr(name, drawing(character))


@pytest.fixture
def small_omniglot(folders: tuple[Path, Path]) -> Path:
    folder = folders[0] / "omniglot"
    folder.mkdir(parents=True)
    archive(folder / "images_background.zip", "background", range(1, 11))
    archive(folder / "images_evaluation.zip", "evaluation", range(11, 14))
    return folder


def test_background_and_evaluation_become_the_splits(small_omniglot: Path) -> None:
    images = load("omniglot", binarize="none")
    assert images.shape == (28, 28)
    assert (len(images.train), len(images.validation), len(images.test)) == (18, 2, 6)
    assert images.test_labels is not None
    assert images.test_labels.tolist() == [10, 10, 11, 11, 12, 12]


def test_ink_is_one_and_keeps_its_place_and_amount(small_omniglot: Path) -> None:
    part = read_archive(small_omniglot / "images_background.zip")
    assert part.labels is not None
    square = part.pixels[part.labels == 4][0]  # character 5: columns 0 to 29 of 105, rows 30 to 59
    rows, columns = np.nonzero(square > 127)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (8, 15, 0, 7)
    assert square[20:].max() == 0
    assert square.mean() / 255 == pytest.approx(900 / 105**2, rel=0.03)


def test_damaged_archives(small_omniglot: Path) -> None:
    path = small_omniglot / "images_background.zip"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(BrokenFile, match=r"images_background.zip cannot be read"):
        load("omniglot")
    path.write_bytes(content.replace(b"IDAT", b"IDOT"))
    with pytest.raises(BrokenFile, match=r"images_background.zip cannot be read"):
        load("omniglot")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme.txt", "nothing here")
    with pytest.raises(BrokenFile, match="holds no Omniglot drawing"):
        load("omniglot")


def test_the_real_files(data_root: Path) -> None:
    if not (data_root / "omniglot").is_dir():
        pytest.skip("$ARGRAD_DATA has no omniglot")
    images = load("omniglot")
    assert [len(images.train), len(images.validation), len(images.test)] == [17_352, 1_928, 13_180]
    assert images.train_labels is not None
    assert images.validation_labels is not None
    assert images.test_labels is not None
    characters = set(images.train_labels.tolist()) | set(images.validation_labels.tolist())
    assert characters == set(range(964))
    assert set(images.test_labels.tolist()) == set(range(964, 1623))
    ink = (images.train.sum() + images.validation.sum()).item() / (19_280 * 784)
    assert ink == pytest.approx(0.078, abs=1e-3)
    assert images.test.sum().item() / images.test.numel() == pytest.approx(0.084, abs=1e-3)
