"""Exact, Reinforce and Direct on structured latents: gradients for all parameters against enumeration."""

import math

import pytest
import torch
from torch import Tensor

import argrad
from argrad import Direct, Exact, PairwiseBits, Permutation, Reinforce, Subset
from argrad.estimators import Estimator
from argrad.estimators.base import attach_difference
from argrad.latents import Structured
from problems import assert_mean
from structured_latents import CASES, FILLED, PLAIN, Case, listed, normal, spread
from structures import assert_listed

SAMPLES = 10_000
OWN = {  # parameters with a batch of their own, so that every draw can have a copy
    **{name: CASES[name] for name in PLAIN},
    "chain": Case(argrad.Chain, (normal(2, 3, 2), normal(2, 2, 2, 2, seed=1))),
}
every = pytest.mark.parametrize("name", OWN)
UNBIASED = {
    "Reinforce none": lambda: Reinforce(baseline="none"),
    "Reinforce moving average": lambda: Reinforce(),
    "Reinforce leave-one-out": lambda: Reinforce(3),
    "Reinforce learnt": lambda: Reinforce(2, baseline="learnt"),
}


def weights(case: Case) -> Tensor:
    return normal(*case().event_shape, seed=7)


def curved(case: Case, theta: Tensor):
    """A cost with two parameters of its own, far from linear."""
    w, event = weights(case), tuple(range(-case().event_dims, 0))

    def cost(z: Tensor) -> Tensor:
        mixed = (z * w).sum(event)
        return theta[..., 0] * mixed + (mixed - theta[..., 1]).square()

    return cost


def linear(case: Case):
    """The cost <w, z>."""
    w, event = weights(case), tuple(range(-case().event_dims, 0))
    return lambda z: (z * w).sum(event)


THETA = torch.tensor([0.7, -0.3], dtype=torch.float64)


def exactly(case: Case) -> tuple[Tensor, ...]:
    """E[curved cost] and its gradients for all parameters and theta, from scores and a sum."""
    leaves, theta = case.leaves(), THETA.clone().requires_grad_()
    q = case(*leaves)
    value = (listed(q).exp() * curved(case, theta)(spread(q)).movedim(0, -1)).sum(-1)
    return value.detach(), *torch.autograd.grad(value.sum(), (*leaves, theta))


def draws(estimator: Estimator, case: Case, cost=None, law: str = "gibbs", samples: int = SAMPLES) -> list[Tensor]:
    """Values, gradients for every parameter, and for theta, each with a leading dimension of draws."""
    leaves = [parameter.expand(samples, *parameter.shape).clone().requires_grad_() for parameter in case.parameters]
    theta = THETA.expand(samples, 1, 2).clone().requires_grad_()
    cost = curved(case, theta) if cost is None else cost
    value = estimator(case(*leaves, law=law), cost, generator=torch.Generator().manual_seed(11))
    gradients = torch.autograd.grad(value.sum(), (*leaves, theta), allow_unused=True)
    return [value.detach(), *gradients[:-1], None if gradients[-1] is None else gradients[-1].squeeze(1)]


def expected_score_gradient(case: Case, tilt) -> tuple[Tensor, ...]:
    """E[∇score] for all parameters under the law of the tilted scores ``h + tilt``: the gradient of log Z."""
    leaves = case.leaves()
    q = case(leaves[0] + tilt, *leaves[1:])
    normaliser = q.score(spread(q)).movedim(0, -1).logsumexp(-1)
    return torch.autograd.grad(normaliser.sum(), leaves)


def closed_form(case: Case, epsilon: float, *, two_sided: bool = False) -> list[Tensor]:
    """What Direct with a linear cost is in expectation: (m(h) − m(h − εw)) / ε, or its two-sided form."""
    w = weights(case)
    ahead = expected_score_gradient(case, -epsilon * w)
    behind = expected_score_gradient(case, epsilon * w if two_sided else 0.0 * w)
    return [(b - a) / (2 * epsilon if two_sided else epsilon) for a, b in zip(ahead, behind, strict=True)]


