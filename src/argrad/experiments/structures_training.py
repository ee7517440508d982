"""What the two problems of :mod:`argrad.experiments.structures` share: a batch, a method, and one way to train."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor, nn

__all__ = ["Batch", "Loss", "Method", "Problem", "Training", "each_draw", "train"]


class Batch(Protocol):
    """Examples of a problem."""

    @abstractmethod
    def scores(self, network: nn.Module) -> Tensor:
        """What the network makes of them, ``[batch, *event]``."""

    @abstractmethod
    def correct(self, scores: Tensor) -> Tensor:
        """The share of each best structure that is right, ``[batch]``."""


class Problem(Protocol):
    """Something to learn."""

    name: str

    def draw(self, part: str, number: int, generator: torch.Generator) -> Batch:
        """Fresh examples of one part: train, validation or test."""

    def network(self) -> nn.Module:
        """With first weights from PyTorch's own generator."""


Loss = Callable[[Tensor, Batch, torch.Generator], Tensor]
"""Scores, batch and generator to costs, whose mean has the gradient to follow."""


@final
@dataclass(frozen=True)
class Method:
    """A way to learn.

    Args:
        name: in tables.
        parameter: the letter of what has to be chosen, empty if there is nothing.
        values: the candidates.
        make: from a value and the number of noises for each example to a loss.
    """

    name: str
    parameter: str
    values: tuple[float, ...]
    make: Callable[[float, int], Loss]


@final
@dataclass(frozen=True)
class Training:
    """How one training went: the share that is right on validation as it went on, and at its end; and on test."""

    steps: list[int]
    curve: list[float]
    validation: float
    test: float
    seconds: float
    """Of processor time, without evaluation."""


def each_draw(scores: Tensor, draws: int) -> Tensor:
    """The same scores once for each noise, ``[draws, *scores.shape]``."""
    return scores.expand(draws, *scores.shape)


def train(
    problem: Problem, loss: Loss, *, seed: int, rate: float, steps: int, batch: int, evaluated: int, points: int = 10
) -> Training:
    """Train a network with Adam, whose rate falls to zero in a straight line.

    Args:
        problem: to learn.
        loss: of a batch.
        seed: of first weights, examples and noise.
        rate: the first learning rate.
        steps: of Adam.
        batch: examples in a step.
        evaluated: examples that validation and test draw; the same for every training.
        points: how often the curve is measured.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = problem.network()
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 1 / steps, steps)
    validation = problem.draw("validation", evaluated, torch.Generator().manual_seed(1))
    every, taken, curve, seconds = -(-steps // points), [0], [share_right(network, validation)], 0.0
    for step in range(1, steps + 1):
        start = time.process_time()
        examples = problem.draw("train", batch, generator)
        value = loss(examples.scores(network), examples, generator).mean()
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        schedule.step()
        seconds += time.process_time() - start
        if step % every == 0 or step == steps:
            taken.append(step)
            curve.append(share_right(network, validation))
    test = problem.draw("test", evaluated, torch.Generator().manual_seed(2))
    return Training(taken, curve, curve[-1], share_right(network, test), seconds)


@torch.no_grad()
def share_right(network: nn.Module, batch: Batch) -> float:
    """The mean over a batch."""
    return float(batch.correct(batch.scores(network)).mean())
