"""Chains: Viterbi against listing, and forward-backward inference."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from argrad.noise import gumbel
from argrad.solvers.chain import (
    chain_entropy,
    chain_log_partition,
    chain_marginals,
    chain_pair_marginals,
    chain_score,
    enumerate_chains,
    sample_chain,
    viterbi,
)
from structures import (
    BATCHES,
    DEVICES,
    Recipe,
    assert_inference,
    assert_law,
    assert_listed,
    assert_sane,
    capture,
    recipes,
    share,
)

SIZES = [(1, 1), (1, 3), (2, 2), (4, 3), (6, 2)]
INFERENCE = [chain_log_partition, chain_marginals, chain_entropy]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return gumbel(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def listed(n: int, k: int) -> Tensor:
    """Every sequence, one-hot, made without the code under test."""
    rows = [[[float(v == x) for v in range(k)] for x in path] for path in itertools.product(range(k), repeat=n)]
    return torch.tensor(rows, dtype=torch.float64)


def totals(unary: Tensor, transition: Tensor) -> Tensor:
    """The score of every sequence, ``[*batch, k^n]``, by adding up entries."""
    n, k = unary.shape[-2:]
    transition = transition.expand(*unary.shape[:-2], n - 1, k, k)
    paths = itertools.product(range(k), repeat=n)
    return torch.stack(
        [
            sum((unary[..., t, x] for t, x in enumerate(path)), start=unary.new_zeros(()))
            + sum((transition[..., t, path[t], path[t + 1]] for t in range(n - 1)), start=unary.new_zeros(()))
            for path in paths
        ],
        -1,
    )


def chain(recipe: Recipe, batch: tuple[int, ...], n: int, k: int, shared: bool = False) -> tuple[Tensor, Tensor]:
    other = Recipe(recipe.kind, recipe.seed + 1, recipe.impossible, recipe.dtype)
    return recipe(*batch, n, k), other(k, k) if shared else other(*batch, n - 1, k, k)


def assert_best(z: Tensor, unary: Tensor, transition: Tensor) -> None:
    assert z.shape == unary.shape
    assert z.dtype == unary.dtype
    if z.numel() == 0:
        return
    total = totals(unary.double(), transition.double())
    found = total.gather(-1, assert_listed(z, listed(*unary.shape[-2:])).unsqueeze(-1)).squeeze(-1)
    size = max(float(s[s > -torch.inf].abs().max()) if bool((s > -torch.inf).any()) else 0 for s in (unary, transition))
    room = 16 * unary.shape[-2] * torch.finfo(unary.dtype).eps * size
    assert bool((found >= total.amax(-1) - room).all())
    assert bool((found > -torch.inf).all())


@pytest.mark.parametrize("count", share(slow=2500, quick=100))
@pytest.mark.parametrize(("n", "k"), [(2, 5), (4, 3), (7, 2)])
@pytest.mark.parametrize("kind", ["normal", "integers"])
def test_viterbi_is_the_best_sequence(n, k, kind, count):
    unary, transition = chain(Recipe(kind, seed=n), (count,), n, k)
    assert_best(viterbi(unary, transition), unary, transition)


@given(
    recipe=recipes(),
    n=st.integers(1, 4),
    k=st.integers(1, 4),
    batch=st.sampled_from(BATCHES),
    shared=st.booleans(),
)
def test_viterbi_is_the_best_sequence_of_difficult_scores(recipe, n, k, batch, shared):
    unary, transition = chain(recipe, batch, n, k, shared and n > 1)
    if not bool((totals(unary, transition).amax(-1) > -torch.inf).all()):
        with pytest.raises(ValueError, match="at least one sequence"):
            viterbi(unary, transition)
    else:
        assert_best(viterbi(unary, transition), unary, transition)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_lists_every_sequence(n, k):
    assert torch.equal(enumerate_chains(n, k, dtype=torch.float64), listed(n, k))


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_score(n, k):
    unary, transition = chain(Recipe(impossible=0.2), (3,), n, k)
    z = enumerate_chains(n, k, dtype=torch.float64).unsqueeze(1).expand(-1, 3, -1, -1)
    torch.testing.assert_close(chain_score(unary, transition, z).T, totals(unary, transition))
    leaf = unary.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(chain_score(leaf, transition, z[0]).sum(), leaf)
    torch.testing.assert_close(gradient, z[0])


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("impossible", [0.0, 0.2])
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_inference_equals_enumeration(n, k, impossible, shared):
    unary, transition = chain(Recipe(seed=6, impossible=impossible), (40,), n, k, shared)
    keep = totals(unary, transition).amax(-1) > -torch.inf
    assert int(keep.sum()) >= 5
    unary, transition = unary[keep], transition if shared else transition[keep]
    total, structures = totals(unary, transition), listed(n, k)
    assert_inference(total, structures, *[f(unary, transition) for f in INFERENCE])
    pairs = (structures[:, :-1, :, None] * structures[:, 1:, None, :]).flatten(1)
    expected = (total.softmax(-1) @ pairs).reshape(len(total), n - 1, k, k)
    torch.testing.assert_close(chain_pair_marginals(unary, transition), expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=40)
@given(recipe=recipes(), n=st.integers(1, 4), k=st.integers(1, 3))
def test_inference_survives_difficult_scores(recipe, n, k):
    unary, transition = chain(recipe, (), n, k)
    if not bool(totals(unary, transition).amax(-1) > -torch.inf):
        for function in INFERENCE:
            with pytest.raises(ValueError, match="at least one sequence"):
                function(unary, transition)
        return
    for function in INFERENCE:
        assert_sane(lambda u, f=function: f(u, transition), unary)
        if n > 1:
            assert_sane(lambda a, f=function: f(unary, a), transition)
    marginals = chain_marginals(unary, transition)
    torch.testing.assert_close(marginals.sum(-1), torch.ones(n, dtype=recipe.dtype), rtol=1e-5, atol=1e-5)
    assert bool((marginals[unary == -torch.inf] == 0).all())


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("impossible", [0.0, 0.2])
@pytest.mark.parametrize(("n", "k"), [(1, 4), (3, 3), (5, 2)])
def test_samples_follow_the_law(n, k, impossible, shared):
    unary, transition = chain(Recipe(seed=11, impossible=impossible), (2,), n, k, shared)
    z = sample_chain(unary, transition, noise(20_000, 2, n, k, seed=n))
    total, structures = totals(unary, transition), listed(n, k)
    for i in range(2):
        assert_law(z[:, i], total[i], structures, comparisons=2)


@pytest.mark.parametrize("impossible", [0.0, 0.25])
def test_gradients(impossible):
    unary, transition = chain(Recipe(seed=2, impossible=impossible), (2,), 3, 3)
    open_unary, open_transition = unary > -torch.inf, transition > -torch.inf

    def fill(values: Tensor, possible: Tensor) -> Tensor:
        return torch.full(possible.shape, -torch.inf, dtype=torch.float64).masked_scatter(possible, values)

    free = unary[open_unary].requires_grad_(), transition[open_transition].requires_grad_()
    for function in (*INFERENCE, chain_pair_marginals):
        assert torch.autograd.gradcheck(
            lambda u, a, f=function: f(fill(u, open_unary), fill(a, open_transition)),
            free,
        )
    leaves = unary.clone().requires_grad_(), transition.clone().requires_grad_()
    gradients = torch.autograd.grad(chain_log_partition(*leaves).sum(), leaves)
    torch.testing.assert_close(gradients[0], chain_marginals(unary, transition))
    torch.testing.assert_close(gradients[1], chain_pair_marginals(unary, transition))


def test_second_derivatives():
    unary, transition = chain(Recipe(seed=2), (), 3, 2)
    leaves = unary.requires_grad_(), transition.requires_grad_()
    assert torch.autograd.gradgradcheck(chain_log_partition, leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", BATCHES)
def test_shapes(batch, dtype):
    unary, transition = chain(Recipe(dtype=dtype), batch, 4, 3)
    unary.requires_grad_()
    z = sample_chain(unary, transition, noise(6, *batch, 4, 3))
    assert z.shape == (6, *batch, 4, 3)
    assert viterbi(unary, transition).shape == chain_marginals(unary, transition).shape == unary.shape
    assert chain_log_partition(unary, transition).shape == chain_entropy(unary, transition).shape == batch
    assert chain_pair_marginals(unary, transition).shape == (*batch, 3, 3, 3)
    assert not viterbi(unary, transition).requires_grad
    assert not z.requires_grad
    for result in (z, viterbi(unary, transition), *[f(unary, transition) for f in INFERENCE]):
        assert result.dtype == dtype


@pytest.mark.parametrize("shape", [(3, 3), (1, 3, 3), (4, 3, 3), (2, 1, 3, 3), (1, 4, 3, 3)])
def test_transitions_broadcast(shape):
    unary, transition = Recipe()(2, 5, 3), Recipe(seed=1)(*shape)
    full = transition.expand(2, 4, 3, 3)
    torch.testing.assert_close(chain_log_partition(unary, transition), chain_log_partition(unary, full))
    assert torch.equal(viterbi(unary, transition), viterbi(unary, full))
    torch.testing.assert_close(chain_pair_marginals(unary, transition), chain_pair_marginals(unary, full))


@pytest.mark.parametrize("shape", [(3, 3), (0, 3, 3), (1, 3, 3), (2, 0, 3, 3)])
def test_a_chain_of_one_position_has_no_steps(shape):
    unary, transition = Recipe()(2, 1, 3), torch.zeros(shape, dtype=torch.float64)
    torch.testing.assert_close(chain_marginals(unary, transition), unary.softmax(-1))
    assert torch.equal(viterbi(unary, transition).argmax(-1), unary.argmax(-1))
    assert chain_pair_marginals(unary, transition).shape == (2, 0, 3, 3)


def test_a_long_chain_in_float32():
    unary, transition = chain(Recipe(dtype=torch.float32), (2,), 500, 4)
    for function in (chain_marginals, chain_pair_marginals):
        exact = function(unary.double(), transition.double())
        torch.testing.assert_close(function(unary, transition).double(), exact, rtol=1e-3, atol=1e-3)


def test_errors():
    unary, transition = torch.zeros(2, 4, 3), torch.zeros(3, 3)
    with pytest.raises(ValueError, match=r"\[3, 3\] or \[\*batch, 3, 3, 3\], not \(2, 2\)"):
        viterbi(unary, torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"not \(2, 3, 3\)"):
        chain_marginals(unary, torch.zeros(2, 3, 3))
    with pytest.raises(ValueError, match=r"not \(3,\)"):
        chain_marginals(unary, torch.zeros(3))
    with pytest.raises(ValueError, match="NaN"):
        viterbi(unary.fill_(torch.nan), transition)
    with pytest.raises(ValueError, match="NaN"):
        viterbi(torch.zeros(4, 3), torch.full((3, 3), torch.nan))
    with pytest.raises(ValueError, match="floating-point"):
        viterbi(torch.zeros(4, 3), torch.zeros(3, 3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        viterbi(torch.zeros(3), transition)
    with pytest.raises(ValueError, match="more than"):
        enumerate_chains(30, 3)
    closed = torch.full((3, 3), -torch.inf)
    assert bool((chain_log_partition(torch.zeros(4, 3), closed, validate=False) == -torch.inf).all())


def test_under_vmap():
    unary, transition = chain(Recipe(), (4,), 5, 3)
    for function in (*INFERENCE, chain_pair_marginals, viterbi):
        torch.testing.assert_close(torch.func.vmap(function)(unary, transition), function(unary, transition))


@pytest.mark.parametrize("device", DEVICES[1:])
def test_on_the_gpu_and_in_a_graph(device):
    unary, transition = (scores.to(device) for scores in chain(Recipe(), (50,), 6, 4))
    gumbels = noise(50, 6, 4).to(device)
    functions = [
        lambda u, f=f: f(u, transition.to(u.device), validate=False)
        for f in (*INFERENCE, chain_pair_marginals, viterbi)
    ]
    functions.append(lambda u: sample_chain(u, transition.to(u.device), gumbels.to(u.device), validate=False))
    for function in functions:
        torch.testing.assert_close(function(unary).cpu(), function(unary.cpu()))
        torch.testing.assert_close(capture(function, unary), function(unary))
