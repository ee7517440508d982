"""The discrete VAE's bounds against sums written out by hand, its prior, and its edges."""

import itertools
import math

import pytest
import torch
from torch import nn

from argrad import Arm, Direct, Exact, Relax
from argrad.estimators.control import RunningMoments
from argrad.models import DiscreteVAEModule, default_networks, perplexity, used
from argrad.models.discrete_vae.module import prepare
from problems import assert_mean

LATENTS = {
    "one categorical": {"latent": "categorical", "variables": 1, "values": 5},
    "categoricals": {"latent": "categorical", "variables": 3, "values": 3},
    "bits": {"latent": "bits", "variables": 4},
}
PIXELS = 6


def make(name, *, prior="uniform", likelihood="bernoulli", scale=1.0, seed=0):
    """A small module in float64 with weights far enough from zero to tell codes apart, and five examples."""
    options = LATENTS[name]
    codes = options["variables"] * options.get("values", 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = default_networks((PIXELS,), codes, hidden=8)
        module = DiscreteVAEModule(*networks, Exact(), prior=prior, likelihood=likelihood, scale=scale, **options)
        module.double()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.randn_like(parameter))
        x = torch.rand(5, PIXELS, dtype=torch.float64)
    return module, x


def structures(module):
    """Every z, one at a time."""
    if module.latent == "bits":
        return [torch.tensor(bits, dtype=torch.float64) for bits in itertools.product((0.0, 1.0), repeat=4)]
    rows = torch.eye(module.values, dtype=torch.float64)
    choices = itertools.product(range(module.values), repeat=module.variables)
    return [rows[list(choice)].reshape(module.event_shape) for choice in choices]


def distribution(module, scores):
    if module.latent == "bits":
        return torch.distributions.Independent(torch.distributions.Bernoulli(logits=scores), 1)
    one_hot = torch.distributions.OneHotCategorical(logits=scores)
    return torch.distributions.Independent(one_hot, len(module.event_shape) - 1)


def log_terms(module, x):
    """log q(z|x), log p(z), log p(x|z) of every structure, each [B, S], by torch.distributions one at a time."""
    q = distribution(module, module.encoder(x).reshape(len(x), *module.event_shape))
    scores = torch.zeros(module.event_shape, dtype=x.dtype) if module.prior_scores is None else module.prior_scores
    prior = distribution(module, scores)
    columns = []
    for z in structures(module):
        output = module.decoder(z.unsqueeze(0)).squeeze(0)
        if module.likelihood == "bernoulli":
            # Grey values count as expected bits: the cross-entropy.
            log_x = x * output.sigmoid().log() + (1 - x) * (-output).sigmoid().log()
        else:
            log_x = torch.distributions.Normal(output, module.scale).log_prob(x)
        columns.append((q.log_prob(z.expand(len(x), *z.shape)), prior.log_prob(z).expand(len(x)), log_x.sum(-1)))
    return [torch.stack(column, -1).detach() for column in zip(*columns, strict=True)]


CASES = [
    (name, prior, likelihood)
    for name in LATENTS
    for prior in ("uniform", "learnt")
    for likelihood in ("bernoulli", "gaussian")
]


@pytest.mark.parametrize(("name", "prior", "likelihood"), CASES)
def test_bounds_equal_sums_over_all_structures(name, prior, likelihood):
    module, x = make(name, prior=prior, likelihood=likelihood, scale=0.7 if likelihood == "gaussian" else 1.0)
    log_q, log_prior, log_x = log_terms(module, x)
    elbo = (log_q.exp() * (log_x + log_prior - log_q)).sum(-1)
    likelihoods = (log_prior + log_x).logsumexp(-1)
    torch.testing.assert_close(module.negative_elbo(x), -elbo)
    torch.testing.assert_close(module.losses(x).detach(), -elbo)
    torch.testing.assert_close(module.negative_log_likelihood(x), -likelihoods)
    assert (module.negative_log_likelihood(x) < module.negative_elbo(x)).all()


