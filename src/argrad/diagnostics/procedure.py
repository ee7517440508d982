"""The procedure of a diagnosis: choose, train, find a reference, measure, recommend."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from argrad.costs import Cost, evaluate, possible_only, table
from argrad.diagnostics.candidates import (
    candidates,
    learnt_note,
    left_out,
    name_of,
    settings_of,
    why_not,
    why_not_differentiable,
)
from argrad.diagnostics.diagnosis import ClosedForm, Diagnosis, LeftOut, Row, recommend
from argrad.diagnostics.measure import Moments, bias_with_error, draw, exactly, measure, milliseconds, train
from argrad.estimators import Direct, Estimator, Exact, LocalExpectation, Reinforce
from argrad.latents import Latent

__all__ = ["diagnose"]

EPSILONS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
TEMPERATURES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
PILOT_DRAWS = 400
"""Draws that decide which unbiased estimator becomes the reference."""
REFERENCE_FACTOR = 4
"""A sampled reference rests on this many times the draws of a row."""


@dataclass
class _Entry:
    """An estimator being measured."""

    estimator: Estimator
    name: str
    note: str = ""
    milliseconds: float = math.nan


def diagnose(
    latent: Latent,
    cost: Cost,
    samples: int = 10_000,
    *,
    estimators: Sequence[Estimator] | None = None,
    epsilons: Sequence[float] = EPSILONS,
    temperatures: Sequence[float] = TEMPERATURES,
    train_steps: int = 500,
    horizon: int = 100,
    generator: torch.Generator | None = None,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Measure every estimator that works on this latent and cost, and recommend one.

    Estimators that learn or adapt (Rebar, Relax, Direct("auto"), Reinforce with a moving-average or learnt baseline)
    first train on this very problem, scores fixed, and are then measured in eval mode. Nothing given is changed:
    estimators are copied, the scores too, and no gradient is left on the parameters of the cost. Put a decoder with
    dropout or batch normalisation in eval mode first.

    Args:
        latent: a latent with scores ``[*batch, *event]``; a few dozen examples are plenty.
        cost: any cost; one without a derivative only leaves out the estimators that need it.
        samples: draws of each estimator's gradient.
        estimators: what to measure; None is every estimator, Direct over ``epsilons`` and GumbelSoftmax over
            ``temperatures``.
        epsilons: ε of Direct, one- and two-sided.
        temperatures: τ of GumbelSoftmax, soft and straight-through.
        train_steps: steps of Adam for an estimator's own parameters.
        horizon: estimators are compared by the error of their mean over the time of this many calls of the fastest
            one: about the number of draws that your batches and optimiser average over.
        generator: where all noise comes from; None is a fixed seed, so that the same call gives the same numbers (but
            for times).
        progress: called with a line of text before each estimator.

    Returns:
        A :class:`argrad.diagnostics.Diagnosis`, with ``rows``, ``table()``, ``plot(path)``, ``to_json()`` and
        ``recommendation``.

    >>> from argrad import Categorical, Direct, Exact, TableCost
    >>> q = Categorical(torch.tensor([[0.0, 1.0, 2.0]]))
    >>> cost = TableCost(torch.tensor([[3.0, 1.0, 2.0]]))
    >>> diagnosis = diagnose(q, cost, samples=400, estimators=[Exact(), Direct(0.1), Direct(10.0)])
    >>> diagnosis.recommendation
    'Exact'
    >>> diagnosis.row("Direct(10.0)").relative_bias > 0.5
    True
    """
    _check(latent, samples, train_steps, horizon)
    scores = latent.scores.detach()
    latent = latent.with_scores(scores)
    generator = generator or torch.Generator(scores.device).manual_seed(0)
    say = progress or (lambda line: None)
    # The networks of Relax and of learnt baselines draw their first weights from the global generator.
    with torch.random.fork_rng(devices=[scores.device] if scores.is_cuda else []), torch.enable_grad():
        torch.manual_seed(generator.initial_seed())
        _check_cost(latent, cost, generator)
        chosen = candidates(latent, epsilons, temperatures) if estimators is None else list(estimators)
        entries, missing = _prepare(chosen, latent, cost, train_steps, generator, say)
        reference, named = _find_reference(entries, latent, cost, samples, generator, say)
        target = reference.mean
        measured = []
        for number, entry in enumerate(entries, 1):
            say(f"measuring {entry.name} ({number} of {len(entries)})")
            measured.append(measure(entry.estimator, latent, cost, samples, generator, target))
        closed_form = _closed_form(latent, cost, target) if latent.is_one_of_k else None
    norm = target.norm().item()
    fastest = min(entry.milliseconds for entry in entries)
    rows = [
        _row(entry, moments, reference, latent, norm, horizon * fastest)
        for entry, moments in zip(entries, measured, strict=True)
    ]
    states = f"{latent.num_states:,}" if latent.is_one_of_k else latent.number_of_states()
    recommendation, reason = recommend(rows, norm, horizon, states)
    return Diagnosis(
        latent=repr(latent),
        rows=tuple(rows),
        left_out=tuple(missing),
        reference=named,
        gradient_norm=norm,
        horizon=horizon,
        recommendation=recommendation,
        reason=reason,
        closed_form=closed_form,
    )


