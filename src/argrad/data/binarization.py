"""From grey values to bits: fixed rounding, or fresh random bits.

Rounding sets a bit where the value is above 0.5. A value of exactly 0.5 becomes 0, as `torch.round` has it; 8-bit
pixels never meet that case (127/255 is below, 128/255 above), the sixteenths of `digits` do.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from argrad.data.errors import WrongOption

Binarization = Literal["round", "stochastic", "none"]


def check_binarization(how: str) -> None:
    """Raise `WrongOption` unless `how` is one of the three words."""
    if how not in get_args(Binarization):
        raise WrongOption(f'binarize={how!r} is not known: choose "round", "stochastic" or "none"')


def binarize(
    x: Tensor,
    how: Binarization = "stochastic",
    generator: torch.Generator | None = None,
    *,
    full_scale: int | None = None,
) -> Tensor:
    """Turn grey values into bits (or, with "none", into plain floats).

    Args:
        x: values, any shape: floats in [0, 1], or uint8.
        how: "round": 1 where x > 0.5; "stochastic": 1 with probability x, drawn anew at every call; "none": x itself.
        generator: source of the random bits, on the device of x; PyTorch's global one when None.
        full_scale: the number in x that means 1.0; by default 255 for uint8 and 1 otherwise.

    Returns:
        float32, shape of x, in {0., 1.} (in [0, 1] with "none").

    Example:
        >>> binarize(torch.tensor([0.2, 0.5, 0.7]), "round")
        tensor([0., 0., 1.])
        >>> binarize(torch.tensor([0, 255], dtype=torch.uint8), "stochastic")
        tensor([0., 1.])
    """
    check_binarization(how)
    scale = full_scale if full_scale is not None else (255 if x.dtype == torch.uint8 else 1)
    if how == "round":
        return (x > scale / 2).to(torch.float32)
    values = x.to(torch.float32)
    if scale != 1:
        values = values / scale
    if how == "none":
        return values
    uniform = torch.rand(values.shape, generator=generator, device=values.device)
    return (uniform < values).to(torch.float32)
