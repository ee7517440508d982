"""Finding a power grid: a latent tree.

Houses stand on a map, node 0 is the power plant, and the lines between them were built as cheaply as possible: a
minimum spanning tree, whose edges lead away from the plant. What a line costs depends on how far apart its ends are, in
a way that is not known; some of what is known about a house plays no part at all. Nobody has a drawing of the lines.
There are meters: each house has its demand, and the meter at its feed shows the current through it, its own demand and
that of all houses behind it. A network scores every pair of houses; the best tree is the guess, and it is judged by
the currents that it implies, y = u + z y, which depend on the whole tree.

On its own every house would choose the cheapest line, and the two houses nearest to each other would each be fed by the
other: independent choices cannot say what a tree says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from argrad.estimators import Direct, Estimator, ImplicitMLE, PerturbedOptimizer, Reinforce
from argrad.experiments.structures_training import Batch, Loss, Method, each_draw
from argrad.latents import Categorical, SpanningTree
from argrad.latents.base import Law

__all__ = ["METHODS", "Grid", "Maps", "as_graph", "currents", "independent_heads", "paths"]

PRICE = (1.0, 1.0, 0.5, 0.0, 0.0)
"""What a line costs for each unit of difference in east, north and altitude; the last two features cost nothing."""


def paths(z: Tensor) -> Tensor:
    """Who feeds whom, ``[*batch, n, n]``: (a, h) is 1 where a is on the way from the root to h, h itself included.

    I + z + z² + …, whose terms end after n − 1 in a tree. With cycles, or between trees, it is cut off before n.
    """
    n = z.shape[-1]
    total, power, terms = torch.eye(n, dtype=z.dtype) + z, z, 2
    while terms < n:
        power = power @ power
        total = total + power @ total
        terms *= 2
    return total


def currents(z: Tensor, demand: Tensor) -> Tensor:
    """What the meters show, ``[*batch, n]``: a house's demand and that of all houses behind it."""
    return (paths(z) @ demand.unsqueeze(-1)).squeeze(-1)


@final
@dataclass(frozen=True)
class Maps(Batch):
    """Maps of houses.

    Args:
        houses: their features, ``[batch, n, 5]``.
        demand: ``[batch, n]``.
        tree: the lines that were built, head by modifier, ``[batch, n, n]``; only evaluation looks at it.
        measured: currents, ``[batch, n]``.
    """

    houses: Tensor
    demand: Tensor
    tree: Tensor
    measured: Tensor

    def cost(self, z: Tensor) -> Tensor:
        """The mean squared error of the currents, ``[*extra, batch]``."""
        return (currents(z, self.demand) - self.measured).square().mean(-1)

    def rehangings(self, z: Tensor) -> Tensor:
        r"""How the cost changes if one house is fed by another, ``[*extra, batch, n, n]``, new head by house.

        A house m with current y_m that moves from head k to head h takes y_m off all meters on the way to k and puts it
        on all on the way to h. With residuals r and P from :func:`paths` the sum of squares changes by

        .. math:: \sum_a (r_a + y_m (P_{ah} - P_{ak}))^2 - r_a^2,

        exact where h is not behind m (else there would be a cycle, which no solver returns).
        """
        reach = paths(z)
        current = (reach @ self.demand.unsqueeze(-1)).squeeze(-1)
        on_the_way = ((current - self.measured).unsqueeze(-2) @ reach).squeeze(-2)
        shared = reach.mT @ reach
        depth = shared.diagonal(dim1=-2, dim2=-1)
        first = (on_the_way.unsqueeze(-2) @ z).squeeze(-2)  # of the head that each house has
        apart = depth.unsqueeze(-1) + (depth.unsqueeze(-2) @ z) - 2 * shared @ z
        change = 2 * current.unsqueeze(-2) * (on_the_way.unsqueeze(-1) - first.unsqueeze(-2))
        change = change + current.square().unsqueeze(-2) * apart
        return change / z.shape[-1]

    def scores(self, network: nn.Module) -> Tensor:
        """Of every line, ``[batch, n, n]``."""
        scores = network((self.houses.unsqueeze(-2) - self.houses.unsqueeze(-3)).abs())
        assert isinstance(scores, Tensor)
        return scores.squeeze(-1)

    def correct(self, scores: Tensor) -> Tensor:
        """The share of houses with the right head (the unlabelled attachment score) in the best tree, ``[batch]``."""
        return self.attachment(SpanningTree(scores, directed=True).mode())

    def attachment(self, z: Tensor) -> Tensor:
        """The share of houses whose head is the right one, ``[batch]``."""
        return (z * self.tree).sum((-1, -2)) / (z.shape[-1] - 1)


