"""What every latent promises: one contract, run on each family; then validation and its messages."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from argrad import Bits, Categorical, Gaussian, Latent, Unavailable
from argrad.latents import MAX_STATES
from argrad.latents.base import broadcasts, can_read_values
from problems import assert_mean

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def with_impossible(scores: Tensor) -> Tensor:
    scores = scores.clone()
    scores[..., 1] = -torch.inf
    return scores


def several(scores: Tensor, **options: bool) -> Categorical:
    return Categorical(scores, event_dims=2, **options)


FAMILIES: dict[str, tuple[Callable[..., Latent], Tensor]] = {
    "categorical": (Categorical, 1.5 * normal(3, 5)),
    "categorical, no batch": (Categorical, normal(4)),
    "categorical, one value": (Categorical, normal(2, 1)),
    "categorical, batch of two dimensions": (Categorical, normal(2, 3, 4)),
    "categorical, empty batch": (Categorical, normal(0, 4)),
    "categorical, impossible value": (Categorical, with_impossible(normal(2, 4))),
    "categoricals": (several, normal(2, 3, 4)),
    "categoricals, no batch": (several, normal(3, 2)),
    "categoricals, one variable": (several, normal(2, 1, 3)),
    "categoricals, one value": (several, normal(2, 3, 1)),
    "categoricals, empty batch": (several, normal(0, 2, 3)),
    "categoricals, impossible value": (several, with_impossible(normal(1, 2, 3))),
    "bits": (Bits, 1.5 * normal(3, 4)),
    "bits, no batch": (Bits, normal(5)),
    "bits, one": (Bits, normal(2, 1)),
    "bits, batch of two dimensions": (Bits, normal(2, 3, 2)),
    "bits, empty batch": (Bits, normal(0, 3)),
    "bits, impossible bit": (Bits, with_impossible(normal(2, 3))),
}
every_latent = pytest.mark.parametrize("name", FAMILIES)
filled = pytest.mark.parametrize("name", [name for name in FAMILIES if "empty" not in name])


def make(name: str) -> Latent:
    build, scores = FAMILIES[name]
    return build(scores.clone().requires_grad_())


def gradient(value: Tensor, latent: Latent) -> Tensor:
    return torch.autograd.grad(value, latent.scores)[0]


def spread(latent: Latent) -> Tensor:
    """Every structure with singleton batch dimensions, ``[S, 1, ..., *event]``."""
    states = latent.enumerate()
    return states.reshape(len(states), *(1,) * len(latent.batch_shape), *latent.event_shape)


# --------------------------------------------------------------------------------------------------- the contract


@every_latent
def test_shapes(name):
    q = make(name)
    z = q.sample((2,), generator=torch.Generator().manual_seed(0))
    assert z.shape == (2, *q.batch_shape, *q.event_shape)
    assert z.dtype == q.scores.dtype
    assert not z.requires_grad
    assert q.batch_shape + q.event_shape == q.scores.shape
    for value in (q.entropy(), q.kl()):
        assert value.shape == q.batch_shape
    for value in (q.score(z), q.log_prob(z)):
        assert value.shape == (2, *q.batch_shape)
    for value in (q.mode(), q.mean(), q.gradient_of_mean(torch.ones_like(q.scores)), q.draw_noise()):
        assert value.shape == q.scores.shape
    assert q.score_gradient(z).shape == z.shape
    assert q.enumerate().shape == (q.num_states, *q.event_shape)
    assert q.log_prob_all().shape == (*q.batch_shape, q.num_states)
    expanded = q.expand(6, 2)
    assert expanded.batch_shape == (6, 2, *q.batch_shape)
    assert type(expanded) is type(q)
    assert expanded.event_dims == q.event_dims


@every_latent
def test_enumerate_lists_every_structure_once_last_variable_fastest(name):
    q = make(name)
    states = q.enumerate()
    assert q.num_states == q.values**q.variables
    expected = list(itertools.product(range(q.values), repeat=q.variables))
    if isinstance(q, Bits):
        found = [tuple(int(bit) for bit in state) for state in states]
    else:
        assert bool((states.sum(-1) == 1).all())
        assert bool(((states == 0) | (states == 1)).all())
        found = [tuple(row) for row in states.argmax(-1).reshape(len(states), -1).tolist()]
    assert found == expected
    assert states.dtype == q.scores.dtype


@every_latent
def test_log_prob_of_everything(name):
    q = make(name)
    direct = q.log_prob(spread(q)).movedim(0, -1)
    torch.testing.assert_close(q.log_prob_all(), direct, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(q.log_prob_all().exp().sum(-1), torch.ones(q.batch_shape).double())
    assert not q.log_prob_all().isnan().any()


@filled
def test_log_prob_is_the_normalised_score(name):
    q = make(name)
    every = q.score(spread(q))
    torch.testing.assert_close(q.log_prob(spread(q)), every - every.logsumexp(0), rtol=1e-12, atol=1e-12)


@filled
def test_score_is_linear_in_z(name):
    """The gradient of the score with respect to the scores is z itself."""
    q = make(name)
    z = q.sample(generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(gradient(q.score(z).sum(), q), z)


@filled
def test_entropy_kl_and_mean_by_enumeration(name):
    q = make(name)
    log_p = q.log_prob_all()
    p = log_p.exp()
    log_p = torch.where(p > 0, log_p, 0.0)
    torch.testing.assert_close(q.entropy(), -(p * log_p).sum(-1), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(q.kl(), math.log(q.num_states) - q.entropy(), rtol=1e-10, atol=1e-12)
    weights = p.movedim(-1, 0).reshape(q.num_states, *q.batch_shape, *(1,) * q.event_dims)
    mean = (weights * spread(q)).sum(0)
    torch.testing.assert_close(q.mean(), mean, rtol=1e-10, atol=1e-12)


@filled
def test_kl_to_another_by_enumeration(name):
    q = make(name)
    prior = q.with_scores(normal(*q.scores.shape, seed=5))
    p, ratio = q.log_prob_all().exp(), q.log_prob_all() - prior.log_prob_all()
    torch.testing.assert_close(q.kl(prior), torch.where(p > 0, p * ratio, 0.0).sum(-1), rtol=1e-10, atol=1e-12)
    assert bool((q.kl(q).abs() < 1e-12).all())


@filled
def test_entropy_and_kl_gradients_by_enumeration(name):
    q = make(name)
    prior = q.with_scores(normal(*q.scores.shape, seed=5).requires_grad_())
    p = q.log_prob_all().exp()
    for value, log_ratio in (
        (-q.entropy(), q.log_prob_all()),
        (q.kl(), q.log_prob_all() + math.log(q.num_states)),
        (q.kl(prior), q.log_prob_all() - prior.log_prob_all()),
    ):
        safe = torch.where(p > 0, log_ratio, 0.0)
        expected = torch.autograd.grad((p * safe).sum(), q.scores, retain_graph=True)[0]
        torch.testing.assert_close(gradient(value.sum(), q), expected, rtol=1e-9, atol=1e-12)
    (to_prior,) = torch.autograd.grad(q.kl(prior).sum(), prior.scores)
    torch.testing.assert_close(to_prior, (prior.mean() - q.mean()).detach(), rtol=1e-9, atol=1e-12)


@filled
def test_gradient_of_mean(name):
    q = make(name)
    weights = normal(*q.scores.shape, seed=2)
    ours = q.gradient_of_mean(weights)
    torch.testing.assert_close(ours, gradient((q.mean() * weights).sum(), q), rtol=1e-10, atol=1e-12)
    assert not ours.requires_grad


@filled
def test_score_gradient(name):
    q = make(name)
    z = q.sample(generator=torch.Generator().manual_seed(3))
    ours = q.score_gradient(z)
    torch.testing.assert_close(ours, gradient(q.log_prob(z).sum(), q), rtol=1e-10, atol=1e-12)
    assert not ours.requires_grad


@filled
def test_mode_has_the_highest_probability(name):
    q = make(name)
    torch.testing.assert_close(q.log_prob(q.mode()), q.log_prob_all().max(-1).values)
    assert not q.mode().requires_grad


@filled
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_sampling_frequencies(name, dtype, device):
    build, scores = FAMILIES[name]
    q = build(scores.to(device, dtype))
    z = q.sample((20_000,), generator=torch.Generator(device).manual_seed(4)).cpu()
    # The probability of each structure, not only of each coordinate: independence is tested too.
    states, reference = q.enumerate().cpu(), build(scores.to(dtype).double())
    lead = (1,) * len(q.batch_shape)
    event = tuple(range(-q.event_dims, 0))
    is_state = (z.unsqueeze(-1 - q.event_dims) == states.reshape(*lead, *states.shape)).all(event[0]).double()
    is_state = is_state.all(-1).double() if q.event_dims == 2 else is_state
    assert_mean(is_state, reference.log_prob_all().exp(), comparisons=len(FAMILIES) * 3)
    impossible = (q.log_prob_all() == -torch.inf).cpu()
    assert not is_state.sum(0)[impossible].any()


@every_latent
def test_noise_decides_the_sample(name):
    q = make(name)
    noise = q.draw_noise((3,), generator=torch.Generator().manual_seed(6))
    z = q.sample(noise=noise)
    assert torch.equal(z, q.sample((3,), generator=torch.Generator().manual_seed(6)))
    assert torch.equal(z, q.sample((3,), noise=noise))
    assert torch.equal(z, q.solve(q.scores + noise))
    assert torch.equal(q.perturb(noise), q.scores + noise)


@filled
def test_relax_approaches_the_structure(name):
    q = make(name)
    noise = q.draw_noise((4,), generator=torch.Generator().manual_seed(7))
    torch.testing.assert_close(q.relax(q.perturb(noise), 1e-7).detach(), q.sample(noise=noise), atol=1e-6, rtol=0)
    soft = q.relax(q.perturb(noise), 1.0)
    assert bool(((soft >= 0) & (soft <= 1)).all())
    torch.testing.assert_close(q.relax(q.scores, 1.0), q.mean())


@filled
def test_relax_gradients_by_finite_differences(name):
    q = make(name)
    finite = q.scores.detach().clamp_min(-3).requires_grad_()
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(q.relax, (finite, temperature))


@filled
def test_perturb_given_keeps_the_outcome(name):
    q = make(name)
    z = q.sample((500,), generator=torch.Generator().manual_seed(8))
    perturbed = q.perturb_given(z, q.draw_noise((500,), generator=torch.Generator().manual_seed(9)))
    assert torch.equal(q.solve(perturbed), z)
    assert not perturbed.isnan().any()


def invert_given(q: Latent, z: Tensor, t: Tensor) -> Tensor:
    """The noise for which ``perturb_given(z, noise)`` has the value t, derived here independently."""
    h = q.scores.detach()
    if isinstance(q, Bits):
        sign = 2 * z - 1
        return sign * ((sign * t).expm1().log() - softplus(sign * h, threshold=40))
    top = t.amax(-1, keepdim=True)
    others = -((-t).exp() - (-top).exp()).log() - h
    return torch.where(z > 0, top - h.logsumexp(-1, keepdim=True), others)


@filled
def test_outcome_path_gradient(name):
    """Both paths agree in the value of t and differ in its gradient; the difference is what is returned."""
    q = make(name)
    possible = q.scores.detach() > -torch.inf
    noise = q.draw_noise((6,), generator=torch.Generator().manual_seed(10))
    z, weights = q.sample(noise=noise), normal(6, *q.scores.shape, seed=11)
    scores = q.scores.detach().expand_as(noise).clone().requires_grad_()
    free = scores + noise
    t = free.detach()
    inverted = torch.where(possible, invert_given(q, z, t), 0.0)
    given = q.with_scores(scores).perturb_given(z, inverted)
    torch.testing.assert_close(given.detach(), t, rtol=1e-9, atol=1e-9)
    masked = torch.where(possible, weights, 0.0)

    def pulled_back(perturbed: Tensor) -> Tensor:
        return torch.autograd.grad((torch.where(possible, perturbed, 0.0) * masked).sum(), scores)[0]

    expected = pulled_back(free) - pulled_back(given)
    ours = q.with_scores(scores).outcome_path_gradient(z, t, weights)
    torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-9)
    assert not ours.requires_grad


# ----------------------------------------------------------------------------------------------- single changes


@every_latent
def test_changes_are_all_there_is_one_variable_away(name):
    q = make(name)
    z = q.sample(generator=torch.Generator().manual_seed(12))
    changed = q.change(z, torch.arange(q.num_changes))
    assert q.num_changes == q.variables * (q.values - 1)
    assert changed.shape == (q.num_changes, *z.shape)
    assert changed.dtype == z.dtype
    assert bool(((changed == 0) | (changed == 1)).all())
    if isinstance(q, Bits):
        distance = (changed != z).sum(-1)
    else:
        assert bool((changed.sum(-1) == 1).all())
        differs = (changed != z).any(-1)
        distance = differs.sum(-1) if q.event_dims == 2 else differs.long()
    assert bool((distance == 1).all())
    for first, second in itertools.combinations(range(q.num_changes), 2):
        assert bool((changed[first] != changed[second]).flatten(len(q.batch_shape)).any(-1).all())


@every_latent
def test_random_changes_per_example(name):
    q = make(name)
    if q.num_changes == 0:
        assert q.change(q.mode(), torch.arange(0)).shape == (0, *q.scores.shape)
        return
    z = q.sample(generator=torch.Generator().manual_seed(13))
    every = q.change(z, torch.arange(q.num_changes))
    which = torch.randint(q.num_changes, (7, *q.batch_shape), generator=torch.Generator().manual_seed(14))
    picked = q.change(z, which)
    assert picked.shape == (7, *z.shape)
    for row in range(7):
        for where in itertools.product(*map(range, q.batch_shape)):
            assert torch.equal(picked[row][where], every[which[row][where]][where])


@every_latent
def test_tables_against_setting_each_variable_to_each_value(name):
    q = make(name)
    z = q.sample(generator=torch.Generator().manual_seed(15))
    weights = normal(*q.event_shape, seed=16)
    event = tuple(range(-q.event_dims, 0))

    def cost(z: Tensor) -> Tensor:
        mixed = (z * weights).sum(event)
        return mixed + mixed.square() + mixed.sin()

    table = q.tabulate_changes(z, cost(z), cost(q.change(z, torch.arange(q.num_changes))))
    assert table.shape == q.table_shape
    by_variable = table if not q.is_one_of_k else table.unsqueeze(-2)
    for i in range(q.variables):
        for value in range(q.values):
            edited = z.clone()
            if isinstance(q, Bits):
                edited[..., i] = value
            else:
                row = torch.zeros(q.values, dtype=z.dtype)
                row[value] = 1
                if q.event_dims == 2:
                    edited[..., i, :] = row
                else:
                    edited[...] = row
            torch.testing.assert_close(by_variable[..., i, value], cost(edited))


@filled
def test_linear_weights_reproduce_the_table(name):
    """<w, z> is the sum over variables of the table's entries at z, up to a constant."""
    q = make(name)
    table = normal(*q.table_shape, seed=17)
    weights = q.linear(table)
    assert weights.shape == q.scores.shape
    event = tuple(range(-q.event_dims, 0))
    totals = []
    for state in q.enumerate():
        digits = state.long() if isinstance(q, Bits) else state.argmax(-1).reshape(-1)
        rows = table if not q.is_one_of_k else table.unsqueeze(-2)
        picked = sum(rows[..., i, int(digit)] for i, digit in enumerate(digits))
        totals.append((weights * state).sum(event) - picked)
    differences = torch.stack(totals)
    torch.testing.assert_close(differences, differences[:1].expand_as(differences))


