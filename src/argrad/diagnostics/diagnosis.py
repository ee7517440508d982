"""What a diagnosis found: rows of numbers, a table, a picture, JSON and a recommendation."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

__all__ = ["ClosedForm", "Diagnosis", "LeftOut", "Row", "Setting", "recommend"]

Setting = str | int | float | bool

SLOWER_IS_FINE = 2.0
"""Exact is recommended outright if a call takes at most this many times the best sampling estimator's."""
ERROR_IS_FINE = 0.1
"""Beyond, while the best sampling estimator, given the time of one exact call, has a larger relative error."""


@final
@dataclass(frozen=True)
class Row:
    """One estimator in one setting. Norms are over all coordinates of the gradient, batch and event together.

    Args:
        name: how one would write it, such as ``Direct(0.1)``.
        estimator: the class.
        settings: its arguments.
        bias: ‖E g − reference‖, corrected for the noise of the measurement.
        bias_error: standard error of the bias; where the bias is lost in noise, the size that would have been seen.
        relative_bias: bias over the norm of the reference.
        variance: of one draw, added up over all coordinates.
        standard_deviation: the root of the variance.
        signal_to_noise: ‖E g‖ over the standard deviation; infinite without noise.
        cosine: mean cosine between one draw and the reference; a draw that is zero counts as 0.
        cost_evaluations: structures per example that one draw evaluates, where the cost shares no work.
        milliseconds: one call on the batch, with gradients for scores, decoder and the estimator's own parameters.
        error_at_equal_time: root mean squared error, over the norm of the reference, of the mean of as many draws as
            fit into the horizon.
        draws: how many draws the numbers rest on.
        unbiased: whether theory says that the bias is zero.
        needs_cost_gradient: whether it needs a cost that is differentiable in z.
        adapted: the ε that Direct("auto") arrived at.
        note: what was done before measuring, if anything.
    """

    name: str
    estimator: str
    settings: dict[str, Setting]
    bias: float
    bias_error: float
    relative_bias: float
    variance: float
    standard_deviation: float
    signal_to_noise: float
    cosine: float
    cost_evaluations: int
    milliseconds: float
    error_at_equal_time: float
    draws: int
    unbiased: bool
    needs_cost_gradient: bool
    adapted: float | None = None
    note: str = ""

    @property
    def family(self) -> tuple[Setting, ...]:
        """What rows that differ only in a number ε or τ have in common."""
        swept = {name for name in ("epsilon", "temperature") if isinstance(self.settings.get(name), float)}
        others = [item for name, value in self.settings.items() if name not in swept for item in (name, value)]
        return (self.estimator, *sorted(swept), *others)


@final
@dataclass(frozen=True)
class LeftOut:
    """An estimator that was not measured, and why."""

    name: str
    reason: str


@final
@dataclass(frozen=True)
class ClosedForm:
    """Bias and standard deviation of Direct as functions of ε, known exactly for one categorical variable.

    The expectation is ``(softmax(h) − softmax(h − ε·cost)) / ε``. The arg max moves with probability
    ``1 − Σ_i 1 / Σ_j exp(h_j − h_i + max(0, ε (cost_i − cost_j)))``, and a move contributes 2 / ε² to the second
    moment.
    """

    epsilons: tuple[float, ...]
    bias: tuple[float, ...]
    standard_deviation: tuple[float, ...]
    bias_two_sided: tuple[float, ...]
    standard_deviation_two_sided: tuple[float, ...]


