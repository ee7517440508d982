r"""The rival of a dVAE: a vector-quantised auto-encoder of the same size, with the same encoder and decoder.

The encoder gives a vector x in each cell and the nearest code e takes its place. Codes follow the vectors that they
stand for by an exponential moving average; a commitment term keeps the encoder near its codes; codes that are hardly
used are replaced by vectors of the batch. The gradient passes through the rotation and scaling that turn x into e,

.. math:: e = \frac{|e|}{|x|} R x, \qquad R = I - 2 w w^\top + 2 \hat e \hat x^\top, \qquad w \propto \hat x + \hat e,

as if R and the scale were constants, or straight through (``rotation=False``).

This is what ``VectorQuantize`` of the package vector-quantize-pytorch does (version 1.32, its defaults, with
``threshold_ema_dead_code=2``), without reading a number back from the GPU, so that a step can be captured whole; tests
compare the two where the package is installed. Where training begins without codes, they are placed as those of the
dVAE are (:mod:`argrad.models.tokenizer.codes`), and not as the package begins.

References: van den Oord, Vinyals & Kavukcuoglu, 2017, "Neural discrete representation learning", with the moving
averages of its appendix; Fifty et al., 2025, "Restructuring vector quantization with the rotation trick".
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from argrad.costs import Reconstruction
from argrad.models.discrete_vae.module import Likelihood
from argrad.models.tokenizer.codes import spread_among
from argrad.models.tokenizer.module import GridDecoder, GridEncoder, How

__all__ = ["QuantizedModule", "VectorQuantizer", "rotate_onto"]


@final
class VectorQuantizer(nn.Module):
    """The nearest of K vectors, which follow what they stand for.

    Args:
        codes: K.
        dimension: of a vector.
        decay: of the moving averages.
        smoothing: added to every code's count, so that none divides by zero.
        replace_below: codes whose average count per batch is below this are replaced; 0 never.
        rotation: pass the gradient through a rotation, else straight through.
    """

    vectors: Tensor
    counts: Tensor
    sums: Tensor
    replace_below: Tensor
    """0 ends replacement; a captured step reads it where it is."""

    def __init__(
        self,
        codes: int,
        dimension: int,
        *,
        decay: float = 0.8,
        smoothing: float = 1e-5,
        replace_below: float = 2.0,
        rotation: bool = True,
    ) -> None:
        super().__init__()
        self.decay, self.smoothing, self.rotation = decay, smoothing, rotation
        bound = math.sqrt(6 / (codes * dimension))  # the package's start
        start = torch.empty(codes, dimension).uniform_(-bound, bound)
        self.register_buffer("vectors", start)
        self.register_buffer("counts", torch.ones(codes))
        self.register_buffer("sums", start.clone())
        self.register_buffer("replace_below", torch.tensor(float(replace_below)))

    def nearest(self, x: Tensor) -> Tensor:
        """The code of each vector, ``[..., dimension]`` to ``[...]``."""
        distance = self.vectors.square().sum(-1) - 2 * x.detach() @ self.vectors.T
        return distance.argmin(-1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Quantised vectors, with a gradient to x; codes; squared distances ``[...]`` that pull x towards its codes."""
        codes = self.nearest(x)
        found = nn.functional.embedding(codes, self.vectors)
        away = (x - found).square().sum(-1)
        if self.training:
            self.follow(x.detach().flatten(0, -2), codes.flatten())
        return rotate_onto(x, found) if self.rotation else x + (found - x).detach(), codes, away

    @torch.no_grad()
    def follow(self, x: Tensor, codes: Tensor) -> None:
        """Move the averages by one batch of vectors ``[N, dimension]`` and their codes."""
        ones = torch.ones_like(codes, dtype=x.dtype)
        self.counts.lerp_(torch.zeros_like(self.counts).index_add(0, codes, ones), 1 - self.decay)
        self.sums.lerp_(torch.zeros_like(self.sums).index_add(0, codes, x), 1 - self.decay)
        total, number = self.counts.sum(), len(self.counts)
        smoothed = (self.counts + self.smoothing) / (total + number * self.smoothing) * total
        self.vectors.copy_(self.sums / smoothed[:, None])
        self.replace(x)

    def replace(self, x: Tensor) -> None:
        """Put vectors of the batch, each at most once, in the place of codes that are hardly used."""
        unused = self.counts < self.replace_below
        place = unused.cumsum(0) - 1
        unused = unused & (place < len(x))
        order = torch.rand(len(x), device=x.device).argsort()
        fresh = x[order[place.clamp(0, len(x) - 1)]]
        self.vectors.copy_(torch.where(unused[:, None], fresh, self.vectors))
        self.sums.copy_(torch.where(unused[:, None], fresh * self.replace_below, self.sums))
        self.counts.copy_(torch.where(unused, self.replace_below, self.counts))


