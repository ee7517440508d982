"""The tokenizer in scikit-learn's words."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError

from argrad import Direct, Tokenizer
from argrad.data import Images
from argrad.models import CodePrior, TokenizerModule
from argrad.models.tokenizer.run import TokenizerSettings, tokenizer_config, train_prior, train_tokenizer
from argrad.training import RunFolder

SMALL = {"codes": 16, "width": 8, "dimension": 4, "batch_size": 50, "learning_rate": 0.005, "device": "cpu"}
SMALL |= {
    "kl_weight": 0.2,
    "continuous_steps": 1,
    "prior_width": 16,
    "random_state": 0,
    "anneal_epochs": 2,
    "revive_until": 3,
}


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    return (load_digits().images[:300] / 16).astype(np.float32)


@pytest.fixture(scope="module")
def model(X) -> Tokenizer:
    return Tokenizer(**SMALL, epochs=6, prior_epochs=3).fit(X)


def test_it_learns(model, X):
    errors = [row["hard_error"] for row in model.history_]
    assert errors[-1] < 0.8 * errors[0]
    assert model.history_[-1]["perplexity"] > 4
    assert model.prior_history_[-1]["loss"] < model.prior_history_[0]["loss"]
    assert -model.score(X) == pytest.approx(np.square(model.decode(model.encode(X)) - X).mean(), rel=1e-5)
    assert -model.score(X) < 0.7 * X.var()


def test_codes_and_back(model, X):
    codes = model.transform(X)
    assert codes.shape == (300, 2, 2)
    assert codes.dtype == np.int64
    assert 0 <= codes.min() <= codes.max() < 16
    images = model.inverse_transform(codes)
    assert images.shape == X.shape
    assert np.array_equal(images, model.inverse_transform(torch.as_tensor(codes)))
    assert np.array_equal(model.transform(torch.as_tensor(X)), codes)
    assert model.vocabulary_.shape == (16, 4)
    for kind in ("u1", "u2", "u4", "u8", "i1", ">i8", ">u2"):
        assert np.array_equal(model.inverse_transform(codes.astype(kind)), images)
    assert model.inverse_transform(codes[:0]).shape == (0, 8, 8)
    assert np.array_equal(model.transform(X.astype(">f4")), codes)


def test_samples(model):
    images, codes = model.sample(5)
    assert images.shape == (5, 8, 8)
    assert np.array_equal(images, model.decode(codes))
    assert 0 <= images.min() <= images.max() <= 1


def test_many_samples_are_drawn_and_decoded_in_pieces(model, monkeypatch):
    def largest(method: str) -> list[int]:
        sizes, original = [], getattr(CodePrior if method == "sequence" else TokenizerModule, method)

        def watched(self, given, *rest):
            sizes.append(given if isinstance(given, int) else len(given))
            return original(self, given, *rest)

        monkeypatch.setattr(CodePrior if method == "sequence" else TokenizerModule, method, watched)
        return sizes

    few = clone(model).set_params(random_state=3)
    few._keep(model.module_, model.prior_, [], [])
    whole = few.sample(1200)
    drawn, decoded = largest("sequence"), largest("decode")
    monkeypatch.setattr("argrad.models.tokenizer.task.SCORES_AT_ONCE", 300 * 4 * 16)
    pieces = few.sample(1200)
    assert drawn == decoded == [300] * 4
    assert np.array_equal(pieces[1], whole[1])
    np.testing.assert_allclose(pieces[0], whole[0], atol=1e-6)


@pytest.mark.parametrize(
    "estimator", ["gumbel-softmax", "direct", "direct-gradient", "reinforce", Direct(0.5, changes=2, two_sided=True)]
)
def test_every_estimator_trains(estimator, X):
    model = Tokenizer(**{**SMALL, "estimator": estimator, "kl_warmup_epochs": 0}, epochs=3, prior_epochs=0).fit(X)
    losses = [row["loss"] for row in model.history_]
    assert losses[-1] < losses[0]
    assert model.prior_ is None


def test_random_state_decides(X):
    settings = {**SMALL, "epochs": 1, "prior_epochs": 0}
    state = torch.random.get_rng_state()
    first, again = (Tokenizer(**settings).fit(X[:100]) for _ in range(2))
    other = clone(first).set_params(random_state=1).fit(X[:100])
    assert np.array_equal(first.vocabulary_, again.vocabulary_)
    assert not np.array_equal(first.vocabulary_, other.vocabulary_)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_from_a_run(X, tmp_path):
    settings = TokenizerSettings(
        data="X", codes=5, width=4, dimension=3, epochs=1, prior_epochs=1, prior_width=4, batch_size=50
    )
    x = torch.as_tensor(X[:100])
    images = Images("X", x[:80], x[80:], x[:0], binarization="none")
    folder = RunFolder.create(tmp_path / "run", tokenizer_config(settings, (8, 8)))
    module, _ = train_tokenizer(settings, folder, images)
    without = Tokenizer.from_run(tmp_path / "run", device="cpu")
    assert without.prior_ is None
    train_prior(settings, folder, module, images)
    loaded = Tokenizer.from_run(tmp_path / "run", device="cpu")
    assert np.array_equal(loaded.transform(X), module.encode(torch.as_tensor(X)).numpy())
    assert loaded.get_params()["codes"] == 5
    assert loaded.sample(2)[0].shape == (2, 8, 8)


def test_a_training_that_ends_before_it_has_codes_says_so(X):
    words = "not trained: all 6 steps were among the first continuous_steps=200"
    with pytest.warns(UserWarning, match=words):
        Tokenizer(**{**SMALL, "continuous_steps": 200}, epochs=1, prior_epochs=0).fit(X)


class TestRefusals:
    @pytest.mark.parametrize("shape", [(20, 64), (20, 7, 8), (20, 2, 8, 8), (0, 8, 8)])
    def test_shapes(self, shape):
        with pytest.raises(ValueError, match=r"divisible by 4|no image"):
            Tokenizer(**SMALL, epochs=1).fit(np.zeros(shape))

    @pytest.mark.parametrize(
        ("X", "words"),
        [
            (np.full((20, 8, 8), 255), "scale them"),
            (np.full((20, 8, 8), np.nan), "NaN"),
            (np.full((20, 8, 8), "a"), "must hold numbers"),
        ],
    )
    def test_values(self, X, words):
        with pytest.raises(ValueError, match=words):
            Tokenizer(**SMALL, epochs=1).fit(X)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"validation_fraction": 1.0}, "validation_fraction"),
            ({"estimator": "magic"}, "magic"),
            ({"estimator": 3}, "estimator object"),
            ({"codes": 1}, "codes must be at least 2"),
            ({"epochs": 0}, "epochs must be at least 1"),
            ({"continuous_steps": -1}, "continuous_steps must not be negative, got -1"),
        ],
    )
    def test_settings(self, changes, words, X):
        with pytest.raises(ValueError, match=words):
            Tokenizer(**{**SMALL, **changes}).fit(X)

    def test_before_fit(self, X):
        for method in ("transform", "inverse_transform", "score"):
            with pytest.raises(NotFittedError):
                getattr(Tokenizer(), method)(X)

    def test_wrong_images_and_codes(self, model):
        with pytest.raises(ValueError, match=r"images of shape \(8, 8\)"):
            model.transform(np.zeros((2, 28, 28)))
        with pytest.raises(ValueError, match="0 to 15, the vocabulary of this tokenizer, got 16"):
            model.inverse_transform(np.full((1, 2, 2), 16))
        for kind in ("f4", "?", "c8", "U3", "S3", "M8[s]", "m8[s]", object):
            with pytest.raises(ValueError, match=r"whole numbers, as .* returns them, got an array of"):
                model.inverse_transform(np.zeros((1, 2, 2), dtype=kind))
        for far in (2**62, 2**63, 2**64 - 1):
            with pytest.raises(ValueError, match=f"vocabulary.* got {far}"):
                model.inverse_transform(np.full((1, 2, 2), far, dtype=np.uint64))

    def test_samples_without_a_prior(self, model, X):
        with pytest.raises(ValueError, match="n_samples"):
            model.sample(0)
        bare = Tokenizer(**SMALL, epochs=1, prior_epochs=0).fit(X[:100])
        with pytest.raises(ValueError, match="prior_epochs above 0"):
            bare.sample()