# -------------------------------------------------------------------------- impossible outcomes, precision, transforms


@pytest.mark.parametrize("name", [name for name in FAMILIES if "impossible" in name])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_impossible_outcomes_bring_no_nan(name, dtype):
    build, scores = FAMILIES[name]
    q = build(scores.to(dtype).clone().requires_grad_())
    prior = q.with_scores(scores.to(dtype).clone().requires_grad_())
    noise = q.draw_noise((3,), generator=torch.Generator().manual_seed(18))
    z = q.sample(noise=noise)
    temperature = torch.tensor(0.01, dtype=dtype, requires_grad=True)
    possible = q.scores.detach() > -torch.inf
    values = {
        "entropy": q.entropy(),
        "kl": q.kl(),
        "kl to a prior with the same support": q.kl(prior),
        "kl to a wider prior": q.kl(q.with_scores(torch.zeros_like(q.scores))),
        "log_prob": q.log_prob(z),
        "score": q.score(z),
        "mean": q.mean(),
        "relax": q.relax(q.perturb(noise), temperature),
        "relax given": q.relax(q.perturb_given(z, noise), temperature),
        "probabilities": q.log_prob_all().exp(),
        "perturb_given": torch.where(possible, q.perturb_given(z, noise), 0.0),
    }
    for what, value in values.items():
        assert bool(value.isfinite().all()), what
        inputs = [q.scores, prior.scores, temperature]
        for part in torch.autograd.grad(value.sum(), inputs, allow_unused=True, retain_graph=True):
            assert part is None or bool(part.isfinite().all()), what
    for what in ("relax", "relax given", "mean"):
        assert not values[what].expand_as(noise)[:, ~possible].any(), what
    perturbed = q.perturb(noise).detach()
    for closed in (
        q.score_gradient(z),
        q.gradient_of_mean(torch.ones_like(q.scores)),
        q.outcome_path_gradient(z, perturbed, torch.ones_like(noise)),
    ):
        assert bool(closed.isfinite().all())
        assert not closed.expand_as(noise)[:, ~possible].any()
    assert bool((q.log_prob_all().exp().sum(-1) - 1).abs().max() < 1e-5)


