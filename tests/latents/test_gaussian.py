"""The Gaussian against torch.distributions; the worked example of two gradient estimators of E[z²]."""

import itertools
import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import example, given
from torch import Tensor, distributions

from argrad import Gaussian
from problems import assert_mean

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]
BATCHES = [(), (1,), (2, 3)]  # torch.distributions does not take an empty batch everywhere
KINDS = ["diagonal", "full"]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lower(*batch: int, d: int, seed: int = 0) -> Tensor:
    factor = normal(*batch, d, d, seed=seed).tril(-1)
    return factor + torch.diag_embed(0.5 * normal(*batch, d, seed=seed + 1).exp())


def make(kind: str, *batch: int, d: int = 4, seed: int = 0) -> Gaussian:
    mean = normal(*batch, d, seed=seed)
    if kind == "diagonal":
        return Gaussian(mean, normal(*batch, d, seed=seed + 10))
    return Gaussian(mean, scale_tril=lower(*batch, d=d, seed=seed + 20))


def full_torch(q: Gaussian) -> distributions.MultivariateNormal:
    """Any of ours as a MultivariateNormal, so that mixed pairs have a reference too."""
    factor = q.scale_tril if q.scale_tril is not None else torch.diag_embed((0.5 * q.logvar).exp())
    return distributions.MultivariateNormal(q.mean, scale_tril=factor)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_torch(kind, batch):
    q, z = make(kind, *batch), normal(5, *batch, 4, seed=7)
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(q.log_prob(z), full_torch(q).log_prob(z), **close)
    torch.testing.assert_close(q.entropy(), full_torch(q).entropy(), **close)
    torch.testing.assert_close(q.to_distribution().log_prob(z), q.log_prob(z), **close)
    assert q.batch_shape == batch
    standard = distributions.MultivariateNormal(torch.zeros(4).double(), torch.eye(4).double())
    torch.testing.assert_close(q.kl(), distributions.kl_divergence(full_torch(q), standard).expand(batch), **close)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("kind", "prior_kind"), list(itertools.product(KINDS, KINDS)))
def test_kl_equals_torch(kind, prior_kind, batch):
    q, p = make(kind, *batch), make(prior_kind, *batch, seed=100)
    expected = distributions.kl_divergence(full_torch(q), full_torch(p))
    torch.testing.assert_close(q.kl(p), expected, rtol=1e-10, atol=1e-10)
    assert bool((q.kl(q).abs() < 1e-12).all())


@pytest.mark.parametrize(("kind", "prior_kind"), list(itertools.product(KINDS, KINDS)))
def test_kl_gradients_equal_torch(kind, prior_kind):
    q, p = make(kind, 3), make(prior_kind, 3, seed=100)
    leaves = [t.requires_grad_() for g in (q, p) for t in (g.mean, g.logvar, g.scale_tril) if t is not None]
    ours = torch.autograd.grad(q.kl(p).sum(), leaves)
    theirs = torch.autograd.grad(distributions.kl_divergence(full_torch(q), full_torch(p)).sum(), leaves)
    for leaf, a, b in zip(leaves, ours, theirs, strict=True):
        square = leaf.dim() == 3
        torch.testing.assert_close(a.tril() if square else a, b.tril() if square else b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("kind", "prior_kind"), list(itertools.product(KINDS, KINDS)))
