r"""An image tokenizer (discrete VAE): a picture as a small grid of codes from one shared vocabulary, and back.

A convolutional encoder gives every cell of a grid, four times smaller than the image, a vector f. Code i is a vector
:math:`e_i` too, and its score is higher the nearer it is, with a learnt precision s:

.. math:: h_i = -\tfrac s2 |f - e_i|^2 + \tfrac s2 |f|^2 = s\,(\langle f, e_i\rangle - \tfrac12 |e_i|^2),

the last term being the same for all codes. The decoder reads :math:`\sum_i \alpha_i e_i` in each cell and gives the
pixels. :math:`\alpha` is one-hot for codes, and inside the simplex for a relaxation, :math:`\alpha =
\mathrm{softmax}((g + h) / \tau)`. The objective of one image is

.. math:: E_{q(z|x)}[-\log p(x|z)] + \beta\, \mathrm{KL}(q(z|x) \,\|\, \mathrm{uniform}),

the first term by any estimator, the KL summed over the cells in closed form. Both are of one image: neither depends on
the size of a batch.

References: Ramesh et al., 2021, "Zero-shot text-to-image generation" (the dVAE); Takida et al., 2022, "SQ-VAE:
variational Bayes on discrete representation with self-annealed stochastic quantization" (scores from distances, so that
codes that lie close together share their cells, and none wins them all).
"""

from __future__ import annotations

import math
from typing import Literal, final

import torch
from torch import Tensor, nn

from argrad.costs import Reconstruction, evaluate
from argrad.estimators import Estimator
from argrad.estimators.base import Noise
from argrad.latents import Categorical
from argrad.latents.base import can_read_values, cheaply_known_finite
from argrad.models.discrete_vae.module import Likelihood

__all__ = ["CodeDecoder", "GridDecoder", "GridEncoder", "How", "TokenizerModule", "check_image_shape"]

How = Literal["hard", "soft", "sampled", "relaxed"]
"""What is decoded: the most probable codes; the mixture by their probabilities; a draw of codes; a draw of the
Gumbel-softmax relaxation."""
FACTOR = 4
"""How many times smaller the grid is than the image, each way."""


