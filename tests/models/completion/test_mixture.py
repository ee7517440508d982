"""The mixture and its loss, against torch.distributions; the published form beside the right one diverges."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal, kl_divergence

from argrad.latents import Gaussian
from argrad.models.completion.mixture import GaussianMixture, back_propagate_max

BATCH, COMPONENTS, DIMENSION = 7, 4, 3


def draw(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.fixture
def mixture(generator) -> GaussianMixture:
    weights = draw(generator, BATCH, COMPONENTS).log_softmax(-1)
    means, logvars = (draw(generator, BATCH, COMPONENTS, DIMENSION) for _ in range(2))
    return GaussianMixture(weights, means.requires_grad_(), logvars.requires_grad_())


@pytest.fixture
def posterior(generator) -> Gaussian:
    return Gaussian(draw(generator, BATCH, DIMENSION), draw(generator, BATCH, DIMENSION))


def reference(mixture: GaussianMixture) -> MixtureSameFamily:
    normal = Normal(mixture.means, (mixture.logvars / 2).exp())
    return MixtureSameFamily(Categorical(logits=mixture.log_weights), Independent(normal, 1))


def test_density_is_that_of_torch(mixture, generator):
    z = draw(generator, 5, BATCH, DIMENSION)
    torch.testing.assert_close(mixture.log_prob(z), reference(mixture).log_prob(z))


def test_the_component_that_is_picked_has_the_largest_joint_density(mixture, generator):
    z = draw(generator, 5, BATCH, DIMENSION)
    known = reference(mixture)
    joint = known.mixture_distribution.logits + known.component_distribution.log_prob(z.unsqueeze(-2))
    assert torch.equal(mixture.pick(z), joint.argmax(-1))
    assert mixture.pick(z).unique().numel() > 1


def test_a_component_is_looked_up_for_every_draw(mixture):
    which = torch.arange(2 * BATCH).reshape(2, BATCH) % COMPONENTS
    weight, gaussian = mixture.component(which)
    for row in range(2):
        for place in range(BATCH):
            j = which[row, place]
            assert weight[row, place] == mixture.log_weights[place, j]
            assert torch.equal(gaussian.mean[row, place], mixture.means[place, j])
            assert torch.equal(gaussian.logvar[row, place], mixture.logvars[place, j])


def of_picked(mixture: GaussianMixture, posterior: Gaussian, z: Tensor) -> tuple[Tensor, Normal, Normal]:
    weight, component = mixture.component(mixture.pick(z))
    normals = [Normal(one.mean, (one.logvar / 2).exp()) for one in (component, posterior)]
    return weight, *normals


def test_the_right_form_is_a_kl_divergence(mixture, posterior):
    z = posterior.mean
    weight, component, encoder = of_picked(mixture, posterior, z)
    kl = kl_divergence(component, encoder).sum(-1)
    torch.testing.assert_close(back_propagate_max(mixture, posterior, z), kl - weight)
    v, v_hat = encoder.variance, component.variance
    written = 0.5 * (v.log() - v_hat.log() - 1 + v_hat / v + (component.mean - encoder.mean).square() / v).sum(-1)
    torch.testing.assert_close(kl, written)


def test_the_published_form_is_kl_minus_mahalanobis_plus_half_the_dimension(mixture, posterior):
    z = posterior.mean
    _, component, encoder = of_picked(mixture, posterior, z)
    mahalanobis = ((component.mean - encoder.mean).square() / encoder.variance).sum(-1)
    expected = kl_divergence(component, encoder).sum(-1) - mahalanobis + DIMENSION / 2
    torch.testing.assert_close(back_propagate_max(mixture, posterior, z, "as-published"), expected)


def test_the_evidence_form_bounds_the_divergence_to_the_whole_mixture(mixture, posterior, generator):
    loss = back_propagate_max(mixture, posterior, posterior.mean, "evidence")
    z = posterior.sample((20_000,), generator=generator)
    ratio = posterior.log_prob(z) - mixture.log_prob(z)
    error = ratio.std(0) / len(z) ** 0.5
    assert (loss > ratio.mean(0) - 4 * error).all()
    weight, component, encoder = of_picked(mixture, posterior, posterior.mean)
    torch.testing.assert_close(loss, kl_divergence(encoder, component).sum(-1) - weight)


def test_gradients_reach_weights_means_and_variances_of_the_picked_component(posterior, generator):
    scores = draw(generator, BATCH, COMPONENTS).requires_grad_()
    means, logvars = (draw(generator, BATCH, COMPONENTS, DIMENSION).requires_grad_() for _ in range(2))
    mixture = GaussianMixture(scores.log_softmax(-1), means, logvars)
    z = posterior.mean
    back_propagate_max(mixture, posterior, z).sum().backward()
    picked = torch.nn.functional.one_hot(mixture.pick(z), COMPONENTS).bool()
    for gradient in (means.grad, logvars.grad):
        assert (gradient[picked] != 0).all()
        assert (gradient[~picked] == 0).all()
    torch.testing.assert_close(scores.grad, scores.softmax(-1).detach() - picked.double())


@pytest.mark.parametrize(("form", "diverges"), [("kl", False), ("evidence", False), ("as-published", True)])
def test_the_published_sign_diverges(form, diverges):
    """Gradient descent on the mean of one component: to the encoder's mean, or away from it for ever."""
    posterior = Gaussian(torch.zeros(1, 2), torch.zeros(1, 2))
    mean = torch.full((1, 1, 2), 0.1, requires_grad=True)
    losses = []
    for _ in range(100):
        mixture = GaussianMixture(torch.zeros(1, 1), mean, torch.zeros(1, 1, 2))
        loss = back_propagate_max(mixture, posterior, posterior.mean, form).sum()
        (gradient,) = torch.autograd.grad(loss, [mean])
        mean = (mean - 0.1 * gradient).detach().requires_grad_()
        losses.append(loss.item())
    if diverges:
        assert mean.abs().min() > 100  # 0.1 · 1.1¹⁰⁰ is above 1,300
        assert losses[-1] < -1e5
        assert all(later < sooner for sooner, later in pairwise(losses))
    else:
        assert mean.abs().max() < 1e-4
        assert 0 <= losses[-1] < losses[0]


