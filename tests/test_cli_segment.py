"""`argrad segment` from label maps to a labelled scan and its score, and one line for each mistake."""

import csv
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from argrad import cli
from argrad.training import read_tensors
from ellipses import cases

nibabel = pytest.importorskip("nibabel")

SMALL = ["--latent", "4", "--width", "4", "--epochs", "3", "--batch-size", "4", "--device", "cpu"]
FIT = ["--width", "4", "--epochs", "2", "--pretrain-epochs", "1", "--batch-size", "4", "--refine", "5"]
FIT += ["--background-classes", "2", "--shared", "5+9", "--device", "cpu"]
SHAPE = (16, 18, 15)
TURNED = np.diag([-1.0, 1.0, -2.0, 1.0])


def save(path: Path, data: np.ndarray, affine: np.ndarray | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.Nifti1Image(data.astype(np.float32), np.eye(4) if affine is None else affine).to_filename(path)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """Label maps, scans, and runs of both stages trained on them."""
    root = tmp_path_factory.mktemp("study")
    maps, _ = cases(6, 0, SHAPE)
    reference, scans = cases(4, 1, SHAPE)
    for number, one in enumerate(maps):
        save(root / f"a/labelsTr/case_{number:03d}.nii.gz", one)
    (root / "a/dataset.json").write_text(json.dumps({"labels": {"background": 0, "left, lower": 5, "right": 9}}))
    for number, (labels, one) in enumerate(zip(reference, scans, strict=True)):
        save(root / f"b/imagesTr/scan_{number}_0000.nii.gz", one)
        save(root / f"b/labelsTr/scan_{number}.nii.gz", labels)
    save(root / "turned.nii.gz", scans[0][::-1, :, ::-1], TURNED)
    assert cli.main(["segment", "prior", "--labels", str(root / "a"), "--run-folder", str(root / "prior"), *SMALL]) == 0
    arguments = ["--scans", str(root / "b"), "--prior", str(root / "prior"), "--run-folder", str(root / "model")]
    assert cli.main(["segment", "fit", *arguments, *FIT]) == 0
    return root


def apply(study: Path, scan: Path, output: Path, *more: str) -> int:
    return cli.main(["segment", "apply", str(scan), "--run", str(study / "model"), "-o", str(output), *more])


def one_error(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("argrad: ")
    return lines[0]


def test_a_scan_is_labelled_in_its_own_grid(study, tmp_path, capsys):
    capsys.readouterr()
    assert apply(study, study / "b/imagesTr/scan_0_0000.nii.gz", tmp_path / "seg.nii.gz", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    found = nibabel.load(tmp_path / "seg.nii.gz")
    labels = np.asarray(found.dataobj)
    assert set(np.unique(labels)) == {0, 5, 9}
    posterior = nibabel.load(tmp_path / "seg-posterior.nii.gz").get_fdata()
    assert posterior.shape == (*SHAPE, 3)
    np.testing.assert_allclose(posterior.sum(-1), 1, atol=1e-5)
    np.testing.assert_array_equal(np.array([0, 5, 9])[posterior.argmax(-1)], labels)
    rows = list(csv.DictReader((tmp_path / "seg-volumes.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == ["left, lower", "right"]
    assert int(rows[0]["voxels"]) == (labels == 5).sum()
    assert float(rows[1]["volume_ml"]) == pytest.approx((labels == 9).sum() / 1000, abs=1e-4)
    assert said["volumes_ml"]["right"] == pytest.approx((labels == 9).sum() / 1000)
    page = (tmp_path / "seg.html").read_text()
    assert page.count("<img") == 3
    assert "left, lower" in page


def test_a_sheared_scan_of_other_axes_gets_the_same_labels(study, tmp_path):
    scan = study / "b/imagesTr/scan_0_0000.nii.gz"
    sheared = np.array([[0, 0, 10.0, 5], [-10.0, 1.0, 0, 2], [1.0, 10.0, 0.5, -4], [0, 0, 0, 1]])
    save(tmp_path / "scan.nii.gz", nibabel.load(scan).get_fdata().transpose(1, 2, 0)[::-1], sheared)
    assert apply(study, scan, tmp_path / "plain.nii.gz") == 0
    assert apply(study, tmp_path / "scan.nii.gz", tmp_path / "out.nii.gz") == 0
    plain, found = nibabel.load(tmp_path / "plain.nii.gz"), nibabel.load(tmp_path / "out.nii.gz")
    np.testing.assert_allclose(found.affine, sheared, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(found.dataobj)[::-1].transpose(2, 0, 1), np.asarray(plain.dataobj))
    page = (tmp_path / "out.html").read_text()
    for row in csv.DictReader((tmp_path / "out-volumes.csv").read_text().splitlines()):
        assert float(row["volume_ml"]) == pytest.approx(int(row["voxels"]) * 1.01)  # the determinant
        assert f"{float(row['volume_ml']):.2f} ml" in page


def test_another_orientation_gets_the_same_labels_turned(study, tmp_path):
    assert apply(study, study / "b/imagesTr/scan_0_0000.nii.gz", tmp_path / "plain.nii.gz") == 0
    assert apply(study, study / "turned.nii.gz", tmp_path / "turned.nii") == 0
    plain, turned = nibabel.load(tmp_path / "plain.nii.gz"), nibabel.load(tmp_path / "turned.nii")
    np.testing.assert_allclose(turned.affine, TURNED)
    np.testing.assert_array_equal(np.asarray(turned.dataobj)[::-1, :, ::-1], np.asarray(plain.dataobj))
    rows = list(csv.DictReader((tmp_path / "turned-volumes.csv").read_text().splitlines()))
    assert float(rows[0]["volume_ml"]) == pytest.approx(int(rows[0]["voxels"]) * 2 / 1000, abs=1e-4)


def test_segmentations_are_scored_by_name(study, tmp_path, capsys):
    for number in range(2):
        assert apply(study, study / f"b/imagesTr/scan_{number}_0000.nii.gz", tmp_path / f"scan_{number}.nii.gz") == 0
    capsys.readouterr()
    names = ["--names", str(study / "a/dataset.json")]
    assert cli.main(["segment", "evaluate", str(tmp_path), str(study / "b"), *names, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["cases"] == 2
    assert 0 < said["structures"]["right"]["dice"] <= 1
    assert len(said["rows"]) == 4
    reference = str(study / "b/labelsTr/scan_1.nii.gz")
    assert cli.main(["segment", "evaluate", reference, reference]) == 0
    assert "1.000 (0.000)      0.00" in capsys.readouterr().out
    save(tmp_path / "other/scan_1.nii.gz", np.zeros((3, 3, 3)))
    assert cli.main(["segment", "evaluate", str(tmp_path / "other"), str(study / "b")]) == 2
    assert "not on the same grid" in one_error(capsys)
    save(tmp_path / "only/scan_1-posterior.nii.gz", np.zeros((3, 3, 3)))
    assert cli.main(["segment", "evaluate", str(tmp_path / "only"), str(study / "b")]) == 2
    assert "probabilities only" in one_error(capsys)
    save(tmp_path / "empty/scan_1.nii.gz", np.zeros(SHAPE))
    assert cli.main(["segment", "evaluate", str(tmp_path / "empty"), str(study / "b"), "--json"]) == 0
    nothing = json.loads(capsys.readouterr().out)["structures"]["5"]
    assert nothing["dice"] == 0
    assert nothing["hd95"] == pytest.approx(np.linalg.norm(SHAPE))
    save(tmp_path / "more/stranger.nii.gz", np.zeros((3, 3, 3)))
    assert cli.main(["segment", "evaluate", str(tmp_path / "more"), str(study / "b")]) == 2
    assert "no reference for stranger" in one_error(capsys)


def test_nothing_is_written_over_and_nothing_left_after_an_error(study, tmp_path, capsys):
    scan, output = study / "b/imagesTr/scan_0_0000.nii.gz", tmp_path / "seg.nii.gz"
    (tmp_path / "seg.html").write_text("mine")
    assert apply(study, scan, output) == 2
    assert "already there" in one_error(capsys)
    assert (tmp_path / "seg.html").read_text() == "mine"
    assert apply(study, scan, output, "--overwrite") == 0
    assert (tmp_path / "seg.html").read_text() != "mine"
    capsys.readouterr()
    before = output.read_bytes()
    broken = tmp_path / "broken.nii.gz"
    broken.write_bytes(scan.read_bytes()[:500])
    save(tmp_path / "four.nii", np.random.default_rng(0).random((4, 4, 4, 2)))
    nan = np.ones((4, 4, 4))
    nan[0, 0, 0] = np.nan
    save(tmp_path / "nan.nii", nan)
    for name, words in {"broken.nii.gz": "cut short", "four.nii": "4 dimensions", "nan.nii": "NaN"}.items():
        assert apply(study, tmp_path / name, output, "--overwrite") == 2
        assert words in one_error(capsys)
        assert output.read_bytes() == before
    assert apply(study, scan, scan, "--overwrite") == 2
    assert "scan itself" in one_error(capsys)
    assert apply(study, scan, tmp_path / "nowhere" / "seg.nii") == 2
    assert "not a folder" in one_error(capsys)
    assert apply(study, scan, tmp_path / "seg.png") == 2
    assert "must end in" in one_error(capsys)


def test_wrong_label_maps_leave_no_run_behind(study, tmp_path, capsys):
    maps, _ = cases(1, 0, SHAPE)
    save(tmp_path / "labels/one.nii.gz", maps[0])
    run = ["--run-folder", str(tmp_path / "run"), *SMALL]
    (tmp_path / "names.json").write_text('{"5": "left"}')
    names = ["--names", str(tmp_path / "names.json")]
    assert cli.main(["segment", "prior", "--labels", str(tmp_path / "labels"), *names, *run]) == 2
    assert "does not know: 9" in one_error(capsys)
    save(tmp_path / "labels/two.nii.gz", 0 * maps[0])
    assert cli.main(["segment", "prior", "--labels", str(tmp_path / "labels"), *run]) == 2
    assert "two.nii.gz is empty" in one_error(capsys)
    assert cli.main(["segment", "prior", "--labels", str(tmp_path / "none"), *run]) == 2
    assert "does not exist" in one_error(capsys)
    assert cli.main(["segment", "prior", *run]) == 2
    assert "--labels" in one_error(capsys)
    assert not (tmp_path / "run").exists()


def test_runs_are_told_apart(study, tmp_path, capsys):
    scans = ["--scans", str(study / "b"), "--run-folder", str(tmp_path / "run"), *FIT]
    assert cli.main(["segment", "fit", *scans, "--prior", str(study / "model")]) == 2
    assert "not of anatomical prior" in one_error(capsys)
    assert cli.main(["segment", "fit", *scans, "--prior", str(study / "prior"), "--shared", "5+7"]) == 2
    assert "5+7" in one_error(capsys)
    assert cli.main(["segment", "fit", *scans, "--prior", str(study / "prior"), "--intensities", "fixed"]) == 2
    assert "Python" in one_error(capsys)
    assert not (tmp_path / "run").exists()
    assert cli.main(["segment", "nonsense"]) == 2
    assert "choose one of prior, fit, apply, evaluate" in one_error(capsys)


@pytest.mark.parametrize("stage", ["prior", "fit"])
def test_an_interrupted_run_ends_in_the_same_weights(study, tmp_path, stage, monkeypatch):
    """Stopped after the first epoch and resumed: bit for bit the run that was not."""

    class Impatient:
        """Watches, and asks to stop once."""

        asked = False

        def __init__(self, *arguments: object) -> None:
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def start(self, steps: int, done: int) -> None:
            pass

        def step(self, done: int, epoch: int, loss: float) -> None:
            pass

        def epoch(self, metrics: dict[str, float]) -> None:
            if not Impatient.asked:
                Impatient.asked = True
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("argrad.cli.progress.Bar", Impatient)
    run = tmp_path / "run"
    source = ["--labels", str(study / "a")] if stage == "prior" else ["--scans", str(study / "b")]
    options = SMALL if stage == "prior" else [*FIT, "--prior", str(study / "prior")]
    assert cli.main(["segment", stage, *source, *options, "--run-folder", str(run)]) == 130
    assert cli.main(["segment", stage, "--resume", str(run), "--device", "cpu"]) == 0
    whole = study / ("prior" if stage == "prior" else "model")
    (resumed, _), (straight, _) = (read_tensors(folder / "model.safetensors") for folder in (run, whole))
    assert resumed.keys() == straight.keys()
    for name, tensor in resumed.items():
        assert torch.equal(tensor, straight[name]), name


def test_a_resumed_run_keeps_its_settings_and_may_have_more_epochs(study, tmp_path, capsys):
    run = tmp_path / "run"
    source = ["--labels", str(study / "a")]
    assert cli.main(["segment", "prior", *source, *SMALL, "--run-folder", str(run)]) == 0
    capsys.readouterr()
    resume = ["segment", "prior", "--resume", str(run), "--device", "cpu"]
    assert cli.main([*resume, "--latent", "7"]) == 2
    assert "--latent differ" in one_error(capsys)
    assert cli.main([*resume, "--labels", str(study / "b")]) == 2
    assert "--labels differ" in one_error(capsys)
    assert cli.main([*resume, *source, "--epochs", "5", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["epochs"] == 5
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 5
    assert cli.main(["segment", "fit", "--resume", str(run)]) == 2
    assert "not of anatomical segmentation" in one_error(capsys)


@pytest.mark.parametrize("stage", ["", "prior", "fit", "apply", "evaluate"])
def test_help(stage, capsys):
    assert cli.main(["segment", *stage.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert "argrad segment" in text
    assert "type: ignore" not in text