def _check(latent: Latent, samples: int, train_steps: int, horizon: int) -> None:
    if not isinstance(latent, Latent):
        raise ValueError(
            f"diagnose needs a latent such as Categorical(logits) or Bits(logits), got {type(latent).__name__}"
        )
    if latent.scores.numel() == 0:
        raise ValueError(f"diagnose needs at least one example, got {latent!r}")
    for name, number, least in (("samples", samples, 100), ("train_steps", train_steps, 0), ("horizon", horizon, 1)):
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}")


def _check_cost(latent: Latent, cost: Cost, generator: torch.Generator) -> None:
    """The cost works on samples, with an extra dimension in front; anything else is the user's to see."""
    with torch.no_grad():
        value = evaluate(cost, latent, latent.sample((2,), generator=generator))
    if not bool(value.isfinite().all()):
        raise ValueError(f"the cost of a sample is {value[~value.isfinite()][0].item()}; it must be a finite number")


def _prepare(
    estimators: Sequence[Estimator],
    latent: Latent,
    cost: Cost,
    train_steps: int,
    generator: torch.Generator,
    say: Callable[[str], None],
) -> tuple[list[_Entry], list[LeftOut]]:
    """Copy, train and time those that apply; list the others, each kind once for each reason."""
    entries: list[_Entry] = []
    missing: dict[LeftOut, None] = {}
    no_derivative = None
    if any(estimator.needs_cost_gradient for estimator in estimators):
        no_derivative = why_not_differentiable(latent, cost, generator)
    for given in estimators:
        reason = why_not(given, latent, cost)
        if reason is None and given.needs_cost_gradient:
            reason = no_derivative
        if reason is not None:
            missing[left_out(given, reason)] = None
            continue
        entry = _Entry(copy.deepcopy(given), name_of(given))
        say(f"preparing {entry.name}")
        try:
            draw(entry.estimator, latent, cost, 1, generator)
        except ValueError as error:  # such as a decoder whose batch normalisation rules out a table of costs
            missing[left_out(given, str(error))] = None
            continue
        if train(entry.estimator, latent, cost, train_steps, generator) and train_steps > 0:
            entry.note = learnt_note(entry.estimator, train_steps)
        entries.append(entry)
    if not entries:
        reasons = "; ".join(f"{item.name}: {item.reason}" for item in missing)
        raise ValueError(f"none of the estimators can be measured on {latent!r} ({reasons or 'none was given'})")
    say("timing")
    times = milliseconds([entry.estimator for entry in entries], latent, cost)
    for entry, taken in zip(entries, times, strict=True):
        entry.milliseconds = taken
    return entries, list(missing)


