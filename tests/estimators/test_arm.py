"""ARM and DisARM on the published one-bit problem, and against each other."""

import math

import pytest
import torch

from argrad import Arm, Bits, DisArm, Reinforce
from problems import assert_mean, draws, make, total_variance


@pytest.mark.parametrize("estimator", [Arm(), DisArm(), Reinforce(samples=2)], ids=["Arm", "DisArm", "leave-one-out"])
def test_the_known_one_bit_figure(estimator):
    """Logit log 0.3, cost (b − 0.49)²: the gradient is (1 − 2 · 0.49) p (1 − p) = 0.003550."""
    logit = math.log(0.3)
    p = 0.3 / 1.3
    true = (1 - 2 * 0.49) * p * (1 - p)
    assert true == pytest.approx(0.003550, abs=5e-7)
    scores = torch.full((1_000_000, 1), logit, dtype=torch.float64, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    estimator(Bits(scores), lambda b: (b[..., 0] - 0.49).square(), generator=generator).sum().backward()
    assert_mean(scores.grad, torch.tensor([true], dtype=torch.float64))


def test_same_noise_algebra():
    scores = torch.tensor([[0.5, -1.0]], requires_grad=True)
    noise = torch.tensor([[0.8, 2.0]])  # z = (1, 1), its twin (0, 0)
    Arm()(Bits(scores), lambda z: 3 * z.sum(-1), noise=noise).sum().backward()
    torch.testing.assert_close(scores.grad, 6 * (noise.sigmoid() - 0.5))
    scores.grad = None
    DisArm()(Bits(scores), lambda z: 3 * z.sum(-1), noise=noise).sum().backward()
    torch.testing.assert_close(scores.grad, 3 * scores.detach().abs().sigmoid())


def test_disarm_is_arm_with_the_noise_integrated_out():
    problem = make("bits")
    arm, disarm = draws(Arm(), problem, 100_000)[1], draws(DisArm(), problem, 100_000)[1]
    assert_mean(arm - disarm, torch.zeros_like(arm[0]))
    assert total_variance(disarm) < total_variance(arm)
