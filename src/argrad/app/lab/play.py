"""What Direct does, step by step, on one example: scores and noise, the cost taken off, two arg maxes, a gradient."""

from __future__ import annotations

import base64
import html
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from argrad.app.lab.curves import LOOKS, number, percent
from argrad.app.lab.problems import Studied
from argrad.app.lab.svg import FAINT, INK, NOTE, Axis, Chart, side_by_side
from argrad.costs import Cost, TableCost, evaluate, single_changes
from argrad.estimators import Direct
from argrad.experiments.direct_law import direct_moments
from argrad.latents import Bits, Factorised
from argrad.training.page import mosaic_png

__all__ = ["MOST_DRAWS", "Played", "draw_play", "play"]

MOST_DRAWS = 10_000
"""Of one example."""
BEFORE, AFTER, EXACT = LOOKS["Direct"][0], "#d1662a", "#3a9a5f"
CLIP = 3.0
"""The last chart reaches so many times as far as the exact gradient; a single draw is often longer."""


@final
@dataclass(frozen=True)
class Played:
    """The last of some draws, and the mean of all. Every tensor has one number for each code, or for each bit.

    Args:
        is_bits: whether these are bits, each of which is 1 where its number is positive, or codes, of which one wins.
        scores: h.
        perturbed: h + γ.
        moved: h + γ − ε w, with w the cost of going there, relative to that of z*.
        before: z*, the arg max of the second.
        after: z(ε), the arg max of the third.
        estimate: (z* − z(ε)) / ε, as the estimator gives it.
        mean: of all draws' estimates.
        exact: the exact gradient.
        expected: the expectation of the estimate at this ε, where it is known in closed form.
        saving: the cost of z* less that of z(ε).
        draws: how many.
        moves: in how many of them z* and z(ε) differ.
    """

    is_bits: bool
    scores: Tensor
    perturbed: Tensor
    moved: Tensor
    before: Tensor
    after: Tensor
    estimate: Tensor
    mean: Tensor
    exact: Tensor
    expected: Tensor | None
    saving: float
    draws: int
    moves: int


def play(studied: Studied, example: int, epsilon: float, draws: int, seed: int) -> Played | None:
    """Draw the gradient of one example some times. None for problems that have no such picture.

    The noise of a draw depends on the seed and on which draw it is, not on ε: so one sees what ε does to the same draw.

    Args:
        studied: the problem.
        example: which, from 0.
        epsilon: of Direct.
        draws: how many; the last of them is shown.
        seed: of the noise.
    """
    if studied.costs is None or studied.gradient is None:
        return None
    if not 0 <= example < studied.examples:
        raise ValueError(f"this problem has {studied.examples} examples; there is no number {example + 1}")
    draws = min(max(1, draws), MOST_DRAWS)
    latent, costs = studied.problem.latent, studied.costs[example]
    assert isinstance(latent, Factorised)
    generator = torch.Generator().manual_seed(1_000_003 * seed + example)
    scores = latent.scores.detach()[example]
    noise = latent.with_scores(scores).draw_noise((MOST_DRAWS,), generator=generator)[:draws]
    repeated = latent.with_scores(scores.expand(draws, *scores.shape).clone().requires_grad_())
    cost: Cost = table_of_bits(costs) if isinstance(latent, Bits) else TableCost(costs)
    with torch.enable_grad():
        value = Direct(epsilon)(repeated, cost, noise=noise)
        (estimates,) = torch.autograd.grad(value.sum(), repeated.scores)
    last = latent.with_scores(scores)
    perturbed = scores + noise[-1]
    before = last.solve(perturbed)
    with torch.no_grad():
        own = evaluate(cost, last, before)
        weights = last.linear(single_changes(cost, last, before, own) - own)
        moved = perturbed - epsilon * weights
        after = last.solve(moved)
        saving = own - evaluate(cost, last, after)
    expected = None
    if last.is_one_of_k and bool(scores.isfinite().all()):
        expected = direct_moments(scores, costs, epsilon)[0]
    return Played(
        is_bits=isinstance(latent, Bits),
        scores=scores,
        perturbed=perturbed,
        moved=moved,
        before=before,
        after=after,
        estimate=estimates[-1],
        mean=estimates.double().mean(0),
        exact=studied.gradient[example],
        expected=expected,
        saving=saving.item(),
        draws=draws,
        moves=int(estimates.ne(0).any(-1).sum()),
    )


