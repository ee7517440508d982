"""Training a discrete VAE: which data, which schedules, what is measured between epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from argrad.estimators import Direct, Estimator, GumbelRao, GumbelSoftmax
from argrad.estimators.base import Noise
from argrad.estimators.control import RunningMoments
from argrad.latents import Latent
from argrad.models.dead_codes import perplexity, revive, used
from argrad.models.discrete_vae.module import DiscreteVAEModule
from argrad.training import Decay, WarmUp, World

__all__ = ["Schedules", "VAETask", "evaluate_in_batches"]

EXACT_IN_VALIDATION = 1024
"""Up to this many structures the validation loss is exact; beyond, one sample per example."""


@final
@dataclass(frozen=True)
class Schedules:
    """What changes as training goes on; None leaves the estimator's own value alone."""

    epsilon: Decay | None = None
    temperature: Decay | None = None
    kl_weight: WarmUp = field(default_factory=lambda: WarmUp(1.0))

    def apply(self, estimator: Estimator, step: int) -> None:
        """Set ε and τ in place."""
        if isinstance(estimator, Direct) and not estimator.auto:
            set_when_new(estimator.epsilon, self.epsilon, step)
        if isinstance(estimator, GumbelSoftmax | GumbelRao):
            set_when_new(estimator.temperature, self.temperature, step)

    def constant_from(self, step: int) -> bool:
        """Whether nothing changes after this step."""
        decays = (self.epsilon, self.temperature)
        return step >= self.kl_weight.steps and all(decay is None or decay.rate == 0 for decay in decays)


def set_when_new(buffer: Tensor, schedule: Decay | None, step: int) -> None:
    """Write a schedule's value into a buffer, at the steps at which it may have changed."""
    if schedule is not None and (not schedule.rate or step % schedule.every == 0):
        buffer.fill_(schedule(step))


@final
class VAETask:
    """A discrete VAE and its data, as the training loop wants them.

    Args:
        module: on its device already.
        train: stored images ``[N, *shape]``, on the same device.
        validation: stored images; the training images where there are none.
        values: turns stored images into numbers, such as ``Images.values``.
        schedules: of ε, τ and the KL weight.
        revive_until: epochs after which dead codes are still revived; 0 never.
        world: the processes that train together.
    """

    def __init__(
        self,
        module: DiscreteVAEModule,
        train: Tensor,
        validation: Tensor,
        values: Callable[[Tensor, torch.Generator], Tensor],
        schedules: Schedules,
        *,
        revive_until: int = 0,
        world: World | None = None,
    ) -> None:
        self.module = module
        self.train = train
        self.validation = validation if len(validation) else train
        self.values = values
        self.schedules = schedules
        self.revive_until = revive_until
        self.device = train.device
        self.train_size = len(train)
        self.kl_weight = 1.0
        self.scheduled = True
        if world is not None and world.size > 1:
            for part in module.estimator.modules():
                if isinstance(part, Estimator | RunningMoments):
                    part.sum_over_processes = world.sum

    def set_step(self, step: int) -> None:
        """Set what follows a schedule."""
        if self.scheduled:
            self.kl_weight = self.schedules.kl_weight(step)
            self.schedules.apply(self.module.estimator, step)
            self.scheduled = not self.schedules.constant_from(step)

    def losses(self, batch: Tensor, generator: torch.Generator, world: World) -> Tensor:
        """The negative ELBO of each example of this process's share."""
        # Bits and noise are drawn for the whole batch, so that they do not depend on the number of processes.
        x = world.share(self.values(self.train[batch], generator))
        if world.size == 1:
            return self.module.losses(x, kl_weight=self.kl_weight, generator=generator)
        noise = noise_for_share(self.module, len(batch), generator, world)
        return self.module.losses(x, kl_weight=self.kl_weight, noise=noise)

    def validate(self, generator: torch.Generator) -> dict[str, float]:
        """The negative ELBO on validation images, always with the same noise, and how many codes are in use."""
        fixed = torch.Generator(self.device).manual_seed(0)

        def measure(stored: Tensor) -> Tensor:
            return self.module.negative_elbo(
                self.values(stored, fixed), generator=fixed, exact_up_to=EXACT_IN_VALIDATION
            )

        loss = evaluate_in_batches(measure, self.validation)
        usage = self.usage()
        return {"loss": loss, "perplexity": perplexity(usage), "used_codes": used(usage)}

    def after_epoch(self, epoch: int, optimiser: torch.optim.Optimizer, generator: torch.Generator) -> dict[str, float]:
        """Revive dead codes, while it is time."""
        extra: dict[str, float] = {}
        if epoch <= self.revive_until:
            extra["revived"] = revive(self.module, self.usage(), optimiser, generator)
        if isinstance(self.module.estimator, Direct):
            extra["epsilon"] = self.module.estimator.epsilon.item()
        return extra

    def usage(self) -> Tensor:
        """How often each value of each variable is used on validation images, ``[variables, values]``."""
        fixed = torch.Generator(self.device).manual_seed(1)
        chunks = self.validation.split(1000)
        total = sum(self.module.usage(self.values(chunk, fixed)) * len(chunk) for chunk in chunks)
        assert isinstance(total, Tensor)
        return total / len(self.validation)


def noise_for_share(module: DiscreteVAEModule, whole: int, generator: torch.Generator, world: World) -> Noise | None:
    """The estimator's noise for a whole batch, of which this process keeps its share."""
    parameter = next(module.parameters())
    scores = torch.zeros((whole, *module.event_shape), device=parameter.device, dtype=parameter.dtype)
    latent = module.distribution(scores)
    noise = module.estimator.draw_noise(latent, generator=generator)
    if isinstance(noise, tuple):
        draw, choice = noise
        return share_of_draw(draw, latent, world), world.share(choice, -1)
    return share_of_draw(noise, latent, world) if noise.numel() else None


def share_of_draw(draw: Tensor, latent: Latent, world: World) -> Tensor:
    """Split noise ``[*extra, batch, *event]`` along the batch."""
    return world.share(draw, draw.dim() - latent.event_dims - 1)


def evaluate_in_batches(measure: Callable[[Tensor], Tensor], stored: Tensor, size: int = 1000) -> float:
    """The mean of a per-example number over many examples, without all of them in memory at once."""
    total = torch.zeros((), dtype=torch.float64)
    for chunk in stored.split(size):
        total += measure(chunk).double().sum().cpu()
    return float(total) / len(stored)