def check_image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of images ``[H, W]`` or ``[C, H, W]``, or an error that says what they must be."""
    channels, height, width = (1, *shape) if len(shape) == 2 else shape if len(shape) == 3 else (0, 0, 0)
    if channels not in (1, 3) or height < FACTOR or width < FACTOR or height % FACTOR or width % FACTOR:
        raise ValueError(
            f"a tokenizer needs images [H, W], [1, H, W] or [3, H, W] with H and W divisible by {FACTOR}, got shape "
            f"{tuple(shape)}; pad or resize them"
        )
    return channels, height, width


@final
class Residual(nn.Module):
    """x plus two convolutions of it. The norm looks at one image at a time, so codes can be compared across a batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.GroupNorm(math.gcd(8, width), width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        output: Tensor = x + self.layers(x)
        return output


@final
class GridEncoder(nn.Module):
    """Images ``[N, *shape]`` to a vector in every cell of the grid, ``[N, cells, dimension]``."""

    def __init__(self, shape: tuple[int, ...], dimension: int, width: int, blocks: int) -> None:
        super().__init__()
        self.image = check_image_shape(shape)
        self.layers = nn.Sequential(
            nn.Conv2d(self.image[0], width, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(width, width, 4, 2, 1),
            *(Residual(width) for _ in range(blocks)),
            nn.ReLU(),
        )
        self.last = nn.Linear(width, dimension)

    def forward(self, x: Tensor) -> Tensor:
        """The vector of each cell, row by row."""
        features = self.layers(x.reshape(-1, *self.image))
        output: Tensor = self.last(features.flatten(2).mT)
        return output


@final
class GridDecoder(nn.Module):
    """Vectors in every cell ``[N, cells, dimension]`` to logits or means of the pixels ``[N, *shape]``."""

    def __init__(self, shape: tuple[int, ...], dimension: int, width: int, blocks: int) -> None:
        super().__init__()
        channels, height, across = check_image_shape(shape)
        self.shape = tuple(shape)
        self.grid = (height // FACTOR, across // FACTOR)
        self.layers = nn.Sequential(
            nn.Conv2d(dimension, width, 3, padding=1),
            *(Residual(width) for _ in range(blocks)),
            nn.ReLU(),
            nn.ConvTranspose2d(width, width, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(width, channels, 4, 2, 1),
        )

    def forward(self, vectors: Tensor) -> Tensor:
        """The pixels."""
        output: Tensor = self.layers(vectors.mT.unflatten(2, self.grid))
        return output.reshape(-1, *self.shape)


@final
class CodeDecoder(nn.Module):
    """The codebook ``[K, dimension]``, and the decoder that reads its vectors."""

    def __init__(self, codes: int, dimension: int, decoder: GridDecoder) -> None:
        super().__init__()
        self.codebook = nn.Parameter(torch.randn(codes, dimension) / math.sqrt(dimension))
        self.decoder = decoder

    def forward(self, z: Tensor) -> Tensor:
        """From structures, one-hot or inside the simplex, ``[N, cells, K]``."""
        output: Tensor = self.decoder(z @ self.codebook)
        return output

    def from_codes(self, codes: Tensor) -> Tensor:
        """From whole numbers ``[N, cells]``: the same as from one-hot structures, by looking the vectors up."""
        output: Tensor = self.decoder(nn.functional.embedding(codes, self.codebook))
        return output


@final
class TokenizerModule(nn.Module):
    """Encoder, codebook, decoder and estimator.

    Args:
        shape: of one image, ``[H, W]`` or ``[C, H, W]``, C 1 or 3, H and W divisible by 4.
        estimator: of the gradient of the reconstruction term.
        codes: K, the size of the vocabulary.
        width: channels of the convolutions.
        dimension: of a code's vector.
        blocks: residual blocks on each side.
        likelihood: "bernoulli" for x in [0, 1], or "gaussian".
        scale: the gaussian's standard deviation.

    >>> from argrad import GumbelSoftmax
    >>> module = TokenizerModule((8, 8), GumbelSoftmax(), codes=16, width=8, dimension=4)
    >>> module.losses(torch.rand(5, 8, 8)).shape, module.encode(torch.rand(5, 8, 8)).shape
    (torch.Size([5]), torch.Size([5, 2, 2]))
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        estimator: Estimator,
        *,
        codes: int = 512,
        width: int = 64,
        dimension: int = 64,
        blocks: int = 1,
        likelihood: Likelihood = "bernoulli",
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        check_image_shape(shape)
        if likelihood not in ("bernoulli", "gaussian"):
            raise ValueError(f'likelihood must be "bernoulli" or "gaussian", got {likelihood!r}')
        if not 0 < scale < math.inf or (scale != 1.0 and likelihood != "gaussian"):
            raise ValueError(f"scale is the standard deviation (> 0) of the gaussian likelihood, got {scale}")
        for name, number, least in (
            ("codes", codes, 2),
            ("width", width, 1),
            ("dimension", dimension, 1),
            ("blocks", blocks, 0),
        ):
            if number < least:
                raise ValueError(f"{name} must be at least {least}, got {number}")
        self.shape = tuple(shape)
        self.codes = codes
        self.likelihood = likelihood
        self.scale = scale
        self.estimator = estimator
        self.encoder = GridEncoder(shape, dimension, width, blocks)
        self.log_precision = nn.Parameter(torch.tensor(0.5 * math.log(dimension)))
        self.decoder = CodeDecoder(codes, dimension, GridDecoder(shape, dimension, width, blocks))

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of codes."""
        return self.decoder.decoder.grid

    @property
    def event_shape(self) -> tuple[int, int]:
        """Cells and codes: the shape of one z."""
        return math.prod(self.grid), self.codes

    def scores(self, x: Tensor) -> Tensor:
        """The score of every code in every cell, ``[B, cells, K]``: the higher, the nearer."""
        codebook = self.decoder.codebook
        near = self.encoder(x) @ codebook.T - 0.5 * codebook.square().sum(-1)
        scores: Tensor = self.log_precision.exp() * near
        return scores

    def posterior(self, x: Tensor, *, validate: bool = True) -> Categorical:
        """q(z|x) for a batch: independent cells, each one of K codes."""
        return Categorical(self.scores(x), event_dims=2, validate=validate)

    def reconstruction(self, x: Tensor) -> Reconstruction:
        """The cost −log p(x|z)."""
        return Reconstruction(x, self.decoder, self.likelihood, scale=self.scale)

    def losses(
        self,
        x: Tensor,
        *,
        kl_weight: float | Tensor = 1.0,
        generator: torch.Generator | None = None,
        noise: Noise | None = None,
    ) -> Tensor:
        """The negative ELBO of each image, its KL weighted, ``[B]``, carrying the gradient estimate."""
        q = self.posterior(x, validate=False)  # the training loop looks at the loss
        q.known_finite, q.differentiated_once = cheaply_known_finite(q.scores), True
        cost: Tensor = self.estimator(q, self.reconstruction(x), generator=generator, noise=noise)
        return cost + kl_weight * q.kl()

    def continuous_losses(self, x: Tensor) -> Tensor:
        """−log p(x|f) of each image without codes, ``[B]``: the decoder reads the encoder's vectors f as they are."""
        likelihood = Reconstruction(x, self.decoder.decoder, self.likelihood, scale=self.scale)
        losses: Tensor = likelihood(self.encoder(x), event_dims=2)
        return losses

    @torch.no_grad()
    def negative_elbo(self, x: Tensor, *, kl_weight: float = 1.0, generator: torch.Generator | None = None) -> Tensor:
        """The negative ELBO with one draw of codes for each image, ``[B]``; weight 1 makes it a bound on −log p(x)."""
        q = self.posterior(x)
        return evaluate(self.reconstruction(x), q, q.sample(generator=generator)) + kl_weight * q.kl()

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        """The most probable code of every cell, whole numbers ``[B, rows, columns]``."""
        self.check_images(x)
        codes = self.scores(x).argmax(-1)
        return codes.reshape(-1, *self.grid)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """The mean of x given codes ``[N, rows, columns]``: ``[N, *shape]``."""
        self.check_codes(codes)
        return self.means(self.decoder.from_codes(codes.long().flatten(1)))

    @torch.no_grad()
    def reconstruct(
        self,
        x: Tensor,
        how: How = "hard",
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The mean of x given what the encoder makes of it, ``[B, *shape]``; see :data:`How`."""
        return self.rebuild(self.posterior(x), how, temperature=temperature, generator=generator)

    @torch.no_grad()
    def rebuild(
        self,
        q: Categorical,
        how: How = "hard",
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The same from the posterior of a batch."""
        if how == "hard":
            return self.means(self.decoder.from_codes(q.scores.argmax(-1)))
        if how == "soft":
            return self.means(self.decoder(q.mean()))
        if how == "sampled":
            return self.means(self.decoder(q.sample(generator=generator)))
        noise = q.draw_noise(generator=generator)
        return self.means(self.decoder(q.relax(q.perturb(noise), temperature)))

    def means(self, output: Tensor) -> Tensor:
        """The mean of the pixels under the likelihood."""
        return output.sigmoid() if self.likelihood == "bernoulli" else output

    @torch.no_grad()
    def usage(self, x: Tensor) -> Tensor:
        """How often each code of the vocabulary is the most probable one of a cell, ``[K]``, as shares."""
        counts = torch.bincount(self.scores(x).argmax(-1).flatten(), minlength=self.codes)
        return counts / counts.sum()

    def check_images(self, x: Tensor) -> None:
        """Raise a ValueError unless x holds images of the right shape, all of them numbers."""
        if x.dim() != len(self.shape) + 1 or tuple(x.shape[1:]) != self.shape:
            raise ValueError(
                f"this tokenizer reads images of shape {self.shape}, [N, {', '.join(map(str, self.shape))}] in all, "
                f"got an array of shape {tuple(x.shape)}; resize or reshape them"
            )
        if not x.is_floating_point():
            raise ValueError(f"images must be floating-point numbers, got {x.dtype}; convert and scale them to [0, 1]")
        if not can_read_values(x) or x.numel() == 0:
            return
        if not bool(x.isfinite().all()):
            raise ValueError("images hold NaN or infinite pixels; remove or fill them")
        if self.likelihood == "bernoulli" and (float(x.min()) < -1e-6 or float(x.max()) > 1 + 1e-6):
            raise ValueError(
                f'likelihood "bernoulli" needs pixels in [0, 1], got values from {float(x.min()):g} to '
                f'{float(x.max()):g}; scale them, or use likelihood "gaussian"'
            )

    def check_codes(self, codes: Tensor) -> None:
        """Raise a ValueError unless codes are whole numbers of the vocabulary, one for each cell."""
        if codes.dim() != 3 or tuple(codes.shape[1:]) != self.grid:
            raise ValueError(
                f"codes must have shape [N, {self.grid[0]}, {self.grid[1]}], one for each cell of the grid, got "
                f"{tuple(codes.shape)}"
            )
        if codes.is_floating_point() or codes.is_complex() or codes.dtype == torch.bool:
            raise ValueError(f"codes must be whole numbers, as encode() returns them, got {codes.dtype}")
        numbers = codes.long()  # most unsigned tensors cannot be compared
        outside = (numbers < 0) | (numbers >= self.codes)
        if can_read_values(codes) and bool(outside.any()):
            first = codes.flatten()[int(outside.flatten().nonzero()[0])].item()
            raise ValueError(f"codes must be 0 to {self.codes - 1}, the vocabulary of this tokenizer, got {first}")
