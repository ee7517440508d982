"""Direct against its closed forms, its special cases, and the adaptation of ε."""

import math

import pytest
import torch
from torch import Tensor

from argrad import Bits, Categorical, Direct, PairwiseBits, TableCost
from argrad.estimators.direct import likely_changes
from argrad.experiments import auto_epsilon
from problems import assert_mean, draws, make, total_variance

EPSILONS = [0.01, 0.1, 0.3, 1.0, 3.0, 10.0, -0.1, -1.0]


def closed_form(latent, weights: Tensor, epsilon: float, two_sided: bool = False) -> Tensor:
    """The expectation of the estimate for linear costs <weights, z>."""

    def mean(shift: float) -> Tensor:
        return latent.with_scores(latent.scores - shift * weights).mean()

    if two_sided:
        return (mean(-epsilon) - mean(epsilon)) / (2 * epsilon)
    return (mean(0.0) - mean(epsilon)) / epsilon


def linear_cost_draws(estimator, latent, cost, samples: int, **kwargs) -> Tensor:
    scores = latent.scores.expand(samples, *latent.scores.shape).clone().requires_grad_()
    generator = torch.Generator().manual_seed(0)
    estimator(latent.with_scores(scores), cost, generator=generator, **kwargs).sum().backward()
    return scores.grad


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_closed_form_for_one_categorical(epsilon, two_sided, generator):
    latent = make("categorical").latent
    costs = 2 * torch.randn(3, 5, generator=generator, dtype=torch.float64)
    gradients = linear_cost_draws(Direct(epsilon, two_sided=two_sided), latent, TableCost(costs), 100_000)
    assert_mean(gradients, closed_form(latent, costs, epsilon, two_sided), comparisons=2 * len(EPSILONS))


@pytest.mark.parametrize("name", ["bits", "categoricals"])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_closed_form_for_several_variables(name, epsilon):
    """E over the other variables of the one-variable closed form, the cost being curved so that the others matter."""
    problem = make(name)
    gradients = draws(Direct(epsilon), problem, 100_000)[1]
    latent, cost = problem.latent, problem.cost(problem.theta())
    expected = torch.zeros_like(latent.scores)
    for z, log_prob in zip(latent.enumerate(), latent.log_prob_all().unbind(-1), strict=True):
        z = z.expand(latent.scores.shape)
        changed = torch.stack([cost(latent.change(z, torch.tensor([i])))[0] for i in range(latent.num_changes)])
        weights = latent.linear(latent.tabulate_changes(z, cost(z), changed))
        probability = log_prob.exp().reshape(log_prob.shape + (1,) * latent.event_dims)
        expected += probability * closed_form(latent, weights, epsilon)
    assert_mean(gradients, expected, comparisons=2 * len(EPSILONS))


@pytest.mark.parametrize(("two_sided", "slope"), [(False, 1), (True, 2)])
@pytest.mark.parametrize("name", ["categorical", "bits"])
def test_bias_order_of_the_closed_form(name, two_sided, slope, generator):
    latent = make(name).latent
    weights = torch.randn(latent.scores.shape, generator=generator, dtype=torch.float64)
    exact = latent.gradient_of_mean(weights)
    first, second = ((closed_form(latent, weights, e, two_sided) - exact).norm() for e in (1e-2, 1e-3))
    assert math.log10(first / second) == pytest.approx(slope, abs=0.02)


def test_same_noise_algebra():
    logits = torch.tensor([[0.0, 1.0, 2.0]], requires_grad=True)
    noise = torch.tensor([[0.5, 0.2, 0.1]])  # perturbed: 0.5, 1.2, 2.1, so z* is the last
    value = Direct(epsilon=0.5)(Categorical(logits), TableCost(torch.tensor([[1.0, 2.0, 5.0]])), noise=noise)
    value.sum().backward()  # minus half the costs: 0, 0.2, -0.4, so z(ε) is the second
    assert value.tolist() == [5.0]
    assert logits.grad.tolist() == [[0.0, -2.0, 2.0]]


