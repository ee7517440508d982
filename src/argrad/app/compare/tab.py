"""The tab Compare: runs side by side, with their curves, samples, codes and settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr
from gradio.context import Context

from argrad.app.compare.curves import By, curves, in_words
from argrad.app.compare.pictures import cards_html
from argrad.app.compare.records import Record, differences_html, read_record, table_html, warning_html
from argrad.app.explore.pictures import drawing_html
from argrad.app.library import Library
from argrad.app.messages import explained

__all__ = ["compare_tab"]

MOST = 6
"""Runs at a time: colours and dashes can be told apart for so many."""
AT_FIRST = 3
"""Runs that are shown when the page opens."""
STYLE = """
<style>
.compare-curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; }
.compare-cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); gap: 1.5rem; }
.compare-cards section { min-width: 0; max-width: 28rem; }
.compare-cards h4 { margin: 0 0 .25rem; overflow-wrap: anywhere; font-size: 1rem; }
.compare-cards .pixels { margin: .25rem 0 .75rem; }
.compare-lines { list-style: none; padding: 0; font-family: monospace; overflow-wrap: anywhere; }
.compare-wide { overflow-x: auto; }
.compare-table { border-collapse: collapse; font-size: .95rem; }
.compare-table th, .compare-table td { padding: .3rem 1rem .3rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--border-color-primary); white-space: nowrap; font-weight: normal; }
.compare-table thead th { font-weight: 600; }
.compare-table a, .compare-cards a { color: var(--link-text-color); text-decoration: underline; }
.compare-note { border-left: 3px solid var(--color-accent); padding: .1rem .75rem; margin: .5rem 0; }
.compare-slim { align-self: end; flex-grow: 0; }
</style>
"""


def records_of(library: Library, names: Sequence[str] | None) -> list[Record]:
    """What the chosen runs recorded, in the order in which they were chosen."""
    if not names:
        raise ValueError("choose at least one run")
    if len(names) > MOST:
        raise ValueError(f"at most {MOST} runs can be told apart, got {len(names)}; take some away")
    return [read_record(library.find(name)) for name in names]


def curves_html(records: Sequence[Record]) -> str:
    """Both drawings, side by side where there is room."""
    axes: tuple[By, By] = ("epoch", "seconds")
    drawn = "".join(f"<div>{drawing_html(curves(records, by), in_words(records, by))}</div>" for by in axes)
    return f'{warning_html(records)}<div class="compare-curves">{drawn}</div>'


def compare_tab(library: Library) -> None:
    """Put the tab's components into the page."""
    gr.HTML(
        f"{STYLE}<p>Choose up to six runs to see how each learnt, what it generates, and where their settings "
        "differ.</p>",
        elem_classes=["explore-flat"],
    )
    with gr.Row():
        chosen = gr.Dropdown([], value=[], multiselect=True, max_choices=MOST, label="Runs to compare", scale=4)
        again = gr.Button("Look for new runs", scale=0, min_width=180, size="md", elem_classes=["compare-slim"])
    nothing = gr.Markdown("There is no run yet. Train one in the tab Explore, or with `argrad train`.", visible=False)
    with gr.Column(visible=False) as main:
        table = gr.HTML(apply_default_css=False, elem_classes=["explore-flat"])
        gr.Markdown("### How they learnt\nLoss on validation data, by epoch and by time; lower is better.")
        drawings = gr.HTML(apply_default_css=False, elem_classes=["explore-flat"])
        gr.Markdown("### What they generate, and which codes they use")
        cards = gr.HTML(apply_default_css=False, elem_classes=["explore-flat"])
        gr.Markdown("### Settings in which they differ")
        differences = gr.HTML(apply_default_css=False, elem_classes=["explore-flat"])

    @explained
    def refresh(kept: list[str] | None) -> list[Any]:
        names = library.names()
        still = [name for name in kept or [] if name in names] or names[:AT_FIRST]
        return [gr.update(choices=names, value=still), gr.update(visible=not names), gr.update(visible=bool(names))]

    @explained
    def show(names: list[str] | None) -> list[Any]:
        if not names:
            return ["<p>Choose at least one run.</p>", "", "", ""]
        records = records_of(library, names)
        drawn = library.once("curves", [record.run for record in records], lambda: curves_html(records))
        return [table_html(records), drawn, gr.skip(), differences_html(records)]

    @explained
    def show_cards(names: list[str] | None) -> str:
        return cards_html(library, [record.run for record in records_of(library, names)]) if names else ""

    Context.root_block.load(refresh, chosen, [chosen, nothing, main], show_progress="hidden")
    again.click(refresh, chosen, [chosen, nothing, main], show_progress="hidden")
    shown = [table, drawings, cards, differences]
    # Models take longer to load than metrics to read, so they come second.
    chosen.change(show, chosen, shown, show_progress="hidden", trigger_mode="always_last").success(
        show_cards, chosen, cards, show_progress="minimal", show_progress_on=cards
    )
