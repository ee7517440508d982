"""BlackboxDifferentiation: the formula on every structure, and its place beside Direct."""

import pytest
import torch
from torch import Tensor

from argrad import (
    Bits,
    BlackboxDifferentiation,
    Categorical,
    Chain,
    Direct,
    PairwiseBits,
    Permutation,
    SpanningTree,
    Subset,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LATENTS = {
    "categorical": lambda: (Categorical, (normal(3, 5),)),
    "bits": lambda: (Bits, (normal(3, 5),)),
    "subset": lambda: (lambda scores: Subset(scores, size=2), (normal(3, 5),)),
    "permutation": lambda: (Permutation, (normal(2, 3, 4, 4),)),
    "tree": lambda: (SpanningTree, (normal(3, 4, 4),)),
    "pairwise bits": lambda: (PairwiseBits, (normal(3, 5), normal(5, 5, seed=1))),
    "chain": lambda: (Chain, (normal(3, 4, 3), normal(3, 3, seed=1))),
}


@pytest.mark.parametrize("kind", LATENTS)
def test_formula(kind):
    build, parameters = LATENTS[kind]()
    leaves = [parameter.clone().requires_grad_() for parameter in parameters]
    latent = build(*leaves)
    weights, event = normal(*latent.event_shape, seed=5), tuple(range(-latent.event_dims, 0))

    def cost(z: Tensor) -> Tensor:
        return ((z * weights).sum(event) - 0.3).square()

    value = BlackboxDifferentiation(3.0)(latent, cost)
    value.sum().backward()
    z = latent.mode().requires_grad_()
    (slope,) = torch.autograd.grad(cost(z).sum(), z)
    moved = latent.solve(latent.scores.detach() - 3.0 * slope)
    torch.testing.assert_close(value.detach(), cost(z).detach())
    torch.testing.assert_close(leaves[0].grad, ((z - moved) / 3.0).detach())
    assert leaves[0].grad.any()
    if len(leaves) > 1:
        again = [parameter.clone().requires_grad_() for parameter in parameters]
        there = build(*again)
        ((there.score(z.detach()) - there.score(moved)) / 3.0).sum().backward()
        torch.testing.assert_close(leaves[1].grad, again[1].grad)


def test_it_is_direct_without_noise():
    found = []
    for estimator in (BlackboxDifferentiation(0.7), Direct(0.7, noise=False, changes="gradient")):
        scores = normal(6, 4).requires_grad_()
        estimator(Bits(scores), lambda z: z.cumsum(-1).square().sum(-1)).sum().backward()
        found.append(scores.grad)
    torch.testing.assert_close(*found)
    assert found[0].any()


def test_too_small_a_step_gives_no_gradient():
    scores = normal(6, 4).requires_grad_()
    BlackboxDifferentiation(1e-6)(Subset(scores, 2), lambda z: z.cumsum(-1).square().sum(-1)).sum().backward()
    assert not scores.grad.any()


def test_the_cost_gets_its_gradient_once_and_nothing_is_random():
    theta, scores = torch.tensor(2.0, requires_grad=True), torch.zeros(3, 4, requires_grad=True)
    value = BlackboxDifferentiation()(Subset(scores, 2), lambda z: theta * z.square().sum(-1))
    value.sum().backward()
    assert theta.grad == 6
    with pytest.raises(ValueError, match="uses no noise"):
        BlackboxDifferentiation()(Subset(scores, 2), lambda z: z.sum(-1), noise=torch.zeros(3, 4))


def test_impossible_items():
    scores = normal(3, 5)
    scores[:, 2] = -torch.inf
    scores.requires_grad_()
    BlackboxDifferentiation(100.0)(Subset(scores, 2), lambda z: (z * normal(5, seed=3)).sum(-1)).sum().backward()
    assert scores.grad.isfinite().all()
    assert scores.grad.any()
    assert (scores.grad[:, 2] == 0).all()


@pytest.mark.parametrize("interpolation", [0, -1, float("nan")])
def test_wrong_settings(interpolation):
    with pytest.raises(ValueError, match="interpolation must be a positive finite number"):
        BlackboxDifferentiation(interpolation)
