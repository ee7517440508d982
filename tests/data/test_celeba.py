"""CelebA: a small folder in the exact format of the real one, and every way in which it may not match."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from argrad.data import BrokenFile, DataError, MissingFiles, WrongImages, WrongOption, load_celeba

NAMES = ("5_o_Clock_Shadow", "Eyeglasses", "Smiling")
PARTS = (0, 0, 0, 1, 2, 2)


@pytest.fixture
def celeba(tmp_path: Path) -> Path:
    """Six pictures of 178x218, each with a white square in the middle; attributes count in binary."""
    root = tmp_path / "celeba"
    (root / "img_align_celeba").mkdir(parents=True)
    rows, parts = ["6", " ".join(NAMES) + " "], []
    for number, part in enumerate(PARTS, start=1):
        picture = np.zeros((218, 178, 3), np.uint8)
        picture[..., 0] = 10 * number
        picture[99:119, 79:99] = 255
        name = f"{number:06}.jpg"
        Image.fromarray(picture).save(root / "img_align_celeba" / name, quality=95)
        bits = [f"{1 if number >> place & 1 else -1:2d}" for place in range(3)]
        rows.append(f"{name} {' '.join(bits)}")
        parts.append(f"{name} {part}")
    (root / "list_attr_celeba.txt").write_text("\n".join(rows) + "\n")
    (root / "list_eval_partition.txt").write_text("\n".join(parts) + "\n")
    return root


def rewrite(path: Path, line: int, text: str | None) -> None:
    """Replace a line, counted from 1, or take it out."""
    lines = path.read_text().splitlines()
    lines[line - 1 : line] = [] if text is None else [text]
    path.write_text("\n".join(lines) + "\n")


def test_parts_attributes_and_crop(celeba: Path) -> None:
    images = load_celeba(celeba)
    assert images.names == NAMES
    assert images.shape == (3, 64, 64)
    assert [len(part) for part in (images.train, images.validation, images.test)] == [3, 1, 2]
    assert images.train_attributes.tolist() == [[1, 0, 0], [0, 1, 0], [1, 1, 0]]
    assert images.test_attributes.tolist() == [[1, 0, 1], [0, 1, 1]]
    middle = images.train[0, :, 30:34, 30:34].float()
    assert middle.mean() > 240  # the square stays in the middle
    assert images.train[2, 0, 5, 5] > images.train[0, 0, 5, 5]


def test_size_grey_limit_and_choice(celeba: Path) -> None:
    images = load_celeba(celeba, attributes=["Smiling"], size=(48, 32), colour=False, limit=1)
    assert images.shape == (48, 32)
    assert [len(part) for part in (images.train, images.validation, images.test)] == [1, 1, 1]
    assert images.test_attributes.tolist() == [[1]]
    assert images.values(images.train).max() <= 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attributes": ["Eyeglass"]}, "no attribute 'Eyeglass': choose from 5_o_Clock_Shadow, Eyeglasses, Smiling"),
        ({"attributes": []}, "one or more names"),
        ({"size": (64, 0)}, "height and width"),
        ({"limit": 0}, "limit=0"),
    ],
)
def test_wrong_options(celeba: Path, options: dict, words: str) -> None:
    with pytest.raises(WrongOption, match=words):
        load_celeba(celeba, **options)


def test_folder_and_lists_must_match(celeba: Path) -> None:
    def refused(error: type[DataError], words: str) -> None:
        with pytest.raises(error, match=words) as caught:
            load_celeba(celeba)
        assert "\n" not in str(caught.value)

    first = celeba / "img_align_celeba" / "000001.jpg"
    kept = first.read_bytes()
    first.unlink()
    refused(WrongImages, r"000001\.jpg in list_attr_celeba\.txt but not in img_align_celeba/")
    first.write_bytes(b"no picture")
    refused(BrokenFile, r"000001\.jpg cannot be read")
    first.write_bytes(kept)
    for name in ("000007.jpg", "000008.jpg"):
        (celeba / "img_align_celeba" / name).write_bytes(kept)
    refused(WrongImages, r"000007\.jpg and 1 more in img_align_celeba/ but not in list_attr_celeba\.txt")
    for name in ("000007.jpg", "000008.jpg"):
        (celeba / "img_align_celeba" / name).unlink()
    rewrite(celeba / "list_eval_partition.txt", 6, None)
    refused(WrongImages, r"000006\.jpg in list_attr_celeba\.txt but not in list_eval_partition\.txt")


@pytest.mark.parametrize(
    ("file", "line", "text", "words"),
    [
        ("list_attr_celeba.txt", 1, "7", "says that it has 7 pictures, but lists 6"),
        ("list_attr_celeba.txt", 1, "pictures", "must start with the number of pictures"),
        ("list_attr_celeba.txt", 2, "A A B", "names an attribute twice"),
        ("list_attr_celeba.txt", 3, "000001.jpg 1 -1", "line 3: 000001.jpg has 2 values for 3 attributes"),
        ("list_attr_celeba.txt", 4, "000002.jpg 1 0 -1", "line 4: Eyeglasses is '0', expected -1 or 1"),
        ("list_attr_celeba.txt", 4, "000001.jpg 1 1 -1", "line 4: 000001.jpg comes twice"),
        ("list_eval_partition.txt", 2, "000002.jpg 3", "line 2: expected a picture and 0, 1 or 2"),
        ("list_eval_partition.txt", 2, "000001.jpg 0", "line 2: 000001.jpg comes twice"),
    ],
)
def test_broken_lists_are_named_with_their_line(celeba: Path, file: str, line: int, text: str, words: str) -> None:
    rewrite(celeba / file, line, text)
    with pytest.raises(BrokenFile, match=words):
        load_celeba(celeba)


def test_an_empty_part_is_refused(celeba: Path) -> None:
    rewrite(celeba / "list_eval_partition.txt", 4, "000004.jpg 0")
    with pytest.raises(WrongImages, match="no picture to validation"):
        load_celeba(celeba)


@pytest.mark.parametrize("name", ["img_align_celeba", "list_attr_celeba.txt", "list_eval_partition.txt"])
def test_what_is_missing_is_named(celeba: Path, name: str) -> None:
    (celeba / name).rename(celeba / "elsewhere")
    with pytest.raises(MissingFiles, match=f"has no {name}"):
        load_celeba(celeba)
