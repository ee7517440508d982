"""Subsets: the best one against listing, and the conditional Bernoulli law."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from argrad.solvers.top_k import (
    enumerate_subsets,
    sample_subset,
    subset_entropy,
    subset_log_partition,
    subset_marginals,
    top_k,
)
from structures import (
    BATCHES,
    DEVICES,
    Recipe,
    assert_best,
    assert_inference,
    assert_law,
    assert_sane,
    capture,
    recipes,
    share,
    totals,
)

SIZES = [(1, 0), (1, 1), (4, 0), (4, 2), (5, 5), (7, 3)]
INFERENCE = [subset_log_partition, subset_marginals, subset_entropy]


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def listed(n: int, size: int) -> Tensor:
    """Every subset, made without the code under test."""
    rows = [z for z in itertools.product((0.0, 1.0), repeat=n) if sum(z) == size]
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, n)


@pytest.mark.parametrize("count", share(slow=2500, quick=100))
@pytest.mark.parametrize(("n", "size"), [(3, 1), (6, 2), (8, 5), (12, 6)])
@pytest.mark.parametrize("kind", ["normal", "integers"])
def test_is_the_best_subset(n, size, kind, count):
    for chunk in range(0, count, 500):
        scores = Recipe(kind, seed=chunk)(min(count, 500), n)
        assert_best(top_k(scores, size), scores, listed(n, size))


@given(recipe=recipes(), n=st.integers(1, 7), data=st.data(), batch=st.sampled_from(BATCHES))
def test_is_the_best_subset_of_difficult_scores(recipe, n, data, batch):
    size, scores = data.draw(st.integers(0, n)), recipe(*batch, n)
    if bool(((scores > -torch.inf).sum(-1) < size).any()):
        with pytest.raises(ValueError, match="leave at least as many items possible"):
            top_k(scores, size)
    else:
        assert_best(top_k(scores, size), scores, listed(n, size), precision=recipe.dtype)


@pytest.mark.parametrize(("n", "size"), SIZES)
def test_lists_every_subset(n, size):
    found = enumerate_subsets(n, size, dtype=torch.float64)
    assert len(found) == math.comb(n, size)
    assert sorted(found.tolist()) == sorted(listed(n, size).tolist())


@pytest.mark.parametrize("impossible", [0.0, 0.3])
@pytest.mark.parametrize(("n", "size"), SIZES)
def test_inference_equals_enumeration(n, size, impossible):
    scores = Recipe(seed=n, impossible=impossible)(40, n)
    scores = scores[(scores > -torch.inf).sum(-1) >= size]
    structures = listed(n, size)
    assert_inference(totals(scores, structures), structures, *[f(scores, size) for f in INFERENCE])


@settings(max_examples=50)
@given(recipe=recipes(), n=st.integers(1, 6), data=st.data())
def test_inference_survives_difficult_scores(recipe, n, data):
    size, scores = data.draw(st.integers(0, n)), recipe(n)
    if int((scores > -torch.inf).sum()) < size:
        for function in INFERENCE:
            with pytest.raises(ValueError, match="leave at least as many items possible"):
                function(scores, size)
        return
    assert_sane(lambda s: subset_log_partition(s, size), scores)
    assert bool((assert_sane(lambda s: subset_entropy(s, size), scores) >= -1e-6).all())
    marginals = assert_sane(lambda s: subset_marginals(s, size), scores)
    assert bool(((marginals >= 0) & (marginals <= 1 + 1e-5)).all())
    torch.testing.assert_close(marginals.sum(-1), torch.tensor(float(size), dtype=recipe.dtype), rtol=1e-5, atol=1e-5)
    assert bool((marginals[scores == -torch.inf] == 0).all())


@pytest.mark.parametrize("impossible", [0.0, 0.3])
@pytest.mark.parametrize(("n", "size"), [(4, 2), (6, 3), (5, 5)])
def test_samples_follow_the_law(n, size, impossible):
    scores = Recipe(seed=3, impossible=impossible)(2, n)
    scores = torch.where((scores > -torch.inf).sum(-1, keepdim=True) >= size, scores, Recipe(seed=4)(2, n))
    z = sample_subset(scores, size, uniform(20_000, 2, n, seed=n))
    structures = listed(n, size)
    for i in range(2):
        assert_law(z[:, i], totals(scores[i], structures), structures, comparisons=2)


def test_any_noise_gives_a_feasible_subset():
    scores = Recipe("mixed", impossible=0.3, seed=1)(200, 8)
    scores = scores[(scores > -torch.inf).sum(-1) >= 4]
    for value in (0.0, 0.5, 1 - 1e-16, 1.0):
        z = sample_subset(scores, 4, torch.full_like(scores, value))
        assert bool((z.sum(-1) == 4).all())
        assert bool((z[scores == -torch.inf] == 0).all())


@pytest.mark.parametrize("impossible", [0.0, 0.3])
def test_gradients(impossible):
    scores = Recipe(seed=8, impossible=impossible)(2, 5)
    possible = scores > -torch.inf
    assert int(possible.sum(-1).min()) >= 2
    free = scores[possible].requires_grad_()

    def fill(values: Tensor) -> Tensor:
        return torch.full_like(scores, -torch.inf).masked_scatter(possible, values)

    for function in INFERENCE:
        assert torch.autograd.gradcheck(lambda values, f=function: f(fill(values), 2), free)
    assert torch.autograd.gradgradcheck(lambda values: subset_log_partition(fill(values), 2), free)
    leaf = scores.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(subset_log_partition(leaf, 2).sum(), leaf)
    torch.testing.assert_close(gradient, subset_marginals(scores, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", BATCHES)
def test_shapes(batch, dtype):
    scores = Recipe(dtype=dtype)(*batch, 5).requires_grad_()
    assert subset_log_partition(scores, 2).shape == subset_entropy(scores, 2).shape == batch
    assert subset_marginals(scores, 2).shape == top_k(scores, 2).shape == scores.shape
    z = sample_subset(scores, 2, uniform(6, *batch, 5))
    assert z.shape == (6, *batch, 5)
    assert not z.requires_grad
    assert not top_k(scores, 2).requires_grad
    for result in (subset_log_partition(scores, 2), subset_marginals(scores, 2), subset_entropy(scores, 2), z):
        assert result.dtype == dtype


def test_large_problem_in_float32():
    """400 of 1,000 items: there are 10^290 subsets, far beyond the range of float32."""
    scores = Recipe(dtype=torch.float32)(3, 1000)
    exact = subset_marginals(scores.double(), 400)
    torch.testing.assert_close(subset_marginals(scores, 400).double(), exact, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(exact.sum(-1), torch.full((3,), 400.0, dtype=torch.float64))


def test_errors():
    with pytest.raises(ValueError, match=r"size between 0 and n=3, got 4"):
        top_k(torch.zeros(3), 4)
    with pytest.raises(ValueError, match=r"size between 0 and n=3, got -1"):
        subset_marginals(torch.zeros(3), -1)
    with pytest.raises(ValueError, match="NaN"):
        top_k(torch.tensor([1.0, torch.nan]), 1)
    with pytest.raises(ValueError, match=r"\+inf"):
        subset_log_partition(torch.tensor([1.0, torch.inf]), 1)
    with pytest.raises(ValueError, match="floating-point"):
        top_k(torch.tensor([1, 2]), 1)
    with pytest.raises(ValueError, match=r"shape \(\)"):
        top_k(torch.tensor(1.0), 1)
    with pytest.raises(ValueError, match="more than"):
        enumerate_subsets(40, 20)
    assert subset_log_partition(torch.tensor([1.0, -torch.inf]), 2, validate=False) == -torch.inf


def test_under_vmap():
    scores = Recipe()(4, 6)
    for function in INFERENCE:
        mapped = torch.func.vmap(lambda s, f=function: f(s, 3))(scores)
        torch.testing.assert_close(mapped, function(scores, 3))
    assert torch.equal(torch.func.vmap(lambda s: top_k(s, 3))(scores), top_k(scores, 3))


@pytest.mark.parametrize("device", DEVICES[1:])
def test_on_the_gpu_and_in_a_graph(device):
    scores, noise = Recipe()(50, 9).to(device), uniform(50, 9).to(device)
    functions = [lambda s, f=f: f(s, 4, validate=False) for f in (*INFERENCE, top_k)]
    functions.append(lambda s: sample_subset(s, 4, noise.to(s.device), validate=False))
    for function in functions:
        torch.testing.assert_close(function(scores).cpu(), function(scores.cpu()))
        torch.testing.assert_close(capture(function, scores), function(scores))
