"""What is impossible counts for nothing, whatever it costs: value and gradient are those of the problem without it."""

import itertools
from collections.abc import Callable
from typing import Any

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
    Reinforce,
    Sequence,
    TableCost,
    diagnose,
)
from argrad.estimators import Estimator
from argrad.latents import Latent
from structured_latents import normal

bad_costs = pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
ESTIMATORS: dict[str, Callable[[], Estimator]] = {
    "Exact": Exact,
    "LocalExpectation": LocalExpectation,
    "Direct": lambda: Direct(0.5),
    "Direct two-sided": lambda: Direct(0.5, two_sided=True),
    "Direct negative": lambda: Direct(-0.5),
    "Direct auto": lambda: Direct("auto"),
    "DebiasedDirect": DebiasedDirect,
    "DebiasedDirect one-sided": lambda: DebiasedDirect(0.5, two_sided=False),
    "Reinforce": Reinforce,
}
DRAWS = 200


def with_impossible(scores: Tensor) -> Tensor:
    """One more value, which is impossible."""
    return torch.nn.functional.pad(scores, (0, 1), value=-torch.inf)


def noise_for(estimator: Estimator, latent: Latent) -> Any:
    return estimator.draw_noise(latent, generator=torch.Generator().manual_seed(3))


def without_last(noise: Any) -> Any:
    """The noise for one value less; the numbers that choose random changes stay."""
    if isinstance(noise, tuple):
        return without_last(noise[0]), *noise[1:]
    return noise[..., :-1] if noise.numel() else noise


def found(estimator: Estimator, latent: Latent, cost: Any, noise: Any, *leaves: Tensor) -> list[Tensor]:
    """Value with and without gradients, gradients, and what the estimator remembers."""
    value = estimator(latent, cost, noise=noise)
    gradients = torch.autograd.grad(value.sum(), leaves)
    with torch.no_grad():
        alone = estimator(latent, cost, noise=noise)
    return [value.detach(), alone, *gradients, *(buffer.clone() for buffer in estimator.buffers())]


def assert_alike(ours: list[Tensor], expected: list[Tensor], scores: int = 2) -> None:
    """The gradient of the scores, which may have one more value, is 0 there."""
    for number, (one, other) in enumerate(zip(ours, expected, strict=True)):
        assert bool(other.isfinite().all())
        if number == scores and one.shape != other.shape:
            assert bool((one[..., -1] == 0).all())
            one = one[..., :-1]
        torch.testing.assert_close(one, other)


@bad_costs
@pytest.mark.parametrize("as_table", [True, False])
@pytest.mark.parametrize("label", ESTIMATORS)
def test_a_value_of_one_variable(label, as_table, bad):
    noise = noise_for(ESTIMATORS[label](), Categorical(with_impossible(normal(3)).expand(DRAWS, 4)))
    results = []
    for impossible in (True, False):
        scores, theta = normal(3), normal(3, seed=1).requires_grad_()
        leaf = (with_impossible(scores) if impossible else scores).requires_grad_()
        costs = torch.cat([theta, theta.new_tensor([bad])]) if impossible else theta
        cost = TableCost(costs) if as_table else lambda z, costs=costs: torch.where(z > 0, costs, 0.0).sum(-1)
        latent = Categorical(leaf.expand(DRAWS, len(leaf)))
        own = noise if impossible else without_last(noise)
        results.append(found(ESTIMATORS[label](), latent, cost, own, leaf, theta))
    assert_alike(*results)


@bad_costs
@pytest.mark.parametrize("label", [*ESTIMATORS, "DebiasedDirect random"])
def test_a_value_of_several_variables(label, bad):
    make = {**ESTIMATORS, "DebiasedDirect random": lambda: DebiasedDirect(0.5, changes=1)}[label]
    noise = noise_for(make(), Categorical(with_impossible(normal(2, 3)).expand(DRAWS, 2, 4), event_dims=2))
    results = []
    for impossible in (True, False):
        scores, theta = normal(2, 3), normal(2, 3, seed=1).requires_grad_()
        leaf = (with_impossible(scores) if impossible else scores).requires_grad_()
        latent = Categorical(leaf.expand(DRAWS, *leaf.shape), event_dims=2)
        own = noise if impossible else without_last(noise)
        results.append(found(make(), latent, squares(theta, bad), own, leaf, theta))
    assert_alike(*results)


