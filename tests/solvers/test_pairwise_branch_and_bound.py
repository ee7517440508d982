"""Branch and bound against brute force and against HiGHS, and what it says when it stops early."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argrad.experiments.bench_solvers import by_highs
from argrad.solvers import pairwise_by_branch_and_bound, pairwise_by_enumeration, prove_pairwise
from pairwise_problems import KINDS, assert_optimal, brute_force, make, problems, score, size

pytestmark = pytest.mark.xdist_group("compiled pairwise solvers")


def proven(unary, pairwise):
    solution = prove_pairwise(unary, pairwise)
    assert bool(solution.proven.all())
    assert torch.equal(solution.bound, solution.value)
    torch.testing.assert_close(solution.value, score(unary, pairwise, solution.z), rtol=1e-12, atol=0)
    return solution.z


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_equals_brute_force(kind, n):
    assert_optimal(proven, *make(kind, 50, n))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", range(1, 12))
def test_equals_brute_force_on_many(kind, n):
    assert_optimal(proven, *make(kind, 150, n, seed=1))


@given(problems())
@settings(max_examples=100)
def test_equals_brute_force_on_drawn_problems(problem):
    assert_optimal(proven, *problem)


@pytest.mark.parametrize("kind", ["normal", "integers", "balanced", "exclusions"])
def test_equals_enumeration_at_sixteen_bits(kind):
    unary, pairwise = make(kind, 20, 16)
    z, expected = proven(unary, pairwise), pairwise_by_enumeration(unary, pairwise)
    missing = score(unary, pairwise, expected) - score(unary, pairwise, z)
    assert bool((missing.abs() <= 1e-12 * size(unary, pairwise)).all())


def assert_equals_highs(kind, number):
    unary, pairwise = make(kind, number, 30, seed=3)
    torch.testing.assert_close(
        score(unary, pairwise, proven(unary, pairwise)),
        score(unary, pairwise, by_highs(unary, pairwise.triu(1))),
        rtol=1e-9,
        atol=1e-9,
    )


def test_equals_a_mixed_integer_program_at_thirty_bits():
    assert_equals_highs("sparse", 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "number"), [("sparse", 12), ("zeros", 12), ("normal", 2), ("integers", 2), ("balanced", 2)]
)
def test_equals_a_mixed_integer_program_on_thirty_problems(kind, number):
    """Half of the pairs and fewer take the program well below a second, all pairs several."""
    assert_equals_highs(kind, number)


@given(problems(bits=8), st.integers(0, 5))
@settings(max_examples=100)
def test_bound_holds_however_early_the_search_stops(problem, limit):
    unary, pairwise = problem
    solution, best = prove_pairwise(unary, pairwise, node_limit=limit), brute_force(unary, pairwise)
    rounding = 1e-12 * size(unary, pairwise)
    assert bool((solution.bound >= best - rounding).all())
    assert bool((solution.value <= best + rounding).all())
    assert bool((solution.bound >= solution.value).all())
    closed = solution.proven
    assert bool(((solution.value - best).abs() <= rounding)[closed].all())


def test_stopping_early_warns_and_still_finds_good_bits():
    unary, pairwise = make("normal", 10, 30)
    best = prove_pairwise(unary, pairwise)
    stopped = prove_pairwise(unary, pairwise, node_limit=10)
    assert not bool(stopped.proven.any())
    assert bool((stopped.bound > best.value).all())
    # The local search that stands in finds the optimum of nearly every problem of this size.
    assert int(torch.isclose(stopped.value, best.value).sum()) >= 8
    with pytest.warns(UserWarning, match=r"stopped after 10 nodes in 10 of 10 problems of 30 bits.*raise node_limit"):
        z = pairwise_by_branch_and_bound(unary, pairwise, node_limit=10)
    assert torch.equal(z, stopped.z)


def test_proven_results_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pairwise_by_branch_and_bound(*make("normal", 3, 20))


def test_limit_is_checked():
    with pytest.raises(ValueError, match="node_limit must be 0 or more, got -1"):
        prove_pairwise(torch.zeros(2), torch.zeros(2, 2), node_limit=-1)


def test_shapes_of_a_solution():
    unary, pairwise = make("normal", 6, 5)
    solution = prove_pairwise(unary.reshape(2, 3, 5).float(), pairwise.reshape(2, 3, 5, 5))
    assert solution.z.shape == (2, 3, 5)
    assert solution.z.dtype == torch.float32
    assert solution.value.shape == solution.bound.shape == solution.proven.shape == (2, 3)
    assert solution.value.dtype == torch.float64
