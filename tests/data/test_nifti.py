"""NIfTI files: any orientation in, canonical inside, the same out; one clear line for each bad file."""

import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from argrad.data.errors import BrokenFile, DataError, UnknownData
from argrad.data.label_table import LabelTable, WrongLabels
from argrad.data.nifti import find_cases, find_table, image_bytes, read_labels, read_scan

nibabel = pytest.importorskip("nibabel")

ORIENTATIONS = list(itertools.product((1, -1), repeat=3))
SHEARED = np.array([[1.0, 0.2, 0.0, 5], [0.0, 1.5, 0.1, -3], [0.1, 0.0, 2.0, 7], [0, 0, 0, 1]])


def voxels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 900, (5, 6, 7)).astype(np.float32)


def save(path: Path, data: np.ndarray, affine: np.ndarray | None = None) -> Path:
    nibabel.Nifti1Image(data, np.eye(4) if affine is None else affine).to_filename(path)
    return path


def affines() -> list[np.ndarray]:
    swapped = SHEARED[:, [2, 0, 1, 3]]
    flips = [np.diag([*signs, 1.0]) @ np.diag([1, 2, 3, 1.0]) for signs in ORIENTATIONS]
    return [*flips, SHEARED, swapped]


@pytest.mark.parametrize("affine", affines(), ids=lambda affine: "".join(nibabel.aff2axcodes(affine)))
@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_what_is_written_overlays_what_was_read(tmp_path, affine, ending):
    data = voxels()
    scan = read_scan(save(tmp_path / f"scan{ending}", data, affine))
    canonical = nibabel.as_closest_canonical(nibabel.Nifti1Image(data, affine))
    np.testing.assert_array_equal(scan.data, canonical.get_fdata())
    np.testing.assert_allclose(scan.voxel_sizes, canonical.header.get_zooms(), rtol=1e-5)
    out = tmp_path / f"out{ending}"
    out.write_bytes(image_bytes(scan, scan.data.astype(int), out))
    back = nibabel.load(out)
    np.testing.assert_array_equal(np.asarray(back.dataobj), data)
    np.testing.assert_allclose(back.affine, affine, atol=1e-6)
    assert back.get_data_dtype() == np.int32


def test_several_maps_go_into_one_file(tmp_path):
    scan = read_scan(save(tmp_path / "scan.nii", voxels(), np.diag([-1.0, 1, -1, 1])))
    maps = np.stack([scan.data / 900, 1 - scan.data / 900], -1)
    (tmp_path / "maps.nii.gz").write_bytes(image_bytes(scan, maps, tmp_path / "maps.nii.gz"))
    back = nibabel.load(tmp_path / "maps.nii.gz")
    np.testing.assert_allclose(back.get_fdata()[..., 0], voxels() / 900, atol=1e-6)
    assert back.get_data_dtype() == np.float32


def test_scaled_integers_are_read_as_intensities_and_written_without_the_scale(tmp_path):
    image = nibabel.Nifti1Image(voxels().astype(np.int16), np.eye(4))
    image.header.set_slope_inter(0.5, 10)
    image.to_filename(tmp_path / "scan.nii")
    scan = read_scan(tmp_path / "scan.nii")
    stored = np.asarray(nibabel.load(tmp_path / "scan.nii").dataobj)
    np.testing.assert_allclose(scan.data, stored)
    labels = (scan.data > scan.data.mean()).astype(int)
    (tmp_path / "out.nii").write_bytes(image_bytes(scan, labels, tmp_path / "out.nii"))
    np.testing.assert_array_equal(np.asarray(nibabel.load(tmp_path / "out.nii").dataobj), labels)


def test_freesurfer_files(tmp_path):
    nibabel.MGHImage(voxels(), SHEARED).to_filename(tmp_path / "scan.mgz")
    scan = read_scan(tmp_path / "scan.mgz")
    out = tmp_path / "out.mgz"
    out.write_bytes(image_bytes(scan, scan.data.astype(int), out))
    np.testing.assert_array_equal(np.asarray(nibabel.load(out).dataobj), voxels())
    nifti = tmp_path / "out.nii.gz"
    nifti.write_bytes(image_bytes(scan, scan.data.astype(int), nifti))
    np.testing.assert_allclose(nibabel.load(nifti).affine, nibabel.load(tmp_path / "scan.mgz").affine, atol=1e-5)


