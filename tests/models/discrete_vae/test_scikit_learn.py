"""DiscreteVAE: scikit-learn's own checks, and what it promises beside them."""

import copy
import pickle
import signal
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks
from torch import nn

import argrad
from argrad import Direct, DiscreteVAE, Exact, Relax
from argrad.estimators.by_name import EstimatorName
from argrad.models import DiscreteVAEModule

QUICK = {"likelihood": "gaussian", "epochs": 3, "hidden": 16, "device": "cpu"}
CHECKED = {
    "one categorical": DiscreteVAE(values=3, **QUICK),
    "bits": DiscreteVAE(latent="bits", variables=5, estimator="disarm", **QUICK),
    "too many to list": DiscreteVAE(variables=12, values=3, estimator="gumbel-softmax", prior="learnt", **QUICK),
}
NOISY = "beyond 65536 structures score_samples is a sampled bound, and an example's noise depends on its place in X"
EXPECTED_FAILURES = {
    "one categorical": {},
    "bits": {},
    "too many to list": {"check_methods_sample_order_invariance": NOISY, "check_methods_subset_invariance": NOISY},
}


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


def quick(**changes):
    return DiscreteVAE(**{"epochs": 3, "hidden": 32, "random_state": 0, "device": "cpu", **changes})


@pytest.fixture(scope="module")
def digits():
    return load_digits().data / 16


@pytest.fixture(scope="module")
def trained(digits):
    """Trained for 40 epochs on the first 1500 digits, in black and white."""
    return quick(epochs=40, hidden=100, learning_rate=5e-3).fit(digits[:1500].round())


def test_float64_examples_are_worked_in_float64(trained, digits):
    """Else the last digits of a row would depend on its place in X, which differs from one CPU to the next."""
    test = digits[1500:].round()
    double = copy.deepcopy(trained.module_).double()
    expected = double.posterior(torch.tensor(test)).mean().detach().numpy()
    np.testing.assert_allclose(trained.transform(test), expected, rtol=1e-12)
    assert trained.transform(test.astype(np.float32)).dtype == np.float32
    assert next(trained.module_.parameters()).dtype == torch.float32


def test_learns_what_one_code_cannot(trained, digits):
    """A model with one code knows no more than the mean of each pixel."""
    test = digits[1500:].round()
    means = digits[:1500].round().mean(0).clip(1e-3, 1 - 1e-3)
    baseline = -(test * np.log(means) + (1 - test) * np.log(1 - means)).sum(1).mean()
    bound = float(trained.module_.negative_elbo(torch.tensor(test, dtype=torch.float32)).mean())
    assert bound < baseline - 3
    assert trained.score(test) > -bound
    losses = [row["loss"] for row in trained.history_]
    assert min(losses) == losses[trained.best_epoch_ - 1] < losses[0] - 4
    assert trained.history_[-1]["used_codes"] == 1.0


def test_scores_are_exact_log_likelihoods(trained, digits):
    x = torch.tensor(digits[:7], dtype=torch.float32)
    expected = -trained.module_.negative_log_likelihood(x).double().numpy()
    np.testing.assert_allclose(trained.score_samples(digits[:7]), expected, rtol=1e-6)
    assert trained.score(digits[:7]) == pytest.approx(expected.mean())
    assert trained.score_samples(digits[:7]).dtype == np.float64


def test_transform_and_encode_agree(trained, digits):
    probabilities, codes = trained.transform(digits), trained.encode(digits)
    assert probabilities.shape == (1797, 10)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert codes.shape == (1797, 1)
    assert codes.dtype == np.int64
    np.testing.assert_array_equal(probabilities.argmax(1), codes[:, 0])
    assert trained.transform(digits.astype(np.float32)).dtype == np.float32
    assert trained.get_feature_names_out()[3] == "discretevae3"


LATENTS = {
    "one categorical": {"values": 6},
    "categoricals": {"variables": 3, "values": 4},
    "bits": {"latent": "bits", "variables": 5},
}


@pytest.mark.parametrize("name", LATENTS)
def test_codes_round_trip(name, digits):
    model = quick(**LATENTS[name]).fit(digits[:300])
    variables, values = model.module_.variables, model.module_.values
    codes, probabilities = model.encode(digits[:50]), model.transform(digits[:50])
    assert codes.shape == (50, variables)
    assert codes.min() >= 0
    assert codes.max() < values
    assert probabilities.shape == (50, variables if name == "bits" else variables * values)
    decoded = model.inverse_transform(codes)
    assert decoded.shape == (50, 64)
    assert decoded.min() >= 0
    assert decoded.max() <= 1
    np.testing.assert_array_equal(decoded, model.inverse_transform(probabilities))
    rows, where = np.unique(codes, axis=0, return_inverse=True)
    np.testing.assert_allclose(decoded, model.inverse_transform(rows)[where.ravel()], atol=1e-6)