@pytest.mark.parametrize("name", LATENTS)
def test_kl_weight_weighs_the_kl(name):
    module, x = make(name, prior="learnt")
    kl = module.posterior(x).kl(module.prior())
    torch.testing.assert_close(module.losses(x, kl_weight=0.3), module.losses(x) - 0.7 * kl)


@pytest.mark.parametrize("prior", ["uniform", "learnt"])
@pytest.mark.parametrize("name", LATENTS)
def test_sampled_negative_elbo_has_the_exact_mean(name, prior, generator):
    module, x = make(name, prior=prior)
    copies = x.repeat(3000, 1)
    sampled = module.negative_elbo(copies, generator=generator, exact_up_to=0).reshape(3000, len(x))
    assert_mean(sampled, module.negative_elbo(x), comparisons=6)


@pytest.mark.parametrize("prior", ["uniform", "learnt"])
@pytest.mark.parametrize("name", LATENTS)
def test_importance_weighted_bound_comes_down_on_the_exact_likelihood(name, prior, generator):
    module, x = make(name, prior=prior)
    with torch.no_grad():
        for parameter in module.encoder[-1].parameters():
            parameter *= 0.1  # a posterior that is wrong, but puts some weight everywhere
    exact, repeats = module.negative_log_likelihood(x), 1000

    def bounds(samples):
        copies = x.repeat(repeats, 1)
        drawn = module.negative_log_likelihood(copies, samples=samples, generator=generator, exact_up_to=0)
        return drawn.reshape(repeats, len(x))

    one, few, many = bounds(1), bounds(10), bounds(300)
    assert_mean(one, module.negative_elbo(x), comparisons=12)  # with one sample it is the ELBO
    assert_mean((exact - few).exp(), torch.ones(len(x), dtype=x.dtype), comparisons=12)  # p(x) itself is unbiased
    gaps = [(bound - exact).mean(0) for bound in (one, few, many)]
    errors = [bound.std(0) / math.sqrt(repeats) for bound in (one, few, many)]
    for gap, error in zip(gaps, errors, strict=True):
        assert (gap > -5 * error).all()
    assert (gaps[0] > gaps[1]).all()
    assert (gaps[1] > gaps[2]).all()
    assert (gaps[2] < 0.1 * gaps[0]).all()


@pytest.mark.parametrize("name", LATENTS)
def test_learnt_prior_is_drawn_to_the_mean_posterior(name):
    module, x = make(name, prior="learnt")
    module.losses(x).mean().backward()
    q = module.posterior(x)
    torch.testing.assert_close(module.prior_scores.grad, (module.prior().mean() - q.mean().mean(0)).detach())


@pytest.mark.parametrize("name", LATENTS)
def test_mean_posterior_is_the_best_prior(name, generator):
    module, x = make(name, prior="learnt")
    mean = module.posterior(x).mean().mean(0).detach()
    best = mean.logit() if module.latent == "bits" else mean.log()
    with torch.no_grad():
        module.prior_scores.copy_(best)
    at_best = module.negative_elbo(x).mean()
    module.losses(x).mean().backward()
    torch.testing.assert_close(module.prior_scores.grad, torch.zeros_like(best), atol=1e-12, rtol=0)
    for _ in range(20):
        with torch.no_grad():
            module.prior_scores.copy_(best + torch.randn(best.shape, generator=generator, dtype=best.dtype))
        assert module.negative_elbo(x).mean() > at_best


@pytest.mark.parametrize("prior", ["uniform", "learnt"])
@pytest.mark.parametrize("name", LATENTS)
def test_samples_come_from_the_prior_and_are_decoded(name, prior, generator):
    module, _ = make(name, prior=prior)
    z, means = module.sample(4000, generator=generator)
    uniform = torch.full(module.event_shape, 1 / module.values, dtype=z.dtype)
    assert_mean(z, uniform if prior == "uniform" else module.prior().mean().detach(), comparisons=6)
    assert means.shape == (4000, PIXELS)
    torch.testing.assert_close(means, module.decoder(z).sigmoid().detach())


def test_gaussian_mean_is_the_decoders_output(generator):
    module, _ = make("bits", likelihood="gaussian")
    z, means = module.sample(3, generator=generator)
    torch.testing.assert_close(means, module.decoder(z).detach())