QUICK = [(label, "pairwise bits") for label in UNBIASED] + [("Reinforce leave-one-out", name) for name in OWN]
REST = [(label, name) for label in UNBIASED for name in OWN if (label, name) not in QUICK]


@pytest.mark.parametrize(
    ("label", "name"), [*dict.fromkeys(QUICK), *(pytest.param(*pair, marks=pytest.mark.slow) for pair in REST)]
)
def test_unbiased_for_every_parameter(label, name):
    case = OWN[name]
    torch.manual_seed(0)
    estimator = UNBIASED[label]()
    for _ in range(3):  # so that a baseline is something other than zero
        draws(estimator, case, samples=50)
    found, expected = draws(estimator.eval(), case), exactly(case)
    for ours, theirs in zip(found, expected, strict=True):
        assert_mean(ours, theirs, comparisons=4 * len(UNBIASED))


@every
def test_exact_is_the_sum(name):
    for ours, theirs in zip(draws(Exact(), OWN[name], samples=3), exactly(OWN[name]), strict=True):
        torch.testing.assert_close(ours, theirs.expand_as(ours))


@pytest.mark.parametrize(
    ("name", "two_sided"),
    [*((name, False) for name in OWN), ("pairwise bits", True)]
    + [pytest.param(name, True, marks=pytest.mark.slow) for name in OWN if name != "pairwise bits"],
)
def test_direct_with_a_linear_cost_has_its_closed_form(name, two_sided):
    case = OWN[name]
    found = draws(Direct(0.4, two_sided=two_sided, changes="gradient"), case, linear(case))
    for ours, theirs in zip(found[1:-1], closed_form(case, 0.4, two_sided=two_sided), strict=True):
        assert_mean(ours, theirs, comparisons=4)


@pytest.mark.parametrize("name", ["pairwise bits", "chain"])
def test_single_changes_of_a_linear_cost_are_its_gradient(name):
    case = OWN[name]
    w = weights(case)
    results = []
    for changes in ("single", "gradient", lambda z: w):
        leaves = case.leaves()
        estimator = Direct(0.4, changes=changes)
        q = case(*leaves)
        noise = estimator.draw_noise(q, generator=torch.Generator().manual_seed(3))
        results.append(torch.autograd.grad(estimator(q, linear(case), noise=noise).sum(), leaves))
    for result in results[1:]:
        for first, other in zip(results[0], result, strict=True):
            torch.testing.assert_close(first, other)


@every
@pytest.mark.parametrize(("two_sided", "order"), [(False, 1), (True, 2)])
def test_bias_falls_with_epsilon(name, two_sided, order):
    case = OWN[name]
    leaves = case.leaves()
    exact = torch.autograd.grad(Exact()(case(*leaves), linear(case)).sum(), leaves)

    def bias(epsilon: float) -> float:
        found = closed_form(case, epsilon, two_sided=two_sided)
        return math.sqrt(sum((a - b).square().sum().item() for a, b in zip(found, exact, strict=True)))

    slope = math.log(bias(0.02) / bias(0.005)) / math.log(4)
    assert abs(slope - order) < 0.1


@every
@pytest.mark.parametrize("law", ["gibbs", "perturb"])
def test_direct_keeps_value_and_cost_gradient(name, law):
    case = OWN[name]
    found = draws(Direct(0.4, changes="gradient"), case, law=law)
    if law == "gibbs":
        expected = exactly(case)
        assert_mean(found[0], expected[0], comparisons=2)
        assert_mean(found[-1], expected[-1], comparisons=2)
        return
    z = case(law=law).sample((SAMPLES,), generator=torch.Generator().manual_seed(11))
    torch.testing.assert_close(found[0], curved(case, THETA)(z))


