"""Pairwise problems of every kind that gives solvers trouble, and brute force to hold the solvers to."""

from collections.abc import Callable

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

KINDS = ("normal", "integers", "sparse", "huge", "tiny", "all scales", "exclusions", "impossible", "zeros", "balanced")
"""Of random problems; each holds something that a careless solver gets wrong."""


def make(kind: str, number: int, n: int, seed: int = 0, *, attractive: bool = False) -> tuple[Tensor, Tensor]:
    """Unary ``[number, n]`` and pairwise scores ``[number, n, n]`` in float64; attractive: none below zero."""
    g = np.random.default_rng([seed, n, KINDS.index(kind)])
    u, w = g.normal(size=(number, n)), g.normal(size=(number, n, n))
    if kind == "integers":  # many ties
        u, w = g.integers(-2, 3, size=u.shape) * 1.0, g.integers(-2, 3, size=w.shape) * 1.0
    elif kind == "sparse":
        w *= g.random(w.shape) < 0.25
    elif kind in ("huge", "tiny"):
        scale = 1e30 if kind == "huge" else 1e-30
        u, w = u * scale, w * scale
    elif kind == "all scales":
        u, w = u * 10 ** g.uniform(-8, 8, u.shape), w * 10 ** g.uniform(-8, 8, w.shape)
    elif kind == "exclusions":
        w = np.where(g.random(w.shape) < 0.3, -1e30, w)
    elif kind == "impossible":
        u = np.where(g.random(u.shape) < 0.4, -np.inf, u)
    elif kind == "zeros":
        u, w = u * (g.random(u.shape) < 0.5), w * (g.random(w.shape) < 0.5)
    if attractive:
        w = np.abs(w)
    if kind == "balanced" or (attractive and kind in ("normal", "integers", "huge", "tiny", "sparse")):
        # As much is taken from each bit as it can expect from the others, so that no bit is easy.
        upper = np.triu(w, 1)
        # Attractive bits would still all be equal, if their own scores were not spread about as widely.
        u = u * (np.ceil(0.3 * n) if attractive else 1.0) - (upper.sum(1) + upper.sum(2)) / 2
    # What is below the diagonal must not be read.
    return torch.from_numpy(u), torch.from_numpy(np.triu(w, 1) + np.tril(np.full((n, n), np.nan)))


def numbers() -> st.SearchStrategy[float]:
    """Zeros, small whole numbers, and floats from tiny to huge."""
    return st.one_of(
        st.just(0.0),
        st.integers(-3, 3).map(float),
        st.floats(-10, 10, width=32),
        st.builds(lambda sign, power: sign * 10.0**power, st.sampled_from([-1.0, 1.0]), st.integers(-30, 30)),
    )


@st.composite
def problems(draw: st.DrawFn, *, attractive: bool = False, bits: int = 6) -> tuple[Tensor, Tensor]:
    """One to three problems of one to six bits."""
    n, number = draw(st.integers(1, bits)), draw(st.integers(1, 3))
    unary = draw(st.lists(st.one_of(numbers(), st.just(-np.inf)), min_size=number * n, max_size=number * n))
    pairwise = draw(st.lists(numbers(), min_size=number * n * n, max_size=number * n * n))
    w = torch.tensor(pairwise, dtype=torch.float64).reshape(number, n, n)
    return torch.tensor(unary, dtype=torch.float64).reshape(number, n), w.abs() if attractive else w


def all_bits(n: int) -> Tensor:
    """``[2^n, n]``, in float64, the last bit changing fastest."""
    return torch.from_numpy((np.arange(2**n)[:, None] >> np.arange(n)[::-1] & 1).astype(np.float64))


def score(unary: Tensor, pairwise: Tensor, z: Tensor) -> Tensor:
    """The score of z ``[*batch, n]`` by its definition, in float64."""
    u, w, z = unary.double(), pairwise.double().triu(1), z.double()
    pairs = torch.where(z[..., :, None] * z[..., None, :] > 0, w, 0.0)
    return torch.where(z > 0, u, 0.0).sum(-1) + pairs.sum((-1, -2))


def brute_force(unary: Tensor, pairwise: Tensor) -> Tensor:
    """The optimum of each problem, ``[number]``."""
    some = [score(unary, pairwise, z[:, None, :]).amax(0) for z in all_bits(unary.shape[-1]).split(64)]
    return torch.stack(some).amax(0)


def size(unary: Tensor, pairwise: Tensor) -> Tensor:
    """The sum of the positive scores, to which rounding is relative: huge negative ones must not blur the optimum."""
    return unary.double().clamp_min(0).sum(-1) + pairwise.double().triu(1).clamp_min(0).sum((-1, -2))


def assert_optimal(
    solve: Callable[[Tensor, Tensor], Tensor], unary: Tensor, pairwise: Tensor, rounding: float = 1e-12
) -> None:
    """The solver returns bits, and their score is that of brute force."""
    z = solve(unary, pairwise)
    assert z.shape == unary.shape
    assert z.dtype == unary.dtype
    assert bool(((z == 0) | (z == 1)).all())
    missing = brute_force(unary, pairwise) - score(unary, pairwise, z)
    assert bool((missing <= rounding * size(unary, pairwise)).all()), f"{missing.max()} below the optimum"
