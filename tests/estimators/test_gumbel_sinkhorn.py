"""GumbelSinkhorn: doubly stochastic matrices, their limits, and the two ways to use them."""

import pytest
import torch
from torch import Tensor

from argrad import Categorical, GumbelSinkhorn, Permutation
from argrad.estimators.gumbel_sinkhorn import sinkhorn
from problems import assert_mean


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_doubly_stochastic():
    y = sinkhorn(normal(2, 3, 5, 5), 0.7, iterations=200)
    assert (y > 0).all()
    torch.testing.assert_close(y.sum(-1), torch.ones_like(y[..., 0]))
    torch.testing.assert_close(y.sum(-2), torch.ones_like(y[..., 0]), rtol=0, atol=1e-6)


def test_rows_and_columns_of_the_scores_do_not_matter():
    scores = normal(5, 5)
    shifted = scores + normal(5, 1, seed=1) + normal(1, 5, seed=2)
    first, second = (sinkhorn(h, 0.7, iterations=300) for h in (scores, shifted))
    torch.testing.assert_close(first, second, rtol=0, atol=1e-6)


def test_low_temperature_is_the_matching_and_high_temperature_is_uniform():
    scores = normal(20, 4, 4)
    hard = sinkhorn(scores, 0.005, iterations=2000)
    assert torch.equal(hard.round(), Permutation(scores).mode())
    assert (hard - hard.round()).abs().mean() < 0.01
    soft = sinkhorn(scores, 1e4)
    torch.testing.assert_close(soft, torch.full_like(soft, 0.25), rtol=0, atol=1e-3)


def test_two_by_two_in_closed_form():
    scores = normal(50, 2, 2)
    odds = scores[:, 0, 0] + scores[:, 1, 1] - scores[:, 0, 1] - scores[:, 1, 0]
    y = sinkhorn(scores, 0.6, iterations=300)
    torch.testing.assert_close(y[:, 0, 0], (odds / (2 * 0.6)).sigmoid())


def test_soft_form_on_fixed_noise():
    scores = normal(3, 4, 4).requires_grad_()
    estimator = GumbelSinkhorn(0.5, iterations=30)
    noise = estimator.draw_noise(Permutation(scores), generator=torch.Generator().manual_seed(0))
    weights = normal(4, 4, seed=1)
    value = estimator(Permutation(scores), lambda z: (z * weights).sum((-1, -2)).square(), noise=noise)
    (found,) = torch.autograd.grad(value.sum(), scores)
    # By hand: plain row and column normalisation of the exponentials, columns first.
    leaf = scores.detach().clone().requires_grad_()
    y = ((leaf + noise) / 0.5).exp()
    for _ in range(30):
        y = y / y.sum(-2, keepdim=True)
        y = y / y.sum(-1, keepdim=True)
    expected = (y * weights).sum((-1, -2)).square()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(found, torch.autograd.grad(expected.sum(), leaf)[0])


def test_straight_through_has_the_value_of_the_matching_and_the_slope_of_the_relaxation():
    scores = normal(3, 4, 4).requires_grad_()
    latent, weights = Permutation(scores, law="perturb"), normal(4, 4, seed=1)
    noise = latent.draw_noise(generator=torch.Generator().manual_seed(0))
    value = GumbelSinkhorn(straight_through=True)(latent, lambda z: (z * weights).sum((-1, -2)), noise=noise)
    soft = GumbelSinkhorn()(latent, lambda z: (z * weights).sum((-1, -2)), noise=noise)
    torch.testing.assert_close(value, (latent.sample(noise=noise) * weights).sum((-1, -2)))
    found = [torch.autograd.grad(each.sum(), scores)[0] for each in (value, soft)]
    torch.testing.assert_close(*found)  # the cost is linear, so the slopes agree


def test_straight_through_trains_the_cost_at_samples():
    """Value and gradient of the cost's own parameters against samples of the law "perturb"."""
    latent = Permutation(normal(3, 3), law="perturb")
    theta = torch.ones(20_000, dtype=torch.float64, requires_grad=True)
    weights = normal(3, 3, seed=1)
    value = GumbelSinkhorn(straight_through=True)(
        latent.expand(20_000),
        lambda z: theta * (z * weights).sum((-1, -2)).square(),
        generator=torch.Generator().manual_seed(0),
    )
    value.sum().backward()
    samples = (latent.sample((200_000,), generator=torch.Generator().manual_seed(1)) * weights).sum((-1, -2)).square()
    error = samples.std() / 200_000**0.5
    assert error < 0.35 * value.std() / 20_000**0.5
    assert_mean(value.detach(), samples.mean(), comparisons=2)
    assert_mean(theta.grad, samples.mean(), comparisons=2)


def test_impossible_pairs():
    scores = normal(2, 3, 3)
    scores[:, 0, 1] = -torch.inf
    scores.requires_grad_()
    for straight_through in (False, True):
        value = GumbelSinkhorn(straight_through=straight_through)(Permutation(scores), lambda z: z[..., 0, 0].square())
        (found,) = torch.autograd.grad(value.sum(), scores)
        assert found.isfinite().all()
        assert (found[:, 0, 1] == 0).all()
    assert (sinkhorn(scores.detach(), 0.5)[:, 0, 1] == 0).all()


@pytest.mark.parametrize("batch", [(), (0,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_batch_shapes_and_precisions(batch, dtype):
    scores = torch.zeros(*batch, 3, 3, dtype=dtype, requires_grad=True)
    value = GumbelSinkhorn()(Permutation(scores), lambda z: z[..., 0, 0].square())
    assert value.shape == batch
    assert value.dtype == dtype
    value.sum().backward()
    assert scores.grad.isfinite().all()


def test_compiles_and_maps():
    estimator, scores = GumbelSinkhorn(), normal(2, 3, 3)
    noise = estimator.draw_noise(Permutation(scores))

    def loss(scores: Tensor, noise: Tensor) -> Tensor:
        return estimator(Permutation(scores, validate=False), lambda z: z[..., 0, 0].square(), noise=noise).sum()

    plain = torch.func.grad(loss)(scores, noise)
    many = torch.vmap(torch.func.grad(loss), in_dims=(0, None))(scores.expand(3, 2, 3, 3), noise)
    torch.testing.assert_close(many, plain.expand(3, 2, 3, 3))


def test_other_latents_are_refused_with_what_works():
    with pytest.raises(ValueError, match=r"GumbelSinkhorn does not support Categorical.*these do: .*Direct"):
        GumbelSinkhorn()(Categorical(torch.zeros(2, 3)), lambda z: z[..., 0])


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"iterations": 0}])
def test_wrong_settings(settings):
    with pytest.raises(ValueError, match=r"positive finite number|iterations >= 1"):
        GumbelSinkhorn(**settings)
