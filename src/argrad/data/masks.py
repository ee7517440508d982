"""Masks for image completion: which pixels of an image are hidden.

A mask is True where a pixel is hidden and False where it is visible. All kinds are drawn for a whole batch at once,
hide at least one pixel and leave at least one:

- centre: the middle half of the height and of the width, the same for every image.
- rectangle: a rectangle of a quarter to three quarters of the height and of the width, anywhere.
- irregular: blobs without straight edges: the fifth to half of the pixels where smooth noise is highest.
- mixed: for every image one of the three, with equal probability.
"""

from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from argrad.data.errors import BrokenFile, UnknownData, WrongImages, WrongOption

MaskKind = Literal["centre", "rectangle", "irregular", "mixed"]

BLOB = 4
"""Pixels between two independent values of the noise that irregular masks come from."""
LEAST_SIDE = 4


def draw_masks(
    kind: MaskKind,
    number: int,
    size: tuple[int, int],
    *,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Masks for a batch of images.

    Args:
        kind: "centre", "rectangle", "irregular" or "mixed".
        number: of masks.
        size: height and width, 4 pixels each at least.
        generator: on the device; PyTorch's global one when None.
        device: of the masks.

    Returns:
        booleans ``[number, height, width]``, True where a pixel is hidden.

    Example:
        >>> draw_masks("centre", 1, (4, 4))[0].int()
        tensor([[0, 0, 0, 0],
                [0, 1, 1, 0],
                [0, 1, 1, 0],
                [0, 0, 0, 0]], dtype=torch.int32)
    """
    if kind not in get_args(MaskKind):
        raise WrongOption(f"there are no {kind!r} masks: choose one of {', '.join(get_args(MaskKind))}")
    if min(size) < LEAST_SIDE:
        raise WrongOption(
            f"masks need images of {LEAST_SIDE} x {LEAST_SIDE} pixels at least, got {size[0]} x {size[1]}"
        )
    device = device or torch.device("cpu")
    if kind == "centre":
        return centre(size, device).expand(number, *size).clone()
    if kind == "rectangle":
        return rectangles(number, size, generator, device)
    if kind == "irregular":
        return blobs(number, size, generator, device)
    three = torch.stack(
        [
            centre(size, device).expand(number, *size),
            rectangles(number, size, generator, device),
            blobs(number, size, generator, device),
        ]
    )
    which = torch.randint(3, (number,), generator=generator, device=device)
    return three[which, torch.arange(number, device=device)]


def centre(size: tuple[int, int], device: torch.device) -> Tensor:
    """The middle half of the height and of the width, ``[height, width]``."""
    inside = [(torch.arange(side, device=device) - (side - 1) / 2).abs() < side / 4 for side in size]
    return inside[0][:, None] & inside[1]


def rectangles(number: int, size: tuple[int, int], generator: torch.Generator | None, device: torch.device) -> Tensor:
    """A rectangle for every image, ``[number, height, width]``."""
    drawn = torch.rand((2, 2, number, 1), generator=generator, device=device)
    inside: list[Tensor] = []
    for side, (length, place) in zip(size, drawn, strict=True):
        long = (side * (0.25 + 0.5 * length)).round().clamp_min(1)
        start = ((side - long + 1) * place).floor()
        at = torch.arange(side, device=device)
        inside.append((at >= start) & (at < start + long))
    rows, columns = inside
    return rows[:, :, None] & columns[:, None, :]


def blobs(number: int, size: tuple[int, int], generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Where smooth noise is highest, ``[number, height, width]``."""
    coarse = (number, 1, size[0] // BLOB + 2, size[1] // BLOB + 2)
    noise = torch.randn(coarse, generator=generator, device=device)
    smooth = interpolate(noise, size=size, mode="bicubic", align_corners=True).flatten(1)
    share = 0.2 + 0.3 * torch.rand((number, 1), generator=generator, device=device)
    rank = smooth.argsort(1, descending=True).argsort(1)
    hidden: Tensor = rank < (share * smooth.shape[1]).ceil()
    return hidden.reshape(number, *size)


def read_mask(path: Path) -> NDArray[np.bool_]:
    """A mask from a picture, in which white hides (above half of full brightness), or from an .npy file.

    Args:
        path: a picture, or an array ``[height, width]`` of booleans or of numbers from 0 to 1.
    """
    from argrad.data.folder import SUFFIXES, read_picture

    if not path.exists():
        kinds = ", ".join(get_args(MaskKind)[:3])
        raise UnknownData(f"{str(path)!r} is no file: give a mask in which white hides, or one of the words {kinds}")
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        picture = read_picture(path, colour="grey")
        return np.asarray(picture > (127 if picture.dtype == np.uint8 else 0.5))
    if suffix != ".npy":
        raise WrongOption(f"{path} is no picture and no .npy file: give a mask in which white hides")
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BrokenFile(f"{path} cannot be read as an .npy file ({error}): save the mask with np.save") from error
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise WrongImages(f"{path} has shape {array.shape} and type {array.dtype}: a mask is one array [height, width]")
    return np.asarray(array > 0.5)
