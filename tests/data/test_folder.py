from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from argrad.data import BrokenFile, DataError, load
from argrad.data.folder import find_pictures, read_folder, read_picture


def save(path: Path, array: np.ndarray, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)  # type: ignore[arg-type]


def grey(value: int, height: int = 4, width: int = 6) -> np.ndarray:
    return np.full((height, width), value, np.uint8)


def test_natural_order_through_subfolders_without_strangers(tmp_path: Path) -> None:
    for name in ("10.png", "9.PNG", "sub/2.bmp", "sub/11.jpg", ".hidden.png", ".cache/1.png", "__MACOSX/1.png"):
        save(tmp_path / name, grey(5))
    (tmp_path / "labels.csv").write_text("9,1\n10,2\n")
    found = [path.relative_to(tmp_path).as_posix() for path in find_pictures(tmp_path)]
    assert found == ["9.PNG", "10.png", "sub/2.bmp", "sub/11.jpg"]


def test_pixels_are_exact_and_rows_come_before_columns(tmp_path: Path) -> None:
    pictures = np.random.RandomState(0).randint(0, 256, (10, 4, 6)).astype(np.uint8)
    for number, picture in enumerate(pictures):
        save(tmp_path / f"{number}.png", picture)
    raw = read_folder(tmp_path)
    assert (raw.rest.pixels == pictures).all()
    assert raw.full_scale == 255
    assert raw.rest.labels is None
    images = load(tmp_path, binarize="none")
    assert (images.shape, images.train.dtype, len(images.train)) == ((4, 6), torch.uint8, 8)


def test_subfolders_are_classes(tmp_path: Path) -> None:
    for name in ("cat10/1.png", "cat9/1.png", "cat9/deep/2.png"):
        save(tmp_path / name, grey(9))
    labels = read_folder(tmp_path).rest.labels
    assert labels is not None
    assert labels.tolist() == [0, 0, 1]
    save(tmp_path / "loose.png", grey(9))
    assert read_folder(tmp_path).rest.labels is None


def test_colour_comes_channels_first(tmp_path: Path) -> None:
    picture = np.random.RandomState(0).randint(0, 256, (4, 6, 3)).astype(np.uint8)
    save(tmp_path / "x.png", picture)
    assert (read_picture(tmp_path / "x.png") == picture.transpose(2, 0, 1)).all()
    assert read_picture(tmp_path / "x.png", colour="grey").shape == (4, 6)
    save(tmp_path / "g.png", grey(7))
    assert read_picture(tmp_path / "g.png", colour="rgb").tolist() == np.full((3, 4, 6), 7).tolist()


def test_transparency_is_shown_on_white(tmp_path: Path) -> None:
    rgba = np.zeros((1, 2, 4), np.uint8)
    rgba[0, 1] = (255, 0, 0, 255)
    save(tmp_path / "x.png", rgba)
    assert read_picture(tmp_path / "x.png").tolist() == [[[255, 255]], [[255, 0]], [[255, 0]]]
    Image.fromarray(rgba).convert("LA").save(tmp_path / "la.png")
    assert read_picture(tmp_path / "la.png").tolist() == [[255, 76]]


def test_sixteen_bits_keep_their_precision(tmp_path: Path) -> None:
    save(tmp_path / "x.png", np.array([[0, 1, 40_000, 65_535]], np.uint16))
    picture = read_picture(tmp_path / "x.png")
    assert picture.dtype == np.float32
    assert picture[0].tolist() == pytest.approx([0, 1 / 65_535, 40_000 / 65_535, 1])
    assert read_picture(tmp_path / "x.png", size=(2, 2), colour="grey").shape == (2, 2)
    assert read_picture(tmp_path / "x.png", size=(2, 2), colour="rgb").shape == (3, 2, 2)


