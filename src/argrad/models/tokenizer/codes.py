"""Where the codes of a shared vocabulary start, and where those go that no cell of any image uses.

**Placed.** While a decoder does not know yet what to make of codes, a draw of them is noise to it, and training soon
says the same code everywhere. So it begins without codes: the decoder reads the vectors of the encoder as they are
(:meth:`TokenizerModule.continuous_losses`). Then the codes are placed among the vectors as k-means++ chooses its first
centres, one after the other, each onto the vector of a cell that is drawn with a probability in proportion to the
squared distance from the codes that are there already.

**Revived.** A code that is nowhere the nearest gets next to no gradient, so it stays where it is. It is moved onto the
vector of a cell, drawn in proportion to the squared distance from the code that serves the cell now: where the
vocabulary is poorest. There it is the nearest code at once, and finds its own cells from then on.

References: Arthur & Vassilvitskii, 2007, "k-means++: the advantages of careful seeding"; Łańcucki et al., 2020, "Robust
training of vector quantized bottleneck models" (codes placed among vectors that have been learnt).
"""

from __future__ import annotations

import torch
from torch import Tensor

from argrad.models.tokenizer.module import TokenizerModule

__all__ = ["place_codes", "revive_codes", "spread_among"]

SHARPNESS = 4.0
"""The precision of placed codes, times the mean squared distance of a vector from the nearest."""
MOST_CELLS = 2**15
"""Cells that codes are placed among, at most."""

SQUARES = ("exp_avg_sq", "max_exp_avg_sq")
"""What torch's Adam calls its means of squared gradients."""


@torch.no_grad()
def place_codes(module: TokenizerModule, x: Tensor, generator: torch.Generator) -> None:
    """Put all codes among the vectors that the encoder gives the cells of images, and let the precision suit them.

    Args:
        module: its codebook and precision are changed in place.
        x: images.
        generator: of the choice of cells, on the device of the module.
    """
    codes, away = spread_among(module.encoder(x).flatten(0, 1), module.codes, generator)
    module.decoder.codebook.copy_(codes)
    fitting = (SHARPNESS / away.mean()).log()
    module.log_precision.copy_(torch.where(fitting.isfinite(), fitting, module.log_precision))


def spread_among(vectors: Tensor, number: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Some of the vectors ``[N, dimension]``, spread as k-means++ does, and squared distances from the nearest of them.

    Where there are fewer different vectors than are wanted, some come twice.
    """
    order = torch.randperm(len(vectors), generator=generator, device=vectors.device)
    vectors = vectors[order[:MOST_CELLS]]
    chosen, away = [vectors[0]], (vectors - vectors[0]).square().sum(-1)
    if not away.isfinite().all():
        raise ValueError("the encoder's vectors are no numbers, or too large; lower the learning rate")
    while len(chosen) < number:
        chosen.append(vectors[torch.multinomial(away.clamp_min(1e-12), 1, generator=generator)[0]])
        away = torch.minimum(away, (vectors - chosen[-1]).square().sum(-1))
    return torch.stack(chosen), away


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