@pytest.mark.parametrize("name", LATENTS)
def test_samples(name, digits):
    model = quick(**LATENTS[name], prior="learnt").fit(digits[:300])
    x, codes = model.sample(20)
    assert x.shape == (20, 64)
    assert codes.shape == (20, model.module_.variables)
    np.testing.assert_allclose(x, model.inverse_transform(codes), atol=1e-6)
    np.testing.assert_array_equal(model.sample(20)[1], codes)  # as from GaussianMixture with a whole random_state
    assert model.sample()[0].shape == (1, 64)
    with pytest.raises(ValueError, match="n_samples must be at least 1, got 0"):
        model.sample(0)


def test_scores_beyond_enumeration_are_a_bound_that_rises(digits):
    model = quick(latent="bits", variables=20, estimator="disarm", epochs=5).fit(digits[:500])
    few, many = (model.score_samples(digits[:100], samples=samples) for samples in (1, 300))
    assert few.shape == (100,)
    assert few.mean() < many.mean()
    np.testing.assert_array_equal(many, model.score_samples(digits[:100], samples=300))
    with pytest.raises(ValueError, match="samples must be at least 1"):
        model.score_samples(digits, samples=0)


def test_same_seed_same_model(digits):
    x = digits[:200]
    first = quick().fit(x).transform(x)
    state = torch.get_rng_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        np.testing.assert_array_equal(quick().fit(x).transform(x), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert (quick(random_state=1).fit(x).transform(x) != first).any()
    states = [quick(random_state=np.random.RandomState(5)).fit(x).transform(x) for _ in range(2)]
    np.testing.assert_array_equal(*states)
    assert (quick(random_state=None).fit(x).transform(x) != quick(random_state=None).fit(x).transform(x)).any()


@pytest.mark.parametrize("estimator", ["direct", "relax", "gumbel-softmax", Exact(), Relax()])
def test_fit_leaves_torchs_random_state_alone(estimator, digits):
    state = torch.get_rng_state()
    model = quick(estimator=estimator, epochs=1).fit(digits[:100])
    model.sample(3)
    model.score_samples(digits[:5])
    assert torch.equal(torch.get_rng_state(), state)


def test_parameters_clone_and_pickle(trained, digits):
    model = DiscreteVAE(values=7, encoder=nn.Linear(64, 7), estimator=Direct(0.3))
    assert model.get_params()["values"] == 7
    copied = clone(model.set_params(values=8, prior="learnt"))
    assert copied.get_params()["values"] == 8
    assert copied.encoder is not model.encoder
    assert copied.estimator is not model.estimator
    assert torch.equal(copied.encoder.weight, model.encoder.weight)
    again = pickle.loads(pickle.dumps(trained))
    np.testing.assert_array_equal(again.score_samples(digits[:9]), trained.score_samples(digits[:9]))
    assert len(DiscreteVAE().get_params()) <= 22


def test_grid_search_by_score(digits):
    model = quick(epochs=40, hidden=100, batch_size=50, learning_rate=3e-3)
    search = GridSearchCV(model, {"values": [2, 10]}, cv=2).fit(digits[:1000].round())
    assert search.best_params_ == {"values": 10}
    assert search.best_estimator_.module_.values == 10


def test_pipeline(digits):
    target, x = load_digits().target, 5 * digits.round() - 3
    features = quick(variables=4, values=8, epochs=15, hidden=100, batch_size=50, learning_rate=3e-3)
    pipeline = make_pipeline(MinMaxScaler(clip=True), features, LogisticRegression(max_iter=1000))
    pipeline.fit(x[:1000], target[:1000])
    assert pipeline.score(x[1000:], target[1000:]) > 0.5  # by chance 0.1
    back = make_pipeline(MinMaxScaler(clip=True), quick()).fit(16 * digits[:200])
    assert back.inverse_transform(back.transform(16 * digits[:5])).shape == (5, 64)


NAMES = get_args(EstimatorName)


@pytest.mark.parametrize("name", LATENTS)
@pytest.mark.parametrize("estimator", NAMES)
def test_every_estimator_trains(estimator, name, digits):
    model = quick(estimator=estimator, epochs=2, **LATENTS[name])
    if estimator in ("arm", "disarm") and name != "bits":
        with pytest.raises(ValueError, match="does not support"):
            model.fit(digits[:100])
        return
    model.fit(digits[:200])
    assert all(parameter.isfinite().all() for parameter in model.module_.parameters())
    assert np.isfinite(model.score_samples(digits[:20])).all()
    assert len(model.history_) == 2


def convolutions():
    torch.manual_seed(0)
    encoder = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 4, 2 * 5)
    )
    decoder = nn.Sequential(
        nn.Flatten(), nn.Linear(2 * 5, 4 * 4 * 4), nn.ReLU(), nn.Unflatten(1, (4, 4, 4)), nn.ConvTranspose2d(4, 1, 2, 2)
    )
    return encoder, decoder


