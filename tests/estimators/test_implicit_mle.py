"""ImplicitMLE: its formula, its noise, how λ adapts, and what it is a special case of."""

import pytest
import torch
from torch import Tensor

from argrad import Bits, Categorical, Chain, Direct, ImplicitMLE, PairwiseBits, Permutation, SpanningTree, Subset
from argrad.estimators.implicit_mle import sum_of_gamma
from argrad.noise import gumbel
from problems import assert_mean, draws, make

LATENTS = {
    "categorical": lambda scores: Categorical(scores),
    "bits": lambda scores: Bits(scores),
    "subset": lambda scores: Subset(scores, size=2, law="perturb"),
    "subset, gibbs": lambda scores: Subset(scores, size=2),
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def square(z: Tensor) -> Tensor:
    return ((z * normal(z.shape[-1], seed=9)).sum(-1) - 0.3).square()


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("kind", LATENTS)
def test_formula_on_fixed_noise(kind, two_sided):
    scores = normal(3, 5).requires_grad_()
    latent = LATENTS[kind](scores)
    estimator = ImplicitMLE(2.5, samples=4, temperature=0.7, two_sided=two_sided)
    noise = estimator.draw_noise(latent, generator=torch.Generator().manual_seed(1))
    value = estimator(latent, square, noise=noise)
    value.sum().backward()
    perturbed = scores.detach() + 0.7 * noise
    z = latent.solve(perturbed).requires_grad_()
    costs = square(z)
    (slope,) = torch.autograd.grad(costs.sum(), z)
    ahead = latent.solve(perturbed - 2.5 * slope)
    behind = latent.solve(perturbed + 2.5 * slope) if two_sided else z
    torch.testing.assert_close(value, costs.mean(0))
    torch.testing.assert_close(scores.grad, ((behind - ahead) / (5.0 if two_sided else 2.5)).mean(0).detach())
    assert scores.grad.any()


@pytest.mark.parametrize("name", ["categorical", "categoricals", "bits"])
@pytest.mark.parametrize("two_sided", [False, True])
def test_with_the_latents_noise_it_is_direct_with_the_gradient(name, two_sided):
    problem = make(name)
    found = [
        draws(estimator, problem, 200, seed=3)
        for estimator in (
            ImplicitMLE(0.8, two_sided=two_sided),
            Direct(0.8, changes="gradient", two_sided=two_sided),
        )
    ]
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first, second)


@pytest.mark.parametrize("name", ["categorical", "bits"])
def test_small_strength_is_unbiased_for_a_linear_cost(name):
    """λ → 0: the bias is of order λ, far below the error of this many draws."""
    latent = make(name).latent
    weights = normal(*latent.event_shape, seed=2)
    scores = latent.scores.expand(100_000, *latent.scores.shape).clone().requires_grad_()
    estimator = ImplicitMLE(0.02, two_sided=True)
    estimator(latent.with_scores(scores), lambda z: (z * weights).sum(-1)).sum().backward()
    assert_mean(scores.grad, latent.gradient_of_mean(weights.expand_as(latent.scores)))


def test_gradients_reach_pairwise_and_transition_scores():
    for build, shapes in ((PairwiseBits, ((2, 4), (4, 4))), (Chain, ((2, 3, 4), (4, 4)))):
        for law in ("perturb", "gibbs"):
            first, second = (normal(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes))
            event = len(shapes[0]) - 1
            ImplicitMLE(20.0, samples=8)(
                build(first, second, law=law), lambda z, event=event: z.flatten(-event).cumsum(-1).square().sum(-1)
            ).sum().backward()
            assert first.grad.any()
            assert second.grad.any()


def test_the_cost_gets_its_gradient_once():
    theta, scores = torch.tensor(2.0, requires_grad=True), torch.zeros(3, 4, requires_grad=True)
    ImplicitMLE(samples=5)(Subset(scores, 2), lambda z: theta * (1 + 0 * z.sum(-1))).sum().backward()
    torch.testing.assert_close(theta.grad, torch.tensor(3.0))


