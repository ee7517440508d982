"""CMU faces: names are labels, people are apart, the crop is where it is said to be, and errors are one line."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from argrad.data import BrokenFile, DataError, MissingFiles, UnknownData, WrongImages, WrongOption, load, load_cmu_faces
from argrad.data.cmu_faces import ATTRIBUTES, EXPRESSIONS, POSES, mirrored


def picture(shade: int, size: tuple[int, int] = (60, 64)) -> bytes:
    """A frame of one shade whose corner of the crop is white."""
    array = np.full(size, shade, np.uint8)
    array[6:10, 12:16] = 255
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PPM")
    return file.getvalue()


def names(people: int) -> list[str]:
    return [
        f"faces/p{person}/p{person}_{pose}_{EXPRESSIONS[person % 4]}_{eyes}_2.pgm"
        for person in range(people)
        for pose in POSES
        for eyes in ("open", "sunglasses")
    ]


@pytest.fixture
def archive(folders: tuple[Path, Path]) -> Path:
    path = folders[0] / "cmu-faces" / "cmu_faces_60x64.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("faces/", "")
        file.writestr("faces/p0/p0_left_sad_open.pgm", b"full size, passed over")
        for number, name in enumerate(names(4)):
            file.writestr(name, picture(number))
    return path


def test_names_become_attributes_and_people_are_apart(archive: Path) -> None:
    faces = load_cmu_faces(test_people=1, validation_people=1)
    assert faces.names == ATTRIBUTES
    assert faces.shape == (32, 32)
    assert [len(part) for part in (faces.train, faces.validation, faces.test)] == [16, 8, 8]
    assert sorted(sum(faces.groups.values(), ())) == ["p0", "p1", "p2", "p3"]
    known = faces.test_attributes
    assert known[:, 0].tolist() == [0, 1] * 4
    assert known[:, 1:5].tolist() == torch.eye(4, dtype=torch.int64).repeat_interleave(2, 0).tolist()
    (person,) = faces.groups["test"]
    assert (known[:, 5:].argmax(1) == int(person[1]) % 4).all()
    shade = faces.test[:, 20, 20].tolist()  # pictures are numbered by their shade
    assert shade == [8 * int(person[1]) + number for number in range(8)]


def test_crop_starts_at_its_corner(archive: Path) -> None:
    at_full_size = load_cmu_faces(size=(40, 40), test_people=1, validation_people=0).train[0]
    assert (at_full_size[:4, :4] == 255).all()
    assert (at_full_size[4:] < 255).all()
    assert load_cmu_faces(size=None, test_people=1, validation_people=0).shape == (60, 64)


def test_seed_decides_who_is_tested(archive: Path) -> None:
    tested = {load_cmu_faces(test_people=1, validation_people=1, split_seed=seed).groups["test"] for seed in range(6)}
    assert len(tested) > 1
    once, again = (load_cmu_faces(test_people=1, validation_people=1, split_seed=3) for _ in range(2))
    assert once.groups == again.groups


def test_some_attributes_in_the_order_asked_for(archive: Path) -> None:
    faces = load_cmu_faces(attributes=["up", "sunglasses"], test_people=1, validation_people=1)
    assert faces.names == ("up", "sunglasses")
    assert faces.test_attributes.tolist() == [[0, 0], [0, 1]] * 3 + [[1, 0], [1, 1]]
    assert faces.column("sunglasses") == 1


def test_a_folder_serves_as_well(archive: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        file.extractall(tmp_path / "unpacked")
    from_folder = load_cmu_faces(tmp_path / "unpacked", test_people=1, validation_people=1)
    assert torch.equal(from_folder.train, load_cmu_faces(test_people=1, validation_people=1).train)


def test_frames_by_person_through_the_catalogue(archive: Path) -> None:
    images = load("cmu-faces", binarize="none", fractions=(0.5, 0.25, 0.25))
    assert images.shape == (60, 64)
    assert images.train_labels is not None
    assert set(images.train_labels.tolist()) <= {0, 1, 2, 3}


def test_mirrored_exchanges_left_and_right(archive: Path) -> None:
    faces = load_cmu_faces(test_people=1, validation_people=1)
    images, known = mirrored(faces.train, faces.train_attributes, faces.names)
    assert torch.equal(images[:, :, 0], faces.train[:, :, -1])
    assert torch.equal(known[:, 1], faces.train_attributes[:, 2])
    assert torch.equal(known[:, 3:], faces.train_attributes[:, 3:])
    with pytest.raises(WrongOption, match='both "left" and "right"'):
        mirrored(images, known[:, :2], ("sunglasses", "left"))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"attributes": ["moustache"]}, "no attribute 'moustache': choose from sunglasses"),
        ({"attributes": "up"}, "give a list"),
        ({"attributes": ["up", "up"]}, "each once"),
        ({"size": (0, 32)}, "height and width"),
        ({"test_people": 0}, "there are 4 people"),
        ({"test_people": 2, "validation_people": 2}, "there are 4 people"),
        ({"split_seed": -1}, "split_seed"),
    ],
)
def test_wrong_options_are_refused(archive: Path, wrong: dict, words: str) -> None:
    with pytest.raises(WrongOption, match=words) as caught:
        load_cmu_faces(**{"test_people": 1, "validation_people": 1, **wrong})
    assert "\n" not in str(caught.value)


def test_broken_files_are_named(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownData, match="no file or folder"):
        load_cmu_faces(tmp_path / "nowhere")
    (tmp_path / "text.zip").write_text("no zip")
    with pytest.raises(BrokenFile, match=r"text\.zip"):
        load_cmu_faces(tmp_path / "text.zip")
    (tmp_path / "empty").mkdir()
    with pytest.raises(WrongImages, match="holds no picture"):
        load_cmu_faces(tmp_path / "empty")
    for content, error, words in ((picture(3, (30, 32)), WrongImages, "30x32"), (b"P5 60", BrokenFile, "cannot be")):
        (tmp_path / "empty" / "p1_up_sad_open_2.pgm").write_bytes(content)
        with pytest.raises(error, match=words):
            load_cmu_faces(tmp_path / "empty")


def test_missing_archive_is_said_to_be_brought_by_hand(folders: tuple[Path, Path]) -> None:
    with pytest.raises(MissingFiles, match="does not download it"):
        load_cmu_faces()
    assert issubclass(MissingFiles, DataError)


def test_the_real_faces(data_root: Path) -> None:
    if not (data_root / "cmu-faces").is_dir():
        pytest.skip("needs cmu-faces in $ARGRAD_DATA")
    faces = load_cmu_faces()
    counts = sum(part.sum(0) for part in (faces.train_attributes, faces.validation_attributes, faces.test_attributes))
    assert dict(zip(faces.names, counts.tolist(), strict=True)) == {
        **{"sunglasses": 311, "left": 157, "right": 155, "straight": 156, "up": 156},
        **{"neutral": 158, "happy": 155, "sad": 156, "angry": 155},
    }
    assert [len(people) for people in faces.groups.values()] == [12, 3, 5]
    assert len(faces.train) + len(faces.validation) + len(faces.test) == 624
