"""One labelled scan: volumes, names and files agree with its probabilities."""

from pathlib import Path

import numpy as np
import pytest

from argrad.data.label_table import LabelTable
from argrad.data.nifti import read_labels, read_scan
from argrad.models.anatomy.files import LabelledScan

nibabel = pytest.importorskip("nibabel")

TABLE = LabelTable.of({5: "left, lower", 9: "right"})
TURNED = np.diag([-1.0, 2.0, 1.5, 1.0])


@pytest.fixture
def labelled(tmp_path: Path) -> LabelledScan:
    """Four slices of background, two of the first structure, one of the second; a certain voxel each."""
    generator = np.random.default_rng(0)
    nibabel.Nifti1Image(generator.random((7, 4, 3)).astype(np.float32), TURNED).to_filename(tmp_path / "scan.nii")
    indices = np.repeat([0, 0, 0, 0, 1, 1, 2], 12).reshape(7, 4, 3)
    probabilities = 0.2 + 0.4 * (indices == np.arange(3)[:, None, None, None])
    return LabelledScan(read_scan(tmp_path / "scan.nii"), probabilities.astype(np.float32), TABLE)


def test_volumes_count_voxels_of_their_size(labelled: LabelledScan) -> None:
    assert labelled.names == {0: "background", 5: "left, lower", 9: "right"}
    assert labelled.millilitres() == pytest.approx({"left, lower": 24 * 3 / 1000, "right": 12 * 3 / 1000})
    lines = labelled.volumes().splitlines()
    assert lines[1].startswith('5,"left, lower",24,0.0720,')
    assert lines[2].startswith("9,right,12,0.0360,")


def test_the_label_map_overlays_the_scan(labelled: LabelledScan, tmp_path: Path) -> None:
    path = tmp_path / "labels.nii.gz"
    path.write_bytes(labelled.label_map(path))
    np.testing.assert_array_equal(read_labels(path).data, TABLE.to_ids(labelled.indices))
    np.testing.assert_array_equal(nibabel.load(path).affine, TURNED)
    posterior = tmp_path / "posterior.nii"
    posterior.write_bytes(labelled.posterior(posterior))
    turned = nibabel.load(posterior).get_fdata()[::-1]  # the first axis of the file runs the other way
    np.testing.assert_allclose(turned, labelled.probabilities.transpose(1, 2, 3, 0))


def test_the_page_names_what_it_is_about(labelled: LabelledScan) -> None:
    page = labelled.page("scan <7>", {"run": "mine"})
    assert "Segmentation of scan &lt;7&gt;" in page
    assert "mine" in page
    assert page.count("<img") == 3
