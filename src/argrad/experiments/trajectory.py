"""Reinforcement learning with every estimator: a small trajectory problem whose optimum is known.

The problem is that of :mod:`argrad.experiments.trajectory_problem`. Each estimator trains the same table of scores from
zero, with the same number of trajectories per step, and with the learning rate out of five that does best on seeds used
for nothing else, as many as are reported. What is reported is the expected reward of the policy, by dynamic programming
and not by sampling, as a share of what lies between the first policy and the best one.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import Tensor

from argrad.costs import Cost
from argrad.estimators import Direct, Estimator, GumbelSoftmax, LocalExpectation, Reinforce
from argrad.experiments.drawing import new_figure, prepare, save
from argrad.experiments.paper_model import quickly
from argrad.experiments.provenance import command_line, provenance
from argrad.experiments.trajectory_problem import (
    ACTIONS,
    PLACES,
    best_reward,
    expected_reward,
    step_costs,
    trajectories,
)

__all__ = ["METHODS", "Trajectory", "format_table", "learn", "markdown", "plot", "run"]

TUNING_SEED = 1_000_000
"""The first of those that choose the learning rate; none that is reported."""
COLOURS = ("#111111", "#b0b0b0", "#d1662a", "#a0307f", "#7a5cc9", "#1f5fa8", "#2f7d4f")
Maker = Callable[[int], Estimator]
METHODS: dict[str, tuple[Maker | None, bool]] = {
    "Dynamic programming": (None, True),
    "Reinforce, no baseline": (lambda rows: Reinforce(rows, baseline="none"), False),
    "Reinforce": (lambda rows: Reinforce(rows), False),
    "Reinforce, reward to go": (lambda rows: Reinforce(rows), True),
    "LocalExpectation": (lambda rows: LocalExpectation(), True),
    "Direct": (lambda rows: Direct("auto"), True),
    "Straight-through": (lambda rows: GumbelSoftmax(1.0, straight_through=True), True),
}
"""How each makes its estimator for a number of trajectories per step, and whether it sees the cost of each step."""


@final
@dataclass(frozen=True)
class Trajectory:
    """Settings of the experiment."""

    horizon: int = 5
    """Actions in a trajectory."""
    seeds: int = 5
    """Trainings of each estimator."""
    steps: int = 200
    """Training steps."""
    rows: int = 16
    """Trajectories per step."""
    rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0)
    """Learning rates of Adam to choose from."""
    quick: bool = False
    """One learning rate, one seed, few steps: seconds, and the order of the estimators says little."""

    def __post_init__(self) -> None:
        for name, least in (("horizon", 1), ("seeds", 1), ("steps", 1), ("rows", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.rates or min(self.rates) <= 0:
            raise ValueError(f"give at least one learning rate, all of them positive, got {self.rates}")

    def effective(self) -> Trajectory:
        """The settings with ``quick`` spelt out."""
        return quickly(self, seeds=1, steps=40, rates=(0.1,)) if self.quick else self


def learn(method: str, settings: Trajectory, *, seed: int, rate: float) -> list[float]:
    """Train a policy; returns its expected reward before every step and after the last."""
    make, stepwise = METHODS[method]
    generator = torch.Generator().manual_seed(seed)
    policy = torch.zeros(settings.horizon, PLACES, ACTIONS, requires_grad=True)
    optimiser = torch.optim.Adam([policy], rate)
    estimate = None if make is None else make(settings.rows)
    rewards = [float(expected_reward(policy.detach()))]
    for _ in range(settings.steps):
        optimiser.zero_grad()
        loss = (
            -expected_reward(policy) if estimate is None else cost_of(policy, estimate, stepwise, settings, generator)
        )
        loss.backward()
        optimiser.step()
        rewards.append(float(expected_reward(policy.detach())))
    return rewards


def tune(method: str, settings: Trajectory, rate: float) -> float:
    """The mean of the last expected rewards with a learning rate, over seeds that are not reported."""
    seeds = range(TUNING_SEED, TUNING_SEED + settings.seeds)
    return statistics.fmean(learn(method, settings, seed=seed, rate=rate)[-1] for seed in seeds)


def cost_of(
    policy: Tensor, estimate: Estimator, stepwise: bool, settings: Trajectory, generator: torch.Generator
) -> Tensor:
    """The mean cost of sampled trajectories, with the estimator's gradient."""
    rows = 1 if isinstance(estimate, Reinforce) else settings.rows  # its samples are the trajectories
    by_step = step_costs()
    cost: Cost = by_step if stepwise else lambda z: by_step(z)
    loss: Tensor = estimate(trajectories(policy, rows), cost, generator=generator).mean()
    return loss


