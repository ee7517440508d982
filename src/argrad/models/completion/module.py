r"""Pluralistic image completion: one picture with a hole, several ways to fill it.

- The hole is first filled smoothly from its border. All that follows is about what the picture has beyond this, so that
  light and shade go on across the border by themselves.
- The visible part :math:`x_v` becomes features :math:`z_v`, and these a mixture of k Gaussians for the latent
  :math:`z_c` of the missing part.
- In training the missing part :math:`x_c` is known: its encoder gives :math:`N(\mu, \Sigma)`, a draw :math:`z_c` goes
  to the decoder together with :math:`z_v`, the smooth fill is added, and the loss of one image is

  .. math:: -\log p(x_c|z_v, z_c) + \beta L,

  a Gaussian likelihood of the hidden pixels, and L the back-propagate-max loss
  (:mod:`argrad.models.completion.mixture`).
- To complete, :math:`z_c` is drawn from the mixture. Visible pixels are taken from the picture itself, bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate

from argrad.latents import Gaussian
from argrad.latents.base import can_read_values
from argrad.models.completion.mixture import GaussianMixture, MixtureLoss, back_propagate_max

__all__ = ["CompletionModule", "Visible", "check_mask", "smooth_fill"]

LARGEST_LOGVAR = 10.0
"""Log-variances stay between minus and plus this, so that their exponentials are numbers."""


def bounded(logvar: Tensor) -> Tensor:
    """Nearly the same for small numbers, never beyond the largest."""
    return LARGEST_LOGVAR * (logvar / LARGEST_LOGVAR).tanh()


def encoder(shape: tuple[int, ...], hidden: int, outputs: int) -> nn.Sequential:
    """Pixels and mask, side by side, to numbers."""
    inputs = math.prod(shape) + shape[-2] * shape[-1]
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


@final
@dataclass(frozen=True)
class Visible:
    """What is made of the visible part of images: the smooth fill ``[B, *shape]``, and z_v ``[B, features]``."""

    fill: Tensor
    features: Tensor


@final
class CompletionModule(nn.Module):
    """Both encoders, the mixture and the decoder.

    Args:
        shape: of one image, ``[H, W]`` or ``[C, H, W]``.
        components: k, of the mixture.
        dimension: d, of z_c.
        features: of z_v.
        hidden: width of the hidden layers.
        loss: form of the back-propagate-max loss.
        scale: standard deviation of a pixel given z_v and z_c.

    >>> module = CompletionModule((8, 8), components=4)
    >>> x, mask = torch.rand(5, 8, 8), torch.zeros(5, 8, 8, dtype=torch.bool)
    >>> mask[:, 2:6, 2:6] = True
    >>> module.losses(x, mask).shape, module.complete(x, mask, 3)[0].shape
    (torch.Size([5]), torch.Size([5, 3, 8, 8]))
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        components: int = 8,
        dimension: int = 16,
        features: int = 128,
        hidden: int = 512,
        loss: MixtureLoss = "kl",
        scale: float = 0.1,
    ) -> None:
        super().__init__()
        if len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] not in (1, 3)) or min(shape[-2:]) < 4:
            raise ValueError(
                f"images to complete are [H, W], [1, H, W] or [3, H, W], 4 x 4 pixels at least, got shape {shape}"
            )
        for name, number in (
            ("components", components),
            ("dimension", dimension),
            ("features", features),
            ("hidden", hidden),
        ):
            if number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")
        if loss not in get_args(MixtureLoss):
            raise ValueError(f"loss must be one of {', '.join(get_args(MixtureLoss))}, got {loss!r}")
        if not 0 < scale < math.inf:
            raise ValueError(f"scale is the standard deviation of a pixel, above 0, got {scale}")
        self.shape = tuple(shape)
        self.components = components
        self.dimension = dimension
        self.loss: MixtureLoss = loss
        self.scale = scale
        self.visible_encoder = encoder(self.shape, hidden, features)
        self.missing_encoder = encoder(self.shape, hidden, 2 * dimension)
        self.mixture_head = nn.Sequential(
            nn.ReLU(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, components * (1 + 2 * dimension))
        )
        self.decoder = nn.Sequential(
            nn.Linear(features + dimension, hidden), nn.ReLU(), nn.Linear(hidden, math.prod(shape))
        )
        if components > 1:
            self._spread_components()

    @torch.no_grad()
    def _spread_components(self) -> None:
        """Start with means as far apart as draws from the standard normal, or one component would win every image."""
        bias = self.mixture_head[-1].bias
        assert isinstance(bias, Tensor)
        means = bias[self.components :].reshape(2, self.components, self.dimension)[0]
        means.copy_(torch.randn(means.shape))

    def look(self, x: Tensor, mask: Tensor) -> Visible:
        """From what is visible alone.

        Args:
            x: ``[B, *shape]``; what it holds under the mask is not looked at.
            mask: booleans ``[B, H, W]``, True where hidden.
        """
        fill = smooth_fill(x, mask)
        return Visible(fill, self.visible_encoder(beside_mask(fill, mask)))

    def mixture(self, visible: Visible) -> GaussianMixture:
        """The prior of z_c that the visible part predicts."""
        output = self.mixture_head(visible.features)
        weights = output[:, : self.components].log_softmax(-1)
        both = output[:, self.components :].unflatten(1, (2, self.components, self.dimension))
        return GaussianMixture(weights, both[:, 0], bounded(both[:, 1]))

    def posterior(self, x: Tensor, mask: Tensor, visible: Visible) -> Gaussian:
        """N(μ, Σ) of z_c, from what the hidden pixels have beyond the smooth fill."""
        mean, logvar = self.missing_encoder(beside_mask(x - visible.fill, mask)).chunk(2, 1)
        return Gaussian(mean, bounded(logvar), validate=False)

    def decode(self, visible: Visible, z: Tensor) -> Tensor:
        """The mean of all pixels, ``[*extra, B, *shape]``, for z_c ``[*extra, B, d]``; it may lie beyond 0 and 1."""
        features = visible.features.expand(*z.shape[:-1], -1)
        beyond: Tensor = self.decoder(torch.cat([features, z], -1))
        return visible.fill + beyond.reshape(*z.shape[:-1], *self.shape)

    def log_likelihood(self, x: Tensor, mask: Tensor, means: Tensor) -> Tensor:
        """log p(x_c|z_v, z_c) of the hidden pixels in nats, ``[*extra, B]``; means are ``[*extra, B, *shape]``."""
        hidden = on_channels(mask, x)
        squares = ((means - x).square() * hidden).flatten(-len(self.shape)).sum(-1)
        constant = math.log(self.scale) + 0.5 * math.log(2 * math.pi)
        return -0.5 * squares / self.scale**2 - constant * hidden.flatten(1).sum(1)

    def losses(
        self,
        x: Tensor,
        mask: Tensor,
        *,
        kl_weight: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The objective of each image, ``[B]``: of known images and masks ``[B, H, W]`` that hide a part of them."""
        visible = self.look(x, mask)
        posterior = self.posterior(x, mask, visible)
        z = posterior.rsample(generator=generator)
        fit = back_propagate_max(self.mixture(visible), posterior, z, self.loss)
        return kl_weight * fit - self.log_likelihood(x, mask, self.decode(visible, z))

    @torch.no_grad()
    def complete(
        self, x: Tensor, mask: Tensor, number: int = 8, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Several completions of each image.

        Args:
            x: ``[B, *shape]``.
            mask: ``[B, H, W]``, True where hidden.
            number: of completions.
            generator: of the draws.

        Returns:
            images ``[B, number, *shape]``, equal to x where the mask does not hide, and the component that each came
            from, ``[B, number]``.
        """
        visible = self.look(x, mask)
        z, which = self.mixture(visible).sample(number, generator=generator)
        completed = torch.where(on_channels(mask, x), self.decode(visible, z).clamp(0, 1), x)
        return completed.movedim(0, 1), which.movedim(0, 1)

    @torch.no_grad()
    def log_likelihood_bound(
        self, x: Tensor, mask: Tensor, *, samples: int = 100, generator: torch.Generator | None = None
    ) -> Tensor:
        r"""A lower bound on log p(x_c|x_v) in nats, ``[B]``.

        It is :math:`\log\frac1S\sum_s p(x_c|z_v, z_s)\,p(z_s|z_v)/q(z_s)`, where z_s are draws from the encoder's q =
        N(μ, Σ). In expectation it is never above log p(x_c|x_v), whatever the loss was, so models with other numbers of
        components can be compared by it.
        """
        visible = self.look(x, mask)
        posterior = self.posterior(x, mask, visible)
        z = posterior.sample((samples,), generator=generator)
        pixels = self.log_likelihood(x, mask, self.decode(visible, z))
        weights = pixels + self.mixture(visible).log_prob(z) - posterior.log_prob(z)
        return weights.logsumexp(0) - math.log(samples)

    def check(self, x: Tensor, mask: Tensor) -> None:
        """Raise a ValueError unless x holds images that can be read, and the mask hides a part of each."""
        if tuple(x.shape[1:]) != self.shape:
            raise ValueError(
                f"this model completes images of shape {self.shape}, got an array of shape {tuple(x.shape)}, whose "
                f"images have shape {tuple(x.shape[1:])}; resize them, or train on that size"
            )
        if not x.is_floating_point():
            raise ValueError(f"images must be floating-point numbers, got {x.dtype}; convert and scale them to [0, 1]")
        check_mask(mask, x)
        if can_read_values(x) and len(x):
            shown = x.masked_fill(on_channels(mask, x), 0.0)
            if not bool(((shown >= 0) & (shown <= 1)).all()):
                raise ValueError(
                    "visible pixels must be numbers from 0 to 1, got others (or NaN); scale the images, and hide what "
                    "is not known"
                )


def on_channels(mask: Tensor, x: Tensor) -> Tensor:
    """A mask ``[B, H, W]`` beside images ``[B, H, W]`` or ``[B, C, H, W]``."""
    return mask if x.dim() == 3 else mask.unsqueeze(1).expand(x.shape)


def beside_mask(pixels: Tensor, mask: Tensor) -> Tensor:
    """Pixels and mask, one row for each image."""
    return torch.cat([pixels.flatten(1), mask.flatten(1).to(pixels.dtype)], 1)


def smooth_fill(x: Tensor, mask: Tensor) -> Tensor:
    """Images whose hidden pixels continue the visible ones smoothly, ``[B, *shape]``; visible pixels are unchanged.

    The image is halved again and again, each pixel the mean of the visible ones among its four, until nothing is
    hidden; on the way back, hidden pixels are interpolated from the smaller image.

    Args:
        x: ``[B, H, W]`` or ``[B, C, H, W]``; hidden pixels may hold anything.
        mask: ``[B, H, W]``, True where hidden; something must be visible.
    """
    images = (x.unsqueeze(1) if x.dim() == 3 else x).masked_fill(mask.unsqueeze(1), 0.0)
    return fill_weighted(images, (~mask).unsqueeze(1).to(x.dtype)).reshape(x.shape)


def fill_weighted(images: Tensor, known: Tensor) -> Tensor:
    """The same for images ``[B, C, H, W]``, known where ``[B, 1, H, W]`` is 1 and zero where it is 0."""
    height, width = images.shape[-2:]
    if height == width == 1:
        return images
    # A divisor of 1 makes the mean of two by two pixels their sum; where a side is odd, the last ones have fewer.
    sums, counts = (avg_pool2d(part, 2, ceil_mode=True, divisor_override=1) for part in (images, known))
    smaller = fill_weighted(sums / counts.clamp_min(1.0), (counts > 0).to(known.dtype))
    larger = interpolate(smaller, size=(height, width), mode="bilinear", align_corners=False)
    return torch.where(known > 0, images, larger)


def check_mask(mask: Tensor, x: Tensor) -> None:
    """Raise a ValueError unless there is a mask for each image that hides some pixels and leaves some.

    Args:
        mask: ``[B, H, W]``, booleans.
        x: images ``[B, H, W]`` or ``[B, C, H, W]``.
    """
    if mask.dtype != torch.bool:
        raise ValueError(f"a mask holds booleans, True where a pixel is hidden, got {mask.dtype}")
    if tuple(mask.shape[1:]) != tuple(x.shape[-2:]):
        raise ValueError(
            f"the mask has {' x '.join(map(str, mask.shape[1:]))} pixels and the images {x.shape[-2]} x {x.shape[-1]}; "
            "give a mask of the same size"
        )
    if len(mask) != len(x):
        raise ValueError(f"there are {len(mask)} masks for {len(x)} images; give one for all, or one for each")
    if not can_read_values(mask):
        return
    hidden = mask.flatten(1)
    if not bool(hidden.any(1).all()):
        raise ValueError("the mask hides nothing, so there is nothing to complete; mark the missing pixels")
    if bool(hidden.all(1).any()):
        raise ValueError("the mask hides everything, so there is nothing to go by; leave some pixels visible")