def _find_reference(
    entries: Sequence[_Entry],
    latent: Latent,
    cost: Cost,
    samples: int,
    generator: torch.Generator,
    say: Callable[[str], None],
) -> tuple[Moments, str]:
    """The exact gradient, or many draws of the unbiased estimator with the least variance for its time."""
    exact = Exact()
    if why_not(exact, latent, cost) is None:
        try:
            say("enumerating the exact gradient")
            return exactly(draw(exact, latent, cost, 1, generator)), "exact"
        except ValueError:  # as in _prepare; there are other references
            pass
    unbiased = [entry for entry in entries if entry.estimator.unbiased and not isinstance(entry.estimator, Exact)]
    if not unbiased:
        fallback: list[Estimator] = [LocalExpectation(), Reinforce(4)]
        unbiased, _ = _prepare(fallback, latent, cost, 0, generator, say)
    prices = []
    for entry in unbiased:
        say(f"trying {entry.name} as reference")
        pilot = measure(entry.estimator, latent, cost, PILOT_DRAWS, generator)
        prices.append(pilot.variance * entry.milliseconds)
    best = unbiased[prices.index(min(prices))]
    say(f"drawing the reference with {best.name}")
    moments = measure(best.estimator, latent, cost, REFERENCE_FACTOR * samples, generator)
    return moments, f"{best.name}, {moments.draws:,} draws"


def _row(entry: _Entry, moments: Moments, reference: Moments, latent: Latent, norm: float, budget: float) -> Row:
    estimator = entry.estimator
    bias, bias_error = bias_with_error(moments, reference)
    if bias < 64 * torch.finfo(latent.scores.dtype).eps * norm:  # rounding
        bias = 0.0
    deviation = math.sqrt(moments.variance)
    length = math.sqrt(max(moments.mean.square().sum().item() - moments.variance / moments.draws, 0.0))
    counted = 0.0 if estimator.unbiased else bias
    error = math.sqrt(counted**2 + moments.variance * entry.milliseconds / budget)
    return Row(
        name=entry.name,
        estimator=type(estimator).__name__,
        settings=settings_of(estimator),
        bias=bias,
        bias_error=bias_error,
        relative_bias=bias / norm if norm else math.nan,
        variance=moments.variance,
        standard_deviation=deviation,
        signal_to_noise=length / deviation if deviation else math.inf,
        cosine=moments.cosine,
        cost_evaluations=estimator.cost_evaluations(latent),
        milliseconds=entry.milliseconds,
        error_at_equal_time=error / (norm or 1.0),
        draws=moments.draws,
        unbiased=estimator.unbiased,
        needs_cost_gradient=estimator.needs_cost_gradient,
        adapted=estimator.epsilon.item() if isinstance(estimator, Direct) and estimator.auto else None,
        note=entry.note,
    )


def _closed_form(latent: Latent, cost: Cost, reference: Tensor, points: int = 61) -> ClosedForm | None:
    """Direct's bias and standard deviation at ε from 0.003 to 30."""
    scores = latent.scores.double()
    try:
        with torch.no_grad():
            costs = possible_only(table(cost, latent), latent).double()
    except ValueError:  # as in _prepare: no table, no closed form
        return None
    epsilons = torch.logspace(math.log10(0.003), math.log10(30), points, dtype=torch.float64).tolist()
    curves: dict[bool, tuple[list[float], list[float]]] = {}
    for two_sided in (False, True):
        bias, deviation = curves[two_sided] = [], []
        for epsilon in epsilons:
            behind = scores + epsilon * costs if two_sided else scores
            width = 2 * epsilon if two_sided else epsilon
            expected = (behind.softmax(-1) - (scores - epsilon * costs).softmax(-1)) / width
            moved = _probability_of_moving(behind, width * costs).sum().item()
            variance = 2 * moved / width**2 - expected.square().sum().item()
            bias.append((expected.flatten() - reference).norm().item())
            deviation.append(math.sqrt(max(variance, 0.0)))
    return ClosedForm(
        tuple(epsilons),
        tuple(curves[False][0]),
        tuple(curves[False][1]),
        tuple(curves[True][0]),
        tuple(curves[True][1]),
    )


def _probability_of_moving(scores: Tensor, shift: Tensor) -> Tensor:
    """How likely arg max {h + γ} and arg max {h − shift + γ} differ, ``[*batch]``.

    i is both if γ_i − γ_j > h_j − h_i + max(0, shift_i − shift_j) for all j, and the chance that one Gumbel is the
    largest of several with locations a_j is a softmax.
    """
    ahead = (shift.unsqueeze(-1) - shift.unsqueeze(-2)).clamp_min(0)  # [..., i, j]
    both = (scores - (scores.unsqueeze(-2) + ahead).logsumexp(-1)).exp()
    return 1 - both.sum(-1)