def test_bad_files_are_refused_in_one_line(tmp_path):
    whole = save(tmp_path / "whole.nii.gz", np.repeat(voxels(), 9, 0))
    (tmp_path / "short.nii.gz").write_bytes(whole.read_bytes()[: len(whole.read_bytes()) // 2])
    (tmp_path / "short.nii").write_bytes(gzip.decompress(whole.read_bytes())[:1000])
    (tmp_path / "text.nii").write_text("no image at all")
    save(tmp_path / "four.nii", np.zeros((3, 3, 3, 2), np.float32))
    nan = voxels()
    nan[0, 0, 0] = np.nan
    save(tmp_path / "nan.nii", nan)
    save(tmp_path / "flat.nii", np.ones((3, 3, 3), np.float32))
    for name, words in {
        "short.nii.gz": "cut short",
        "short.nii": "cut short",
        "text.nii": "not what its name says",
        "four.nii": "4 dimensions",
        "nan.nii": "1 voxels that are NaN",
        "flat.nii": "same intensity",
    }.items():
        with pytest.raises(BrokenFile, match=words) as caught:
            read_scan(tmp_path / name)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(UnknownData, match="does not exist"):
        read_scan(tmp_path / "missing.nii")
    with pytest.raises(DataError, match=r"must end in \.nii\.gz"):
        read_scan(tmp_path / "scan.png")


def test_a_trailing_dimension_of_one_is_no_fourth(tmp_path):
    assert read_scan(save(tmp_path / "scan.nii", voxels()[..., None])).data.shape == (5, 6, 7)


def test_label_maps_hold_whole_numbers_that_the_table_knows(tmp_path):
    labels = np.zeros((4, 4, 4), np.float32)
    labels[1, 1, 1], labels[2, 2, 2] = 17, 4
    found = read_labels(save(tmp_path / "labels.nii", labels)).data
    table = LabelTable.of({17: "hippocampus", 4: "ventricle"})
    indices = table.to_indices(found, "labels.nii")
    assert indices.max() == 2
    np.testing.assert_array_equal(table.to_ids(indices), labels)
    with pytest.raises(WrongLabels, match=r"labels\.nii has label ids that the table does not know: 17; known"):
        LabelTable.of({4: "ventricle"}).to_indices(found, "labels.nii")
    with pytest.raises(WrongLabels, match="empty"):
        table.to_indices(np.zeros_like(found), "labels.nii")
    with pytest.raises(BrokenFile, match="not a label map"):
        read_labels(save(tmp_path / "half.nii", labels + 0.5))
    with pytest.raises(BrokenFile, match="not a label map"):
        read_labels(save(tmp_path / "negative.nii", -labels))


def test_nnunet_folders(tmp_path):
    for folder, name in (("imagesTr", "case_001_0000"), ("imagesTr", "case_002_0000"), ("labelsTr", "case_001")):
        (tmp_path / folder).mkdir(exist_ok=True)
        save(tmp_path / folder / f"{name}.nii.gz", voxels())
    (tmp_path / "imagesTr" / "._case_001_0000.nii.gz").write_bytes(b"what another system leaves behind")
    assert [case.name for case in find_cases(tmp_path, ("imagesTr",))] == ["case_001", "case_002"]
    assert [case.name for case in find_cases(tmp_path, ("labelsTr",))] == ["case_001"]
    for labels in ({"0": "background", "1": "Anterior"}, {"background": 0, "Anterior": 1}):
        (tmp_path / "dataset.json").write_text(json.dumps({"labels": labels}))
        table = find_table(tmp_path / "labelsTr")
        assert table == LabelTable((0, 1), ("background", "Anterior"))
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "both": [1, 2]}}))
    with pytest.raises(BrokenFile, match="overlapping regions"):
        find_table(tmp_path)
    channel = save(tmp_path / "imagesTr" / "case_001_0001.nii.gz", voxels())
    with pytest.raises(DataError, match=r"case_001_0001.nii.gz is another channel of case_001; several"):
        find_cases(tmp_path, ("imagesTr",))
    channel.unlink()
    save(tmp_path / "imagesTr" / "case_001.nii.gz", voxels())
    with pytest.raises(DataError, match="same case"):
        find_cases(tmp_path, ("imagesTr",))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnknownData, match="holds no"):
        find_cases(tmp_path / "empty", ())
