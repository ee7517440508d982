"""The sequence GAN: both players against enumeration, what training changes, runs that go on, what is refused."""

import copy
import json
import math
from pathlib import Path

import pytest
import torch
import tyro
from torch import Tensor
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, OmitSubcommandPrefixes

from argrad import Direct, Exact, GumbelSoftmax, LocalExpectation, Reinforce
from argrad.cli.out import Out
from argrad.cli.write import SampleLines, Write, write_command
from argrad.data.text import Text, Vocabulary, WrongText, as_text
from argrad.models.sequence_gan.model import SequenceGAN
from argrad.models.sequence_gan.module import (
    GAIN,
    SequenceDiscriminator,
    SequenceGANModule,
    SequenceGenerator,
)
from argrad.models.sequence_gan.report import evaluate_sequence_gan, grammar_scores
from argrad.models.sequence_gan.run import (
    SequenceGANSettings,
    build_sequence_gan,
    load_sequence_gan,
    make_estimator,
    sequence_gan_config,
    train_adversarially,
    train_likelihood,
)
from argrad.models.sequence_gan.scores import divergence, ngrams, score_sequences
from argrad.models.sequence_gan.task import SequenceGANTask
from argrad.training import BrokenFile, Interrupted, RunFolder, World
from broken_off import BrokenOff

SYMBOLS, LENGTH = 3, 3
LINES = [first + second + third for first in "abc" for second in "xyz" for third in "abc"]
TINY = SequenceGANSettings(hidden=8, likelihood_epochs=1, epochs=2, batch_size=8, warm_up=2)


