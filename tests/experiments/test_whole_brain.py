"""The whole-brain experiment: deformations, simulated scans, and a run on a brain of a few boxes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from argrad.data.errors import MissingFiles
from argrad.experiments import whole_brain
from argrad.experiments.whole_brain import NAME, WholeBrain, deformed, format_table, load_brain, markdown, simulated
from argrad.models.anatomy.overlap import dice
from tiny_images import silent

IDS = (0, 2, 3, 41, 42)


def boxes() -> np.ndarray:
    """Two halves of a shell and its inside, with FreeSurfer's numbers."""
    labels = np.zeros((64, 48, 56))
    labels[8:32, 8:40, 8:48], labels[32:56, 8:40, 8:48] = 3, 42
    labels[16:32, 16:32, 16:40], labels[32:48, 16:32, 16:40] = 2, 41
    labels[30:34, 20:24, 20:24] = 77  # no label of interest
    return labels


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / NAME).mkdir()
    labels = boxes()
    scan = labels / 42 + 0.02 * np.random.default_rng(0).normal(size=labels.shape)
    np.savez_compressed(tmp_path / NAME / "test_scan.npz", vol=scan, seg=labels)
    np.savez(tmp_path / NAME / "labels.npz", labels=np.array([0, 2, 3, 41, 42]))
    monkeypatch.setenv("ARGRAD_DATA", str(tmp_path))
    return tmp_path


def test_runs_from_end_to_end(root, monkeypatch):
    settings = WholeBrain(quick=True, grid=(16, 16, 16), device="cpu")
    priors, learn = [], whole_brain.learn_shapes

    def remember(*arguments):
        priors.append(learn(*arguments))
        return priors[-1]

    monkeypatch.setattr(whole_brain, "learn_shapes", remember)
    result = whole_brain.run(settings, progress=silent)
    json.dumps(result, allow_nan=False)
    assert {"command", "commit", "hardware", "date", "settings", "quick"} <= result.keys()
    assert result["structures"] == [2, 3, 41, 42]
    assert len(result["held_out"]["per_structure"]) == 4
    assert len(result["held_out"]["per_scan"]) == 2
    assert result["held_out"]["mean"] == pytest.approx(np.mean(result["held_out"]["per_scan"]), abs=1e-3)
    assert result["real_scan"]["mean"] > 0.5
    # Probabilities are interpolated as the model's are; labels would be those of the nearest voxel of the grid.
    brain, (prior,) = load_brain(whole_brain.QUICK_STEP), priors
    likely = interpolate(prior.location.exp()[None], tuple(brain.labels.shape), mode="trilinear")[0].argmax(0)
    expected = dice(likely, brain.labels, len(IDS)).mean().item()
    assert result["real_scan"]["location_prior"] == pytest.approx(expected, abs=1e-4)
    assert result["peak_memory_gb"]["host"] > 0
    assert format_table(result).startswith("A QUICK run")
    assert "mean Dice over 4 structures" in markdown(result)


def test_the_brain_has_numbers_from_zero(root, monkeypatch):
    brain = load_brain(2)
    assert brain.ids == IDS
    assert brain.voxel == 2.0
    assert brain.scan.shape == brain.labels.shape == (32, 24, 28)
    np.testing.assert_array_equal(np.array(IDS)[brain.labels], np.where(boxes() == 77, 0, boxes())[::2, ::2, ::2])
    monkeypatch.setenv("ARGRAD_DATA", str(root / "nowhere"))
    with pytest.raises(MissingFiles, match="put it into"):
        load_brain()


def test_deformations_are_smooth_and_as_large_as_asked(generator):
    """A coordinate painted as a label map shows its shift directly."""
    ramp = torch.arange(40, dtype=torch.int16).view(40, 1, 1).expand(40, 40, 40)
    assert torch.equal(deformed(ramp, generator, 0.0), ramp)
    inner = (slice(10, 30),) * 3  # what comes from beyond the volume is background
    shifts = torch.stack([(deformed(ramp, generator, 2.0) - ramp).float()[inner] for _ in range(10)])
    # Between control points the shift is an average of several, so it varies less than at them.
    assert 0.8 < shifts.std() < 2.1
    assert shifts.diff(dim=2).abs().max() <= 3
    assert set(deformed(ramp, generator, 2.0).unique().tolist()) <= set(range(40))


def test_left_and_right_are_the_same_tissue(generator):
    labels = torch.from_numpy(np.searchsorted(IDS, np.where(boxes() == 77, 0, boxes())))
    scans = [simulated(labels, IDS, generator) for _ in range(2)]
    means = torch.stack([torch.stack([scan[labels == number].mean() for number in range(5)]) for scan in scans])
    torch.testing.assert_close(means[:, 1:3], means[:, 3:5], atol=0.02, rtol=0)
    assert bool((means[:, 0] < 0.1).all())
    assert (means[0, 1:3] - means[1, 1:3]).abs().max() > 0.05


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="scans must be at least 1"):
        WholeBrain(scans=0)
