"""Codes of a shared vocabulary that no cell of any image uses, and a way to bring them back.

A code that is nowhere the nearest gets next to no gradient, so it stays where it is. It is moved onto the vector that
the encoder gives some cell, drawn with a probability in proportion to the squared distance between that vector and the
code that serves the cell now: where the vocabulary is poorest, as k-means++ chooses its first centres. There it is the
nearest code at once, and finds its own cells from then on.

Reference: Arthur & Vassilvitskii, 2007, "k-means++: the advantages of careful seeding".
"""

from __future__ import annotations

import torch
from torch import Tensor

from argrad.models.tokenizer.module import TokenizerModule

__all__ = ["revive_codes"]

SQUARES = ("exp_avg_sq", "max_exp_avg_sq")
"""What torch's Adam calls its means of squared gradients."""


@torch.no_grad()
def revive_codes(
    module: TokenizerModule,
    usage: Tensor,
    x: Tensor,
    optimiser: torch.optim.Optimizer,
    generator: torch.Generator,
    *,
    threshold: float = 0.1,
) -> int:
    """Move dead codes to cells that are served badly; returns how many were revived.

    Args:
        module: its codebook is changed in place.
        usage: ``[K]``, how often each code is the most probable one; shares that add up to 1.
        x: images whose cells may get a code of their own.
        optimiser: Adam's memory of the changed rows is replaced.
        generator: of the choice of cells, on the device of the module.
        threshold: dead is below this share of an equal share; at most 1.
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold is a share of an equal share, 0 to 1, got {threshold}")
    codebook = module.decoder.codebook
    vectors = module.encoder(x).flatten(0, 1)
    served = torch.nn.functional.embedding(module.encode(x).flatten(), codebook)
    away = (vectors - served).square().sum(-1)
    unused = usage < threshold / module.codes
    dead = unused.nonzero().flatten()[: int((away > 0).sum())]
    if len(dead) == 0:
        return 0
    chosen = torch.multinomial(away, len(dead), generator=generator)
    codebook[dead] = vectors[chosen]
    for name, memory in optimiser.state.get(codebook, {}).items():
        if isinstance(memory, Tensor) and memory.shape == codebook.shape:
            memory[dead] = memory[~unused].mean(0) if name in SQUARES else 0.0
    return len(dead)
