"""A slider on which equal steps are equal factors, and which shows the number itself."""

from __future__ import annotations

import html
import math

import gradio as gr

__all__ = ["factor_slider", "read_factor"]

TEMPLATE = """
<label class="factor"><span>{label}</span><output>{start}</output>
<input type="range" min="{low}" max="{high}" step="{step}" value="{place}"
  aria-label="{label}" aria-valuetext="{start}">
<span class="note">{info}</span></label>
"""
STYLE = """
.factor { display: grid; grid-template-columns: 1fr auto; gap: .15rem .5rem; padding: .6rem .75rem;
  margin: -10px -12px; /* the frame around such a component has this padding, which others do not have */
  border: 1px solid var(--border-color-primary); border-radius: var(--block-radius);
  background: var(--block-background-fill); }
.factor span { font-size: var(--block-label-text-size); }
.factor output { font-weight: 600; font-variant-numeric: tabular-nums; }
.factor input { grid-column: 1 / 3; width: 100%; accent-color: var(--slider-color, var(--color-accent)); }
.factor .note { grid-column: 1 / 3; font-size: .8em; opacity: .75; }
"""
SCRIPT = """
const input = element.querySelector('input'), output = element.querySelector('output');
const whole = %s;
input.addEventListener('input', () => {
  const number = Math.pow(10, parseFloat(input.value));
  const shown = whole ? String(Math.round(number)) : String(parseFloat(number.toPrecision(2)));
  output.value = shown;
  input.setAttribute('aria-valuetext', shown);
  props.value = parseFloat(shown);
  trigger('input');
});
"""


def factor_slider(
    label: str, low: float, high: float, value: float, *, whole: bool = False, info: str = "", elem_id: str = ""
) -> gr.HTML:
    """A logarithmic slider; it fires ``input`` while it moves, and its value is the number that it shows.

    Args:
        label: what it sets.
        low: the least number.
        high: the greatest.
        value: the first.
        whole: whether only whole numbers are meant.
        info: a hint below.
        elem_id: of the component.
    """
    template = TEMPLATE.format(
        label=html.escape(label, quote=True),
        start=f"{value:g}",
        low=math.log10(low),
        high=math.log10(high),
        step=0.05,
        place=math.log10(value),
        info=html.escape(info),
    )
    script = SCRIPT % ("true" if whole else "false")
    return gr.HTML(value, html_template=template, css_template=STYLE, js_on_load=script, label=label, elem_id=elem_id)


def read_factor(given: object, name: str, low: float, high: float) -> float:
    """The number of such a slider, which a browser sends and which therefore may be anything."""
    try:
        value = float(str(given))
    except ValueError:
        value = math.nan
    if not low * 0.99 <= value <= high * 1.01:  # nan is not
        raise ValueError(f"{name} must lie between {low:g} and {high:g}, got {given}")
    return value
