"""What the tests of the solvers share: difficult scores, brute force by listing, and the laws that follow from it."""

from collections.abc import Callable
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
import torch
from scipy import stats
from torch import Tensor

from problems import CHANCE

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]
BATCHES = [(), (0,), (1,), (3,), (2, 2), (2, 0)]
KINDS = ("normal", "integers", "zeros", "constant", "huge", "tiny", "mixed")


@dataclass(frozen=True)
class Recipe:
    """How to make scores of any shape; hypothesis draws these, and a failing one can be read."""

    kind: str = "normal"
    seed: int = 0
    impossible: float = 0.0
    dtype: torch.dtype = torch.float64

    def __call__(self, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        normal = torch.randn(shape, generator=generator, dtype=torch.float64)
        scale = {"huge": 1e30, "tiny": 1e-30}.get(self.kind, 2.0)
        scores = normal * scale
        if self.kind == "integers":
            scores = normal.round()
        elif self.kind == "zeros":
            scores = normal * (torch.rand(shape, generator=generator) < 0.3)
        elif self.kind == "constant":
            scores = torch.full_like(normal, 0.7)
        elif self.kind == "mixed":
            scores = normal * 10.0 ** torch.randint(-8, 9, shape, generator=generator)
        out = torch.rand(shape, generator=generator) < self.impossible
        return scores.masked_fill(out, -torch.inf).to(self.dtype)


def recipes() -> st.SearchStrategy[Recipe]:
    """Ties, zeros, huge and tiny values, whole numbers and fractions, with and without impossible parts."""
    return st.builds(
        Recipe,
        kind=st.sampled_from(KINDS),
        seed=st.integers(0, 2**32),
        impossible=st.sampled_from([0.0, 0.0, 0.2, 0.6]),
        dtype=st.sampled_from([torch.float32, torch.float64]),
    )


def totals(scores: Tensor, structures: Tensor) -> Tensor:
    """The score of every structure, ``[*batch, S]``: scores ``[*batch, *event]``, structures ``[S, *event]``."""
    dims = structures.dim() - 1
    spread = scores.unsqueeze(-1 - dims)
    return torch.where(structures > 0, spread, 0.0).flatten(-dims).sum(-1)


def score(scores: Tensor, z: Tensor, dims: int) -> Tensor:
    """The score of one structure for each example, ``[*batch]``."""
    return torch.where(z > 0, scores, 0.0).flatten(-dims).sum(-1)


def assert_listed(z: Tensor, structures: Tensor) -> Tensor:
    """Every z is one of the structures; returns which, ``[*batch]``."""
    dims = structures.dim() - 1
    flat, listed = z.detach().double().flatten(-dims), structures.double().flatten(1)
    assert bool(((flat == 0) | (flat == 1)).all())
    distance = flat.sum(-1, keepdim=True) + listed.sum(-1) - 2 * flat @ listed.T
    assert bool((distance.amin(-1) == 0).all()), "not a feasible structure"
    return distance.argmin(-1)


def assert_best(z: Tensor, scores: Tensor, structures: Tensor, precision: torch.dtype = torch.float64) -> None:
    """z is feasible, uses nothing impossible, and no structure scores more; exact but for rounding of sums."""
    assert z.dtype == scores.dtype
    assert z.shape == scores.shape
    assert not z.requires_grad
    if z.numel() == 0:
        return
    assert_listed(z, structures)
    dims = structures.dim() - 1
    scores = scores.double()
    found, best = score(scores, z, dims), totals(scores, structures).amax(-1)
    size = scores.masked_fill(scores == -torch.inf, 0.0).abs().flatten(-dims).amax(-1)
    room = 16 * scores.shape[-1] * torch.finfo(precision).eps * size
    assert bool((found >= best - room).all()), f"missed the optimum by up to {float((best - found).max())}"
    assert bool((found > -torch.inf).all())


def assert_inference(
    total: Tensor, structures: Tensor, log_partition: Tensor, marginals: Tensor, entropy: Tensor
) -> None:
    """Log partition, marginals and entropy are those of the listed law softmax(total), to 1e-9."""
    close = {"rtol": 1e-9, "atol": 1e-9}
    log_p = total.log_softmax(-1)
    p = log_p.exp()
    torch.testing.assert_close(log_partition, total.logsumexp(-1), **close)
    expected = (p @ structures.flatten(1)).reshape(*total.shape[:-1], *structures.shape[1:])
    torch.testing.assert_close(marginals, expected, **close)
    torch.testing.assert_close(entropy, -torch.where(p > 0, p * log_p, 0.0).sum(-1), **close)


def assert_law(z: Tensor, total: Tensor, structures: Tensor, comparisons: int = 1) -> None:
    """Chi-square test of draws z ``[N, *event]`` against softmax(total); rare structures are counted together."""
    index = assert_listed(z, structures)
    found = torch.bincount(index, minlength=len(structures)).double()
    expected = len(z) * total.double().softmax(-1)
    assert not bool(found[expected == 0].any()), "drew an impossible structure"
    common = expected >= 10
    cells = [found[common], found[~common].sum().reshape(1)], [expected[common], expected[~common].sum().reshape(1)]
    observed, wanted = (torch.cat(part) for part in cells)
    if wanted[-1] < 5:
        observed, wanted = observed[:-1], wanted[:-1]
    if len(wanted) > 1:
        wanted = wanted * observed.sum() / wanted.sum()
        assert stats.chisquare(observed.numpy(), wanted.numpy()).pvalue > CHANCE / comparisons


def assert_sane(function: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    """The value and the first and second derivatives hold no NaN and no infinity; returns the value."""
    leaf = scores.clone().requires_grad_()
    value = function(leaf)
    assert bool(value.isfinite().all())
    if not value.requires_grad:  # the same whatever the scores: there is one structure
        return value
    (gradient,) = torch.autograd.grad(value.sum(), leaf, create_graph=True)
    assert bool(gradient.isfinite().all())
    if gradient.requires_grad:
        (second,) = torch.autograd.grad(
            (gradient * torch.linspace(-1, 1, gradient.numel()).view_as(gradient)).sum(), leaf
        )
        assert bool(second.isfinite().all())
    return value.detach()


def capture(function: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    """Run a function on other scores through a CUDA graph that was captured with zeros."""
    static = torch.zeros_like(scores)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function(static)
    static.copy_(scores)
    graph.replay()
    torch.cuda.synchronize()
    return result.clone()


def share(slow: int, quick: int) -> list[object]:
    """Numbers of random instances: a quick share for every run, all of them for the slow run."""
    return [pytest.param(quick, id="quick"), pytest.param(slow, id="all", marks=pytest.mark.slow)]
