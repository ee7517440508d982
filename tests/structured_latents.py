"""Small structured latents with everything enumerable, for the tests of latents and of estimators."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from argrad import Chain, PairwiseBits, Permutation, SpanningTree, Subset
from argrad.latents import Structured


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def impossible(scores: Tensor, *index: int) -> Tensor:
    scores = scores.clone()
    scores[..., *index] = -torch.inf
    return scores


@dataclass(frozen=True)
class Case:
    """How to build a latent from its parameters, and parameters to build it from."""

    build: Callable[..., Structured]
    parameters: tuple[Tensor, ...]

    def __call__(self, *parameters: Tensor, **options: object) -> Structured:
        return self.build(*(parameters or self.parameters), **options)

    def leaves(self) -> tuple[Tensor, ...]:
        """Copies of the parameters that require grad."""
        return tuple(parameter.clone().requires_grad_() for parameter in self.parameters)


def pairs(scores: Tensor, **options: object) -> Subset:
    return Subset(scores, 2, **options)


def rooted(scores: Tensor, **options: object) -> SpanningTree:
    return SpanningTree(scores, directed=True, root=1, **options)


CASES = {
    "pairwise bits": Case(PairwiseBits, (normal(2, 4), normal(2, 4, 4, seed=1))),
    "pairwise bits, no batch": Case(PairwiseBits, (normal(3), normal(3, 3, seed=1))),
    "pairwise bits, one": Case(PairwiseBits, (normal(2, 1), normal(1, 1, seed=1))),
    "pairwise bits, shared pairs": Case(PairwiseBits, (normal(2, 3, 5), normal(5, 5, seed=1))),
    "pairwise bits, shared bits": Case(PairwiseBits, (normal(3), normal(2, 3, 3, seed=1))),
    "pairwise bits, empty batch": Case(PairwiseBits, (normal(0, 3), normal(3, 3, seed=1))),
    "pairwise bits, impossible bit": Case(PairwiseBits, (impossible(normal(2, 3), 1), normal(3, 3, seed=1))),
    "subset": Case(pairs, (1.5 * normal(2, 5),)),
    "subset, no batch": Case(pairs, (normal(4),)),
    "subset, all": Case(pairs, (normal(2, 2),)),
    "subset, batch of two dimensions": Case(pairs, (normal(2, 3, 4),)),
    "subset, empty batch": Case(pairs, (normal(0, 4),)),
    "subset, impossible item": Case(pairs, (impossible(normal(2, 4), 1),)),
    "permutation": Case(Permutation, (1.5 * normal(2, 4, 4),)),
    "permutation, no batch": Case(Permutation, (normal(3, 3),)),
    "permutation, one row": Case(Permutation, (normal(2, 1, 1),)),
    "permutation, batch of two dimensions": Case(Permutation, (normal(2, 1, 3, 3),)),
    "permutation, empty batch": Case(Permutation, (normal(0, 3, 3),)),
    "permutation, impossible pair": Case(Permutation, (impossible(normal(2, 3, 3), 0, 1),)),
    "tree": Case(SpanningTree, (1.5 * normal(2, 4, 4),)),
    "tree, no batch": Case(SpanningTree, (normal(3, 3),)),
    "tree, batch of two dimensions": Case(SpanningTree, (normal(2, 1, 4, 4),)),
    "tree, empty batch": Case(SpanningTree, (normal(0, 3, 3),)),
    "tree, impossible edge": Case(SpanningTree, (impossible(normal(2, 4, 4), 0, 1),)),
    "directed tree": Case(rooted, (1.5 * normal(2, 4, 4),)),
    "directed tree, two nodes": Case(rooted, (normal(2, 2),)),
    "directed tree, impossible edge": Case(rooted, (impossible(normal(2, 4, 4), 1, 2),)),
    "chain": Case(Chain, (normal(2, 3, 3), normal(3, 3, seed=1))),
    "chain, no batch": Case(Chain, (normal(4, 2), normal(3, 2, 2, seed=1))),
    "chain, one variable": Case(Chain, (normal(2, 1, 3), normal(3, 3, seed=1))),
    "chain, one value": Case(Chain, (normal(2, 3, 1), normal(1, 1, seed=1))),
    "chain, own steps": Case(Chain, (normal(2, 2, 3, 2), normal(2, 2, 2, 2, 2, seed=1))),
    "chain, shared values": Case(Chain, (normal(3, 2), normal(2, 2, 2, 2, seed=1))),
    "chain, empty batch": Case(Chain, (normal(0, 3, 2), normal(2, 2, seed=1))),
    "chain, impossible value and step": Case(
        Chain, (impossible(normal(2, 3, 3), 1, 1), impossible(normal(3, 3, seed=1), 0, 2))
    ),
}
FILLED = [name for name in CASES if "empty" not in name]
PLAIN = ["pairwise bits", "subset", "permutation", "tree", "directed tree", "chain"]
"""One of each family."""


def spread(q: Structured) -> Tensor:
    """Every structure for every example, ``[S, *batch, *event]``."""
    states = q.enumerate()
    lead = (len(states), *q.batch_shape)
    return states.reshape(len(states), *(1 for _ in q.batch_shape), *q.event_shape).expand(*lead, *q.event_shape)


def listed(q: Structured) -> Tensor:
    """The log-probability of every structure from nothing but its score, ``[*batch, S]``."""
    return q.score(spread(q)).movedim(0, -1).log_softmax(-1)
