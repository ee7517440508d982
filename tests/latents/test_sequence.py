"""Sequences: every number against listing all of them, every estimator against the exact gradient."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

import argrad
from argrad import (
    Categorical,
    Direct,
    Exact,
    GumbelSoftmax,
    LocalExpectation,
    Reinforce,
    Sequence,
    StepCost,
    Unavailable,
)
from argrad.costs import ContinuedCost
from problems import assert_mean
from structures import assert_law

LENGTH, K = 3, 3


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


START, MOVES = normal(K), normal(K, K, seed=1)


def chain(start: Tensor, moves: Tensor, **options: object) -> Sequence:
    """Scores of the next symbol by the one before it, and a state that counts: every row has its own parameters."""

    def step(previous: Tensor | None, state: Tensor | None) -> tuple[Tensor, Tensor]:
        if previous is None:
            return start, torch.zeros(len(start), 1, dtype=start.dtype)
        assert state is not None
        own = moves if len(previous) == len(moves) else moves.repeat(len(previous) // len(moves), 1, 1)
        return torch.einsum("nk,nkj->nj", previous, own) + 0.3 * state, state + previous[:, :1]

    return Sequence(step, options.pop("length", LENGTH), **options)


def small(batch: int = 1, **options: object) -> Sequence:
    return chain(START.expand(batch, K), MOVES.expand(batch, K, K), **options)


def by_hand(symbols: tuple[int, ...]) -> float:
    """log q of one sequence, step by step."""
    total, scores, seen = 0.0, START, 0.0
    for symbol in symbols:
        total += scores.log_softmax(-1)[symbol].item()
        scores = MOVES[symbol] + 0.3 * seen
        seen += symbol == 0
    return total


def test_probabilities_by_hand():
    q = small()
    expected = [by_hand(symbols) for symbols in itertools.product(range(K), repeat=LENGTH)]
    torch.testing.assert_close(q.log_prob_all()[0], torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(q.log_prob_all().logsumexp(-1), torch.zeros(1, dtype=torch.float64))
    p, states = q.log_prob_all()[0].exp(), q.enumerate()
    torch.testing.assert_close(q.entropy()[0], -(p * p.log()).sum())
    torch.testing.assert_close(q.kl()[0], LENGTH * math.log(K) - q.entropy()[0])
    torch.testing.assert_close(q.mean()[0], (p[:, None, None] * states).sum(0))
    assert torch.equal(q.mode()[0], states[p.argmax()])
    other = chain(normal(1, K, seed=4), normal(1, K, K, seed=5))
    torch.testing.assert_close(q.kl(other)[0], (p * (p.log() - other.log_prob_all()[0])).sum())
    torch.testing.assert_close(q.step_log_probs(states[:, None]).sum(-1)[:, 0], p.log())


def test_samples_follow_their_law():
    q = small()
    z = q.sample((40_000,), generator=torch.Generator().manual_seed(0))
    assert z.shape == (40_000, 1, LENGTH, K)
    assert_law(z[:, 0], q.log_prob_all()[0], q.enumerate())


def test_without_memory_it_is_categorical():
    scores = normal(4, LENGTH, K)

    def step(previous, state):
        rows = 4 if previous is None else len(previous)
        t = 0 if state is None else int(state[0])
        return scores[:, t].repeat(rows // 4, 1), torch.full((rows,), t + 1)

    q, same = Sequence(step, LENGTH), Categorical(scores, event_dims=2)
    noise = same.draw_noise((5,), generator=torch.Generator().manual_seed(1))
    z = q.sample(noise=noise)
    assert torch.equal(z, same.sample(noise=noise))
    for ours, theirs in (
        (q.log_prob(z), same.log_prob(z)),
        (q.entropy(), same.entropy()),
        (q.kl(), same.kl()),
        (q.mean(), same.mean()),
        (q.given(z).scores, scores.expand(5, 4, LENGTH, K)),
    ):
        torch.testing.assert_close(ours, theirs)
    assert torch.equal(q.mode(), same.mode())
    assert torch.equal(q.greedy(), same.mode())


def test_going_another_way_keeps_what_came_before():
    q = small(2)
    noise = q.draw_noise(generator=torch.Generator().manual_seed(2))
    z = q.sample(noise=noise)
    assert torch.equal(q.continued(z, z, noise), z)
    for t, symbol in itertools.product(range(LENGTH), range(K)):
        other = z.clone()
        other[:, t] = torch.eye(K)[symbol]
        found = q.continued(z, other, noise)
        for row in range(2):
            symbols = [int(s) for s in z[row].argmax(-1)[:t]] + [symbol]
            changed = symbol != int(z[row, t].argmax())
            while len(symbols) < LENGTH:
                forced = torch.eye(K).double()[torch.tensor([symbols + [0] * (LENGTH - len(symbols))])]
                scores = small().given(forced).scores[0, len(symbols)]
                symbols.append(int((scores + noise[row, len(symbols)]).argmax()))
            expected = torch.eye(K).double()[torch.tensor(symbols)] if changed else z[row]
            assert torch.equal(found[row], expected)


# ------------------------------------------------------------------------------------------------------- the gradient


def cost(z: Tensor) -> Tensor:
    """Not a sum over steps."""
    mixed = (z * normal(LENGTH, K, seed=7)).sum((-1, -2))
    return mixed.square() + mixed


STEPS = StepCost(lambda z: (z * normal(LENGTH, K, seed=8)).sum(-1) * z[..., :1, 0].add(1))
"""What a step costs depends on the first symbol too."""


def exact(the_cost, *, learn_start: bool = True) -> tuple[Tensor, ...]:
    return tuple(grad[0] for grad in rowwise(Exact(), the_cost, 1, learn_start=learn_start))


def rowwise(estimator, the_cost, rows: int, *, learn_start: bool = True) -> tuple[Tensor, ...]:
    """The gradient of each row's own copy of the parameters: so many independent estimates."""
    start, moves = (p.expand(rows, *p.shape).clone().requires_grad_() for p in (START, MOVES))
    q = chain(start if learn_start else start.detach(), moves)
    estimator(q, the_cost, generator=torch.Generator().manual_seed(0)).sum().backward()
    return (start.grad, moves.grad) if learn_start else (moves.grad,)


