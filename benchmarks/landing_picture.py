"""Draw the picture of the documentation's first page: fifty labelled digits, and what a model made of them.

python benchmarks/landing_picture.py     # about half a minute on one core; writes docs/images/fifty-labels.png

The model is SemiSupervisedVAE as it comes, the labels and the seed are the first ones, and the accuracy is that on the
180 test images, which nothing is chosen on. The samples are drawn, not selected.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from argrad import SemiSupervisedVAE
from argrad.data import load
from argrad.data.labels import hide_labels
from argrad.experiments.drawing import INK, new_figure

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "fifty-labels.png"
SAMPLES = 14
GAP = 2
"""Pixels between two images."""


def wall(images: NDArray[Any]) -> NDArray[Any]:
    """Images [rows, columns, height, width] side by side, white gaps between them."""
    rows, columns, height, width = images.shape
    canvas = np.full((rows * (height + GAP) - GAP, columns * (width + GAP) - GAP), np.nan)
    for row in range(rows):
        for column in range(columns):
            top, left = row * (height + GAP), column * (width + GAP)
            canvas[top : top + height, left : left + width] = images[row, column]
    return canvas


def main() -> int:
    """Train, measure, draw."""
    digits = load("digits", binarize="none")
    assert digits.train_labels is not None
    assert digits.test_labels is not None
    images = digits.train.numpy()
    labels = hide_labels(digits.train_labels, 50, seed=0).numpy()

    model = SemiSupervisedVAE(random_state=0).fit(images, labels)
    accuracy = model.score(digits.test.numpy(), digits.test_labels.numpy())
    known = np.stack([images[labels == digit] for digit in range(10)])
    drawn = np.stack([model.sample(SAMPLES, label=digit)[0] for digit in range(10)])

    figure = new_figure(8.4, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=[known.shape[1], SAMPLES])
    for axes, shown, title in (
        (left, known, f"in: 50 labels\nand {np.sum(labels < 0):,} images without"),
        (right, drawn, f"out: new digits of each class, and a classifier:\n{accuracy:.1%} of 180 test images right"),
    ):
        axes.imshow(wall(shown), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(title, fontsize=11, color=INK, loc="left")
        axes.axis("off")
    figure.savefig(PICTURE, dpi=110)
    print(f"{PICTURE}: accuracy {accuracy:.4f}, {PICTURE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
