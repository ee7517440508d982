"""Omniglot: 32,460 drawings of 1,623 characters, reduced from 105x105 to 28x28.

The two archives are the two splits of the authors. The *evaluation* alphabets are the test set; of the 19,280
*background* drawings a tenth (1,928), drawn by seed without regard to character or drawer, is for validation.

Drawings are black on white and 1-bit; here ink is 1. They are resized with Pillow's bilinear filter, which on
reduction averages with a triangle as wide as the scale: the amount of ink stays the same (8.05 % of the pixels before,
8.02 % after rounding at 0.5, where a box filter leaves 7.37 %) and strokes stay connected.

These are not the 28x28 images of Burda et al., on which published log-likelihoods are measured: see `omniglot_28`.
"""

import io
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from argrad.data.errors import BrokenFile
from argrad.data.parts import Part, Raw

SIDE = 28
DRAWING = re.compile(r"images_(?:background|evaluation)/[^/]+/character\d+/(\d{4})_\d\d\.png")
"""Path of a drawing in the archives: alphabet, character, and a file name of character number and drawer."""


def read_omniglot(files: Mapping[str, Path]) -> Raw:
    """Read both archives.

    Labels are the authors' character numbers less one: 0 .. 963 in training and validation, 964 .. 1622 in test.

    Args:
        files: paths by catalogue name, `images_background.zip` and `images_evaluation.zip`.
    """
    rest, test = (read_archive(files[f"images_{part}.zip"]) for part in ("background", "evaluation"))
    return Raw(rest, test, held_out=len(rest) // 10, full_scale=255)


def read_archive(path: Path) -> Part:
    """Read the drawings of one zip file in the order of their paths."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(name for name in archive.namelist() if DRAWING.fullmatch(name))
            if not names:
                raise BrokenFile(f"{path} holds no Omniglot drawing (images_*/alphabet/character/*.png): get it again")
            pixels = np.empty((len(names), SIDE, SIDE), np.uint8)
            for row, name in enumerate(names):
                pixels[row] = read_drawing(archive.read(name))
    except (OSError, SyntaxError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise BrokenFile(f"{path} cannot be read as an archive of drawings ({error}): get it again") from error
    return Part(pixels, np.array([int(name[-11:-7]) - 1 for name in names], np.int64))


def read_drawing(png: bytes) -> NDArray[np.uint8]:
    """Decode one drawing, reduce it to 28x28 and turn it so that ink is 255."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        small = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return 255 - np.asarray(small)
