"""The tab in which one plays with the gradient estimators."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import gradio as gr

from argrad.app.lab.curves import HIGHEST, LOWEST, Point, draw_trade_off, live_points, points_of
from argrad.app.lab.estimators import CHOSEN_FIRST, chosen_estimators, offered
from argrad.app.lab.measure import describe, measure_all
from argrad.app.lab.play import MOST_DRAWS, draw_play, picture_of, play
from argrad.app.lab.problems import (
    DIGIT_BITS,
    EARLY,
    FROM_FILE,
    FROM_RUN,
    RANDOM,
    RANDOM_BITS,
    SOURCES,
    STEPS,
    TRAINED,
    Choice,
    Problems,
    Studied,
)
from argrad.app.lab.slider import factor_slider, read_factor
from argrad.app.lab.svg import NOTE
from argrad.app.library import Library
from argrad.app.messages import explained

__all__ = ["lab_tab"]

EPSILON, TEMPERATURE, AVERAGED = 0.3, 0.5, 100
"""Where the sliders stand at first."""
MOST_AVERAGED = 10_000
WELCOME = """Which estimator finds the gradient best, and what do ε and τ do to it? Choose a problem, **move ε** and
watch the curves; press **Draw again** to see what one draw does; then **measure** and read which estimator to take."""
NOTHING_MEASURED = f'<p style="{NOTE}">Nothing measured yet on this problem.</p>'
Measured = tuple[Choice, tuple[Point, ...]]
"""What a measurement found, and on which problem."""


def lab_tab(library: Library) -> None:
    """Put the tab's components into the page."""
    problems = Problems(library)
    first = Choice()
    known = problems.find(first)
    gr.Markdown(WELCOME)
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            source = gr.Dropdown(list(SOURCES), value=first.source, label="Problem", elem_id="lab-problem")
            values = gr.Slider(2, 50, first.values, step=1, label="Values k", elem_id="lab-values")
            bits = gr.Slider(2, 10, first.bits, step=1, label="Bits n", visible=False, elem_id="lab-bits")
            seed = gr.Number(first.seed, label="Seed", info="Another seed is another problem.", precision=0, minimum=0)
            run = gr.Dropdown([], label="Run", info="A discrete VAE, at its trained weights.", visible=False)
            file = gr.File(
                label="An .npz file with logits and costs, both [examples, k]",
                file_types=[".npz"],
                type="filepath",
                visible=False,
                height=140,
                elem_id="lab-file",
            )
            about = gr.HTML(in_words(known), elem_id="lab-about")
            hint = "Small: noise. Large: bias."
            epsilon = factor_slider("ε of Direct", LOWEST, HIGHEST, EPSILON, info=hint, elem_id="lab-epsilon")
            temperature = factor_slider(
                "τ of Gumbel-softmax and its kin", LOWEST, HIGHEST, TEMPERATURE, info=hint, elem_id="lab-tau"
            )
            averaged = factor_slider(
                "Draws in a mean",
                1,
                MOST_AVERAGED,
                AVERAGED,
                whole=True,
                info="What a batch and the optimiser average over.",
                elem_id="lab-averaged",
            )
        with gr.Column(scale=5, min_width=300):
            gr.Markdown("### How good is the gradient?")
            curves = gr.HTML(curves_now(known, first, EPSILON, TEMPERATURE, AVERAGED, None), elem_id="lab-curves")
            gr.Markdown("### What Direct does, draw by draw")
            picture = gr.HTML(play_now(known, first, EPSILON, 1, 1), elem_id="lab-play")
            with gr.Row():
                again = gr.Button("Draw again", variant="primary", size="md", min_width=90)
                many = gr.Button("100 more", size="md", min_width=90)
                restart = gr.Button("Start over", size="md", min_width=90)
            example = gr.Slider(1, known.examples, 1, step=1, label="Example", elem_id="lab-example")
    gr.Markdown("### Measure the estimators")
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            estimators = gr.CheckboxGroup(offered(known), value=list(CHOSEN_FIRST), label="Estimators")
            samples = gr.Slider(200, 4000, 1000, step=200, label="Draws of each")
            sweep = gr.Checkbox(
                False, label="Sweep ε and τ", info="Also measure at 0.03 … 3, which draws points into the charts above."
            )
            start = gr.Button("Measure", variant="primary", elem_id="lab-measure")
        with gr.Column(scale=5, min_width=300):
            table = gr.HTML(NOTHING_MEASURED, elem_id="lab-table")
    draws = gr.State(1)
    measured = gr.State(None)

    @explained
    def on_move(*given: Any) -> str:
        choice = choice_of(given)
        return curves_now(problems.find(choice), choice, *given[6:])

    @explained
    def on_draw(*given: Any) -> str:
        choice = choice_of(given)
        return play_now(problems.find(choice), choice, *given[6:])

    @explained
    def on_problem(*given: Any, progress: gr.Progress = gr.Progress()) -> tuple[Any, ...]:  # noqa: B008
        """Everything for another problem; what was ticked stays ticked where it still works."""
        choice = choice_of(given)
        at, tau, mean, found, ticked = given[6:]
        shown = visibility(choice.source)
        missing = {FROM_FILE: "a file", FROM_RUN: "a run"}.get(choice.source)
        if missing and not (choice.file if choice.source == FROM_FILE else choice.run):
            ask = f'<p style="{NOTE}">Choose {missing} to go on.</p>'
            return *shown, ask, ask, gr.skip(), 1, "", gr.skip(), NOTHING_MEASURED
        progress(0, desc=waiting(choice.source))
        studied = problems.find(choice)
        works = offered(studied)
        return (
            *shown,
            in_words(studied),
            curves_now(studied, choice, at, tau, mean, found),
            gr.Slider(value=1, maximum=max(2, studied.examples), interactive=studied.examples > 1),
            1,
            play_now(studied, choice, at, 1, 1),
            gr.CheckboxGroup(choices=works, value=[name for name in ticked if name in works]),
            gr.skip() if found is not None and found[0] == choice.relevant else NOTHING_MEASURED,
        )

    @explained
    def on_measure(*given: Any, progress: gr.Progress = gr.Progress()) -> tuple[str, Measured, str]:  # noqa: B008
        choice = choice_of(given)
        at, tau, mean, names, number, all_over = given[6:]
        studied = problems.find(choice)
        picked = chosen_estimators(names, read_epsilon(at), read_temperature(tau), sweep=bool(all_over))

        def tell(share: float, line: str) -> None:
            progress(share, desc=line)

        diagnosis = measure_all(studied, picked, int(number), choice.seed, tell)
        found: Measured = (choice.relevant, tuple(points_of(diagnosis.rows)))
        return describe(diagnosis), found, curves_now(studied, choice, at, tau, mean, found)

    @explained
    def on_open(name: str | None) -> Any:
        """The runs there are now."""
        names = library.names("vae")
        return gr.Dropdown(choices=names, value=name if name in names else next(iter(names), None))

    chosen = [source, values, bits, seed, run, file]
    to_draw = [*chosen, epsilon, example, draws]
    live: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last", "api_visibility": "private"}
    gr.on(
        [*(control.input for control in (source, values, bits, seed, run)), file.upload, file.clear],
        on_problem,
        [*chosen, epsilon, temperature, averaged, measured, estimators],
        [values, bits, seed, run, file, about, curves, example, draws, picture, estimators, table],
        show_progress_on=about,
        trigger_mode="always_last",
        api_visibility="private",
    )
    sliders = [epsilon.input, temperature.input, averaged.input]
    gr.on(sliders, on_move, [*chosen, epsilon, temperature, averaged, measured], curves, **live)
    gr.on([epsilon.input, example.input], on_draw, to_draw, picture, **live)
    for button, further in ((again, 1), (many, 100), (restart, -MOST_DRAWS)):
        count = button.click(counter(further), draws, draws, **live)
        count.then(on_draw, to_draw, picture, **live)
    start.click(
        on_measure,
        [*chosen, epsilon, temperature, averaged, estimators, samples, sweep],
        [table, measured, curves],
        show_progress_on=table,
        concurrency_limit=1,  # two at a time would spoil each other's times
        concurrency_id="lab measurement",
        api_visibility="private",
    )
    when_opened()(on_open, run, run, **live)