def test_draws_follow_the_mixture(generator):
    weights = torch.tensor([0.5, 0.3, 0.2]).log()
    means = torch.tensor([[-4.0], [0.0], [5.0]])
    logvars = torch.tensor([0.25, 1.0, 4.0]).log()[:, None]
    number = 50_000
    mixture = GaussianMixture(weights.expand(number, 3), means.expand(number, 3, 1), logvars.expand(number, 3, 1))
    z, which = mixture.sample(1, generator=generator)  # one draw each: independent over the batch
    z, which = z[0, :, 0], which[0]
    for j, probability in enumerate(weights.exp()):
        mine = which == j
        error = (probability * (1 - probability) / number).sqrt()
        assert (mine.double().mean() - probability).abs() < 4 * error
        spread = (logvars[j] / 2).exp()
        assert (z[mine].mean() - means[j]).abs() < 4 * spread / mine.sum().sqrt()
        assert (z[mine].var() / spread**2 - 1).abs() < 4 * (2 / mine.sum()).sqrt()


def test_several_draws_are_spread_evenly(generator):
    weights = torch.rand(20, 5, generator=generator).log_softmax(-1)
    mixture = GaussianMixture(weights, torch.zeros(20, 5, 2), torch.zeros(20, 5, 2))
    z, which = mixture.sample(8, generator=generator)
    assert z.shape == (8, 20, 2)
    counts = torch.nn.functional.one_hot(which, 5).sum(0)
    assert ((counts - 8 * weights.exp()).abs() < 1 + 1e-4).all()


def test_an_unknown_form_is_refused(mixture, posterior):
    with pytest.raises(ValueError, match=r"loss must be one of kl, evidence, as-published, got 'wrong'"):
        back_propagate_max(mixture, posterior, posterior.mean, "wrong")
