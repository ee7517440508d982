"""Uploaded scans: what is read, and what is refused before it can do harm; one line each."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from argrad.app.segment.upload import MOST_NUMBERS, MOST_VOXELS, read_upload

nibabel = pytest.importorskip("nibabel")

SCAN = np.random.default_rng(0).random((5, 6, 7)).astype(np.float32)
AFFINE = np.diag([-1.0, 2.0, 1.5, 1.0])


def save(path: Path, data: np.ndarray = SCAN) -> Path:
    nibabel.Nifti1Image(data, AFFINE).to_filename(path)
    return path


def changed(path: Path, at: int, values: bytes) -> Path:
    """The same file with other bytes in its header."""
    packed = path.suffix == ".gz"
    contents = bytearray(gzip.decompress(path.read_bytes()) if packed else path.read_bytes())
    contents[at : at + len(values)] = values
    path.write_bytes(gzip.compress(contents) if packed else contents)
    return path


@pytest.mark.parametrize("name", ["scan.nii", "scan.nii.gz", "SCAN.NII.GZ"])
def test_a_scan_is_read_and_nothing_is_left_behind(tmp_path: Path, name: str) -> None:
    where = tmp_path / "unpacked"
    where.mkdir()
    volume = read_upload(save(tmp_path / name), 3, where)
    np.testing.assert_array_equal(volume.data, SCAN[::-1])
    assert not isinstance(volume.data.base, np.memmap) or name == "scan.nii"
    assert list(where.iterdir()) == []


def refused(path: Path, words: str, labels: int = 3) -> None:
    folder = path.parent / "unpacked"
    folder.mkdir()
    with pytest.raises(ValueError, match=words) as caught:
        read_upload(path, labels, folder)
    assert str(path.parent) not in str(caught.value)
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(folder.iterdir()) == []


def test_what_is_no_scan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "scan.txt").write_text("hello")
    refused(tmp_path / "scan.txt", "does not end in .nii or .nii.gz")


@pytest.mark.parametrize("contents", [b"", b"hello", bytes(1000)])
def test_what_is_only_called_a_scan_is_refused(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / "scan.nii").write_bytes(contents)
    refused(tmp_path / "scan.nii", "not a NIfTI file")


def test_a_name_that_is_wrong_about_compression_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "scan.nii").rename(tmp_path / "scan.nii.gz")
    refused(tmp_path / "scan.nii.gz", "not compressed")


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95])
@pytest.mark.parametrize("name", ["scan.nii", "scan.nii.gz"])
def test_a_scan_that_is_cut_short_is_refused(tmp_path: Path, name: str, share: float) -> None:
    path = save(tmp_path / name)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    refused(path, "cut short|not a NIfTI file|damaged")


@pytest.mark.parametrize("name", ["scan.nii", "scan.nii.gz"])
def test_a_header_that_promises_too_much_is_refused_unread(tmp_path: Path, name: str) -> None:
    path = changed(save(tmp_path / name), 42, struct.pack("<3h", 4096, 4096, 4096))
    refused(path, "4096 × 4096 × 4096 voxels, and 16,777,216 in all are the most")


def test_the_limit_depends_on_the_labels(tmp_path: Path) -> None:
    side = round((MOST_NUMBERS / 200) ** (1 / 3)) + 1
    assert side**3 < MOST_VOXELS
    path = changed(save(tmp_path / "scan.nii"), 42, struct.pack("<3h", side, side, side))
    refused(path, "the most that can be labelled", labels=200)


def test_a_small_header_before_a_huge_rest_is_not_unpacked(tmp_path: Path) -> None:
    """Three megabytes where a few hundred bytes are announced; a real one would have gigabytes."""
    path = save(tmp_path / "scan.nii.gz")
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + bytes(3 * 2**20)))
    refused(path, "more than its header says")


@pytest.mark.parametrize("begin", [-1.0, 1e9, float("nan"), float("inf")])
def test_voxels_far_from_the_header_are_refused(tmp_path: Path, begin: float) -> None:
    refused(changed(save(tmp_path / "scan.nii"), 108, struct.pack("<f", begin)), "broken header")


def test_sides_without_voxels_are_refused(tmp_path: Path) -> None:
    refused(changed(save(tmp_path / "scan.nii"), 42, struct.pack("<3h", 5, 0, 7)), "no voxels|broken header")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (np.random.default_rng(0).random((4, 4, 4, 2)), "4 dimensions"),
        (np.where(SCAN > 0.9, np.nan, SCAN), "NaN or infinite"),
        (np.ones((4, 4, 4)), "the same intensity everywhere"),
        (SCAN.astype(np.complex64), "complex numbers"),
    ],
)
def test_wrong_voxels_are_refused(tmp_path: Path, data: np.ndarray, words: str) -> None:
    refused(save(tmp_path / "scan.nii.gz", data), words)