def test_both_arg_maxes_share_the_noise():
    """With a constant cost the arg max never moves, whatever the noise."""
    logits = torch.zeros(1000, 5, requires_grad=True)
    Direct(0.1)(Categorical(logits), TableCost(torch.full((1000, 5), 3.0))).sum().backward()
    assert (logits.grad == 0).all()


@pytest.mark.parametrize("name", ["categorical", "categoricals", "bits"])
def test_gradient_changes_equal_single_changes_for_linear_costs(name, generator):
    latent = make(name).latent
    weights = torch.randn(latent.event_shape, generator=generator, dtype=torch.float64)
    event = tuple(range(-latent.event_dims, 0))
    gradients = []
    for changes in ("single", "gradient"):
        gradients.append(
            linear_cost_draws(Direct(0.5, changes=changes), latent, lambda z: (z * weights).sum(event), 200)
        )
    assert gradients[0].abs().sum() > 0
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)


def test_gradient_changes_need_a_differentiable_cost():
    with pytest.raises(ValueError, match='use changes="single"'):
        Direct(changes="gradient")(Bits(torch.zeros(2, 3, requires_grad=True)), lambda z: (z > 0.5).float().sum(-1))


@pytest.mark.parametrize("two_sided", [False, True])
def test_random_changes_of_bits_average_to_single_changes(two_sided):
    problem = make("bits")
    single = draws(Direct(0.5, two_sided=two_sided), problem, 200_000)[1]
    random = draws(Direct(0.5, two_sided=two_sided, changes=2), problem, 200_000, seed=1)[1]
    assert_mean(random - single.mean(0), torch.zeros_like(random[0]), comparisons=4)
    assert total_variance(random) > total_variance(single)


def test_random_changes_of_one_categorical_match_their_closed_form(generator):
    """P(z* = j, then v beats it) = p_j − e^{h_j} / (Z + e^{h_v} (e^δ − 1)) with δ = ε (c_j − c_v) > 0."""
    epsilon, h = 0.7, torch.randn(4, generator=generator, dtype=torch.float64)
    costs = torch.randn(4, generator=generator, dtype=torch.float64)
    total, expected = h.exp().sum(), torch.zeros(4, dtype=torch.float64)
    for j in range(4):
        for v in range(4):
            gain = max(0.0, float(epsilon * (costs[j] - costs[v])))
            moves = h[j].exp() / total - h[j].exp() / (total + h[v].exp() * math.expm1(gain))
            expected[j] += moves / epsilon
            expected[v] -= moves / epsilon
    gradients = linear_cost_draws(Direct(epsilon, changes=2), Categorical(h), lambda z: (z * costs).sum(-1), 200_000)
    assert_mean(gradients, expected)


def test_random_changes_are_first_order_right(generator):
    """The gap between random and single changes vanishes with ε: both are the exact gradient in the limit."""
    problem = make("categoricals", scale=0.3)
    _, exact, _ = problem.exact()
    assert_mean(draws(Direct(0.01, changes=4), problem, 200_000)[1], exact)


@pytest.mark.parametrize("latent", [Bits(torch.randn(5) * 2), Categorical(torch.randn(3, 4) * 2, event_dims=2)])
def test_random_changes_are_chosen_as_often_as_their_probability_says(latent, generator):
    noise = latent.draw_noise(generator=generator)
    perturbed = latent.perturb(noise)
    z = latent.solve(perturbed)
    choice = torch.rand(100_000, generator=generator)
    chosen, probability = likely_changes(latent, z, perturbed, choice)
    counts = torch.bincount(chosen, minlength=z.numel())
    shares = torch.zeros(z.numel()).scatter(0, chosen, probability)
    assert shares.sum() == pytest.approx(1.0, abs=1e-5)  # all that may be chosen were
    assert (counts > 0).sum() == latent.num_changes
    expected = len(choice) * shares[counts > 0]
    assert ((counts[counts > 0] - expected) / expected.sqrt()).abs().max() < 4.5
    which = latent.changes_at(z, chosen)
    places, values = latent.places_of_change(z, which)
    assert torch.equal(places[..., -1], chosen)
    assert torch.equal(latent.change(z, which).flatten(1).gather(1, places), values)