@pytest.mark.parametrize("as_tensor", [False, True])
def test_own_networks_on_images(as_tensor, digits):
    with torch.random.fork_rng(devices=[]):
        encoder, decoder = convolutions()
    before = encoder[0].weight.clone()
    images = digits[:300].reshape(-1, 1, 8, 8)
    x = torch.tensor(images, requires_grad=True) if as_tensor else images
    model = quick(variables=2, values=5, encoder=encoder, decoder=decoder, epochs=10, learning_rate=5e-3).fit(x)
    assert torch.equal(encoder[0].weight, before)
    assert model.encoder is encoder
    assert isinstance(model.module_, DiscreteVAEModule)
    assert not torch.equal(model.module_.encoder[0].weight, before)
    assert not model.module_.training
    assert model.history_[-1]["loss"] < model.history_[0]["loss"] - 2
    assert (model.n_features_in_, model.example_shape_) == (64, (1, 8, 8))
    assert model.transform(x).shape == (300, 10)
    assert model.inverse_transform(model.encode(x)).shape == (300, 1, 8, 8)
    assert model.sample(4)[0].shape == (4, 1, 8, 8)
    with pytest.raises(ValueError, match=r"fitted on examples of shape \(1, 8, 8\); reshape X to \(n, 1, 8, 8\)"):
        model.transform(digits[:10])


def test_default_networks_on_images_and_double_precision(digits):
    model = quick().fit(digits[:100].reshape(-1, 8, 8))
    assert model.inverse_transform([[3], [4]]).shape == (2, 8, 8)
    encoder, decoder = nn.Linear(64, 10).double(), nn.Linear(10, 64).double()
    model = quick(encoder=encoder, decoder=decoder, estimator="relax", prior="learnt").fit(digits[:100])
    assert model.module_.encoder.weight.dtype == torch.float64
    assert np.isfinite(model.score(digits[:100]))


def test_estimator_object_is_copied(digits):
    estimator = Direct("auto")
    model = quick(estimator=estimator).fit(digits[:200])
    assert estimator.adaptations == 0
    assert estimator.epsilon == 1
    assert model.module_.estimator.adaptations > 0


def test_early_stop_keeps_the_best_epoch(digits):
    model = quick(epochs=40, learning_rate=0.05, patience=2, validation_fraction=0.3).fit(digits[:150])
    losses = [row["loss"] for row in model.history_]
    assert len(losses) == model.best_epoch_ + 2 < 40
    assert np.argmin(losses) == model.best_epoch_ - 1


def test_without_validation_examples_the_training_loss_decides(digits):
    model = quick(validation_fraction=0, epochs=5).fit(digits[:100])
    bound = model.module_.negative_elbo(torch.tensor(digits[:100], dtype=torch.float32)).mean()
    assert float(bound) == pytest.approx(model.history_[model.best_epoch_ - 1]["loss"], rel=1e-5)
    quick(validation_fraction=0.9).fit(digits[:1])


def test_dead_codes_are_revived(digits):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = nn.Linear(64, 10)
    with torch.no_grad():
        encoder.bias[5:] = -200.0
    left, cured = (quick(encoder=encoder, epochs=6, revive_until=until).fit(digits[:500]) for until in (0, 3))
    assert left.history_[-1]["used_codes"] == pytest.approx(0.5)
    assert cured.history_[0]["revived"] == 5
    assert cured.history_[-1]["used_codes"] == 1.0


def test_verbose_prints_one_line_per_epoch(digits, capsys):
    quick(verbose=True).fit(digits[:100])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("epoch 1 of 3: validation loss ")
    quick().fit(digits[:100])
    assert capsys.readouterr().out == ""


