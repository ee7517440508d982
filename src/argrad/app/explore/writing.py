"""A box for models that write: so many lines, drawn from a seed."""

from __future__ import annotations

from typing import Any

import gradio as gr
import torch
from gradio.context import Context

from argrad.app.library import Library
from argrad.app.messages import explained
from argrad.models.sequence_gan.run import load_sequence_gan

__all__ = ["write_lines", "writing_box"]

MOST_LINES = 40


def write_lines(library: Library, name: str | None, number: float, seed: float | None) -> list[str]:
    """Lines that a model writes.

    Args:
        library: of runs.
        name: of a run of the kind "write".
        number: how many lines.
        seed: of the draws.
    """
    module, vocabulary, _ = library.load(library.find(name, "write"), load_sequence_gan)
    if not 1 <= number <= MOST_LINES or seed is None or not 0 <= seed < 2**31:
        raise ValueError(f"give 1 to {MOST_LINES} lines and a seed from 0 to {2**31 - 1}, got {number:g} and {seed}")
    drawn = module.writer.sample(int(number), generator=torch.Generator().manual_seed(int(seed)))
    return vocabulary.decode(drawn)


def writing_box(library: Library) -> None:
    """Put the box into the page; it is to be seen where there is a run that writes."""
    with gr.Column(visible=False) as box:
        gr.Markdown("### Models that write\nChoose one and let it write some lines.")
        with gr.Row():
            run = gr.Dropdown([], value=None, label="Run that writes")
            number = gr.Slider(1, MOST_LINES, value=8, step=1, label="Lines")
            seed = gr.Number(0, label="Seed of the lines", precision=0, minimum=0)
        write = gr.Button("Write")
        lines = gr.Textbox(label="What it writes", lines=8, interactive=False)

    @explained
    def refresh(chosen: str | None) -> list[Any]:
        names = library.names("write")
        kept = chosen if chosen in names else (names[0] if names else None)
        return [gr.update(choices=names, value=kept), gr.update(visible=bool(names))]

    @explained
    def write_now(name: str | None, count: float, start: float | None) -> str:
        return "\n".join(write_lines(library, name, count, start))

    Context.root_block.load(refresh, run, [run, box], show_progress="hidden")
    write.click(write_now, [run, number, seed], lines)