def test_random_changes_stay_within_the_vocabulary_at_both_ends_of_the_uniform_numbers():
    latent = Categorical(torch.tensor([[-torch.inf, 3.0, 3.0 - 80.0]]), event_dims=2)
    z = torch.tensor([[0.0, 1.0, 0.0]])
    chosen, probability = likely_changes(latent, z, latent.scores, torch.tensor([0.0, 1.0 - 2**-24]))
    assert chosen.tolist() == [0, 2]
    assert (probability > 0).all()


def test_every_random_change_of_a_large_grid_can_be_chosen_as_often_as_its_probability_says(generator):
    latent = Categorical(torch.zeros(256, 1024), event_dims=2)
    perturbed = latent.perturb(latent.draw_noise(generator=generator))
    z = latent.solve(perturbed)
    numbers = torch.linspace(0, 1 - 2**-24, 2**22, dtype=torch.float64)
    chosen, probability = likely_changes(latent, z, perturbed, numbers)
    assert chosen[-1] == 256 * 1024 - 1 - int(z.flatten()[-1])
    found = torch.bincount(chosen, minlength=z.numel())[chosen] / len(numbers)
    assert ((found - probability).abs() <= 1.01 / len(numbers) + 1e-3 * probability).all()


@pytest.mark.parametrize("latent", [Bits, Categorical])
def test_auto_with_random_changes_takes_half_precision(latent):
    scores = torch.randn(3, 4, dtype=torch.bfloat16, requires_grad=True)
    Direct("auto", changes=3)(latent(scores), lambda z: z.float().cumsum(-1).sum(-1)).sum().backward()
    assert scores.grad.dtype == torch.bfloat16
    assert bool(scores.grad.isfinite().all())


def test_random_changes_where_it_matters_have_less_variance_than_random_changes_anywhere(monkeypatch, generator):
    latent = Categorical(torch.randn(6, 60, generator=generator, dtype=torch.float64), event_dims=2)
    weights = torch.randn(6, 60, generator=generator, dtype=torch.float64)

    def variance() -> float:
        found = linear_cost_draws(Direct(0.3, changes=4), latent, lambda z: (z * weights).sum((-2, -1)), 20_000)
        return float(total_variance(found))

    likely = variance()
    monkeypatch.setattr("argrad.estimators.direct.ANYWHERE", 1.0)
    assert likely < 0.3 * variance()


def test_target_is_a_cross_entropy_over_epsilon():
    latent = make("categorical").latent
    target = torch.tensor([4, 0, 2])
    one_hot = torch.nn.functional.one_hot(target, 5).double()
    cost = TableCost(1 - one_hot)
    gradients = linear_cost_draws(Direct(0.25), latent, cost, 100_000, target=target.expand(100_000, 3))
    assert_mean(gradients, (latent.mean() - one_hot) / 0.25, comparisons=2)
    by_structure = linear_cost_draws(Direct(0.25, target=one_hot.expand(100_000, 3, 5)), latent, cost, 100_000)
    torch.testing.assert_close(by_structure, gradients, rtol=0, atol=0)


def test_without_noise_it_is_direct_loss_minimisation():
    logits = torch.tensor([[0.0, 0.9, 1.0]], requires_grad=True)
    cost = TableCost(torch.tensor([[0.0, 1.0, 2.0]]))
    for call in (
        lambda: Direct(0.5)(Categorical(logits), cost, noise=False),
        lambda: Direct(0.5, noise=False)(Categorical(logits), cost),
    ):
        logits.grad = None
        value = call()
        value.sum().backward()
        assert value.tolist() == [2.0]
        assert logits.grad.tolist() == [[0.0, -2.0, 2.0]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0}, "finite and not 0, got 0"),
        ({"epsilon": math.nan}, "finite and not 0"),
        ({"epsilon": math.inf}, "finite and not 0"),
        ({"epsilon": "automatic"}, 'a number or "auto"'),
        ({"changes": 0}, "random changes >= 1"),
        ({"changes": "every"}, '"single", "gradient"'),
        ({"two_sided": True, "target": torch.zeros(1)}, "two_sided=False"),
        ({"averaging": 0}, "positive number"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message) as error:
        Direct(**settings)
    assert "\n" not in str(error.value)


