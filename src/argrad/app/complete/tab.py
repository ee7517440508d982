"""The tab Complete: a picture, a hole in it, and several ways to fill it; what `argrad complete` does."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
from torch import Tensor

from argrad.app.complete.picture import Completer, drawn_mask, load_completer, painted_mask, read_upload
from argrad.app.complete.result import MOST_COMPLETIONS, complete, show_hole
from argrad.app.complete.training import train_on_digits
from argrad.app.library import Library
from argrad.app.messages import explained
from argrad.app.scratch import Scratch
from argrad.models.completion.report import as_pictures

__all__ = ["complete_tab"]

WHAT_TO_DO = (
    "Choose a picture, hide a part of it, and press **Complete**: the model fills the hole in several different ways."
)
NO_RUN = """There is no completion model among the runs yet. Train one, then reload this page, for example:

```
argrad complete train --data fashion-mnist --run-folder runs/clothes
argrad complete train --data olivetti --mirror --run-folder runs/faces
```

Or train a small one here and now, on the digits that come with scikit-learn:
"""
SAMPLE, OWN = "A test picture of the run's data", "My own picture"
PAINTED = "painted"
HOLES = {"Centre": "centre", "Rectangle": "rectangle", "Irregular": "irregular", "I paint it": PAINTED}
SEEDED = ("rectangle", "irregular")
LARGEST_SEED = 2**31 - 1
CANVAS = 448
"""Pixels of the longer side of the picture that is painted on."""


def complete_tab(library: Library) -> None:
    """Put the tab's components into the page."""
    scratch = Scratch()
    names = library.names("complete")
    gr.Markdown(WHAT_TO_DO)
    with gr.Column(visible=not names) as missing:
        gr.Markdown(NO_RUN)
        train = gr.Button("Train on digits (half a minute)", variant="primary")
        training = gr.Markdown("", min_height=120)
    with gr.Column(visible=bool(names)) as controls:
        with gr.Row():
            with gr.Column(min_width=280):
                run = gr.Dropdown(names, value=names[0] if names else None, label="Model")
                source = gr.Radio([SAMPLE, OWN], value=SAMPLE, label="Picture")
                sample = gr.Slider(1, 100, value=1, step=1, label="Which test picture")
                upload = gr.File(label="Picture (PNG, JPEG, …)", height=140, visible=False)
            with gr.Column(min_width=280):
                hole = gr.Radio(list(HOLES.items()), value="centre", label="What is hidden")
                hole_seed = gr.Number(0, label="Seed of the hole", precision=0, visible=False)
                editor = gr.ImageEditor(
                    label="Paint over what shall be completed",
                    type="numpy",
                    image_mode="RGBA",
                    sources=(),
                    transforms=(),
                    layers=False,
                    brush=gr.Brush(default_size=48, colors=["#e0245e"], default_color="#e0245e", color_mode="fixed"),
                    eraser=gr.Eraser(default_size=48),
                    buttons=[],
                    canvas_size=(CANVAS, CANVAS),
                    format="png",
                    visible=False,
                )
                before = gr.HTML(min_height=160)
        with gr.Row():
            number = gr.Slider(1, MOST_COMPLETIONS, value=8, step=1, label="How many completions", min_width=280)
            seed = gr.Number(0, label="Seed of the completions", precision=0, min_width=280)
        start = gr.Button("Complete", variant="primary")
    with gr.Column(visible=False) as results:
        summary = gr.Markdown()
        after = gr.HTML(min_height=160)
        with gr.Row():
            picture_file = gr.DownloadButton("All completions (.png)", min_width=200)
            numbers_file = gr.DownloadButton("Numbers (.npz)", min_width=200)

    listings = gr.State(0)
    chosen = [run, source, sample, upload, hole, hole_seed]
    shown = [sample, upload, hole_seed, editor, before, results]

    @explained
    def refresh(times: int) -> tuple[Any, ...]:
        found = library.names("complete")
        dropdown = gr.update(choices=found, value=found[0] if found else None)
        return gr.update(visible=not found), gr.update(visible=bool(found)), dropdown, times + 1

    @explained
    def show(
        name: str | None, where: str, which: float, path: str | None, kind: str, drawn_from: float | None
    ) -> tuple[Any, ...]:
        """Show the picture and its hole. Where there is none yet, say so in its place: nothing was asked for."""
        sampled, painted = where == SAMPLE, kind == PAINTED
        controls_now = (gr.update(visible=sampled), gr.update(visible=not sampled), gr.update(visible=kind in SEEDED))
        canvas, words = gr.update(visible=False), ""
        try:
            completer = find(library, name)
            x, note = find_picture(completer, where, which, path)
            if painted:
                canvas = gr.update(visible=True, value={"background": enlarged(x), "layers": [], "composite": None})
            else:
                words = show_hole(x, drawn_mask(kind, completer.size, whole(drawn_from)))  # type: ignore[arg-type]
            words += note
            if sampled and completer.samples is not None:
                controls_now = (gr.update(visible=True, maximum=len(completer.samples)), *controls_now[1:])
        except ValueError as error:
            words = f"<p>{html.escape(str(error)[:1].upper() + str(error)[1:])}.</p>"
        return *controls_now, canvas, gr.update(value=words, visible=bool(words)), gr.update(visible=False)

    @explained
    def fill(
        name: str | None,
        where: str,
        which: float,
        path: str | None,
        kind: str,
        drawn_from: float | None,
        painting: dict[str, Any] | None,
        several: float,
        drawn_with: float | None,
    ) -> tuple[Any, ...]:
        completer = find(library, name)
        x, _ = find_picture(completer, where, which, path)
        if kind == PAINTED:
            mask = painted_mask((painting or {}).get("layers") or [], completer.size)
        else:
            mask = drawn_mask(kind, completer.size, whole(drawn_from))  # type: ignore[arg-type]
        found = complete(completer.module, x, mask, int(several), whole(drawn_with))
        files = map(str, found.write(scratch.folder()))
        seen = gr.update(value=show_hole(x, mask), visible=True) if kind == PAINTED else gr.update()
        return seen, gr.update(visible=True), found.summary(), found.show(), *files

    @explained
    def learn(progress: gr.Progress = gr.Progress()) -> str:  # noqa: B008 (this is how Gradio knows where it goes)
        if not library.names("complete"):  # another visitor may have been faster
            train_on_digits(library, lambda share, words: progress(share, desc=words))
        return ""

    root = gr.context.Context.root_block
    assert root is not None
    found = [missing, controls, run, listings]
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    root.load(refresh, listings, found, **quiet)
    train.click(learn, None, training, concurrency_limit=1, api_visibility="private").success(
        refresh, listings, found, **quiet
    )
    # One event for all of them: of two, the answer to what was asked first may come last, and stay.
    asked = [run.input, source.input, sample.input, upload.upload, upload.clear, hole.input, hole_seed.input]
    gr.on(
        [listings.change, *asked],
        show,
        chosen,
        shown,
        trigger_mode="always_last",
        **quiet,
    )
    start.click(
        fill,
        [*chosen, editor, number, seed],
        [before, results, summary, after, picture_file, numbers_file],
        show_progress_on=after,
        api_visibility="private",
    )


