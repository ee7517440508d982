"""Figure 3: stacked models are each what they would be alone, and every method has its row."""

import json

import pytest
import torch
from torch import nn

from argrad import Bits, Reconstruction
from argrad.experiments.figure3 import (
    ROWS,
    Figure3,
    assemble,
    choose,
    format_table,
    markdown,
    plot,
    run_rows,
    run_steps,
    run_tuning,
    side_by_side,
)
from argrad.experiments.figure3_model import StackedBitsVAE, StackedReconstruction
from argrad.experiments.figure3_training import (
    Curve,
    Group,
    SideBySide,
    StackedAdam,
    Trainer,
    Trial,
    make_estimator,
    train,
)
from tiny_images import silent, tiny_images

BITS = 3
needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
TRIALS = (Trial(0, True, 1e-3, 0.3), Trial(1, False, 2e-3, 0.8))


def build(trials=TRIALS, encoder="unstructured", pixels=12) -> StackedBitsVAE:
    model = StackedBitsVAE(
        pixels,
        [trial.seed for trial in trials],
        [trial.one_hot for trial in trials],
        bits=BITS,
        hidden=7,
        encoder=encoder,
    )
    return model.double()


def pictures(models=2, batch=4, pixels=12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(2, (models, batch, pixels), generator=generator).double()


def decoder_of(model: StackedBitsVAE, number: int) -> nn.Module:
    """A model's decoder as plain layers that read the bits, and one minus the bits where the code is one-hot."""
    enter, leave = nn.Linear(2 * BITS, 7).double(), nn.Linear(7, 12).double()
    with torch.no_grad():
        enter.weight.copy_(model.codes[number].T)
        enter.bias.copy_(model.codes_bias[number, 0])
        leave.weight.copy_(model.leave[number].T)
        leave.bias.copy_(model.leave_bias[number, 0])

    class Decoder(nn.Module):
        def forward(self, z):
            off = (1 - z) * model.one_hot[number].item()
            return leave(enter(torch.cat([z, off], -1)).relu())

    return Decoder()


@pytest.mark.parametrize("encoder", ["unstructured", "supermodular", "general"])
def test_costs_are_those_of_each_decoder_alone(encoder):
    model, x = build(encoder=encoder), pictures()
    q, cost = model.latent(x), StackedReconstruction(model, x)
    z = q.sample((2,), generator=torch.Generator().manual_seed(1))
    for number in range(2):
        alone = Reconstruction(x[number], decoder_of(model, number))
        own = build(TRIALS[number : number + 1], encoder).latent(x[number : number + 1])
        torch.testing.assert_close(q.scores[number], own.scores[0])
        torch.testing.assert_close(q.kl()[number], own.kl()[0])
        single = type(own)(*(parameter[0] for parameter in own.parameters))
        torch.testing.assert_close(cost(z)[:, number], alone(z[:, number], event_dims=1))
        torch.testing.assert_close(cost.all(q)[number], alone.all(single))
        torch.testing.assert_close(cost.single_changes(q, z[0])[number], alone.single_changes(single, z[0, number]))


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5])
def test_the_table_of_all_codes_is_their_costs_one_by_one(bits):
    model = StackedBitsVAE(12, [0, 1], [True, False], bits=bits, hidden=7).double()
    x = pictures()
    q, cost = model.latent(x), StackedReconstruction(model, x)
    codes = Bits(torch.zeros(bits, dtype=torch.float64)).enumerate()
    table, expected = cost.all(q), cost(codes[:, None, None].expand(-1, *x.shape[:2], -1)).movedim(0, -1)
    torch.testing.assert_close(table, expected)
    upstream = torch.randn(table.shape, generator=torch.Generator().manual_seed(3), dtype=table.dtype)
    weights = [model.codes, model.codes_bias, model.leave, model.leave_bias]
    theirs = torch.autograd.grad(expected, weights, upstream, retain_graph=True)
    for one, other in zip(torch.autograd.grad(table, weights, upstream), theirs, strict=True):
        torch.testing.assert_close(one, other)


