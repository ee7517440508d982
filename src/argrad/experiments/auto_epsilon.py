"""Does ``Direct("auto")`` find its ε? Training on costs a factor of a thousand apart, beside a grid of fixed ε.

An encoder learns one categorical variable per example, minimising E[cost] + KL to the uniform prior, with costs that
are linear in its inputs and of a given scale. What is reported is the share of what there is to gain (the optimum
against knowing nothing) that is lost against training with the exact gradient: 0 is as good as exact, 1 has learnt
nothing, more is worse than nothing.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from argrad.costs import TableCost
from argrad.estimators import Direct, Estimator, Exact
from argrad.experiments.provenance import command_line, provenance
from argrad.latents import Categorical

__all__ = ["AutoEpsilon", "format_table", "run"]


@dataclass(frozen=True)
class AutoEpsilon:
    """Settings of the comparison."""

    scales: tuple[float, ...] = (0.1, 3.0, 100.0)
    """Spreads of the cost, one problem each."""
    epsilons: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    """Fixed values of ε to compare with."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One problem and one training per seed."""
    steps: int = 600
    """Training steps, of 100 examples each."""


def problem(scale: float, seed: int) -> tuple[Tensor, Tensor, torch.Generator]:
    """Inputs ``[500, 20]``, costs ``[500, 10]``, and the generator to go on with."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(500, 20, generator=generator)
    return inputs, scale * inputs @ torch.randn(20, 10, generator=generator) / math.sqrt(20), generator


def gain(costs: Tensor) -> float:
    """The uniform posterior's objective minus the best one's, whose posterior is softmax(−cost)."""
    best = math.log(costs.shape[-1]) - (-costs).logsumexp(-1)
    return float((costs.mean(-1) - best).mean())


def train(estimator: Estimator, scale: float, seed: int, steps: int) -> float:
    """E[cost] + KL over all examples after training an encoder with the given estimator."""
    inputs, costs, generator = problem(scale, seed)
    torch.manual_seed(seed)
    encoder = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimiser = torch.optim.Adam(encoder.parameters(), 3e-3)
    for _ in range(steps):
        chosen = torch.randint(0, len(inputs), (100,), generator=generator)
        latent = Categorical(encoder(inputs[chosen]))
        loss = (estimator(latent, TableCost(costs[chosen]), generator=generator) + latent.kl()).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        latent = Categorical(encoder(inputs))
        return float((Exact()(latent, TableCost(costs)) + latent.kl()).mean())


def run(settings: AutoEpsilon, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """Train everything; returns rows with the share lost, one number per seed."""
    rows = []
    for scale in settings.scales:
        exact = [train(Exact(), scale, seed, settings.steps) for seed in settings.seeds]
        gains = [gain(problem(scale, seed)[1]) for seed in settings.seeds]

        def lost(
            estimators: list[Direct], scale: float = scale, exact: list[float] = exact, gains: list[float] = gains
        ) -> list[float]:
            trained = [
                train(e, scale, seed, settings.steps) for e, seed in zip(estimators, settings.seeds, strict=True)
            ]
            return [(value - best) / most for value, best, most in zip(trained, exact, gains, strict=True)]

        fixed = {str(epsilon): lost([Direct(epsilon) for _ in settings.seeds]) for epsilon in settings.epsilons}
        adaptive = [Direct("auto") for _ in settings.seeds]
        row = {"scale": scale, "gain": gains, "fixed": fixed, "auto": lost(adaptive)}
        rows.append({**row, "found": [estimator.epsilon.item() for estimator in adaptive]})
        progress(f"scale {scale:g}: done")
    return {**provenance(command_line("argrad bench epsilon", settings)), "settings": asdict(settings), "rows": rows}


def format_table(result: dict[str, Any]) -> str:
    """The mean share lost over seeds, a line per scale."""
    epsilons = list(result["rows"][0]["fixed"])
    lines = ["Share of the possible gain that is lost against training with the exact gradient (mean over seeds)"]
    lines.append(
        f"{'cost scale':>10} " + " ".join(f"{'ε=' + epsilon:>8}" for epsilon in epsilons) + f" {'auto':>8}  ε found"
    )
    for row in result["rows"]:
        shares = [*row["fixed"].values(), row["auto"]]
        means = " ".join(f"{sum(share) / len(share):8.2f}" for share in shares)
        lines.append(f"{row['scale']:>10g} {means}  {sum(row['found']) / len(row['found']):.3g}")
    return "\n".join(lines)


def markdown(result: dict[str, Any]) -> str:
    """The mean shares as a table for the documentation."""
    epsilons = list(result["rows"][0]["fixed"])
    lines = ["| Cost scale | " + " | ".join(f"ε = {epsilon}" for epsilon in epsilons) + " | auto | ε found |"]
    lines.append("|---|" + "---|" * (len(epsilons) + 2))
    for row in result["rows"]:
        shares = [sum(share) / len(share) for share in (*row["fixed"].values(), row["auto"])]
        found = sum(row["found"]) / len(row["found"])
        lines.append(f"| {row['scale']:g} | " + " | ".join(f"{share:.2f}" for share in shares) + f" | {found:.3g} |")
    return "\n".join(lines)
