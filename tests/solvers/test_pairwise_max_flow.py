"""Max-flow against brute force and, where it is installed, against PyMaxflow."""

import importlib
import importlib.util

import pytest
import torch
from hypothesis import given, settings

from argrad.solvers import pairwise_by_branch_and_bound, pairwise_by_max_flow, pairwise_by_pymaxflow
from pairwise_problems import KINDS, assert_optimal, make, problems, score, size

pytestmark = pytest.mark.xdist_group("compiled pairwise solvers")
ATTRACTIVE = [kind for kind in KINDS if kind != "exclusions"]


@pytest.mark.parametrize("kind", ATTRACTIVE)
@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_equals_brute_force(kind, n):
    assert_optimal(pairwise_by_max_flow, *make(kind, 50, n, attractive=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ATTRACTIVE)
@pytest.mark.parametrize("n", range(1, 12))
def test_equals_brute_force_on_many(kind, n):
    assert_optimal(pairwise_by_max_flow, *make(kind, 150, n, seed=1, attractive=True))


@given(problems(attractive=True))
@settings(max_examples=100)
def test_equals_brute_force_on_drawn_problems(problem):
    assert_optimal(pairwise_by_max_flow, *problem)


@pytest.mark.parametrize("kind", ["balanced", "sparse", "integers"])
def test_equals_branch_and_bound_beyond_brute_force(kind):
    unary, pairwise = make(kind, 10, 24, attractive=True)
    ours, theirs = (
        score(unary, pairwise, solve(unary, pairwise)) for solve in (pairwise_by_max_flow, pairwise_by_branch_and_bound)
    )
    assert bool(((ours - theirs).abs() <= 1e-12 * size(unary, pairwise)).all())


@pytest.mark.parametrize("kind", ["balanced", "sparse", "integers", "impossible"])
@pytest.mark.parametrize("n", [1, 15, 60])
def test_equals_pymaxflow(kind, n):
    pytest.importorskip("maxflow")
    unary, pairwise = make(kind, 10, n, attractive=True)
    ours, theirs = (
        score(unary, pairwise, solve(unary, pairwise)) for solve in (pairwise_by_max_flow, pairwise_by_pymaxflow)
    )
    assert bool(((ours - theirs).abs() <= 1e-9 * size(unary, pairwise)).all())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ATTRACTIVE)
@pytest.mark.parametrize("n", range(1, 12))
def test_pymaxflow_equals_brute_force_on_many(kind, n):
    """10,395 problems."""
    pytest.importorskip("maxflow")
    assert_optimal(pairwise_by_pymaxflow, *make(kind, 105, n, seed=6, attractive=True))


def test_problems_that_are_not_easy():
    """Half of the bits are 1 in the problems above, so that the cut passes through the middle of the graph."""
    share = pairwise_by_max_flow(*make("balanced", 200, 15, attractive=True)).mean(-1)
    assert 0.3 < share.mean() < 0.7
    assert ((share > 0) & (share < 1)).float().mean() > 0.5


def test_negative_pairwise_scores_are_refused():
    pairwise = torch.zeros(3, 2, 2)
    pairwise[1, 0, 1] = -0.25
    for solve in (pairwise_by_max_flow, *([pairwise_by_pymaxflow] if importlib.util.find_spec("maxflow") else [])):
        with pytest.raises(ValueError, match=r"at least 0, got -0\.25; .* pairwise_by_branch_and_bound"):
            solve(torch.zeros(3, 2), pairwise)
    pairwise = pairwise.mT  # below the diagonal nothing is read
    assert torch.equal(pairwise_by_max_flow(torch.zeros(3, 2), pairwise), torch.zeros(3, 2))


def test_pymaxflow_is_only_asked_for_by_name(monkeypatch):
    def refuse(name, *arguments, **keywords):
        if name == "maxflow":
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    real = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(ImportError, match=r"argrad\[maxflow\].*GPL.*pairwise_by_max_flow"):
        pairwise_by_pymaxflow(torch.zeros(2), torch.zeros(2, 2))
    pairwise_by_max_flow(torch.zeros(2), torch.zeros(2, 2))
