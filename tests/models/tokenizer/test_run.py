"""A tokenizer's run folder: what it holds, that an interrupted run ends as if it had not been, what is refused."""

import json
from dataclasses import replace

import pytest
import torch

from argrad import Arm, Reinforce
from argrad.data import Images
from argrad.models import TokenizerModule
from argrad.models.tokenizer.codes import squared_distances as distances
from argrad.models.tokenizer.report import advice, evaluate_tokenizer, write_tokenizer_report
from argrad.models.tokenizer.run import (
    TokenizerSettings,
    build_tokenizer,
    encode_in_batches,
    load_prior,
    load_tokenizer,
    make_estimator,
    prior_path,
    tokenizer_config,
    train_prior,
    train_tokenizer,
)
from argrad.models.tokenizer.task import TokenizerTask, at_once
from argrad.training import BrokenFile, Interrupted, RunFolder, read_tensors
from argrad.training.files import write_tensors
from broken_off import BrokenOff

SETTINGS = TokenizerSettings(
    data="tiny",
    codes=6,
    width=4,
    dimension=3,
    epochs=2,
    prior_epochs=2,
    prior_width=5,
    batch_size=10,
    anneal_epochs=1,
    kl_warmup_epochs=1,
    revive_until=1,
    continuous_steps=1,
    learning_rate=0.01,
    checkpoint_seconds=1e9,
)


@pytest.fixture(scope="module")
def images() -> Images:
    generator = torch.Generator().manual_seed(3)
    patterns = torch.rand(4, 4, 4, generator=generator).round()
    cells = patterns[torch.randint(4, (50, 2, 2), generator=generator)]
    x = cells.permute(0, 1, 3, 2, 4).reshape(50, 8, 8)
    return Images("tiny", x[:30], x[30:40], x[40:], binarization="none")


def whole(path, images, settings=SETTINGS, progress=None):
    """Train tokenizer and prior into a folder."""
    folder = (
        RunFolder.open(path)
        if (path / "config.json").exists()
        else RunFolder.create(path, tokenizer_config(settings, images.shape))
    )
    module, trained = train_tokenizer(settings, folder, images, progress=progress)
    prior, prior_trained = train_prior(settings, folder, module, images, progress=progress)
    return module, prior, trained, prior_trained


