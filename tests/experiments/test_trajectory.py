"""The trajectory problem against dynamic programming and enumeration, and that policies are learnt."""

import itertools
import json

import pytest
import torch
from torch import Tensor

from argrad import Direct, Exact, GumbelSoftmax, LocalExpectation, Reinforce
from argrad.estimators import Estimator
from argrad.experiments.trajectory import METHODS, TUNING_SEED, Trajectory, format_table, learn, markdown, plot, run
from argrad.experiments.trajectory_problem import (
    ACTIONS,
    PLACES,
    REWARD,
    best_reward,
    expected_reward,
    step_costs,
    trajectories,
    transitions,
)


def silent(line: str) -> None:
    pass


@pytest.fixture
def policy() -> Tensor:
    return torch.randn(3, PLACES, ACTIONS, generator=torch.Generator().manual_seed(0)).requires_grad_()


def gradient(estimate: Estimator, policy: Tensor, rows: int, seed: int = 1) -> Tensor:
    value = estimate(trajectories(policy, rows), step_costs(), generator=torch.Generator().manual_seed(seed))
    return torch.autograd.grad(value.mean(), policy)[0]


def test_transitions_are_probabilities():
    assert torch.allclose(transitions().sum(-1), torch.ones(PLACES, ACTIONS))
    assert transitions()[0, 2].argmax() == 1  # right of the left end is the middle
    assert transitions()[2, 2].argmax() == 2


def test_the_reward_of_a_policy_by_listing_trajectories(policy):
    pi, moves = policy.detach().softmax(-1), transitions()
    total = 0.0
    for places, actions in itertools.product(
        itertools.product(range(PLACES), repeat=2), itertools.product(range(ACTIONS), repeat=3)
    ):
        path, probability, reward = (0, *places), 1.0, 0.0
        for t in range(3):
            probability *= float(pi[t, path[t], actions[t]])
            reward += float(REWARD[path[t], actions[t]])
            if t < 2:
                probability *= float(moves[path[t], actions[t], path[t + 1]])
        total += probability * reward
    assert float(expected_reward(policy.detach())) == pytest.approx(total, abs=1e-5)


def test_the_best_reward_by_trying_every_policy():
    """Two actions: 3^6 policies that are sure of themselves."""
    tables = torch.tensor(list(itertools.product(range(ACTIONS), repeat=2 * PLACES))).reshape(-1, 2, PLACES)
    sure = 1000.0 * torch.nn.functional.one_hot(tables, ACTIONS)
    assert max(float(expected_reward(one)) for one in sure) == pytest.approx(best_reward(2), abs=1e-5)


def test_enumeration_agrees_with_dynamic_programming(policy):
    value = Exact()(trajectories(policy, 1), step_costs())
    torch.testing.assert_close(-value.squeeze(), expected_reward(policy))
    found, wanted = (torch.autograd.grad(one.sum(), policy)[0] for one in (-value, expected_reward(policy)))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("estimate", [Reinforce(8), Reinforce(8, baseline="none"), LocalExpectation()], ids=str)
def test_unbiased_ones_have_that_gradient(policy, estimate):
    """Every number within 4.5 standard errors, of the mean over 40 draws of 100 trajectories."""
    draws = torch.stack([gradient(estimate, policy, 100, seed) for seed in range(40)])
    wanted = torch.autograd.grad(-expected_reward(policy), policy)[0]
    error, standard_error = draws.mean(0) - wanted, draws.std(0) / 40**0.5
    assert (error.abs() < 4.5 * standard_error + 1e-6).all()


@pytest.mark.parametrize("estimate", [Direct(0.05), GumbelSoftmax(1.0, straight_through=True)], ids=str)
def test_biased_ones_point_the_same_way(policy, estimate):
    found = gradient(estimate, policy, 4000)
    wanted = torch.autograd.grad(-expected_reward(policy), policy)[0]
    assert torch.nn.functional.cosine_similarity(found.flatten(), wanted.flatten(), 0) > 0.9


def test_reward_to_go_has_less_variance():
    policy = torch.zeros(5, PLACES, ACTIONS, requires_grad=True)
    by_step = step_costs()
    spread = {}
    for name, cost in (("to go", by_step), ("whole", lambda z: by_step(z))):
        draws = []
        for seed in range(60):
            noise = torch.Generator().manual_seed(seed)
            value = Reinforce(8)(trajectories(policy, 10), cost, generator=noise)
            draws.append(torch.autograd.grad(value.mean(), policy)[0])
        spread[name] = torch.stack(draws).var(0).sum()
    assert spread["to go"] < 0.85 * spread["whole"]


@pytest.mark.parametrize("method", ["Dynamic programming", "Reinforce, reward to go", "Straight-through"])
def test_policies_come_near_the_optimum(method):
    rewards = learn(method, Trajectory(steps=80), seed=0, rate=0.1)
    first, best = rewards[0], best_reward(5)
    assert rewards[-1] > first + 0.9 * (best - first)
    assert max(rewards) <= best + 1e-4


def test_the_rate_with_the_best_mean_over_the_tuning_seeds_is_chosen(monkeypatch):
    """One seed would choose the larger rate."""
    ends = {0.1: [5.0, 6.0, 6.0], 0.3: [7.0, 4.0, 4.0]}

    def found(method, settings, *, seed, rate):
        return [4.0, 3.0 if seed < TUNING_SEED else ends[rate][seed - TUNING_SEED]]

    monkeypatch.setattr("argrad.experiments.trajectory.learn", found)
    for row in run(Trajectory(seeds=3, rates=(0.1, 0.3)), silent)["rows"]:
        assert row["rate"] == 0.1
        assert row["tuning"] == {"0.1": 5.6667, "0.3": 5.0}
        assert row["rewards"] == [3.0] * 3


def test_a_quick_run(tmp_path):
    result = json.loads(json.dumps(run(Trajectory(quick=True, steps=3, rows=4), silent)))
    assert [row["method"] for row in result["rows"]] == list(METHODS)
    assert all(list(row["tuning"]) == ["0.1"] for row in result["rows"])
    assert format_table(result).startswith("QUICK")
    assert "| Reinforce, reward to go |" in markdown(result)
    plot(result, tmp_path / "trajectory.png")
    assert (tmp_path / "trajectory.png").stat().st_size > 5000


@pytest.mark.parametrize(("wrong", "words"), [({"rows": 1}, "rows"), ({"rates": ()}, "learning rate")])
def test_bad_settings(wrong, words):
    with pytest.raises(ValueError, match=words):
        Trajectory(**wrong)
