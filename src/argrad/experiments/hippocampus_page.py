"""What a person reads of the hippocampus experiment: tables of Dice, and paired differences with their intervals."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["differences", "format_table", "markdown", "summary"]

OURS = "ours"
RESAMPLES = 10_000
"""Of the bootstrap."""

Rows = dict[str, list[list[float]]]
"""By method: one list for each scan, with the Dice of each structure."""


def summary(values: list[list[float]]) -> dict[str, Any]:
    """Mean and standard deviation over scans, per structure."""
    numbers = torch.tensor(values, dtype=torch.float64)
    spread = numbers.std(0) if len(numbers) > 1 else torch.zeros(numbers.shape[1])
    return {"scans": len(numbers), "mean": rounded(numbers.mean(0)), "sd": rounded(spread)}


def differences(rows: Rows) -> dict[str, Any]:
    """Ours minus each of the others on the same scans: the mean, and its 95 % bootstrap interval, per structure."""
    result = {}
    for name, values in rows.items():
        if name in (OURS, f"{OURS}, on the working grid"):  # there the references are others
            continue
        pairs = torch.tensor(rows[OURS], dtype=torch.float64) - torch.tensor(values, dtype=torch.float64)
        drawn = torch.randint(len(pairs), (RESAMPLES, len(pairs)), generator=torch.Generator().manual_seed(0))
        means = torch.cat([pairs[chunk].mean(1) for chunk in drawn.split(1000)])
        low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0)
        result[name] = {"mean": rounded(pairs.mean(0)), "low": rounded(low), "high": rounded(high)}
    return result


def rounded(numbers: torch.Tensor) -> list[float]:
    """To four places."""
    return [round(number, 4) for number in numbers.tolist()]


def format_table(result: dict[str, Any]) -> str:
    """The table, and above it that a quick run means nothing."""
    return ("A QUICK run: the numbers mean nothing.\n\n" if result["quick"] else "") + markdown(result)


def markdown(result: dict[str, Any]) -> str:
    """The table as it stands in the documentation."""
    first, second = result["structures"]
    lines = [
        f"| Dice | {first} | {second} | ours minus this, {first} | {second} |",
        "|---|---|---|---|---|",
    ]
    for name, row in result["rows"].items():
        cells = [f"{mean:.3f} ± {sd:.3f}" for mean, sd in zip(row["mean"], row["sd"], strict=True)]
        gap = result["differences"].get(name)
        for i in range(2):
            cells.append(f"{gap['mean'][i]:+.3f} [{gap['low'][i]:+.3f}, {gap['high'][i]:+.3f}]" if gap else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    scans, distances = result["rows"][OURS]["scans"], result["hd95_mm"]
    lines += [
        "",
        f"Mean ± standard deviation over {scans} scans; in brackets the 95 % interval of the mean paired difference. "
        f"HD95 of ours: {distances[0]:.2f} and {distances[1]:.2f} mm.",
        "",
        chosen_words(result["chosen"]),
    ]
    return "\n".join(lines)


def chosen_words(chosen: dict[str, Any]) -> str:
    """One sentence on what was chosen."""
    exact, jensen = (
        f"{chosen[name]['shape_weight']:g} and {chosen[name]['label_weight']:g}" for name in ("exact", "jensen")
    )
    return (
        f"Chosen on cases of stage 1: {chosen['em_background_classes']} background classes for EM; shape weight and "
        f"label weight {exact} with the exact likelihood, {jensen} with Jensen's bound."
    )
