"""The hippocampus experiment on a tiny copy of its data: read without nibabel, chosen on stage 1, paired, and whole."""

import gzip
import io
import json
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from argrad import cli
from argrad.data.errors import BrokenFile, MissingFiles
from argrad.experiments import hippocampus
from argrad.experiments.hippocampus import Hippocampus, change_contrast, format_table, markdown
from argrad.experiments.hippocampus_baselines import mixture, overlap_loss
from argrad.experiments.hippocampus_data import NAME, load_hippocampus, parse_nifti
from argrad.experiments.hippocampus_page import differences
from argrad.models.anatomy.intensities import Classes
from argrad.models.anatomy.model import Reading
from argrad.models.anatomy.overlap import dice
from argrad.models.anatomy.prior import location_prior, region_of_interest
from ellipses import cases
from tiny_images import silent

nibabel = pytest.importorskip("nibabel")

SHAPE = (16, 18, 15)
TINY = Hippocampus(quick=True, cases=4, held_out=1, epochs=1, prior_epochs=2, device="cpu")
ROWS = [
    "location prior, centre",
    "EM with location prior, centre",
    "location prior, fit",
    "EM with location prior, fit",
]
ROWS += ["ours", "ours, on the working grid", "ours, shape alone", "ours, encoder alone"]
ROWS += ["ours, sampled, straight-through", "ours, sampled, direct", "ours, Jensen's bound", "ours, both weights 1"]
ROWS += ["ours, global intensities", "ours, contrast inverted", "ours, contrast gamma 0.6", "ours, contrast gamma 1.6"]
ROWS += ["supervised U-Net"]


def nifti(array: np.ndarray) -> bytes:
    return nibabel.Nifti1Image(array, np.eye(4)).to_bytes()


@pytest.fixture(scope="module")
def tiny_root(tmp_path_factory) -> Path:
    """Eight ellipses in a tar of the official layout."""
    root = tmp_path_factory.mktemp("data")
    (root / NAME).parent.mkdir()
    maps, scans = cases(8, 0, SHAPE)
    with tarfile.open(root / NAME, "w") as tar:
        for number, (labels, scan) in enumerate(zip(maps, scans, strict=True)):
            ids = np.searchsorted([0, 5, 9], labels).astype(np.uint8)
            for folder, array in (("imagesTr", scan.astype(np.float32)), ("labelsTr", ids)):
                contents = gzip.compress(nifti(array))
                entry = tarfile.TarInfo(f"Task04_Hippocampus/{folder}/hippocampus_{number:03d}.nii.gz")
                entry.size = len(contents)
                tar.addfile(entry, io.BytesIO(contents))
    return root


