"""The hashing experiment on tiny images: who searches whom, what is trained and chosen, and what is said of it."""

import json
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from argrad.data import Images
from argrad.experiments import hashing
from argrad.experiments.hashing import Hashing, assemble, format_table, markdown, plot, run, run_collection, time_search
from argrad.experiments.hashing_training import (
    CLOTHES,
    Collection,
    Trainer,
    by_characters,
    by_images,
    by_sign,
    components,
    embed,
    load_collection,
    train,
)
from argrad.models.hashing.module import HashingModule, convolutional_encoder
from argrad.models.hashing.retrieval import retrieval_by_bits

TINY = {"bits": (8, 16), "seeds": 2, "steps": 1, "batch_size": 6, "channels": 2, "tuning_bits": 8, "rounds": 1}


def silent(line: str) -> None:
    pass


def tiny_images(name: str, characters: int, drawings: int, *, new_ones: bool) -> Images:
    """Noisy copies of patterns; test has the same patterns, or new ones with labels of their own."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(characters + 5, 8, 8, generator=generator)

    def part(first: int, last: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(first, last).repeat(number)
        noise = 0.3 * torch.rand(len(labels), 8, 8, generator=generator)
        return (patterns[labels] + noise).clamp(0, 1), labels

    (train, y), (validation, y_validation) = part(0, characters, drawings), part(0, characters, 2)
    test, y_test = part(characters, characters + 5, 4) if new_ones else part(0, characters, 5)
    return Images(name, train, validation, test, y, y_validation, y_test, binarization="none")


@pytest.fixture(scope="module")
def collection() -> Collection:
    return by_images(tiny_images("tiny", 4, 10, new_ones=False))


def test_characters_of_validation_and_test_are_never_trained_on():
    found = by_characters(tiny_images("omniglot", 20, 6, new_ones=True))
    assert len(found.train) == 18 * 8  # training and validation drawings of nine in ten characters
    assert sorted(found.labels.unique().tolist()) == list(range(18))
    assert len(found.validation.images) == 2 * 8
    assert found.validation.among_themselves
    assert found.test.among_themselves
    assert found.test.query_labels.min() == 20
    seen = {tuple(image.flatten().tolist()) for image in found.train}
    for search in (found.validation, found.test):
        assert torch.equal(search.queries, search.images)
        assert not seen & {tuple(image.flatten().tolist()) for image in search.queries}
    again = by_characters(tiny_images("omniglot", 20, 6, new_ones=True))
    assert torch.equal(again.validation.labels, found.validation.labels)


def test_images_are_searched_by_others(collection):
    assert len(collection.train) == 40
    assert torch.equal(collection.validation.images, collection.train)
    assert len(collection.test.images) == 48  # training and validation
    assert len(collection.test.queries) == 20
    assert not collection.test.among_themselves
    without = Images("mine", collection.train, collection.train, collection.train)
    with pytest.raises(ValueError, match="mine has no labels, which retrieval is judged by"):
        by_images(without)


def test_components_are_those_of_scikit_learn(collection):
    mean, directions = components(collection.train, 5)
    flat = collection.train.flatten(1)
    expected = PCA(5).fit_transform(flat.numpy())
    found = ((flat - mean) @ directions).numpy()
    signs = np.sign((found * expected).sum(0))
    np.testing.assert_allclose(found * signs, expected, atol=1e-4)
    with pytest.raises(ValueError, match="64 pixels have no 65 principal components"):
        components(collection.train, 65)


def test_training_is_decided_by_its_seed_and_learns(collection):
    def once(seed: int, steps: int) -> HashingModule:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            encoder = convolutional_encoder((8, 8), 16, 4)
            module = HashingModule(encoder, hashing.estimator_by_name("local-expectation"), 16)
        train(module, collection, steps=steps, batch_size=16, learning_rate=5e-3, seed=seed)
        return module

    def loss(module: HashingModule) -> float:
        both, labels = collection.validation.queries, collection.validation.query_labels
        order = labels.argsort(stable=True)
        pairs = torch.cat([order[::2], order[1::2]])
        return module.losses_of_codes(both[pairs], labels[pairs]).mean().item()

    state = torch.get_rng_state()
    first, again, other = once(0, 3), once(0, 3), once(1, 3)
    assert torch.equal(torch.get_rng_state(), state)
    assert not first.training
    x = collection.train
    assert torch.equal(embed(first, x), embed(again, x))
    assert not torch.equal(embed(first, x), embed(other, x))
    assert loss(once(0, 60)) < 0.5 * loss(first)


@pytest.mark.parametrize("loss", ["logistic", "triplet"])
@pytest.mark.parametrize("method", get_args(hashing.MethodName))
def test_a_step_looks_at_no_number(method, loss, collection):
    """On the meta device, where there are none to look at: so a GPU can capture the step as one graph."""
    estimator = None if method == "float" else hashing.estimator_by_name(method)
    module = HashingModule(convolutional_encoder((8, 8), 16, 2), estimator, 16, loss=loss)
    moved = replace(collection, augmentation=CLOTHES)
    trainer = Trainer(module, moved, 6, 1e-3, graph=True)
    module.to("meta")
    examples, labels, sampler = trainer.task.parts[0]
    for name in ("order", "size", "first", "place"):
        setattr(sampler, name, getattr(sampler, name).to("meta"))
    trainer.task.parts = ((examples.to("meta"), labels.to("meta"), sampler), trainer.task.parts[1])
    trainer.task.device = torch.device("meta")
    trainer.parameters = list(module.parameters())
    trainer.optimiser = torch.optim.SGD(trainer.parameters, 1e-3)
    trainer.step()
    assert all(parameter.grad is not None and parameter.grad.is_meta for parameter in module.encoder.parameters())


def test_every_row_is_there(collection):
    settings = Hashing(datasets=("tiny",), **TINY)
    rows, tuning = run_collection(collection, settings, silent)
    trained = ("local-expectation", "direct", "arm", "straight-through", "float", "float, signs")
    expected = {(bits, method, loss) for bits in (8, 16) for method in trained for loss in ("logistic", "triplet")}
    expected |= {(8, "pca, signs", None), (16, "pca, signs", None)}
    assert {(row["bits"], row["method"], row["loss"]) for row in rows} == expected
    for row in rows:
        assert row["dataset"] == "tiny"
        assert len(row["map"]) == len(row["recall@1"]) == len(row["recall@10"]) == (1 if row["loss"] is None else 2)
        assert all(0 <= one <= ten <= 1 for one, ten in zip(row["recall@1"], row["recall@10"], strict=True))
    assert len(tuning) == 5 * (3 + 4)
    pca = next(row for row in rows if row["method"] == "pca, signs" and row["bits"] == 8)
    mean, directions = components(collection.train, 8)
    bits = [((x.flatten(1) - mean) @ directions > 0).float() for x in (collection.test.queries, collection.test.images)]
    expected_map = retrieval_by_bits(*bits, collection.test.query_labels, collection.test.labels)
    assert pca["map"] == [pytest.approx(expected_map["map"], abs=1e-4)]


def test_validation_chooses_and_fresh_seeds_are_measured(collection, monkeypatch):
    seen = []

    def pretend(collection, method, loss, bits, share, seed, settings):
        seen.append((loss, bits, share, seed))
        return HashingModule(torch.nn.Flatten(), None, 64), 0.0

    def judge(queries, others, search):
        share = seen[-1][2] if seen else 0.0  # PCA comes first
        return {"map": 1 - abs(share - 1 / 8), "recall@1": 0.5, "recall@10": 0.5}

    monkeypatch.setattr(hashing, "trained", pretend)
    monkeypatch.setattr(hashing, "by_sign", judge)
    settings = Hashing(datasets=("tiny",), methods=("direct",), **TINY)
    rows, _ = run_collection(collection, settings, silent)
    assert {row["share"] for row in rows if row["method"] == "direct"} == {1 / 8}
    assert {seed for _, bits, share, seed in seen if share != 1 / 8} == {hashing.TUNING_SEED}
    assert {(bits, seed) for _, bits, _, seed in seen if seed < 10} == {(8, 0), (8, 1), (16, 0), (16, 1)}


def test_images_among_themselves_are_embedded_once(monkeypatch):
    """Else the rounding of two passes could part an image from itself."""
    found, judged = by_characters(tiny_images("omniglot", 20, 6, new_ones=True)), []

    def judge(queries, others, search):
        judged.append((search, queries is others))
        return {"map": 0.5, "recall@1": 0.5, "recall@10": 0.5}

    monkeypatch.setattr(hashing, "by_sign", judge)
    monkeypatch.setattr(hashing, "by_angle", judge)
    run_collection(found, Hashing(datasets=("tiny",), methods=("direct", "float"), **TINY), silent)
    assert {search is found.test for search, _ in judged} == {True, False}
    assert all(once for _, once in judged)


@pytest.fixture(scope="module")
def result(collection) -> dict:
    """Of one method and the embeddings, through JSON."""
    settings = Hashing(datasets=("tiny",), methods=("direct", "float"), losses=("logistic",), quick=True, **TINY)
    return json.loads(json.dumps(run(settings, silent, load=lambda name: collection), allow_nan=False))


def test_words_and_picture(result, tmp_path):
    text = format_table(result)
    assert text.startswith("QUICK")
    assert result["command"].startswith("argrad reproduce hashing --datasets tiny --bits 8 16")
    for words in ("float, signs", "pca, signs", "recall@10", "100 queries among 60,000 codes of 64 bits"):
        assert words in text
        assert words in markdown(result)
    cells = []
    for bits in (8, 16):
        (row,) = (row for row in result["rows"] if (row["bits"], row["method"]) == (bits, "direct"))
        first, tenth, precision = (100 * np.array(row[name]) for name in ("recall@1", "recall@10", "map"))
        spread = precision.std(ddof=1)
        cells.append(f"{first.mean():.1f} · {tenth.mean():.1f} · {precision.mean():.1f} ± {spread:.1f}")
    assert f"| logistic | direct | {cells[0]} | {cells[1]} |" in markdown(result).splitlines()
    plot(result, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_parts_measured_apart(result, tmp_path):
    """Each loss of a data set by itself, and the search elsewhere."""
    rows, tuning = result["rows"], result["tuning"]
    other = [{**row, "loss": "triplet" if row["loss"] else None} for row in rows]
    settings = Hashing(datasets=("tiny",), **TINY)
    search = {**result["search"], "hardware": "elsewhere"}
    whole = assemble([(rows, tuning), (other, tuning)], settings, "all of it", search)
    assert len([row for row in whole["rows"] if row["method"] == "pca, signs"]) == 2  # not once more for each loss
    assert len(whole["rows"]) == 2 * len(rows) - 2
    assert len(whole["tuning"]) == 2 * len(tuning)
    assert whole["command"] == "all of it"
    assert "elsewhere" in format_table(whole)
    assert "not timed" in format_table({**whole, "search": None})
    plot(whole, tmp_path / "picture.png")


def test_the_search_is_timed_round_by_round():
    pytest.importorskip("numba")
    found = time_search(2)
    assert len(found["milliseconds"]) == len(found["float_milliseconds"]) == 2
    assert len(found["processor_milliseconds"]) == 2
    assert (found["queries"], found["codes"], found["bits"]) == (100, 60_000, 64)
    assert min(found["milliseconds"]) > 0


def test_bad_settings():
    for name in ("seeds", "steps", "batch_size", "rounds"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            Hashing(**{name: 0})
    with pytest.raises(ValueError, match="there is no magic; choose from local-expectation, direct"):
        Hashing(methods=("magic",))
    with pytest.raises(ValueError, match="there is no hinge; choose from triplet, logistic"):
        Hashing(losses=("hinge",))
    with pytest.raises(ValueError, match="give at least one number of bits"):
        Hashing(bits=())


@pytest.mark.slow
def test_omniglot_characters_from_the_catalogue(data_root):
    """868 characters to train on, 96 to choose by, 659 of other alphabets to test on; 20 drawings of each."""
    found = load_collection("omniglot")
    assert len(found.train) == 868 * 20
    assert len(found.validation.images) == 96 * 20
    assert len(found.test.images) == 13_180
    assert torch.equal(found.test.labels.bincount()[964:], torch.full((659,), 20))
    mean, directions = components(found.train, 32)
    codes = (found.validation.images.flatten(1) - mean) @ directions
    assert 0.1 < by_sign(codes, codes, found.validation)["recall@1"] < 0.9


@pytest.mark.slow
def test_fashion_mnist_from_the_catalogue(data_root):
    found = load_collection("fashion-mnist")
    assert (len(found.train), len(found.test.images), len(found.test.queries)) == (50_000, 60_000, 10_000)
