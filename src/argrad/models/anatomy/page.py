"""The quality page of one segmentation: slices with outlines, where the model was not sure, volumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from argrad.training.page import cards, mosaic, page, section, settings_table

__all__ = ["quality_page", "volumes_csv"]

SLICES = 6
PIXELS = 150
"""The longer side of one slice on the page."""
COLOURS = {
    "orange": (1.0, 0.45, 0.1),
    "blue": (0.2, 0.75, 1.0),
    "green": (0.4, 0.9, 0.3),
    "pink": (1.0, 0.3, 0.7),
    "yellow": (1.0, 0.9, 0.2),
    "violet": (0.7, 0.5, 1.0),
}
"""Of the outlines, label by label, then again from the first."""
DIRECTIONS = ("left to right", "back to front", "bottom to top")


def volumes_csv(names: Mapping[int, str], labels: NDArray[Any], probabilities: NDArray[Any], voxel: float) -> str:
    """One line for each structure: id, name, voxels, millilitres, and the expected volume under the posterior.

    Args:
        names: by label id, in the order of the probabilities; background, the first, is left out.
        labels: ids ``[X, Y, Z]``.
        probabilities: ``[labels, X, Y, Z]``.
        voxel: its volume in cubic millimetres.
    """
    lines = ["id,name,voxels,volume_ml,expected_volume_ml"]
    for index, (number, name) in enumerate(names.items()):
        if index:
            count = int((labels == number).sum())
            expected = float(probabilities[index].sum(dtype=np.float64))
            quoted = '"' + name.replace('"', '""') + '"' if any(mark in name for mark in ',"\n') else name
            lines.append(f"{number},{quoted},{count},{count * voxel / 1000:.4f},{expected * voxel / 1000:.4f}")
    return "\n".join(lines) + "\n"


def quality_page(
    title: str,
    scan: NDArray[Any],
    labels: NDArray[Any],
    probabilities: NDArray[Any],
    names: Mapping[int, str],
    voxel_sizes: tuple[float, ...],
    voxel_volume: float,
    details: Mapping[str, Any],
) -> str:
    """One HTML page to look over a segmentation.

    Args:
        title: of the page.
        scan: intensities ``[X, Y, Z]``, canonical.
        labels: numbers from 0, ``[X, Y, Z]``.
        probabilities: ``[labels, X, Y, Z]``.
        names: of the labels by id, in their order.
        voxel_sizes: in millimetres.
        voxel_volume: in cubic millimetres; with a sheared affine it is less than the product of the sizes.
        details: what else to list.
    """
    entropy = uncertainty(probabilities)
    found = labels > 0
    millilitres = voxel_volume / 1000
    numbers = {
        name: f"{(labels == index).sum() * millilitres:.2f} ml" for index, name in enumerate(names.values()) if index
    }
    certain = float(entropy[found].mean()) if found.any() else 0.0
    shown = dict(list(numbers.items())[:8])
    parts = [cards({**shown, "mean uncertainty inside": f"{certain:.0%}"})]
    if not found.any():
        parts.append(section("Nothing was found", "No voxel has a label other than background: look at the scan."))
    legend = legend_of(list(names.values())[1:])
    for axis, direction in enumerate(DIRECTIONS):
        pictures = draw_slices(scan, labels, entropy, axis, voxel_sizes)
        parts.append(
            section(
                f"Slices, {direction}",
                f"Above the scan with outlines ({legend}), below where the model was not sure: bright.",
                mosaic(pictures, f"{SLICES} slices through the structures", SLICES),
            )
        )
    parts.append(section("Details", "How this was made.", settings_table(details)))
    return page(title, "Segmentation with an anatomical prior. Not a medical device.", parts)


def legend_of(structures: Sequence[str]) -> str:
    """Which colour is whose outline.

    >>> legend_of(["anterior", "posterior"])
    'orange: anterior; blue: posterior'
    """
    of_colour = {colour: structures[number :: len(COLOURS)] for number, colour in enumerate(COLOURS)}
    return "; ".join(f"{colour}: {', '.join(names)}" for colour, names in of_colour.items() if names)


def uncertainty(probabilities: NDArray[Any]) -> NDArray[Any]:
    """The entropy of the posterior ``[labels, ...]`` at every voxel, 1 where all labels are equally likely."""
    entropy = -(probabilities * np.log(np.maximum(probabilities, 1e-12))).sum(0)
    share: NDArray[Any] = entropy / np.log(len(probabilities))
    return share


def grey_values(scan: NDArray[Any]) -> NDArray[Any]:
    """Intensities from 0 to 1, the darkest and the brightest hundredth cut off."""
    darkest, brightest = np.quantile(scan, (0.01, 0.99))
    grey: NDArray[Any] = ((scan - darkest) / max(brightest - darkest, 1e-12)).clip(0, 1)
    return grey


def draw_slices(
    scan: NDArray[Any], labels: NDArray[Any], entropy: NDArray[Any], axis: int, voxel_sizes: tuple[float, ...]
) -> NDArray[np.float32]:
    """Slices across one axis as colour pictures ``[2 SLICES, 3, H, W]``: the scan with outlines, then uncertainty."""
    places = np.flatnonzero((labels > 0).any(tuple(other for other in range(3) if other != axis)))
    low, high = (places[0], places[-1]) if len(places) else (0, labels.shape[axis] - 1)
    grey = grey_values(scan)
    sizes = [size for other, size in enumerate(voxel_sizes) if other != axis]
    above, below = [], []
    for place in np.linspace(low, high, SLICES + 2)[1:-1].round().astype(int):
        image, map_, unsure = (enlarge(volume.take(place, axis), sizes, PIXELS) for volume in (grey, labels, entropy))
        above.append(with_outlines(image, map_))
        below.append(glow(unsure))
    return np.stack(above + below).astype(np.float32)


def with_outlines(image: NDArray[Any], map_: NDArray[Any]) -> NDArray[Any]:
    """A grey slice ``[H, W]`` in colour, ``[3, H, W]``, with the outline of every label of its map."""
    picture = np.repeat(image[None], 3, 0)
    edge = outline(map_)
    colours = np.array(list(COLOURS.values()))
    for channel in range(3):
        picture[channel][edge] = colours[(map_[edge] - 1) % len(colours), channel]
    return picture


def glow(unsure: NDArray[Any]) -> NDArray[Any]:
    """Uncertainty ``[H, W]`` as a picture ``[3, H, W]``: black where it is 0, then red, then white."""
    return np.stack([unsure.clip(0, 1) ** power for power in (0.6, 1.2, 2.0)])


def enlarge(image: NDArray[Any], sizes: Sequence[float], pixels: int) -> NDArray[Any]:
    """A slice with square pixels, the second axis upwards, so many high or wide; the nearest voxel is taken."""
    extents = [count * size for count, size in zip(image.shape, sizes, strict=True)]
    scale = pixels / max(extents)
    rows, columns = (
        ((np.arange(max(1, round(extent * scale))) + 0.5) / (extent * scale) * count).astype(int).clip(0, count - 1)
        for extent, count in zip(extents, image.shape, strict=True)
    )
    turned: NDArray[Any] = image[np.ix_(rows, columns)].T[::-1]
    return turned


def outline(map_: NDArray[Any]) -> NDArray[np.bool_]:
    """The pixels of labels that lie beside another label."""
    padded = np.pad(map_, 1, mode="edge")
    beside = [padded[2:, 1:-1], padded[:-2, 1:-1], padded[1:-1, 2:], padded[1:-1, :-2]]
    edge: NDArray[np.bool_] = (map_ > 0) & np.any([map_ != other for other in beside], 0)
    return edge
