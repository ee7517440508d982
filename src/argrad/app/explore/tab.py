"""The tab Explore: change the code of a model and see its image change; show it an image and see the code."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any, final
from urllib.parse import quote

import gradio as gr
import numpy as np
import torch
from gradio.context import Context
from torch import Tensor

from argrad.app.explorable.base import Explorable, Point, Posterior
from argrad.app.explorable.runs import EXPLORABLE, open_explorable
from argrad.app.explore.controls import Controls, form_of
from argrad.app.explore.grid import NOTHING, axes, grid_html, usual_axes
from argrad.app.explore.pictures import image_html, pixels_of
from argrad.app.explore.posterior import posterior_html
from argrad.app.explore.writing import writing_box
from argrad.app.library import KINDS, Library, Run
from argrad.app.messages import explained
from argrad.app.train_digits import train_digits
from argrad.app.uploaded_picture import fit_picture

__all__ = ["explore_tab"]

EXAMPLES = 12
"""Test images to choose from."""
LARGEST_SEED = 2**31 - 1
STYLE = """
<style>
.explore-flow { display: grid; grid-template-columns: repeat(auto-fill, minmax(4rem, 1fr)); gap: .5rem; }
.explore-flow figure, .explore-pair figure { margin: 0; }
.explore-flow figcaption, .explore-pair figcaption { text-align: center; font-size: .85rem; }
.explore-pair { display: grid; grid-template-columns: repeat(2, minmax(0, 11rem)); gap: 1rem; margin: .5rem 0 1rem; }
.explore-grid, .explore-bars, .explore-cells, .explore-numbers { border-collapse: collapse; margin: 0 0 1rem; }
.explore-grid caption, .explore-bars caption, .explore-cells caption { text-align: left; padding: 0 0 .4rem; }
.explore-grid { table-layout: fixed; min-width: min(100%, 18rem); max-width: 46rem; }
.explore-grid thead td { width: 2.5rem; }
.explore-grid th { font-weight: normal; font-size: .85rem; padding: 2px; text-align: center; }
.explore-grid td { padding: 1px; }
.explore-bars { width: 100%; max-width: 36rem; }
.explore-bars th, .explore-bars td { padding-top: .1rem; padding-bottom: .1rem; }
.explore-bars th { font-weight: normal; text-align: left; padding-right: .75rem; white-space: nowrap; width: 1%; }
.explore-bars td:last-child { text-align: right; white-space: nowrap; width: 5rem; }
.explore-bars td, .explore-numbers td { font-variant-numeric: tabular-nums; }
.explore-bar span { display: block; height: .8rem; min-width: 1px; border-radius: 2px;
  background: var(--color-accent); }
.explore-wide { overflow-x: auto; }
.explore-cells { min-width: 16rem; }
.explore-cells td { border: 1px solid var(--border-color-primary); padding: .15rem .4rem; text-align: center;
  line-height: 1.15; background: color-mix(in srgb, var(--color-accent) calc(var(--share) * 35%), transparent); }
.explore-numbers td, .explore-numbers th { padding: .1rem .75rem .1rem 0; font-weight: normal; text-align: left; }
.explore-picker .wrap { max-height: 24rem; overflow-y: auto; gap: .25rem; }
.explore-picker label { padding: .25rem .4rem; justify-content: center; min-width: 0; }
.explore-picker label span { margin-left: .3rem; }
.explore-picture { max-width: 18rem; }
.row > .column.explore-stage { position: sticky; top: .5rem; align-self: flex-start; z-index: 2; }
@media (max-width: 40rem) {
  .row > .column.explore-stage { order: -1; background: var(--body-background-fill); padding-bottom: .5rem; }
  .explore-picture { max-width: 9rem; }
}
.explore-examples .caption-label { display: none; }
.explore-examples .grid-container { grid-template-columns: repeat(6, minmax(0, 1fr)); grid-template-rows: none;
  grid-auto-rows: auto; padding: 0; }