@final
class Grid:
    """The problem.

    Args:
        houses: on a map, the plant among them; at least 3.
    """

    name = "tree"

    def __init__(self, houses: int = 8) -> None:
        if houses < 3:
            raise ValueError(f"a map needs at least 3 houses, got houses={houses}")
        self.houses = houses

    def draw(self, part: str, number: int, generator: torch.Generator) -> Maps:
        """Fresh maps; no two parts share one."""
        houses = torch.rand(number, self.houses, len(PRICE), generator=generator)
        demand = 0.5 + torch.rand(number, self.houses, generator=generator)
        prices = ((houses.unsqueeze(-2) - houses.unsqueeze(-3)).abs() * torch.tensor(PRICE)).sum(-1)
        tree = SpanningTree(-prices, directed=True).mode()
        return Maps(houses, demand, tree, currents(tree, demand))

    def network(self) -> nn.Module:
        """Differences between two houses in, the score of a line out."""
        return nn.Sequential(nn.Linear(len(PRICE), 32), nn.ReLU(), nn.Linear(32, 1))


def by(estimator: Estimator, draws: int, *, law: Law = "perturb") -> Loss:
    """An estimator on trees."""

    def loss(scores: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        assert isinstance(batch, Maps)
        q = SpanningTree(each_draw(scores, draws), directed=True, law=law)
        value: Tensor = estimator(q, batch.cost, generator=generator)
        return value

    return loss


def direct(epsilon: float, draws: int) -> Loss:
    """Direct with the table of re-hangings: what becomes of the cost if one house moves."""

    def loss(scores: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        assert isinstance(batch, Maps)
        q = SpanningTree(each_draw(scores, draws), directed=True, law="perturb")
        estimator = Direct(epsilon, changes=batch.rehangings, two_sided=True)
        value: Tensor = estimator(q, batch.cost, generator=generator)
        return value

    return loss


def marginals(value: float, draws: int) -> Loss:
    """Structured attention: the currents of the mean tree, by the matrix-tree theorem, without any sampling."""

    def loss(scores: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        assert isinstance(batch, Maps)
        return batch.cost(SpanningTree(scores, directed=True).mean())

    return loss


def independent_heads(scores: Tensor) -> Categorical:
    """Every house but the plant chooses its head by itself; z is ``[*batch, n − 1, n]``, house by head."""
    own = torch.eye(scores.shape[-1], dtype=torch.bool)
    return Categorical(scores.masked_fill(own, -torch.inf).mT[..., 1:, :], event_dims=2)


def as_graph(heads: Tensor) -> Tensor:
    """Independent choices head by modifier, ``[*batch, n, n]``; the plant has no head."""
    return torch.cat([torch.zeros_like(heads[..., :1, :]), heads], -2).mT


def independent(value: float, draws: int) -> Loss:
    """No tree: each house chooses on its own, with the same estimator as trees have in Reinforce."""
    estimator = Reinforce(draws)

    def loss(scores: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        assert isinstance(batch, Maps)

        def cost(heads: Tensor) -> Tensor:
            return batch.cost(as_graph(heads))

        value: Tensor = estimator(independent_heads(scores), cost, generator=generator)
        return value

    return loss


def told(value: float, draws: int) -> Loss:
    """For comparison: maximum likelihood of the lines that were built, which no other method is told."""

    def loss(scores: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        assert isinstance(batch, Maps)
        return -SpanningTree(scores, directed=True).log_prob(batch.tree)

    return loss


METHODS = (
    Method("Direct, re-hangings", "ε", (0.3, 1.0, 3.0), direct),
    Method(
        "Direct, gradient",
        "ε",
        (0.1, 0.3, 1.0),
        lambda value, draws: by(Direct(value, changes="gradient", two_sided=True), draws),
    ),
    Method("Reinforce", "", (0.0,), lambda value, draws: by(Reinforce(draws), 1, law="gibbs")),
    Method("Marginals (structured attention)", "", (0.0,), marginals),
    Method(
        "ImplicitMLE, sum of gamma",
        "λ",
        (0.03, 0.1, 0.3),
        lambda value, draws: by(ImplicitMLE(value, samples=draws, noise="sum-of-gamma"), 1),
    ),
    Method(
        "PerturbedOptimizer",
        "σ",
        (0.25, 0.5, 1.0),
        lambda value, draws: by(PerturbedOptimizer(value, samples=2 * draws), 1),  # about as many trees as Direct needs
    ),
    Method("Independent heads, Reinforce", "", (0.0,), independent),
    Method("Told the answer", "", (0.0,), told),
)
"""Each with the values of its own parameter among which validation chooses."""
