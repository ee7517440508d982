"""Where the codes of a shared vocabulary start, and where those go that no cell of any image uses.

**Placed.** While a decoder does not know yet what to make of codes, a draw of them is noise to it, and training soon
says the same code everywhere. So it begins without codes: the decoder reads the vectors of the encoder as they are
(:meth:`TokenizerModule.continuous_losses`). Then the codes are placed among the vectors as k-means++ chooses its first
centres, one after the other (of more than 512 a few at a time), each onto the vector of a cell that is drawn with a
probability in proportion to the squared distance from the codes that are there already.

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

__all__ = ["enough_cells", "place_codes", "revive_codes", "spread_among"]

SHARPNESS = 4.0
"""The precision of placed codes, times the mean squared distance of a vector from the nearest, or times half of that of
a code from the next where that is more."""
ROUNDS = 512
"""In which codes are placed, one a round; of larger vocabularies several at a time."""
SQUARES = ("exp_avg_sq", "max_exp_avg_sq")
"""What torch's Adam calls its means of squared gradients."""


def enough_cells(codes: int) -> int:
    """Among how many cells so many codes are placed, if there are as many."""
    return max(2**15, 4 * codes)


@torch.no_grad()
def place_codes(module: TokenizerModule, vectors: Tensor, generator: torch.Generator) -> None:
    """Put all codes among vectors that the encoder gives cells, and let the precision suit their distances.

    Args:
        module: its codebook and precision are changed in place.
        vectors: ``[N, dimension]``.
        generator: of the choice of cells, on the device of the module.
    """
    codes, away = spread_among(vectors, module.codes, generator)
    module.decoder.codebook.copy_(codes)
    # Where there are hardly more vectors than codes, each lies on one, and says nothing of how far others will be.
    distance = torch.maximum(away.mean(), mean_square_to_next(codes) / 2)
    if distance > 0:
        module.log_precision.copy_((SHARPNESS / distance).log())


def spread_among(vectors: Tensor, number: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Some of the vectors ``[N, dimension]``, spread as k-means++ does, and squared distances from the nearest of them.

    Where there are fewer different vectors than are wanted, some come twice.
    """
    away = vectors.new_full((len(vectors),), torch.inf)
    picks = torch.randint(len(vectors), (1,), generator=generator, device=vectors.device)
    chosen = vectors[:0]
    while True:
        chosen = torch.cat([chosen, vectors[picks]])
        away = torch.minimum(away, squared_distances(vectors, vectors[picks]).amin(-1))
        if len(chosen) == len(picks) and not away.isfinite().all():
            largest = float(vectors.abs().max())
            raise ValueError(
                f"codes cannot be placed among vectors of numbers as large as {largest:.3g}; lower the learning rate"
            )
        if len(chosen) == number:
            return chosen, away
        many = min(-(-number // ROUNDS), number - len(chosen), len(vectors))
        picks = torch.multinomial(away.clamp_min(1e-12), many, generator=generator)


def mean_square_to_next(codes: Tensor) -> Tensor:
    """The mean squared distance of a code, of 1,024 at most, from the nearest other one; 0 where all are alike."""
    nearest, some = [], codes[:: -(-len(codes) // 1024)]
    for part in some.split(max(1, 2**24 // len(codes))):
        distances = squared_distances(part, codes)
        nearest.append(torch.where(distances > 0, distances, torch.inf).amin(-1))
    return torch.cat(nearest).nan_to_num(posinf=0.0).mean()


def squared_distances(one: Tensor, other: Tensor) -> Tensor:
    """``[N, M]``, exactly 0 between equal vectors."""
    return torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist").square()


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
