"""DebiasedDirect: the formula on fixed noise, the theorem by z-tests on every kind of latent, and what it costs."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from argrad import (
    Bits,
    Categorical,
    Chain,
    DebiasedDirect,
    Direct,
    Exact,
    LocalExpectation,
    PairwiseBits,
    Permutation,
    Reinforce,
    SpanningTree,
    Subset,
    TableCost,
)
from problems import assert_mean, draws, make, total_variance

DOCS = Path(__file__).resolve().parents[2] / "docs" / "estimators.md"
SAMPLES = 50_000


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def curved(latent, seed: int = 5):
    """A cost that is far from linear in z."""
    weights, event = normal(*latent.event_shape, seed=seed), tuple(range(-latent.event_dims, 0))

    def cost(z: Tensor) -> Tensor:
        mixed = (z * weights).sum(event)
        return 0.7 * mixed + (mixed - 0.3).square()

    return cost


def gradients(estimator, latent, cost, samples: int = SAMPLES, seed: int = 0) -> Tensor:
    scores = latent.scores.expand(samples, *latent.scores.shape).clone().requires_grad_()
    value = estimator(latent.with_scores(scores), cost, generator=torch.Generator().manual_seed(seed))
    return torch.autograd.grad(value.sum(), scores)[0]


def assert_same_mean(first: Tensor, second: Tensor) -> None:
    """A two-sample z-test of every coordinate, at 1 in 10,000 all together."""
    error = (first.var(0) / len(first) + second.var(0) / len(second)).sqrt()
    z = (first.mean(0) - second.mean(0)).abs() / (error + 1e-12)
    limit = -torch.special.ndtri(torch.tensor(0.5e-4 / z.numel(), dtype=torch.float64))
    assert z.max() < limit


def test_formula_on_fixed_noise_for_a_categorical_variable():
    logits = torch.tensor([[0.0, 1.0, 2.0]], requires_grad=True)
    noise = torch.tensor([[[0.5, 0.2, 0.1]]])  # perturbed: 0.5, 1.2, 2.1
    cost = TableCost(torch.tensor([[1.0, 2.0, 5.0]]))  # minus half of it: 0, 0.2, -0.4
    value = DebiasedDirect(0.5, two_sided=False)(Categorical(logits), cost, noise=noise)
    value.sum().backward()
    missed = 3.0 - (2.1 - 1.2) / 0.5
    bound = min(2.1, 0.2 + 0.5)  # the first value is none of the arg maxes
    expected = [-missed * math.exp(-bound), -2 + missed * (1 - math.exp(-0.2)), 2 + missed * (1 - math.exp(-0.1))]
    assert value.tolist() == [5.0]
    torch.testing.assert_close(logits.grad, torch.tensor([expected]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("two_sided", [False, True])
def test_formula_on_fixed_noise_for_bits(two_sided):
    logits = torch.tensor([0.4, -0.2, 1.0], dtype=torch.float64, requires_grad=True)
    noise = torch.tensor([[-0.1, -0.3, 0.9]], dtype=torch.float64)  # perturbed: 0.3, -0.5, 1.9
    weights = torch.tensor([2.0, -3.0, 1.0], dtype=torch.float64)
    DebiasedDirect(0.5, two_sided=two_sided)(Bits(logits), lambda z: (z * weights).sum(-1), noise=noise).backward()
    perturbed, slope = torch.tensor([0.3, -0.5, 1.9]).double(), (noise[0] / 2).tanh()
    top = [torch.relu(perturbed - t * weights) for t in (0.0, 0.5, -0.5)]
    best = [(perturbed - t * weights > 0).double() for t in (0.0, 0.5, -0.5)]
    secant = (top[2] - top[1]) / 1.0 if two_sided else (top[0] - top[1]) / 0.5
    direct = (best[2] - best[1]) / 1.0 if two_sided else (best[0] - best[1]) / 0.5
    torch.testing.assert_close(logits.grad, direct + (weights * best[0] - secant) * slope)
    assert direct.tolist() == ([1, -1, 0] if two_sided else [2, -2, 0])  # two of the bits move, to either side


def test_formula_on_fixed_noise_for_a_structure():
    scores = normal(5, seed=3).requires_grad_()
    latent = Subset(scores, size=2, law="perturb")
    estimator = DebiasedDirect(0.8, two_sided=False, changes=lambda z: normal(5, seed=4))
    noise = estimator.draw_noise(latent, generator=torch.Generator().manual_seed(1))
    cost = curved(latent)
    estimator(latent, cost, noise=noise).backward()
    weights, perturbed, slope = normal(5, seed=4), scores.detach() + noise[0], 1 - (-noise[0]).exp()
    z, other, moved = (
        latent.sample(noise=noise[0]),
        latent.sample(noise=noise[1]),
        latent.solve(perturbed - 0.8 * weights),
    )
    secant = ((perturbed * z).sum() - ((perturbed - 0.8 * weights) * moved).sum()) / 0.8
    baseline = cost(other) - (weights * other).sum()
    expected = (z - moved) / 0.8 + (cost(z) - baseline - secant) * slope
    torch.testing.assert_close(scores.grad, expected)


def test_nothing_is_corrected_where_nothing_moves():
    """The estimate is nonzero exactly where Direct's is, up to the bounds that replace the others' noise."""
    problem = make("bits")
    scores = problem.latent.scores.expand(1000, *problem.latent.scores.shape).clone().requires_grad_()
    latent = problem.latent.with_scores(scores)
    noise = latent.draw_noise(generator=torch.Generator().manual_seed(0))
    found = []
    for estimator, given in ((Direct(0.4), noise), (DebiasedDirect(0.4, two_sided=False), noise.unsqueeze(0))):
        value = estimator(latent, problem.cost(problem.theta()), noise=given).sum()
        found.append(torch.autograd.grad(value, scores)[0])
    assert torch.equal(found[0] != 0, found[1] != 0)
    assert 0.02 < (found[0] != 0).double().mean() < 0.5


def test_a_huge_epsilon_is_reinforce_on_the_noise():
    problem = make("one bit")
    costs = problem.cost(problem.theta())(problem.latent.enumerate().unsqueeze(1).expand(2, 2, 1))
    estimator = DebiasedDirect(1e9, two_sided=False)
    scores = problem.latent.scores.clone().requires_grad_()
    noise = estimator.draw_noise(problem.latent, generator=torch.Generator().manual_seed(0))
    value = estimator(problem.latent.with_scores(scores), problem.cost(problem.theta()), noise=noise)
    value.sum().backward()
    expected = (value.detach() - costs.amin(0)).unsqueeze(-1) * (noise[0] / 2).tanh()
    torch.testing.assert_close(scores.grad, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("epsilon", [-1.0, 0.1, 3.0, 30.0])
@pytest.mark.parametrize("two_sided", [False, True])
def test_unbiased_where_direct_is_not(epsilon, two_sided):
    latent = make("categorical").latent
    costs = 2 * normal(3, 5, seed=7)
    exact = latent.gradient_of_mean(costs)
    estimator = DebiasedDirect(epsilon, two_sided=two_sided)
    assert_mean(gradients(estimator, latent, TableCost(costs), 100_000), exact, comparisons=8)
    if epsilon >= 3:
        with pytest.raises(AssertionError, match="standard errors"):
            assert_mean(gradients(Direct(epsilon, two_sided=two_sided), latent, TableCost(costs), 100_000), exact)


CHANGES = [0, "gradient", lambda z: normal(*z.shape[1:], seed=4).expand(z.shape)]


@pytest.mark.parametrize("changes", CHANGES, ids=["zero", "gradient", "function"])
@pytest.mark.parametrize("two_sided", [False, True])
def test_unbiased_for_perturbed_subsets(changes, two_sided):
    """The perturbed law of subsets is known (Plackett-Luce), so there is an exact gradient to compare with."""
    latent = Subset(normal(5), size=2, law="perturb")
    cost = curved(latent)
    scores = latent.scores.clone().requires_grad_()
    p, structures = scores.softmax(-1), latent.enumerate()
    first, second = structures.topk(2).indices.unbind(-1)
    law = p[first] * p[second] * (1 / (1 - p[first]) + 1 / (1 - p[second]))
    (law * cost(structures)).sum().backward()
    estimator = DebiasedDirect(changes=changes, two_sided=two_sided, draws=2)
    assert_mean(gradients(estimator, latent, cost, 100_000), scores.grad, comparisons=6)


@pytest.mark.parametrize("changes", [0, 1, "single", "gradient"])
@pytest.mark.parametrize("kind", ["bits", "categoricals"])
def test_unbiased_for_perturbed_structures_that_are_independent_variables(kind, changes):
    """With pairwise scores of zero the law is that of independent variables, which Exact knows."""
    free = make(kind).latent
    n, k = free.variables, free.values
    latent = (
        PairwiseBits(free.scores, torch.zeros(n, n).double(), law="perturb")
        if kind == "bits"
        else Chain(free.scores, torch.zeros(k, k).double(), law="perturb")
    )
    cost, scores = curved(free), free.scores.clone().requires_grad_()
    Exact()(free.with_scores(scores), cost).sum().backward()
    assert_mean(gradients(DebiasedDirect(changes=changes), latent, cost), scores.grad, comparisons=8)


PERTURBED = {
    "permutation": lambda: Permutation(normal(3, 3), law="perturb"),
    "tree": lambda: SpanningTree(normal(4, 4), law="perturb"),
    "directed tree": lambda: SpanningTree(normal(4, 4), directed=True, root=1, law="perturb"),
    "pairwise bits": lambda: PairwiseBits(normal(4), normal(4, 4, seed=1), law="perturb"),
    "chain": lambda: Chain(normal(3, 3), normal(3, 3, seed=1), law="perturb"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PERTURBED)
@pytest.mark.parametrize("changes", [1, "single", "gradient"])
def test_agrees_with_reinforce_on_the_noise(name, changes):
    latent = PERTURBED[name]()
    estimator = DebiasedDirect(changes=changes)
    if not estimator.supports(latent):
        return
    cost = curved(latent)
    reference = gradients(DebiasedDirect(changes=0), latent, cost, 200_000, seed=1)
    assert_same_mean(gradients(estimator, latent, cost, 100_000), reference)


def test_agrees_with_reinforce_on_the_noise_with_pairwise_scores():
    latent = PERTURBED["chain"]()
    reference = gradients(DebiasedDirect(changes=0), latent, curved(latent), 50_000, seed=1)
    assert_same_mean(gradients(DebiasedDirect("auto"), latent, curved(latent), 20_000), reference)


GIBBS = {
    "subset": lambda: (Subset, (normal(2, 5),), {"size": 2}),
    "permutation": lambda: (Permutation, (normal(3, 3),), {}),
    "tree": lambda: (SpanningTree, (normal(4, 4),), {}),
    "pairwise bits": lambda: (PairwiseBits, (normal(4), normal(4, 4, seed=1)), {}),
    "chain": lambda: (Chain, (normal(3, 2), normal(1, 2, 2, 2, seed=1).expand(1, 2, 2, 2)[0]), {}),
}


@pytest.mark.parametrize("changes", [0, "single", "gradient"])
@pytest.mark.parametrize("name", GIBBS)
def test_unbiased_for_exact_samples_in_all_parameters(name, changes):
    build, parameters, options = GIBBS[name]()
    latent = build(*parameters, **options)
    estimator = DebiasedDirect(changes=changes)
    if not estimator.supports(latent):
        return
    cost, samples = curved(latent), 3000 if name == "tree" else 10_000
    leaves = [parameter.clone().requires_grad_() for parameter in parameters]
    exact = build(*leaves, **options)
    structures = exact.enumerate()
    costs = cost(structures.reshape(-1, *[1] * len(exact.batch_shape), *exact.event_shape)).reshape(len(structures))
    (exact.log_prob_all().exp() * costs).sum().backward()
    copies = [parameter.expand(samples, *parameter.shape).clone().requires_grad_() for parameter in parameters]
    estimator(build(*copies, **options), cost, generator=torch.Generator().manual_seed(0)).sum().backward()
    for copy, leaf in zip(copies, leaves, strict=True):
        assert_mean(copy.grad, leaf.grad, comparisons=20)


def test_the_cost_gets_its_gradient_once():
    theta = torch.tensor(2.0, requires_grad=True)
    for latent in (Bits(torch.zeros(1, 3)), Subset(torch.zeros(1, 3), size=2, law="perturb")):
        scores = latent.scores.clone().requires_grad_()
        for changes in (0, "gradient"):
            theta.grad = None
            DebiasedDirect(changes=changes)(
                latent.with_scores(scores), lambda z: theta * (1 + 0 * z.sum(-1))
            ).sum().backward()
            assert theta.grad == 1


def test_automatic_epsilon_has_no_unit():
    """Costs in another unit give the same gradient in that unit, exactly."""
    for problem in (make("categoricals"), make("bits")):
        noise = DebiasedDirect().draw_noise(problem.latent, generator=torch.Generator().manual_seed(0))
        found = []
        for unit in (1.0, 1024.0):
            scores = problem.latent.scores.clone().requires_grad_()
            cost = problem.cost(problem.theta())
            value = DebiasedDirect()(
                problem.latent.with_scores(scores), lambda z, cost=cost, unit=unit: unit * cost(z), noise=noise
            )
            found.append(torch.autograd.grad(value.sum(), scores)[0])
        torch.testing.assert_close(found[1], 1024 * found[0])


def test_a_constant_cost_has_no_gradient():
    for latent in (Categorical(torch.zeros(4, 3)), Bits(torch.zeros(4, 3))):
        scores = latent.scores.requires_grad_()
        DebiasedDirect()(latent, lambda z: 5 + 0 * z.sum(-1)).sum().backward()
        assert (scores.grad == 0).all()


def test_unread_and_impossible_scores_get_no_gradient():
    tree = SpanningTree(normal(2, 4, 4), law="perturb")
    assert (gradients(DebiasedDirect(changes="gradient"), tree, curved(tree), 50).tril() == 0).all()
    scores = normal(2, 4)
    scores[:, 1] = -torch.inf
    subset = Subset(scores, size=2, law="perturb")
    found = gradients(DebiasedDirect(changes="gradient"), subset, curved(subset), 50)
    assert found.isfinite().all()
    assert (found[..., 1] == 0).all()


@pytest.mark.parametrize("name", ["categorical", "categoricals", "bits"])
def test_more_draws_approach_local_expectation(name):
    """The part of the variance that draws can remove falls as one over their number."""
    problem = make(name)
    floor = total_variance(draws(LocalExpectation(), problem, 6_000)[1])
    one, many = (total_variance(draws(DebiasedDirect(draws=d), problem, 6_000)[1]) for d in (1, 8))
    assert (many - floor) == pytest.approx((one - floor) / 8, rel=0.3)


def table_rows() -> dict[str, object]:
    """What the table in the documentation compares."""
    return {
        "Direct(0.3)": Direct(0.3),
        "Direct(1.0)": Direct(1.0),
        "Direct(1.0, two_sided=True)": Direct(1.0, two_sided=True),
        "DebiasedDirect(two_sided=False)": DebiasedDirect(two_sided=False),
        "DebiasedDirect()": DebiasedDirect(),
        "DebiasedDirect(draws=8)": DebiasedDirect(draws=8),
        "LocalExpectation()": LocalExpectation(),
        "Reinforce(2)": Reinforce(2),
        "Reinforce(4)": Reinforce(4),
    }


def measured_table(samples: int = 20_000) -> dict[str, list[float]]:
    """Name to evaluations, bias and variance on the problems "categorical", "categoricals" and "bits" of the tests."""
    found: dict[str, list[float]] = {}
    for name, estimator in table_rows().items():
        cells = []
        for kind in ("categorical", "categoricals", "bits"):
            problem = make(kind)
            scores = draws(estimator, problem, samples)[1]
            noise = total_variance(scores) / samples
            bias = (scores.mean(0) - problem.exact()[1]).square().sum().item() - noise
            cells += [estimator.cost_evaluations(problem.latent), math.sqrt(max(bias, 0)), total_variance(scores)]
        found[name] = cells
    return found


STRUCTURES = {
    "subset": lambda: Subset(normal(5), size=2, law="perturb"),
    "tree": lambda: SpanningTree(normal(4, 4), law="perturb"),
    "chain": lambda: Chain(normal(3, 3), normal(3, 3, seed=1), law="perturb"),
}


def structure_rows() -> dict[str, object]:
    """The same for structures under the law "perturb"."""
    return {
        'Direct(0.3, changes="gradient")': Direct(0.3, changes="gradient"),
        'Direct(1.0, changes="gradient")': Direct(1.0, changes="gradient"),
        "DebiasedDirect(changes=0)": DebiasedDirect(changes=0),
        'DebiasedDirect(changes="gradient")': DebiasedDirect(changes="gradient"),
        'DebiasedDirect(changes="gradient", draws=8)': DebiasedDirect(changes="gradient", draws=8),
    }


def measured_structures(samples: int = 20_000) -> dict[str, list[float]]:
    """Name to evaluations, bias and variance on three structures whose law has no probabilities."""
    found: dict[str, list[float]] = {name: [] for name in structure_rows()}
    for build in STRUCTURES.values():
        latent = build()
        reference = gradients(DebiasedDirect(changes="gradient"), latent, curved(latent), 200_000, seed=1)
        for name, estimator in structure_rows().items():
            sample = gradients(estimator, latent, curved(latent), samples)
            noise = total_variance(sample) / samples + total_variance(reference) / len(reference)
            bias = (sample.mean(0) - reference.mean(0)).square().sum().item() - noise
            found[name] += [estimator.cost_evaluations(latent), math.sqrt(max(bias, 0)), total_variance(sample)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "measure"), [(table_rows, measured_table), (structure_rows, measured_structures)])
def test_the_tables_in_the_documentation_are_what_is_measured(rows, measure):
    page, estimators = DOCS.read_text(encoding="utf-8"), rows()
    measured, lines = measure(), []
    for name, cells in measured.items():
        numbers = []
        for count, bias, variance in (cells[i : i + 3] for i in (0, 3, 6)):
            numbers += [f"{count:.0f}", "0" if estimators[name].unbiased else f"{bias:.2f}", f"{variance:.2f}"]
        lines.append(f"| `{name}` | {' | '.join(numbers)} |")
    right = "the table should read\n" + "\n".join(lines)
    for name, cells in measured.items():
        row = re.search(rf"^\| `{re.escape(name)}` \|(.*)\|$", page, re.M)
        assert row, right
        for place, (said, found) in enumerate(zip(row[1].split("|"), cells, strict=True)):
            if place % 3 != 1 or not estimators[name].unbiased:
                assert float(said) == pytest.approx(found, rel=0.1, abs=0.02), right


def test_less_variance_than_direct_without_its_bias():
    for name in ("categorical", "categoricals", "bits"):
        direct, debiased = (total_variance(draws(e, make(name), 3000)[1]) for e in (Direct(0.3), DebiasedDirect()))
        assert debiased < direct


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epsilon": 0}, "finite and not 0"),
        ({"epsilon": "big"}, 'a number or "auto"'),
        ({"changes": -1}, "number of variables >= 0"),
        ({"changes": "all"}, '"single", "gradient"'),
        ({"draws": 0}, "at least one draw"),
    ],
)
def test_wrong_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        DebiasedDirect(**settings)


def test_errors_say_what_works():
    scores = torch.zeros(2, 3, 3, requires_grad=True)
    with pytest.raises(ValueError, match=r'leaves the set of structures; use changes="gradient"'):
        DebiasedDirect()(Permutation(scores), lambda z: z[..., 0, 0])
    latent = PairwiseBits(torch.zeros(3), torch.zeros(3, 3, requires_grad=True), law="perturb")
    with pytest.raises(ValueError, match=r"scores without noise require grad.*detach them, or use Direct"):
        DebiasedDirect()(latent, lambda z: z[..., 0])
    with pytest.raises(ValueError, match="differentiable in z"):
        DebiasedDirect(changes="gradient")(Bits(torch.zeros(3, requires_grad=True)), lambda z: z.detach()[..., 0])
    with pytest.raises(ValueError, match="must return weights of shape"):
        DebiasedDirect(changes=lambda z: z[..., 0])(Subset(torch.zeros(3, requires_grad=True), 1), lambda z: z[..., 0])
    with pytest.raises(ValueError, match="needs the noise that its own draw_noise"):
        DebiasedDirect(draws=2)(Bits(torch.zeros(3)), lambda z: z[..., 0], noise=torch.zeros(1, 3))
