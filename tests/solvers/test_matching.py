"""Permutations: the best one against listing and SciPy, and the law whose partition function is the permanent."""

import importlib
import itertools
import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from argrad.noise import gumbel
from argrad.solvers import compiled
from argrad.solvers.matching import (
    enumerate_permutations,
    kept_tables,
    matching,
    permutation_entropy,
    permutation_log_partition,
    permutation_marginals,
    sample_permutation,
    sinkhorn,
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
    score,
    share,
    totals,
)

METHODS = pytest.mark.parametrize("method", ["numba", "torch"])
INFERENCE = [permutation_log_partition, permutation_marginals, permutation_entropy]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return gumbel(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def listed(n: int) -> Tensor:
    """Every permutation matrix, made without the code under test."""
    return torch.stack([torch.eye(n, dtype=torch.float64)[list(p)] for p in itertools.permutations(range(n))])


def possible(scores: Tensor) -> Tensor:
    return totals(scores, listed(scores.shape[-1])).amax(-1) > -torch.inf


@METHODS
@pytest.mark.parametrize("count", share(slow=2500, quick=100))
@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", ["normal", "integers"])
def test_is_the_best_permutation(n, kind, count, method):
    scores = Recipe(kind, seed=n)(count, n, n)
    assert_best(matching(scores, method=method), scores, listed(n))


@pytest.mark.parametrize("count", share(slow=1000, quick=30))
@pytest.mark.parametrize("n", [1, 7, 12, 30, 60])
@pytest.mark.parametrize("kind", ["normal", "integers", "huge", "tiny"])
@pytest.mark.parametrize("impossible", [0.0, 0.3])
def test_scores_as_much_as_scipy(n, kind, impossible, count):
    count = count if n < 30 else count // 5
    scores = Recipe(kind, seed=n, impossible=impossible if n > 4 else 0.0)(count, n, n)
    without_check = matching(scores, method="numba", validate=False)  # 0 where there is no permutation
    for one, z in zip(scores, without_check, strict=True):
        try:
            rows, columns = linear_sum_assignment(one.numpy(), maximize=True)
        except ValueError:
            assert not bool(z.any())
            continue
        best = float(one.numpy()[rows, columns].sum())
        assert bool((z.sum(0) == 1).all())
        assert bool((z.sum(1) == 1).all())
        assert float(score(one, z, 2)) == pytest.approx(best, rel=1e-12)


@METHODS
@given(recipe=recipes(), n=st.integers(1, 5), batch=st.sampled_from(BATCHES))
def test_is_the_best_permutation_of_difficult_scores(method, recipe, n, batch):
    scores = recipe(*batch, n, n)
    if not bool(possible(scores).all()):
        with pytest.raises(ValueError, match="at least one way to match"):
            matching(scores, method=method)
    else:
        precision = torch.float64 if method == "numba" else recipe.dtype
        assert_best(matching(scores, method=method), scores, listed(n), precision)


@METHODS
def test_without_the_check_impossible_problems_do_no_harm(method):
    scores = torch.full((3, 4, 4), -torch.inf)
    scores[1] = torch.eye(4)
    z = matching(scores, method=method, validate=False)
    assert torch.equal(z[1], torch.eye(4))
    assert bool(z.isfinite().all())


def test_without_numba_torch_does_it(monkeypatch):
    monkeypatch.setattr(importlib.import_module("argrad.solvers.matching"), "has_numba", lambda: False)
    scores = Recipe()(20, 5, 5)
    assert_best(matching(scores), scores, listed(5))


def test_without_numba_the_error_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    compiled.compile_loop.cache_clear()
    try:
        with pytest.raises(ImportError, match="pip install numba"):
            matching(torch.zeros(2, 2), method="numba")
    finally:
        compiled.compile_loop.cache_clear()


@pytest.mark.parametrize("n", [1, 2, 4])
def test_lists_every_permutation(n):
    found = enumerate_permutations(n, dtype=torch.float64)
    assert sorted(found.tolist()) == sorted(listed(n).tolist())
    assert len(found) == math.factorial(n)


@pytest.mark.parametrize("impossible", [0.0, 0.3])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_inference_equals_enumeration(n, impossible):
    scores = Recipe(seed=n, impossible=impossible)(60, n, n)
    scores = scores[possible(scores)]
    assert len(scores) >= 10
    structures = listed(n)
    assert_inference(totals(scores, structures), structures, *[f(scores) for f in INFERENCE])


@pytest.mark.parametrize("n", [8, 12])
def test_permanents_that_are_known(n):
    """All ones: n!. Ones off the diagonal: the number of derangements, round(n! / e)."""
    zeros = torch.zeros(n, n, dtype=torch.float64)
    assert permutation_log_partition(zeros).item() == pytest.approx(math.lgamma(n + 1), abs=1e-9)
    assert permutation_entropy(zeros).item() == pytest.approx(math.lgamma(n + 1), abs=1e-9)
    torch.testing.assert_close(permutation_marginals(zeros), torch.full_like(zeros, 1 / n))
    off = zeros.masked_fill(torch.eye(n, dtype=torch.bool), -torch.inf)
    derangements = round(math.factorial(n) / math.e)
    assert permutation_log_partition(off).item() == pytest.approx(math.log(derangements), abs=1e-9)


@settings(max_examples=40)
@given(recipe=recipes(), n=st.integers(1, 4))
def test_inference_survives_difficult_scores(recipe, n):
    scores = recipe(n, n)
    if not bool(possible(scores)):
        for function in INFERENCE:
            with pytest.raises(ValueError, match="at least one way to match"):
                function(scores)
        return
    for function in INFERENCE:
        assert_sane(function, scores)
    marginals = permutation_marginals(scores)
    for dim in (0, 1):
        torch.testing.assert_close(marginals.sum(dim), torch.ones(n, dtype=recipe.dtype), rtol=1e-5, atol=1e-5)
    assert bool((marginals[scores == -torch.inf] == 0).all())


@pytest.mark.parametrize("impossible", [0.0, 0.3])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_samples_follow_the_law(n, impossible):
    scores = Recipe(seed=5, impossible=impossible)(20, n, n)
    scores = scores[possible(scores)][:2]
    z = sample_permutation(scores, noise(20_000, 2, n, n, seed=n))
    structures = listed(n)
    for i in range(2):
        assert_law(z[:, i], totals(scores[i], structures), structures, comparisons=2)


@pytest.mark.parametrize("impossible", [0.0, 0.2])
def test_gradients(impossible):
    scores = Recipe(seed=2, impossible=impossible)(30, 3, 3)
    scores = scores[possible(scores)][:2]
    open_ = scores > -torch.inf
    free = scores[open_].requires_grad_()

    def fill(values: Tensor) -> Tensor:
        return torch.full_like(scores, -torch.inf).masked_scatter(open_, values)

    for function in INFERENCE:
        assert torch.autograd.gradcheck(lambda values, f=function: f(fill(values)), free)
    assert torch.autograd.gradgradcheck(lambda values: permutation_log_partition(fill(values)), free)
    leaf = scores.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(permutation_log_partition(leaf).sum(), leaf)
    torch.testing.assert_close(gradient, permutation_marginals(scores))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", BATCHES)
def test_shapes(batch, dtype):
    scores = Recipe(dtype=dtype)(*batch, 4, 4).requires_grad_()
    z = sample_permutation(scores, noise(6, *batch, 4, 4))
    assert z.shape == (6, *batch, 4, 4)
    for method in ("numba", "torch"):
        assert matching(scores, method=method).shape == scores.shape
        assert not matching(scores, method=method).requires_grad
    assert permutation_marginals(scores).shape == sinkhorn(scores).shape == scores.shape
    assert permutation_log_partition(scores).shape == permutation_entropy(scores).shape == batch
    assert not z.requires_grad
    for result in (z, matching(scores), sinkhorn(scores), *[f(scores) for f in INFERENCE]):
        assert result.dtype == dtype


@pytest.mark.parametrize("device", DEVICES)
def test_tables_made_in_inference_mode_serve_autograd(device):
    kept_tables.cache_clear()
    scores = Recipe()(4, 4).to(device)
    with torch.inference_mode():
        value = permutation_log_partition(scores)
    leaf = scores.clone().requires_grad_()
    again = permutation_log_partition(leaf)
    again.backward()
    torch.testing.assert_close(again.detach(), value)


def test_tables_made_for_shapes_alone_do_not_stay():
    with FakeTensorMode():
        assert permutation_log_partition(torch.zeros(2, 3, 3), validate=False).shape == (2,)
    torch.testing.assert_close(permutation_log_partition(torch.zeros(3, 3)).exp(), torch.tensor(6.0))


# --------------------------------------------------------------------------------------------------------- Sinkhorn


def test_sinkhorn_is_doubly_stochastic():
    z = sinkhorn(Recipe(seed=1)(5, 6, 6), 0.7, iterations=300)
    for dim in (-1, -2):
        torch.testing.assert_close(z.sum(dim), torch.ones(5, 6, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    assert bool((z > 0).all())


def test_sinkhorn_equals_plain_scaling():
    scores = Recipe(seed=2)(4, 3, 3)
    z = (scores / 0.8).exp()
    for _ in range(7):
        z = z / z.sum(-1, keepdim=True)
        z = z / z.sum(-2, keepdim=True)
    torch.testing.assert_close(sinkhorn(scores, 0.8, iterations=7), z)
    torch.testing.assert_close(sinkhorn(scores, torch.tensor(0.8), iterations=7), z)


def test_sinkhorn_goes_to_the_matching():
    scores = Recipe(seed=3)(20, 5, 5)
    first, second = totals(scores, listed(5)).topk(2).values.unbind(-1)
    scores = scores[first > second + 0.5]  # near ties need ever more iterations
    assert len(scores) >= 10
    torch.testing.assert_close(sinkhorn(scores, 0.02, iterations=2000), matching(scores), rtol=0, atol=1e-2)


def test_sinkhorn_gradient():
    scores = Recipe(seed=4)(2, 3, 3)
    scores[0, 1, 2] = -torch.inf
    open_ = scores > -torch.inf
    temperature = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)

    def function(values: Tensor, temperature: Tensor) -> Tensor:
        return sinkhorn(torch.full_like(scores, -torch.inf).masked_scatter(open_, values), temperature, iterations=5)

    assert torch.autograd.gradcheck(function, (scores[open_].requires_grad_(), temperature))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1e-6, 1e-2, 1.0, 1e3])
