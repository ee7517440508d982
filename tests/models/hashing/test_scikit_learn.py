"""HashingEncoder: scikit-learn's own checks, what is found, files, and one clear error for each kind of bad input."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from argrad import Direct
from argrad.models.hashing import scikit_learn as hashing
from argrad.models.hashing.retrieval import retrieval_by_bits
from argrad.models.hashing.scikit_learn import HashingEncoder
from argrad.models.hashing.search import hamming_neighbors, unpack
from argrad.models.semi_supervised.augmentation import Augmentation
from argrad.training import BrokenFile


@parametrize_with_checks([HashingEncoder(bits=8, hidden=8, epochs=1, device="cpu")])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def quick(**changes) -> HashingEncoder:
    settings = {"bits": 16, "epochs": 1, "hidden": 16, "random_state": 0, "device": "cpu"}
    return HashingEncoder(**{**settings, **changes})


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return X / 16, y


@pytest.fixture(scope="module")
def trained(digits) -> HashingEncoder:
    """On the first 1,200 digits; 597 others are queries."""
    X, y = digits
    return quick(epochs=8, hidden=64, learning_rate=5e-3).fit(X[:1200], y[:1200])


def precision(codes: np.ndarray, queries: np.ndarray, y: np.ndarray, y_queries: np.ndarray) -> float:
    as_bits = [torch.tensor(part, dtype=torch.float32) for part in (queries, codes)]
    return retrieval_by_bits(*as_bits, torch.tensor(y_queries), torch.tensor(y))["map"]


def test_finds_more_than_thresholded_pca(trained, digits):
    """With as many bits, on digits that were not seen."""
    X, y = digits
    ours = precision(unpack(trained.codes_), unpack(trained.transform(X[1200:])), y[:1200], y[1200:])
    pca = PCA(16).fit(X[:1200])
    theirs = precision(pca.transform(X[:1200]) > 0, pca.transform(X[1200:]) > 0, y[:1200], y[1200:])
    assert ours > 0.85 > 0.6 > theirs
    assert trained.history_[-1]["loss"] < trained.history_[0]["loss"]
    assert min(row["loss"] for row in trained.history_) == trained.history_[trained.best_epoch_ - 1]["loss"]


def test_neighbours(trained, digits):
    X, y = digits
    distances, rows = trained.kneighbors(X[1200:], n_neighbors=7)
    expected = hamming_neighbors(trained.transform(X[1200:]), trained.transform(X[:1200]), 7)
    np.testing.assert_array_equal(distances, expected[0])
    np.testing.assert_array_equal(rows, expected[1])
    np.testing.assert_array_equal(trained.kneighbors(X[1200:], 7, return_distance=False), rows)
    assert (y[rows[:, 0]] == y[1200:]).mean() > 0.85
    assert trained.kneighbors(X[:3])[1].shape == (3, 5)


def test_other_examples_can_be_searched(trained, digits):
    X, _ = digits
    other = pickle.loads(pickle.dumps(trained)).index(X[1200:1300])
    assert other.codes_.shape == (100, 2)
    assert other.kneighbors(X[1200:1300], 1)[0].max() == 0


def test_codes_are_packed_bits(trained, digits):
    X, _ = digits
    codes = trained.transform(X)
    assert codes.shape == (1797, 2)
    assert codes.dtype == np.uint8
    scores = trained.module_.double().scores(torch.tensor(X)).detach().numpy()
    trained.module_.float()
    np.testing.assert_array_equal(unpack(codes), scores > 0)
    np.testing.assert_array_equal(trained.transform(torch.tensor(X)), codes)
    assert trained.get_feature_names_out().tolist() == ["hashingencoder0", "hashingencoder1"]


def test_score_is_mean_average_precision(trained, digits):
    X, y = digits
    bits = torch.tensor(unpack(trained.transform(X[:300])), dtype=torch.float32)
    labels = torch.tensor(y[:300])
    expected = retrieval_by_bits(bits, bits, labels, labels, leave_one_out=True)["map"]
    assert trained.score(X[:300], y[:300]) == pytest.approx(expected)


@pytest.mark.parametrize("loss", ["triplet", "logistic"])
@pytest.mark.parametrize("estimator", ["direct", "local-expectation", "arm", "disarm", "straight-through", Direct(0.3)])
def test_every_pair_of_loss_and_estimator_learns(loss, estimator, digits):
    """Three digits that were not seen are found; where nothing is learnt, the score is 0.45 to 0.67."""
    X, y = digits
    few, others = np.split(np.flatnonzero(y < 3), [300])
    settings = {"epochs": 10, "batch_size": 64, "learning_rate": 1e-2}
    model = quick(loss=loss, estimator=estimator, **settings).fit(X[few], y[few])
    assert model.score(X[others], y[others]) > 0.85


def test_without_labels(digits):
    """Two views of each digit: what belongs together was never said, and is still found better than by chance."""
    X, y = digits
    images = X.reshape(-1, 8, 8)
    model = quick(epochs=4, augmentation=Augmentation(shift=0.1, rotation=10, drop=0.1)).fit(images[:600])
    assert model.score(images[600:], y[600:]) > 0.2  # 0.1 by chance
    assert model.transform(images[:2]).shape == (2, 2)
    assert quick().fit(X[:50]).codes_.shape == (50, 2)  # drops numbers


def test_examples_whose_class_has_no_other_are_left_out(digits):
    """Too few to hold any out: all that have a partner are trained on, and nothing else."""
    X, _ = digits
    model = quick(epochs=1).fit(X[:11], [0] * 6 + [1, 2, 3, 4, 5])
    assert model.codes_.shape == (11, 2)


def test_any_labels(digits):
    X, y = digits
    names = np.array(["zero", "one", "two"])
    few = np.flatnonzero(y < 3)[:60]
    by_number, by_name = quick().fit(X[few], y[few]), quick().fit(X[few], names[y[few]])
    order = np.argsort(names)
    same = quick().fit(X[few], np.argsort(order)[y[few]])  # the classes as their names sort
    np.testing.assert_array_equal(by_name.codes_, same.codes_)
    assert by_number.codes_.shape == by_name.codes_.shape
    alone = y[few].copy()
    alone[0] = 77  # the only one of its class: coded, not trained on
    assert quick().fit(X[few], alone).codes_.shape == (60, 2)


def test_the_seed_decides(digits):
    X, y = digits
    state = torch.get_rng_state()
    first, again, other = (quick(random_state=seed).fit(X[:300], y[:300]).codes_ for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_own_encoder_is_copied(digits):
    X, y = digits
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
    before = own[1].weight.clone()
    model = quick(bits=8, encoder=own).fit(X[:200].reshape(-1, 8, 8), y[:200])
    assert torch.equal(own[1].weight, before)
    assert not torch.equal(model.module_.encoder[1].weight, before)
    copied = clone(model)
    assert not hasattr(copied, "module_")


# --------------------------------------------------------------------------------------------------------------- files


def test_there_and_back(trained, digits, tmp_path):
    X, _ = digits
    trained.save(tmp_path / "digits.safetensors")
    again = HashingEncoder.load(tmp_path / "digits.safetensors")
    np.testing.assert_array_equal(again.transform(X), trained.transform(X))
    np.testing.assert_array_equal(again.kneighbors(X[1200:])[1], trained.kneighbors(X[1200:])[1])
    assert {**again.get_params(), "random_state": 0} == trained.get_params()
    assert again.n_features_in_ == 64


def test_settings_may_be_numbers_of_numpy(digits, tmp_path):
    """As they come out of a search over np.arange."""
    X, y = digits
    model = quick(bits=np.int64(16), scale=np.float32(2.5), hidden=np.int32(8)).fit(X[:100], y[:100])
    model.save(tmp_path / "model")
    again = HashingEncoder.load(tmp_path / "model")
    assert (again.bits, again.scale, again.hidden) == (16, 2.5, 8)
    np.testing.assert_array_equal(again.transform(X), model.transform(X))


def test_convolutions_and_own_objects(digits, tmp_path):
    X, y = digits
    images = X[:100].reshape(-1, 8, 8)
    model = quick(encoder="convolutional", channels=4, estimator=Direct(0.5), augmentation=Augmentation(shift=0.1))
    model.fit(images, y[:100]).save(tmp_path / "model")
    again = HashingEncoder.load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(again.transform(images), model.transform(images))
    assert again.estimator == "local-expectation"
    own = quick(bits=8, encoder=nn.Linear(64, 8)).fit(X[:100], y[:100])
    own.save(tmp_path / "own")
    loaded = HashingEncoder.load(tmp_path / "own", encoder=nn.Linear(64, 8))
    np.testing.assert_array_equal(loaded.transform(X), own.transform(X))
    with pytest.raises(ValueError, match="a model with an encoder of its own; give it"):
        HashingEncoder.load(tmp_path / "own")
    with pytest.raises(ValueError, match="does not fit the encoder"):
        HashingEncoder.load(tmp_path / "own", encoder=nn.Linear(63, 8))
    with pytest.raises(ValueError, match="a model with encoder='convolutional'; leave encoder out"):
        HashingEncoder.load(tmp_path / "model", encoder=nn.Linear(64, 8))


def test_broken_files(trained, tmp_path):
    path = tmp_path / "model"
    trained.save(path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(BrokenFile, match="cut short or altered"):
        HashingEncoder.load(path)
    hashing.write_tensors(path, {"x": torch.zeros(1)}, {"format": "pt"})
    with pytest.raises(BrokenFile, match="does not hold a HashingEncoder"):
        HashingEncoder.load(path)
    hashing.write_tensors(path, {"x": torch.zeros(1)}, {"format": "argrad hashing 1"})
    with pytest.raises(BrokenFile, match=r"another version of argrad \('argrad hashing 1'\); fit the model again"):
        HashingEncoder.load(path)
    with pytest.raises(NotFittedError):
        HashingEncoder().save(path)


# ----------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bits": 12}, "bits must be a multiple of 8"),
        ({"bits": 0}, "bits must be a multiple of 8"),
        ({"loss": "cosine"}, 'loss must be "triplet" or "logistic"'),
        ({"loss": "triplet", "margin": -2.0}, "margin must be a positive number of bits"),
        ({"scale": 0.01}, "scale must be a number of bits, at least 0.5"),
        ({"estimator": "magic"}, "there is no estimator 'magic'"),
        ({"estimator": 7}, "estimator must be a name or an estimator object"),
        ({"estimator": "exact", "bits": 64}, "Exact does not support"),
        ({"encoder": "deep"}, 'encoder must be "dense", "convolutional" or a torch.nn.Module'),
        ({"encoder": "convolutional"}, "needs images"),
        ({"encoder": nn.Linear(64, 5)}, "for 16 bits it must return"),
        ({"augmentation": "rotate"}, "augmentation must be an Augmentation or one of 'auto'"),
        ({"augmentation": 3}, "augmentation must be a name or an Augmentation"),
        ({"augmentation": "digits"}, "are no images and cannot be moved"),
        ({"validation_fraction": 1.0}, "validation_fraction must be at least 0 and below 1"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
    ],
)
def test_bad_settings(changes, words, digits):
    X, y = digits
    with pytest.raises(ValueError, match=words) as raised:
        quick(**changes).fit(X[:50], y[:50])
    assert "\n" not in str(raised.value)


def test_bad_examples(trained, digits):
    X, y = digits
    with pytest.raises(ValueError, match=r"y has one class only, .*3.*: contrast needs examples of at least 2 classes"):
        quick().fit(X[:20], np.full(20, 3))
    with pytest.raises(ValueError, match="no two of the 20 examples have the same class in y"):
        quick().fit(X[:20], np.arange(20))
    with pytest.raises(ValueError, match="X has 20 examples and y has 19: give one class for each"):
        quick().fit(X[:20], y[:19])
    with pytest.raises(ValueError, match="y contains NaN"):
        quick().fit(X[:20], np.where(y[:20] > 3, np.nan, 1.0))
    with pytest.raises(ValueError, match="give an augmentation other than 'none', or y"):
        quick(augmentation="none").fit(X[:20])
    with pytest.raises(ValueError, match="contrast needs at least 2 examples"):
        quick().fit(X[:1])
    with pytest.raises(ValueError, match="X contains NaN"):
        trained.transform(np.full((1, 64), np.nan))
    with pytest.raises(ValueError, match="X has 63 features, but HashingEncoder is expecting 64"):
        trained.transform(X[:, :63])
    with pytest.raises(ValueError, match="fitted on examples of shape \\(64,\\); reshape X to \\(n, 64\\)"):
        trained.transform(X.reshape(-1, 8, 8))
    with pytest.raises(ValueError, match="n_neighbors must be from 1 to the number of codes, 1200, got 1201"):
        trained.kneighbors(X[:2], 1201)
    with pytest.raises(ValueError, match="queries have 8 bits, but the codes have 16"):
        hamming_neighbors(quick(bits=8).fit(X[:50], y[:50]).transform(X[:2]), trained.codes_)
    with pytest.raises(NotFittedError):
        HashingEncoder().transform(X)