def table_of_bits(costs: Tensor) -> Cost:
    """A cost that looks up bit vectors in a list in counting order, ``[2^n]``."""
    bits = len(costs).bit_length() - 1
    place = 2 ** torch.arange(bits - 1, -1, -1)
    return lambda z: costs[(z.long() * place).sum(-1)]


def draw_play(played: Played | None, epsilon: float, *, picture: str = "") -> str:
    """Three charts and what they mean, as HTML.

    Args:
        played: what to draw.
        epsilon: of Direct.
        picture: HTML of the example itself, put first.
    """
    if played is None:
        return (
            f'<p style="{NOTE}">The step-by-step picture is for one categorical variable, or for up to 12 bits; '
            "choose such a problem to see it.</p>"
        )
    charts = [chart_noise(played), chart_moved(played, epsilon), chart_gradient(played)]
    return f"{picture}{side_by_side(charts)}{explanation(played, epsilon)}"


def across(played: Played) -> Axis:
    """The codes, or the bits, from left to right; not more labels than can be read."""
    number_of = len(played.scores)
    every = -(-number_of // 10)
    labels = tuple((float(i), str(i)) for i in range(0, number_of, every))
    return Axis(-0.6, number_of - 0.4, "bit" if played.is_bits else "code", labels=labels)


def vertical(*parts: Tensor) -> Axis:
    """An axis that holds all finite numbers, and zero."""
    values = torch.cat([torch.zeros(1), *(part.flatten().float() for part in parts)])
    values = values[values.isfinite()]
    low, high = values.min().item(), values.max().item()
    margin = 0.16 * (high - low) or 1.0
    return Axis(low - 0.4 * margin, high + margin)


def finite(value: float, axis: Axis) -> float:
    """A number, or the end of the axis for one that is infinite."""
    return max(min(value, 2 * axis.high + 1), 2 * axis.low - 1)


def mark_choice(chart: Chart, heights: Tensor, choice: Tensor, colour: str, name: str, played: Played) -> None:
    """A filled mark where z is 1, a hollow one elsewhere; one of k also gets its name."""
    for code, (height, chosen) in enumerate(zip(heights.tolist(), choice.tolist(), strict=True)):
        chart.dot(code, finite(height, chart.up), colour if chosen else FAINT, hollow=not chosen, size=4)
    if not played.is_bits:
        winner = int(choice.argmax())
        chart.word(winner, heights[winner].item(), name, colour, bold=True)


def chart_noise(played: Played) -> str:
    """Scores and noise."""
    chart = Chart(across(played), vertical(played.scores, played.perturbed))
    for code, (score, total) in enumerate(zip(played.scores.tolist(), played.perturbed.tolist(), strict=True)):
        chart.bar(code, 0, finite(score, chart.up), 0.6, BEFORE, opacity=0.35)
        chart.line([(code, finite(score, chart.up)), (code, finite(total, chart.up))], FAINT, width=1.25)
    chart.level(0)
    mark_choice(chart, played.perturbed, played.before, BEFORE, "z*", played)
    kind = "logistic" if played.is_bits else "Gumbel"
    return chart.svg("1. Scores (bars) plus noise", f"With {kind} noise added, z* is {named(played.before, played)}.")


def chart_moved(played: Played, epsilon: float) -> str:
    """The same with the cost taken off."""
    chart = Chart(across(played), vertical(played.perturbed, played.moved))
    for code, (old, new) in enumerate(zip(played.perturbed.tolist(), played.moved.tolist(), strict=True)):
        chart.line([(code, finite(old, chart.up)), (code, finite(new, chart.up))], FAINT, width=1.25)
        chart.dot(code, finite(old, chart.up), FAINT, size=1.5)
    chart.level(0)
    mark_choice(chart, played.moved, played.after, AFTER, "z(ε)", played)
    return chart.svg(
        "2. Take ε × cost off",
        f"At ε = {epsilon:.3g}, cheaper ones rise and dearer ones fall; z(ε) is {named(played.after, played)}.",
    )


def chart_gradient(played: Played) -> str:
    """The mean of all draws beside the exact gradient."""
    known = [played.exact] if played.expected is None else [played.exact, played.expected]
    reach = CLIP * max(part.abs().max().item() for part in known) or 1.0
    reach = min(reach, 1.3 * max(1e-12, *(part.abs().max().item() for part in (*known, played.mean))))
    chart = Chart(across(played), Axis(-reach, reach))
    chart.level(0)
    for code, (mean, exact) in enumerate(zip(played.mean.tolist(), played.exact.tolist(), strict=True)):
        chart.bar(code - 0.2, 0, mean, 0.4, BEFORE, opacity=0.85)
        chart.bar(code + 0.2, 0, exact, 0.4, EXACT, opacity=0.85)
    if played.expected is not None:
        for code, value in enumerate(played.expected.tolist()):
            chart.line([(code - 0.42, value), (code + 0.02, value)], INK, width=1.5)
    of = f"the mean of {played.draws:,} draws" if played.draws > 1 else "this draw"
    away = (played.mean - played.exact).norm() / (played.exact.norm() or 1.0)
    return chart.svg(f"3. Gradient: {of}", f"It is {percent(away.item())} away from the exact gradient.")


def named(choice: Tensor, played: Played) -> str:
    """A structure in words."""
    if played.is_bits:
        return "".join(str(int(bit)) for bit in choice)
    return f"code {int(choice.argmax())}"


def explanation(played: Played, epsilon: float) -> str:
    """What happened, in a few sentences."""
    before, after = named(played.before, played), named(played.after, played)
    rule = "A bit is 1 where score plus noise is positive. " if played.is_bits else ""
    if bool(played.estimate.any()):
        cheaper = f", which costs {number(abs(played.saving))} {'less' if played.saving >= 0 else 'more'}"
        words = f"The arg max moved from {before} to {after}{cheaper}. "
        if played.is_bits:
            words += f"The estimate, (z* − z(ε)) / ε, is ±{number(1 / epsilon)} at the bits that changed, 0 elsewhere."
        else:
            words += (
                f"The estimate, (z* − z(ε)) / ε, is +{number(1 / epsilon)} at {before}, −{number(1 / epsilon)} at "
                f"{after}, 0 elsewhere: a step against it makes {before} less likely and {after} more."
            )
    else:
        words = f"The arg max stayed at {before}, so this draw says nothing: its estimate is 0. A larger ε moves more."
    share = ""
    if played.draws > 1:
        away = (played.mean - played.exact).norm().item() / (played.exact.norm().item() or 1.0)
        share = (
            f"It moved in {played.moves:,} of {played.draws:,} draws, whose mean is {percent(away)} away from the "
            "exact gradient."
        )
    entries = [(BEFORE, "mean of the draws"), (EXACT, "exact gradient")]
    marks = " ".join(
        f'<span style="white-space:nowrap;margin-right:.8em"><span style="color:{colour}" aria-hidden="true">■</span> '
        f"{name}</span>"
        for colour, name in entries
    )
    if played.expected is not None:
        marks += '<span style="white-space:nowrap">― what the mean goes to at this ε</span>'
    return (
        f'<div style="margin-top:.3rem">{marks}</div>'
        f'<p style="margin:.6rem 0 0" aria-live="polite">{html.escape(f"{rule}{words} {share}")}</p>'
    )


def picture_of(studied: Studied, example: int) -> str:
    """The example itself, where it is an image."""
    if studied.images is None:
        return ""
    image = studied.images[example : example + 1]
    png, _ = mosaic_png(image, columns=1)
    data = base64.b64encode(png).decode()
    size = "width:4.5rem;height:4.5rem;object-fit:contain"
    return (
        f'<div class="pixels" style="display:flex;gap:.75rem;align-items:center;margin-bottom:.5rem">'
        f'<img style="{size}" alt="Example {example + 1}, the image to be put into a code" '
        f'src="data:image/png;base64,{data}"><span style="{NOTE}">The image to be put into a code. '
        "The cost of a code is how badly it is reconstructed.</span></div>"
    )