.explore-examples .grid-wrap { min-height: 0; height: auto; overflow: hidden; }
.explore-examples .thumbnail-item { aspect-ratio: 1; height: auto; }
.html-container:has(> .explore-flat) { padding: 0; }
.explore-slim { align-self: end; flex-grow: 0; }
</style>
"""


@final
@dataclass(frozen=True)
class Looked:
    """The image that was looked at last, and where it is from."""

    run: str
    image: Tensor
    words: str
    found: Posterior


@final
class Explore:
    """What the tab does, without its components."""

    def __init__(self, library: Library) -> None:
        self.library = library

    def open(self, name: str | None) -> Explorable:
        """The model of a run."""
        return open_explorable(self.library, self.library.find(name, *EXPLORABLE))

    def draw(self, explorable: Explorable, seed: float | None) -> Point:
        """The point that a seed gives."""
        return explorable.draw(torch.Generator().manual_seed(check_seed(seed)))

    def look(self, name: str, image: Tensor, words: str) -> Looked:
        """What the model of a run makes of an image."""
        return Looked(name, image, words, self.open(name).posterior(image))

    def example(self, name: str, number: int) -> Looked:
        """The same for a test image."""
        images = self.open(name).examples(EXAMPLES, seed=0)
        if images is None or not 0 <= number < len(images):
            raise ValueError("there is no such test image; choose another one")
        return self.look(name, images[number], f"Test image {number + 1} of {len(images)}.")

    def upload(self, name: str, path: str | None) -> Looked:
        """The same for a visitor's picture."""
        explorable = self.open(name)
        if path is None:
            raise ValueError("no file arrived; choose a picture")
        return self.look(name, *fit_picture(path, explorable.shape, explorable.binarization))

    def exchange(self, looked: Looked | None) -> Looked:
        """The same for the last image with light and dark exchanged."""
        if looked is None:
            raise ValueError("choose a test image or upload a picture first")
        words = looked.words.removesuffix(EXCHANGED)
        return self.look(looked.run, 1 - looked.image, words if words != looked.words else words + EXCHANGED)


EXCHANGED = " Light and dark are exchanged."


def check_seed(seed: float | None) -> int:
    """A seed from a field into which anything can be typed."""
    if seed is None or not 0 <= seed <= LARGEST_SEED or seed != int(seed):
        raise ValueError(f"a seed is a whole number from 0 to {LARGEST_SEED}, got {seed}")
    return int(seed)


def about_html(run: Run, explorable: Explorable) -> str:
    """One line on a run, with the way to its report."""
    parts = [KINDS[run.kind]]
    if run.config.get("data"):
        parts.append(f"on {run.config['data']}")
    parts.append(f"images of {' × '.join(map(str, explorable.shape))}")
    if run.config.get("estimator"):
        parts.append(f"trained with {run.config['estimator']}")
    words = html.escape(" · ".join(parts))
    if run.report is None:
        return f'<p class="soft">{words}</p>'
    return f'<p class="soft">{words} · <a href="/report/{quote(run.name)}" target="_blank">its report</a></p>'


def picture_html(explorable: Explorable, point: Point) -> str:
    """The image at a point."""
    return (
        f'<div class="explore-picture">{image_html(explorable.generate([point])[0], in_words(explorable, point))}</div>'
    )


def in_words(explorable: Explorable, point: Point) -> str:
    """A point for those who do not see its image."""
    if form_of(explorable) == "switches":
        on = [one.name for one, choice in zip(explorable.variables, point.choices, strict=True) if choice]
        words = f"{', '.join(on)} on" if on else "everything off"
    elif form_of(explorable) == "buttons":
        pairs = zip(explorable.variables, point.choices, strict=True)
        words = ", ".join(f"{one.name} {one.values[choice]}" for one, choice in pairs)
    else:
        words = "the chosen codes"
    return f"The image that the model generates with {words}"


def gallery_of(images: Tensor | None) -> list[tuple[np.ndarray[Any, Any], str]]:
    """Images with their names, as the gallery takes them."""
    if images is None:
        return []
    shown = (np.clip(pixels_of(images), 0, 1) * 255).round().astype(np.uint8)
    shown = shown.transpose(0, 2, 3, 1) if shown.ndim == 4 else shown
    return [(image, f"Test image {number + 1}") for number, image in enumerate(shown)]


