"""Laws of the noise: moments, distribution functions, and the laws given an outcome."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from argrad.noise import gumbel, gumbel_given_outcome, logistic, logistic_given_outcome
from problems import assert_mean

CHANCE = 1e-4
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]
EULER = 0.57721566490153286
MOMENTS = {gumbel: (EULER, math.pi**2 / 6), logistic: (0.0, math.pi**2 / 3)}
LAWS = {gumbel: stats.gumbel_r, logistic: stats.logistic}
DRAWS = pytest.mark.parametrize("draw", [gumbel, logistic])
SCORES = torch.tensor([1.0, -2.0, 0.3, 2.0, -0.5], dtype=torch.float64)


def seeded(device: str = "cpu", seed: int = 0) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def outcomes(scores: Tensor, count: int, seed: int = 0) -> Tensor:
    """One-hot draws from softmax(scores), made without the code under test."""
    index = torch.multinomial(scores.softmax(-1), count, replacement=True, generator=seeded(seed=seed))
    return torch.nn.functional.one_hot(index, len(scores)).to(scores.dtype)


def bits(scores: Tensor, count: int, seed: int = 0) -> Tensor:
    """Draws of independent bits, made without the code under test."""
    uniform = torch.rand(count, len(scores), generator=seeded(seed=seed), dtype=scores.dtype)
    return (uniform < scores.sigmoid()).to(scores.dtype)


@DRAWS
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments(draw, dtype, device):
    mean, variance = MOMENTS[draw]
    x = draw((200_000,), dtype=dtype, device=device, generator=seeded(device, 1)).double().cpu()
    expected = torch.tensor([mean, variance], dtype=torch.float64)
    assert_mean(torch.stack([x, (x - mean).square()], -1), expected)


@DRAWS
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distribution_function(draw, dtype, device):
    x = draw((100_000,), dtype=dtype, device=device, generator=seeded(device, 2)).double().cpu()
    assert stats.kstest(x.numpy(), LAWS[draw].cdf).pvalue > CHANCE


@DRAWS
def test_tails(draw):
    """The share of draws beyond far quantiles, where a wrong clamp or a coarse uniform would show."""
    x = draw((4_000_000,), generator=seeded(seed=3))
    for quantile in (1e-5, 1e-4, 1 - 1e-4, 1 - 1e-5):
        below = int((x < LAWS[draw].ppf(quantile)).sum())
        assert stats.binomtest(below, x.numel(), quantile).pvalue > CHANCE


@DRAWS
def test_entries_are_independent(draw):
    x = draw((100_000, 3), generator=seeded(seed=4), dtype=torch.float64)
    x = (x - MOMENTS[draw][0]) / math.sqrt(MOMENTS[draw][1])
    assert_mean(torch.stack([x[:, 0] * x[:, 1], x[:, 0] * x[:, 2], x[:, 1] * x[:, 2]], -1), torch.zeros(3).double())


@DRAWS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_drawn_in_float32(draw, dtype):
    x = draw((10,), dtype=dtype, generator=seeded())
    assert x.dtype == torch.float32
    torch.testing.assert_close(x, draw((10,), generator=seeded()), rtol=0, atol=0)


@DRAWS
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3), torch.Size([4, 0, 2])])
def test_shapes(draw, shape):
    x = draw(shape, dtype=torch.float64)
    assert x.shape == tuple(shape)
    assert x.dtype == torch.float64
    assert not x.requires_grad


@DRAWS
def test_the_generator_decides(draw):
    first, again, other = draw((50,), generator=seeded()), draw((50,), generator=seeded()), draw((50,))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.slow
@DRAWS
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ten_million_draws_are_finite(draw, dtype, device):
    x = draw((10_000_000,), dtype=dtype, device=device, generator=seeded(device))
    assert bool(x.isfinite().all())
    # No pile of equal values at either end, beyond what float32 rounding makes.
    assert int((x == x.max()).sum()) <= 3
    assert int((x == x.min()).sum()) <= 3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gumbel_max_samples_the_softmax(dtype, device):
    scores = SCORES.to(device, dtype)
    count = 200_000
    chosen = (scores + gumbel((count, 5), dtype=dtype, device=device, generator=seeded(device, 5))).argmax(-1)
    found = torch.bincount(chosen, minlength=5).cpu()
    assert stats.chisquare(found.numpy(), (count * SCORES.softmax(-1)).numpy()).pvalue > CHANCE
    for i, p in enumerate(SCORES.softmax(-1).tolist()):
        assert stats.binomtest(int(found[i]), count, p).pvalue > CHANCE / 5


def test_logistic_threshold_samples_the_sigmoid():
    z = (SCORES + logistic((200_000, 5), dtype=torch.float64, generator=seeded(seed=6)) > 0).double()
    assert_mean(z, SCORES.sigmoid())


def test_one_shared_gumbel_always_returns_the_arg_max():
    """Gumbel-max needs an independent draw for every entry: a shared one only shifts them all."""
    shared = gumbel((10_000, 1), dtype=torch.float64, generator=seeded(seed=7))
    assert bool(((SCORES + shared).argmax(-1) == SCORES.argmax()).all())


def test_gumbel_distribution_function_and_its_inverse():
    """F(x) = exp(−exp(−(x − μ)/β)), inverse μ − β log(−log u)."""
    mu, beta = 0.7, 2.5
    u = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    x = mu - beta * (-u.log()).log()
    torch.testing.assert_close((-(-(x - mu) / beta).exp()).exp(), u)
    scaled = mu + beta * gumbel((50_000,), dtype=torch.float64, generator=seeded(seed=8))
    assert stats.kstest(scaled.numpy(), lambda t: stats.gumbel_r.cdf(t, mu, beta)).pvalue > CHANCE


# ------------------------------------------------------------------------------------------------ given the outcome


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gumbel_given_outcome_has_that_arg_max(dtype):
    scores = torch.tensor([10.0, -10.0, 0.0, -torch.inf, 3.0], dtype=dtype)
    possible = torch.eye(5, dtype=dtype)[[0, 1, 2, 4]]
    z = possible.repeat(5_000, 1)
    perturbed = gumbel_given_outcome(scores, z, gumbel(z.shape, dtype=dtype, generator=seeded()))
    assert torch.equal(perturbed.argmax(-1), z.argmax(-1))
    assert bool((perturbed[:, 3] == -torch.inf).all())
    assert bool(perturbed[:, [0, 1, 2, 4]].isfinite().all())


def test_gumbel_given_outcome_is_never_above_the_outcome():
    """Also where rounding makes two entries equal: noise of 30 against −3."""
    scores = torch.zeros(3)
    z = torch.tensor([0.0, 1.0, 0.0])
    perturbed = gumbel_given_outcome(scores, z, torch.tensor([30.0, -3.0, 0.0]))
    assert perturbed[1] == perturbed.max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logistic_given_outcome_has_those_signs(dtype):
    scores = torch.tensor([30.0, 12.0, 1.0, 0.0, -1.0, -12.0, -30.0], dtype=dtype)
    for z in (torch.zeros(20_000, 7, dtype=dtype), torch.ones(20_000, 7, dtype=dtype)):
        perturbed = logistic_given_outcome(scores, z, logistic(z.shape, dtype=dtype, generator=seeded()))
        assert torch.equal((perturbed > 0).to(dtype), z)
        assert bool(perturbed.isfinite().all())


@pytest.mark.parametrize("h", [-9.0, -1.0, 0.0, 4.0, 9.0, 25.0])
def test_logistic_given_outcome_solves_its_equation(h):
    """Given z = 1, σ(h − t) = σ(−λ) σ(h), to the last digits, for noise of any size."""
    noise = torch.linspace(-15, 15, 61, dtype=torch.float64)
    scores = torch.full((61,), h, dtype=torch.float64)
    t = logistic_given_outcome(scores, torch.ones(61, dtype=torch.float64), noise)
    expected = (1 + noise.exp() * (1 + math.exp(h))).log()
    torch.testing.assert_close(t, expected, rtol=1e-12, atol=1e-13)
    mirrored = logistic_given_outcome(-scores, torch.zeros(61, dtype=torch.float64), -noise)
    torch.testing.assert_close(mirrored, -t, rtol=0, atol=0)


def test_logistic_given_outcome_keeps_impossible_bits():
    scores = torch.tensor([-torch.inf, 1.0], requires_grad=True)
    perturbed = logistic_given_outcome(scores, torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.5]))
    assert perturbed[0] == -torch.inf
    (gradient,) = torch.autograd.grad(perturbed[1], scores)
    assert gradient[0] == 0
    assert bool(gradient.isfinite().all())


def test_gumbel_given_outcome_mixes_back_to_the_free_law():
    """Draw z from q, then the perturbed scores given z: all together they are scores + Gumbel."""
    count = 60_000
    noise = gumbel((count, 5), dtype=torch.float64, generator=seeded(seed=11))
    mixed = gumbel_given_outcome(SCORES, outcomes(SCORES, count, seed=12), noise)
    free = SCORES + gumbel((count, 5), dtype=torch.float64, generator=seeded(seed=13))
    for i in range(5):
        assert stats.kstest(mixed[:, i].numpy(), stats.gumbel_r(loc=SCORES[i].item()).cdf).pvalue > CHANCE / 5
        assert stats.ks_2samp(mixed[:, i].numpy(), free[:, i].numpy()).pvalue > CHANCE / 5
    # Independence too: products of centred entries have mean zero.
    centred = mixed - SCORES - EULER
    pairs = torch.combinations(torch.arange(5))
    assert_mean(centred[:, pairs[:, 0]] * centred[:, pairs[:, 1]], torch.zeros(10, dtype=torch.float64))


@pytest.mark.parametrize("outcome", range(5))
def test_gumbel_given_outcome_is_the_conditional_law(outcome):
    """Against rejection: keep only the free draws whose arg max is the outcome."""
    free = SCORES + gumbel((150_000, 5), dtype=torch.float64, generator=seeded(seed=14))
    kept = free[free.argmax(-1) == outcome]
    z = torch.eye(5, dtype=torch.float64)[outcome].expand(len(kept), 5)
    noise = gumbel(kept.shape, dtype=torch.float64, generator=seeded(seed=15 + outcome))
    conditional = gumbel_given_outcome(SCORES, z, noise)
    for i in range(5):
        assert stats.ks_2samp(conditional[:, i].numpy(), kept[:, i].numpy()).pvalue > CHANCE / 5


def test_logistic_given_outcome_mixes_back_to_the_free_law():
    count = 60_000
    noise = logistic((count, 5), dtype=torch.float64, generator=seeded(seed=21))
    mixed = logistic_given_outcome(SCORES, bits(SCORES, count, seed=22), noise)
    for i in range(5):
        assert stats.kstest(mixed[:, i].numpy(), stats.logistic(loc=SCORES[i].item()).cdf).pvalue > CHANCE / 5


@pytest.mark.parametrize("bit", [0.0, 1.0])
def test_logistic_given_outcome_is_the_conditional_law(bit):
    """P(t > s | z = 1) = σ(h − s)/σ(h) for s > 0, and the mirror image."""
    noise = logistic((50_000, 5), dtype=torch.float64, generator=seeded(seed=23))
    perturbed = logistic_given_outcome(SCORES, torch.full((50_000, 5), bit, dtype=torch.float64), noise)
    sign = 2 * bit - 1
    for i, h in enumerate(SCORES.tolist()):
        size = (sign * perturbed[:, i]).numpy()
        law = lambda s, h=h: 1 - stats.logistic.sf(s, sign * h) / stats.logistic.cdf(sign * h)  # noqa: E731
        assert stats.kstest(size, law).pvalue > CHANCE / 5


@pytest.mark.parametrize("given", [gumbel_given_outcome, logistic_given_outcome])
def test_gradient_given_outcome_by_finite_differences(given):
    generator = seeded(seed=31)
    scores = torch.randn(2, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    if given is gumbel_given_outcome:
        z = torch.eye(4, dtype=torch.float64)[torch.randint(4, (3, 2), generator=generator)]
        noise = gumbel(z.shape, dtype=torch.float64, generator=generator)
    else:
        z = torch.randint(2, (3, 2, 4), generator=generator).double()
        noise = logistic(z.shape, dtype=torch.float64, generator=generator)
    assert given(scores, z, noise).shape == (3, 2, 4)
    assert torch.autograd.gradcheck(lambda h: given(h, z, noise), (scores,))
    assert torch.autograd.gradgradcheck(lambda h: given(h, z, noise), (scores,))


def test_gumbel_given_outcome_gradient_with_impossible_outcomes():
    generator = seeded(seed=32)
    scores = torch.tensor([0.5, -torch.inf, 1.0, -torch.inf], dtype=torch.float64, requires_grad=True)
    z = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    noise = gumbel((4,), dtype=torch.float64, generator=generator)
    perturbed = gumbel_given_outcome(scores, z, noise)
    (gradient,) = torch.autograd.grad(perturbed[[0, 2]].sum(), scores)
    short = torch.tensor([0.5, 1.0], dtype=torch.float64, requires_grad=True)
    expected = gumbel_given_outcome(short, z[[0, 2]], noise[[0, 2]])
    (short_gradient,) = torch.autograd.grad(expected.sum(), short)
    torch.testing.assert_close(perturbed[[0, 2]], expected)
    torch.testing.assert_close(gradient, torch.tensor([short_gradient[0], 0, short_gradient[1], 0]).double())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_scores_are_conditioned_in_the_precision_of_the_noise(dtype):
    """Only the scores themselves are coarse: a log-sum-exp in half precision would shift the whole law."""
    scores = torch.tensor([3.3, -1.7, 0.6]).to(dtype)
    z, noise = torch.tensor([1.0, 0.0, 0.0]).to(dtype), torch.tensor([0.3, -0.2, 0.9])
    for given in (gumbel_given_outcome, logistic_given_outcome):
        perturbed = given(scores, z, noise)
        assert perturbed.dtype == torch.float32
        torch.testing.assert_close(perturbed, given(scores.float(), z.float(), noise), rtol=1e-6, atol=1e-6)