@pytest.fixture
def module() -> SequenceGANModule:
    """Small enough to list all sequences; the discriminator has opinions."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        players = SequenceGenerator(SYMBOLS, LENGTH, 5), SequenceDiscriminator(SYMBOLS, 5)
        torch.nn.init.normal_(players[1].reader.head.weight, std=0.1)
        return SequenceGANModule(*players, Exact())


def every_sequence() -> Tensor:
    """All that the generator can draw: nothing but ends after the first end."""
    found = torch.cartesian_prod(*[torch.arange(SYMBOLS)] * LENGTH)
    ends = (found == 0).long().cumsum(-1) - (found == 0).long()
    return found[((ends == 0) | (found == 0)).all(-1)]


# ------------------------------------------------------------------------------------------------------------- players


def test_the_generator_is_a_distribution(module):
    assert module.generator.log_prob(every_sequence()).exp().sum().item() == pytest.approx(1, abs=1e-5)


def test_one_call_and_step_by_step_agree(module):
    indices = every_sequence()
    z = module.generator.one_hot(indices)
    by_steps = module.generator.sequences(len(indices)).log_prob(z)
    torch.testing.assert_close(module.generator.log_prob(indices), by_steps)


def test_samples_have_its_probabilities(module, generator):
    drawn = module.generator.sample(20_000, generator=generator)
    everything = every_sequence()
    p = module.generator.log_prob(everything).exp()
    share = (drawn[:, None] == everything).all(-1).float().mean(0)
    assert share.sum().item() == pytest.approx(1, abs=1e-5)
    assert ((share - p).abs() < 4 * (p * (1 - p) / 20_000).sqrt()).all()


def test_the_discriminator_is_undecided_at_first_and_silent_after_the_end(module):
    z = module.generator.one_hot(every_sequence())
    assert not SequenceDiscriminator(SYMBOLS, 5)(z).any()
    said = module.discriminator(z)
    over = torch.tensor([[False, *(0 in row[:t] for t in range(1, LENGTH))] for row in every_sequence().tolist()])
    assert not said[over].any()
    assert said[~over].all()


def test_it_reads_like_the_generator(module):
    module.discriminator.read_like(module.generator)
    assert not module.discriminator(module.generator.one_hot(every_sequence())).any()
    assert torch.equal(module.discriminator.reader.memory.weight_hh_l0, module.generator.reader.memory.weight_hh_l0)


def test_the_discriminators_loss_has_a_plus(module):
    """−[log D(x) + log(1 − D(G(z)))], mean over beginnings."""
    real, fake = every_sequence()[:6], every_sequence()[6:12]
    d = [module.discriminator(module.generator.one_hot(part)).cumsum(-1).sigmoid() for part in (real, fake)]
    wanted = -(d[0].log() + (1 - d[1]).log()).mean(-1)
    torch.testing.assert_close(module.discriminator_losses(real, fake), wanted)


def test_the_best_discriminator_knows_both_probabilities(module):
    """Trained on all sequences with their weights under p and q, d of the whole becomes log p − log q."""
    everything = every_sequence()
    q = module.generator.log_prob(everything).exp().detach()
    p = torch.rand(len(everything), generator=torch.Generator().manual_seed(0)) + 0.2
    p = p / p.sum()
    z = module.generator.one_hot(everything)
    discriminator = SequenceDiscriminator(SYMBOLS, 16)
    optimiser = torch.optim.Adam(discriminator.parameters(), 1e-2)
    for _ in range(150):
        d = discriminator(z).cumsum(-1)
        loss = (p[:, None] * torch.nn.functional.softplus(-d) + q[:, None] * torch.nn.functional.softplus(d)).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.testing.assert_close(discriminator(z).sum(-1), (p / q).log(), atol=0.1, rtol=0)


def test_costs_of_steps_sum_to_the_verdict(module):
    z = module.generator.one_hot(every_sequence())
    torch.testing.assert_close(module.step_costs(z).sum(-1), -module.discriminator(z).sum(-1))
    first = module.discriminator.reader(z)[:, 0].gather(-1, every_sequence()[:, :1])
    torch.testing.assert_close(module.discriminator(z)[:, :1], GAIN * first)


# ----------------------------------------------------------------------------------------------------------- gradients


def exact_gradient(module: SequenceGANModule) -> Tensor:
    """Of E_q[−d], by listing."""
    everything = every_sequence()
    d = module.discriminator(module.generator.one_hot(everything)).sum(-1).detach()
    value = -(module.generator.log_prob(everything).exp() * d).sum()
    return torch.autograd.grad(value, module.generator.reader.head.weight)[0]


def test_exact_is_exact(module):
    module.generator_losses(1).mean().backward()
    torch.testing.assert_close(module.generator.reader.head.weight.grad, exact_gradient(module))
    assert all(parameter.grad is None for parameter in module.discriminator.parameters())
    assert all(parameter.requires_grad for parameter in module.discriminator.parameters())


@pytest.mark.parametrize("estimator", [Reinforce(50), LocalExpectation()], ids=str)
def test_unbiased_estimators(module, estimator):
    module.estimator = estimator
    draws = []
    for seed in range(60):
        loss = module.generator_losses(50, noise=torch.Generator().manual_seed(seed)).mean()
        draws.append(torch.autograd.grad(loss, module.generator.reader.head.weight)[0])
    found = torch.stack(draws)
    error, standard_error = found.mean(0) - exact_gradient(module), found.std(0) / 60**0.5
    assert (error.abs() < 4 * standard_error + 1e-7).all()


@pytest.mark.parametrize("estimator", [Direct(0.1), GumbelSoftmax(1.0, straight_through=True)], ids=str)
def test_biased_estimators_point_the_same_way(module, estimator):
    module.estimator = estimator
    loss = module.generator_losses(20_000, noise=torch.Generator().manual_seed(0)).mean()
    found = torch.autograd.grad(loss, module.generator.reader.head.weight)[0]
    assert torch.nn.functional.cosine_similarity(found.flatten(), exact_gradient(module).flatten(), 0) > 0.9


# -------------------------------------------------------------------------------------------------------------- scores


def test_ngrams_by_hand():
    indices = torch.tensor([[1, 2, 0, 0], [2, 2, 2, 2]])
    assert ngrams(indices, 1, 3).tolist() == [1, 2, 0, 2, 2, 2, 2]
    start = 3
    wanted = [[start, 1], [1, 2], [2, 0], [start, 2], [2, 2], [2, 2], [2, 2]]
    assert ngrams(indices, 2, 3).tolist() == [4 * first + second for first, second in wanted]
    with pytest.raises(ValueError, match="do not fit"):
        ngrams(indices, 4, 10**5)


def test_divergence_by_hand():
    a, b = torch.tensor([[1, 0]]), torch.tensor([[2, 0]])
    assert divergence(a, a, 2, 3) == 0
    assert divergence(a, b, 2, 3) == pytest.approx(math.log(2))
    assert divergence(a, b, 1, 3) == pytest.approx(math.log(2) / 2)  # half of the symbols are ends


def test_collapse_shows(module):
    held_out = every_sequence()
    scores = score_sequences(module.generator, held_out[:1].expand(10, -1), held_out[:5], held_out[5:])
    assert scores["distinct"] == 0.1
    assert scores["commonest"] == 1
    assert scores["novel"] == 0
    assert scores["found"] == 0
    assert scores["distinct_4_grams"] < 0.5
    varied = score_sequences(module.generator, held_out, held_out[:5], held_out[5:])
    assert varied["distinct"] == varied["found"] == 1
    assert varied["novel"] == pytest.approx(1 - 5 / len(held_out))
    assert varied["divergence"] < scores["divergence"]


def test_scores_of_a_grammar():
    scores = grammar_scores(["x + y", "x +", "y", "y"])
    assert scores["valid"] == 0.75
    assert scores["productions"] == 5
    assert scores["rarest"] == 0


# ------------------------------------------------------------------------------------------------------------ training


def test_who_moves_when():
    text = as_text(LINES)
    module = build_sequence_gan(TINY, len(text.vocabulary), text.length)
    task = SequenceGANTask(module, text, discriminator_steps=2, warm_up=4, average=0.5)
    torch.nn.init.ones_(module.generator.reader.first)  # at zeros, where the writer begins
    moved, followed = [], []
    for step in range(8):
        module.zero_grad()
        task.set_step(step)
        task.losses(torch.arange(8), torch.Generator().manual_seed(step), World()).mean().backward()
        assert module.discriminator.reader.head.weight.grad is not None
        moved.append(module.generator.reader.head.weight.grad is not None)
        followed.append(module.writer.reader.first[0].item())
    assert moved == [False] * 4 + [True, False, True, False]
    assert followed == [0.0] * 4 + [0.5, 0.5, 0.75, 0.75]
    assert all(parameter.grad is None for parameter in module.writer.parameters())


def test_the_generator_moves_with_the_lines_of_all_steps_since():
    text = as_text(LINES)
    module = build_sequence_gan(TINY, len(text.vocabulary), text.length, GumbelSoftmax(straight_through=True))
    task = SequenceGANTask(module, text, discriminator_steps=3, warm_up=0, average=0.0)
    asked = []
    module.generator_losses = lambda rows, *, noise: asked.append(rows) or torch.zeros(rows)
    task.losses(torch.arange(8), torch.Generator().manual_seed(0), World())
    assert asked == [24]


def test_the_writer_is_validated_and_written_with():
    """The generator is put out of action: nothing that a user sees may come from it."""
    text = as_text(LINES)
    module = build_sequence_gan(TINY, len(text.vocabulary), text.length)
    train_likelihood(TINY, None, module, text)
    for name, weight in module.writer.state_dict().items():
        assert torch.equal(weight, module.generator.state_dict()[name])
    task = SequenceGANTask(module, text, discriminator_steps=2, warm_up=4, average=0.5)
    scores = task.validate(torch.Generator())
    model = SequenceGAN(TINY, device="cpu")
    model.module_, model.vocabulary_ = module, text.vocabulary
    drawn, found = model.sample(5), model.log_prob(["axa"])
    with torch.no_grad():
        for parameter in module.generator.parameters():
            parameter.fill_(torch.nan)
    assert task.validate(torch.Generator()) == scores
    assert model.sample(5) == drawn
    assert torch.equal(model.log_prob(["axa"]), found)


def skewed_text() -> Text:
    """Two symbols in a row out of three, some far more probable than others, so that all is known of the law."""
    lines = torch.tensor([[1, 2, 0]] * 16 + [[3, 1, 0]] * 8 + [[2, 2, 0]] * 6 + [[1, 3, 0]] * 2).repeat(32, 1)
    return Text("skewed", Vocabulary(("a", "b", "c"), "characters"), lines, lines, lines)


@pytest.mark.parametrize(
    "name", ["reinforce", *(pytest.param(one, marks=pytest.mark.slow) for one in ("straight-through", "direct"))]
)
def test_the_game_alone_learns_a_distribution(name):
    """From nothing, without any likelihood."""
    text = skewed_text()
    settings = SequenceGANSettings(
        hidden=16,
        likelihood_epochs=0,
        epochs=16,
        estimator=name,
        learning_rate=5e-3,
        discriminator_steps=2,
        average=0.9,
        batch_size=64,
        warm_up=10,
        changes=12,
    )
    module = build_sequence_gan(settings, len(text.vocabulary), text.length)
    before = evaluate_sequence_gan(module.writer, text)
    history = train_adversarially(settings, None, module, text).history
    after = evaluate_sequence_gan(module.writer, text)
    assert len(history) == 16
    assert after["divergence"] < 0.5 * before["divergence"]
    assert after["entropy"] > 0.6  # that of the data is 1.20: one sequence alone would have 0


def test_the_same_seed_trains_the_same():
    text = as_text(LINES)
    weights = []
    for _ in range(2):
        module = build_sequence_gan(TINY, len(text.vocabulary), text.length)
        train_likelihood(TINY, None, module, text)
        train_adversarially(TINY, None, module, text)
        weights.append(copy.deepcopy(module.state_dict()))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_run_goes_on_and_is_loaded(tmp_path):
    text = as_text(LINES)
    states = []
    for folder_name, sittings in (("once", (2,)), ("twice", (1, 2))):
        for epochs in sittings:
            settings = SequenceGANSettings(**{**vars(TINY), "epochs": epochs})
            path = tmp_path / folder_name
            folder = (
                RunFolder.open(path) if path.exists() else RunFolder.create(path, sequence_gan_config(settings, text))
            )
            folder.change(epochs=epochs)
            module = build_sequence_gan(settings, len(text.vocabulary), text.length)
            train_likelihood(settings, folder, module, text)
            train_adversarially(settings, folder, module, text)
        states.append(torch.load(path / "state.pt", weights_only=True)["module"])
        loaded, vocabulary, read = load_sequence_gan(path)
        assert read == settings
        assert vocabulary == text.vocabulary
        assert all(torch.equal(one, module.state_dict()[name]) for name, one in loaded.state_dict().items())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("training", [1, 2], ids=["likelihood", "game"])
@pytest.mark.parametrize("estimator", ["reinforce", "direct"])
def test_a_run_broken_off_within_an_epoch_ends_as_if_it_had_not_been(training, estimator, tmp_path, monkeypatch):
    """Each epoch has three steps; both players have moved before, and direct has changed its ε."""
    text = as_text(LINES)
    changes = {"estimator": estimator, "likelihood_epochs": 2, "checkpoint_seconds": 0.0}
    settings = SequenceGANSettings(**{**vars(TINY), **changes})

    def sitting(path: Path, progress: BrokenOff) -> dict[str, Tensor]:
        folder = RunFolder.open(path) if path.exists() else RunFolder.create(path, sequence_gan_config(settings, text))
        module = build_sequence_gan(settings, len(text.vocabulary), text.length)
        train_likelihood(settings, folder, module, text, progress=progress)
        train_adversarially(settings, folder, module, text, progress=progress)
        return torch.load(path / "state.pt", weights_only=True)["module"]

    once = sitting(tmp_path / "once", BrokenOff(monkeypatch))
    with pytest.raises(Interrupted):
        sitting(tmp_path / "twice", BrokenOff(monkeypatch, training, 5))
    again = BrokenOff(monkeypatch)
    twice = sitting(tmp_path / "twice", again)
    assert again.began == ([(6, 4), (6, 0)] if training == 1 else [(6, 6), (6, 4)])
    assert once.keys() == twice.keys()
    assert all(torch.equal(once[name], twice[name]) for name in once)


# ------------------------------------------------------------------------------------------------- the object, commands


@pytest.fixture(scope="module")
def fitted() -> SequenceGAN:
    return SequenceGAN(TINY, device="cpu").fit(LINES)


def test_fit_and_sample(fitted):
    drawn = fitted.sample(30, seed=1)
    assert len(drawn) == 30
    assert drawn == fitted.sample(30, seed=1) != fitted.sample(30, seed=2)
    assert set("".join(drawn)) <= set("abcxyz")
    assert fitted.log_prob(["axa", ""]).shape == (2,)
    assert [row["epoch"] for row in fitted.history_] == [1, 2]
    assert len(fitted.likelihood_history_) == 1


def test_an_estimator_of_ones_own_is_copied():
    mine = GumbelSoftmax(0.5)
    model = SequenceGAN(TINY, estimator=mine, device="cpu").fit(as_text(LINES))
    assert isinstance(model.module_.estimator, GumbelSoftmax)
    assert model.module_.estimator is not mine


@pytest.mark.parametrize("name", ["gumbel-softmax", "local-expectation"])
def test_other_estimators_train_too(name):
    settings = SequenceGANSettings(**{**vars(TINY), "estimator": name, "epochs": 1, "warm_up": 0})
    assert math.isfinite(SequenceGAN(settings, device="cpu").fit(LINES).history_[0]["loss"])


def run(command: object, capsys: pytest.CaptureFixture[str]) -> dict:
    assert command.run(Out(json_only=True)) == 0  # type: ignore[attr-defined]
    return json.loads(capsys.readouterr().out)


def test_flags():
    options = (OmitArgPrefixes, OmitSubcommandPrefixes, FlagCreatePairsOff)
    flags = ["--data", "mine.txt", "--epsilon", "0.5", "--level", "words", "--resume", "there"]
    command = tyro.cli(write_command("train"), args=flags, config=options)
    assert command.settings == SequenceGANSettings("mine.txt", "words", epsilon=0.5)
    assert command.resume == Path("there")
    assert tyro.cli(write_command("sample"), args=["there", "--number", "3"], config=options).number == 3


def test_commands(tmp_path, capsys):
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(LINES))
    settings = SequenceGANSettings(**{**vars(TINY), "data": str(lines)})
    train = write_command("train")
    record = run(train(settings=settings, run_folder=tmp_path / "run", device="cpu", json=True), capsys)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names >= {"config.json", "state.pt", "metrics.jsonl", "model.safetensors", "report.html", "likelihood"}
    report = (tmp_path / "run" / "report.html").read_text()
    assert f"{record['test']['divergence']:.4f}" in report
    more = train(settings=SequenceGANSettings(epochs=3), resume=tmp_path / "run", device="cpu", json=True)
    assert run(more, capsys)["epochs"] == 3
    drawn = run(write_command("sample")(tmp_path / "run", number=4, output=tmp_path / "new.txt"), capsys)["lines"]
    assert (tmp_path / "new.txt").read_text().splitlines() == drawn
    assert SampleLines(tmp_path / "run", number=4).run(Out(json_only=False)) == 0
    assert capsys.readouterr().out.splitlines() == drawn
    lines.write_text("\n".join([*LINES, "quite new"]))
    with pytest.raises(BrokenFile, match="has other symbols or longer lines than when"):
        train(settings=SequenceGANSettings(), resume=tmp_path / "run", device="cpu").run(Out(json_only=True))


# ------------------------------------------------------------------------------------------------------ what is refused


def test_bad_lines(fitted):
    with pytest.raises(WrongText, match="'axq' has 'q', which is not among the 6 characters"):
        fitted.log_prob(["axa", "axq"])
    with pytest.raises(WrongText, match="has 4 characters and a sequence at most 3"):
        fitted.log_prob(["axax"])
    for wrong in ("axa", 3, None):
        with pytest.raises(WrongText, match="lines must be a list of strings, one for each line, got "):
            fitted.log_prob(wrong)
    with pytest.raises(ValueError, match="number must be at least 1, got 0"):
        fitted.sample(0)
    with pytest.raises(ValueError, match="not fitted yet"):
        SequenceGAN().sample()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"hidden": 0}, "hidden must be at least 1"),
        ({"length": -1}, "length must be at least 0"),
        ({"discriminator_steps": 0}, "discriminator_steps must be at least 1"),
        ({"likelihood_rate": 0.0}, "likelihood_rate must be a positive number, got 0.0"),
        ({"likelihood_rate": math.inf}, "likelihood_rate must be a positive number, got inf"),
        ({"likelihood_rate": math.nan}, "likelihood_rate must be a positive number, got nan"),
        ({"average": 1.0}, "average must be at least 0 and below 1, got 1.0"),
        ({"batch_size": 1}, "reinforce needs a batch_size of at least 2"),
    ],
)
def test_bad_settings(wrong, words):
    with pytest.raises(ValueError, match=words):
        SequenceGANSettings(**wrong)


def test_bad_words():
    with pytest.raises(ValueError, match="no estimator 'rebar'; choose one of reinforce"):
        make_estimator(SequenceGANSettings(estimator="rebar"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="argrad write read: choose one of train, sample"):
        Write("read").run(Out(json_only=True))
    with pytest.raises(ValueError, match="symbols >= 2"):
        SequenceGenerator(1, 3)
    with pytest.raises(ValueError, match="0 drawn"):
        score_sequences(SequenceGenerator(3, 3, 4), torch.zeros(0, 3).long(), every_sequence(), every_sequence())


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("abcdef", "got one string; split it into lines"),
        (3, "got int; split it into lines"),
        ([1, 2], "and number 1 is int"),
        (["a", None, "b"], "and number 2 is NoneType"),
        (b"abc", "and number 1 is int"),
    ],
)
def test_lines_that_are_none(lines, words):
    with pytest.raises(WrongText, match=f"lines must be a list of strings, .*{words}"):
        SequenceGAN(TINY, device="cpu").fit(lines)


def test_more_symbols_than_can_be_scored_are_refused_before_training(monkeypatch):
    """So many that their 4-grams are no numbers of 64 bits."""
    most = 55_106
    build_sequence_gan(SequenceGANSettings(hidden=1), most + 1, 3)
    assert ngrams(torch.zeros(1, 3, dtype=torch.int64), 4, most + 1).shape == (1,)
    words = [f"w{number}" for number in range(most + 1)]
    text = as_text([*words, "w1 w2"], level="words")
    monkeypatch.setattr("argrad.models.sequence_gan.model.train_likelihood", None)  # not reached
    with pytest.raises(ValueError, match="55,107 different symbols are too many: 4-grams of at most 55,106 fit"):
        SequenceGAN(SequenceGANSettings(hidden=1), device="cpu").fit(text)


def test_runs_that_are_not_ours(tmp_path):
    RunFolder.create(tmp_path / "other", {"task": "tokenize"})
    with pytest.raises(BrokenFile, match="is not that of a sequence GAN"):
        load_sequence_gan(tmp_path / "other")
    text = as_text(LINES)
    RunFolder.create(tmp_path / "new", sequence_gan_config(TINY, text))
    with pytest.raises(ValueError, match="has no model yet"):
        load_sequence_gan(tmp_path / "new")
    RunFolder.create(tmp_path / "later", {**sequence_gan_config(TINY, text), "magic": 1})
    with pytest.raises(BrokenFile, match="does not know: magic"):
        load_sequence_gan(tmp_path / "later")
