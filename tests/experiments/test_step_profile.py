"""Operations are counted as PyTorch counts them, and the floor is arithmetic."""

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from argrad.experiments.paper_model import networks
from argrad.experiments.step_profile import StepProfile, compare, count_operations, format_table, markdown, plot, run
from argrad.training.population import Member, Population, stack_networks
from tiny_images import silent, tiny_images

TINY = StepProfile(k=(3, 4), pixels=12, batch_size=5, rounds=2, steps=2, quick=True)


@pytest.fixture(scope="module")
def result() -> dict:
    return run(TINY, progress=silent)


@pytest.mark.parametrize("methods", [("exact", "direct"), ("gumbel-softmax", "straight-through")])
def test_operations_are_those_that_pytorch_counts(methods):
    members = [Member(k, method, epsilon=0.1) for method in methods for k in (4, 6)]
    population = Population(stack_networks(networks(12), members, [0, 1]), members)
    x = tiny_images()[0][:10].float().expand(2, -1, -1)
    with FlopCounterMode(display=False) as counter:
        population.step(x)
    counted = count_operations(members, 2, 10, 12)
    assert counted["product_operations"] == counter.get_total_flops()
    assert counted["needed_operations"] < counted["product_operations"]
    assert counted["parameters"] == sum(tensor.numel() for tensor in population.weights.values())
    assert counted["adam_bytes"] == 32 * counted["parameters"]


def test_floor_is_products_and_adam():
    counts = {"product_operations": 4000, "product_bytes": 100, "adam_bytes": 500}
    row = compare(counts, [9.0, 10.0, 11.0], {"operations_per_second": 1e6, "bytes_per_second": 1e6})
    assert row["floor_milliseconds"] == {"products": 4.0, "adam": 0.5, "all": 4.5}
    assert row["times_the_floor"] == pytest.approx(10 / 4.5, abs=0.01)
    slow_memory = compare(counts, [10.0], {"operations_per_second": 1e6, "bytes_per_second": 1e4})
    assert slow_memory["floor_milliseconds"]["products"] == 10.0


def test_result_has_every_population_and_its_kernels(result):
    result = json.loads(json.dumps(result, allow_nan=False))
    assert [row["models"] for row in result["rows"]] == [1, 1, 4, 4]
    for row in result["rows"]:
        assert any("mm" in kernel["name"] for kernel in row["top"])
        assert 0 < sum(kernel["share"] for kernel in row["top"]) <= 1.001
        assert row["milliseconds"] > 0


def test_words_and_picture(result, tmp_path):
    assert "one model" in format_table(result)
    assert "GB/s" in markdown(result)
    plot(result, tmp_path / "profile.png")
    assert (tmp_path / "profile.png").read_bytes().startswith(b"\x89PNG")


def test_leaves_the_random_state_alone(result):
    state = torch.get_rng_state()
    run(TINY, progress=silent)
    assert torch.equal(torch.get_rng_state(), state)
