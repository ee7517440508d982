"""Measuring the chosen estimators on a problem, within a time that a visitor waits, and the table of what was found."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Sequence

import torch

from argrad.app.lab.curves import number, percent
from argrad.app.lab.problems import Studied
from argrad.app.lab.svg import NOTE
from argrad.diagnostics import Diagnosis, Row, diagnose
from argrad.estimators import Estimator

__all__ = ["SECONDS", "describe", "measure_all"]

SECONDS = 20.0
"""After so much work a measurement is given up."""
TRAIN_STEPS = 200
"""Steps for estimators that learn or adapt, before they are measured."""
COLUMNS = ("Estimator", "Bias", "Standard deviation", "Error at equal time", "Cost evaluations", "Milliseconds")


def measure_all(
    studied: Studied,
    estimators: Sequence[Estimator],
    samples: int,
    seed: int,
    progress: Callable[[float, str], object] = lambda done, line: None,
    seconds: float = SECONDS,
) -> Diagnosis:
    """Measure estimators on a problem.

    Args:
        studied: the problem.
        estimators: at least one.
        samples: draws of the gradient with each.
        seed: of the noise.
        progress: told, now and then, what share of the work is done and what is done next.
        seconds: of work, after which it is given up with an error that says what to do.
    """
    start = time.thread_time()  # not the clock: a busy machine is no reason to give up
    told = 0

    def go_on(line: str) -> None:
        nonlocal told
        told += 1
        if time.thread_time() - start > seconds:
            raise ValueError(
                f"this takes more than {seconds:.0f} seconds of work; tick fewer estimators, or take fewer draws"
            )
        progress(min(told / (2 * len(estimators) + 2), 1.0), line[:1].upper() + line[1:])

    return diagnose(
        studied.problem.latent,
        studied.problem.cost,
        samples,
        estimators=estimators,
        train_steps=TRAIN_STEPS,
        generator=torch.Generator().manual_seed(seed),
        progress=go_on,
    )


def describe(diagnosis: Diagnosis) -> str:
    """The recommendation and the table, best first, as HTML."""
    rows = diagnosis.best_of_each_family()
    further = len(diagnosis.rows) - len(rows)
    reference = "the exact gradient" if diagnosis.reference == "exact" else f"{diagnosis.reference} as reference"
    notes = [
        f"Compared with {reference}; bias, standard deviation and error are over its norm. Error at equal time is that "
        f"of the mean of as many draws as fit into {diagnosis.horizon} calls of the fastest estimator.",
        "Times are the best of 20 calls, on a machine that other work shares: take them as rough.",
        *notes_of(rows),
    ]
    if further:
        notes.append("Of several ε or τ the table has the best; further down are all, and the charts show them.")
    words = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return (
        '<div style="border-left:4px solid #3a9a5f;padding:.3rem .8rem;margin:.25rem 0 .75rem">'
        f"<b>Recommended: <code>{html.escape(diagnosis.recommendation)}</code></b><br>{html.escape(diagnosis.reason)}"
        "</div>"
        f"{table_of(rows, diagnosis, 'What was measured')}"
        f'<ul style="{NOTE};margin:.5rem 0 0 1.1rem;list-style:disc">{words}</ul>'
        + (
            f"<details><summary>All {len(diagnosis.rows)} settings</summary>"
            f"{table_of(diagnosis.rows, diagnosis, 'All settings')}</details>"
            if further
            else ""
        )
    )


def table_of(rows: Sequence[Row], diagnosis: Diagnosis, name: str) -> str:
    """Rows, the best first, in a box that scrolls where the page is narrow."""
    head = "".join(f'<th scope="col" style="{cell_style(place)}">{name}</th>' for place, name in enumerate(COLUMNS))
    best_first = sorted(rows, key=lambda row: row.error_at_equal_time)
    body = "".join(table_row(row, diagnosis) for row in best_first)
    return (
        f'<div style="overflow-x:auto" tabindex="0" role="region" aria-label="{name}">'
        '<table style="border-collapse:collapse;border:0;width:100%;font-size:.9em">'
        f'<thead><tr style="border:0">{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def notes_of(rows: Sequence[Row]) -> list[str]:
    """What was done before measuring, each thing once."""
    notes = dict.fromkeys(row.note for row in rows if row.note)
    return [f"{', '.join(row.name for row in rows if row.note == note)}: {note}." for note in notes]


def cell_style(place: int) -> str:
    """Names to the left, numbers to the right."""
    side = "left" if place == 0 else "right"
    white = "nowrap" if place == 1 else "normal"
    line = "border:0;border-bottom:1px solid var(--border-color-primary)"
    return f"text-align:{side};white-space:{white};padding:.3rem .6rem;{line}"


def table_row(row: Row, diagnosis: Diagnosis) -> str:
    """One estimator."""
    norm = diagnosis.gradient_norm or 1.0
    recommended = row.name == diagnosis.recommendation
    if row.unbiased:
        bias = "0 in theory"
    else:
        bias = f"{percent(row.bias / norm)} ± {100 * row.bias_error / norm:.2g}%"
    cells = [
        f"<code>{html.escape(row.name)}</code>" + (" ✓ recommended" if recommended else ""),
        bias,
        percent(row.standard_deviation / norm),
        percent(row.error_at_equal_time),
        str(row.cost_evaluations),
        number(row.milliseconds),
    ]
    weight = "font-weight:bold;" if recommended else ""
    inside = "".join(f'<td style="{weight}{cell_style(place)}">{cell}</td>' for place, cell in enumerate(cells))
    return f'<tr style="border:0">{inside}</tr>'
