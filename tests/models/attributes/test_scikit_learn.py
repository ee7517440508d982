"""AttributeVAE on images with a bar: it reads the bar, switches it and nothing else, with few labels too."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import argrad
from argrad import AttributeVAE
from argrad.models.attributes.report import switched_samples
from argrad.training import BrokenFile


def bars(number: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images 8x8 in which a row may be bright, and a column; a shade and a place of the row are left over."""
    g = np.random.default_rng(seed)
    known = g.integers(0, 2, (number, 2))
    images = 0.05 + 0.2 * g.random((number, 1, 1)) + np.zeros((number, 8, 8))
    images[:, 1:3] += 0.6 * known[:, :1, None]
    images[:, :, 5:7] += 0.6 * known[:, 1:, None]
    return images.clip(0, 1), known


def small(**options) -> AttributeVAE:
    settings = {
        "attribute_names": ["row", "column"],
        "remainder": 2,
        "channels": 8,
        "epochs": 12,
        "learning_rate": 4e-3,
    }
    return AttributeVAE(**{**settings, "random_state": 0, "device": "cpu", **options})


@pytest.fixture(scope="module")
def fitted() -> AttributeVAE:
    return small().fit(*bars(200))


def test_reads_attributes(fitted):
    images, known = bars(100, seed=1)
    assert fitted.score(images, known) > 0.95
    assert fitted.predict(images).shape == (100, 2)
    probabilities = fitted.predict_proba(images)
    assert ((probabilities > 0.5) == fitted.predict(images)).all()
    assert fitted.transform(images).shape == (100, 4)
    np.testing.assert_allclose(fitted.transform(images)[:, :2], probabilities)


def test_switching_changes_the_bar_and_nothing_else(fitted):
    images, known = bars(60, seed=2)
    on, off = fitted.change(images, row=True), fitted.change(images, row=False)
    difference = on - off
    there, elsewhere = difference[:, 1:3, :5].mean(), np.abs(difference[:, 4:]).mean()
    assert there > 0.4
    assert elsewhere < 0.1
    again = fitted.change(images)
    lit = known[:, 0] == 1
    np.testing.assert_allclose(on[lit], again[lit], atol=1e-5)  # it was on already
    assert np.abs(again - images).mean() < 0.1
    read = fitted.predict(on.clip(0, 1))
    assert (read[:, 0] == 1).mean() > 0.9
    assert (read[:, 1] == known[:, 1]).mean() > 0.9


def share_explained(remainder: np.ndarray, column: np.ndarray) -> float:
    """How much of an attribute the best linear reading of the remainder explains, from 0 to 1."""
    inputs = np.column_stack([remainder, np.ones(len(remainder))])
    left = column - inputs @ np.linalg.lstsq(inputs, column, rcond=None)[0]
    return float(1 - left.var() / column.var())


def test_independence_takes_the_attribute_out_of_the_remainder():
    images, known = bars(200)
    settings = {"likelihood": "gaussian", "scale": 0.03, "switch_weight": 0.0, "remainder": 4, "epochs": 20}
    found = []
    for weight in (0.0, 30.0):
        module = small(independence_weight=weight, **settings).fit(images, known).module_
        remainder = module.posterior(torch.as_tensor(images, dtype=torch.float32))[1]
        drawn = remainder.rsample(generator=torch.Generator().manual_seed(0)).detach().numpy()
        found.append(share_explained(drawn, known[:, 1]))
    assert found[0] > 0.4  # left alone, it carries the column
    assert found[1] < 0.15


def test_switching_survives_a_blurred_view_and_mixed_remainders():
    model = small(blur=1.0, switch_mixed=True, epochs=20).fit(*bars(200))
    images, known = bars(60, seed=2)
    assert model.score(images, known) > 0.95
    difference = model.change(images, row=True) - model.change(images, row=False)
    assert difference[:, 1:3, :5].mean() > 0.4
    assert np.abs(difference[:, 4:]).mean() < 0.1


def test_samples_have_the_attributes_asked_for(fitted):
    images, attributes = fitted.sample(40, row=True)
    assert images.shape == (40, 8, 8)
    assert (attributes[:, 0] == 1).all()
    assert 0 < attributes[:, 1].mean() < 1
    dark, _ = fitted.sample(40, {"row": False}, column=False)
    assert images[:, 1:3, :5].mean() - dark[:, 1:3, :5].mean() > 0.3


def test_bound_is_the_mean_bound_with_known_attributes_plus_the_entropy(fitted):
    images, _ = bars(50, seed=3)
    q, total = fitted.predict_proba(images), 0.0
    for y in ((0, 0), (0, 1), (1, 0), (1, 1)):
        weight = np.where(y, q, 1 - q).prod(1)
        total += weight * (fitted.score_samples(images, np.tile(y, (50, 1))) - np.log(weight))
    bound = fitted.score_samples(images)
    np.testing.assert_allclose(bound, total, rtol=1e-4)
    np.testing.assert_array_equal(bound, fitted.score_samples(images))