def squares(theta: Tensor, number: float) -> Callable[[Tensor], Tensor]:
    """A cost that is not linear, and has a number of its own where a value is taken that theta does not have."""

    def cost(z: Tensor) -> Tensor:
        known = z[..., : theta.shape[-1]]
        value = (theta * known).flatten(-theta.dim()).sum(-1).square()
        return torch.where((z[..., theta.shape[-1] :] > 0).flatten(-theta.dim()).any(-1), number, value)

    return cost


def assert_number_does_not_count(make: Callable[[], Estimator], build: Callable[[Tensor], Latent], theta: Tensor, bad):
    """The same with a bad number as with 0: for problems that are other ones without the impossible value."""
    results = []
    for number in (bad, 0.0):
        scores, own = with_impossible(normal(*theta.shape)).requires_grad_(), theta.clone().requires_grad_()
        latent, estimator = build(scores), make()
        if not estimator.supports(latent):
            pytest.skip(f"not for {latent!r}")
        results.append(found(estimator, latent, squares(own, number), noise_for(estimator, latent), scores, own))
    assert_alike(*results)


@bad_costs
@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("epsilon", [0.5, "auto"])
def test_random_changes(epsilon, two_sided, bad):
    assert_number_does_not_count(
        lambda: Direct(epsilon, two_sided=two_sided, changes=4),
        lambda scores: Categorical(scores.expand(DRAWS, 2, 4), event_dims=2),
        normal(2, 3, seed=1),
        bad,
    )


@bad_costs
@pytest.mark.parametrize("label", [*ESTIMATORS, "Direct random", "Direct all", "Direct all two-sided"])
@pytest.mark.parametrize("kind", ["bits", "pairwise", "perturbed"])
def test_a_bit(kind, label, bad):
    more = {
        "Direct random": lambda: Direct("auto", changes=4, two_sided=True),
        "Direct all": lambda: Direct(0.5, changes="all"),
        "Direct all two-sided": lambda: Direct(0.5, changes="all", two_sided=True),
    }

    def build(scores: Tensor) -> Latent:
        wide = scores.expand(DRAWS, 4)
        if kind == "bits":
            return Bits(wide)
        return PairwiseBits(wide, normal(4, 4, seed=2), law="gibbs" if kind == "pairwise" else "perturb")

    assert_number_does_not_count({**ESTIMATORS, **more}[label], build, normal(3, seed=1), bad)


@bad_costs
@pytest.mark.parametrize("label", ESTIMATORS)
def test_a_value_in_a_chain(label, bad):
    assert_number_does_not_count(
        ESTIMATORS[label],
        lambda scores: Chain(scores.expand(DRAWS, 3, 4), normal(4, 4, seed=1)),
        normal(3, 3, seed=2),
        bad,
    )


class ChainCost:
    """The square of a linear cost; of a sequence that goes from the last value to the first, a number of its own."""

    def __init__(self, theta: Tensor, number: float) -> None:
        self.theta, self.number = theta, number

    def __call__(self, z: Tensor) -> Tensor:
        impossible = (z[..., :-1, 2] * z[..., 1:, 0]).sum(-1) > 0
        return torch.where(impossible, self.number, (self.theta * z).sum((-1, -2)).square())


class LikeBefore(ChainCost):
    """The same, but a single change that leads there costs as much as what is changed."""

    def single_changes(self, latent: Chain, z: Tensor) -> Tensor:
        unchanged, places = self(z), itertools.product(range(z.shape[-2]), range(z.shape[-1]))
        found = torch.empty_like(z)
        for t, value in places:
            changed = z.clone()
            changed[..., t, :] = torch.nn.functional.one_hot(torch.tensor(value), z.shape[-1]).to(z)
            found[..., t, value] = torch.where(latent.score(changed) == -torch.inf, unchanged, self(changed))
        return found


