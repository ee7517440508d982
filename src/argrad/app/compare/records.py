"""Runs side by side in words and numbers: what each is, how far it came, and in which settings they differ."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final
from urllib.parse import quote

from argrad.app.library import KINDS, Kind, Run
from argrad.models.discrete_vae.report import duration
from argrad.training import RunFolder

__all__ = ["Record", "differences_html", "read_record", "report_link", "table_html", "warning_html"]

NONE = "–"
"""What is not there."""


@final
@dataclass(frozen=True)
class Record:
    """A run and what it recorded, one row for each epoch that has a loss."""

    run: Run
    history: list[dict[str, Any]]

    @property
    def best(self) -> dict[str, Any] | None:
        """The epoch with the least validation loss, whose weights were kept."""
        return min(self.history, key=lambda row: float(row["loss"]), default=None)


def read_record(run: Run) -> Record:
    """What a run recorded; nothing where it has no metrics, or broken ones: the rest can still be compared."""
    try:
        rows = RunFolder(run.path, run.config).read_metrics()
    except (OSError, ValueError):
        rows = []
    kept = [row for row in rows if isinstance(row, dict) and all(is_number(row.get(key)) for key in ("epoch", "loss"))]
    return Record(run, kept)


def is_number(value: Any) -> bool:
    """Whether it can be drawn."""
    return isinstance(value, int | float) and math.isfinite(value)


def flattened(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Settings within settings by their path.

    >>> flattened({"epochs": 3, "recipe": {"latent": 10}})
    {'epochs': 3, 'recipe.latent': 10}
    """
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found.update(flattened(value, f"{before}{name}."))
        else:
            found[f"{before}{name}"] = value
    return found


def setting(config: Mapping[str, Any], name: str) -> Any:
    """A setting, wherever the kind of run keeps it; None where it has none."""
    for place in (config, config.get("recipe"), config.get("settings")):
        if isinstance(place, Mapping) and place.get(name) is not None:
            return place[name]
    return None


def latent_of(kind: Kind, config: Mapping[str, Any]) -> str:
    """The latent in words."""

    def of(name: str) -> Any:
        found = setting(config, name)
        return "?" if found is None else found

    match kind:
        case "vae" if of("latent") == "bits":
            return f"{of('variables')} bits"
        case "vae":
            return (
                f"one of {of('values')}" if of("variables") == 1 else f"{of('variables')} times one of {of('values')}"
            )
        case "classify":
            return f"a class and {of('latent')} numbers"
        case "attributes":
            return f"{len(config.get('attribute_names', ()))} attributes and {of('remainder')} numbers"
        case "tokenize":
            return f"cells, each one of {of('codes')}"
        case "complete":
            return f"one of {of('components')} Gaussians of {of('dimension')} numbers"
        case "write":
            return f"up to {of('sequence')} symbols"
        case "segment":
            return "a label for each voxel"


def facts(record: Record) -> dict[str, str]:
    """A run in a row of the table."""
    config, best = record.run.config, record.best
    found = {
        "Kind": KINDS[record.run.kind],
        "Data": str(setting(config, "data") or NONE),
        "Latent": latent_of(record.run.kind, config),
        "Estimator": str(setting(config, "estimator") or NONE),
        "Epochs": str(record.history[-1]["epoch"]) if record.history else NONE,
        "Training time": NONE,
        "Best validation loss": NONE,
    }
    if record.history and is_number(record.history[-1].get("seconds")):
        found["Training time"] = duration(float(record.history[-1]["seconds"]))
    if best is not None:
        found["Best validation loss"] = f"{best['loss']:.2f} (epoch {best['epoch']})"
        for name, key, form in EXTRAS:
            if is_number(best.get(key)):
                found[name] = format(float(best[key]), form)
    return found


EXTRAS = (
    ("Codes used", "used_codes", ".0%"),
    ("Perplexity of codes", "perplexity", ".1f"),
    ("Accuracy", "accuracy", ".1%"),
    ("Squared error per pixel", "hard_error", ".4f"),
)
"""What only some kinds record, on validation data at the best epoch."""


def report_link(run: Run, words: str | None = None) -> str:
    """A run's name, or other words, that open its report in a new tab; plain where it has none."""
    shown = html.escape(run.name if words is None else words)
    if run.report is None:
        return shown
    return f'<a href="/report/{quote(run.name)}" target="_blank" rel="noopener">{shown}</a>'


def table_html(records: Sequence[Record]) -> str:
    """The runs as rows; columns that none of them fills are left out."""
    rows = [facts(record) for record in records]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    columns = [name for name in columns if any(row.get(name, NONE) != NONE for row in rows)]
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Run", *columns, "Report"))
    body = ""
    for record, row in zip(records, rows, strict=True):
        cells = "".join(f"<td>{html.escape(row.get(name, NONE))}</td>" for name in columns)
        report = report_link(record.run, "open") if record.run.report else NONE
        body += f'<tr><th scope="row">{html.escape(record.run.name)}</th>{cells}<td>{report}</td></tr>'
    return wide(f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>", "Runs")


def warning_html(records: Sequence[Record]) -> str:
    """Says so where losses do not mean the same."""
    kinds = {record.run.kind for record in records}
    data = {
        (str(setting(record.run.config, "data")), str(setting(record.run.config, "binarize"))) for record in records
    }
    if len(kinds) == 1 and len(data) == 1:
        return ""
    what = "kinds" if len(kinds) > 1 else "data"
    return (
        f'<p class="compare-note" role="note">These runs are of different {what}: compare the shapes of their curves, '
        "not the heights.</p>"
    )


def differences_html(records: Sequence[Record]) -> str:
    """The settings that are not the same in all runs; of runs of several kinds, those that all of them have."""
    if len(records) < 2:
        return "<p>Choose another run to see in which settings they differ.</p>"
    configs = [flattened(record.run.config) for record in records]
    names = list(dict.fromkeys(name for config in configs for name in config))
    if len({record.run.kind for record in records}) > 1:
        names = [name for name in names if all(name in config for config in configs)]
    differing = [name for name in names if len({repr(config.get(name, NONE)) for config in configs}) > 1]
    if not differing:
        return "<p>All settings that they share are the same.</p>"
    head = "".join(f'<th scope="col">{html.escape(record.run.name)}</th>' for record in records)
    body = "".join(
        f'<tr><th scope="row"><code>{html.escape(name)}</code></th>'
        + "".join(f"<td>{html.escape(shortened(config.get(name, NONE)))}</td>" for config in configs)
        + "</tr>"
        for name in differing
    )
    return wide(
        f'<thead><tr><th scope="col">Setting</th>{head}</tr></thead><tbody>{body}</tbody>', "Settings that differ"
    )


def shortened(value: Any) -> str:
    """A setting that fits into a cell.

    >>> shortened([8, 8]), len(shortened("a" * 1000))
    ('[8, 8]', 60)
    """
    text = str(value)
    return text if len(text) <= 60 else text[:59] + "…"


def wide(inside: str, words: str) -> str:
    """A table that scrolls in its own box, by keyboard too."""
    label = html.escape(words, quote=True)
    return (
        f'<div class="compare-wide" tabindex="0" role="region" aria-label="{label}">'
        f'<table class="compare-table">{inside}</table></div>'
    )