@final
@dataclass(frozen=True)
class Diagnosis:
    """The result of :func:`argrad.diagnose`.

    Args:
        latent: the latent in words.
        rows: one for every estimator and setting measured.
        left_out: estimators that do not apply, with the reason.
        reference: "exact", or the unbiased estimator that the rows are compared with and how many draws of it.
        gradient_norm: of the reference.
        horizon: ``error_at_equal_time`` is over the time of this many calls of the fastest estimator.
        recommendation: the name of one row.
        reason: why, in one sentence.
        closed_form: of Direct, for one categorical variable.
    """

    latent: str
    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...]
    reference: str
    gradient_norm: float
    horizon: int
    recommendation: str
    reason: str
    closed_form: ClosedForm | None = None

    def row(self, name: str) -> Row:
        """The row of that name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"{name!r} was not measured; there are: {', '.join(row.name for row in self.rows)}")

    def best_of_each_family(self) -> tuple[Row, ...]:
        """Of rows that differ only in a number ε or τ, the one with the smallest error at equal time."""
        best: dict[tuple[Setting, ...], Row] = {}
        for row in self.rows:
            if row.family not in best or row.error_at_equal_time < best[row.family].error_at_equal_time:
                best[row.family] = row
        return tuple(best.values())

    def table(self, *, every: bool = False) -> str:
        """The rows as text, best first; ``every=True`` shows all settings of ε and τ and not only the best of each."""
        rows = sorted(self.rows if every else self.best_of_each_family(), key=lambda row: row.error_at_equal_time)
        header = ("estimator", "", "bias", "std. dev.", "signal/noise", "cosine", "costs", "ms", "error")
        lines = [header, *(_cells(row, self.gradient_norm) for row in rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        text = [
            f"{self.latent}; reference: {self.reference}; norm of the gradient {_number(self.gradient_norm)}",
            "",
        ]
        for index, line in enumerate(lines):
            cells = [cell.ljust(width) for cell, width in zip(line[:2], widths[:2], strict=True)]
            cells += [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
            text.append("  ".join(cells).rstrip())
            if index == 0:
                text.append("  ".join("─" * width for width in widths))
        text += [
            "",
            "u: unbiased in theory; d: needs the cost's derivative; costs: evaluations of the cost for one draw.",
            "Bias, standard deviation and error are relative to the norm of the gradient; error is that of the mean",
            f"over the time of {self.horizon} calls of the fastest estimator.",
        ]
        hidden = len(self.rows) - len(rows)
        if hidden:
            text.append(
                f"{hidden} more settings of ε and τ were measured; table(every=True), or --every, shows them all."
            )
        for note in dict.fromkeys(row.note for row in rows if row.note):
            text.append(f"{', '.join(row.name for row in rows if row.note == note)}: {note}.")
        for reason in dict.fromkeys(item.reason for item in self.left_out):
            text.append(
                f"Left out: {', '.join(item.name for item in self.left_out if item.reason == reason)}: {reason}."
            )
        text.append(f"Recommended: {self.recommendation}. {self.reason}")
        return "\n".join(text)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw bias and standard deviation against ε and τ into a file, whose suffix says the format."""
        from argrad.diagnostics.plot import plot

        plot(self, path)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python objects; numbers that JSON does not know (infinite, NaN) become None."""
        plain = _plain(asdict(self))
        assert isinstance(plain, dict)
        return plain

    def to_json(self) -> str:
        """:meth:`to_dict` on one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        """The table."""
        return self.table()


def recommend(rows: Sequence[Row], gradient_norm: float, horizon: int, states: str) -> tuple[str, str]:
    """The name of the row to use, and why.

    Sampling estimators are ranked by their error at equal time. Exact enumeration has no error, so it wins wherever its
    time is no object: not much above that of the best sampling estimator, or well spent compared with averaging that
    one.
    """
    sampling = sorted((row for row in rows if row.estimator != "Exact"), key=lambda row: row.error_at_equal_time)
    exact = next((row for row in rows if row.estimator == "Exact"), None)
    if not sampling:
        assert exact is not None
        return exact.name, "It is the only estimator that was measured."
    best = sampling[0]
    if exact is not None:
        calls = exact.milliseconds / best.milliseconds
        bias = 0.0 if best.unbiased else best.bias
        error = math.sqrt(bias**2 + best.variance / max(1.0, calls)) / (gradient_norm or 1.0)
        times = (
            f"one call takes {_number(exact.milliseconds)} ms against {_number(best.milliseconds)} ms for {best.name}"
        )
        if calls <= SLOWER_IS_FINE:
            return exact.name, f"Enumerating all {states} structures gives the gradient without any error, and {times}."
        if error > ERROR_IS_FINE:
            return exact.name, (
                f"Enumerating all {states} structures gives the gradient without any error; {times}, whose mean over "
                f"that time would still be off by {_percent(error)}."
            )
    fastest = min(rows, key=lambda row: row.milliseconds)
    budget = horizon * fastest.milliseconds
    reason = (
        f"Over the time of {horizon} calls of the fastest estimator ({_number(budget)} ms) its mean is off by "
        f"{_percent(best.error_at_equal_time)} of the gradient's norm"
    )
    reason += " and it is unbiased" if best.unbiased else f", of which the bias is {_percent(best.relative_bias)}"
    others = [row for row in sampling[1:] if row.family != best.family]
    if others:
        reason += f"; next is {others[0].name} with {_percent(others[0].error_at_equal_time)}"
    if exact is not None:
        reason += f"; enumerating takes {_number(exact.milliseconds)} ms a call against {_number(best.milliseconds)} ms"
    return best.name, reason + "."


def _cells(row: Row, norm: float) -> tuple[str, ...]:
    norm = norm or 1.0
    marks = ("u" if row.unbiased else "") + ("d" if row.needs_cost_gradient else "")
    return (
        row.name,
        marks,
        "0" if row.bias == row.bias_error == 0 else f"{_number(row.bias / norm)} ± {_number(row.bias_error / norm)}",
        _number(row.standard_deviation / norm),
        _number(row.signal_to_noise),
        _number(row.cosine),
        str(row.cost_evaluations),
        _number(row.milliseconds),
        _percent(row.error_at_equal_time),
    )


def _number(number: float) -> str:
    """Three digits, in a form that reads well in a column."""
    if not math.isfinite(number):
        return "∞" if number > 0 else "–"
    if number == 0:
        return "0"
    return f"{number:.2g}" if abs(number) < 0.1 else f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _percent(fraction: float) -> str:
    """A fraction as per cent."""
    return f"{_number(100 * fraction)}%" if math.isfinite(fraction) else "–"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
