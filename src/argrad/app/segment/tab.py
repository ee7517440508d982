"""The tab Segment: a scan in, outlines, volumes and files out; what `argrad segment apply` does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gradio as gr

from argrad.app.library import Library
from argrad.app.messages import explained
from argrad.app.scratch import Scratch
from argrad.app.segment.result import FILES, OUTLINES, VIEWS, Segmented, keep
from argrad.app.segment.upload import read_upload
from argrad.data.errors import DataError
from argrad.data.nifti import case_name, nibabel
from argrad.models.anatomy.page import DIRECTIONS

__all__ = ["segment_tab"]

WHAT_TO_DO = (
    "Drop a scan and press **Segment**: every structure that the model knows gets an outline, a volume, and files to "
    "take along. Not a medical device."
)
NO_RUN = """There is no segmentation model among the runs yet. Train one from label maps of one study and scans of
another, then reload this page:

```
argrad segment prior --labels study-a/labelsTr --run-folder runs/prior
argrad segment fit --scans study-b/imagesTr --prior runs/prior --run-folder runs/segmentation
```
"""
NO_PACKAGE = (
    "Reading scans needs the package nibabel. Install it, then start the app again: `pip install 'argrad[medical]'`"
)
DOWNLOADS = {"labels": "Label map (.nii.gz)", "volumes": "Volumes (.csv)", "page": "Page to look it over (.html)"}


def segment_tab(library: Library) -> None:
    """Put the tab's components into the page."""
    why_not = missing_package()
    if why_not is not None:
        gr.Markdown(why_not)
        return
    scratch = Scratch()
    names = library.names("segment")
    gr.Markdown(WHAT_TO_DO)
    missing = gr.Markdown(NO_RUN, visible=not names)
    with gr.Column(visible=bool(names)) as controls:
        with gr.Row():
            with gr.Column(min_width=280):
                run = gr.Dropdown(names, value=names[0] if names else None, label="Model")
            with gr.Column(min_width=280):
                scan = gr.File(label="Scan (.nii or .nii.gz)", height=140)
        start = gr.Button("Segment", variant="primary")
        status = gr.Markdown("", min_height=100)
    kept = gr.State(None, delete_callback=forget)
    with gr.Column(visible=False) as results:
        view = gr.Radio(list(VIEWS), value=OUTLINES, label="Show")
        sliders, pictures = [], []
        with gr.Row():
            for direction in DIRECTIONS:
                with gr.Column(min_width=280):
                    sliders.append(gr.Slider(1, 2, value=1, step=1, label=f"Slice, {direction}"))
                    pictures.append(gr.HTML(min_height=200))
        gr.Markdown("### Volumes")
        table = gr.HTML()
        with gr.Row():
            buttons = [gr.DownloadButton(words, min_width=200) for words in DOWNLOADS.values()]

    @explained
    def refresh() -> tuple[Any, ...]:
        found = library.names("segment")
        dropdown = gr.update(choices=found, value=found[0] if found else None)
        return gr.update(visible=not found), gr.update(visible=bool(found)), dropdown

    @explained
    def segment(
        name: str | None,
        path: str | None,
        before: Segmented | None,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 (this is how Gradio knows where it goes)
    ) -> tuple[Any, ...]:
        after = segmented(library, scratch, name, path, progress)
        forget(before)
        shown = [after.draw(axis, place, OUTLINES) for axis, place in enumerate(after.middle)]
        moved = [gr.update(maximum=side, value=place) for side, place in zip(after.shape, after.middle, strict=True)]
        files = [str(after.file(what)) for what in FILES]
        words = f"Found in **{md(after.name)}**, {' × '.join(map(str, after.shape))} voxels."
        return words, after, gr.update(visible=True), OUTLINES, *moved, *shown, after.table(), *files

    @explained
    def draw(after: Segmented | None, how: str, *places: int) -> list[str]:
        return [existing(after).draw(axis, int(place), how) for axis, place in enumerate(places)]

    root = gr.context.Context.root_block
    assert root is not None
    root.load(refresh, None, [missing, controls, run], show_progress="hidden", api_visibility="private")
    start.click(
        segment,
        [run, scan, kept],
        [status, kept, results, view, *sliders, *pictures, table, *buttons],
        show_progress_on=status,
        concurrency_limit=1,  # a large scan takes a lot of memory
        api_visibility="private",
    )
    view.input(draw, [kept, view, *sliders], pictures, show_progress="hidden", api_visibility="private")
    for axis, (slider, picture) in enumerate(zip(sliders, pictures, strict=True)):

        @explained
        def draw_one(after: Segmented | None, how: str, place: int, axis: int = axis) -> str:
            return existing(after).draw(axis, int(place), how)

        slider.input(
            draw_one,
            [kept, view, slider],
            picture,
            show_progress="hidden",
            trigger_mode="always_last",
            api_visibility="private",
        )


def missing_package() -> str | None:
    """What to tell where scans cannot be read, or None where they can."""
    try:
        nibabel()
    except DataError:
        return NO_PACKAGE
    return None


def segmented(
    library: Library, scratch: Scratch, name: str | None, path: str | None, progress: gr.Progress
) -> Segmented:
    """Read an uploaded scan, label it, and put what came of it into files."""
    from argrad.models.anatomy.files import label_scan
    from argrad.models.anatomy.run import load_model

    run = library.find(name, "segment")
    if path is None:
        raise ValueError("drop a scan first, a file that ends in .nii or .nii.gz")
    began = time.monotonic()
    progress(0.0, desc="Loading the model")
    model, labels, _ = library.load(run, load_model)
    folder = scratch.folder()
    try:
        progress(0.1, desc="Reading the scan")
        scan = read_upload(Path(path), len(labels), folder)
        progress(0.2, desc="Finding the shape, and labelling every voxel")
        labelled = label_scan(model, labels, scan)
        progress(0.7, desc="Writing the files")
        seconds = f"{time.monotonic() - began:.1f}"
        details = {"scan": Path(path).name, "run": run.name, "shape": scan.data.shape, "seconds": seconds}
        return keep(labelled, case_name(Path(path)), folder, details)
    except BaseException:
        Scratch.remove(folder)
        raise


def existing(after: Segmented | None) -> Segmented:
    """What was segmented; an error that can be shown where nothing was, or no longer is."""
    if after is None:
        raise ValueError("segment a scan first")
    return after


def forget(after: Segmented | None) -> None:
    """Remove the files of a scan that nobody looks at any more."""
    if after is not None:
        Scratch.remove(after.folder)


def md(words: str) -> str:
    """Words that are shown as they are inside Markdown."""
    return "".join(f"\\{sign}" if sign in "\\`*_{}[]()<>#+-.!|&~" else sign for sign in words)
