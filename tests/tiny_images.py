"""Images small enough to train the paper's model on in a moment: noisy copies of three patterns."""

import torch
from torch import Tensor


def tiny_images(pixels: int = 12, train: int = 60, others: int = 20) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(3, pixels, generator=generator) < 0.5
    total = train + 2 * others
    which = torch.randint(3, (total,), generator=generator)
    flipped = torch.rand(total, pixels, generator=generator) < 0.05
    bits = (patterns[which] ^ flipped).to(torch.uint8)
    return bits[:train], bits[train : train + others], bits[train + others :]


def silent(line: str) -> None:
    """Progress that nobody watches."""