def test_one_prior_for_the_whole_batch(kind, prior_kind):
    q, p = make(kind, 5), make(prior_kind, seed=100)
    expected = distributions.kl_divergence(full_torch(q), full_torch(p))
    torch.testing.assert_close(q.kl(p), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_empty_batch(kind):
    q = make(kind, 0)
    assert q.rsample((5,)).shape == (5, 0, 4)
    for value in (q.kl(), q.kl(make("full", seed=1)), q.entropy(), q.log_prob(torch.zeros(0, 4))):
        assert value.shape == (0,)


def test_written_out_to_the_standard_normal():
    """−½ Σ (1 + log σ² − μ² − σ²), with the sign that makes it non-negative."""
    q = make("diagonal", 6)
    expected = -0.5 * (1 + q.logvar - q.mean.square() - q.logvar.exp()).sum(-1)
    torch.testing.assert_close(q.kl(), expected, rtol=1e-12, atol=1e-12)


numbers = st.floats(-8, 8, width=32)
tiny = st.floats(-(2.0**-10), 2.0**-10, width=32)


@given(st.lists(st.tuples(numbers | tiny, numbers | tiny, numbers | tiny, numbers | tiny), min_size=1, max_size=6))
@example([(0.0, 1e-4, 0.0, 0.0)] * 6)
@example([(0.0, 3e-5, 0.0, 1e-5)])
def test_kl_is_never_negative(rows):
    mean, logvar, prior_mean, prior_logvar = torch.tensor(rows, dtype=torch.float32).T
    q, p = Gaussian(mean, logvar), Gaussian(prior_mean, prior_logvar)
    assert q.kl() >= 0
    assert q.kl(p) >= 0
    full_q = Gaussian(mean, scale_tril=torch.diag_embed((0.5 * logvar).exp()))
    for kl in (full_q.kl(), full_q.kl(p), q.kl(full_q), full_q.kl(full_q)):
        assert kl >= -1e-6


def test_kl_of_nearly_equal_gaussians_keeps_its_digits():
    """½(eˣ − 1 − x) ≈ x²/4 at x = 1e-3: summed the plain way, float32 has no digit of it left."""
    logvar = torch.full((10,), 1e-3)
    exact = 5 * (math.expm1(1e-3) - 1e-3)
    assert Gaussian(torch.zeros(10), logvar).kl().item() == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_sampling_moments(kind, device):
    q = make(kind, d=3)
    on_device = Gaussian(
        q.mean.to(device),
        None if q.logvar is None else q.logvar.to(device),
        scale_tril=None if q.scale_tril is None else q.scale_tril.to(device),
    )
    z = on_device.sample((100_000,), generator=torch.Generator(device).manual_seed(1)).cpu()
    away = z - q.mean
    assert_mean(z, q.mean)
    assert_mean(away.unsqueeze(-1) * away.unsqueeze(-2), full_torch(q).covariance_matrix)


@pytest.mark.parametrize("kind", KINDS)
def test_rsample_is_differentiable_and_sample_is_not(kind):
    q = make(kind, 2)
    spread = q.logvar if q.logvar is not None else q.scale_tril
    q.mean.requires_grad_()
    spread.requires_grad_()
    noise = q.draw_noise((3,), generator=torch.Generator().manual_seed(2))
    assert noise.shape == (3, 2, 4)
    z = q.rsample(noise=noise)
    assert z.shape == (3, 2, 4)
    assert not q.sample(noise=noise).requires_grad
    assert torch.equal(z.detach(), q.sample(noise=noise))
    weights = normal(3, 2, 4, seed=3)
    to_mean, to_spread = torch.autograd.grad((z * weights).sum(), (q.mean, spread))
    torch.testing.assert_close(to_mean, weights.sum(0))
    if kind == "diagonal":  # dz/dlogvar = ½ η σ: a standard deviation, never a variance
        torch.testing.assert_close(to_spread, (weights * 0.5 * noise * (0.5 * spread).exp()).sum(0))
    else:
        torch.testing.assert_close(to_spread.tril(), torch.einsum("sbi,sbj->bij", weights, noise).tril())


def test_spread_is_a_standard_deviation_not_a_variance():
    """z = μ + σ η."""
    q = Gaussian(torch.tensor([1.0]), torch.tensor([math.log(9.0)]))
    torch.testing.assert_close(q.rsample(noise=torch.tensor([2.0])), torch.tensor([7.0]))


def test_two_estimators_of_the_gradient_of_the_expected_square():
    """E[z²] for z ~ N(aθ + b, 1) at a = 2, b = 1, θ = ½, where μ = 2 and the gradient is 2aμ = 8.

    Score function: a z² η with z = μ + η, second moment a²(μ⁴ + 18μ² + 15) = 412, variance 348.
    Re-parameterised: 2a z, variance 4a² = 16.
    """
    a, b, count = 2.0, 1.0, 400_000
    theta = torch.full((count, 1), 0.5, dtype=torch.float64, requires_grad=True)
    q = Gaussian(a * theta + b, torch.zeros(count, 1, dtype=torch.float64))
    noise = q.draw_noise(generator=torch.Generator().manual_seed(3))
    z = q.rsample(noise=noise)
    (pathwise,) = torch.autograd.grad(z.square().sum(), theta, retain_graph=True)
    surrogate = q.log_prob(z.detach()) * z.detach().square().squeeze(-1)
    (score_function,) = torch.autograd.grad(surrogate.sum(), theta)
    torch.testing.assert_close(score_function, a * z.detach().square() * noise)
    for estimate, variance in ((score_function, 348.0), (pathwise, 16.0)):
        moments = torch.cat([estimate, (estimate - 8).square()], -1)
        assert_mean(moments, torch.tensor([8.0, variance], dtype=torch.float64), comparisons=2)
    assert score_function.std().item() == pytest.approx(math.sqrt(348), rel=0.02)  # 18.65
    assert pathwise.std().item() == pytest.approx(4.0, rel=0.02)


@pytest.mark.parametrize("start", [3.0, -4.0])
def test_gradient_descent_on_the_expected_square_ends_at_minus_b_over_a(start):
    a, b = 2.0, 1.0
    theta = torch.tensor([start], dtype=torch.float64, requires_grad=True)
    generator = torch.Generator().manual_seed(4)
    for _ in range(200):
        q = Gaussian(a * theta + b, torch.zeros(1, dtype=torch.float64))
        loss = q.rsample((1000,), generator=generator).square().mean()
        (gradient,) = torch.autograd.grad(loss, theta)
        theta = (theta - 0.05 * gradient).detach().requires_grad_()
    assert theta.item() == pytest.approx(-b / a, abs=0.05)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_precision(kind, dtype):
    exact = make(kind, 2)
    spread = exact.logvar if exact.logvar is not None else exact.scale_tril
    parts = {"logvar" if kind == "diagonal" else "scale_tril": spread.to(dtype)}
    q = Gaussian(exact.mean.to(dtype), **parts)
    assert q.draw_noise().dtype == torch.float32
    noise = normal(2, 4, seed=5)
    z = q.rsample(noise=noise.float())
    assert z.dtype == dtype
    torch.testing.assert_close(z.double(), exact.rsample(noise=noise), rtol=0.03, atol=0.03)
    for ours, reference in ((q.kl(), exact.kl()), (q.entropy(), exact.entropy())):
        torch.testing.assert_close(ours.double(), reference, rtol=0.03, atol=0.05)
    assert q.log_prob(z).isfinite().all()
    assert q.kl(q).isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_noise_of_another_precision(kind):
    q, noise = make(kind, 2), normal(3, 2, 4)
    assert q.rsample(noise=noise.float()).dtype == torch.float64
    torch.testing.assert_close(q.rsample(noise=noise.float()), q.rsample(noise=noise), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_conversion_there_and_back(kind):
    q, z = make(kind, 3), normal(3, 4, seed=8)
    back = Gaussian.from_distribution(q.to_distribution())
    assert (back.logvar is None) == (q.logvar is None)
    torch.testing.assert_close(back.log_prob(z), q.log_prob(z))
    plain = distributions.Normal(torch.zeros(3, 4), torch.full((3, 4), 2.0))
    for distribution in (plain, distributions.Independent(plain, 1)):
        torch.testing.assert_close(Gaussian.from_distribution(distribution).logvar, torch.full((3, 4), math.log(4.0)))


def test_batches_of_mean_and_spread_broadcast():
    q = Gaussian(normal(5, 1, 4), normal(2, 4, seed=1))
    assert q.batch_shape == (5, 2)
    assert q.rsample((3,)).shape == (3, 5, 2, 4)
    for value in (q.kl(), q.entropy(), q.log_prob(torch.zeros(4))):
        assert value.shape == (5, 2)
    full = Gaussian(normal(4), scale_tril=lower(3, d=4))
    assert full.batch_shape == (3,)
    assert full.rsample().shape == (3, 4)
    assert full.kl().shape == (3,)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_compiles_and_maps(kind):
    q = make(kind, 3)
    spread, noise = (q.logvar if q.logvar is not None else q.scale_tril), normal(3, 4, seed=9)

    def function(mean: Tensor, spread: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        q = Gaussian(mean, spread) if kind == "diagonal" else Gaussian(mean, scale_tril=spread)
        z = q.rsample(noise=noise)
        return z, q.log_prob(z), q.kl(), q.entropy()

    torch.compiler.reset()
    expected = function(q.mean, spread, noise)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)(q.mean, spread, noise)
    mapped = torch.vmap(function)(q.mean, spread, noise)
    for direct, a, b in zip(expected, compiled, mapped, strict=True):
        torch.testing.assert_close(a, direct)
        torch.testing.assert_close(b, direct)


def test_repr():
    assert repr(make("diagonal", 2)) == "Gaussian(batch=(2,), dimensions=4, diagonal)"
    assert repr(make("full")) == "Gaussian(batch=(), dimensions=4, full)"


ZEROS = torch.zeros(2, 3)
BAD = {
    "no spread": (lambda: Gaussian(ZEROS), ["exactly one", "logvar", "scale_tril"]),
    "both": (lambda: Gaussian(ZEROS, ZEROS, scale_tril=torch.eye(3)), ["exactly one"]),
    "wrong logvar": (lambda: Gaussian(ZEROS, torch.zeros(2, 4)), ["(2, 3)", "(2, 4)", "logvar"]),
    "wrong scale_tril": (lambda: Gaussian(ZEROS, scale_tril=torch.ones(2, 3)), ["scale_tril", "3, 3", "(2, 3)"]),
    "no dimension": (lambda: Gaussian(torch.tensor(0.0), torch.tensor(0.0)), ["()"]),
    "batches": (lambda: Gaussian(ZEROS, torch.zeros(5, 3)), ["(2, 3)", "(5, 3)", "batch"]),
    "NaN": (lambda: Gaussian(ZEROS + math.nan, ZEROS), ["NaN", "diverged"]),
    "infinite": (lambda: Gaussian(ZEROS, ZEROS - torch.inf), ["infinite"]),
    "integers": (lambda: Gaussian(torch.zeros(3).long(), torch.zeros(3)), ["int64", ".float()"]),
    "upper triangular": (lambda: Gaussian(ZEROS, scale_tril=torch.ones(3, 3)), ["lower triangular", "cholesky"]),
    "negative diagonal": (lambda: Gaussian(ZEROS, scale_tril=-torch.eye(3)), ["positive diagonal", "cholesky"]),
    "prior": (lambda: Gaussian(ZEROS, ZEROS).kl(Gaussian(torch.zeros(4), torch.zeros(4))), ["4", "3"]),
    "noise": (lambda: Gaussian(ZEROS, ZEROS).rsample(noise=torch.zeros(3)), ["(3,)", "2, 3", "draw_noise"]),
    "another law": (
        lambda: Gaussian.from_distribution(distributions.Poisson(torch.ones(3))),
        ["Poisson", "MultivariateNormal"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_are_one_clear_line(case):
    call, words = BAD[case]
    with pytest.raises(ValueError, match=r".") as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 250
    for word in words:
        assert word in message


def test_validation_can_be_switched_off():
    assert Gaussian(ZEROS + math.nan, ZEROS, validate=False).batch_shape == (2,)