def test_wrong_targets():
    latent = Categorical(torch.zeros(2, 3, requires_grad=True))
    with pytest.raises(ValueError, match=r"0 … 2"):
        Direct()(latent, TableCost(torch.zeros(2, 3)), target=torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="target has shape"):
        Direct()(latent, TableCost(torch.zeros(2, 3)), target=torch.zeros(2, 4))


# --- epsilon="auto" ---


def mean_squared_error(epsilon: float, latent: Categorical, costs: Tensor, averaging: float) -> float:
    """bias² + variance / averaging of the gradient, exactly: every move of the arg max from j to v counts 2 / ε²."""
    shifted = latent.scores.unsqueeze(-2) + epsilon * (costs.unsqueeze(-1) - costs.unsqueeze(-2)).clamp_min(0)
    stays = (latent.scores - shifted.logsumexp(-1)).exp().sum(-1)
    expected = closed_form(latent, costs, epsilon)
    bias = (expected - latent.gradient_of_mean(costs)).square().sum()
    variance = (2 * (1 - stays) / epsilon**2).sum() - expected.square().sum()
    return float(bias + variance / averaging)


def adapted(estimator: Direct, latent, cost, steps: int = 200) -> float:
    scores = latent.scores.clone().requires_grad_()
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        estimator(latent.with_scores(scores), cost, generator=generator)
    return float(estimator.epsilon)


@pytest.mark.parametrize("scale", [0.03, 1.0, 30.0])
def test_auto_minimises_the_mean_squared_error(scale, generator):
    latent = Categorical(torch.randn(20, 8, generator=generator, dtype=torch.float64))
    costs = scale * torch.randn(20, 8, generator=generator, dtype=torch.float64)
    epsilon = adapted(Direct("auto"), latent, TableCost(costs))
    grid = [10 ** (i / 10) for i in range(-50, 51)]
    best = min(mean_squared_error(e, latent, costs, 100.0) for e in grid)
    assert mean_squared_error(epsilon, latent, costs, 100.0) < 1.1 * best
    for fixed in (0.1, 1.0):
        worst = max(
            mean_squared_error(fixed, latent, costs * (s / scale), 100.0)
            / min(mean_squared_error(e, latent, costs * (s / scale), 100.0) for e in grid)
            for s in (0.03, 30.0)
        )
        assert worst > 5, "a fixed ε would have done as well"


def test_auto_scales_with_the_cost(generator):
    """Costs times c give ε over c: nothing in the rule knows a unit."""
    latent = Bits(torch.randn(30, 6, generator=generator, dtype=torch.float64))
    weights = torch.randn(6, generator=generator, dtype=torch.float64)
    products = [
        scale * adapted(Direct("auto"), latent, lambda z, s=scale: s * (z * weights).sum(-1))
        for scale in (0.01, 1, 100)
    ]
    assert max(products) / min(products) < 1.001


def test_auto_two_sided_takes_larger_steps(generator):
    latent = Categorical(torch.randn(20, 8, generator=generator, dtype=torch.float64))
    costs = TableCost(torch.randn(20, 8, generator=generator, dtype=torch.float64))
    assert adapted(Direct("auto", two_sided=True), latent, costs) > adapted(Direct("auto"), latent, costs)


def test_auto_with_random_changes_finds_the_scale(generator):
    latent = Bits(torch.randn(30, 6, generator=generator, dtype=torch.float64))
    weights = torch.randn(6, generator=generator, dtype=torch.float64)
    ratio = adapted(Direct("auto", changes=3), latent, lambda z: (z * weights).sum(-1)) / adapted(
        Direct("auto"), latent, lambda z: (z * weights).sum(-1)
    )
    assert 1 / 2 < ratio < 2


