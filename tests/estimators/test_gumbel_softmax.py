"""Gumbel-softmax against torch's own, and its bias."""

import pytest
import torch

from argrad import Bits, Categorical, GumbelSoftmax
from problems import draws, make


@pytest.mark.parametrize("straight_through", [False, True])
def test_same_noise_as_torch(straight_through, generator):
    weights = torch.randn(5, generator=generator)
    logits = torch.randn(4, 5, generator=generator, requires_grad=True)
    estimator = GumbelSoftmax(0.7, straight_through=straight_through)
    noise = estimator.draw_noise(Categorical(logits), generator=torch.Generator().manual_seed(3))
    ours = torch.autograd.grad(
        estimator(Categorical(logits), lambda z: (z * weights).sum(-1).square(), noise=noise).sum(), logits
    )[0]

    y = ((logits + noise) / 0.7).softmax(-1)
    if straight_through:
        hard = torch.nn.functional.one_hot(y.argmax(-1), 5).float()
        y = hard - y.detach() + y
    theirs = torch.autograd.grad((y * weights).sum(-1).square().sum(), logits)[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["categorical", "bits"])
def test_soft_bias_falls_with_temperature(name):
    problem = make(name)
    _, exact, _ = problem.exact()
    biases = []
    for temperature in (2.0, 0.7, 0.25):
        gradients = draws(GumbelSoftmax(temperature), problem, 200_000)[1]
        noise = gradients.var(0).sum() / len(gradients)
        biases.append(float((gradients.mean(0) - exact).square().sum() - noise))
    assert biases[0] > 2 * biases[1] > 4 * max(biases[2], 0), biases


@pytest.mark.parametrize("latent", [Categorical, Bits])
def test_no_nan_at_low_temperature(latent):
    logits = torch.tensor([[3e38, -3e38, 0.0], [1e4, 1e4, -torch.inf]], requires_grad=True)
    for straight_through in (False, True):
        value = GumbelSoftmax(1e-3, straight_through=straight_through)(latent(logits), lambda z: z[..., 0])
        (gradient,) = torch.autograd.grad(value.sum(), logits)
        assert value.isfinite().all()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_temperature(temperature):
    with pytest.raises(ValueError, match="temperature must be a positive finite number"):
        GumbelSoftmax(temperature)