UNBIASED = {
    "reinforce": (Reinforce(baseline="none"), cost),
    "reinforce, leave one out": (Reinforce(3), cost),
    "reinforce, by steps": (Reinforce(baseline="none"), STEPS),
    "reinforce, by steps, leave one out": (Reinforce(2), STEPS),
    "reinforce, by steps, moving average": (Reinforce(steps=LENGTH), STEPS),
    "local expectation": (LocalExpectation(), cost),
    "direct, two-sided": (Direct(0.02, two_sided=True), cost),
    "direct, random changes": (Direct(0.02, two_sided=True, changes=4), cost),
}


@pytest.mark.parametrize("learn_start", [True, False])
@pytest.mark.parametrize("name", UNBIASED)
def test_estimators_have_the_exact_mean(name, learn_start):
    """A law of the first symbol may be given: then the scores of later steps alone want a gradient."""
    estimator, the_cost = UNBIASED[name]
    found = rowwise(estimator, the_cost, 60_000, learn_start=learn_start)
    for ours, theirs in zip(found, exact(the_cost, learn_start=learn_start), strict=True):
        assert_mean(ours, theirs, comparisons=3 * len(UNBIASED))
        assert ours.std(0).max() > 0


def test_whether_a_gradient_is_wanted():
    """By anything on the way, in whatever mode one asks; the walk ends where that is known."""
    calls = []

    def made_of(*scores: Tensor, **options: object) -> Sequence:
        def step(previous, t):
            t = 0 if previous is None else t
            calls.append(t)
            return scores[t].expand(2 if previous is None else len(previous), K), t + 1

        return Sequence(step, len(scores), **options)

    fixed, learnt = torch.zeros(K), torch.zeros(K, requires_grad=True)
    for options in ({}, {"end": 0}, {"validate": False}):
        assert not made_of(fixed, fixed, fixed, **options).requires_grad
        for where in range(4):
            scores = [fixed] * 4
            scores[where] = learnt
            q = made_of(*scores, **options)
            calls.clear()
            with torch.no_grad():
                assert q.requires_grad
            assert calls == list(range(1, where + 1))


def test_only_a_cost_without_gradient_for_the_scores_leaves_the_baseline_alone():
    estimator = Reinforce()
    for learn in (False, True):
        estimator(chain(START[None], MOVES[None].clone().requires_grad_(learn)), cost)
        assert bool(estimator.moments.location().any()) == learn