def test_auto_keeps_still_when_it_should(generator):
    latent = Categorical(torch.zeros(4, 3, requires_grad=True))
    cost = TableCost(torch.randn(4, 3, generator=generator))
    estimator = Direct("auto")
    estimator(latent, cost)
    before = estimator.epsilon.clone()
    estimator.eval()
    estimator(latent, cost)
    assert torch.equal(estimator.epsilon, before)
    estimator.train()
    constant = Direct("auto")
    for _ in range(10):
        constant(latent, TableCost(torch.zeros(4, 3)))  # nothing to learn from
        constant(Categorical(torch.zeros(0, 3, requires_grad=True)), TableCost(torch.zeros(0, 3)))
    assert constant.epsilon.isfinite()
    assert constant.epsilon > 0


@pytest.mark.parametrize("offset", [40.0, 500.0, 1e6])
def test_an_offset_of_the_cost_changes_nothing_in_float32(offset, generator):
    """The arg max does not move for a constant cost, and "auto" learns nothing from it."""
    logits = torch.randn(1000, 5, generator=generator, requires_grad=True)
    for estimator in (Direct(1000.0), Direct("auto")):
        for _ in range(5):
            (gradient,) = torch.autograd.grad(
                estimator(Categorical(logits), TableCost(torch.full((1000, 5), offset))).sum(), logits
            )
            assert (gradient == 0).all()
    assert estimator.epsilon == 1


def test_auto_survives_huge_costs(generator):
    estimator = Direct("auto")
    latent = Categorical(torch.randn(20, 5, generator=generator, requires_grad=True))
    for scale in (1e12, 1e30, 1e-30):
        for _ in range(20):
            estimator(latent, TableCost(scale * torch.randn(20, 5, generator=generator)))
        assert estimator.epsilon.isfinite()
        assert estimator.epsilon > 0


@pytest.mark.slow
def test_auto_lands_near_the_best_fixed_epsilon_in_training():
    """Costs a thousand times apart: the share of what there is to gain that is lost against exact training."""
    result = auto_epsilon.run(auto_epsilon.AutoEpsilon(), progress=lambda line: None)
    failures = set()
    for row in result["rows"]:
        fixed = {float(epsilon): sum(lost) / len(lost) for epsilon, lost in row["fixed"].items()}
        auto = sum(row["auto"]) / len(row["auto"])
        assert auto < min(fixed.values()) + 0.06, row
        failures |= {epsilon for epsilon in (0.1, 1.0) if fixed[epsilon] > min(fixed.values()) + 0.3}
    assert failures == {0.1, 1.0}, "a fixed ε did well everywhere"


@pytest.mark.parametrize("family", ["categorical", "bits", "pairwise bits", "pairwise bits, all"])
@pytest.mark.parametrize("two_sided", [False, True])
def test_examples_may_have_their_own_epsilon(family, two_sided):
    generator = torch.Generator().manual_seed(3)
    scores, pairwise = torch.randn(6, 4, generator=generator), torch.randn(4, 4, generator=generator)
    weights = torch.randn(4, generator=generator)
    changes = "all" if family.endswith("all") else "single"
    epsilons = torch.tensor([0.5, 3.0, -1.0])

    def build(leaf):
        if family == "categorical":
            return Categorical(leaf)
        return Bits(leaf) if family == "bits" else PairwiseBits(leaf, pairwise)

    def gradient(rows, epsilon):
        leaf = scores[rows].clone().requires_grad_()
        q = build(leaf)
        value = Direct(epsilon, two_sided=two_sided, changes=changes)(
            q, lambda z: (z * weights).sum(-1), noise=noise[rows]
        )
        value.sum().backward()
        return leaf.grad

    noise = build(scores).draw_noise(generator=generator)
    together = gradient(slice(None), epsilons.repeat(2))
    for row in range(6):
        torch.testing.assert_close(together[row : row + 1], gradient(slice(row, row + 1), epsilons[row % 3].item()))
    assert together.any()


@pytest.mark.parametrize("epsilon", [torch.tensor([0.1, 0.0]), torch.tensor([0.1, torch.inf])])
def test_every_epsilon_is_checked(epsilon):
    with pytest.raises(ValueError, match="finite and not 0"):
        Direct(epsilon)
