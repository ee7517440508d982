"""The benchmark compares like with like: one objective for all, and peers whose gradients are the same numbers."""

import json
import math
import os

import pytest
import torch

import argrad
from argrad.experiments import provenance
from argrad.experiments.bench_estimators import (
    DECODE_ALL,
    EPSILON,
    LOOP,
    TEMPERATURE,
    Autoencoder,
    BenchEstimators,
    contestants,
    decode_all,
    format_table,
    gumbel_softmax_loop,
    make_batches,
    run,
    with_estimator,
)

TINY = BenchEstimators(values=(3, 5), batch=12, hidden=6, pixels=20, rounds=3, steps=2, warm_up=2, storchastic=False)


@pytest.fixture(scope="module")
def result() -> dict:
    return run(TINY, progress=lambda line: None)


def gradients(backpropagate, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss and all gradients, flattened, of one backward pass with noise from the global generator."""
    torch.manual_seed(1)
    model = Autoencoder(values=7, hidden=16, pixels=30)
    with torch.no_grad():  # far enough from uniform that the cost moves the arg max of some examples and not of others
        model.decoder[-1].weight.mul_(4)
    x = make_batches(BenchEstimators(batch=40, pixels=30), 1)[0]
    torch.manual_seed(seed)
    loss = backpropagate(model, x)
    return loss.detach(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("plain", "estimator"),
    [
        (decode_all, argrad.Direct(EPSILON)),
        (gumbel_softmax_loop, argrad.GumbelSoftmax(TEMPERATURE)),
        (
            lambda model, x: gumbel_softmax_loop(model, x, hard=True),
            argrad.GumbelSoftmax(TEMPERATURE, straight_through=True),
        ),
    ],
    ids=["direct", "soft", "straight-through"],
)
def test_peers_compute_the_same_gradient_on_the_same_noise(plain, estimator, seed, monkeypatch):
    def as_the_peers_draw_it(shape, **_):
        return -torch.empty(tuple(shape)).exponential_().log()

    monkeypatch.setattr("argrad.latents.categorical.gumbel", as_the_peers_draw_it)
    expected_loss, expected = gradients(plain, seed)
    loss, gradient = gradients(with_estimator(estimator), seed)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(loss, expected_loss, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-5)


def test_every_contestant_learns_the_same_objective():
    settings = BenchEstimators(batch=50, hidden=20, pixels=40, learning_rate=1e-2, storchastic=False)
    found = contestants(settings, 5)
    assert len({contestant.name for contestant in found}) == len(found)
    x = make_batches(settings, 1)[0]
    torch.manual_seed(0)
    for contestant in found:
        losses = [contestant.step(x).item() for _ in range(60)]
        assert all(map(math.isfinite, losses)), contestant.name
        # All start from the same weights: the loss is near that of a fair coin per pixel, and falls well below it.
        assert losses[0] == pytest.approx(settings.pixels * math.log(2), rel=0.1), contestant.name
        assert losses[-1] < 0.9 * losses[0], contestant.name


def test_result_has_every_row_and_is_json(result):
    result = json.loads(json.dumps(result))
    names = [contestant.name for contestant in contestants(TINY, 3)]
    assert [(row["values"], row["name"]) for row in result["rows"]] == [(k, name) for k in (3, 5) for name in names]
    assert {"command", "commit", "date", "hardware", "settings", "software", "threads"} <= result.keys()
    assert result["threads"] == torch.get_num_threads()
    assert result["command"].startswith("argrad bench estimators --values 3 5 --batch 12")
    assert result["command"].endswith("--no-storchastic --json")
    for row in result["rows"]:
        low, high = row["ratio"]["quartiles"]
        assert 0 < low <= row["ratio"]["median"] <= high
        assert row["ratio"]["interval_95"][0] <= row["ratio"]["median"] <= row["ratio"]["interval_95"][1]
        assert row["milliseconds"] > 0
        assert all(map(math.isfinite, row["loss"]))
        if row["name"] == LOOP:
            assert row["ratio"]["median"] == 1
        if row["name"] == DECODE_ALL:
            assert row["decode_all_ratio"]["median"] == 1


def test_table_shows_every_row(result):
    table = format_table(result)
    assert "k = 3" in table
    assert "k = 5" in table
    assert all(row["name"] in table for row in result["rows"])


def test_run_leaves_threads_and_random_state_alone():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    settings = BenchEstimators(
        values=(2,), batch=2, hidden=2, pixels=3, rounds=1, steps=1, warm_up=0, threads=1, storchastic=False
    )
    assert run(settings, progress=lambda line: None)["threads"] == 1
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_a_missing_peer_is_left_out_with_the_reason(monkeypatch, tmp_path):
    (tmp_path / "storch.py").write_text("raise ImportError('not on this machine')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    settings = BenchEstimators(values=(2,), batch=2, hidden=2, pixels=3, rounds=1, steps=1, warm_up=1)
    result = run(settings, progress=lambda line: None)
    assert not any("storchastic" in row["name"] for row in result["rows"])
    assert result["skipped"] == {"storchastic": "ImportError: not on this machine"}
    assert "not on this machine" in format_table(result)


def test_the_commit_is_unknown_outside_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "argrad" / "provenance.py"))
    (tmp_path / "argrad").mkdir()
    assert provenance.commit() is None