def find(library: Library, name: str | None) -> Completer:
    """The model of a run, loaded once for all visitors."""
    return library.load(library.find(name, "complete"), load_completer)


def find_picture(completer: Completer, where: str, which: float, path: str | None) -> tuple[Tensor, str]:
    """The picture that is chosen, ``[*shape]``, and a note about it as HTML."""
    if where == SAMPLE:
        return completer.sample(int(which)), ""
    if path is None:
        raise ValueError("upload a picture first, such as a PNG or JPEG file")
    x, changed = read_upload(Path(path), completer.module.shape)
    height, width = completer.size
    note = f"<p>Cut to its middle and made {width} × {height} pixels, which is what this model completes.</p>"
    return x, note if changed else ""


def whole(seed: float | None) -> int:
    """A seed from a field that may be empty."""
    if seed is None or not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"a seed is a whole number from 0 to {LARGEST_SEED:,}; give one")
    return int(seed)


def enlarged(x: Tensor) -> np.ndarray[Any, Any]:
    """A picture ``[*shape]`` large enough to paint on, ``[height, width, 3]``."""
    picture = (255 * as_pictures(x.unsqueeze(0))[0]).round().astype(np.uint8)
    colours = np.stack([picture] * 3, -1) if picture.ndim == 2 else picture.transpose(1, 2, 0)
    zoom = max(1, CANVAS // max(colours.shape[:2]))
    return colours.repeat(zoom, 0).repeat(zoom, 1)