def counter(further: int) -> Any:
    """A handler that adds to the number of draws, within what there is."""
    return lambda draws: min(max(int(draws) + further, 1), MOST_DRAWS)


def when_opened() -> Any:
    """The event of the tab being opened, or of the page where there is no tab around."""
    context = gr.context.Context
    return context.block.select if isinstance(context.block, gr.Tab) else context.root_block.load


def choice_of(given: Sequence[Any]) -> Choice:
    """The first six inputs of every event."""
    source, values, bits, seed, run, file = given[:6]
    if seed is None or not 0 <= int(seed) < 2**31:
        raise ValueError(f"the seed must be a whole number from 0 to {2**31 - 1:,}, got {seed}")
    return Choice(source, int(values), int(bits), int(seed), run, file)


def read_epsilon(given: Any) -> float:
    """ε as the browser sends it."""
    return read_factor(given, "ε", LOWEST, HIGHEST)


def read_temperature(given: Any) -> float:
    """τ as the browser sends it."""
    return read_factor(given, "τ", LOWEST, HIGHEST)


def curves_now(studied: Studied, choice: Choice, at: Any, tau: Any, mean: Any, found: Measured | None) -> str:
    """The charts, with what was measured on the same problem."""
    epsilon, temperature = read_epsilon(at), read_temperature(tau)
    averaged = round(read_factor(mean, "the number of draws in a mean", 1, MOST_AVERAGED))
    points = found[1] if found is not None and found[0] == choice.relevant else ()
    return draw_trade_off(studied, epsilon, averaged, live_points(studied, epsilon, temperature, choice.seed), points)


def play_now(studied: Studied, choice: Choice, at: Any, example: Any, count: Any) -> str:
    """The step-by-step picture."""
    epsilon, which = read_epsilon(at), min(int(example), studied.examples) - 1
    played = play(studied, which, epsilon, int(count), choice.seed)
    return draw_play(played, epsilon, picture=picture_of(studied, which))


def waiting(source: str) -> str:
    """What a visitor is told while a problem is made."""
    return "Training a small auto-encoder on digits" if source in STEPS else "Looking at the problem"


def in_words(studied: Studied) -> str:
    """The problem in a sentence."""
    return f'<p style="{NOTE}">Problem: {html.escape(studied.problem.description)}.</p>'


def visibility(source: str) -> tuple[Any, ...]:
    """Which controls a source needs: k, n, the seed, the run, the file."""
    return (
        gr.Slider(visible=source in (RANDOM, EARLY, TRAINED)),
        gr.Slider(visible=source in (RANDOM_BITS, DIGIT_BITS)),
        gr.Number(visible=source not in (FROM_RUN, FROM_FILE)),
        gr.Dropdown(visible=source == FROM_RUN),
        gr.File(visible=source == FROM_FILE),
    )