@bad_costs
@pytest.mark.parametrize("law", ["gibbs", "perturb"])
@pytest.mark.parametrize("by_time", [False, True], ids=["one transition", "one a step"])
@pytest.mark.parametrize("label", [*ESTIMATORS, "DebiasedDirect random"])
def test_a_step_of_a_chain(label, by_time, law, bad):
    """The step from the last value to the first is never made; whatever it costs, if that is no number."""
    make = {**ESTIMATORS, "DebiasedDirect random": lambda: DebiasedDirect(0.5, changes=1)}[label]
    transition = normal(2, 3, 3, seed=1) if by_time else normal(3, 3, seed=1)
    transition[..., 2, 0] = -torch.inf
    theta, seen = normal(3, 3, seed=2), []
    reference = LikeBefore if "Direct" in label else ChainCost
    for kind, number in ((ChainCost, bad), (reference, 0.0)):
        leaf, own = normal(3, 3).requires_grad_(), transition.clone().requires_grad_()
        latent, estimator = Chain(leaf.expand(DRAWS, 3, 3), own, law=law), make()
        if not estimator.supports(latent):
            pytest.skip(f"not for {latent!r}")
        seen.append(found(estimator, latent, kind(theta, number), noise_for(estimator, latent), leaf, own))
    if label == "DebiasedDirect random":  # which asks for no table of changes
        assert all(bool(one.isfinite().all()) for one in seen[0])
        return
    assert_alike(*seen)
    assert seen[0][2].any()


@pytest.mark.parametrize("allowed", [[(0, 1), (1, 2), (2, 0)], [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2)]])
def test_a_change_that_is_possible_beside_others_counts(allowed):
    """In a chain that has to go round, or to the right, no variable can be changed alone: a z-test, the cost linear."""
    transition = torch.full((3, 3), -torch.inf, dtype=torch.float64)
    for first, second in allowed:
        transition[first, second] = 0.3
    theta, scores, draws, epsilon = normal(4, 3, seed=2), normal(4, 3), 20000, 0.5
    wanted = Chain(scores, transition).mean() - Chain(scores - epsilon * theta, transition).mean()
    leaf = scores.expand(draws, 4, 3).clone().requires_grad_()
    loss = Direct(epsilon)(
        Chain(leaf, transition), lambda z: (theta * z).sum((-1, -2)), generator=torch.Generator().manual_seed(0)
    )
    (each,) = torch.autograd.grad(loss.sum(), leaf)
    error = (each.mean(0) - wanted / epsilon).abs()
    assert (error <= 4.5 * each.std(0) / draws**0.5 + 1e-12).all()
    assert wanted.abs().max() > 0.05


def test_which_changes_of_a_chain_make_an_impossible_step():
    transition = torch.zeros(3, 3)
    transition[2, 0] = -torch.inf
    latent = Chain(torch.zeros(2, 4, 3), transition)
    z = torch.nn.functional.one_hot(torch.tensor([[0, 1, 2, 1], [2, 2, 1, 0]]), 3).to(torch.float32)
    found = latent.makes_impossible_step(z)
    for row, t, value in itertools.product(range(2), range(4), range(3)):
        changed = z[row].clone()
        changed[t] = torch.eye(3)[value]
        assert found[row, t, value] == (latent.score(changed.expand(2, 4, 3))[row] == -torch.inf)


@bad_costs
@pytest.mark.parametrize("label", ["Exact", "LocalExpectation", "Direct", "Direct two-sided"])
def test_a_symbol_of_a_sequence(label, bad):
    def build(scores: Tensor) -> Latent:
        """The last symbol is impossible at every step."""

        def step(previous: Tensor | None, state: Any) -> tuple[Tensor, Any]:
            if previous is None:
                return scores[:2], None
            return with_impossible(previous[:, :2] @ normal(2, 2, seed=1)), None

        return Sequence(step, 3)

    assert_number_does_not_count(ESTIMATORS[label], build, normal(3, 2, seed=2), bad)


def test_what_is_possible_is_not_hidden():
    latent = Categorical(torch.tensor([0.0, 0.0, -torch.inf]))
    assert Exact()(latent, TableCost(torch.tensor([1.0, torch.inf, 2.0]))) == torch.inf
    assert TableCost(torch.tensor([torch.nan, 1.0]))(torch.tensor([1.0, 0.0])).isnan()
    assert TableCost(torch.tensor([torch.inf, 1.0]))(torch.tensor([0.5, 0.5])) == torch.inf


def test_a_diagnosis_has_no_use_for_it():
    latent = Categorical(torch.tensor([[0.3, 0.1, -torch.inf]], dtype=torch.float64))
    rows = []
    for bad in (torch.inf, 0.0):
        cost = TableCost(torch.tensor([[1.0, 2.0, bad]], dtype=torch.float64))
        diagnosis = diagnose(latent, cost, 100, estimators=[Direct(0.5)], generator=torch.Generator().manual_seed(0))
        assert diagnosis.closed_form is not None
        rows.append((diagnosis.rows[0].bias, diagnosis.rows[0].variance, diagnosis.closed_form))
    assert rows[0] == rows[1]
