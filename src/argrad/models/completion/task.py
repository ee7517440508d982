"""Training image completion with the common loop: fresh masks every step, the same ones in every validation."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from argrad.data.masks import MaskKind, draw_masks
from argrad.models.completion.module import CompletionModule
from argrad.models.dead_codes import perplexity
from argrad.models.discrete_vae.task import evaluate_in_batches
from argrad.training import WarmUp, World

__all__ = ["AT_ONCE", "CompletionTask", "fixed_masks", "half_mirrored"]

AT_ONCE = 500
"""Images that are evaluated at a time."""


@final
class CompletionTask:
    """A completion model and its images, as the training loop wants them.

    Args:
        module: on its device already.
        train: stored images ``[N, *shape]``, on the same device.
        validation: stored images; the training images where there are none.
        values: turns stored images into numbers, such as ``Images.values``.
        masks: which are drawn.
        kl_weight: of the back-propagate-max loss, as training goes on.
        mirror: whether images are turned round, left for right, every other time.
    """

    def __init__(
        self,
        module: CompletionModule,
        train: Tensor,
        validation: Tensor,
        values: Callable[[Tensor], Tensor],
        *,
        masks: MaskKind,
        kl_weight: WarmUp,
        mirror: bool = False,
    ) -> None:
        self.module = module
        self.train = train
        self.validation = validation if len(validation) else train
        self.values = values
        self.masks: MaskKind = masks
        self.kl_weight = kl_weight
        self.mirror = mirror
        self.device = train.device
        self.train_size = len(train)
        self.weight = 0.0

    def set_step(self, step: int) -> None:
        """Set the weight of the back-propagate-max loss."""
        self.weight = self.kl_weight(step)

    def losses(self, batch: Tensor, generator: torch.Generator, world: World) -> Tensor:
        """The objective of each image under a mask of its own."""
        if world.size > 1:
            raise ValueError("image completion is trained by one process; leave out torchrun")
        x = self.values(self.train[batch])
        x = half_mirrored(x, generator) if self.mirror else x
        mask = draw_masks(self.masks, len(x), self.size, generator=generator, device=self.device)
        return self.module.losses(x, mask, kl_weight=self.weight, generator=generator)

    def validate(self, generator: torch.Generator) -> dict[str, float]:
        """On validation images, always with the same masks and noise.

        ``loss`` is the objective with the weight that training ends with, so that epochs can be compared;
        ``components`` says how many components are picked, by exp(entropy).
        """
        fixed = torch.Generator(self.device).manual_seed(0)
        stored = torch.arange(len(self.validation), device=self.device)
        masks = fixed_masks(self.masks, len(stored), self.size, self.device)
        picks = torch.zeros(self.module.components, device=self.device)

        def measure(rows: Tensor) -> Tensor:
            x, mask = self.values(self.validation[rows]), masks[rows]
            visible = self.module.look(x, mask)
            which = self.module.mixture(visible).pick(self.module.posterior(x, mask, visible).mean)
            picks.add_(torch.bincount(which, minlength=len(picks)))
            return self.module.losses(x, mask, kl_weight=self.kl_weight.end, generator=fixed)

        loss = evaluate_in_batches(measure, stored, AT_ONCE)
        return {"loss": loss, "components": perplexity((picks / picks.sum())[None])}

    def after_epoch(self, epoch: int, optimiser: torch.optim.Optimizer, generator: torch.Generator) -> dict[str, float]:
        """Nothing is done between epochs."""
        return {}

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        height, width = self.module.shape[-2:]
        return height, width


def half_mirrored(x: Tensor, generator: torch.Generator) -> Tensor:
    """Images, of which each is turned round, left for right, with probability one half."""
    turned = torch.rand(len(x), generator=generator, device=x.device) < 0.5
    return torch.where(turned.reshape(-1, *(1 for _ in x.shape[1:])), x.flip(-1), x)


def fixed_masks(kind: MaskKind, number: int, size: tuple[int, int], device: torch.device) -> Tensor:
    """The same masks each time, on every device."""
    return draw_masks(kind, number, size, generator=torch.Generator().manual_seed(1)).to(device)