def rotate_onto(x: Tensor, target: Tensor) -> Tensor:
    """The target, with the gradient of the rotation and scaling that turn x into it, ``[..., dimension]``."""
    along, onto = (nn.functional.normalize(one.detach(), dim=-1, eps=1e-6) for one in (x, target))
    middle = nn.functional.normalize(along + onto, dim=-1, eps=1e-6)
    rotated = x - 2 * (x * middle).sum(-1, keepdim=True) * middle + 2 * (x * along).sum(-1, keepdim=True) * onto
    lengths = [one.detach().norm(dim=-1, keepdim=True) for one in (x, target)]
    output: Tensor = rotated * (lengths[1] / lengths[0].clamp_min(1e-6))
    return output


@final
class QuantizedModule(nn.Module):
    """Encoder, quantizer and decoder, with the words of :class:`argrad.models.TokenizerModule`.

    Args:
        shape: of one image.
        codes: K.
        width: channels of the convolutions.
        dimension: of a code's vector.
        blocks: residual blocks on each side.
        likelihood: of the pixels.
        decay: as in :class:`VectorQuantizer`.
        replace_below: as in :class:`VectorQuantizer`.
        commitment: weight of the squared distance between the encoder's vectors and their codes, summed over an image.
            0.25 beside a sum over 28 × 28 pixels is the package's weight of 1 beside means, for 7 × 7 vectors of 64.
        rotation: as in :class:`VectorQuantizer`.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        codes: int = 512,
        width: int = 64,
        dimension: int = 64,
        blocks: int = 1,
        likelihood: Likelihood = "bernoulli",
        decay: float = 0.8,
        replace_below: float = 2.0,
        commitment: float = 0.25,
        rotation: bool = True,
    ) -> None:
        super().__init__()
        self.codes, self.likelihood, self.commitment = codes, likelihood, commitment
        self.encoder = GridEncoder(shape, dimension, width, blocks)
        self.quantizer = VectorQuantizer(codes, dimension, decay=decay, replace_below=replace_below, rotation=rotation)
        self.decoder = GridDecoder(shape, dimension, width, blocks)

    def losses(self, x: Tensor) -> Tensor:
        """−log p(x|z) and the commitment of each image, ``[B]``."""
        quantized, _, away = self.quantizer(self.encoder(x))
        likelihood = Reconstruction(x, self.decoder, self.likelihood)
        loss: Tensor = likelihood(quantized, event_dims=2) + self.commitment * away.sum(-1)
        return loss

    def continuous_losses(self, x: Tensor) -> Tensor:
        """−log p(x|f) of each image without codes, ``[B]``."""
        losses: Tensor = Reconstruction(x, self.decoder, self.likelihood)(self.encoder(x), event_dims=2)
        return losses

    @torch.no_grad()
    def place_codes(self, vectors: Tensor, generator: torch.Generator) -> None:
        """Put all codes among vectors ``[N, dimension]`` that the encoder gives cells."""
        codes, _ = spread_among(vectors, self.codes, generator)
        self.quantizer.vectors.copy_(codes)
        self.quantizer.sums.copy_(codes)
        self.quantizer.counts.fill_(1.0)

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        """The nearest code of every cell, ``[B, rows, columns]``."""
        codes: Tensor = self.quantizer.nearest(self.encoder(x)).unflatten(1, self.decoder.grid)
        return codes

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """The mean of x given codes ``[N, rows, columns]``."""
        return self.means(nn.functional.embedding(codes.flatten(1), self.quantizer.vectors))

    @torch.no_grad()
    def reconstruct(
        self, x: Tensor, how: How = "hard", *, temperature: float = 1.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """The mean of x given its codes, or for "soft" given what the encoder says before it is quantised."""
        return self.means(self.encoder(x)) if how == "soft" else self.decode(self.encode(x))

    def means(self, vectors: Tensor) -> Tensor:
        """The mean of the pixels given the vectors of every cell."""
        output: Tensor = self.decoder(vectors)
        return output.sigmoid() if self.likelihood == "bernoulli" else output
