"""Learning to sort: a latent permutation.

A set is n handwritten digits of different values, in no order, from those that ship with scikit-learn. A network looks
at each image by itself and scores it for every place; the best matching of images and places is the arrangement. It is
never told which digit an image shows, only what an arrangement costs: the mean squared difference between the value in
each place and the value that belongs there. Among permutations this is a *linear* cost ⟨D, z⟩ / n with D the squared
differences of every value and every place. The same cost written as a squared norm has the same value at every
permutation and another one between them, and another gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from argrad.costs import Cost
from argrad.estimators import (
    BlackboxDifferentiation,
    Direct,
    Estimator,
    Exact,
    GumbelSinkhorn,
    PerturbedOptimizer,
    Reinforce,
)
from argrad.experiments.structures_training import Batch, Loss, Method, each_draw
from argrad.latents import Permutation
from argrad.latents.base import Law

__all__ = ["METHODS", "Sets", "Sorting", "digits_by_value"]

PARTS = {"train": slice(0, 110), "validation": slice(110, 140), "test": slice(140, 174)}
"""Of the images of each value; the rarest has 174."""


@final
@dataclass(frozen=True)
class Sets(Batch):
    """Sets of digits.

    Args:
        images: ``[batch, n, 64]``.
        values: what they show, ``[batch, n]``, different in each row.
    """

    images: Tensor
    values: Tensor

    @property
    def wanted(self) -> Tensor:
        """The values in order, ``[batch, n]``."""
        return self.values.sort(-1).values

    @property
    def answer(self) -> Tensor:
        """The right permutation, ``[batch, n, n]``; only evaluation and the reference row look at it."""
        return nn.functional.one_hot(self.values.argsort(-1).argsort(-1), self.values.shape[-1]).float()

    @property
    def distances(self) -> Tensor:
        """The weights of the linear cost: squared differences over n, image by place, ``[batch, n, n]``."""
        return (self.values.unsqueeze(-1) - self.wanted.unsqueeze(-2)).square() / self.values.shape[-1]

    def arranged(self, z: Tensor) -> Tensor:
        """The values by place, ``[*extra, batch, n]``."""
        return (self.values.unsqueeze(-2) @ z).squeeze(-2)

    def linear_cost(self, z: Tensor) -> Tensor:
        """The mean squared difference, linear between permutations, ``[*extra, batch]``."""
        return (z * self.distances).sum((-1, -2))

    def squared_cost(self, z: Tensor) -> Tensor:
        """The same at permutations, a squared norm between them, ``[*extra, batch]``."""
        return (self.arranged(z) - self.wanted).square().mean(-1)

    def scores(self, network: nn.Module) -> Tensor:
        """Image by place, ``[batch, n, n]``."""
        scores = network(self.images)
        assert isinstance(scores, Tensor)
        return scores

    def correct(self, scores: Tensor) -> Tensor:
        """The share of images that the best matching puts in their place, ``[batch]``."""
        return (self.arranged(Permutation(scores).mode()) == self.wanted).float().mean(-1)


def digits_by_value() -> Tensor:
    """The digits of scikit-learn, ``[10, 174, 64]``: images of each value, from 0 to 1."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    mixed = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(0))  # writers come in turn
    pixels = torch.tensor(digits.data / 16, dtype=torch.float32)[mixed]
    values = torch.tensor(digits.target)[mixed]
    return torch.stack([pixels[values == value][: PARTS["test"].stop] for value in range(10)])


@final
class Sorting:
    """The problem.

    Args:
        images: ``[10, 174, 64]``, from :func:`digits_by_value`.
        size: digits in a set, 2 to 10.
    """

    name = "sorting"

    def __init__(self, images: Tensor, size: int = 6) -> None:
        if not 2 <= size <= 10:
            raise ValueError(f"a set has 2 to 10 digits of different values, got size={size}")
        self.images = images
        self.size = size

    def draw(self, part: str, number: int, generator: torch.Generator) -> Sets:
        """Sets of images of one part: train, validation or test."""
        images = self.images[:, PARTS[part]]
        values = torch.rand(number, 10, generator=generator).argsort(-1)[:, : self.size]
        which = torch.randint(images.shape[1], values.shape, generator=generator)
        return Sets(images[values, which], values.float())

    def network(self) -> nn.Module:
        """An image in, its score for each place out."""
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, self.size))


def direct(epsilon: float, draws: int) -> Loss:
    """The cost is linear and its weights are known: they are all that Direct needs."""

    def loss(scores: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        assert isinstance(batch, Sets)
        q = Permutation(each_draw(scores, draws), law="perturb")
        estimator = Direct(epsilon, changes=lambda z: batch.distances)
        value: Tensor = estimator(q, batch.linear_cost, generator=generator)
        return value

    return loss


def by(estimator: Estimator, draws: int, *, law: Law = "perturb", squared: bool = False) -> Loss:
    """Any other, on the linear or on the squared form of the cost."""

    def loss(scores: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        assert isinstance(batch, Sets)
        q = Permutation(each_draw(scores, draws), law=law)
        cost: Cost = batch.squared_cost if squared else batch.linear_cost
        value: Tensor = estimator(q, cost, generator=generator)
        return value

    return loss


def told(value: float, draws: int) -> Loss:
    """For comparison: maximum likelihood of the right permutation, which no other method is told."""

    def loss(scores: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        assert isinstance(batch, Sets)
        return -Permutation(scores).log_prob(batch.answer)

    return loss


METHODS = (
    Method("Direct", "ε", (4.0, 16.0, 64.0), direct),
    Method(
        "Direct, gradient of the squared form",
        "ε",
        (0.05, 0.2, 0.8),
        lambda value, draws: by(Direct(value, changes="gradient"), draws, squared=True),
    ),
    Method("GumbelSinkhorn", "τ", (1.0, 3.0, 10.0), lambda value, draws: by(GumbelSinkhorn(value), draws)),
    Method(
        "GumbelSinkhorn, squared form",
        "τ",
        (0.3, 1.0, 3.0),
        lambda value, draws: by(GumbelSinkhorn(value), draws, squared=True),
    ),
    Method(
        "PerturbedOptimizer",
        "σ",
        (0.25, 0.5, 1.0),
        lambda value, draws: by(PerturbedOptimizer(value, samples=2 * draws), 1),  # as many solutions as Direct needs
    ),
    Method(
        "BlackboxDifferentiation", "λ", (0.25, 1.0, 4.0), lambda value, draws: by(BlackboxDifferentiation(value), 1)
    ),
    Method("Reinforce", "", (0.0,), lambda value, draws: by(Reinforce(draws), 1, law="gibbs")),
    Method("Exact", "", (0.0,), lambda value, draws: by(Exact(), 1, law="gibbs")),
    Method("Told the answer", "", (0.0,), told),
)
"""Each with the values of its own parameter among which validation chooses."""