def test_all_costs_leave_the_bias_of_one_categorical_variable():
    case = OWN["pairwise bits"]
    theta = THETA
    for two_sided in (False, True):
        found = draws(Direct(0.3, changes="all", two_sided=two_sided), case)

        def objective(epsilon: float) -> tuple[Tensor, ...]:
            leaves = case.leaves()
            q = case(*leaves)
            costs = curved(case, theta)(spread(q)).movedim(0, -1)
            return torch.autograd.grad((listed(q) - epsilon * costs).logsumexp(-1).sum(), leaves)

        # −log E[exp(−εc)] / ε, and the mean of its two sides
        expected = [-gradient / 0.3 for gradient in objective(0.3)]
        if two_sided:
            expected = [0.5 * (a + b / 0.3) for a, b in zip(expected, objective(-0.3), strict=True)]
        for ours, theirs in zip(found[1:-1], expected, strict=True):
            assert_mean(ours, theirs, comparisons=6)
        exact = exactly(case)
        assert_mean(found[0], exact[0], comparisons=6)
        assert_mean(found[-1], exact[-1], comparisons=6)


def test_all_costs_by_hand():
    q = CASES["pairwise bits"]()
    unary = q.scores.clone().requires_grad_()
    cost = curved(CASES["pairwise bits"], THETA)
    noise = q.draw_noise(generator=torch.Generator().manual_seed(3))
    value = Direct(2.0, changes="all")(q.with_scores(unary), cost, noise=noise)
    value.sum().backward()
    costs = cost(spread(q)).movedim(0, -1)
    z, better = (q.select_from_all(scores, noise) for scores in (q.scores_all(), q.scores_all() - 2.0 * costs))
    torch.testing.assert_close(unary.grad, (z - better) / 2)
    torch.testing.assert_close(value, cost(z))
    assert unary.grad.any()


def without_replacement(scores: Tensor) -> Tensor:
    """The chance of each of n items to be among the two largest of Gumbel-perturbed scores."""
    p = scores.softmax(-1)
    pairs = p.unsqueeze(-1) * p.unsqueeze(-2) / (1 - p).unsqueeze(-1)
    pairs = pairs - torch.diag_embed(pairs.diagonal(dim1=-2, dim2=-1))
    return pairs.sum(-1) + pairs.sum(-2)


