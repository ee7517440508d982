"""The two loops do the same work: from the same weights and noise they take the same gradient."""

import copy
import json
import math

import pytest
import torch

from argrad import Categorical
from argrad.experiments import bench_training
from argrad.experiments.bench_training import (
    HAND_WRITTEN,
    BenchTraining,
    HandWritten,
    compete,
    format_table,
    make_images,
    run,
)
from argrad.models.discrete_vae.module import DiscreteVAEModule, default_networks

TINY = BenchTraining(values=3, batch=8, hidden=6, pixels=20, images=50, rounds=3, steps=2)


@pytest.fixture(scope="module")
def result() -> dict:
    return run(TINY, progress=lambda line: None)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_both_compute_the_same_gradient_on_the_same_noise(monkeypatch, name, seed):
    noise = Categorical(torch.zeros(40, 7)).draw_noise(generator=torch.Generator().manual_seed(seed))
    monkeypatch.setattr(bench_training, "gumbel_like", lambda scores: noise)
    torch.manual_seed(1)
    encoder, decoder = default_networks((30,), 7, 16)
    with torch.no_grad():  # far enough from uniform that the cost moves the arg max of some examples and not of others
        decoder[3].weight.mul_(4)
    x = make_images(BenchTraining(images=40, pixels=30)).float()
    estimator, by_hand = HAND_WRITTEN[name]
    module = DiscreteVAEModule(copy.deepcopy(encoder), copy.deepcopy(decoder), estimator, values=7)
    loss = by_hand(encoder, decoder, x)
    loss.backward()
    ours = module.losses(x, noise=noise).sum()
    ours.backward()
    torch.testing.assert_close(ours, loss)
    for expected, parameter in zip([*encoder.parameters(), *decoder.parameters()], module.parameters(), strict=False):
        assert expected.grad.abs().max() > 1e-3
        torch.testing.assert_close(parameter.grad, expected.grad, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_the_loop_written_by_hand_learns(name):
    settings = BenchTraining(batch=50, hidden=20, pixels=40, images=500, learning_rate=1e-2)
    torch.manual_seed(0)
    loop = HandWritten(*default_networks((40,), 10, 20), HAND_WRITTEN[name][1], make_images(settings), settings)
    totals = []
    for _ in range(6):
        loop.total.zero_()
        for _ in range(10):
            loop.step()
        totals.append(loop.total.item() / 500)
    assert totals[0] == pytest.approx(40 * math.log(2), rel=0.2)
    assert totals[-1] < 0.9 * totals[0]


def test_result_has_every_row_and_is_json(result):
    result = json.loads(json.dumps(result))
    assert [row["name"] for row in result["rows"]] == list(HAND_WRITTEN)
    assert {"command", "commit", "date", "hardware", "software", "settings", "threads", "target"} <= result.keys()
    for row in result["rows"]:
        low, high = row["ratio"]["quartiles"]
        assert 0 < low <= row["ratio"]["median"] <= high
        assert row["library_milliseconds"] > 0
        assert row["hand_milliseconds"] > 0


def test_table_shows_every_row(result):
    table = format_table(result)
    assert all(row["name"] in table for row in result["rows"])
    assert "at most 1.10" in table


def test_every_round_counts_once(monkeypatch):
    seen = []
    monkeypatch.setattr(bench_training, "summarise", lambda ratios, seed: seen.append(ratios))
    compete("Exact", TINY, make_images(TINY))
    assert [len(ratios) for ratios in seen] == [3]


def test_run_leaves_threads_and_random_state_alone():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    settings = BenchTraining(values=2, batch=2, hidden=2, pixels=3, images=4, rounds=1, steps=1, threads=1)
    assert run(settings, progress=lambda line: None)["threads"] == 1
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
