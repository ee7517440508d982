"""A scan that was labelled for a visitor: kept in files, of which slices are drawn as they are asked for."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from argrad.app.picture_tags import picture_tag
from argrad.app.scratch import Scratch
from argrad.models.anatomy.files import LabelledScan
from argrad.models.anatomy.page import COLOURS, DIRECTIONS, enlarge, glow, grey_values, uncertainty, with_outlines
from argrad.training.page import mosaic_png

__all__ = ["FILES", "VIEWS", "Segmented", "Structure", "keep"]

PIXELS = 384
"""The longer side of a slice."""
OUTLINES, UNSURE, ALONE = "Outlines", "Uncertainty", "Scan alone"
VIEWS = (OUTLINES, UNSURE, ALONE)
FILES = {"labels": "-labels.nii.gz", "volumes": "-volumes.csv", "page": "-segmentation.html"}
"""What can be taken along, and what is put behind the name of the scan."""
SIDES = (("back", "front"), ("left", "right"), ("left", "right"))
"""What lies to the left and the right of the pictures in the three directions."""
ROW = 'style="border:0"'
"""Gradio draws a frame around every row of a table."""


@final
@dataclass(frozen=True)
class Structure:
    """What was found of one structure."""

    name: str
    colour: str
    voxels: int
    millilitres: float
    expected: float
    """Millilitres under the posterior: every voxel counts by its probability."""


@final
@dataclass(frozen=True)
class Segmented:
    """A labelled scan; all that is large about it is in its folder."""

    folder: Path
    name: str
    shape: tuple[int, ...]
    voxel_sizes: tuple[float, ...]
    structures: tuple[Structure, ...]
    middle: tuple[int, ...]
    """The slices in the middle of what was found."""
    unsure: float
    """The mean uncertainty where something was found, from 0 to 1."""

    def file(self, what: str) -> Path:
        """Where a file to take along is."""
        return self.folder / f"{self.name}{FILES[what]}"

    def draw(self, axis: int, place: int, view: str) -> str:
        """One slice as HTML.

        Args:
            axis: which direction.
            place: the slice, from 1.
            view: one of VIEWS.
        """
        Scratch.used(self.folder)
        if not 1 <= place <= self.shape[axis] or view not in VIEWS:
            raise ValueError(f"there is no slice {place} of {self.shape[axis]}, or no view {view!r}; choose another")
        sizes = [size for other, size in enumerate(self.voxel_sizes) if other != axis]

        def slice_of(what: str) -> NDArray[Any]:
            volume = np.load(self.folder / f"{what}.npy", mmap_mode="r")
            return enlarge(np.asarray(volume.take(place - 1, axis)), sizes, PIXELS)

        map_ = slice_of("indices")
        if view == UNSURE:
            picture = glow(slice_of("unsure") / 255)
        else:
            picture = with_outlines(slice_of("grey") / 255, map_ if view == OUTLINES else 0 * map_)
        png, _ = mosaic_png(picture[None], columns=1)
        seen = [structure.name for number, structure in enumerate(self.structures, 1) if (map_ == number).any()]
        shows = {OUTLINES: "the scan with outlines", UNSURE: "where the model was not sure", ALONE: "the scan"}[view]
        left, right = SIDES[axis]
        words = (
            f"Slice {place} of {self.shape[axis]}, {DIRECTIONS[axis]}: {shows}. In it: {', '.join(seen) or 'nothing'}"
        )
        caption = f"{left} is on the left, {right} on the right{'; bright: not sure' if view == UNSURE else ''}"
        return picture_tag(png, words, caption=caption)

    def table(self) -> str:
        """Volumes as an HTML table."""
        rows = "".join(
            f"<tr {ROW}>"
            + cell(f'<span style="color:{css(one.colour)}">■</span> {html.escape(one.name)}', "th")
            + "".join(map(cell, (one.colour, f"{one.voxels:,}", f"{one.millilitres:.3f}", f"{one.expected:.3f}")))
            + "</tr>"
            for one in self.structures
        )
        heads = ("structure", "outline", "voxels", "volume, ml", "expected volume, ml")
        head = "".join(cell(word, "th") for word in heads)
        nothing = "" if any(one.voxels for one in self.structures) else "<p><b>Nothing was found.</b></p>"
        return (
            f'{nothing}<div style="overflow-x:auto" tabindex="0" role="region" aria-label="Volumes">'
            f'<table style="border:0;border-collapse:collapse"><tr {ROW}>{head}</tr>{rows}</table></div>'
            "<p>The expected volume counts every voxel by its probability. "
            f"Mean uncertainty inside the structures: {self.unsure:.0%}.</p>"
        )


def cell(inside: str, kind: str = "td") -> str:
    """One cell of a table, from finished HTML."""
    style = "border:0;border-bottom:1px solid var(--border-color-primary);padding:.3rem 1.5rem .3rem 0"
    return f'<{kind} style="{style};text-align:left;white-space:nowrap">{inside}</{kind}>'


def css(colour: str) -> str:
    """A colour of the outlines as CSS has it."""
    return "rgb({} {} {})".format(*(round(255 * part) for part in COLOURS[colour]))


def keep(labelled: LabelledScan, name: str, folder: Path, details: dict[str, Any]) -> Segmented:
    """Put a labelled scan into files: what pictures are drawn from, and what can be taken along.

    Args:
        labelled: the scan.
        name: what its case is called, without the ending.
        folder: to put the files into.
        details: how it was made, for the page.
    """
    indices, entropy = labelled.indices, uncertainty(labelled.probabilities)
    found = indices > 0
    for what, volume in {
        "indices": indices.astype(np.uint8 if len(labelled.table) <= 256 else np.uint16),
        "grey": (255 * grey_values(labelled.scan.data)).round().astype(np.uint8),
        "unsure": (255 * entropy.clip(0, 1)).round().astype(np.uint8),
    }.items():
        np.save(folder / f"{what}.npy", volume)
    counts = np.bincount(indices.ravel(), minlength=len(labelled.table))
    voxel, colours = labelled.scan.voxel_volume / 1000, list(COLOURS)
    structures = tuple(
        Structure(
            label,
            colours[number % len(colours)],
            int(counts[number + 1]),
            int(counts[number + 1]) * voxel,
            float(labelled.probabilities[number + 1].sum(dtype=np.float64)) * voxel,
        )
        for number, label in enumerate(labelled.table.names[1:])
    )
    middle = tuple(centre_of(found, axis) for axis in range(3))
    unsure = float(entropy[found].mean()) if found.any() else 0.0
    kept = Segmented(folder, name, indices.shape, labelled.scan.voxel_sizes, structures, middle, unsure)
    kept.file("labels").write_bytes(labelled.label_map(kept.file("labels")))
    kept.file("volumes").write_text(labelled.volumes(), encoding="utf-8")
    kept.file("page").write_text(labelled.page(name, details), encoding="utf-8")
    return kept


def centre_of(found: NDArray[np.bool_], axis: int) -> int:
    """The slice, from 1, halfway through what was found; that of the volume where nothing was."""
    places = np.flatnonzero(found.any(tuple(other for other in range(3) if other != axis)))
    low, high = (places[0], places[-1]) if len(places) else (0, found.shape[axis] - 1)
    return int(low + high) // 2 + 1
