r"""A small decision problem with a known optimum: trajectories Π = {s_1, a_1, …, s_T, a_T} as sequences of symbols.

.. math:: p_\theta(\Pi) = p(s_1) \prod_t \pi_\theta(a_t \mid s_t)\, p(s_{t+1} \mid s_t, a_t), \qquad
          \max_\theta E\Big[\sum_t R(s_t, a_t)\Big].

A walker in a corridor of three places goes left, stays or goes right, and slips now and then. The left end, where the
walk starts, pays 1 at every step, the right end pays 3, and the place between costs 1: the best policy gives up what is
at hand. The policy is a table of scores, one for each time, place and action. Dynamic programming gives the best
reward, the reward of any policy, and through autograd its gradient: backwards in time,

.. math:: V_t(s) = \sum_a \pi(a \mid s) \Big[R(s, a) + \sum_{s'} p(s' \mid s, a) V_{t+1}(s')\Big].
"""

from __future__ import annotations

import torch
from torch import Tensor

from argrad.costs import StepCost
from argrad.latents import Sequence

__all__ = ["ACTIONS", "PLACES", "best_reward", "expected_reward", "step_costs", "trajectories"]

PLACES = ACTIONS = 3
REWARD = torch.tensor([1.0, -1.0, 3.0]).unsqueeze(1).expand(PLACES, ACTIONS)
"""By place, whatever is done there."""
SLIP = 0.15
"""The probability of ending up anywhere, rather than where one goes."""


def transitions() -> Tensor:
    """p(next | place, action), ``[places, actions, places]``; actions are left, stay, right."""
    places = torch.arange(PLACES)
    goal = (places.unsqueeze(1) + torch.tensor([-1, 0, 1])).clamp(0, PLACES - 1)
    return (1 - SLIP) * torch.nn.functional.one_hot(goal, PLACES) + SLIP / PLACES


def best_reward(horizon: int) -> float:
    """The most that any policy can expect from the left end."""
    value = torch.zeros(PLACES)
    for _ in range(horizon):
        value = (REWARD + transitions() @ value).amax(1)
    return float(value[0])


def expected_reward(policy: Tensor) -> Tensor:
    """What a policy can expect from there, by its scores ``[horizon, places, actions]``; differentiable."""
    value = policy.new_zeros(PLACES)
    for scores in policy.flip(0):
        value = (scores.softmax(-1) * (REWARD + transitions() @ value)).sum(-1)
    return value[0]


def trajectories(policy: Tensor, rows: int) -> Sequence:
    """The distribution of a_1, s_2, a_2, …, s_T, a_T given s_1 as a latent ``[rows, 2T − 1, 3]``.

    The scores of places are fixed, those of actions come from the policy. Symbols may be relaxed: then what comes next
    is a mixture.
    """
    moves = transitions()

    def step(previous: Tensor | None, state: tuple[int, Tensor]) -> tuple[Tensor, tuple[int, Tensor]]:
        done, place = state
        if done % 2 == 1:  # an action was taken
            assert previous is not None
            return torch.einsum("ns,na,sap->np", place, previous, moves).log(), (done + 1, place)
        place = place if previous is None else previous
        return place @ policy[done // 2], (done + 1, place)

    return Sequence(step, 2 * len(policy) - 1, state=(0, torch.eye(PLACES)[:1].expand(rows, -1)))


def step_costs() -> StepCost:
    """−R(s_t, a_t), paid with the action."""

    def costs(z: Tensor) -> Tensor:
        first = torch.eye(PLACES)[0].expand(*z.shape[:-2], 1, -1)
        places, actions = torch.cat([first, z[..., 1::2, :]], -2), z[..., 0::2, :]
        paid = -torch.einsum("...s,...a,sa->...", places, actions, REWARD)
        return torch.stack([paid, torch.zeros_like(paid)], -1).flatten(-2)[..., :-1]

    return StepCost(costs)