def identity(latent, variables, values=2):
    """A module whose scores are its input."""
    codes = variables * (values if latent == "categorical" else 1)
    return DiscreteVAEModule(
        nn.Identity(), nn.Linear(codes, codes), Exact(), latent=latent, variables=variables, values=values
    )


def test_usage_is_the_mean_posterior():
    low = -1e4
    one = identity("categorical", 1, 4)
    torch.testing.assert_close(one.usage(torch.zeros(3, 4)), torch.full((1, 4), 0.25))
    chosen = torch.tensor([[0.0, low, low, low], [low, low, 0.0, low]])
    torch.testing.assert_close(one.usage(chosen), torch.tensor([[0.5, 0.0, 0.5, 0.0]]))
    two = identity("categorical", 2, 2)
    torch.testing.assert_close(two.usage(torch.tensor([[0.0, low, 0.0, 0.0]])), torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    bits = identity("bits", 2)
    torch.testing.assert_close(
        bits.usage(torch.tensor([[low, 0.0], [-low, 0.0]])), torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    )


def test_perplexity_and_share_of_used_codes():
    assert perplexity(torch.full((1, 7), 1 / 7)) == pytest.approx(7)
    assert perplexity(torch.tensor([[1.0, 0.0, 0.0]])) == pytest.approx(1)
    assert perplexity(torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])) == pytest.approx(math.sqrt(2))
    assert used(torch.tensor([[0.5, 0.5, 0.0, 0.0]])) == pytest.approx(0.5)
    assert used(torch.tensor([[0.976, 0.024]]), threshold=0.1) == pytest.approx(0.5)
    assert used(torch.tensor([[0.976, 0.024]]), threshold=0.04) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"latent": "trits"}, 'latent must be "categorical" or "bits", got \'trits\''),
        ({"prior": "flat"}, 'prior must be "uniform" or "learnt", got \'flat\''),
        ({"likelihood": "poisson"}, 'likelihood must be "bernoulli" or "gaussian", got \'poisson\''),
        ({"values": 1}, "needs variables >= 1 and values >= 2, got 1 and 1"),
        ({"variables": 0}, "needs variables >= 1 and values >= 2, got 0 and 10"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DiscreteVAEModule(*default_networks((4,), 10), Exact(), **options)


def test_encoder_of_the_wrong_size_is_refused():
    module = DiscreteVAEModule(nn.Linear(4, 9), nn.Linear(10, 4), Exact())
    with pytest.raises(ValueError, match=r"turned 3 examples into shape \(3, 9\); this latent needs \[3, 10\]"):
        module.losses(torch.rand(3, 4))


def test_prepare_sizes_networks_by_the_seed_and_leaves_no_trace():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        relax = [DiscreteVAEModule(*default_networks((4,), 10), Relax()) for _ in range(2)]
        for module in relax:
            torch.manual_seed(4)
            prepare(module, (4,))
    first, second = [module.estimator.control[0].weight for module in relax]
    assert first.shape == (64, 20)
    assert torch.equal(first, second)
    moments = [part for part in relax[0].estimator.modules() if isinstance(part, RunningMoments)]
    assert moments
    assert all((part.sums == 0).all() for part in moments)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_prepare_sizes_lazy_networks():
    encoder = nn.Sequential(nn.LazyLinear(7), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(10))
    module = DiscreteVAEModule(encoder, nn.LazyLinear(4), Direct())
    prepare(module, (4,))
    assert encoder[0].weight.shape == (7, 4)
    assert encoder[1].num_batches_tracked == 0
    assert module.decoder.weight.shape == (4, 10)
    assert module.training
    assert module.losses(torch.rand(3, 4)).isfinite().all()


def test_prepare_refuses_an_estimator_that_does_not_fit():
    with pytest.raises(ValueError, match=r"Arm does not support .*these do: .*Direct"):
        prepare(DiscreteVAEModule(*default_networks((4,), 10), Arm()), (4,))
    with pytest.raises(ValueError, match="nothing to train"):
        prepare(DiscreteVAEModule(nn.Identity(), nn.Identity(), Exact()), (10,))