def test_sinkhorn_stays_finite(dtype, temperature):
    scores = Recipe(seed=5, dtype=dtype)(3, 4, 4)
    scores[0, 0, 0] = -torch.inf
    z = assert_sane(lambda s: sinkhorn(s, temperature), scores)
    assert bool(((z >= 0) & (z <= 1 + 1e-5)).all())
    assert z[0, 0, 0] == 0


def test_errors():
    with pytest.raises(ValueError, match=r"shape \(2, 3\)"):
        matching(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="method must be"):
        matching(torch.zeros(2, 2), method="scipy")
    with pytest.raises(ValueError, match="NaN"):
        matching(torch.full((2, 2), torch.nan))
    with pytest.raises(ValueError, match=r"\+inf"):
        permutation_marginals(torch.full((2, 2), torch.inf))
    with pytest.raises(ValueError, match="n at most 16"):
        permutation_log_partition(torch.zeros(20, 20))
    with pytest.raises(ValueError, match="1 to 9 rows"):
        enumerate_permutations(12)
    with pytest.raises(ValueError, match="at least one iteration"):
        sinkhorn(torch.zeros(2, 2), iterations=0)
    with pytest.raises(ValueError, match="at least one way to match"):
        sinkhorn(torch.tensor([[-torch.inf, -torch.inf], [0.0, 0.0]]))
    with pytest.raises(ValueError, match=r"1 of 2 examples, first at index \(1,\)"):
        matching(torch.stack([torch.zeros(2, 2), torch.full((2, 2), -torch.inf)]))
    closed = torch.full((2, 2), -torch.inf)
    assert permutation_log_partition(closed, validate=False) == -torch.inf
    z = matching(torch.full((3, 3), torch.nan), method="numba", validate=False)  # comes back, with something
    assert z.shape == (3, 3)