def run(settings: Trajectory, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """All estimators.

    Returns:
        A result ready for JSON: ``best`` and ``first``, the rewards of the best policy and of the first; and ``rows``,
        each with a ``method``, its ``rate`` and what it was chosen by, ``tuning``, the final ``rewards`` by seed and
        their ``curves``.
    """
    record = provenance(command_line("argrad reproduce trajectory", settings))
    settings = settings.effective()
    rows = []
    for method in METHODS:
        progress(f"{method}: choosing a learning rate")
        tuning = {rate: tune(method, settings, rate) for rate in settings.rates}
        rate = max(tuning, key=lambda one: tuning[one])
        progress(f"{method}: {settings.seeds} seeds")
        curves = [learn(method, settings, seed=seed, rate=rate) for seed in range(settings.seeds)]
        rows.append(
            {
                "method": method,
                "rate": rate,
                "tuning": {f"{one:g}": round(reward, 4) for one, reward in tuning.items()},
                "rewards": [round(curve[-1], 4) for curve in curves],
                "curves": [[round(reward, 3) for reward in curve] for curve in curves],
            }
        )
    first = float(expected_reward(torch.zeros(settings.horizon, PLACES, ACTIONS)))
    ends = {"best": best_reward(settings.horizon), "first": first}
    return {**record, "settings": asdict(settings), "quick": settings.quick, **ends, "rows": rows}


def cells(row: dict[str, Any], result: dict[str, Any]) -> tuple[str, str, str, str]:
    """Method, learning rate, mean reward with its spread over seeds, and the share of what could be gained."""
    rewards = row["rewards"]
    spread = f" ± {statistics.stdev(rewards):.2f}" if len(rewards) > 1 else ""
    share = (statistics.fmean(rewards) - result["first"]) / (result["best"] - result["first"])
    return row["method"], f"{row['rate']:g}", f"{statistics.fmean(rewards):.2f}{spread}", f"{100 * share:.1f}"


def format_table(result: dict[str, Any]) -> str:
    """A table for a terminal."""
    lines = ["QUICK: few steps and one seed."] if result["quick"] else []
    lines.append(f"Best possible reward {result['best']:.2f}, of the first policy {result['first']:.2f}")
    lines.append(f"{'':<28}{'rate':>6}{'reward':>16}{'% of the gain':>16}")
    for row in result["rows"]:
        method, rate, reward, share = cells(row, result)
        lines.append(f"{method:<28}{rate:>6}{reward:>16}{share:>16}")
    return "\n".join(lines)


def markdown(result: dict[str, Any]) -> str:
    """The same for the documentation."""
    lines = ["| | Learning rate | Expected reward | % of what can be gained |", "|---|---|---|---|"]
    lines += ["| " + " | ".join(cells(row, result)) + " |" for row in result["rows"]]
    lines += ["", f"The best policy expects {result['best']:.2f}, the first one {result['first']:.2f}."]
    return "\n".join(lines)


def plot(result: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """The expected reward by step, mean over seeds."""
    figure = new_figure(7.5, 4.4)
    axes = figure.subplots()
    prepare(axes, "A corridor of three places", "training step", "expected reward")
    axes.axhline(result["best"], color="#8a8a8a", linewidth=1, linestyle=":")
    for row, colour in zip(result["rows"], COLOURS, strict=True):
        axes.plot(torch.tensor(row["curves"]).mean(0), color=colour, label=row["method"], linewidth=1.4)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    seeds = len(result["rows"][0]["rewards"])
    save(figure, result, f"Learning a policy with each estimator, {seeds} seeds; dotted: the best policy", path)