def test_direct_is_one_categorical_variable_at_the_last_step():
    epsilon = 0.8
    start, moves = (p.expand(60_000, *p.shape).clone().requires_grad_() for p in (START, MOVES))
    q = chain(start, moves, length=1)
    weights = normal(K, seed=9)
    Direct(epsilon)(
        q, lambda z: (z * weights).sum((-1, -2)), generator=torch.Generator().manual_seed(3)
    ).sum().backward()
    assert_mean(start.grad, (START.softmax(-1) - (START - epsilon * weights).softmax(-1)) / epsilon)


def test_what_was_paid_before_only_adds_noise():
    early = StepCost(lambda z: torch.cat([3 * z[..., :1, 0], 0 * z[..., 1:, 0]], -1))
    whole = rowwise(Reinforce(baseline="none"), lambda z: early(z), 20_000)
    ahead = rowwise(Reinforce(baseline="none"), early, 20_000)
    torch.testing.assert_close(whole[0], ahead[0])  # all is ahead of the first step
    assert whole[1].any()
    assert not ahead[1].any()  # and nothing of the others


def test_relaxed_sequences():
    q = small(6)
    noise = q.draw_noise(generator=torch.Generator().manual_seed(4))
    soft = q.relax(noise, 0.5, straight_through=False)
    torch.testing.assert_close(soft.sum(-1), torch.ones(6, LENGTH, dtype=torch.float64))
    torch.testing.assert_close(q.relax(noise, 1e-6, straight_through=False), q.sample(noise=noise))
    start, moves = (p.expand(6, *p.shape).clone().requires_grad_() for p in (START, MOVES))
    value = GumbelSoftmax(0.5, straight_through=True)(chain(start, moves), cost, noise=noise)
    torch.testing.assert_close(value, cost(q.sample(noise=noise)))
    value.sum().backward()
    assert start.grad.abs().min() > 0
    assert moves.grad.any()


def test_the_costs_own_parameters_get_their_gradient_once():
    theta = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    q = small(5)
    for estimator in (Reinforce(), Reinforce(2), LocalExpectation(), Direct(), GumbelSoftmax(straight_through=True)):
        theta.grad = None
        start, moves = (p.expand(5, *p.shape).clone().requires_grad_() for p in (START, MOVES))
        noise = estimator.draw_noise(chain(start, moves), generator=torch.Generator().manual_seed(0))
        estimator(chain(start, moves), lambda z: theta * cost(z), noise=noise).sum().backward()
        plain = noise if noise.dim() == 4 else noise[None]
        torch.testing.assert_close(theta.grad, cost(q.sample(noise=plain)).mean(0).sum())


# ------------------------------------------------------------------------------------------------------- uses


def test_sequences_may_end_early():
    q = small(end=2)
    p = q.log_prob_all()[0].exp()
    torch.testing.assert_close(p.sum(), torch.tensor(1.0, dtype=torch.float64))
    for probability, z in zip(p, q.enumerate(), strict=True):
        symbols = z.argmax(-1).tolist()
        goes_on = any(a == 2 and b != 2 for a, b in itertools.pairwise(symbols))
        assert (probability == 0) == goes_on
    z = q.sample((1000,), generator=torch.Generator().manual_seed(0)).argmax(-1)
    over = (z == 2).long()
    assert bool((over[..., 1:] >= over[..., :-1]).all())
    start, moves = START[None].clone().requires_grad_(), MOVES[None].clone().requires_grad_()
    for estimator in (Exact(), Reinforce(2), LocalExpectation(), Direct(), GumbelSoftmax()):
        q = chain(start, moves, end=2)
        (estimator(q, cost).sum() + q.entropy().sum() + q.kl().sum()).backward()
    assert bool(start.grad.isfinite().all() and moves.grad.isfinite().all())


def test_a_recurrent_network_of_ones_own():
    torch.manual_seed(0)
    cell, scores = nn.LSTMCell(4, 8), nn.Linear(8, 4)

    def step(previous, state):
        hidden = cell(torch.zeros(5, 4) if previous is None else previous, state)
        return scores(hidden[0]), hidden

    q = Sequence(step, 6, end=0)
    z = q.sample((3,), generator=torch.Generator().manual_seed(0))
    assert z.shape == (3, 5, 6, 4)
    assert q.log_prob(z).shape == (3, 5)
    for estimator in (Reinforce(2), Direct(2.0, changes=12), LocalExpectation(), GumbelSoftmax(straight_through=True)):
        cell.zero_grad()
        loss = estimator(q, lambda z: z[..., 0].sum(-1), generator=torch.Generator().manual_seed(1))
        assert loss.shape == (5,)
        loss.sum().backward(retain_graph=True)
        assert cell.weight_hh.grad.any()