@pytest.mark.parametrize(("estimator", "label_loss"), [("direct", "direct"), ("exact", "cross-entropy")])
def test_learns_from_some_labels(estimator, label_loss):
    images, known = bars(200)
    some = known.copy()
    some[100:, 0] = -1
    some[60:, 1] = -1
    settings = {"batch_size": 16, "label_first": 6, "switch_weight": 0.0}
    model = small(estimator=estimator, label_loss=label_loss, **settings).fit(images, some)
    images, known = bars(100, seed=1)
    assert model.score(images, known) > 0.9
    difference = model.change(images, column=True) - model.change(images, column=False)
    assert difference[:, 4:, 5:7].mean() > 0.15
    assert np.abs(difference[:, 4:, :4]).mean() < 0.1


@pytest.mark.parametrize(("law", "switch_weight"), [("gibbs", 1.0), ("perturb", 0.0)])
def test_pairwise_attributes(law, switch_weight):
    images, known = bars(200)
    known[150:, 1] = -1
    settings = {"epsilon": 0.1, "switch_weight": switch_weight, "epochs": 6, "batch_size": 16}
    model = small(latent="pairwise", law=law, **settings).fit(images, known)
    images, known = bars(60, seed=1)
    assert model.score(images, known) > 0.9
    assert model.predict_proba(images).shape == (60, 2)
    assert model.sample(3)[1].shape == (3, 2)
    if law == "gibbs":
        assert np.isfinite(model.score_samples(images)).all()
    else:
        with pytest.raises(argrad.Unavailable, match="perturb"):
            model.score_samples(images)


def test_colour_tensors_and_own_networks():
    images, known = bars(40)
    colour = torch.as_tensor(images).unsqueeze(1).expand(40, 3, 8, 8)
    encoder, decoder = argrad.models.convolutional_networks((3, 8, 8), 2, 2, channels=8)
    before = [parameter.clone() for parameter in encoder.parameters()]
    model = small(encoder=encoder, decoder=decoder, epochs=1).fit(colour, torch.as_tensor(known))
    assert model.change(colour[:2], column=True).shape == (2, 3, 8, 8)
    assert all(torch.equal(a, b) for a, b in zip(before, encoder.parameters(), strict=True))


