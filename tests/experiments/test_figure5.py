"""Figure 5 on drawn heads: the judge learns, rates are what they say, and no picture enters the result."""

import json

import numpy as np
import pytest
import torch

from argrad.experiments import figure5
from argrad.experiments.figure5 import Figure5, format_table, markdown, measure, parts, plot, pose_of, run_figure5
from tiny_faces import heads, tiny_faces
from tiny_images import silent

TINY = Figure5(epochs=2, judge_epochs=10, remainder=2, seeds=(0, 1), device="cpu", faces="", quick=True)


@pytest.fixture(scope="module")
def result() -> dict:
    return run_figure5(tiny_faces(), TINY, progress=silent)


def test_result_is_json_without_pictures(result):
    text = json.dumps(result, allow_nan=False)
    assert len(text) < 6000  # one tiny head alone would have 256 numbers
    assert {"command", "commit", "hardware", "date", "settings", "quick", "judge", "rows", "people"} <= result.keys()
    assert [row["seed"] for row in result["rows"]] == [0, 1]
    assert result["pictures"] == {"trained on, mirrored ones included": 256, "held out": 64}
    assert result["people"]["test"] == ["d", "e"]


def test_the_judge_learns_from_training_pictures(result):
    assert result["judge"]["sunglasses"] > 0.9
    assert result["judge"]["pose"] > 0.9


def test_words_and_picture(result, tmp_path):
    assert format_table(result).startswith("QUICK")
    assert "64 pictures of 2 people" in format_table(result)
    assert format_table(result).count("Judge right on blurred real pictures") == 2
    assert "the mean training picture with the same attributes 0.0" in markdown(result)
    assert markdown(result).count("| Sunglasses switched on") == 2
    low, high = sorted(row["sunglasses"]["on"]["pose stays over agreement"] for row in result["rows"])
    assert f"({(low + high) / 2:.2f} ×, lowest {low:.2f} ×)" in format_table(result)
    plot(result, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_faces_are_drawn_into_a_file_of_their_own(tmp_path):
    assert Figure5().faces.startswith("runs/")  # which git leaves alone: faces are not passed on
    path = tmp_path / "deep" / "faces.png"
    settings = Figure5(
        epochs=1, judge_epochs=1, remainder=2, seeds=(0,), device="cpu", faces=str(path), validation=True
    )
    result = run_figure5(tiny_faces(), settings, progress=silent)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "test" not in result["people"]
    assert result["pictures"]["held out"] == 32


class Ideal:
    """A model that reads everything right and switches by drawing: its pictures are codes of attributes."""

    def __init__(self, truth: torch.Tensor, stuck: int = 0) -> None:
        self.truth, self.stuck = truth, stuck

    def predict(self, pictures):
        return self.truth.numpy()

    def change(self, pictures, **switches):
        attributes = self.truth.clone()
        for name, on in switches.items():
            attributes[self.stuck :, figure5.ATTRIBUTES.index(name)] = int(on)
        codes = np.zeros((len(attributes), 16, 16), np.float32)
        codes[:, 0, :4] = attributes
        return codes


def read_code(codes: torch.Tensor) -> torch.Tensor:
    """A judge of such codes."""
    attributes = codes[:, 0, :4]
    straight = 1 - attributes[:, 1:].amax(1, keepdim=True)
    return torch.cat([attributes[:, :1] - 0.5, attributes[:, 1:], straight], 1)


@pytest.mark.parametrize("stuck", [0, 32])
def test_rates_are_shares_of_what_can_flip(stuck):
    images, truth = heads(64, seed=5)
    found = measure(Ideal(truth, stuck), read_code, images / 255, truth)
    assert set(found["accuracy"].values()) == {1.0}
    assert found["agreement on reconstructions"] == {"sunglasses": 1.0, "pose": 1.0}
    for word, without in (("on", truth[:, 0] == 0), ("off", truth[:, 0] == 1)):
        switched = found["sunglasses"][word]
        assert switched["pictures"] == switched["to flip"] == int(without.sum())
        assert switched["flips"] == pytest.approx(without[stuck:].sum().item() / without.sum().item(), abs=1e-4)
        assert switched["pose stays"] == 1.0
    left = (torch.arange(64) >= stuck) | (pose_of(truth) == 0)
    assert found["pose switched"]["left"] == pytest.approx(left.double().mean().item(), abs=1e-4)


def test_mean_pictures_know_the_attributes_and_nothing_else():
    images, truth = heads(64, seed=6)
    pictures = images / 255
    same = torch.stack([pictures[(truth == row).all(1)].mean(0) for row in truth])
    expected = (pictures - same).square().mean().item()
    assert figure5.mean_picture_error(pictures, truth, pictures, truth) == pytest.approx(expected, abs=1e-5)
    assert expected > 0.001


def test_training_pictures_are_mirrored_and_none_is_held_out():
    faces = tiny_faces()
    train, known, test, truth = parts(faces, validation=False)
    assert (len(train), len(test)) == (256, 64)
    torch.testing.assert_close(train[:128].flip(-1), train[128:])
    assert torch.equal(known[:128, [0, 2, 1, 3]], known[128:])
    assert torch.equal(truth, faces.test_attributes)
    assert 0.99 < train.flatten(1).quantile(0.99, dim=1).min() <= train.max() <= 1
    train, _, test, _ = parts(faces, validation=True)
    assert (len(train), len(test)) == (192, 32)


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"seeds": ()}, {"labelled": 0.0}, {"labelled": 1.5}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=r"at least|share"):
        Figure5(**wrong)
