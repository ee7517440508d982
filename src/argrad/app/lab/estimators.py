"""The estimators that the lab offers, under the names that a visitor reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from argrad.app.lab.problems import Studied
from argrad.diagnostics.candidates import name_of, why_not
from argrad.estimators import (
    Arm,
    DebiasedDirect,
    Direct,
    DisArm,
    Estimator,
    Exact,
    GumbelRao,
    GumbelSoftmax,
    LocalExpectation,
    Rebar,
    Reinforce,
    Relax,
)

__all__ = ["CHOSEN_FIRST", "OFFERED", "chosen_estimators", "offered"]

OFFERED: dict[str, Callable[[float, float], Estimator]] = {
    "Exact": lambda epsilon, temperature: Exact(),
    "Local expectation": lambda epsilon, temperature: LocalExpectation(),
    "Direct (ε)": lambda epsilon, temperature: Direct(epsilon),
    "Direct, two-sided (ε)": lambda epsilon, temperature: Direct(epsilon, two_sided=True),
    "Direct, finds its ε": lambda epsilon, temperature: Direct("auto"),
    "Debiased direct": lambda epsilon, temperature: DebiasedDirect(),
    "Gumbel-softmax (τ)": lambda epsilon, temperature: GumbelSoftmax(temperature),
    "Straight-through (τ)": lambda epsilon, temperature: GumbelSoftmax(temperature, straight_through=True),
    "Gumbel-Rao (τ)": lambda epsilon, temperature: GumbelRao(temperature),
    "Reinforce": lambda epsilon, temperature: Reinforce(),
    "Reinforce, 4 samples": lambda epsilon, temperature: Reinforce(4),
    "REBAR": lambda epsilon, temperature: Rebar(),
    "RELAX": lambda epsilon, temperature: Relax(),
    "ARM": lambda epsilon, temperature: Arm(),
    "DisARM": lambda epsilon, temperature: DisArm(),
}
"""How each is made from ε and τ; those that look at one of them have it in their name."""
PROTOTYPES = {name: make(0.1, 0.5) for name, make in OFFERED.items()}
"""One of each, only ever asked what it supports."""
CHOSEN_FIRST = ("Exact", "Direct (ε)", "Gumbel-softmax (τ)", "Straight-through (τ)", "Reinforce, 4 samples")
"""Ticked when the page opens."""
SWEEP = (0.03, 0.1, 0.3, 1.0, 3.0)
"""Further values of ε and τ that draw a curve."""


def offered(studied: Studied) -> list[str]:
    """The names of those that work on a problem."""
    latent, cost = studied.problem.latent, studied.problem.cost
    return [name for name, estimator in PROTOTYPES.items() if why_not(estimator, latent, cost) is None]


def chosen_estimators(names: Sequence[str], epsilon: float, temperature: float, *, sweep: bool) -> list[Estimator]:
    """The estimators of these names, each setting once; with ``sweep`` also at other ε and τ."""
    unknown = [name for name in names if name not in OFFERED]
    if unknown:
        raise ValueError(f"there is no estimator {unknown[0]!r}; choose some of {', '.join(OFFERED)}")
    if not names:
        raise ValueError("tick at least one estimator to measure")
    estimators = [OFFERED[name](epsilon, temperature) for name in names]
    if sweep:
        swept = [name for name in names if name.endswith(")")]
        estimators += [OFFERED[name](value, value) for name in swept for value in SWEEP]
    return list({name_of(estimator): estimator for estimator in estimators}.values())
