"""Steps are timed in turns, and what is timed is training."""

import pytest
import torch

from argrad.experiments.step_cost import (
    METHODS,
    ModuleSteps,
    PopulationSteps,
    format_costs,
    measure_step_cost,
    take_turns,
)
from argrad.training.population import Member
from tiny_images import silent, tiny_images


class Counting:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def rewind(self) -> None:
        self.log.append(f"{self.name} rewinds")

    def step(self) -> None:
        self.log.append(self.name)


def test_everyone_has_a_turn_in_every_round():
    log: list[str] = []
    times = take_turns({name: Counting(name, log) for name in "abc"}, rounds=4, block=2, wait=lambda: None)
    assert {name: len(found) for name, found in times.items()} == {"a": 4, "b": 4, "c": 4}
    turns = [log[start : start + 4] for start in range(0, len(log), 4)]
    assert len(turns) == 12
    assert all(turn == [f"{turn[1]} rewinds"] + 3 * [turn[1]] for turn in turns)
    rounds = [[turn[1] for turn in turns[start : start + 3]] for start in range(0, 12, 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert len({tuple(order) for order in rounds}) > 1


@pytest.mark.parametrize("method", METHODS)
def test_what_is_timed_is_training(method):
    train = tiny_images()[0]
    torch.manual_seed(0)
    steps = ModuleSteps(method, 3, train, 20)
    before = float(steps.module.negative_elbo(train.float()).mean())
    for _ in range(10):
        steps.rewind()
        for _ in range(3):
            steps.step()
    assert float(steps.module.negative_elbo(train.float()).mean()) < before - 0.5


def test_a_population_takes_the_same_steps():
    train = tiny_images()[0]
    steps = PopulationSteps([Member(3, "exact")], [0], train, 20)
    population = steps.stepper.population
    before = float(population.evaluate(train)[0])
    for _ in range(10):
        steps.rewind()
        for _ in range(3):
            steps.step()
    assert float(population.evaluate(train)[0]) < before - 0.5


def test_measures_every_method_and_ratio():
    cost = measure_step_cost(tiny_images()[0], 3, rounds=3, block=2, batch_size=10, progress=silent)
    assert tuple(cost["milliseconds"]) == METHODS
    assert cost["device"] == "cpu"
    ratio = cost["ratios"]["direct / straight-through"]
    assert 0 < ratio["quartiles"][0] <= ratio["median"] <= ratio["quartiles"][1]
    assert "direct / straight-through" in format_costs([cost])[0]
