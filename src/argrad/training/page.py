"""A report page: one HTML file with everything inside, readable without a network, in light and dark."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["cards", "figure", "mosaic", "mosaic_png", "page", "section", "settings_table"]

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #62676d; --line: #dfe2e5; --paper: #fff; --card: #f6f7f8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7e9eb; --soft: #9aa0a6; --line: #35393d; --paper: #16181a; --card: #1f2225; }
  img.plot { filter: invert(0.92) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
       font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
p { margin: .25rem 0 .75rem; max-width: 46rem; } .soft, figcaption { color: var(--soft); font-size: .9rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.cards div { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .7rem .9rem; }
.cards b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
figure { margin: .5rem 0 1rem; } img { max-width: 100%; height: auto; }
img.mosaic { image-rendering: pixelated; border-radius: .25rem; }
table { border-collapse: collapse; font-size: .9rem; }
td { padding: .2rem 1.2rem .2rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
code, pre { font: .85rem/1.5 ui-monospace, monospace; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .7rem .9rem;
      overflow-x: auto; }
"""


def page(title: str, subtitle: str, sections: Sequence[str]) -> str:
    """The whole page from finished sections."""
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head>\n<body><h1>{html.escape(title)}</h1>"
        f'<p class="soft">{html.escape(subtitle)}</p>\n' + "\n".join(sections) + "\n</body></html>\n"
    )


def section(title: str, words: str, *parts: str) -> str:
    """A heading, a sentence that says what is to be seen, and parts such as figures."""
    return f"<section><h2>{html.escape(title)}</h2><p>{html.escape(words)}</p>{''.join(parts)}</section>"


def cards(numbers: Mapping[str, str]) -> str:
    """The few numbers that matter, large."""
    inside = "".join(f"<div><b>{html.escape(value)}</b>{html.escape(name)}</div>" for name, value in numbers.items())
    return f'<div class="cards">{inside}</div>'


def settings_table(settings: Mapping[str, Any]) -> str:
    """Names and values."""
    rows = "".join(
        f"<tr><td><code>{html.escape(name)}</code></td><td>{html.escape(str(value))}</td></tr>"
        for name, value in settings.items()
    )
    return f"<table>{rows}</table>"


def commands(lines: Sequence[str]) -> str:
    """What to type."""
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>"


def figure(drawing: Figure, caption: str) -> str:
    """A matplotlib figure; without a caption, its axes say what it shows to those who cannot see it."""
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=144, bbox_inches="tight")
    return _image(buffer.getvalue(), caption, "plot", drawing.get_figwidth() * 96, caption or in_words(drawing))


def in_words(drawing: Figure) -> str:
    """What is drawn: the title of each plot, its axes, and the names of its lines."""
    plots = []
    for axes in drawing.axes:
        title = next(filter(None, (axes.get_title(place) for place in ("left", "center", "right"))), "")
        across = " against ".join(filter(None, (axes.get_ylabel(), axes.get_xlabel())))
        names = ", ".join(map(str, axes.get_legend_handles_labels()[1]))
        plots.append(": ".join(filter(None, (title, across, names))))
    return "Plot. " + "; ".join(filter(None, plots))


def mosaic(images: np.ndarray[Any, Any], caption: str, columns: int) -> str:
    """Small images in a grid, filled row by row, as :func:`mosaic_png` takes them."""
    png, width = mosaic_png(images, columns=columns, zoom=max(1, round(56 / images.shape[-2])))
    return _image(png, caption, "mosaic", width, caption)


def mosaic_png(images: np.ndarray[Any, Any], *, columns: int, zoom: int = 1, gap: int = 4) -> tuple[bytes, int]:
    """Small images in a grid with transparent gaps; returns the PNG and its width.

    Args:
        images: in [0, 1], ``[N, H, W]`` grey or ``[N, 3, H, W]`` colour.
        columns: images per row.
        zoom: screen pixels per image pixel.
        gap: screen pixels between images.
    """
    from PIL import Image

    grey = images.ndim == 3
    pixels = np.clip(images[:, None].repeat(3, 1) if grey else images, 0, 1).transpose(0, 2, 3, 1)
    pixels = pixels.repeat(zoom, 1).repeat(zoom, 2)
    height, width = pixels.shape[1:3]
    rows = -(-len(pixels) // columns)
    canvas = np.zeros((rows * (height + gap) - gap, columns * (width + gap) - gap, 4), np.uint8)
    for number, image in enumerate(pixels):
        top, left = number // columns * (height + gap), number % columns * (width + gap)
        canvas[top : top + height, left : left + width, :3] = (image * 255).round()
        canvas[top : top + height, left : left + width, 3] = 255
    buffer = io.BytesIO()
    Image.fromarray(canvas).save(buffer, format="png")
    return buffer.getvalue(), canvas.shape[1]


def _image(png: bytes, caption: str, kind: str, width: float, alt: str) -> str:
    data = base64.b64encode(png).decode()
    words = html.escape(alt, quote=True)
    below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    source = f"data:image/png;base64,{data}"
    return f'<figure><img class="{kind}" width="{round(width)}" alt="{words}" src="{source}">{below}</figure>'
