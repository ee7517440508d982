"""Training of an attribute model: batches that are moved, brightened, blurred; validation; a step size that falls."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from argrad.models.attributes.module import AttributeModule
from argrad.models.discrete_vae.task import evaluate_in_batches
from argrad.training import World

__all__ = ["AttributeTask", "blurred", "brightened", "shifted"]


@final
class AttributeTask:
    """An attribute model and its data, as the training loop wants them.

    Args:
        module: on its device already.
        images: ``[N, *shape]``, on the same device.
        known: attributes ``[N, n]``.
        held_out: so many of the first are for validation; 0 validates on all.
        kl_weight: of the KL terms.
        switch_weight: of reading switched attributes back.
        switch_mixed: what is switched has a remainder between those of two images.
        independence_weight: of what the remainder tells about known attributes.
        label_first: epochs in which attributes learn from what is known alone.
        shift: most pixels by which images are moved.
        brightness: most by which they are made darker or brighter.
        blur: widest Gaussian by which is blurred what the encoder reads, in pixels.
        epochs: over which the step size falls.
    """

    def __init__(
        self,
        module: AttributeModule,
        images: Tensor,
        known: Tensor,
        held_out: int,
        *,
        kl_weight: float,
        switch_weight: float,
        switch_mixed: bool,
        independence_weight: float,
        label_first: int,
        shift: int,
        brightness: float,
        blur: float,
        epochs: int,
    ) -> None:
        self.module = module
        self.images, self.known = images[held_out:], known[held_out:]
        end = held_out or len(images)
        self.validation, self.validation_known = images[:end], known[:end]
        self.kl_weight, self.switch_weight, self.label_first = kl_weight, switch_weight, label_first
        self.switch_mixed, self.independence_weight = switch_mixed, independence_weight
        self.epoch = 0
        self.shift, self.brightness, self.blur, self.epochs = shift, brightness, blur, epochs
        self.device = images.device
        self.train_size = len(self.images)

    def set_step(self, step: int) -> None:
        """Nothing follows a schedule."""

    def losses(self, batch: Tensor, generator: torch.Generator, world: World) -> Tensor:
        """The objective of each example."""
        x = brightened(shifted(self.images[batch], self.shift, generator), self.brightness, generator)
        return self.module.losses(
            x,
            self.known[batch],
            kl_weight=self.kl_weight,
            switch_weight=self.switch_weight,
            switch_mixed=self.switch_mixed,
            independence_weight=self.independence_weight,
            labels_only=self.epoch < self.label_first,
            view=lambda images: blurred(images, self.blur, generator),
            generator=generator,
        )

    def validate(self, generator: torch.Generator) -> dict[str, float]:
        """The objective without switching, always with the same noise, and the accuracy on known attributes."""
        fixed = torch.Generator(self.device).manual_seed(0)
        rows = torch.arange(len(self.validation), device=self.device)

        def loss(some: Tensor) -> Tensor:
            return self.module.validation_losses(self.validation[some], self.validation_known[some], generator=fixed)

        def right(some: Tensor) -> Tensor:
            y = self.validation_known[some]
            agree = ((self.module.posterior(self.validation[some])[0].mode() == y) & (y >= 0)).sum(1)
            return agree.double()

        total = float((self.validation_known >= 0).double().mean(0).sum())
        accuracy = evaluate_in_batches(right, rows) / total if total else math.nan
        return {"loss": evaluate_in_batches(loss, rows), **({"accuracy": accuracy} if total else {})}

    def after_epoch(self, epoch: int, optimiser: torch.optim.Optimizer, generator: torch.Generator) -> dict[str, float]:
        """Let the step size fall along a cosine, to a hundredth of what it was."""
        self.epoch = epoch
        for group in optimiser.param_groups:
            group.setdefault("initial_lr", group["lr"])
            group["lr"] = group["initial_lr"] * (0.505 + 0.495 * math.cos(math.pi * epoch / self.epochs))
        return {}


def shifted(images: Tensor, most: int, generator: torch.Generator | None = None) -> Tensor:
    """Each image moved by up to so many pixels in both directions, its edge repeated.

    Args:
        images: ``[B, H, W]`` or ``[B, C, H, W]``.
        most: the largest step; 0 gives the images back.
        generator: decides the steps.
    """
    if most == 0:
        return images
    height, width = images.shape[-2:]
    deep = images.reshape(len(images), -1, height, width)
    wide = pad(deep, (most, most, most, most), mode="replicate")
    steps = torch.randint(2 * most + 1, (2, len(images)), generator=generator, device=images.device)
    rows = (steps[0, :, None] + torch.arange(height, device=images.device))[:, None, :, None]
    columns = (steps[1, :, None] + torch.arange(width, device=images.device))[:, None, None, :]
    picture = torch.arange(len(images), device=images.device)[:, None, None, None]
    layer = torch.arange(deep.shape[1], device=images.device)[None, :, None, None]
    return wide[picture, layer, rows, columns].reshape(images.shape)


def brightened(images: Tensor, most: float, generator: torch.Generator | None = None) -> Tensor:
    """Each image multiplied by a number of its own, from 1 − most to 1 + most, and cut off at 1."""
    if most == 0:
        return images
    shape = (len(images),) + (1,) * (images.dim() - 1)
    factor = 1 + most * (2 * torch.rand(shape, generator=generator, device=images.device) - 1)
    return (images * factor).clamp_max(images.max().clamp_min(1.0))


def blurred(images: Tensor, most: float, generator: torch.Generator | None = None) -> Tensor:
    """Each image blurred by a Gaussian of its own width, from none to ``most`` pixels, its edge repeated.

    Args:
        images: ``[B, H, W]`` or ``[B, C, H, W]``.
        most: the largest standard deviation; 0 gives the images back.
        generator: decides the widths.
    """
    if most == 0:
        return images
    height, width = images.shape[-2:]
    deep = images.reshape(len(images), -1, height, width)
    reach = math.ceil(2 * most)
    spread = most * torch.rand(len(images), 1, generator=generator, device=images.device) + 0.01
    offsets = torch.arange(-reach, reach + 1, device=images.device)
    line = (-0.5 * (offsets / spread).square()).softmax(1).to(images.dtype)
    lines = line.repeat_interleave(deep.shape[1], 0)[:, None, None]
    wide = pad(deep, (reach,) * 4, mode="replicate").flatten(0, 1)[None]
    across = conv2d(wide, lines, groups=len(lines))
    return conv2d(across, lines.mT, groups=len(lines))[0].reshape(images.shape)