def test_direct_under_the_other_law_by_closed_form():
    case, w = OWN["subset"], weights(OWN["subset"])
    scores = case.parameters[0]
    found = draws(Direct(0.4, changes="gradient"), case, linear(case), law="perturb")
    assert_mean(found[1], (without_replacement(scores) - without_replacement(scores - 0.4 * w)) / 0.4)
    leaf = scores.clone().requires_grad_()
    (exact,) = torch.autograd.grad((without_replacement(leaf) * w).sum(), leaf)
    near = (without_replacement(scores) - without_replacement(scores - 1e-6 * w)) / 1e-6
    torch.testing.assert_close(near, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("law", ["gibbs", "perturb"])
def test_direct_by_hand_with_pairwise_gradients(law):
    unary, pairwise = OWN["pairwise bits"].leaves()
    q = PairwiseBits(unary, pairwise, law=law)
    noise = q.draw_noise(generator=torch.Generator().manual_seed(6))
    cost = curved(OWN["pairwise bits"], THETA)
    value = Direct(1.5)(q, cost, noise=noise)
    (value * torch.tensor([1.0, 3.0])).sum().backward()
    z = q.sample(noise=noise)
    flipped = [z.clone() for _ in range(4)]
    for i in range(4):
        flipped[i][:, i] = 1 - z[:, i]
    w = torch.stack([(cost(flipped[i]) - cost(z)) * (1 - 2 * z[:, i]) for i in range(4)], -1)
    moved = q.with_scores(unary.detach() - 1.5 * w).sample(noise=noise)
    upstream = torch.tensor([1.0, 3.0]).double() / 1.5
    assert bool((moved != z).any())
    torch.testing.assert_close(unary.grad, (z - moved) * upstream[:, None])
    products = z[:, :, None] * z[:, None, :] - moved[:, :, None] * moved[:, None, :]
    torch.testing.assert_close(pairwise.grad, products.triu(1) * upstream[:, None, None])
    torch.testing.assert_close(value, cost(z))


def test_without_noise_it_is_direct_loss_minimisation():
    case = OWN["permutation"]
    (leaf,) = case.leaves()
    Direct(0.5, changes="gradient", noise=False)(case(leaf, law="perturb"), linear(case)).sum().backward()
    moved = case(leaf.detach() - 0.5 * weights(case)).mode()
    torch.testing.assert_close(leaf.grad, (case().mode() - moved) / 0.5)


def test_a_target_takes_the_place_of_the_second_sample():
    case = CASES["permutation, impossible pair"]
    (leaf,) = case.leaves()
    target = torch.eye(3).double().flip(0).expand(2, 3, 3)
    q = case(leaf)
    noise = q.draw_noise(generator=torch.Generator().manual_seed(2))
    Direct(0.5, changes="gradient")(q, lambda z: z[..., 0, 0], noise=noise, target=target).sum().backward()
    torch.testing.assert_close(leaf.grad, (q.sample(noise=noise) - target) / 0.5)


@pytest.mark.parametrize("name", [*FILLED, *(name for name in CASES if "empty" in name)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batches_precisions_and_impossible_parts(name, dtype):
    case = CASES[name]
    for estimator in (Exact(), Reinforce(2), Direct(0.3, changes="gradient"), Direct(0.3, two_sided=True)):
        leaves = tuple(parameter.to(dtype, copy=True).requires_grad_() for parameter in case.parameters)
        q = case(*leaves)
        if not estimator.supports(q):
            continue
        event = q.event_dims
        value = estimator(q, lambda z, event=event: z.flatten(z.dim() - event)[..., 0].square())
        assert value.shape == q.batch_shape
        assert value.dtype == dtype
        value.sum().backward()
        for leaf in leaves:
            if leaf.grad is None:  # a chain of one variable makes no step
                continue
            assert leaf.grad.dtype == dtype
            assert bool(leaf.grad.isfinite().all())
            assert bool((leaf.grad[leaf == -torch.inf] == 0).all())


def test_half_precision():
    unary, pairwise = (parameter.bfloat16().requires_grad_() for parameter in CASES["pairwise bits"].parameters)
    for estimator in (Exact(), Reinforce(), Direct(), Direct(changes="all")):
        estimator(PairwiseBits(unary, pairwise), lambda z: z[..., 0].float()).sum().backward()
    assert unary.grad.dtype == pairwise.grad.dtype == torch.bfloat16
    assert bool(unary.grad.isfinite().all())


def test_pairwise_scores_alone_may_want_a_gradient():
    unary, pairwise = CASES["pairwise bits"].parameters
    for estimator in (Exact(), Reinforce(), Direct(2.0), Direct(2.0, changes="all")):
        leaf = pairwise.clone().requires_grad_()
        generator = torch.Generator().manual_seed(1)
        estimator(
            PairwiseBits(unary, leaf).expand(20), linear(CASES["pairwise bits"]), generator=generator
        ).sum().backward()
        assert bool(leaf.grad.any())
        assert not leaf.grad.tril().any()


@pytest.mark.parametrize("name", ["pairwise bits", "chain"])
def test_black_box_cost(name):
    case = OWN[name]
    for estimator in (Exact(), Reinforce(), Direct(), Direct(changes=lambda z: torch.ones_like(z))):
        leaves = case.leaves()

        def cost(z: Tensor) -> Tensor:
            assert not z.requires_grad
            return (z.detach().flatten(z.dim() - case().event_dims)[..., 0] > 0).double()

        estimator(case(*leaves), cost).sum().backward()


@every
@pytest.mark.parametrize("law", ["gibbs", "perturb"])
def test_deterministic_in_its_noise(name, law):
    case = OWN[name]
    for estimator in (Reinforce(2), Direct(0.5, changes="gradient", two_sided=True)):
        if not estimator.supports(case(law=law)):
            continue
        results = []
        noise = estimator.draw_noise(case(law=law), generator=torch.Generator().manual_seed(5))
        for arguments in ({"noise": noise}, {"generator": torch.Generator().manual_seed(5)}):
            leaves = case.leaves()
            value = estimator.eval()(case(*leaves, law=law), curved(case, THETA), **arguments)
            results.append((value.detach(), *torch.autograd.grad(value.sum(), leaves)))
        for first, second in zip(*results, strict=True):
            assert torch.equal(first, second)


def test_no_gradient_wanted_means_one_look_at_the_cost():
    for estimator in (Reinforce(), Direct(), Direct(changes="all")):
        calls = []

        def cost(z: Tensor, calls: list = calls) -> Tensor:
            calls.append(z.shape[:-1].numel())
            return z[..., 0]

        assert not estimator(CASES["pairwise bits"](), cost).requires_grad
        assert calls == [2]


def test_two_chains_under_common_noise_move_less_than_independent_ones():
    """The variance of Direct is what common random numbers make it: far below that of two separate samples."""
    for name in PLAIN:
        case = OWN[name]
        q, moved = case(), case(case.parameters[0] - 0.1 * weights(case), *case.parameters[1:])
        noise = q.draw_noise((2000,), generator=torch.Generator().manual_seed(8))
        other = q.draw_noise((2000,), generator=torch.Generator().manual_seed(9))
        common = (q.sample(noise=noise) - moved.sample(noise=noise)).square().mean()
        separate = (q.sample(noise=noise) - moved.sample(noise=other)).square().mean()
        assert common < 0.35 * separate, name


# --------------------------------------------------------------------------------------------------------------- errors

SUBSET, BITS = Subset(torch.zeros(2, 4), 2), PairwiseBits(torch.zeros(2, 3), torch.zeros(3, 3))
UNSUPPORTED = {
    "single changes of a subset": (Direct(), SUBSET, ["leaves the set", 'changes="gradient"', "function"]),
    "single changes of a permutation": (Direct(), Permutation(torch.zeros(2, 3, 3)), ["leaves the set", "gradient"]),
    "random changes": (Direct(changes=2), BITS, ["changes=2", "independent", '"single"']),
    "auto": (Direct("auto"), BITS, ['epsilon="auto"', "independent", "give a number"]),
    "all of a subset": (Direct(changes="all"), SUBSET, ['"all"', "scores of all structures", "PairwiseBits"]),
    "all under the other law": (Direct(changes="all"), BITS.with_law("perturb"), ['"all"', 'law="gibbs"']),
    "all of independent bits": (Direct(changes="all"), argrad.Bits(torch.zeros(2, 3)), ['"all"', "all structures"]),
    "Exact of perturbed samples": (Exact(), BITS.with_law("perturb"), ["log-probability", "law='gibbs'", "Direct"]),
    "Reinforce of perturbed samples": (
        Reinforce(),
        SUBSET.with_law("perturb"),
        ["log-probability", "law='gibbs'", "these do", 'Direct(changes="gradient")'],
    ),
    "LocalExpectation": (argrad.LocalExpectation(), BITS, ["LocalExpectation", "these do: Exact, Direct"]),
    "Rebar": (argrad.Rebar(), BITS, ["Rebar", "these do: Exact, Direct"]),
    "Relax": (argrad.Relax(), BITS, ["Relax", "these do: Exact, Direct"]),
    "Arm": (argrad.Arm(), BITS, ["Arm", "these do: Exact, Direct"]),
    "DisArm": (argrad.DisArm(), SUBSET, ["DisArm", "these do: Exact", "Reinforce", 'Direct(changes="gradient")']),
    "GumbelSoftmax": (argrad.GumbelSoftmax(), BITS, ["GumbelSoftmax", "these do: Exact, Direct"]),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported_pairs_name_what_works(case):
    estimator, q, words = UNSUPPORTED[case]
    assert not estimator.supports(q)
    with pytest.raises(ValueError, match=type(estimator).__name__) as error:
        estimator(q, lambda z: z[..., 0])
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_too_many_structures():
    with pytest.raises(ValueError, match="155,117,520 structures"):
        Exact()(Subset(torch.zeros(30), 15), lambda z: z.sum(-1))
    with pytest.raises(ValueError, match="2\\^21 structures"):
        Direct(changes="all")(PairwiseBits(torch.zeros(21), torch.zeros(21, 21)), lambda z: z.sum(-1))


@pytest.mark.parametrize("function", [lambda z: z[..., :2], lambda z: 3.0])
def test_a_decomposition_of_the_wrong_shape(function):
    q = PairwiseBits(torch.zeros(2, 3, requires_grad=True), torch.zeros(3, 3))
    with pytest.raises(ValueError, match=r"changes\(z\) must return weights of the shape of z"):
        Direct(changes=function)(q, lambda z: z.sum(-1))


def test_wrong_noise():
    q = PairwiseBits(torch.zeros(2, 3, requires_grad=True), torch.zeros(3, 3))
    for noise in (torch.zeros(2, 3), torch.zeros(5, 2, 8), (torch.zeros(2, 8), torch.zeros(2))):
        with pytest.raises(ValueError, match="draw_noise"):
            Direct()(q, lambda z: z.sum(-1), noise=noise)
    with pytest.raises(ValueError, match="draw_noise"):
        Reinforce(2)(q, lambda z: z.sum(-1), noise=torch.zeros(3, 2, 8))


# ---------------------------------------------------------------------------------------------------- attach_difference


@pytest.mark.parametrize("name", [*PLAIN, "chain, impossible value and step", "pairwise bits, impossible bit"])
@pytest.mark.parametrize("extra", [(), (5,)])
def test_attach_difference_is_the_gradient_of_the_score(name, extra):
    case = CASES[name]
    leaves = case.leaves()
    q = case(*leaves)
    plus, minus = (q.sample(extra, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    factor = normal(*extra, *q.batch_shape, seed=3)
    value = torch.tensor([3.0, 4.0]).double().requires_grad_()
    result = attach_difference(value, q, plus, minus, factor)
    torch.testing.assert_close(result, value)
    upstream = torch.tensor([1.0, -2.0]).double()
    found = torch.autograd.grad((result * upstream).sum(), (value, *leaves))
    torch.testing.assert_close(found[0], upstream)
    difference = factor * (q.score(plus) - q.score(minus))
    expected = torch.autograd.grad(((difference.mean(0) if extra else difference) * upstream).sum(), leaves)
    for ours, theirs in zip(found[1:], expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("extra", [(), (5,)])
def test_attach_difference_of_independent_variables_is_z(extra):
    scores = normal(2, 3).requires_grad_()
    q = argrad.Bits(scores)
    plus, minus = (q.sample(extra, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    factor = normal(*extra, 2, seed=3)
    attach_difference(torch.zeros(2).double(), q, plus, minus, factor).sum().backward()
    expected = (plus - minus) * factor.unsqueeze(-1)
    torch.testing.assert_close(scores.grad, expected.mean(0) if extra else expected)


def test_attach_difference_survives_impossible_structures():
    case = CASES["pairwise bits, impossible bit"]
    leaves = case.leaves()
    q = case(*leaves)
    never = torch.ones(2, 3).double()
    result = attach_difference(torch.zeros(2).double(), q, q.mode(), never, 0.5)
    assert bool((result == 0).all())
    result.sum().backward()
    torch.testing.assert_close(leaves[0].grad, (q.mode() - never) * 0.5)


def test_attach_difference_without_gradients_is_the_value():
    q: Structured = CASES["subset"]()
    value = torch.zeros(2)
    assert attach_difference(value, q, q.mode(), q.mode(), 1.0) is value
    assert_listed(q.mode(), q.enumerate())
