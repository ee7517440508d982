"""Bias and standard deviation against ε and τ: Figure 1 of the direct optimisation paper as something to play with.

For one categorical variable both are known exactly for Direct, so its lines need no sampling. Beside them stand points
that are drawn at the very moment, at the ε and the τ that the visitor chose, and those that were measured with care.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch

from argrad.app.lab.problems import Studied
from argrad.app.lab.svg import INK, NOTE, Axis, Chart, side_by_side
from argrad.diagnostics import ClosedForm, Row
from argrad.diagnostics.measure import Moments, bias_with_error, draw, exactly
from argrad.diagnostics.plot import SEEN, swept_families
from argrad.estimators import Direct, Estimator, GumbelSoftmax

__all__ = ["HIGHEST", "LOWEST", "Point", "best_epsilon", "draw_trade_off", "live_points", "points_of", "value_at"]

LOWEST, HIGHEST = 0.01, 10.0
"""The ε and τ to play with."""
LIVE_DRAWS = 300
"""Of the gradient, at each move of a slider …"""
LIVE_GROUPS = 10
"""… in so many groups, whose differences tell the error of the mean."""
Shape = Literal["circle", "square", "triangle", "diamond"]
LOOKS: dict[str, tuple[str, Shape]] = {
    "Direct": ("#3178c6", "circle"),
    "Direct, two-sided": ("#2a9db5", "square"),
    "Gumbel-softmax": ("#d1662a", "triangle"),
    "straight-through": ("#b8459a", "diamond"),
    "Gumbel-Rao": ("#8a63c9", "triangle"),
}
"""A colour that can be seen on white and on black, and a mark, for each family."""


@final
@dataclass(frozen=True)
class Point:
    """Bias and standard deviation of one estimator at one ε or τ, as they were measured; not yet over any norm.

    Args:
        family: one of :data:`LOOKS`.
        at: ε or τ.
        bias: corrected for noise.
        bias_error: its standard error.
        deviation: standard deviation of one draw.
    """

    family: str
    at: float
    bias: float
    bias_error: float
    deviation: float

    def error(self, averaged: int) -> float:
        """Root mean squared error of the mean of so many draws; a bias that was not seen counts as none."""
        seen = self.bias if self.bias > SEEN * self.bias_error else 0.0
        return math.hypot(seen, self.deviation / math.sqrt(averaged))


def live_points(studied: Studied, epsilon: float, temperature: float, seed: int) -> list[Point]:
    """Direct at ε and the relaxations at τ, by a few hundred draws; none where the exact gradient is not known."""
    if studied.gradient is None:
        return []
    reference = exactly(studied.gradient)
    estimators: list[tuple[str, float, Estimator]] = [
        ("Direct", epsilon, Direct(epsilon)),
        ("Gumbel-softmax", temperature, GumbelSoftmax(temperature)),
        ("straight-through", temperature, GumbelSoftmax(temperature, straight_through=True)),
    ]
    points = []
    for family, at, estimator in estimators:
        moments = quick_moments(studied, estimator, torch.Generator().manual_seed(seed))
        bias, error = bias_with_error(moments, reference)
        points.append(Point(family, at, bias, error, math.sqrt(moments.variance)))
    return points


def quick_moments(studied: Studied, estimator: Estimator, generator: torch.Generator) -> Moments:
    """What a few hundred draws say, in as few calls as memory allows for sure."""
    latent, cost = studied.problem.latent, studied.problem.cost
    with torch.enable_grad():
        groups = [draw(estimator, latent, cost, LIVE_DRAWS // LIVE_GROUPS, generator) for _ in range(LIVE_GROUPS)]
    means, gradients = torch.stack([group.mean(0) for group in groups]), torch.cat(groups)
    mean = means.mean(0)
    return Moments(len(gradients), mean, gradients.var(0).sum().item(), means - mean, math.nan)


def points_of(rows: Sequence[Row]) -> list[Point]:
    """What a measurement found about estimators with an ε or a τ."""
    return [
        Point(style.label, at, row.bias, row.bias_error, row.standard_deviation)
        for style, members in swept_families(rows)
        for at, row in members
    ]


def value_at(epsilons: Sequence[float], values: Sequence[float], epsilon: float) -> float:
    """A curve between its points, straight on logarithmic paper."""
    place = next((index for index, at in enumerate(epsilons) if at >= epsilon), len(epsilons) - 1)
    low, high = max(place - 1, 0), max(place, 1)
    share = math.log(epsilon / epsilons[low]) / math.log(epsilons[high] / epsilons[low])
    if min(values[low], values[high]) <= 0:
        return values[low] + share * (values[high] - values[low])
    return math.exp(math.log(values[low]) * (1 - share) + math.log(values[high]) * share)


def error_curve(bias: Sequence[float], deviation: Sequence[float], averaged: int) -> list[float]:
    """Root mean squared error of the mean of so many draws."""
    return [math.hypot(b, s / math.sqrt(averaged)) for b, s in zip(bias, deviation, strict=True)]


def best_epsilon(known: ClosedForm, averaged: int, *, two_sided: bool = False) -> tuple[float, float]:
    """The ε at which the mean of so many draws is nearest to the exact gradient, and how near that is."""
    sides = (known.bias_two_sided, known.standard_deviation_two_sided)
    bias, deviation = sides if two_sided else (known.bias, known.standard_deviation)
    errors = error_curve(bias, deviation, averaged)
    pairs = zip(errors, known.epsilons, strict=True)
    shown = [(error, epsilon) for error, epsilon in pairs if LOWEST <= epsilon <= HIGHEST and math.isfinite(error)]
    if not shown:
        raise ValueError("the costs of this problem are too large to compute with; give them in a larger unit")
    error, epsilon = min(shown)
    return epsilon, error


def draw_trade_off(
    studied: Studied, epsilon: float, averaged: int, live: Sequence[Point], measured: Sequence[Point] = ()
) -> str:
    """Three charts and a sentence, as HTML: bias, standard deviation, and the error of a mean.

    Args:
        studied: the problem.
        epsilon: what the visitor chose, to be marked on Direct's lines.
        averaged: draws in the mean.
        live: points drawn just now.
        measured: points of the table below.
    """
    norm, known = studied.norm, studied.closed_form
    panels: list[tuple[str, str, Callable[[Point], float], list[tuple[str, Sequence[float]]]]] = [
        ("Bias", "grows with ε", lambda point: point.bias, []),
        ("Standard deviation of one draw", "falls with ε", lambda point: point.deviation, []),
        (
            f"Error of the mean of {averaged:,} draw{'s' * (averaged != 1)}",
            "has its least value in between",
            lambda point: point.error(averaged),
            [],
        ),
    ]
    if known is not None:
        for name, bias, deviation in (
            ("Direct", known.bias, known.standard_deviation),
            ("Direct, two-sided", known.bias_two_sided, known.standard_deviation_two_sided),
        ):
            for panel, values in zip(panels, (bias, deviation, error_curve(bias, deviation, averaged)), strict=True):
                panel[3].append((name, values))
    charts = []
    for title, trend, height, lines in panels:
        shown = [
            (name, [(at, value / norm) for at, value in zip(known.epsilons, values, strict=True)])
            for name, values in lines
            if known is not None
        ]
        points = [(point, height(point) / norm, point in live) for point in (*measured, *live)]
        chart = Chart(Axis(LOWEST, HIGHEST, "ε (Direct) or τ (the others)", True), vertical(shown, points))
        chart.upright(epsilon, INK)
        for name, curve in shown:
            chart.line(curve, LOOKS[name][0], dashes="" if name == "Direct" else "5 3")
        for point, value, now in points:
            colour, shape = LOOKS[point.family]
            unseen = point.bias <= SEEN * point.bias_error and title == "Bias"
            if unseen:
                value = (point.bias + SEEN * point.bias_error) / norm
            chart.dot(point.at, value, colour, shape=shape, hollow=unseen, size=4.5 if now else 2.75)
        if known is not None and title.startswith("Error"):
            best, _ = best_epsilon(known, averaged)
            chart.upright(best, LOOKS["Direct"][0], dashes="1 3")
            chart.word(best, chart.up.high, f"best ε {best:.2g}", LOOKS["Direct"][0])
        words = f"It {trend}. " if shown else ""
        charts.append(chart.svg(title, words + in_words(points)))
    return side_by_side(charts) + legend(known is not None) + sentence(studied, epsilon, averaged, live)


def vertical(
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]], points: Sequence[tuple[Point, float, bool]]
) -> Axis:
    """An axis that shows everything, down to a thousandth of the top."""
    values = [value for _, line in lines for at, value in line if LOWEST <= at <= HIGHEST]
    values += [value for _, value, _ in points]
    values = [value for value in values if math.isfinite(value) and value > 0] or [0.1, 1.0]
    top = 1.6 * max(values)
    return Axis(max(min(values) / 1.6, top / 2000), top, logarithmic=True)


def in_words(points: Sequence[tuple[Point, float, bool]]) -> str:
    """Points for somebody who does not see them."""
    return " ".join(f"{point.family} at {point.at:.2g}: {number(value)}." for point, value, _ in points)


def legend(lines: bool) -> str:
    """Which colour is what."""
    marks = {"circle": "●", "square": "■", "triangle": "▲", "diamond": "◆"}
    names = ["Direct", "Gumbel-softmax", "straight-through"]
    if lines:
        names.insert(1, "Direct, two-sided")
    entries = " ".join(
        f'<span style="white-space:nowrap;margin-right:.8em"><span style="color:{LOOKS[name][0]}" aria-hidden="true">'
        f"{marks[LOOKS[name][1]]}</span> {html.escape(name)}</span>"
        for name in names
    )
    notes = "Numbers are over the norm of the exact gradient: at 1, as long as the gradient itself. "
    notes += "Lines: exact, in closed form. " if lines else ""
    notes += f"Large marks: {LIVE_DRAWS} draws, now, at your ε and τ; small ones: as measured below; "
    notes += "hollow: at most so much, too little to be seen."
    return f'<div style="margin-top:.5rem">{entries}</div><div style="{NOTE}">{notes}</div>'


def sentence(studied: Studied, epsilon: float, averaged: int, live: Sequence[Point]) -> str:
    """What the charts say at the chosen ε."""
    norm, known = studied.norm, studied.closed_form
    draws = f"the mean of {averaged:,} draws" if averaged > 1 else "a single draw"
    if known is not None:
        bias = value_at(known.epsilons, known.bias, epsilon)
        deviation = value_at(known.epsilons, known.standard_deviation, epsilon)
        error = math.hypot(bias, deviation / math.sqrt(averaged))
        best, least = best_epsilon(known, averaged)
        words = (
            f"At ε = {epsilon:.3g} Direct has a bias of {percent(bias / norm)} of the gradient and a standard "
            f"deviation of {percent(deviation / norm)}, so {draws} is off by {percent(error / norm)}. "
            f"The best ε for that is {best:.2g}, off by {percent(least / norm)}."
        )
    elif live:
        now = live[0]
        words = (
            f"At ε = {epsilon:.3g} Direct has a standard deviation of {percent(now.deviation / norm)} of the gradient, "
            f"and {draws} is off by about {percent(now.error(averaged) / norm)}. Several variables have no closed "
            "form, so there are no lines here; a measurement with a sweep draws points."
        )
    else:
        words = (
            "There are too many structures to know the exact gradient, so nothing can be drawn at once. "
            "Measure below: an unbiased estimator then takes its place."
        )
    return f'<p style="margin:.6rem 0 0" aria-live="polite">{html.escape(words)}</p>'


def number(value: float) -> str:
    """Two digits or so, as one reads them."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) >= 0.1 else f"{value:.2g}"


def percent(fraction: float) -> str:
    """A fraction as per cent."""
    return f"{number(100 * fraction)}%" if math.isfinite(fraction) else number(fraction)