def test_one_bit_palette_and_cmyk_pictures(tmp_path: Path) -> None:
    Image.fromarray(grey(255)).convert("1").save(tmp_path / "bit.png")
    assert read_picture(tmp_path / "bit.png").max() == 255
    Image.fromarray(grey(77)).convert("P").save(tmp_path / "palette.png")
    assert read_picture(tmp_path / "palette.png").tolist() == grey(77).tolist()
    Image.new("RGB", (6, 4), "red").convert("P").save(tmp_path / "red.png")
    assert read_picture(tmp_path / "red.png").shape == (3, 4, 6)
    Image.new("CMYK", (6, 4)).save(tmp_path / "cmyk.jpg")
    assert read_picture(tmp_path / "cmyk.jpg").shape == (3, 4, 6)


def test_orientation_mark_of_cameras(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees
    save(tmp_path / "x.jpg", grey(9), exif=exif)
    assert read_picture(tmp_path / "x.jpg").shape == (6, 4)


def test_pictures_of_zeros_and_ones_are_bits(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / f"{number}.png", grey(number % 2))
    assert load(tmp_path, binarize="none").full_scale == 1


def test_different_sizes_are_refused_or_resized(tmp_path: Path) -> None:
    save(tmp_path / "1.png", grey(200))
    save(tmp_path / "2.png", grey(200, 9, 6))
    save(tmp_path / "3.png", grey(200))
    with pytest.raises(DataError, match=r"2.png is 9x6 grey 8-bit, but .*1.png is 4x6 grey 8-bit.*size=\(28, 28\)"):
        load(tmp_path)
    assert load(tmp_path, size=(3, 5)).shape == (3, 5)


def test_grey_among_colour_is_refused_or_converted(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / f"{number}.png", grey(200) if number else np.zeros((4, 6, 3), np.uint8))
    with pytest.raises(
        DataError, match=r'1.png is 4x6 grey 8-bit, but .*0.png is 4x6 RGB.*colour="grey" or colour="rgb"'
    ):
        load(tmp_path)
    assert load(tmp_path, colour="grey").shape == (4, 6)
    assert load(tmp_path, colour="rgb").shape == (3, 4, 6)


def test_mixed_depths_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "1.png", grey(200))
    save(tmp_path / "2.png", grey(200).astype(np.uint16))
    with pytest.raises(DataError, match="save all with the same number of bits"):
        load(tmp_path)


def test_folders_without_pictures(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no files: put images there"):
        load(tmp_path)
    (tmp_path / "labels.csv").write_text("1")
    with pytest.raises(DataError, match=r"holds no pictures, only 1 other file\(s\)"):
        load(tmp_path)


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "bits"])
@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_corrupt_pictures_are_named(tmp_path: Path, damage: str, suffix: str) -> None:
    noise = np.random.RandomState(0).randint(0, 256, (40, 40)).astype(np.uint8)
    for number in range(3):
        save(tmp_path / f"{number}{suffix}", noise)
    path = tmp_path / f"1{suffix}"
    content = path.read_bytes()
    broken = {"empty": b"", "cut": content[: len(content) // 2], "text": b"hello", "bits": content[:20] + content[40:]}
    path.write_bytes(broken[damage])
    with pytest.raises(BrokenFile, match=rf"1{suffix} cannot be read as an image .*repair or remove it") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_floats_of_a_tiff_must_lie_between_zero_and_one(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / f"{number}.tif", np.full((2, 2), number, np.float32))
    with pytest.raises(DataError, match="values from 0 to 2: expected floats from 0 to 1"):
        load(tmp_path)


@pytest.mark.parametrize("size", [(0, 5), (5,), (5, 5, 3)])
def test_wrong_size(tmp_path: Path, size: tuple[int, int]) -> None:
    with pytest.raises(DataError, match="give height and width"):
        load(tmp_path, size=size)


def test_wrong_colour(tmp_path: Path) -> None:
    with pytest.raises(DataError, match='"keep", "grey" or "rgb"'):
        load(tmp_path, colour="blue")  # type: ignore[arg-type]