@pytest.fixture(scope="module")
def run(images, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    return path, *whole(path, images)


def test_the_folder_gives_back_tokenizer_and_prior(run, images):
    path, module, prior, trained, _ = run
    loaded, settings = load_tokenizer(path)
    assert settings == SETTINGS
    assert torch.equal(loaded.encode(images.test), module.encode(images.test))
    codes = loaded.encode(images.test)
    torch.testing.assert_close(loaded.decode(codes), module.decode(codes))
    torch.testing.assert_close(load_prior(path).log_prob(codes), prior.log_prob(codes))
    assert {"loss", "hard_error", "soft_error", "perplexity", "used_codes"} <= trained.history[-1].keys()
    assert [row.get("revived") is None for row in trained.history] == [False, True]


def test_the_vocabulary_is_saved(run, images):
    path, module, *_ = run
    tensors, _ = read_tensors(path / "vocabulary.safetensors")
    assert torch.equal(tensors["codebook"], module.decoder.codebook)
    codes = module.encode(images.validation).flatten()
    torch.testing.assert_close(tensors["usage"], torch.bincount(codes, minlength=6) / len(codes))


@pytest.mark.parametrize("training", [1, 2], ids=["tokenizer", "prior"])
def test_a_run_broken_off_within_an_epoch_ends_as_if_it_had_not_been(training, run, images, tmp_path, monkeypatch):
    """In the second epoch, when a dead code may have been revived; each epoch has three steps."""
    settings = replace(SETTINGS, checkpoint_seconds=0.0)
    with pytest.raises(Interrupted):
        whole(tmp_path / "run", images, settings, progress=BrokenOff(monkeypatch, training, 5))
    again = BrokenOff(monkeypatch)
    whole(tmp_path / "run", images, settings, progress=again)
    assert again.began == ([(6, 4), (6, 0)] if training == 1 else [(6, 6), (6, 4)])
    for name in ("model.safetensors", "vocabulary.safetensors"):
        once, twice = (read_tensors(path / name)[0] for path in (run[0], tmp_path / "run"))
        assert all(torch.equal(once[key], twice[key]) for key in once)
    once, twice = (read_tensors(prior_path(path) / "model.safetensors")[0] for path in (run[0], tmp_path / "run"))
    assert all(torch.equal(once[key], twice[key]) for key in once)
    assert len(list((tmp_path / "run").glob("prior-*"))) == 1


@pytest.mark.parametrize(
    "steps", [2, 4, 5, 7], ids=["first epoch", "second epoch", "when codes are placed", "after that"]
)
def test_a_run_broken_off_before_it_has_codes_ends_as_if_it_had_not_been(steps, images, tmp_path, monkeypatch):
    """Epochs of three steps, four steps without codes; what is done before a step is saved."""
    settings = replace(SETTINGS, continuous_steps=4, checkpoint_seconds=0.0, epochs=3, prior_epochs=1)
    whole(tmp_path / "whole", images, settings)
    with pytest.raises(Interrupted):
        whole(tmp_path / "run", images, settings, progress=BrokenOff(monkeypatch, 1, steps))
    again = BrokenOff(monkeypatch)
    whole(tmp_path / "run", images, settings, progress=again)
    assert again.began[0] == (9, steps - 1)
    once, twice = (read_tensors(tmp_path / name / "model.safetensors")[0] for name in ("whole", "run"))
    assert all(torch.equal(once[key], twice[key]) for key in once)


@pytest.mark.parametrize("epochs", [1, 2], ids=["before codes", "after they were placed"])
def test_more_epochs_later_are_more_epochs_at_once(epochs, images, tmp_path):
    settings = replace(SETTINGS, continuous_steps=4, epochs=3, prior_epochs=0)
    parts = [replace(settings, epochs=number) for number in (epochs, 3)]
    for name, sittings in (("once", [settings]), ("twice", parts)):
        folder = RunFolder.create(tmp_path / name, tokenizer_config(settings, images.shape))
        for one in sittings:
            train_tokenizer(one, folder, images)
    once, twice = (torch.load(tmp_path / name / "state.pt", weights_only=True) for name in ("once", "twice"))
    assert all(torch.equal(once["module"][key], twice["module"][key]) for key in once["module"])
    assert once["at"]["best_epoch"] == twice["at"]["best_epoch"]


def test_runs_of_before_there_was_the_setting_had_codes_from_the_start(run):
    config = {key: value for key, value in RunFolder.open(run[0]).config.items() if key != "continuous_steps"}
    assert TokenizerSettings.from_config(config, run[0] / "config.json").continuous_steps == 0


def test_an_estimator_that_is_not_for_codes_is_refused_before_training(images, tmp_path):
    folder = RunFolder.create(tmp_path / "run", tokenizer_config(SETTINGS, images.shape))
    with pytest.raises(ValueError, match="Arm does not support"):
        train_tokenizer(replace(SETTINGS, continuous_steps=100), folder, images, estimator=Arm())
    assert not folder.has_state()


def test_what_an_estimator_learns_is_there_before_there_are_codes(images):
    """A baseline whose network takes its size from the first call."""
    estimator = Reinforce(2, baseline="learnt")
    module, _ = train_tokenizer(replace(SETTINGS, continuous_steps=100), None, images, estimator=estimator)
    assert sum(parameter.numel() for parameter in module.estimator.parameters()) > 10


@pytest.mark.parametrize("continuous_steps", [1, 100])
def test_a_report_says_when_codes_were_not_trained(continuous_steps, images):
    settings = replace(SETTINGS, continuous_steps=continuous_steps)
    _, trained = train_tokenizer(settings, None, images)
    hint = advice(settings, len(images.train), trained.history)
    if continuous_steps == 1:
        assert hint == ""
    else:
        assert hint.startswith("Codes were placed, but not trained")
        assert "--continuous-steps 100, and an epoch has 3 steps: try --epochs 100." in hint
        later = [*trained.history, {"epoch": 3, "loss": 1e9}]
        better = [*trained.history, {"epoch": 3, "loss": -1e9}]
        assert advice(settings, len(images.train), later).startswith("No epoch with trained codes was better than")
        assert advice(settings, len(images.train), better) == ""


def test_a_training_that_ends_before_it_has_codes_places_them(images):
    """Six steps, all of which are without codes, whatever the estimator."""
    settings = replace(SETTINGS, continuous_steps=100)
    runs = [train_tokenizer(replace(settings, estimator=name), None, images)[0] for name in ("direct", "reinforce")]
    for module in runs:
        vectors = module.encoder(images.train).flatten(0, 1)
        assert distances(module.decoder.codebook, vectors).amin(-1).max() < 1e-6
        assert module.usage(images.train).count_nonzero() > 3
    assert torch.equal(runs[0].decoder.codebook, runs[1].decoder.codebook)


def test_the_prior_is_found_however_the_same_weights_are_written(run, tmp_path):
    """The order of metadata in a safetensors file is not ours to choose."""
    tensors, metadata = read_tensors(run[0] / "model.safetensors")
    write_tensors(tmp_path / "model.safetensors", tensors, {**metadata, "written": "again"})
    assert prior_path(tmp_path).name == prior_path(run[0]).name
    name = next(iter(tensors))
    write_tensors(tmp_path / "model.safetensors", {**tensors, name: tensors[name] + 1}, metadata)
    assert prior_path(tmp_path).name != prior_path(run[0]).name


def test_more_epochs_give_a_new_prior(images, tmp_path):
    settings = replace(SETTINGS, epochs=1, prior_epochs=1, learning_rate=0.003)
    whole(tmp_path / "run", images, settings)
    before = prior_path(tmp_path / "run")
    module, _, trained, _ = whole(tmp_path / "run", images, replace(settings, epochs=3))
    assert trained.best_epoch > 1
    assert prior_path(tmp_path / "run") != before
    assert load_prior(tmp_path / "run").codes == module.codes


def test_scores_are_those_of_the_images(run, images):
    _, module, prior, *_ = run
    scores = evaluate_tokenizer(module, images, prior=prior, temperature=0.5)
    x = images.test
    assert scores["hard_error"] == pytest.approx((module.decode(module.encode(x)) - x).square().mean().item(), rel=1e-5)
    assert scores["soft_error"] == pytest.approx((module.reconstruct(x, "soft") - x).square().mean().item(), rel=1e-5)
    assert scores["kl"] == pytest.approx(module.posterior(x).kl().mean().item(), rel=1e-5)
    assert scores["prior_nll"] == pytest.approx(-prior.log_prob(module.encode(x)).mean().item(), rel=1e-5)
    assert 1 <= scores["perplexity"] <= 6
    assert scores["relaxed_error"] > 0
    assert encode_in_batches(module, x[:0], lambda chunk: chunk).shape == (0, 2, 2)


def test_large_images_are_looked_at_fewer_at_a_time(run, images, monkeypatch):
    assert at_once((49, 512)) == 500  # 28 × 28
    assert at_once((4096, 512)) == 8  # 256 × 256
    assert at_once((2**20, 512)) == 1
    _, module, prior, *_ = run
    whole = evaluate_tokenizer(module, images, prior=prior)
    sizes = []
    monkeypatch.setattr("argrad.models.tokenizer.task.SCORES_AT_ONCE", 3 * 4 * 6)
    original = TokenizerModule.scores
    monkeypatch.setattr(TokenizerModule, "scores", lambda self, x: sizes.append(len(x)) or original(self, x))
    pieces = evaluate_tokenizer(module, images, prior=prior)
    assert pieces.pop("split") == whole.pop("split")
    assert pieces == pytest.approx(whole, rel=1e-5)
    task = TokenizerTask(module, images.train, images.validation, images.values, SETTINGS.schedules(30))
    task.validate(torch.Generator())
    encode_in_batches(module, images.train, lambda chunk: chunk)
    assert max(sizes) == 3


def test_the_report_shows_numbers_reconstructions_and_samples(run, images, tmp_path):
    _, module, prior, trained, prior_trained = run
    scores = evaluate_tokenizer(module, images, prior=prior)
    history = trained.history, prior_trained.history
    report = write_tokenizer_report(tmp_path, module, prior, images, SETTINGS, *history, scores).read_text()
    for words in ("Reconstructions", "Samples", "Which codes are used", f"{scores['hard_error']:.5f}", "2 × 2 cells"):
        assert words in report
    assert report.count("data:image/png;base64") == 4
    assert "http" not in report.replace("http-equiv", "")  # self-contained
    with pytest.raises(ValueError, match="no train images"):
        evaluate_tokenizer(module, replace(images, train=images.train[:0]), "train")


def test_settings_become_schedules():
    schedules = replace(SETTINGS, temperature=2.0, temperature_minimum=0.5, anneal_epochs=2).schedules(30)
    assert schedules.temperature(0) == pytest.approx(2.0)
    assert schedules.temperature(6) == pytest.approx(2.0)  # it moves every ten steps
    assert schedules.temperature(100) == pytest.approx(0.5)
    assert schedules.kl_weight(0) == pytest.approx(0)
    assert schedules.kl_weight(3) == pytest.approx(0.1)


def test_weights_depend_on_the_seed_and_nothing_else():
    first, again, other = (build_tokenizer(replace(SETTINGS, seed=seed), (8, 8)) for seed in (0, 0, 1))
    assert torch.equal(first.decoder.codebook, again.decoder.codebook)
    assert not torch.equal(first.decoder.codebook, other.decoder.codebook)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"anneal_epochs": -1}, "anneal_epochs"),
            ({"temperature_minimum": 2.0}, "temperature_minimum"),
            ({"kl_weight": -1.0}, "kl_weight"),
            ({"kl_weight": float("nan")}, "kl_weight"),
            ({"kl_weight": float("inf")}, "kl_weight must be a finite number that is not negative, got inf"),
            ({"prior_width": 0}, "prior_width"),
        ],
    )
    def test_settings(self, changes, words):
        with pytest.raises(ValueError, match=words):
            replace(SETTINGS, **changes)

    def test_estimators(self):
        with pytest.raises(ValueError, match="choose one of gumbel-softmax"):
            make_estimator(replace(SETTINGS, estimator="arm"))
        with pytest.raises(ValueError, match="samples of at least 2"):
            make_estimator(replace(SETTINGS, estimator="reinforce", samples=1))

    def test_a_run_of_something_else(self, tmp_path):
        RunFolder.create(tmp_path / "other", {"task": "vae", "epochs": 1})
        with pytest.raises(BrokenFile, match="not that of a tokenizer"):
            load_tokenizer(tmp_path / "other")

    def test_settings_of_a_later_version(self, run, tmp_path):
        config = {**tokenizer_config(SETTINGS, (8, 8)), "colour_of_the_sky": "blue"}
        RunFolder.create(tmp_path / "later", config)
        with pytest.raises(BrokenFile, match="colour_of_the_sky"):
            load_tokenizer(tmp_path / "later")

    def test_a_run_without_a_model_or_a_prior(self, images, tmp_path):
        folder = RunFolder.create(tmp_path / "new", tokenizer_config(SETTINGS, images.shape))
        with pytest.raises(ValueError, match="no epoch is complete"):
            load_tokenizer(tmp_path / "new")
        train_tokenizer(replace(SETTINGS, epochs=1), folder, images)
        with pytest.raises(ValueError, match="no prior"):
            load_prior(tmp_path / "new")

    def test_weights_of_another_size(self, run, tmp_path):
        RunFolder.create(tmp_path / "mixed", tokenizer_config(replace(SETTINGS, codes=7), (8, 8)))
        (tmp_path / "mixed" / "model.safetensors").write_bytes((run[0] / "model.safetensors").read_bytes())
        with pytest.raises(BrokenFile, match="does not belong to"):
            load_tokenizer(tmp_path / "mixed")

    def test_the_config_is_json(self, run):
        config = json.loads((run[0] / "config.json").read_text())
        assert config["task"] == "tokenize"
        assert config["shape"] == [8, 8]