def explore_tab(library: Library) -> None:
    """Put the tab's components into the page."""
    tab = Explore(library)
    gr.HTML(
        f"{STYLE}<p>Choose a trained model and change its code: the image follows at once. Or show it an image, and "
        "see which code it finds.</p>",
        elem_classes=["explore-flat"],
    )
    with gr.Row():
        run = gr.Dropdown([], label="Run", value=None, scale=4)
        again = gr.Button("Look for new runs", scale=0, min_width=180, size="md", elem_classes=["explore-slim"])
    about = gr.HTML(elem_classes=["explore-flat"])
    with gr.Column(visible=False) as offer:
        gr.Markdown("There is no run to explore yet.")
        train = gr.Button("Train the digits model (about 20 seconds)", variant="primary")
        trained = gr.HTML(min_height=60, elem_classes=["explore-flat"])
    with gr.Column(visible=False) as main:
        point = gr.State(None)
        looked = gr.State(None)
        with gr.Row():
            with gr.Column(scale=3, min_width=300):
                gr.Markdown("### The code")
                controls = Controls()
                with gr.Row():
                    seed = gr.Number(0, label="Seed of the draw", precision=0, minimum=0, min_width=140)
                    anew = gr.Button("Draw anew", min_width=140, size="md", elem_classes=["explore-slim"])
            with gr.Column(scale=2, min_width=300, elem_classes=["explore-stage"]):
                gr.Markdown("### The image")
                picture = gr.HTML(elem_classes=["pixels", "explore-flat"], min_height=144)
        gr.Markdown("### A grid over two latents\nAll others stay as they are set above.")
        with gr.Row():
            across = gr.Dropdown([NOTHING], value=NOTHING, label="Across", min_width=140)
            down = gr.Dropdown([NOTHING], value=NOTHING, label="Down", min_width=140)
        grid = gr.HTML(elem_classes=["pixels", "explore-flat"], apply_default_css=False)
        gr.Markdown("### From an image to its code\nChoose a test image, or upload a picture of your own.")
        with gr.Row():
            with gr.Column(scale=2, min_width=300):
                examples = gr.Gallery(
                    show_label=False,
                    container=False,
                    columns=6,
                    format="png",
                    allow_preview=False,
                    interactive=False,
                    buttons=[],
                    object_fit="contain",
                    elem_classes=["pixels", "explore-examples"],
                )
                missing = gr.HTML(visible=False, elem_classes=["explore-flat"])
                upload = gr.UploadButton("Upload a picture", type="filepath", size="md")
                with gr.Row():
                    exchange = gr.Button("Exchange light and dark", size="md", visible=False, min_width=140)
                    use = gr.Button("Use this code", variant="primary", size="md", visible=False, min_width=140)
            with gr.Column(scale=3, min_width=300):
                posterior = gr.HTML(elem_classes=["pixels", "explore-flat"], apply_default_css=False)

    @explained
    def refresh(chosen: str | None) -> list[Any]:
        names = library.names(*EXPLORABLE)
        kept = chosen if chosen in names else (names[0] if names else None)
        return [gr.update(choices=names, value=kept), gr.update(visible=bool(names)), gr.update(visible=not names)]

    @explained
    def open_run(name: str | None) -> list[Any]:
        if not name:
            return [gr.skip()] * len(opened)
        found = library.find(name, *EXPLORABLE)
        explorable = open_explorable(library, found)
        at = tab.draw(explorable, 0)
        choices, (first, second) = axes(explorable), usual_axes(explorable)
        images = explorable.examples(EXAMPLES, seed=0)
        shown = gallery_of(images)
        words = '<p class="soft">The data of this run is not at hand; upload a picture.</p>'
        return [
            about_html(found, explorable),
            at,
            None,
            0,
            *controls.show(explorable, at),
            gr.update(choices=choices, value=first),
            gr.update(choices=[(NOTHING, NOTHING), *choices], value=second),
            picture_html(explorable, at),
            gr.update(value=shown, visible=bool(shown), selected_index=None),
            gr.update(value=words, visible=not shown),
            "",
            gr.update(visible=False),
            gr.update(visible=False),
        ]

    first_shown = [about, point, looked, seed, *controls.all, across, down, picture]
    opened = [*first_shown, examples, missing, posterior, use, exchange]

    @explained
    def move(name: str, rest: Point, *values: Any) -> list[Any]:
        explorable = tab.open(name)
        at = controls.read(explorable, rest, values)
        cells: list[Any] = [gr.skip()]
        if form_of(explorable) == "cells":
            cells = controls.show_cells(explorable, at, int(values[controls.all.index(controls.cell)] or 0))[:1]
        return [picture_html(explorable, at), at, *cells]

    @explained
    def pick(name: str, rest: Point, cell: int) -> Any:
        return controls.show_cells(tab.open(name), rest, int(cell))[1]

    def at_point(explorable: Explorable, at: Point, cell: Any) -> list[Any]:
        return [at, *controls.show(explorable, at, None if cell is None else int(cell)), picture_html(explorable, at)]

    @explained
    def redraw(name: str, number: float | None, cell: Any) -> list[Any]:
        explorable = tab.open(name)
        return at_point(explorable, tab.draw(explorable, number), cell)

    @explained
    def next_seed(number: float | None) -> int:
        return check_seed(-1 if number is None else number) + 1

    @explained
    def draw_grid(name: str | None, at: Point | None, first: str, second: str) -> Any:
        return gr.skip() if not name or at is None else grid_html(tab.open(name), at, first, second)

    def show(found: Looked) -> list[Any]:
        words = posterior_html(tab.open(found.run), found.image, found.found, found.words)
        return [found, words, gr.update(visible=True), gr.update(visible=True)]

    @explained
    def look_at_example(name: str, event: gr.SelectData) -> list[Any]:
        return show(tab.example(name, int(event.index)))

    @explained
    def look_at_upload(name: str, path: str | None) -> list[Any]:
        return show(tab.upload(name, path))

    @explained
    def look_at_exchanged(last: Looked | None) -> list[Any]:
        return show(tab.exchange(last))

    @explained
    def use_code(last: Looked | None, cell: Any) -> list[Any]:
        if last is None:
            raise ValueError("choose a test image or upload a picture first")
        return at_point(tab.open(last.run), last.found.point, cell)

    @explained
    def train_here(progress: gr.Progress = gr.Progress()) -> list[Any]:  # noqa: B008 (how Gradio is asked for it)
        if library.names(*EXPLORABLE):  # another visitor was faster, or somebody asked for it without the button
            return ["", *refresh(None)]
        progress(0, desc="Starting")
        folder = train_digits(
            library.place_for_new_run(), told=lambda done, of: progress((done, of), desc="Training", unit="epochs")
        )
        name = next((found.name for found in library.runs(*EXPLORABLE) if found.path == folder), None)
        return ["", *refresh(name)]

    quick: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last"}
    listed = [run, main, offer]
    asked = [run, point, across, down]
    Context.root_block.load(refresh, run, listed, show_progress="hidden")
    again.click(refresh, run, listed, show_progress="hidden")
    placed = [point, *controls.all, picture]
    shown_anew = [
        run.change(open_run, run, opened, show_progress="minimal", trigger_mode="always_last"),
        gr.on(controls.moved, move, [run, point, *controls.all], [picture, point, controls.cell], **quick),
        seed.submit(redraw, [run, seed, controls.cell], placed, **quick),
        anew.click(next_seed, seed, seed, **quick).success(redraw, [run, seed, controls.cell], placed, **quick),
        use.click(use_code, [looked, controls.cell], placed, **quick),
    ]
    # Not on the picture's own change: that comes before the other components have their new choices.
    for event in shown_anew:
        event.success(draw_grid, asked, grid, **quick)
    gr.on([across.input, down.input], draw_grid, asked, grid, **quick)
    controls.cell.input(pick, [run, point, controls.cell], controls.value, **quick)
    found = [looked, posterior, use, exchange]
    examples.select(look_at_example, run, found, show_progress="hidden")
    upload.upload(look_at_upload, [run, upload], found, show_progress="minimal")
    exchange.click(look_at_exchanged, looked, found, show_progress="hidden")
    train.click(train_here, None, [trained, *listed], show_progress_on=trained, concurrency_limit=1)
    writing_box(library)