def gradients(method, encoder, trials, x, noise):
    """Of the mean loss of each model, and of what the estimator learns."""
    model, estimator = build(trials, encoder), make_estimator(method, trials, BITS).double()
    q = model.latent(x)
    options = {} if noise is None else {"noise": noise}
    losses = estimator(q, StackedReconstruction(model, x), **options) + q.kl()
    (losses.sum() / x.shape[1]).backward()
    return [p.grad for part in (model, estimator) for p in part.parameters()]


@pytest.mark.parametrize(("method", "encoder"), ROWS)
def test_stacked_models_share_nothing(method, encoder):
    x = pictures()
    model, estimator = build(encoder=encoder), make_estimator(method, TRIALS, BITS).double()
    noise = estimator.draw_noise(model.latent(x), generator=torch.Generator().manual_seed(2))
    noise = None if method == "exact" else noise
    together = gradients(method, encoder, TRIALS, x, noise)
    for number in range(2):
        own = slice(number, number + 1)
        alone = gradients(method, encoder, TRIALS[own], x[own], None if noise is None else noise[own])
        assert any(gradient.any() for gradient in alone)
        for ours, theirs in zip(together, alone, strict=True):
            torch.testing.assert_close(ours[own], theirs)


@pytest.mark.parametrize("encoder", ["unstructured", "general"])
def test_evaluation_sums_all_codes(encoder):
    model, images = build(encoder=encoder), pictures(1, 5)[0]
    elbo, nll = model.evaluate(images.to(torch.uint8), chunk=2)
    x = images.expand(2, -1, -1)
    q, costs = model.latent(x), StackedReconstruction(model, x).all(model.latent(x))
    expected = (q.log_prob_all().exp() * costs).sum(-1) + q.kl()
    torch.testing.assert_close(elbo, expected.mean(-1))
    torch.testing.assert_close(nll, -((-costs).exp().mean(-1).log()).mean(-1))
    assert bool((nll < elbo).all())


def test_adam_has_a_rate_per_model():
    generator = torch.Generator().manual_seed(0)
    start, pulls = torch.randn(2, 3, generator=generator), torch.randn(5, 2, 3, generator=generator)
    stacked = start.clone().requires_grad_()
    adam = StackedAdam([stacked], [1e-2, 1e-1])
    alone = [start[number].clone().requires_grad_() for number in range(2)]
    theirs = [torch.optim.Adam([alone[0]], lr=1e-2), torch.optim.Adam([alone[1]], lr=1e-1)]
    for pull in pulls:
        stacked.grad = pull
        adam.step()
        for number in range(2):
            alone[number].grad = pull[number]
            theirs[number].step()
    torch.testing.assert_close(stacked, torch.stack(alone))


def test_models_of_one_seed_see_the_same_images():
    images = tiny_images()[0]
    trials = [Trial(0), Trial(1), Trial(0)]
    model = StackedBitsVAE(images.shape[1], [0, 1, 0], [True] * 3, bits=BITS, hidden=5)
    trainer = Trainer(model, make_estimator("exact", trials, BITS), trials, images, 10)
    trainer.rewind()
    for _ in range(3):
        trainer.one_step()
    torch.testing.assert_close(model.enter[0], model.enter[2])
    assert not torch.allclose(model.enter[0], model.enter[1], atol=1e-3)
    assert not torch.equal(trainer.orders[0], trainer.orders[1])


