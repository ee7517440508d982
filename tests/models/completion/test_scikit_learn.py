"""ImageCompleter and what trains it: fit, complete, save and load, resuming bit for bit, scores, the report."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError

from argrad.data import Images
from argrad.models.completion.report import write_completion_report
from argrad.models.completion.run import (
    CompletionSettings,
    build_completion,
    completion_config,
    load_completion,
    load_pictures,
    save_completion,
    train_completion,
)
from argrad.models.completion.scikit_learn import ImageCompleter
from argrad.models.completion.scores import errors, evaluate_completion
from argrad.models.completion.task import half_mirrored
from argrad.training import BrokenFile, Interrupted, RunFolder
from tiny_training import everything

TINY = {"components": 3, "dimension": 2, "features": 4, "hidden": 8}


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    return load_digits().images / 16


@pytest.fixture(scope="module")
def model(digits) -> ImageCompleter:
    small = {"components": 4, "dimension": 4, "features": 16, "hidden": 64}
    learning = {"epochs": 8, "kl_warmup_epochs": 2, "learning_rate": 3e-3}
    return ImageCompleter(**small, **learning, random_state=0, device="cpu").fit(digits[:1500])


@pytest.fixture
def mask() -> np.ndarray:
    mask = np.zeros((8, 8), bool)
    mask[2:6, 2:6] = True
    return mask


def test_training_helps_and_completions_follow_the_visible_part(model, digits, mask):
    history = model.history_
    assert history[-1]["loss"] < history[0]["loss"] - 10
    assert 1 <= history[-1]["components"] <= 4
    held_out = digits[1500:]
    mean = model.complete(held_out, mask, n=8).mean(1)
    error = np.square(mean - held_out)[:, mask].mean()
    grey = np.square(digits[:1500].mean(0) - held_out)[:, mask].mean()  # what the mean digit would do
    assert error < 0.8 * grey


def test_visible_pixels_are_the_images_own_and_the_hole_is_not_looked_at(model, digits, mask):
    X = digits[1500:1520].astype(np.float32)
    completed = model.complete(X, mask, n=5)
    assert completed.shape == (20, 5, 8, 8)
    assert completed.dtype == np.float32
    assert (completed[:, :, ~mask] == X[:, None, ~mask]).all()
    assert completed[:, :, mask].std(1).mean(1).min() > 0
    unknown = X.copy()
    unknown[:, mask] = np.nan
    np.testing.assert_array_equal(model.complete(unknown, mask, n=5), completed)


def test_masks_of_one_image_of_each_or_of_all(model, digits, mask):
    X = digits[:3].astype(np.float32)
    together = model.complete(X, mask, n=2)
    np.testing.assert_array_equal(model.complete(X, np.stack([mask] * 3), n=2), together)
    np.testing.assert_array_equal(model.complete(torch.tensor(X), torch.tensor(mask), n=2), together)
    assert model.complete(X[0], mask.astype(int), n=2).shape == (2, 8, 8)
    alpha = model.predict_proba(X, mask)
    assert alpha.shape == (3, 4)
    np.testing.assert_allclose(alpha.sum(1), 1, rtol=1e-5)


def test_the_same_random_state_gives_the_same(digits, mask):
    first, again, other = (
        ImageCompleter(**TINY, epochs=1, random_state=seed, device="cpu").fit(digits[:200]) for seed in (3, 3, 4)
    )
    X = digits[:4]
    np.testing.assert_array_equal(first.complete(X, mask), again.complete(X, mask))
    assert not np.array_equal(first.complete(X, mask), other.complete(X, mask))
    assert clone(first).get_params() == first.get_params()


def test_save_and_load(model, digits, mask, tmp_path):
    where = model.save(tmp_path / "saved")
    assert {file.name for file in where.iterdir()} == {"config.json", "model.safetensors"}
    again = ImageCompleter.load(where, device="cpu")
    assert again.components == 4
    for name, tensor in model.module_.state_dict().items():
        assert torch.equal(tensor, again.module_.state_dict()[name])
    again.random_state = 0
    np.testing.assert_array_equal(again.complete(digits[:3], mask), model.complete(digits[:3], mask))
    with pytest.raises(ValueError, match="already holds a run"):
        model.save(where)


def test_mistakes_are_one_line(model, digits, mask):
    X = digits[:3]
    for images, hidden, words in (
        (X, np.zeros((8, 8), bool), "the mask hides nothing"),
        (X, np.ones((8, 8), bool), "the mask hides everything"),
        (X, np.ones((7, 8), bool), "the mask has 7 x 8 pixels and the images 8 x 8"),
        (X, np.stack([mask] * 2), "2 masks for 3 images"),
        (X, np.ones(8), r"a mask is an array \[H, W\] or \[N, H, W\]"),
        (X[:, :4], mask, r"images of shape \(8, 8\), got an array of shape \(3, 4, 8\)"),
        (X * 16, mask, "from 0 to 1"),
        (X.reshape(3, 64)[0], mask, r"X must hold images \[n, H, W\]"),
        (np.array([["a"]]), mask, "X must hold numbers"),
    ):
        with pytest.raises(ValueError, match=words):
            model.complete(images, hidden)
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        model.complete(X, mask, n=0)
    with pytest.raises(NotFittedError):
        ImageCompleter().complete(X, mask)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"masks": "round"}, "no 'round' masks"),
        ({"loss": "right"}, "loss must be one of"),
        ({"components": 0}, "components must be at least 1"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"kl_weight": -1.0}, "kl_weight"),
        ({"kl_weight": np.inf}, "kl_weight must be a finite number that is not negative, got inf"),
        ({"kl_warmup_epochs": -1}, "kl_warmup_epochs"),
    ],
)
def test_wrong_settings_are_refused(changes, words, digits):
    with pytest.raises(ValueError, match=words):
        ImageCompleter(**{**TINY, "epochs": 1, **changes}, device="cpu").fit(digits[:50])


def test_images_that_cannot_be_learnt_from_are_refused(digits):
    for X, words in ((digits * 16, "from 0 to 1"), (digits[:0], "must hold images"), (digits[0], "must hold images")):
        with pytest.raises(ValueError, match=words):
            ImageCompleter(**TINY, epochs=1, device="cpu").fit(X)


# ------------------------------------------------------------------------------------------------------------- the run


@pytest.fixture
def images() -> Images:
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(60, 1, 1, generator=generator).expand(60, 6, 6) * torch.rand(6, 6, generator=generator)
    return Images("tiny", x[:40], x[40:50], x[50:], binarization="none")


SETTINGS = CompletionSettings(data="tiny", epochs=4, batch_size=16, kl_warmup_epochs=1, mirror=True, **TINY)


class StopAt:
    """Progress that asks to stop, as Ctrl-C does, at one epoch."""

    def __init__(self, epoch: int) -> None:
        self.at = epoch

    def start(self, steps: int, done: int) -> None: ...

    def step(self, done: int, epoch: int, loss: float) -> None: ...

    def epoch(self, metrics: dict[str, object]) -> None:
        if metrics["epoch"] == self.at:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGINT)


def test_a_run_that_is_interrupted_and_resumed_ends_in_the_same_bits(images, tmp_path):
    config = completion_config(SETTINGS, images.shape)
    whole = RunFolder.create(tmp_path / "whole", config)
    train_completion(SETTINGS, whole, images)
    parts = RunFolder.create(tmp_path / "parts", config)
    with pytest.raises(Interrupted):
        train_completion(SETTINGS, parts, images, progress=StopAt(2))
    assert len(parts.read_metrics()) == 2
    module, _ = train_completion(SETTINGS, RunFolder.open(parts.path), images)
    assert everything(parts.path) == everything(whole.path)
    loaded, settings = load_completion(whole.path)
    assert settings == SETTINGS
    assert all(torch.equal(one, other) for one, other in zip(module.parameters(), loaded.parameters(), strict=True))


def test_runs_that_cannot_be_loaded_are_one_line(images, tmp_path):
    folder = RunFolder.create(tmp_path / "empty", completion_config(SETTINGS, images.shape))
    with pytest.raises(ValueError, match="has no model yet"):
        load_completion(folder.path)
    other = RunFolder.create(tmp_path / "other", {"task": "tokenize"})
    with pytest.raises(BrokenFile, match="is not that of image completion"):
        load_completion(other.path)
    newer = RunFolder.create(tmp_path / "newer", {**completion_config(SETTINGS, (6, 6)), "sharpness": 3})
    with pytest.raises(BrokenFile, match="settings that this version does not know: sharpness"):
        load_completion(newer.path)
    tensors = build_completion(replace(SETTINGS, hidden=9), (6, 6)).state_dict()
    with pytest.raises(BrokenFile, match="does not belong to"):
        load_completion(save_completion(tmp_path / "mixed", SETTINGS, (6, 6), tensors))


def test_mirroring_turns_about_half(generator):
    x = torch.arange(4000.0).reshape(1000, 2, 2)
    turned = half_mirrored(x, generator)
    same, mirrored = (turned == x).all((1, 2)), (turned == x.flip(-1)).all((1, 2))
    assert (same ^ mirrored).all()
    assert abs(mirrored.double().mean() - 0.5) < 4 * 0.5 / 1000**0.5


# ---------------------------------------------------------------------------------------------------------- the scores


def test_errors_are_per_hidden_pixel_and_over_completions():
    x = torch.zeros(1, 2, 2)
    hidden = torch.tensor([[[True, True], [False, False]]])
    completed = torch.tensor([[[0.1, 0.1], [0, 0]], [[0.3, 0.1], [0, 0]]])[None]
    best, mean, spread = (float(one) for one in errors(completed, x, hidden))
    assert best == pytest.approx(0.01)
    assert mean == pytest.approx((0.01 + 0.05) / 2)
    assert spread == pytest.approx((0.02 / 2) ** 0.5)
    assert float(errors(completed[:, :1], x, hidden)[2]) == 0


def test_scores_and_report(images, tmp_path):
    folder = RunFolder.create(tmp_path / "run", completion_config(SETTINGS, images.shape))
    module, trained = train_completion(SETTINGS, folder, images)
    scores = evaluate_completion(module, images, samples=5)
    json.dumps(scores, allow_nan=False)
    assert scores["images"] == 10
    assert scores["visible_untouched"]
    assert 0 < scores["best_error"] <= scores["mean_error"]
    assert scores["diversity"] > 0
    assert 1 <= scores["components"] <= 3
    report = write_completion_report(folder.path, module, images, SETTINGS, trained.history, scores)
    text = report.read_text()
    assert text.count("<img") == 2
    assert "argrad complete train --resume" in text
    with pytest.raises(ValueError, match="has no test images"):
        evaluate_completion(module, replace(images, test=images.test[:0]))


def test_faces_are_loaded_with_people_held_out(data_root: Path, monkeypatch):
    monkeypatch.setenv("ARGRAD_DATA", str(data_root))
    assert load_pictures("olivetti").shape == (32, 32)
    faces = load_pictures("cmu-faces")
    assert faces.shape == (32, 32)
    assert 0 <= faces.values(faces.train).min() < faces.values(faces.train).max() <= 1