def test_under_vmap():
    scores = Recipe()(4, 4, 4)
    functions = [*INFERENCE, sinkhorn, lambda s: matching(s, method="torch")]
    for function in functions:
        torch.testing.assert_close(torch.func.vmap(function)(scores), function(scores))


@pytest.mark.parametrize("device", DEVICES[1:])
def test_on_the_gpu_and_in_a_graph(device):
    scores, gumbels = Recipe()(50, 6, 6).to(device), noise(50, 6, 6).to(device)
    functions = [lambda s, f=f: f(s, validate=False) for f in (*INFERENCE, sinkhorn)]
    functions.append(lambda s: matching(s, method="torch", validate=False))
    functions.append(lambda s: sample_permutation(s, gumbels.to(s.device), validate=False))
    for function in functions:
        torch.testing.assert_close(function(scores).cpu(), function(scores.cpu()))
        torch.testing.assert_close(capture(function, scores), function(scores))


@pytest.mark.parametrize("device", DEVICES[1:])
def test_a_compiled_solver_takes_cuda_tensors(device):
    pytest.importorskip("numba")
    scores = Recipe()(50, 20, 20).to(device)
    z = matching(scores)
    assert z.device == scores.device
    torch.testing.assert_close(z.cpu(), matching(scores.cpu()))
