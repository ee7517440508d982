"""Local search is a heuristic: what it returns is a local optimum, and at small sizes nearly always the optimum."""

import pytest
import torch

from argrad.solvers import pairwise_by_local_search
from pairwise_problems import KINDS, brute_force, make, score, size


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 8])
def test_nearly_always_finds_the_optimum(kind, n):
    unary, pairwise = make(kind, 100, n)
    z = pairwise_by_local_search(unary, pairwise, generator=generator())
    assert bool(((z == 0) | (z == 1)).all())
    missing = brute_force(unary, pairwise) - score(unary, pairwise, z)
    assert int((missing <= 1e-12 * size(unary, pairwise)).sum()) >= 95


def test_no_flip_improves():
    unary, pairwise = make("normal", 20, 40)
    z = pairwise_by_local_search(unary, pairwise, starts=1, generator=generator())
    found = score(unary, pairwise, z)
    for bit in range(40):
        other = z.clone()
        other[:, bit] = 1 - other[:, bit]
        assert bool((score(unary, pairwise, other) <= found + 1e-9).all())


def test_more_starts_are_no_worse():
    unary, pairwise = make("normal", 50, 40)
    few, many = (
        score(unary, pairwise, pairwise_by_local_search(unary, pairwise, starts=starts, generator=generator()))
        for starts in (1, 64)
    )
    assert bool((many >= few - 1e-9).all())
    assert bool((many > few + 1e-9).any())


def test_generator_decides():
    unary, pairwise = make("normal", 20, 60)
    first, again, other = (
        pairwise_by_local_search(unary, pairwise, starts=2, generator=generator(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_compiles_without_looking():
    unary, pairwise = make("normal", 4, 6)
    compiled = torch.compile(pairwise_by_local_search, backend="eager", fullgraph=True)
    z = compiled(unary, pairwise)
    assert bool((score(unary, pairwise, z) >= brute_force(unary, pairwise) - 1e-9).all())


@pytest.mark.parametrize("wrong", [{"starts": 0}, {"steps": -1}])
def test_settings_are_checked(wrong):
    with pytest.raises(ValueError, match="starts must be at least 1 and steps at least 0"):
        pairwise_by_local_search(torch.zeros(2), torch.zeros(2, 2), **wrong)
