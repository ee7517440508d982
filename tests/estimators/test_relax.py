"""RELAX: where it starts, any size, any scale."""

import pytest
import torch
from torch import nn

from argrad import Bits, Categorical, Reinforce, Relax
from problems import make


def test_starts_as_reinforce(generator):
    problem = make("bits")
    noise = problem.latent.draw_noise(generator=generator)
    gradients = []
    for estimator in (Relax(), Reinforce(baseline="none")):
        scores = problem.latent.scores.clone().requires_grad_()
        estimator(problem.latent.with_scores(scores), problem.cost(problem.theta()), noise=noise).sum().backward()
        gradients.append(scores.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("size", [1, 2, 7, 200])
def test_no_argument_works_for_any_size(size):
    for latent in (
        Categorical(torch.zeros(3, size, requires_grad=True)),
        Bits(torch.zeros(3, size, requires_grad=True)),
    ):
        estimator = Relax()
        optimiser = torch.optim.Adam(estimator.parameters(), 0.01)  # before the first call has sized the network
        for _ in range(3):
            optimiser.zero_grad()
            estimator(latent, lambda z: z[..., 0] + 100).mean().backward()
            optimiser.step()
        assert all(parameter.grad is not None and parameter.isfinite().all() for parameter in estimator.parameters())


def test_own_control_and_context():
    estimator = Relax(nn.Sequential(nn.Linear(3 + 3 + 2, 8), nn.Tanh(), nn.Linear(8, 1)))
    scores = torch.zeros(4, 3, requires_grad=True)
    estimator(Bits(scores), lambda z: z.sum(-1), context=torch.ones(4, 2)).mean().backward()
    assert scores.grad.isfinite().all()


def test_declares_what_it_needs():
    assert not Relax().needs_cost_gradient
    assert Relax(relaxed_cost=True).needs_cost_gradient