@pytest.mark.parametrize(("method", "encoder"), ROWS)
def test_every_method_learns(method, encoder):
    trials = [Trial(0, True, 3e-3, 0.5), Trial(1, True, 3e-3, 0.5)]
    group = Group(method, encoder, trials)
    (curve,) = train([group], tiny_images(), epochs=8, bits=BITS, batch_size=10, look_every=4)
    assert curve.epochs == list(range(1, 9))
    for row in (*curve.validation, *curve.test):
        assert row[-1] < row[0] - 0.5


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_a_gpu)])
def test_stacks_side_by_side_are_what_they_are_alone(device):
    """The exact gradient draws nothing, so neither the noise nor the other stack can tell them apart."""
    images = tiny_images()[0].to(device)

    def make(seed, rate):
        model = StackedBitsVAE(images.shape[1], [seed], [True], bits=BITS, hidden=5).to(device)
        return Trainer(model, make_estimator("exact", [Trial(seed)], BITS), [Trial(seed, True, rate)], images, 10)

    kinds = ((0, 1e-3), (1, 3e-3), (2, 1e-2))
    together, alone = SideBySide([make(*kind) for kind in kinds]), [SideBySide([make(*kind)]) for kind in kinds]
    for steps in (together, *alone):
        steps.rewind()
        for _ in range(5):
            steps.step()
    for trainer, single in zip(together.trainers, alone, strict=True):
        for ours, theirs in zip(trainer.changes(), single.changes(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert int(together.trainers[0].cursor) == 50


def test_a_gpu_trains_all_but_the_exact_gradient_side_by_side():
    assert [len(rows) for rows in side_by_side(torch.device("cuda"))] == [1, len(ROWS) - 1]
    assert [rows for (rows,) in side_by_side(torch.device("cpu"))] == list(ROWS)


TINY = Figure3(bits=BITS, epochs=12, seeds=(0, 1), tuning_epochs=1, batch_size=20, rounds=1, look_every=4, quick=True)
KEPT = (("exact", "unstructured"), ("direct", "unstructured"), ("direct", "general"))


@pytest.fixture(scope="module")
def result() -> dict:
    images = tiny_images()
    tuning = run_tuning(KEPT, images, TINY, silent)
    rows = [row for rows in run_rows(KEPT, tuning, images, TINY, silent) for row in rows]
    return assemble(tuning, rows, [run_steps(images, TINY, silent)], TINY, "argrad reproduce figure3 --quick --json")


def test_result_is_json_with_every_row(result):
    result = json.loads(json.dumps(result, allow_nan=False))
    assert {
        "command",
        "commit",
        "hardware",
        "date",
        "settings",
        "quick",
        "rows",
        "tuning",
        "step_cost",
    } <= result.keys()
    assert [(row["method"], row["encoder"]) for row in result["rows"]] == list(KEPT)
    for row, tuned in zip(result["rows"], result["tuning"], strict=True):
        assert row["epochs"] == [*range(1, 11), 12]
        best = [row["epochs"].index(epoch) for epoch in row["best_epoch"]]
        assert row["test_loss"] == [curve[look] for curve, look in zip(row["curve"], best, strict=True)]
        assert len(row["nll"]) == 2
        tried = {(trial["learning_rate"], trial["setting"]): trial["validation"] for trial in tuned["trials"]}
        assert len(tried) == 2
        assert tried[row["learning_rate"], row["setting"]] == min(tried.values())
    assert result["rows"][0]["codes_decoded_per_step"] == 8
    assert result["rows"][1]["codes_decoded_per_step"] == 20 * 4
    assert len(result["step_cost"][0]["milliseconds"]) >= len(ROWS) + 1


def test_every_method_has_as_many_trials():
    from argrad.experiments.figure3 import trials_of

    assert {len(trials_of(method, Figure3())) for method, _ in ROWS} == {8}


def test_words_and_picture(result, tmp_path):
    text = format_table(result)
    assert text.startswith("QUICK")
    assert "+0.00" in text
    assert markdown(result).count("| general |") == 1
    plot(result, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"epochs": 0}, "epochs"),
        ({"bits": 30}, "2 to 16"),
        ({"seeds": (100,)}, "tuning seed"),
        ({"inputs": ("x",)}, "one-hot"),
    ],
)
def test_settings_are_checked(changes, word):
    with pytest.raises(ValueError, match=word):
        Figure3(**changes)


def test_a_trial_that_diverged_is_not_chosen():
    group = Group("exact", "unstructured", [Trial(0, True, rate) for rate in (1e-3, 1.0, 3e-3)])
    curve = Curve([1, 2], [[140.0, 136.0], [130.0, float("nan")], [139.0, 135.0]], [], [], 1.0, 2)
    found = choose(group, curve)
    assert found["learning_rate"] == 3e-3
    assert [trial["validation"] for trial in found["trials"]] == [136.0, None, 135.0]
