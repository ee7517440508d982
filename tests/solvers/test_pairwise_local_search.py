"""Local search is a heuristic: what it returns is a local optimum, and at small sizes nearly always the optimum."""

import pytest
import torch

from argrad.solvers import pairwise_by_local_search, pairwise_score, prove_pairwise
from argrad.solvers.pairwise_local_search import fixed_starts, pairwise_by_local_search_from_fixed_starts
from pairwise_problems import KINDS, brute_force, make, score, size


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(unary: torch.Tensor, pairwise: torch.Tensor) -> torch.Tensor:
    return pairwise_by_local_search(unary, pairwise, generator=generator())


def optima(unary, pairwise, z, best) -> int:
    """How many of the bits found are optimal; all are possible bits, worth what they are said to be, and no more."""
    assert bool(((z == 0) | (z == 1)).all())
    assert not bool((z[unary == -torch.inf] > 0).any())
    value, rounding = score(unary, pairwise, z), 1e-12 * size(unary, pairwise)
    assert bool((value <= best + rounding).all())
    assert bool(((pairwise_score(unary, pairwise.triu(1), z) - value).abs() <= rounding).all())
    return int((best - value <= rounding).sum())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 8])
def test_nearly_always_finds_the_optimum(kind, n):
    unary, pairwise = make(kind, 100, n)
    assert optima(unary, pairwise, drawn(unary, pairwise), brute_force(unary, pairwise)) >= 95


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solve", [drawn, pairwise_by_local_search_from_fixed_starts], ids=["drawn", "fixed"])
def test_finds_the_optimum_of_small_problems(kind, solve):
    """12,000 problems of 1 to 12 bits, all of them solved when this was written."""
    found = 0
    for n in range(1, 13):
        unary, pairwise = make(kind, 100, n, seed=5)
        found += optima(unary, pairwise, solve(unary, pairwise), brute_force(unary, pairwise))
    assert found >= 0.999 * 1200


@pytest.mark.slow
@pytest.mark.parametrize(("n", "least"), [(15, 0.999), (30, 0.998)])
@pytest.mark.parametrize("solve", [drawn, pairwise_by_local_search_from_fixed_starts], ids=["drawn", "fixed"])
def test_finds_nearly_every_optimum_beyond_brute_force(n, least, solve):
    """10,000 problems of each size: when this was written, all at 15 bits, 9,997 (drawn) and 9,995 (fixed) at 30."""
    g, found = generator(), 0
    for _ in range(10):
        unary = torch.randn(1000, n, generator=g).double()
        pairwise = torch.randn(1000, n, n, generator=g).double()
        best = prove_pairwise(unary, pairwise)
        assert bool(best.proven.all())
        found += optima(unary, pairwise, solve(unary, pairwise), best.value)
    assert found >= least * 10_000


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


def test_fixed_starts_need_no_generator():
    unary, pairwise = make("normal", 6, 60)
    state = torch.get_rng_state()
    z = pairwise_by_local_search_from_fixed_starts(unary, pairwise)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(pairwise_by_local_search_from_fixed_starts(unary[2:3], pairwise[2:3]), z[2:3])
    solve = pairwise_by_local_search_from_fixed_starts
    assert torch.equal(torch.vmap(solve)(unary, pairwise), z)
    assert torch.equal(torch.compile(solve, backend="eager", fullgraph=True)(unary, pairwise), z)


@pytest.mark.parametrize("n", [15, 30, 200])
def test_fixed_starts_look_random(n):
    """As often 1 as 0, and no more alike than coins: squared correlations of bits and of starts are as by chance."""
    bits = fixed_starts(64, n, torch.device("cpu"))
    assert not bool(bits[0].any())
    assert len(bits.unique(dim=0)) == 64
    drawn = 2 * bits[1:].double() - 1
    assert abs(float(drawn.mean())) < 4 * drawn.numel() ** -0.5
    for coins in (drawn, drawn.T):
        products = (coins @ coins.T).triu(1).square() / coins.shape[1]
        pairs = len(coins) * (len(coins) - 1) / 2
        assert abs(float(products.sum()) / pairs - 1) < 4 * (2 / pairs) ** 0.5


@pytest.mark.parametrize("wrong", [{"starts": 0}, {"steps": -1}])
def test_settings_are_checked(wrong):
    with pytest.raises(ValueError, match="starts must be at least 1 and steps at least 0"):
        pairwise_by_local_search(torch.zeros(2), torch.zeros(2, 2), **wrong)