@pytest.mark.parametrize("build", [Categorical, Bits])
def test_kl_where_the_probability_underflows_and_the_prior_says_never(build):
    """A logit of −200 is a probability of 0 in float32; against a prior of exactly 0 that is 0 log(0/0), not NaN."""
    q = build(torch.tensor([0.0, -200.0], requires_grad=True))
    kl = q.kl(build(torch.tensor([0.0, -torch.inf])))
    assert kl == 0
    assert bool(gradient(kl, q).isfinite().all())


@pytest.mark.parametrize("build", [Categorical, Bits])
def test_kl_is_infinite_where_the_prior_forbids_what_happens(build):
    assert build(torch.zeros(2)).kl(build(torch.tensor([0.0, -torch.inf]))) == torch.inf


@every_latent
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(name, dtype):
    build, scores = FAMILIES[name]
    q, reference = build(scores.to(dtype).requires_grad_()), build(scores.to(dtype).double())
    noise = q.draw_noise((3,), generator=torch.Generator().manual_seed(19))
    assert noise.dtype == torch.float32
    z = q.sample(noise=noise)
    assert z.dtype == dtype
    # The choice is made in the precision of the noise, so half precision changes no sample.
    assert torch.equal(z.double(), reference.sample(noise=noise.double()))
    for half, exact in (
        (q.entropy(), reference.entropy()),
        (q.kl(), reference.kl()),
        (q.log_prob(z), reference.log_prob(z.double())),
        (q.mean(), reference.mean()),
        (q.relax(q.perturb(noise), 0.5), reference.relax(reference.perturb(noise.double()), 0.5)),
        (q.relax(q.scores, 0.5), reference.relax(reference.scores, 0.5)),
        (q.perturb_given(z, noise), reference.perturb_given(z.double(), noise.double())),
    ):
        torch.testing.assert_close(half.double(), exact, rtol=0.02, atol=0.05)
    assert not gradient((q.entropy() + q.kl() + q.log_prob(z)).sum(), q).isnan().any()


