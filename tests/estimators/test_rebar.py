"""REBAR: identities on the same noise, and variance after its parameters have trained."""

import pytest
import torch

from argrad import Rebar, Reinforce, Relax
from argrad.noise import gumbel_given_outcome
from problems import draws, make, total_variance


def call(estimator, problem, noise):
    scores, theta = problem.latent.scores.clone().requires_grad_(), problem.theta().requires_grad_()
    value = estimator(problem.latent.with_scores(scores), problem.cost(theta), noise=noise)
    value.sum().backward()
    return value.detach(), scores.grad, theta.grad


@pytest.mark.parametrize("name", ["categorical", "categoricals", "bits"])
def test_zero_control_is_reinforce(name, generator):
    problem = make(name)
    noise = problem.latent.draw_noise(generator=generator)
    for first, second in zip(
        call(Rebar(eta=0.0), problem, noise), call(Reinforce(baseline="none"), problem, noise), strict=True
    ):
        torch.testing.assert_close(first, second)


def test_estimate_equals_autograd_through_conditional_noise(generator):
    """The closed form of the two paths against differentiating both of them."""
    problem = make("categorical")
    latent, tau, eta = problem.latent, 0.6, 0.8
    noise = latent.draw_noise(generator=generator)
    cost = problem.cost(problem.theta())
    _, ours, _ = call(Rebar(tau, eta=eta), problem, noise)

    scores = latent.scores.clone().requires_grad_()
    perturbed = scores + noise
    z = latent.solve(perturbed)
    # The conditional noise that leads to the same perturbed scores: the maximum's, and the others' below it.
    with torch.no_grad():
        top = perturbed.amax(-1, keepdim=True)
        others = -((-perturbed).exp() - (-top).exp()).clamp_min(1e-300).log() - scores
        fresh = torch.where(z > 0, top - scores.logsumexp(-1, keepdim=True), others)
    conditional = gumbel_given_outcome(scores, z, fresh)
    torch.testing.assert_close(conditional, perturbed)
    free, bound = (cost((t / tau).softmax(-1)) for t in (perturbed, conditional))
    weight = (cost(z) - eta * bound).detach()
    score_term = (weight * latent.with_scores(scores).log_prob(z)).sum()
    (theirs,) = torch.autograd.grad(score_term + eta * (free - bound).sum(), scores)
    torch.testing.assert_close(ours, theirs)


def train_control(estimator, problem, steps: int = 500, rate: float = 0.02):
    """Steps on the estimator's own parameters, 64 draws of the problem each."""
    torch.manual_seed(0)
    scores = problem.latent.scores.expand(64, *problem.latent.scores.shape).clone().requires_grad_()
    generator = torch.Generator().manual_seed(1)
    optimiser = None
    for _ in range(steps):
        loss = estimator(problem.latent.with_scores(scores), problem.cost(problem.theta()), generator=generator).mean()
        optimiser = optimiser or torch.optim.Adam(estimator.parameters(), rate)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return estimator.eval()


@pytest.mark.parametrize("name", ["categorical", "categoricals", "bits"])
@pytest.mark.parametrize(
    "build", [Rebar, Relax, lambda: Relax(relaxed_cost=True)], ids=["Rebar", "Relax", "Relax+cost"]
)
def test_less_variance_than_reinforce_after_500_steps(name, build):
    problem = make(name, seed=3)
    reinforce = total_variance(draws(Reinforce(baseline="none"), problem, 20_000)[1])
    controlled = total_variance(draws(train_control(build(), problem), problem, 20_000)[1])
    assert controlled < 0.9 * reinforce, (controlled, reinforce)


def test_variance_gradient_reaches_only_its_own_parameters(generator):
    """Training η and τ changes nothing in what encoder and decoder receive."""
    problem = make("bits")
    noise = problem.latent.draw_noise(generator=generator)
    learning, frozen = Rebar(0.5), Rebar(0.5).requires_grad_(False)
    for first, second in zip(call(learning, problem, noise), call(frozen, problem, noise), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert learning.eta.grad.abs() > 0
    assert learning.log_temperature.grad.abs() > 0


def test_variance_gradient_is_that_of_the_second_moment(generator):
    """By finite differences in η and log τ; a batch mean trains on the mean."""
    problem = make("bits")
    noise = problem.latent.draw_noise(generator=generator)

    def second_moment(log_tau: float, eta: float) -> float:
        estimator = Rebar().double()
        estimator.log_temperature.data.fill_(log_tau)
        estimator.eta.data.fill_(eta)
        return float(call(estimator, problem, noise)[1].square().sum() / 3)

    estimator = Rebar().double()
    estimator.log_temperature.data.fill_(-0.4)
    estimator.eta.data.fill_(0.7)
    scores = problem.latent.scores.clone().requires_grad_()
    estimator(problem.latent.with_scores(scores), problem.cost(problem.theta()), noise=noise).mean().backward()
    step = 1e-5
    by_tau = (second_moment(-0.4 + step, 0.7) - second_moment(-0.4 - step, 0.7)) / (2 * step)
    by_eta = (second_moment(-0.4, 0.7 + step) - second_moment(-0.4, 0.7 - step)) / (2 * step)
    assert float(estimator.log_temperature.grad) == pytest.approx(by_tau, rel=1e-5)
    assert float(estimator.eta.grad) == pytest.approx(by_eta, rel=1e-5)


def test_wrong_temperature():
    with pytest.raises(ValueError, match="temperature"):
        Rebar(0.0)