def test_same_seed_same_model_and_other_seed_another():
    images, known = bars(60)
    state = torch.random.get_rng_state()
    one, same, other = (small(epochs=2, shift=1, random_state=seed).fit(images, known) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    np.testing.assert_array_equal(one.change(images), same.change(images))
    assert np.abs(one.change(images) - other.change(images)).max() > 1e-4
    assert len(one.history_) == 2
    assert {"loss", "accuracy", "train_loss"} <= one.history_[0].keys()
    assert clone(one).get_params()["shift"] == 1


def test_names_of_attributes_without_names():
    images, known = bars(30)
    model = small(attribute_names=None, epochs=1).fit(images, known)
    assert model.attribute_names_ == ("attribute0", "attribute1")
    assert model.change(images[:1], attribute1=False).shape == (1, 8, 8)


def test_an_estimator_that_is_sized_by_its_first_call_is_trained():
    images, known = bars(32)
    known[:, 1] = -1
    model = small(estimator="relax", label_first=0, epochs=2).fit(images, known)
    untrained = small(estimator="relax", label_first=0, epochs=1, learning_rate=1e-12).fit(images, known)
    first, last = (dict(found.module_.estimator.named_parameters()) for found in (untrained, model))
    assert first.keys() == last.keys() != set()
    assert any(not torch.allclose(first[name], last[name], atol=1e-6) for name in first)


def test_a_saved_model_comes_back(fitted, tmp_path):
    images, _ = bars(20, seed=4)
    report = fitted.save(tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        *("config.json", "metrics.jsonl", "model.safetensors", "report.html")
    }
    again = AttributeVAE.from_run(tmp_path / "run", device="cpu")
    np.testing.assert_array_equal(again.predict_proba(images), fitted.predict_proba(images))
    np.testing.assert_array_equal(again.change(images, row=True), fitted.change(images, row=True))
    np.testing.assert_array_equal(again.sample(3, column=True)[0], fitted.sample(3, column=True)[0])
    assert (again.history_, again.best_epoch_) == (fitted.history_, fitted.best_epoch_)
    assert {**again.get_params(), "attribute_names": None} == {**fitted.get_params(), "attribute_names": None}
    assert "one of them on: row, column" in report.read_text()
    assert report.read_text().count("data:image/png") == 2
    with pytest.raises(ValueError, match="already holds a run"):
        fitted.save(tmp_path / "run")


def test_samples_of_the_report_share_a_remainder_along_the_row(fitted):
    grid = switched_samples(fitted.module_, 5, generator=torch.Generator().manual_seed(0))
    assert grid.shape == (5, 3, 8, 8)
    assert (grid[:, 1] - grid[:, 0])[:, 1:3, :5].mean() > 0.3
    assert (grid[:, 1] - grid[:, 0])[:, 4:].abs().mean() < 0.1
    assert (grid[:, 2] - grid[:, 0])[:, 4:, 5:7].mean() > 0.3


def alter(run: Path, **changes) -> None:
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda run: alter(run, task="tokenizer"), "a run of another model"),
        (lambda run: alter(run, settings={"colour": 3}), "does not know: colour"),
        (lambda run: alter(run, attribute_names=["row"]), "does not belong to"),
        (lambda run: (run / "config.json").write_text("{}"), "a run of another model"),
        (lambda run: (run / "config.json").unlink(), "not a run folder"),
        (lambda run: (run / "metrics.jsonl").unlink(), r"metrics\.jsonl is missing or empty"),
        (lambda run: (run / "model.safetensors").unlink(), r"has no model\.safetensors"),
        (lambda run: (run / "model.safetensors").write_bytes(b"cut"), "cut short or altered"),
    ],
)
def test_a_broken_run_is_refused(fitted, tmp_path, harm, words):
    fitted.save(tmp_path / "run")
    harm(tmp_path / "run")
    with pytest.raises((BrokenFile, ValueError), match=words) as caught:
        AttributeVAE.from_run(tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_own_networks_are_not_saved(tmp_path):
    encoder, _ = argrad.models.convolutional_networks((8, 8), 2, 2, channels=8)
    model = small(encoder=encoder, epochs=1).fit(*bars(30))
    with pytest.raises(ValueError, match="encoder is an object of your own"):
        model.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


WRONG_Y = [
    (lambda y: y[:, 0], r"must have shape \(30, attributes\).*got \(30,\)"),
    (lambda y: y[:20], r"got \(20, 2\)"),
    (lambda y: y + 1, "got 2 in row"),
    (lambda y: y * 0.5, "got 0.5 in row"),
]


@pytest.mark.parametrize(("change", "words"), WRONG_Y)
def test_wrong_attributes_are_refused(change, words):
    images, known = bars(30)
    with pytest.raises(ValueError, match=words) as caught:
        small().fit(images, change(known))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attribute_names": ["row"]}, "must be 2 different names"),
        ({"attribute_names": ["row", "row"]}, "must be 2 different names"),
        ({"validation_fraction": 1.0}, "below 1"),
        ({"kl_weight": -1.0}, "kl_weight must be"),
        ({"independence_weight": -1.0}, "independence_weight must be"),
        ({"blur": -1.0}, "blur must be"),
        ({"estimator": 3}, "estimator must be a name"),
        ({"estimator": "best"}, "there is no estimator 'best'"),
        ({"encoder": "conv"}, "encoder must be"),
        ({"latent": "pairwise", "law": "perturb", "epsilon": 0.1}, "switch_weight=0"),
        ({"latent": "pairwise"}, "Direct does not support"),
        ({"likelihood": "poisson"}, "likelihood must be"),
    ],
)
def test_wrong_settings_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        small(**options).fit(*bars(30))


def test_wrong_images_and_switches_are_refused(fitted):
    images, known = bars(30)
    for wrong, words in (
        (images.reshape(30, 64), r"\[n, H, W\] or \[n, C, H, W\].*\(30, 64\)"),
        (255 * images, "divide by the largest"),
        (np.where(images > 0.5, np.nan, images), "NaN"),
        (images[:, :7, :7], "at least 8 by 8"),
    ):
        with pytest.raises(ValueError, match=words):
            small().fit(wrong, known)
    with pytest.raises(ValueError, match=r"fitted on \(8, 8\)"):
        fitted.predict(np.zeros((2, 9, 9)))
    with pytest.raises(ValueError, match="no attribute 'diagonal'; choose from row, column"):
        fitted.change(images, diagonal=True)
    with pytest.raises(ValueError, match="True or False, got 2"):
        fitted.sample(1, row=2)
    with pytest.raises(ValueError, match="n_samples"):
        fitted.sample(0)
    with pytest.raises(ValueError, match="nothing to score"):
        fitted.score(images, -np.ones((30, 2)))
    with pytest.raises(NotFittedError):
        small().predict(images)


def test_prints_a_line_after_each_epoch(capsys):
    small(epochs=2, verbose=True).fit(*bars(30))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "of known attributes right" in lines[0]
