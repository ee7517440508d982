"""What one training step of one model costs with each estimator, all measured in the same minutes.

A step is everything: picking the batch, encoder, noise, estimator, KL, backward pass, Adam. On a CPU it is the
library's ordinary step (:class:`argrad.models.DiscreteVAEModule` and PyTorch's fused Adam); on a GPU, where such a
small model mostly waits for Python, it is the step of a population of one, captured as a graph and replayed.

The methods take turns: a round times a block of steps of each, in a fresh random order, after one step that is not
timed, so that what else the machine does falls on all alike. A ratio is taken within a round; reported are the median
over rounds, its quartiles and a bootstrap interval of the median.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, final

import torch
from torch import Tensor

from argrad.estimators import Direct, Estimator, Exact, GumbelSoftmax
from argrad.experiments.bench_estimators import summarise
from argrad.experiments.paper_model import networks
from argrad.models.discrete_vae.module import DiscreteVAEModule
from argrad.training.population import Member, Method, Population, stack_networks
from argrad.training.population_loop import Stepper

__all__ = ["METHODS", "PopulationSteps", "format_costs", "measure_step_cost", "take_turns"]

METHODS: tuple[Method, ...] = ("exact", "direct", "gumbel-softmax", "straight-through")
RATIOS = (
    ("direct", "gumbel-softmax"),
    ("direct", "straight-through"),
    ("exact", "gumbel-softmax"),
    ("exact", "straight-through"),
)
EPSILON, TEMPERATURE = 0.1, 0.5


class Steps(Protocol):
    """Something that can be stepped through an epoch."""

    def rewind(self) -> None:
        """Start another epoch."""

    def step(self) -> None:
        """The next step."""


@final
class ModuleSteps:
    """The library's ordinary step on a device."""

    def __init__(self, method: Method, values: int, train: Tensor, batch_size: int) -> None:
        estimators: dict[str, Estimator] = {
            "exact": Exact(),
            "direct": Direct(EPSILON),
            "gumbel-softmax": GumbelSoftmax(TEMPERATURE),
            "straight-through": GumbelSoftmax(TEMPERATURE, straight_through=True),
        }
        pair = networks(train.shape[1])(values, 0)
        self.module = DiscreteVAEModule(*pair, estimators[method], values=values).to(train.device)
        self.optimiser = torch.optim.Adam(self.module.parameters(), fused=True)
        self.train, self.batch_size = train, batch_size
        self.rewind()

    def rewind(self) -> None:
        """A fresh order."""
        self.order, self.at = torch.randperm(len(self.train), device=self.train.device), 0

    def step(self) -> None:
        """The next batch."""
        x = self.train[self.order[self.at : self.at + self.batch_size]].float()
        loss = self.module.losses(x).mean()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.at += self.batch_size


@final
class PopulationSteps:
    """The step of a population; on a GPU, a captured graph."""

    def __init__(self, members: Sequence[Member], seeds: Sequence[int], train: Tensor, batch_size: int) -> None:
        stacked = stack_networks(networks(train.shape[1]), members, seeds)
        population = Population({name: tensor.to(train.device) for name, tensor in stacked.items()}, members)
        self.orders = torch.Generator(train.device).manual_seed(0)
        self.stepper = Stepper(population, train, batch_size)
        self.rewind()

    def rewind(self) -> None:
        """A fresh order."""
        self.stepper.shuffle(self.orders)

    def step(self) -> None:
        """The next batch."""
        self.stepper.step()


def take_turns(
    contestants: Mapping[str, Steps], rounds: int, block: int, wait: Callable[[], object], seed: int = 0
) -> dict[str, list[float]]:
    """Milliseconds per step of everyone in every round.

    Args:
        contestants: by name; an epoch of each must have more than ``block`` steps.
        rounds: in each, everyone has a turn.
        block: steps that are timed together.
        wait: returns when the device has done all it was given.
        seed: of the order in which they take turns.
    """
    shuffle = random.Random(seed).shuffle
    times: dict[str, list[float]] = {name: [] for name in contestants}
    collecting = gc.isenabled()
    gc.disable()  # as timeit does; what has piled up is collected between the rounds
    try:
        for _ in range(rounds):
            order = list(contestants)
            shuffle(order)
            for name in order:
                steps = contestants[name]
                steps.rewind()
                steps.step()
                wait()
                began = time.perf_counter()
                for _ in range(block):
                    steps.step()
                wait()
                times[name].append(1e3 * (time.perf_counter() - began) / block)
            gc.collect()
    finally:
        if collecting:
            gc.enable()
    return times


def measure_step_cost(
    train: Tensor,
    values: int,
    *,
    rounds: int = 30,
    block: int = 10,
    batch_size: int = 100,
    progress: Callable[[str], object] = print,
) -> dict[str, Any]:
    """Time a step of every method with one k, on the device that holds the images.

    Args:
        train: bits ``[N, D]``, uint8.
        values: k.
        rounds: of turns.
        block: steps in a turn; on a GPU twenty times as many.
        batch_size: images per step.
        progress: is told what is measured.

    Returns:
        ``milliseconds`` by method and ``ratios`` by "one / other", each with median, quartiles and interval.
    """
    device = train.device
    on_gpu = device.type == "cuda"
    progress(f"timing a step of one model on {device.type}, k = {values}")
    batch_size = min(batch_size, len(train) // 2)
    block = max(1, min(block * (20 if on_gpu else 1), len(train) // batch_size - 1))

    def make(method: Method) -> Steps:
        if not on_gpu:
            return ModuleSteps(method, values, train, batch_size)
        member = Member(values, method, epsilon=EPSILON, temperature=TEMPERATURE)
        return PopulationSteps([member], [0], train, batch_size)

    with torch.random.fork_rng(devices=[]):
        contestants: dict[str, Steps] = {method: make(method) for method in METHODS}
        times = take_turns(contestants, rounds, block, torch.cuda.synchronize if on_gpu else lambda: None)
    return {
        "device": device.type,
        "hardware": torch.cuda.get_device_name(device) if on_gpu else f"{torch.get_num_threads()} threads",
        "step": "a captured graph of a population of one" if on_gpu else "the library's ordinary step",
        "k": values,
        "batch_size": batch_size,
        "rounds": rounds,
        "steps_per_round": block,
        "milliseconds": {name: rounded(summarise(found, 0)) for name, found in times.items()},
        "ratios": {
            f"{one} / {other}": rounded(summarise([a / b for a, b in zip(times[one], times[other], strict=True)], 0))
            for one, other in RATIOS
        },
    }


def rounded(summary: dict[str, Any]) -> dict[str, Any]:
    """To four digits, which is more than a clock is good for."""
    return {
        name: [float(f"{v:.4g}") for v in value] if isinstance(value, list) else float(f"{value:.4g}")
        for name, value in summary.items()
    }


def format_costs(costs: list[dict[str, Any]]) -> list[str]:
    """A line per device and k: milliseconds, and direct over Gumbel-softmax."""
    lines = []
    for cost in costs:
        times = ", ".join(f"{name} {found['median']:.3f}" for name, found in cost["milliseconds"].items())
        ratios = "; ".join(
            f"{name} {found['median']:.2f} [{found['quartiles'][0]:.2f}, {found['quartiles'][1]:.2f}]"
            for name, found in cost["ratios"].items()
            if name.startswith("direct")
        )
        lines.append(f"{cost['device']} ({cost['hardware']}), k = {cost['k']}: ms {times}; {ratios}")
    return lines
