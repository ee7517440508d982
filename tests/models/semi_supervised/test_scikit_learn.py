"""SemiSupervisedVAE: scikit-learn's own checks, and what it promises beside them."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

import argrad
from argrad import Direct, SemiSupervisedVAE
from argrad.models import Augmentation, SemiSupervisedModule, Terms

QUICK = {"hidden": 24, "latent": 2, "batch_size": 50, "average": 0.9, "learning_rate": 0.01, "device": "cpu"}
CHECKED = {
    "default": SemiSupervisedVAE(likelihood="gaussian", epochs=6, label_first=4, **QUICK),
}
MARK = "the check has classes -1 and 1; here -1 marks examples without a label and is no class"
EXPECTED_FAILURES = {"default": {"check_classifiers_classes": MARK}}


def expected_failures(estimator):
    (name,) = [name for name, each in CHECKED.items() if each is estimator]
    return EXPECTED_FAILURES[name]


# xfail_strict is on for all tests: a check that is expected to fail and passes is reported as a failure.
@parametrize_with_checks(list(CHECKED.values()), expected_failed_checks=expected_failures)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("name", CHECKED)
def test_expected_failures_name_checks_that_exist(name, pytestconfig):
    names = {check.func.__name__ for _, check in estimator_checks_generator(CHECKED[name])}
    assert set(EXPECTED_FAILURES[name]) <= names
    assert len(names) > 40
    assert pytestconfig.getini("xfail_strict") is True


@pytest.fixture(scope="module")
def digits():
    images, target = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 8, 8)
    labels = np.full(len(target), -1)
    for kind in range(10):
        labels[np.flatnonzero(target[:1400] == kind)[:5]] = kind
    return images, target, labels


def quick(**changes):
    return SemiSupervisedVAE(**{**QUICK, "epochs": 4, "label_first": 2, "random_state": 0, **changes})


@pytest.fixture(scope="module")
def trained(digits):
    """Trained on 1,400 images and 50 labels for long enough to beat a classifier of the labelled images alone."""
    images, _, labels = digits
    model = SemiSupervisedVAE(hidden=64, latent=4, epochs=22, label_first=6, random_state=0, device="cpu")
    return model.fit(images[:1400], labels[:1400])


def test_fifty_labels_beat_a_classifier_of_the_labelled_images(trained, digits):
    images, target, labels = digits
    flat, known = images.reshape(len(images), -1), labels[:1400] >= 0
    alone = LogisticRegression(max_iter=1000).fit(flat[:1400][known], labels[:1400][known])
    assert trained.score(images[1400:], target[1400:]) > alone.score(flat[1400:], target[1400:]) + 0.02
    bounds = [row["bound"] for row in trained.history_]
    assert bounds[-1] < bounds[0] - 3
    assert trained.history_[trained.best_epoch_ - 1]["labelled_accuracy"] >= 0.96


def test_probabilities_and_classes(trained, digits):
    images, _, _ = digits
    probabilities = trained.predict_proba(images[:20])
    assert probabilities.shape == (20, 10)
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(trained.predict(images[:20]), probabilities.argmax(1))
    assert trained.classes_.tolist() == list(range(10))
    double = trained.predict_proba(images[:20].astype(np.float64))
    assert double.dtype == np.float64
    np.testing.assert_allclose(double[7:9], trained.predict_proba(images[7:9].astype(np.float64)), rtol=1e-12)


def test_samples_have_their_label(trained):
    images, labels = trained.sample(30, label=4)
    assert images.shape == (30, 8, 8)
    assert (labels == 4).all()
    images, labels = trained.sample(1000)
    assert set(labels) == set(range(10))
    assert (trained.predict(images) == labels).mean() > 0.3
    np.testing.assert_array_equal(trained.sample(3)[0], trained.sample(3)[0])
    with pytest.raises(ValueError, match=r"label must be one of 0, 1, 2, .*, got 11"):
        trained.sample(label=11)
    with pytest.raises(ValueError, match="n_samples must be at least 1, got 0"):
        trained.sample(0)


@pytest.mark.parametrize(
    ("names", "mark"),
    [
        (np.array(["cat", "dog"]), "-1"),
        (np.array(["cat", "dog"], dtype=object), -1),
        (np.array([3, 7]), -1),
        (np.array([0.0, 2.0]), -1.0),
    ],
    ids=["strings", "objects", "numbers", "floats"],
)
def test_labels_of_every_kind(names, mark, digits):
    images, target, _ = digits
    y = names[target[:60] % 2].copy()
    y[20:] = mark
    model = quick().fit(images[:60], y)
    assert model.classes_.tolist() == names.tolist()
    assert set(model.predict(images[:60])) <= set(names)
    assert model.sample(2, label=names[1])[1].tolist() == [names[1]] * 2


def test_given_classes_set_the_order(digits):
    images, target, _ = digits
    y = np.where(np.arange(60) < 30, target[:60] % 3, -1)
    model = quick(classes=[2, 0, 1]).fit(images[:60], y)
    assert model.classes_.tolist() == [2, 0, 1]
    usual = quick().fit(images[:60], y)
    assert model.predict_proba(images[:5]).shape == usual.predict_proba(images[:5]).shape == (5, 3)
    assert (model.predict(images[:30]) == y[:30]).mean() > 0.5


@pytest.mark.parametrize(
    ("y", "changes", "message"),
    [
        (np.full(20, -1), {}, "y has no label, only -1"),
        (np.array([3] * 20), {}, "needs labels of at least 2 classes, got 1 class: 3"),
        (
            np.array([0, 1, 5, 9] * 5),
            {"classes": [0, 1, 2]},
            r"y has labels 5, 9 that are not among the classes 0, 1, 2",
        ),
        (np.array([0, 1, -1, -1] * 5), {"classes": [0, 1, 2]}, "no example is labelled as class 2: label at least one"),
        (np.array([0, 1] * 10), {"classes": [0, 1, 1]}, "classes must differ from each other"),
        (np.array([0.5, 1.0] * 10), {}, "Unknown label type: continuous"),
        (np.array([np.nan, 1.0] * 10), {}, "y contains NaN"),
        (np.array([0, 1] * 9), {}, "X has 20 examples and y has 18"),
        (np.zeros((20, 2), int), {}, "y should be a 1d array"),
        (None, {}, "requires y to be passed"),
    ],
)
def test_wrong_labels_are_refused(y, changes, message, digits):
    with pytest.raises(ValueError, match=message):
        quick(**changes).fit(digits[0][:20], y)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"estimator": "magic"}, "there is no estimator 'magic'"),
        ({"estimator": Direct}, "estimator must be a name or an estimator object"),
        ({"augmentation": "sideways"}, "augmentation must be an Augmentation or one of 'auto', 'none', 'digits'"),
        ({"likelihood": "poisson"}, 'likelihood must be "bernoulli" or "gaussian"'),
        ({"hidden": 3}, "hidden must be at least 6, got 3"),
        ({"latent": 0}, "latent >= 1"),
        ({"label_first": 4}, "label_first must be at least 0 and below epochs=4, got 4"),
        ({"average": 1.0}, "average.* must be at least 0 and below 1, got 1.0"),
        ({"validation_fraction": 1.0}, "validation_fraction must be at least 0 and below 1"),
        ({"labelled_batch_size": 0}, "labelled_batch at least 1"),
        ({"label_loss": "hinge"}, "label_loss must be"),
        ({"terms": Terms(consistency=1.0), "augmentation": "none"}, "give an augmentation too"),
    ],
)
def test_wrong_settings_are_refused_in_fit(changes, message, digits):
    images, target, _ = digits
    model = quick(**changes)
    with pytest.raises(ValueError, match=message):
        model.fit(images[:20], target[:20] % 2)
    with pytest.raises(NotFittedError):
        model.predict(images[:20])


def test_wrong_examples_are_refused(digits, trained):
    images, target, _ = digits
    broken = images[:20].copy()
    broken[3, 2, 1] = np.nan
    with pytest.raises(ValueError, match="contains NaN"):
        quick().fit(broken, target[:20])
    with pytest.raises(ValueError, match=r"needs X in \[0, 1\], got values from 0 to 16"):
        quick().fit(16 * images[:20], target[:20])
    with pytest.raises(ValueError, match=r"fitted on examples of shape \(8, 8\); reshape X to \(n, 8, 8\)"):
        trained.predict(images[:5].reshape(5, 64))
    for method in ("predict", "predict_proba", "sample"):
        with pytest.raises(NotFittedError):
            getattr(SemiSupervisedVAE(), method)(images)


def test_same_seed_same_model(digits):
    images, _, labels = digits
    state = torch.get_rng_state()
    first, second = (quick().fit(images[:200], labels[:200]).predict_proba(images[:9]) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(first, second)
    assert (quick(random_state=1).fit(images[:200], labels[:200]).predict_proba(images[:9]) != first).any()


@pytest.mark.parametrize(
    "changes",
    [
        {"estimator": "direct", "epsilon": 0.1},
        {"estimator": "straight-through"},
        {"estimator": Direct(0.2), "label_loss": "cross-entropy"},
        {"estimator": "reinforce", "dropout": 0.5, "average": 0.0},
        {"label_loss": lambda z, y: 1 - (z * y).sum(-1)},
        {"augmentation": Augmentation(shift=0.1, erase=0.3), "terms": Terms(consistency=1.0, entropy=0.1)},
        {"augmentation": "drop"},
        {"terms": Terms(), "augmentation": "none"},
    ],
)
def test_every_way_trains(changes, digits):
    images, _, labels = digits
    model = quick(**changes).fit(images[:200], labels[:200])
    assert isinstance(model.module_, SemiSupervisedModule)
    assert not model.module_.training
    assert all(parameter.isfinite().all() for parameter in model.module_.parameters())
    assert len(model.history_) == 4
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]


def test_labelled_examples_are_never_held_out(digits):
    labels = digits[2]
    model = quick(validation_fraction=0.9)
    trained_on, held_out = model._split(labels, 3)
    assert (labels[held_out] == -1).all()
    assert len(held_out) == round(0.9 * (labels == -1).sum())
    assert sorted([*trained_on, *held_out]) == list(range(len(labels)))


def test_parameters_clone_pickle_and_pipelines(digits):
    images, target, _ = digits
    model = quick(terms=Terms(entropy=0.1), estimator=Direct(0.3))
    copied = clone(model.set_params(latent=3))
    assert copied.get_params()["latent"] == 3
    assert copied.terms == model.terms
    assert copied.estimator is not model.estimator
    flat = 16 * images[:100].reshape(100, 64)
    pipeline = make_pipeline(MinMaxScaler(clip=True), quick()).fit(flat, target[:100])
    again = pickle.loads(pickle.dumps(pipeline))
    np.testing.assert_array_equal(again.predict_proba(flat), pipeline.predict_proba(flat))
    assert len(SemiSupervisedVAE().get_params()) <= 24


def test_verbose_prints_one_line_per_epoch(digits, capsys):
    images, _, labels = digits
    quick(verbose=True).fit(images[:100], labels[:100])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("epoch 1 of 4: bound ")


def test_exports_are_lazy():
    assert argrad.SemiSupervisedVAE is argrad.models.SemiSupervisedVAE
    child = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import argrad.models; argrad.models.SemiSupervisedModule\n"
        "try: argrad.SemiSupervisedVAE\nexcept ImportError: print('needs scikit-learn')"
    )
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "needs scikit-learn\n"
