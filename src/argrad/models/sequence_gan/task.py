"""Training a sequence GAN: maximum likelihood first, then the game of two players."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from argrad.data.text import Text
from argrad.estimators import Direct
from argrad.models.sequence_gan.module import SequenceGANModule, SequenceGenerator
from argrad.models.sequence_gan.scores import mean_nll, score_sequences
from argrad.training import World

__all__ = ["LikelihoodTask", "SequenceGANTask"]

DRAWN = 2000
"""How many sequences are drawn to be scored, unless fewer are held out."""


@final
class LikelihoodTask:
    """A generator and text, trained by maximum likelihood.

    Args:
        generator: on its device already.
        text: on the same device.
    """

    def __init__(self, generator: SequenceGenerator, text: Text) -> None:
        self.module = generator
        self.text = text
        self.device = text.train.device
        self.train_size = len(text.train)

    def set_step(self, step: int) -> None:
        """Nothing follows a schedule."""

    def losses(self, batch: Tensor, generator: torch.Generator, world: World) -> Tensor:
        """−log q of each line."""
        require_one_process(world)
        return -self.module.log_prob(self.text.train[batch])

    def validate(self, generator: torch.Generator) -> dict[str, float]:
        """−log q of validation lines, in nats per line."""
        return {"loss": mean_nll(self.module, self.text.validation)}

    def after_epoch(self, epoch: int, optimiser: torch.optim.Optimizer, generator: torch.Generator) -> dict[str, float]:
        """Nothing is done between epochs."""
        return {}


@final
class SequenceGANTask:
    """The game: the discriminator moves at every step, the generator at some of them.

    Args:
        module: on its device already.
        text: on the same device.
        discriminator_steps: the generator moves at every so many steps, with as many times the lines, …
        warm_up: … after so many in which the discriminator alone does.
        average: the share of its weights that the writer keeps at each move of the generator.
    """

    def __init__(
        self, module: SequenceGANModule, text: Text, *, discriminator_steps: int, warm_up: int, average: float
    ) -> None:
        self.module = module
        self.text = text
        self.discriminator_steps = discriminator_steps
        self.warm_up = warm_up
        self.average = average
        self.device = text.train.device
        self.train_size = len(text.train)
        self.step = 0

    def set_step(self, step: int) -> None:
        """Remember whose turn it is."""
        self.step = step

    def losses(self, batch: Tensor, generator: torch.Generator, world: World) -> Tensor:
        """The discriminator's loss of each line, plus the generator's mean where it is its turn.

        Each reaches the parameters of its own player only; who gets no gradient does not move. The writer follows at
        the generator's turn, before it moves, and so is one move behind.
        """
        require_one_process(world)
        fake = self.module.generator.sample(len(batch), generator=generator)
        losses = self.module.discriminator_losses(self.text.train[batch], fake)
        if self.step >= self.warm_up and self.step % self.discriminator_steps == 0:
            self.module.follow(self.average)
            rows = self.discriminator_steps * len(batch)
            return losses + self.module.generator_losses(rows, noise=generator).mean()
        return losses

    def validate(self, generator: torch.Generator) -> dict[str, float]:
        """What :func:`score_sequences` says of the writer, with the same noise always; the loss is the divergence."""
        fixed = torch.Generator(self.device).manual_seed(0)
        drawn = self.module.writer.sample(min(DRAWN, len(self.text.validation)), generator=fixed)
        scores = score_sequences(self.module.writer, drawn, self.text.train, self.text.validation)
        return {"loss": scores["divergence"], **scores}

    def after_epoch(self, epoch: int, optimiser: torch.optim.Optimizer, generator: torch.Generator) -> dict[str, float]:
        """Nothing is done between epochs; ε is recorded where it adapts."""
        estimator = self.module.estimator
        return {"epsilon": estimator.epsilon.item()} if isinstance(estimator, Direct) else {}


def require_one_process(world: World) -> None:
    """Raise a ValueError where several processes train together."""
    if world.size > 1:
        raise ValueError("a sequence GAN is trained by one process; leave out torchrun")