def everything(q: Latent, noise: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
    """All that is promised as a deterministic function of scores and noise."""
    z = q.sample(noise=noise)
    perturbed = q.perturb(noise)
    return (
        z,
        q.log_prob(z),
        q.entropy(),
        q.kl(),
        q.mean(),
        q.mode(),
        q.relax(perturbed, 0.5),
        q.perturb_given(z, noise.flip(-1)),
        q.outcome_path_gradient(z, perturbed.detach(), weights),
        q.gradient_of_mean(weights),
        q.score_gradient(z),
        q.log_prob_all(),
        q.change(z, torch.arange(q.num_changes, device=z.device)),
    )


TRANSFORMED = ["categorical", "categoricals", "bits", "categorical, impossible value", "bits, impossible bit"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", TRANSFORMED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_compiles_without_graph_breaks(name, backend, device):
    build, scores = FAMILIES[name]
    scores = scores.to(device)
    noise = build(scores).draw_noise(generator=torch.Generator(device).manual_seed(20))
    weights = normal(*scores.shape, seed=21).to(device)

    def function(scores: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        return everything(build(scores), noise, weights)

    torch.compiler.reset()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for ours, expected in zip(compiled(scores, noise), function(scores, noise), strict=True):
        torch.testing.assert_close(ours, expected)
    leaf, other = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    compiled(leaf, noise)[2].sum().backward()
    function(other, noise)[2].sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad)


@pytest.mark.parametrize("name", TRANSFORMED)
def test_vmap_over_the_batch_and_over_the_noise(name):
    build, scores = FAMILIES[name]
    q = build(scores)
    noise, weights = q.draw_noise(generator=torch.Generator().manual_seed(22)), normal(*scores.shape, seed=23)
    # The new dimension of a change comes first under vmap: compare it after moving it back.
    expected = everything(q, noise, weights)
    mapped = torch.vmap(lambda h, g, w: everything(build(h), g, w))(scores, noise, weights)
    for i, (ours, direct) in enumerate(zip(mapped, expected, strict=True)):
        torch.testing.assert_close(ours.movedim(1, 0) if i == len(mapped) - 1 else ours, direct)
    many = q.draw_noise((4,), generator=torch.Generator().manual_seed(24))
    torch.testing.assert_close(torch.vmap(lambda g: q.sample(noise=g))(many), q.sample(noise=many))


@pytest.mark.parametrize("name", TRANSFORMED)
def test_functional_gradients(name):
    build, scores = FAMILIES[name]
    noise = build(scores).draw_noise(generator=torch.Generator().manual_seed(25))
    z = build(scores).sample(noise=noise)

    def total(scores: Tensor) -> Tensor:
        q = build(scores)
        return (q.entropy() + 2 * q.log_prob(z)).sum() + q.relax(q.perturb(noise), 0.7).square().sum()

    leaf = scores.clone().requires_grad_()
    total(leaf).backward()
    torch.testing.assert_close(torch.func.grad(total)(scores), leaf.grad)
    per_example = torch.vmap(torch.func.grad(lambda h: build(h).entropy()))(scores)
    leaf.grad = None
    build(leaf).entropy().sum().backward()
    torch.testing.assert_close(per_example, leaf.grad)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", TRANSFORMED)
def test_cuda_graph_capture(name):
    build, scores = FAMILIES[name]
    scores = scores.cuda()
    noise, weights = build(scores).draw_noise(), torch.ones_like(scores)
    everything(build(scores), noise, weights)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = everything(build(scores), noise, weights)
    noise.copy_(build(scores).draw_noise())
    graph.replay()
    for ours, expected in zip(captured, everything(build(scores), noise, weights), strict=True):
        torch.testing.assert_close(ours, expected)


def test_reading_values_is_switched_off_under_transforms():
    seen = []

    def look(x: Tensor) -> Tensor:
        seen.append(can_read_values(x))
        return x.sum()

    x = torch.ones(2, 3)
    look(x)
    torch.vmap(look)(x)
    torch.func.grad(look)(x)
    look(x.to("meta"))
    assert seen == [True, False, False, False]


# ------------------------------------------------------------------------------------------------------ validation

NAN, INF = float("nan"), torch.inf
BAD_SCORES = {
    "NaN": (lambda: Categorical(torch.tensor([[0.0, NAN]])), ["Categorical", "NaN", "(0, 1)", "learning rate"]),
    "NaN beside -inf": (lambda: Categorical(torch.tensor([NAN, -INF])), ["NaN"]),
    "+inf": (lambda: Categorical(torch.tensor([[0.0, 1.0], [INF, 0.0]])), ["+inf", "(1, 0)", "large finite number"]),
    "all -inf": (lambda: Categorical(torch.tensor([[0.0, 0.0], [-INF, -INF]])), ["-inf", "(1,)", "1 of 2", "possible"]),
    "all -inf, n variables": (lambda: several(torch.tensor([[[0.0, 0.0], [-INF, -INF]]])), ["-inf", "(0, 1)"]),
    "NaN bit": (lambda: Bits(torch.tensor([0.0, NAN])), ["Bits", "NaN", "(1,)"]),
    "+inf bit": (lambda: Bits(torch.tensor([0.0, INF])), ["Bits", "+inf", "(1,)"]),
    "integers": (lambda: Categorical(torch.zeros(3, dtype=torch.long)), ["torch.int64", ".float()"]),
    "a list": (lambda: Bits([0.0, 1.0]), ["list", ".float()"]),
    "a number": (lambda: Categorical(torch.tensor(1.0)), ["[*batch, k]", "()"]),
    "no values": (lambda: Categorical(torch.zeros(2, 0)), ["[*batch, k]", "(2, 0)", "empty"]),
    "no variables": (lambda: several(torch.zeros(2, 0, 3)), ["[*batch, n, k]", "(2, 0, 3)"]),
    "too few dimensions": (lambda: several(torch.zeros(3)), ["[*batch, n, k]", "(3,)"]),
    "no bits": (lambda: Bits(torch.zeros(2, 0)), ["[*batch, n]", "(2, 0)"]),
    "three event dimensions": (lambda: Categorical(torch.zeros(2, 2, 2), event_dims=3), ["event_dims", "1", "2", "3"]),
}


@pytest.mark.parametrize("case", BAD_SCORES)
def test_bad_scores_are_one_clear_line(case):
    build, words = BAD_SCORES[case]
    with pytest.raises(ValueError, match=r".") as error:
        build()
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 250
    for word in words:
        assert word in message


q3 = Categorical(torch.zeros(2, 3))
BAD_CALLS = {
    "noise of another shape": (lambda: q3.sample(noise=torch.zeros(2, 4)), ["(2, 4)", "[*extra, 2, 3]", "draw_noise"]),
    "noise without batch": (lambda: q3.sample(noise=torch.zeros(3)), ["(3,)", "[*extra, 2, 3]"]),
    "scalar noise": (lambda: Bits(torch.zeros(2, 3)).sample(noise=torch.tensor(0.0)), ["()", "[*extra, 2, 3]"]),
    "shape and noise": (lambda: q3.sample((5,), noise=torch.zeros(4, 2, 3)), ["(5,)", "(4, 2, 3)", "leave shape out"]),
    "noise given an outcome": (lambda: q3.perturb_given(q3.mode(), torch.zeros(3)), ["(3,)", "draw_noise"]),
    "z of another k": (lambda: q3.log_prob(torch.zeros(2, 4)), ["(2, 4)", "Categorical", "2, 3"]),
    "z of another batch": (lambda: q3.log_prob(torch.zeros(5, 3)), ["(5, 3)", "2, 3"]),
    "z of another batch, score": (lambda: q3.score(torch.zeros(5, 3)), ["(5, 3)", "2, 3"]),
    "z too short": (lambda: several(torch.zeros(2, 3)).log_prob(torch.zeros(3)), ["(3,)"]),
    "z of other bits": (lambda: Bits(torch.zeros(2, 3)).log_prob(torch.zeros(2, 4)), ["(2, 4)", "Bits"]),
    "prior of another family": (lambda: q3.kl(Bits(torch.zeros(3))), ["Categorical", "Bits", "same family"]),
    "prior of another size": (lambda: q3.kl(Categorical(torch.zeros(4))), ["values=3", "values=4"]),
    "prior of other bits": (lambda: Bits(torch.zeros(3)).kl(Bits(torch.zeros(4))), ["variables=3", "variables=4"]),
    "bits to a categorical": (lambda: Bits(torch.zeros(3)).kl(q3), ["same family"]),
    "a prior that is no latent": (lambda: q3.kl(Gaussian(torch.zeros(3), torch.zeros(3))), ["same family", "Gaussian"]),
    "too many bits": (lambda: Bits(torch.zeros(30)).enumerate(), ["2^30", f"{MAX_STATES:,}", "Reinforce"]),
    "too many bits to list": (lambda: Bits(torch.zeros(30)).log_prob_all(), ["2^30", f"{MAX_STATES:,}"]),
    "too many structures": (lambda: several(torch.zeros(1, 50, 10)).enumerate(), ["10^50", "sample"]),
    "too many to list": (lambda: several(torch.zeros(1, 50, 10)).log_prob_all(), ["10^50"]),
    "a wrong distribution": (
        lambda: Categorical.from_distribution(torch.distributions.Poisson(torch.ones(3))),
        ["Poisson", "OneHotCategorical"],
    ),
    "two reinterpreted dimensions": (
        lambda: Categorical.from_distribution(
            torch.distributions.Independent(torch.distributions.Categorical(torch.ones(2, 3, 4)), 2)
        ),
        ["Independent"],
    ),
    "a wrong distribution of bits": (
        lambda: Bits.from_distribution(torch.distributions.Poisson(torch.ones(3))),
        ["Poisson", "Bernoulli"],
    ),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_calls_are_one_clear_line(case):
    call, words = BAD_CALLS[case]
    with pytest.raises(ValueError, match=r".") as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 250
    for word in words:
        assert word in message


def test_as_many_structures_as_allowed():
    q = Bits(torch.zeros(20))
    assert q.num_states == MAX_STATES
    q.check_enumerable()


def test_validation_can_be_switched_off_and_leaves_the_shape_checks():
    assert Categorical(torch.tensor([0.0, NAN]), validate=False).values == 2
    assert Bits(torch.tensor([INF]), validate=False).variables == 1
    with pytest.raises(ValueError, match="floating-point"):
        Categorical(torch.zeros(3, dtype=torch.long), validate=False)
    assert Categorical(torch.zeros(2, 3)).with_scores(torch.full((2, 3), NAN)).values == 3


def test_impossible_bits_are_valid_and_impossible_values_too():
    assert Bits(torch.full((3,), -INF)).entropy() == 0
    assert Categorical(torch.tensor([-INF, 5.0, -INF])).entropy() == 0


def test_names_without_numbers():
    assert repr(Categorical(torch.zeros(2, 3))) == "Categorical(batch=(2,), variables=1, values=3)"
    assert repr(several(torch.zeros(4, 2, 3))) == "Categorical(batch=(4,), variables=2, values=3)"
    assert repr(Bits(torch.zeros(3))) == "Bits(batch=(), variables=3)"


def test_is_one_of_k():
    assert Categorical(torch.zeros(2, 3)).is_one_of_k
    assert Categorical(torch.zeros(1)).is_one_of_k
    assert not several(torch.zeros(2, 1, 3)).is_one_of_k
    assert not Bits(torch.zeros(1)).is_one_of_k
    assert not Bits(torch.zeros(2)).is_one_of_k


def test_unavailable_is_an_error_of_its_own_kind():
    assert issubclass(Unavailable, NotImplementedError)


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ((), (3,), True),
        ((3,), (3,), True),
        ((2, 1), (5,), True),
        ((2,), (3,), False),
        ((0,), (1,), True),
        ((0,), (2,), False),
    ],
)
def test_broadcasts(first, second, together):
    assert broadcasts(first, second) is together
    assert broadcasts(second, first) is together