@pytest.fixture(scope="module")
def result_and_sampled(tiny_root) -> tuple[dict, list[Reading]]:
    """The result, and how the models read whose segmentations were sampled."""
    sampled, infer = [], hippocampus.infer_sampled

    def remember(model, *arguments):
        sampled.append(model.reading)
        return infer(model, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARGRAD_DATA", str(tiny_root))
        patch.setattr(hippocampus, "infer_sampled", remember)
        return hippocampus.run(TINY, progress=silent), sampled


@pytest.fixture(scope="module")
def result(result_and_sampled) -> dict:
    return result_and_sampled[0]


def test_the_result_has_every_row_for_every_scan(result):
    json.dumps(result, allow_nan=False)
    assert {"command", "commit", "hardware", "software", "date", "settings", "quick", "chosen"} <= result.keys()
    assert list(result["rows"]) == ROWS
    assert {len(values) for values in result["dice"].values()} == {4}
    assert result["rows"]["ours"]["mean"] == pytest.approx(np.mean(result["dice"]["ours"], 0), abs=1e-4)
    stages = result["cases"]
    assert not set(stages["stage 1"]) & set(stages["stage 2"])


def test_choices_are_the_best_on_stage_1(result):
    chosen = result["chosen"]
    for likelihood in ("exact", "jensen"):
        tried = {name: sum(means) for name, means in chosen["tried"].items() if f"choosing, {likelihood}" in name}
        assert len(tried) == 2
        best = chosen[likelihood]
        name = f"choosing, {likelihood}, {best['shape_weight']:g}, {best['label_weight']:g}"
        assert tried[name] == max(tried.values())


def test_segmentations_are_sampled_in_a_model_of_their_own_objective(result_and_sampled):
    """In expectation they give Jensen's bound, so the model is fitted by it, with the weights chosen for it."""
    result, sampled = result_and_sampled
    assert [reading.likelihood for reading in sampled] == ["jensen", "jensen"]
    for reading in sampled:
        assert vars(reading).items() >= result["chosen"]["jensen"].items()


def test_words(result):
    assert format_table(result).startswith("A QUICK run")
    table = markdown(result)
    assert all(f"| {row} |" in table for row in ROWS)
    assert "Mean ± standard deviation over 4 scans" in table
    assert "Chosen on cases of stage 1" in table


def test_halves_depend_on_the_seed_alone(tiny_root, monkeypatch):
    monkeypatch.setenv("ARGRAD_DATA", str(tiny_root))
    first, second = load_hippocampus(0)
    assert load_hippocampus(0)[0].names == first.names
    assert load_hippocampus(1)[0].names != first.names
    assert sorted(first.names + second.names) == [f"hippocampus_{number:03d}" for number in range(8)]
    assert load_hippocampus(0, 2)[1].names == second.names[:2]
    assert first[1:3].names == first.names[1:3]
    assert first.labels[0].unique().tolist() == [0, 1, 2]
    monkeypatch.setenv("ARGRAD_DATA", str(tiny_root / "nowhere"))
    with pytest.raises(MissingFiles, match="put it into"):
        load_hippocampus()


@pytest.mark.parametrize("kind", ["u1", "i2", ">i2", "f4", ">f4", "f8"])
def test_files_are_read_as_nibabel_reads_them(kind):
    array = np.random.default_rng(0).integers(0, 200, (3, 4, 5)).astype(kind)
    header = nibabel.Nifti1Header(endianness=">" if kind[0] == ">" else "<")
    image = nibabel.Nifti1Image(array, np.eye(4), header, dtype=array.dtype)
    np.testing.assert_array_equal(parse_nifti(image.to_bytes()), array)


def test_slope_and_offset_are_applied():
    image = nibabel.Nifti1Image(np.arange(8, dtype=np.float32).reshape(2, 2, 2), np.eye(4))
    image.header.set_data_dtype(np.int16)
    image.header.set_slope_inter(0.5, 10)
    contents = image.to_bytes()
    np.testing.assert_allclose(parse_nifti(contents), nibabel.Nifti1Image.from_bytes(contents).get_fdata())
    for wrong in (b"", b"no image" * 60, contents[:-3]):
        with pytest.raises(BrokenFile, match="NIfTI-1"):
            parse_nifti(wrong)


def test_differences_are_paired():
    """A method that is 0.1 worse on every scan has no spread, however much scans differ."""
    ours = torch.rand(20, 2, generator=torch.Generator().manual_seed(0)).double()
    rows = {"ours": ours.tolist(), "worse": (ours - 0.1).tolist(), "noisy": ours.flip(0).tolist()}
    found = differences(rows)
    assert found["worse"] == {"mean": [0.1, 0.1], "low": [0.1, 0.1], "high": [0.1, 0.1]}
    assert found["noisy"]["low"][0] < 0 < found["noisy"]["high"][0]
    assert found["noisy"]["mean"] == [0, 0]
    assert differences({**rows, "ours, on the working grid": ours.tolist()}) == found


def test_em_with_a_location_prior_uses_both():
    maps, scans = cases(12, 1, SHAPE)
    indices = torch.stack([torch.from_numpy(np.searchsorted([0, 5, 9], one)) for one in maps])
    location, classes = location_prior(indices[2:], 3), Classes.of(3, shared=((1, 2),), background=2)
    region = region_of_interest(indices)
    for scan, labels in zip(scans[:2], indices, strict=False):
        found = mixture(location, region, torch.from_numpy(scan).float(), "fit", classes)
        assert bool((dice(found, labels, 3) > dice(location.argmax(0), labels, 3)).all())


def test_contrast_changes_keep_or_turn_the_order():
    scan = torch.rand(8, 8, 8, generator=torch.Generator().manual_seed(0))
    order = scan.flatten().argsort()[20:-20]
    assert bool((change_contrast(scan, None).flatten()[order].diff() <= 0).all())
    assert bool((change_contrast(scan, 0.6).flatten()[order].diff() >= 0).all())
    assert change_contrast(scan, 0.6).mean() > change_contrast(scan, 1.6).mean()


def test_overlap_loss_is_least_at_the_labels():
    target = torch.randint(0, 3, (2, 4, 4, 4), generator=torch.Generator().manual_seed(0))
    right = 20 * torch.nn.functional.one_hot(target, 3).movedim(-1, 1).float()
    assert overlap_loss(right, target).item() == pytest.approx(0, abs=1e-4)
    assert overlap_loss(right.roll(1, 0), target) > 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cases": 1}, "cases must be at least 2"),
        ({"held_out": 130}, "less than cases"),
        ({"shape_weights": ()}, "at least one shape weight"),
        ({"shape_weights": (-1.0,)}, "must not be negative"),
        ({"epochs": 0}, "epochs must be at least 1"),
    ],
)
def test_wrong_settings_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Hippocampus(**options)


@pytest.mark.slow
def test_a_real_case_is_labelled_within_a_minute(data_root, tmp_path, capsys):
    """From the official folder layout through all commands, with networks of the usual size."""
    with tarfile.open(data_root / NAME) as tar:
        members = [member for member in tar.getmembers() if member.name.endswith((".nii.gz", ".json"))]
        some = [member for member in members if "_00" in member.name or member.name.endswith("dataset.json")]
        tar.extractall(tmp_path, some, filter="data")
    study = tmp_path / "Task04_Hippocampus"
    scan = sorted((study / "imagesTr").iterdir())[0]
    prior = ["--labels", str(study), "--run-folder", str(tmp_path / "prior"), "--epochs", "10"]
    assert cli.main(["segment", "prior", *prior, "--device", "cpu"]) == 0
    fit = ["--scans", str(study), "--prior", str(tmp_path / "prior"), "--run-folder", str(tmp_path / "model")]
    few = ["--shared", "1+2", "--epochs", "3", "--pretrain-epochs", "1"]
    assert cli.main(["segment", "fit", *fit, *few, "--device", "cpu"]) == 0
    began = time.process_time()
    apply = ["segment", "apply", str(scan), "--run", str(tmp_path / "model"), "-o", str(tmp_path / "out.nii.gz")]
    assert cli.main(apply) == 0
    assert time.process_time() - began < 60
    capsys.readouterr()
    reference = study / "labelsTr" / scan.name
    assert cli.main(["segment", "evaluate", str(tmp_path / "out.nii.gz"), str(reference), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["structures"]
    assert all(structure["dice"] > 0.6 for structure in scores.values()), scores
