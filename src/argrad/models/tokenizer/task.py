"""Training a tokenizer with the common loop: which data, which schedules, what is measured between epochs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from argrad.estimators import Direct
from argrad.models.dead_codes import perplexity, used
from argrad.models.discrete_vae.task import Schedules, evaluate_in_batches
from argrad.models.tokenizer.codes import enough_cells, place_codes, revive_codes
from argrad.models.tokenizer.module import How, TokenizerModule
from argrad.training import World

__all__ = ["TokenizerTask", "at_once", "squared_error", "usage_in_batches"]

AT_ONCE = 500
"""Images that are evaluated at a time, at most …"""
SCORES_AT_ONCE = 2**24
"""… and scores, one of every code in every cell."""


def at_once(event_shape: tuple[int, int]) -> int:
    """How many images of so many cells and codes are evaluated at a time: fewer where they are large."""
    cells, codes = event_shape
    return max(1, min(AT_ONCE, SCORES_AT_ONCE // (cells * codes)))


@final
class TokenizerTask:
    """A tokenizer and its images, as the training loop wants them.

    Args:
        module: on its device already.
        train: stored images ``[N, *shape]``, on the same device.
        validation: stored images; the training images where there are none.
        values: turns stored images into numbers, such as ``Images.values``.
        schedules: of ε, τ and the KL weight.
        revive_until: epochs with codes after which dead ones are still revived; 0 never.
        continuous_steps: steps at first without codes, which are placed then; 0 starts with codes as they are.
    """

    def __init__(
        self,
        module: TokenizerModule,
        train: Tensor,
        validation: Tensor,
        values: Callable[[Tensor, torch.Generator], Tensor],
        schedules: Schedules,
        *,
        revive_until: int = 0,
        continuous_steps: int = 0,
    ) -> None:
        self.module = module
        self.train = train
        self.validation = validation if len(validation) else train
        self.values = values
        self.schedules = schedules
        self.revive_until = revive_until
        self.continuous_steps = continuous_steps
        self.device = train.device
        self.train_size = len(train)
        self.kl_weight = 1.0
        self.step = 0

    @property
    def is_continuous(self) -> bool:
        """Whether this step is one without codes."""
        return self.step < self.continuous_steps

    def set_step(self, step: int) -> None:
        """Set what follows a schedule, which begins where there are codes."""
        self.step = step
        with_codes = max(0, step - self.continuous_steps)
        self.kl_weight = self.schedules.kl_weight(with_codes)
        self.schedules.apply(self.module.estimator, with_codes)

    def losses(self, batch: Tensor, generator: torch.Generator, world: World) -> Tensor:
        """The negative ELBO of each image, its KL weighted; at first, its continuous part."""
        if world.size > 1:
            raise ValueError("a tokenizer is trained by one process; leave out torchrun")
        if self.step == self.continuous_steps > 0:
            place_codes(self.module, self._some_vectors(generator), generator)
        x = self.values(self.train[batch], generator)
        if self.is_continuous:
            return self.module.continuous_losses(x)
        return self.module.losses(x, kl_weight=self.kl_weight, generator=generator)

    def validate(self, generator: torch.Generator) -> dict[str, float]:
        """On validation images, always with the same noise.

        ``loss`` is the objective with the KL weight that training ends with, whatever it is now, so that epochs can be
        compared; ``hard_error`` and ``soft_error`` are squared errors per pixel. As long as training does without
        codes, they are placed to be looked at.
        """
        if self.is_continuous:
            placing = torch.Generator(self.device).manual_seed(0)
            place_codes(self.module, self._some_vectors(placing), placing)
        fixed = torch.Generator(self.device).manual_seed(0)
        size = at_once(self.module.event_shape)

        def measure(stored: Tensor) -> Tensor:
            x = self.values(stored, fixed)
            return self.module.negative_elbo(x, kl_weight=self.schedules.kl_weight.end, generator=fixed)

        loss = evaluate_in_batches(measure, self.validation, size)
        errors = {
            f"{how}_error": squared_error(self.module, self.validation, self._values, how, size=size)
            for how in ("hard", "soft")
        }
        usage = usage_in_batches(self.module, self.validation, self._values, size=size)
        return {"loss": loss, **errors, "perplexity": perplexity(usage), "used_codes": used(usage)}

    def after_epoch(self, epoch: int, optimiser: torch.optim.Optimizer, generator: torch.Generator) -> dict[str, float]:
        """Revive dead codes, while it is time; without codes, say so."""
        extra: dict[str, float] = {}
        epochs_without_codes = self.continuous_steps // ((self.step + 1) // epoch)
        if self.is_continuous:
            extra["continuous"] = 1.0
        elif epoch - epochs_without_codes <= self.revive_until:
            size = at_once(self.module.event_shape)
            usage = usage_in_batches(self.module, self.validation, self._values, size=size)
            some = self._some_images(generator)
            extra["revived"] = revive_codes(self.module, usage, some, optimiser, generator)
        if isinstance(self.module.estimator, Direct):
            extra["epsilon"] = self.module.estimator.epsilon.item()
        return extra

    def _some_images(self, generator: torch.Generator) -> Tensor:
        """Training images, as many as are evaluated at a time."""
        order = torch.randperm(self.train_size, generator=generator, device=self.device)
        return self._values(self.train[order[: at_once(self.module.event_shape)]])

    @torch.no_grad()
    def _some_vectors(self, generator: torch.Generator) -> Tensor:
        """What the encoder says of cells of many training images, as many cells as codes want to be placed among."""
        cells, codes = self.module.event_shape
        number = min(self.train_size, max(AT_ONCE, -(-enough_cells(codes) // cells)))
        share = min(1.0, enough_cells(codes) / (number * cells))
        order = torch.randperm(self.train_size, generator=generator, device=self.device)[:number]
        found = []
        for chunk in order.split(at_once(self.module.event_shape)):
            vectors = self.module.encoder(self._values(self.train[chunk])).flatten(0, 1)
            some = torch.randperm(len(vectors), generator=generator, device=self.device)
            found.append(vectors[some[: math.ceil(share * len(vectors))]])
        return torch.cat(found)

    def _values(self, stored: Tensor) -> Tensor:
        return self.values(stored, torch.Generator(self.device).manual_seed(1))


def squared_error(
    module: TokenizerModule,
    stored: Tensor,
    values: Callable[[Tensor], Tensor],
    how: How = "hard",
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    size: int = AT_ONCE,
) -> float:
    """The mean squared error per pixel of reconstructions of many images."""

    def measure(chunk: Tensor) -> Tensor:
        x = values(chunk)
        rebuilt = module.reconstruct(x, how, temperature=temperature, generator=generator)
        return (rebuilt - x).square().flatten(1).mean(1)

    return evaluate_in_batches(measure, stored, size)


def usage_in_batches(
    module: TokenizerModule, stored: Tensor, values: Callable[[Tensor], Tensor], *, size: int = AT_ONCE
) -> Tensor:
    """How often each code is used in many images, ``[K]``."""
    chunks = stored.split(size)
    parts = [module.usage(values(chunk)) * (len(chunk) / len(stored)) for chunk in chunks]
    return torch.stack(parts).sum(0)
