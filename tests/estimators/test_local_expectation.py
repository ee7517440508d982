"""Local expectation: exact for one variable, and least variance at its price."""

import torch

from argrad import Arm, Direct, DisArm, LocalExpectation, Reinforce
from problems import draws, make, total_variance


def test_exact_for_one_variable():
    problem = make("categorical")
    _, exact, _ = problem.exact()
    gradients = draws(LocalExpectation(), problem, 5)[1]
    torch.testing.assert_close(gradients, exact.expand_as(gradients))


def test_same_noise_algebra_for_bits():
    scores = torch.tensor([[0.3, -0.2]], requires_grad=True)
    noise = torch.tensor([[1.0, -1.0]])  # z = (1, 0)
    LocalExpectation()(
        make("bits").latent.with_scores(scores), lambda z: (1 + z[..., 0]) * (1 + 2 * z[..., 1]), noise=noise
    ).sum().backward()
    slope = scores.detach().sigmoid() * (-scores.detach()).sigmoid()
    torch.testing.assert_close(scores.grad, slope * torch.tensor([[1.0, 4.0]]))


def test_less_variance_than_the_others_on_bits():
    problem = make("bits")
    local = total_variance(draws(LocalExpectation(), problem, 50_000)[1])
    for other in (Direct(0.1), Reinforce(baseline="none"), Arm(), DisArm()):
        assert local < total_variance(draws(other, problem, 50_000)[1])