def test_sum_of_gamma_adds_up_to_a_gumbel():
    """Mean and variance of κ copies: γ − ψ(…) and π²/6 less what the truncation at s terms leaves out."""
    for ones in (1, 4):
        noise = sum_of_gamma(
            (ones, 30_000), ones, terms=30, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        )
        total = noise.sum(0)
        terms = torch.arange(1, 31, dtype=torch.float64)
        mean, variance = (1 / terms).sum() - torch.tensor(30.0).log(), (1 / terms.square()).sum()
        assert_mean(total, mean.double(), comparisons=4)
        assert_mean((total - mean).square(), variance, comparisons=4)
        other = gumbel((30_000,), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        quantiles = torch.linspace(0.05, 0.95, 10, dtype=torch.float64)
        torch.testing.assert_close(total.quantile(quantiles), other.quantile(quantiles), rtol=0, atol=0.1)


def test_sum_of_gamma_counts_the_ones_of_the_latent():
    estimator = ImplicitMLE(noise="sum-of-gamma", terms=5)
    for latent, ones in (
        (Subset(torch.zeros(6), size=3), 3),
        (Permutation(torch.zeros(4, 4)), 4),
        (SpanningTree(torch.zeros(5, 5)), 4),
        (Chain(torch.zeros(3, 2), torch.zeros(2, 2)), 3),
        (Categorical(torch.zeros(3, 4), event_dims=2), 1),
    ):
        drawn = estimator.draw_noise(latent, generator=torch.Generator().manual_seed(0))
        expected = sum_of_gamma((1, *latent.scores.shape), ones, terms=5, generator=torch.Generator().manual_seed(0))
        assert torch.equal(drawn, expected)
    with pytest.raises(ValueError, match=r"do not all have the same number of ones; say ImplicitMLE\(ones=…\)"):
        estimator(Bits(torch.zeros(3, requires_grad=True)), lambda z: z[..., 0])


def test_automatic_strength_is_that_of_the_paper():
    scores = normal(2, 6).requires_grad_()
    latent = Subset(scores, size=2, law="perturb")
    estimator = ImplicitMLE("auto").eval()
    estimator.reach.fill_(0.5)
    noise = estimator.draw_noise(latent, generator=torch.Generator().manual_seed(2))
    estimator(latent, square, noise=noise).sum().backward()
    perturbed = scores.detach() + noise[0]
    z = latent.solve(perturbed).requires_grad_()
    (slope,) = torch.autograd.grad(square(z).sum(), z)
    strength = 0.5 * perturbed.norm(dim=-1) / slope.norm(dim=-1)
    ahead = latent.solve(perturbed - strength.unsqueeze(-1) * slope)
    torch.testing.assert_close(scores.grad, (z.detach() - ahead) / strength.unsqueeze(-1))


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_automatic_strength_brings_about_the_moves_it_aims_at(scale):
    """Whatever the scale of the cost, on average about one entry of an example's gradient differs from zero."""
    latent = Subset(normal(50, 8), size=2, law="perturb")
    estimator = ImplicitMLE("auto", adaptation_step=0.02)
    generator = torch.Generator().manual_seed(0)
    moved = []
    for _ in range(300):
        scores = latent.scores.clone().requires_grad_()
        estimator(latent.with_scores(scores), lambda z: scale * square(z), generator=generator).sum().backward()
        moved.append((scores.grad != 0).double().sum(-1).mean())
    assert torch.stack(moved[-100:]).mean() == pytest.approx(1.0, abs=0.25)
    reach = estimator.reach.clone()
    estimator.eval()(latent.with_scores(scores), square)
    assert torch.equal(estimator.reach, reach)


def test_scores_at_zero_and_flat_costs_bring_no_nan(generator):
    scores = torch.zeros(100, 5, requires_grad=True)
    estimator = ImplicitMLE("auto")
    estimator(Subset(scores, size=2), lambda z: z[..., 0].square(), generator=generator).sum().backward()
    assert scores.grad.any()
    scores.grad = None
    estimator(Subset(scores, size=2), lambda z: 0 * z.sum(-1), generator=generator).sum().backward()
    assert (scores.grad == 0).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strength": 0}, "strength must be a positive"),
        ({"strength": "big"}, 'a positive number or "auto"'),
        ({"samples": 0}, "samples >= 1"),
        ({"noise": "gauss"}, '"latent" or "sum-of-gamma"'),
        ({"ones": 0}, "ones >= 1"),
        ({"temperature": -1}, "temperature must be a positive"),
        ({"target_moves": 0}, "must be positive"),
    ],
)
def test_wrong_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        ImplicitMLE(**settings)


def test_a_black_box_is_refused():
    with pytest.raises(ValueError, match="differentiable in z; Direct and Reinforce do not"):
        ImplicitMLE()(Bits(torch.zeros(3, requires_grad=True)), lambda z: z.detach().sum(-1))