ACTIONS, PLACES, WAYS = 2, 5, 4


def walk(policy: Tensor, rows: int) -> Sequence:
    """A trajectory: from the middle of a corridor, left or right, four times; the state is where one is."""

    def step(previous, place):
        if previous is None:
            place = torch.full((rows,), PLACES // 2)
        else:
            place = (place + 2 * previous.argmax(-1) - 1).clamp(0, PLACES - 1)
        return policy[place], place

    return Sequence(step, WAYS)


def rewards(z: Tensor) -> Tensor:
    """1 at the left end, 3 at the right end, a little less each time one moves right."""
    moves = 2 * z.argmax(-1) - 1
    place = torch.full(z.shape[:-2], PLACES // 2)
    paid = []
    for t in range(WAYS):
        place = (place + moves[..., t]).clamp(0, PLACES - 1)
        paid.append((place == 0) * 1.0 + (place == PLACES - 1) * 3.0 - 0.25 * (moves[..., t] > 0))
    return torch.stack(paid, -1)


def test_reinforce_finds_the_best_trajectory():
    every = Sequence(lambda previous, state: (torch.zeros(1 if previous is None else len(previous), 2), None), WAYS)
    best = rewards(every.enumerate()).sum(-1).max()
    assert best == 3 * (WAYS - 1) - 0.25 * WAYS
    policy = torch.zeros(PLACES, ACTIONS, requires_grad=True)
    adam, estimator = torch.optim.Adam([policy], lr=0.05), Reinforce(2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        adam.zero_grad()
        estimator(walk(policy, 20), StepCost(lambda z: -rewards(z)), generator=generator).mean().backward()
        adam.step()
    expected = Exact()(walk(policy, 1), lambda z: rewards(z).sum(-1)).item()
    assert expected > best - 0.3
    assert rewards(walk(policy, 1).greedy()).sum() == best


# ------------------------------------------------------------------------------------------------------- limits


def test_too_many_to_list():
    q = small(length=40)
    for call in (q.mode, q.mean, q.entropy, q.kl):
        with pytest.raises(Unavailable, match=r"needs all over 2\^63 sequences"):
            call()
    with pytest.raises(ValueError, match="enumerated"):
        q.log_prob_all()
    assert q.sample().shape == (1, 40, K)


EVERY = {
    "exact": Exact(),
    "reinforce": Reinforce(8),
    "local expectation": LocalExpectation(),
    "direct": Direct(4.0),
    "direct, two-sided": Direct(4.0, two_sided=True),
    "direct, random changes": Direct(4.0, changes=4),
    "gumbel-softmax": GumbelSoftmax(),
    "straight-through": GumbelSoftmax(straight_through=True),
}


@pytest.mark.parametrize("batch", [0, 1, 40])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", EVERY)
def test_batches_and_precisions(name, dtype, batch):
    start, moves = (p.to(dtype).expand(batch, *p.shape).clone().requires_grad_() for p in (START, MOVES))
    q = chain(start, moves)
    value = EVERY[name](q, StepCost(lambda z: z[..., 0]), generator=torch.Generator().manual_seed(0))
    assert value.shape == (batch,)
    assert value.dtype == dtype
    value.sum().backward()
    for parameter in (start, moves):
        assert parameter.grad.dtype == dtype
        assert bool(parameter.grad.isfinite().all())
        assert bool(parameter.grad.any()) or batch < 40


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_step_in_half_precision_is_given_half_precision(dtype):
    torch.manual_seed(0)
    cell, head = nn.GRUCell(4, 8, dtype=dtype), nn.Linear(8, 4, dtype=dtype)

    def step(previous, state):
        state = cell(torch.zeros(2, 4, dtype=dtype) if previous is None else previous, state)
        return head(state), state

    q = Sequence(step, 3)
    for z in (q.sample((5,)), q.greedy(), q.enumerate()[:, None].expand(-1, 2, -1, -1)):
        assert z.dtype == q.log_prob(z.float()).dtype == dtype
    assert q.entropy().dtype == dtype


def misled(bad: float, at: int, *, row: slice = slice(None), symbol: slice = slice(None), **options) -> Sequence:
    """Scores of zero, but for one bad step."""

    def step(previous, t):
        t = 0 if previous is None else t
        scores = torch.zeros(4 if previous is None else len(previous), K, requires_grad=True).clone()
        if t == at:
            scores[row, symbol] = bad
        return scores, t + 1

    return Sequence(step, LENGTH, **options)


BAD = {
    "NaN": (math.nan, 0, r"are NaN in .*first at index \(3, 0\); .*learning rate"),
    "+inf": (math.inf, 1, r"are \+inf in .*first at index \(3, 1\); .*finite number"),
    "all -inf": (-math.inf, slice(None), r"are all -inf .*first at index \(3,\); .*at least one"),
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("kind", BAD)
def test_bad_scores_of_a_later_step_are_named(name, kind):
    bad, symbol, words = BAD[kind]

    def step(previous, t):
        t = 0 if previous is None else t
        scores = torch.zeros(4 if previous is None else len(previous), K) + learnt
        if t == 2:
            scores[3, symbol] = bad
        return scores, t + 1

    learnt = torch.zeros(K, requires_grad=True)
    with pytest.raises(ValueError, match=f"Sequence step 2 scores {words}") as error:
        EVERY[name](Sequence(step, LENGTH), lambda z: z[..., 0].sum(-1))
    assert "\n" not in str(error.value)
    assert EVERY[name](Sequence(step, LENGTH, validate=False), lambda z: z[..., 0].sum(-1)).shape == (4,)
    noise = torch.zeros(2, 4, LENGTH, K)
    assert torch.vmap(lambda noise: Sequence(step, LENGTH).sample(noise=noise))(noise).shape == noise.shape


@pytest.mark.parametrize("end", [None, 0])
@pytest.mark.parametrize("name", EVERY)
def test_what_follows_an_impossible_symbol_or_the_end_is_not_looked_at(name, end):
    """A step that has no answer to what follows symbol 0, which is impossible, or the end."""
    allowed = torch.tensor([-torch.inf if end is None else 0.0, 0.0, 0.0])

    def step(previous, state):
        scores = (weights + allowed).expand(20 if previous is None else len(previous), K)
        return scores if previous is None else torch.where(previous[:, :1] > 0.99, torch.nan, scores), None

    weights = torch.zeros(K, requires_grad=True)
    q = Sequence(step, LENGTH, end=end)
    value = EVERY[name](q, lambda z: cost(z.double()), generator=torch.Generator().manual_seed(0))
    value.sum().backward()
    assert bool(value.isfinite().all() and weights.grad.isfinite().all() and weights.grad.any())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Sequence(3, 2), "needs a function"),
        (lambda: small(length=0), "length of at least 1"),
        (lambda: small(length=True), "length of at least 1"),
        (lambda: small(end=3), "one of the k=3 symbols"),
        (lambda: Sequence(lambda p, s: torch.zeros(2, 2), 2), r"must return \(scores, state\)"),
        (lambda: Sequence(lambda p, s: (torch.zeros(2), None), 2), r"scores \[batch, k\]"),
        (lambda: Sequence(lambda p, s: (torch.full((2, 2), torch.nan), None), 2), "NaN"),
        (lambda: Sequence(lambda p, s: (torch.zeros(2, 2 if p is None else 3), None), 2).sample(), "step 1 returned"),
        (lambda: small().with_scores(torch.zeros(1)), "step function"),
        (lambda: small().log_prob(torch.zeros(2, 2)), "needs"),
        (lambda: small().kl(Categorical(torch.zeros(1, 3))), "same length"),
        (lambda: small().sample(noise=torch.zeros(1, 2, 3)), "draw_noise"),
        (lambda: Direct(changes="gradient")(small(), cost), "another symbol"),
        (lambda: Reinforce()(chain(START[None].clone().requires_grad_(), MOVES[None]), STEPS), "steps=3"),
        (lambda: argrad.Rebar()(small(), cost), "LocalExpectation"),
        (lambda: argrad.Arm()(small(), cost), "Reinforce"),
        (lambda: argrad.DebiasedDirect()(small(), cost), "these do: .*LocalExpectation"),
        (lambda: argrad.DebiasedDirect(changes=0)(small(), cost), "these do: .*LocalExpectation"),
        (lambda: StepCost(lambda z: z.sum())(torch.zeros(1, 2, 3)), "shape"),
        (lambda: ContinuedCost(small(), cost, torch.zeros(1), torch.zeros(1)).all(small()), "one sample"),
    ],
)
def test_bad_calls_are_one_clear_line(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "\n" not in str(error.value)
