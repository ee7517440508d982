"""Which estimators to measure, under which names, and which ones a cost rules out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from argrad.costs import Cost, SharedCost, evaluate
from argrad.diagnostics.diagnosis import LeftOut, Setting
from argrad.estimators import (
    Arm,
    BlackboxDifferentiation,
    DebiasedDirect,
    Direct,
    DisArm,
    Estimator,
    Exact,
    GumbelRao,
    GumbelSinkhorn,
    GumbelSoftmax,
    ImplicitMLE,
    LocalExpectation,
    PerturbedOptimizer,
    Rebar,
    Reinforce,
    Relax,
)
from argrad.latents import Factorised, Latent

__all__ = ["candidates", "learnt_note", "name_of", "settings_of", "why_not", "why_not_differentiable"]

ENUMERATION_LIMIT = 2**22
"""Most costs (structures times examples) that a diagnosis evaluates for the exact gradient."""
SHARED_ENUMERATION_LIMIT = 2**25
"""The same for a cost that shares its work between the examples."""


def candidates(latent: Latent, epsilons: Sequence[float], temperatures: Sequence[float]) -> list[Estimator]:
    """Every estimator, in the settings that are worth a row."""
    estimators: list[Estimator] = [Exact(), LocalExpectation()]
    estimators += [Direct(epsilon, two_sided=sides) for sides in (False, True) for epsilon in epsilons]
    estimators += [Direct("auto"), Direct("auto", two_sided=True)]
    if not isinstance(latent, Factorised):
        estimators += [Direct(epsilon, changes="gradient") for epsilon in epsilons]
    elif latent.variables > 1:
        estimators += [Direct("auto", changes="gradient")]
    estimators += [GumbelSoftmax(tau, straight_through=hard) for hard in (False, True) for tau in temperatures]
    estimators += [GumbelRao()]
    estimators += [Reinforce(baseline="none"), Reinforce(), Reinforce(baseline="learnt"), Reinforce(4)]
    estimators += [Rebar(), Relax(), Arm(), DisArm()]
    estimators += [DebiasedDirect(), DebiasedDirect(draws=8)]
    if not isinstance(latent, Factorised):
        estimators += [DebiasedDirect(changes=0), DebiasedDirect(changes="gradient")]
        estimators += [PerturbedOptimizer(), ImplicitMLE("auto"), BlackboxDifferentiation()]
        estimators += [GumbelSinkhorn(tau, straight_through=hard) for hard in (False, True) for tau in temperatures]
    return estimators


def settings_of(estimator: Estimator) -> dict[str, Setting]:
    """The arguments that make this estimator, those left at their default mostly left out."""
    settings: dict[str, Setting] = {}
    match estimator:
        case Direct():
            settings["epsilon"] = "auto" if estimator.auto else short(estimator.epsilon)
            if estimator.two_sided:
                settings["two_sided"] = True
            if estimator.changes != "single":
                changes = estimator.changes
                settings["changes"] = getattr(changes, "__name__", "function") if callable(changes) else changes
        case DebiasedDirect():
            if not estimator.auto:
                settings["epsilon"] = short(estimator.epsilon)
            if not estimator.two_sided:
                settings["two_sided"] = False
            if estimator.changes != "single":
                changes = estimator.changes
                settings["changes"] = getattr(changes, "__name__", "function") if callable(changes) else changes
            if estimator.draws > 1:
                settings["draws"] = estimator.draws
        case PerturbedOptimizer():
            settings["sigma"] = short(estimator.sigma)
            if estimator.samples != 10:
                settings["samples"] = estimator.samples
            if estimator.noise != "gaussian":
                settings["noise"] = estimator.noise
        case ImplicitMLE():
            settings["strength"] = "auto" if estimator.auto else short(estimator.strength)
            if estimator.samples > 1:
                settings["samples"] = estimator.samples
            if estimator.two_sided:
                settings["two_sided"] = True
            if estimator.noise != "latent":
                settings["noise"] = estimator.noise
        case BlackboxDifferentiation():
            settings["interpolation"] = short(estimator.interpolation)
        case GumbelSinkhorn():
            settings["temperature"] = short(estimator.temperature)
            if estimator.straight_through:
                settings["straight_through"] = True
        case GumbelSoftmax():
            settings["temperature"] = short(estimator.temperature)
            if estimator.straight_through:
                settings["straight_through"] = True
        case GumbelRao():
            settings["temperature"] = short(estimator.temperature)
            if estimator.draws != 10:
                settings["draws"] = estimator.draws
        case Reinforce():
            if estimator.samples > 1:
                settings["samples"] = estimator.samples
            if estimator.baseline != "leave-one-out":
                settings["baseline"] = estimator.baseline
        case Relax() if estimator.relaxed_cost:
            settings["relaxed_cost"] = True
    return settings


def short(number: Tensor) -> float:
    """A setting without the digits that single precision made up."""
    return float(f"{number.item():.6g}")


def name_of(estimator: Estimator) -> str:
    """How one would write it: ``Exact``, ``Direct(0.1, two_sided=True)``."""
    first = ("epsilon", "temperature", "samples", "sigma", "strength", "interpolation")
    arguments = ", ".join(
        f"{value!r}" if place == 0 and name in first else f"{name}={value!r}"
        for place, (name, value) in enumerate(settings_of(estimator).items())
    )
    if not arguments and not type(estimator).__module__.startswith("argrad."):
        arguments = estimator.extra_repr()
    return f"{type(estimator).__name__}({arguments})" if arguments else type(estimator).__name__


def learnt_note(estimator: Estimator, steps: int) -> str:
    """What an estimator with a memory arrived at."""
    if isinstance(estimator, Direct):
        return f"ε settled at {estimator.epsilon.item():.3g} in {steps} steps"
    if isinstance(estimator, ImplicitMLE):
        return f"α settled at {estimator.reach.item():.3g} in {steps} steps"
    if isinstance(estimator, Rebar):
        temperature, eta = estimator.log_temperature.exp().item(), estimator.eta.item()
        return f"measured after {steps} training steps: η = {eta:.3g}, τ = {temperature:.3g}"
    return f"measured after {steps} training steps on this problem"


def why_not(estimator: Estimator, latent: Latent, cost: Cost) -> str | None:
    """Why this estimator cannot be measured on this latent; None if it can."""
    if isinstance(estimator, Exact):
        costs = latent.num_states * math.prod(latent.batch_shape)
        shared = isinstance(cost, SharedCost) or hasattr(cost, "all") or hasattr(cost, "table")
        if not estimator.supports(latent) or costs > (SHARED_ENUMERATION_LIMIT if shared else ENUMERATION_LIMIT):
            return (
                f"{latent.number_of_states()} structures are too many to enumerate"
                if latent.law == "gibbs"
                else "their probabilities are not known under law='perturb'"
            )
    if not estimator.supports(latent):
        if isinstance(estimator, Arm | DisArm | GumbelSinkhorn):
            return "for permutations only" if isinstance(estimator, GumbelSinkhorn) else "for bits only"
        return f"no support for {latent!r}"
    return None


MAX_FLAT = 8
"""At so many z without a slope, a cost is taken to be piecewise constant."""


def why_not_differentiable(latent: Latent, cost: Cost, generator: torch.Generator) -> str | None:
    """Why the cost has no usable derivative with respect to z; None if it has one.

    Tried at a relaxed z and at discrete ones: a cost may well be flat at some of them. Errors are caught here, around
    the user's own function, and nowhere else: the same function has already worked on a discrete z without gradients.
    """
    noise = latent.draw_noise(generator=generator)
    tried = [latent.sample(noise=noise)]
    if isinstance(latent, Factorised):
        tried.insert(0, latent.relax(latent.perturb(noise).detach(), 0.5))
    flat = 0
    for z in tried:  # which grows while the cost is flat
        z = z.detach().to(latent.scores.dtype).requires_grad_()
        try:
            value = evaluate(cost, latent, z)
            if not value.requires_grad:
                return "the cost does not depend differentiably on z"
            slope: Tensor | None = torch.autograd.grad(value.sum(), z, allow_unused=True)[0]
        except Exception as error:
            return f"differentiating the cost raises {type(error).__name__}: {first_line(error)}"
        if slope is None:
            return "the cost does not depend differentiably on z"
        if not bool(slope.isfinite().all()):
            return "the derivative of the cost is not finite"
        if not bool(slope.any()):
            flat += 1
            if flat == MAX_FLAT:
                return "the derivative of the cost is zero: it is piecewise constant"
            tried.append(latent.sample(generator=generator))
    return None


def first_line(error: Exception) -> str:
    """What an error says, on one line."""
    return (str(error).strip().splitlines() or ["no message"])[0]


def left_out(estimator: Estimator, reason: str) -> LeftOut:
    """A line for the list of those not measured: the name alone, as the reason holds for all settings."""
    return LeftOut(type(estimator).__name__, reason)