class Interrupting(nn.Linear):
    """Ctrl-C at the first step."""

    def forward(self, x):
        if self.training and self.weight.requires_grad:
            self.weight.requires_grad_(False)
            signal.raise_signal(signal.SIGINT)
        return super().forward(x)


def test_an_interrupt_reaches_the_caller(digits):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        quick(encoder=Interrupting(64, 10), batch_size=20).fit(digits[:100])
    assert signal.getsignal(signal.SIGINT) is before


def test_values_outside_the_unit_interval_are_refused(digits, trained):
    message = r"needs X in \[0, 1\], got values from 0 to 16; scale X .* or use likelihood='gaussian'"
    for method in (quick().fit, trained.transform, trained.score_samples):
        with pytest.raises(ValueError, match=message):
            method(16 * digits)
    quick().fit(digits[:50] * (1 + 1e-12))  # rounding is no reason to stop
    quick(likelihood="gaussian", scale=0.3).fit(16 * digits[:50] - 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"estimator": "magic"}, "there is no estimator 'magic'; choose one of direct, exact"),
        ({"estimator": Direct}, "estimator must be a name or an estimator object such as Exact"),
        ({"estimator": "arm"}, "Arm does not support .* these do: "),
        ({"encoder": "conv"}, "encoder must be a torch.nn.Module or None, got 'conv'"),
        ({"decoder": nn.Linear(10, 63)}, r"the decoder turned 10 codes into shape \(10, 63\)"),
        ({"latent": "trits"}, 'latent must be "categorical" or "bits"'),
        ({"likelihood": "poisson"}, 'likelihood must be "bernoulli" or "gaussian"'),
        ({"values": 1}, "values >= 2"),
        ({"hidden": 0}, "hidden must be at least 1, got 0"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be a positive number"),
        ({"validation_fraction": 1.0}, "validation_fraction must be at least 0 and below 1, got 1.0"),
        ({"kl_weight": -1.0}, "kl_weight must be a number that is not negative, got -1.0"),
        ({"latent": "bits", "variables": 4, "revive_until": 1}, "dead codes are revived for categorical latents"),
    ],
)
def test_wrong_settings_are_refused_in_fit(changes, message, digits):
    model = quick(**changes)
    with pytest.raises(ValueError, match=message):
        model.fit(digits[:50])
    with pytest.raises(NotFittedError):
        model.transform(digits[:50])


def test_wrong_data_is_refused(digits, trained):
    broken = digits[:50].copy()
    broken[3, 4] = np.nan
    with pytest.raises(ValueError, match="contains NaN"):
        quick().fit(broken)
    with pytest.raises(ValueError, match="contains NaN"):
        quick().fit(broken.reshape(-1, 8, 8))
    with pytest.raises(ValueError, match="X has 63 features, but DiscreteVAE is expecting 64"):
        trained.transform(digits[:5, :63])
    with pytest.raises(ValueError, match="X has 60 features, but DiscreteVAE is expecting 64"):
        trained.transform(np.zeros((5, 6, 10)))


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (np.zeros((3, 4)), r"Z has shape \(3, 4\); give codes of shape \(n, 1\) or probabilities of shape \(n, 10\)"),
        ([[10]], "codes must be whole numbers from 0 to 9, got values from 10 to 10"),
        ([[-1]], "codes must be whole numbers from 0 to 9"),
        ([[0.5]], "codes must be whole numbers from 0 to 9"),
        ([3, 4], "Expected 2D array"),
    ],
)
def test_wrong_codes_are_refused(codes, message, trained):
    with pytest.raises(ValueError, match=message):
        trained.inverse_transform(codes)


@pytest.mark.parametrize("method", ["transform", "encode", "score_samples", "score", "inverse_transform"])
def test_methods_need_fit(method, digits):
    with pytest.raises(NotFittedError):
        getattr(DiscreteVAE(), method)(digits)
    with pytest.raises(NotFittedError):
        DiscreteVAE().sample()


def test_exports_are_lazy():
    assert argrad.DiscreteVAE is argrad.models.DiscreteVAE
    for module in (argrad, argrad.models):
        assert "DiscreteVAE" in dir(module)
        assert "DiscreteVAE" in module.__all__
        with pytest.raises(AttributeError, match="has no attribute 'ContinuousVAE'"):
            _ = module.ContinuousVAE
    child = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import argrad.models; argrad.models.DiscreteVAEModule\n"
        "try: argrad.DiscreteVAE\nexcept ImportError: print('needs scikit-learn')"
    )
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "needs scikit-learn\n"
