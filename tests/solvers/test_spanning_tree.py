"""Spanning trees, undirected and directed: the best one against listing, and the matrix-tree law."""

import itertools
import math
from functools import cache, partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor

from argrad.noise import gumbel
from argrad.solvers.spanning_tree import (
    arborescence,
    arborescence_entropy,
    arborescence_log_partition,
    arborescence_marginals,
    enumerate_arborescences,
    enumerate_spanning_trees,
    sample_arborescence,
    sample_spanning_tree,
    spanning_tree,
    spanning_tree_entropy,
    spanning_tree_log_partition,
    spanning_tree_marginals,
)
from structures import (
    BATCHES,
    DEVICES,
    Recipe,
    assert_best,
    assert_inference,
    assert_law,
    assert_listed,
    assert_sane,
    capture,
    recipes,
    score,
    share,
    totals,
)

METHODS = pytest.mark.parametrize("method", ["numba", "torch"])
UNDIRECTED = [spanning_tree_log_partition, spanning_tree_marginals, spanning_tree_entropy]
DIRECTED = [arborescence_log_partition, arborescence_marginals, arborescence_entropy]
NO_TREE = "join all nodes|reachable from the root"


def noise(*shape: int, seed: int = 0) -> Tensor:
    return gumbel(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def leads_to(heads: tuple[int, ...], node: int, root: int) -> bool:
    """Whether following heads from the node arrives at the root."""
    for _ in heads:
        node = root if node == root else heads[node]
    return node == root


@cache
def listed_directed(n: int, root: int) -> Tensor:
    """Every directed tree, made without the code under test: all choices of heads without a cycle."""
    found = []
    for choice in itertools.product(range(n), repeat=n - 1):
        heads = (*choice[:root], root, *choice[root:])
        if all(leads_to(heads, node, root) for node in range(n)):
            z = torch.zeros(n, n, dtype=torch.float64)
            for node in range(n):
                if node != root:
                    z[heads[node], node] = 1.0
            found.append(z)
    return torch.stack(found)


@cache
def listed(n: int) -> Tensor:
    """Every undirected tree: the directed ones with their arrows taken away."""
    z = listed_directed(n, 0)
    return (z + z.mT).triu(1)


def structures(n: int, root: int | None) -> Tensor:
    return listed(n) if root is None else listed_directed(n, root)


def inference(scores: Tensor, root: int | None) -> list[Tensor]:
    return [f(scores) for f in UNDIRECTED] if root is None else [f(scores, root=root) for f in DIRECTED]


def sample(scores: Tensor, gumbels: Tensor, root: int | None) -> Tensor:
    return sample_spanning_tree(scores, gumbels) if root is None else sample_arborescence(scores, gumbels, root=root)


def possible(scores: Tensor, root: int | None) -> Tensor:
    return totals(scores, structures(scores.shape[-1], root)).amax(-1) > -torch.inf


def of_full_support(recipe: Recipe, count: int, n: int, root: int | None) -> Tensor:
    scores = recipe(count, n, n)
    return scores[possible(scores, root)]


@METHODS
@pytest.mark.parametrize("count", share(slow=2000, quick=100))
@pytest.mark.parametrize("n", [2, 4, 5, 6])
@pytest.mark.parametrize("kind", ["normal", "integers"])
def test_is_the_best_tree(n, kind, count, method):
    for seed in range(max(1, count // 500)):
        scores = Recipe(kind, seed=seed)(min(count, 500), n, n)
        assert_best(spanning_tree(scores, method=method), scores, listed(n))


@pytest.mark.parametrize("count", share(slow=2000, quick=100))
@pytest.mark.parametrize(("n", "root"), [(2, 0), (3, 2), (4, 1), (5, 0), (6, 3)])
@pytest.mark.parametrize("kind", ["normal", "integers"])
def test_is_the_best_arborescence(n, root, kind, count):
    for seed in range(max(1, count // 500)):
        scores = Recipe(kind, seed=seed)(min(count, 500), n, n)
        assert_best(arborescence(scores, root=root), scores, listed_directed(n, root))


@METHODS
@given(recipe=recipes(), n=st.integers(1, 5), batch=st.sampled_from(BATCHES))
def test_is_the_best_tree_of_difficult_scores(method, recipe, n, batch):
    scores = recipe(*batch, n, n)
    if not bool(possible(scores, None).all()):
        with pytest.raises(ValueError, match=NO_TREE):
            spanning_tree(scores, method=method)
    else:
        assert_best(spanning_tree(scores, method=method), scores, listed(n))


@given(recipe=recipes(), n=st.integers(1, 5), data=st.data(), batch=st.sampled_from(BATCHES))
def test_is_the_best_arborescence_of_difficult_scores(recipe, n, data, batch):
    root, scores = data.draw(st.integers(0, n - 1)), recipe(*batch, n, n)
    if not bool(possible(scores, root).all()):
        with pytest.raises(ValueError, match=NO_TREE):
            arborescence(scores, root=root)
    else:
        assert_best(arborescence(scores, root=root), scores, listed_directed(n, root))


@METHODS
@pytest.mark.parametrize("n", [10, 40])
def test_scores_as_much_as_scipy(n, method):
    scores = Recipe(seed=n)(20, n, n)
    z = spanning_tree(scores, method=method)
    assert bool((z.sum((-1, -2)) == n - 1).all())
    for one, tree in zip(scores, z, strict=True):
        upper = np.triu(float(one.max()) + 1 - one.numpy(), 1)  # SciPy minimises, and reads 0 as no edge
        best = (n - 1) * float(one.max() + 1) - minimum_spanning_tree(upper).sum()
        assert float(score(one, tree, 2)) == pytest.approx(best)


@pytest.mark.parametrize("count", share(slow=500, quick=20))
@pytest.mark.parametrize("n", [8, 20, 40])
def test_large_arborescences_are_proven_best(n, count):
    """A plain recursive Chu-Liu/Edmonds in Python finds the same value, cycles within cycles included."""
    # Strong pairs, pairs of pairs, and so on: contractions nest.
    level = sum((torch.arange(n)[:, None] // 2**k == torch.arange(n) // 2**k).double() for k in range(1, 6))
    scores = Recipe(seed=n)(count, n, n) + 6 * level
    z = arborescence(scores)
    assert bool((z.sum(-2)[:, 1:] == 1).all())
    assert not bool(z[:, :, 0].any())
    power = z
    for _ in range(n):
        power = power @ z
    assert not bool(power.any())  # no cycle
    for one, tree in zip(scores, z, strict=True):
        assert float((one * tree).sum()) == pytest.approx(recursive_edmonds(one.numpy()), rel=1e-12)


def recursive_edmonds(scores: np.ndarray) -> float:
    """The score of the best arborescence with root 0, by contraction as the textbooks write it."""
    n = len(scores)
    scores = scores.copy()
    np.fill_diagonal(scores, -np.inf)
    head = scores.argmax(0)
    for start in range(1, n):
        path, node = [], start
        while node and node not in path:
            path.append(node)
            node = int(head[node])
        if node:
            cycle = path[path.index(node) :]
            rest = [v for v in range(n) if v not in cycle]
            inside = scores[head[cycle], cycle]
            smaller = np.full((len(rest) + 1, len(rest) + 1), -np.inf)
            smaller[:-1, :-1] = scores[np.ix_(rest, rest)]
            smaller[:-1, -1] = (scores[np.ix_(rest, cycle)] - inside).max(1)
            smaller[-1, :-1] = scores[np.ix_(cycle, rest)].max(0)
            return float(inside.sum()) + recursive_edmonds(smaller)
    return float(scores[head[1:], np.arange(1, n)].sum())


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
def test_lists_every_tree(n):
    found = enumerate_spanning_trees(n, dtype=torch.float64)
    assert len(found) == round(n ** (n - 2))
    assert sorted(found.flatten(1).tolist()) == sorted(listed(n).flatten(1).tolist())
    for root in {0, n - 1}:
        found = enumerate_arborescences(n, root=root, dtype=torch.float64)
        assert sorted(found.flatten(1).tolist()) == sorted(listed_directed(n, root).flatten(1).tolist())


@pytest.mark.parametrize("impossible", [0.0, 0.3])
@pytest.mark.parametrize(("n", "root"), [(1, None), (2, None), (3, None), (5, None), (1, 0), (2, 1), (4, 2), (5, 0)])
def test_inference_equals_enumeration(n, root, impossible):
    scores = of_full_support(Recipe(seed=n, impossible=impossible), 60, n, root)
    assert len(scores) >= 10
    trees = structures(n, root)
    assert_inference(totals(scores, trees), trees, *inference(scores, root))


@pytest.mark.parametrize("n", [10, 30])
def test_log_partition_equals_the_determinant(n):
    scores = Recipe(seed=n)(5, n, n)
    weights = scores.triu(1).exp().triu(1)
    weights = weights + weights.mT
    laplacian = torch.diag_embed(weights.sum(-1)) - weights
    torch.testing.assert_close(spanning_tree_log_partition(scores), laplacian[:, 1:, 1:].logdet())
    weights = scores.exp() * (1 - torch.eye(n, dtype=torch.float64))
    laplacian = torch.diag_embed(weights.sum(-2)) - weights
    torch.testing.assert_close(arborescence_log_partition(scores), laplacian[:, 1:, 1:].logdet())


def test_digits_survive_where_a_determinant_loses_them():
    """Two nodes that prefer each other by 60 nats: the determinant cancels to nothing even in float64."""
    scores = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 60.0], [0.0, 60.0, 0.0]], dtype=torch.float64)
    exact = 60 + math.log(1 + math.e + math.exp(1 - 60))
    assert arborescence_log_partition(scores).item() == pytest.approx(exact, abs=1e-13)
    assert arborescence_log_partition(scores.float()).item() == pytest.approx(exact, rel=1e-6)
    weights = scores.exp() * (1 - torch.eye(3, dtype=torch.float64))
    laplacian = torch.diag_embed(weights.sum(-2)) - weights
    assert not math.isclose(laplacian[1:, 1:].slogdet().logabsdet.item(), exact, abs_tol=1.0)


@settings(max_examples=40)
@given(recipe=recipes(), n=st.integers(1, 4), directed=st.booleans())
def test_inference_survives_difficult_scores(recipe, n, directed):
    scores, root = recipe(n, n), n - 1 if directed else None
    functions = [partial(f, root=root) for f in DIRECTED] if directed else UNDIRECTED
    if not bool(possible(scores, root)):
        for function in functions:
            with pytest.raises(ValueError, match=NO_TREE):
                function(scores)
        return
    values = [assert_sane(function, scores) for function in functions]
    assert bool(((values[1] >= 0) & (values[1] <= 1 + 1e-5)).all())
    torch.testing.assert_close(values[1].sum(), torch.tensor(n - 1.0, dtype=recipe.dtype), rtol=1e-5, atol=1e-5)
    assert bool((values[1][scores == -torch.inf] == 0).all())
    assert 0 <= float(values[2]) <= math.log(16) + 1e-5


@pytest.mark.parametrize("impossible", [0.0, 0.3])
@pytest.mark.parametrize(("n", "root"), [(2, None), (3, None), (4, None), (5, None), (3, 0), (4, 3), (5, 1)])
def test_samples_follow_the_law(n, root, impossible):
    scores = of_full_support(Recipe(seed=7, impossible=impossible), 40, n, root)[:2]
    z = sample(scores, noise(20_000, 2, n, n, seed=n), root)
    trees = structures(n, root)
    for i in range(2):
        assert_law(z[:, i], totals(scores[i], trees), trees, comparisons=2)


def test_samples_where_a_random_walk_would_never_end():
    """Two nodes that prefer each other by 800 nats, one of them linked to the root a little better."""
    scores = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 800.0], [0.0, 800.0, 0.0]], dtype=torch.float64)
    z = sample_arborescence(scores, noise(20_000, 3, 3))
    trees = listed_directed(3, 0)
    assert_law(z, totals(scores, trees), trees)
    assert bool((arborescence_marginals(scores)[0, 1:] > 0.2).all())


@settings(max_examples=50)
@given(recipe=recipes(), n=st.integers(1, 5), directed=st.booleans())
def test_samples_of_difficult_scores_are_trees(recipe, n, directed):
    root = 0 if directed else None
    scores = recipe(3, n, n)
    scores = scores[possible(scores, root)]
    z = sample(scores, noise(4, *scores.shape, seed=1), root)
    if len(scores):
        assert_listed(z, structures(n, root))
        assert bool((score(scores, z, 2) > -torch.inf).all())


@pytest.mark.parametrize("impossible", [0.0, 0.3])
@pytest.mark.parametrize("root", [None, 2])
def test_gradients(root, impossible):
    scores = of_full_support(Recipe(seed=2, impossible=impossible), 40, 4, root)[0]
    open_ = scores > -torch.inf
    free = scores[open_].requires_grad_()

    def fill(values: Tensor) -> Tensor:
        return torch.full_like(scores, -torch.inf).masked_scatter(open_, values)

    for i in range(3):
        assert torch.autograd.gradcheck(lambda values, i=i: inference(fill(values), root)[i], free)
    assert torch.autograd.gradgradcheck(lambda values: inference(fill(values), root)[0], free)
    leaf = scores.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(inference(leaf, root)[0].sum(), leaf)
    torch.testing.assert_close(gradient, inference(scores, root)[1])


@pytest.mark.parametrize("grad", [False, True])
def test_marginals_are_the_same_without_gradients(grad):
    scores = Recipe()(3, 4, 4).requires_grad_()
    expected = totals(scores, listed(4)).softmax(-1) @ listed(4).flatten(1)
    with torch.set_grad_enabled(grad):
        marginals = spanning_tree_marginals(scores)
    torch.testing.assert_close(marginals.flatten(1), expected)
    assert marginals.requires_grad == grad


@pytest.mark.parametrize("root", [None, 1])
def test_what_is_not_read_does_not_matter(root):
    scores = Recipe()(2, 4, 4)
    unread = torch.ones(4, 4).tril().bool() if root is None else torch.eye(4).bool()
    if root is not None:
        unread[:, root] = True
    for garbage in (torch.nan, torch.inf, -torch.inf, 1e30):
        dirty = scores.masked_fill(unread, garbage).requires_grad_()
        for clean, other in zip(inference(scores, root), inference(dirty, root), strict=True):
            torch.testing.assert_close(other, clean)
            (gradient,) = torch.autograd.grad(other.sum(), dirty)
            assert bool(gradient.isfinite().all())
        gumbels = noise(2, 4, 4)
        assert torch.equal(sample(dirty, gumbels, root), sample(scores, gumbels, root))
        if root is None:
            for method in ("numba", "torch"):
                assert torch.equal(spanning_tree(dirty, method=method), spanning_tree(scores))
        else:
            assert torch.equal(arborescence(dirty, root=root), arborescence(scores, root=root))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", BATCHES)
def test_shapes(batch, dtype):
    scores = Recipe(dtype=dtype)(*batch, 4, 4).requires_grad_()
    for root in (None, 0, 3):
        z = sample(scores, noise(6, *batch, 4, 4), root)
        assert z.shape == (6, *batch, 4, 4)
        assert not z.requires_grad
        log_partition, marginals, entropy = inference(scores, root)
        assert log_partition.shape == entropy.shape == batch
        assert marginals.shape == scores.shape
        assert {r.dtype for r in (z, log_partition, marginals, entropy)} == {dtype}
    solved = [spanning_tree(scores, method="numba"), spanning_tree(scores, method="torch"), arborescence(scores)]
    for z in solved:
        assert z.shape == scores.shape
        assert z.dtype == dtype
        assert not z.requires_grad


def test_one_node_is_a_tree():
    scores = torch.zeros(2, 1, 1)
    for root in (None, 0):
        assert all(not bool(value.any()) for value in inference(scores, root))
        assert not bool(sample(scores, torch.zeros(2, 1, 1), root).any())
    assert not bool(spanning_tree(scores).any())
    assert not bool(arborescence(scores).any())


def test_without_the_check_impossible_problems_do_no_harm():
    scores = torch.full((2, 3, 3), -torch.inf)
    scores[1] = 0.0
    for z in (
        spanning_tree(scores, validate=False),
        arborescence(scores, validate=False),
        sample_spanning_tree(scores, torch.zeros(2, 3, 3), validate=False),
        sample_arborescence(scores, torch.zeros(2, 3, 3), validate=False),
    ):
        assert not bool(z[0].any())
        assert z[1].sum() == 2
    assert spanning_tree(scores, method="torch", validate=False)[1].sum() == 2
    for function in (spanning_tree_log_partition, arborescence_log_partition):
        assert function(scores, validate=False)[0] == -torch.inf
    nan = torch.full((3, 3), torch.nan)
    for function in (spanning_tree, arborescence, partial(sample_arborescence, noise=torch.zeros(3, 3))):
        assert function(nan, validate=False).shape == (3, 3)  # comes back, with something


def test_errors():
    with pytest.raises(ValueError, match=r"shape \(2, 3\)"):
        spanning_tree(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="0 to 2, got 3"):
        arborescence(torch.zeros(3, 3), root=3)
    with pytest.raises(ValueError, match="0 to 2, got -1"):
        enumerate_arborescences(3, root=-1)
    with pytest.raises(ValueError, match="1 to 8 nodes"):
        enumerate_spanning_trees(9)
    with pytest.raises(ValueError, match="method must be"):
        spanning_tree(torch.zeros(3, 3), method="kruskal")
    with pytest.raises(ValueError, match="NaN"):
        spanning_tree(torch.full((3, 3), torch.nan))
    with pytest.raises(ValueError, match=r"\+inf"):
        arborescence_marginals(torch.full((3, 3), torch.inf))
    with pytest.raises(ValueError, match="floating-point"):
        spanning_tree(torch.zeros(3, 3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"1 of 2 examples, first at index \(1,\)"):
        arborescence(torch.stack([torch.zeros(2, 2), torch.full((2, 2), -torch.inf)]))


def test_under_vmap():
    scores = Recipe()(3, 4, 4)
    for function in (*UNDIRECTED, *DIRECTED, partial(spanning_tree, method="torch")):
        torch.testing.assert_close(torch.func.vmap(function)(scores), function(scores))


@pytest.mark.parametrize("device", DEVICES[1:])
def test_on_the_gpu_and_in_a_graph(device):
    scores = Recipe()(50, 6, 6).to(device)
    for function in (*UNDIRECTED, *DIRECTED, partial(spanning_tree, method="torch")):
        unchecked = partial(function, validate=False)
        torch.testing.assert_close(unchecked(scores).cpu(), unchecked(scores.cpu()))
        torch.testing.assert_close(capture(unchecked, scores), unchecked(scores))


@pytest.mark.parametrize("device", DEVICES[1:])
def test_compiled_solvers_take_cuda_tensors(device):
    pytest.importorskip("numba")
    scores, gumbels = Recipe()(50, 6, 6).to(device), noise(50, 6, 6).to(device)
    assert torch.equal(arborescence(scores).cpu(), arborescence(scores.cpu()))
    assert torch.equal(sample_spanning_tree(scores, gumbels).cpu(), sample_spanning_tree(scores.cpu(), gumbels.cpu()))
