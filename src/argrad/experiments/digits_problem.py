"""A small discrete variational auto-encoder on the digits that ship with scikit-learn: real, and done in seconds.

The encoder is 64-hidden-k (or 64-hidden-n for bits), Linear-ReLU-Linear, the decoder its mirror image, the likelihood
Bernoulli on rounded pixels. It is trained for a while, by the exact gradient unless told otherwise, and stops
half-way, where gradients matter: at the start the latent says nothing, at the end there is nothing left to learn.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from argrad.costs import Reconstruction
from argrad.estimators import Estimator, Exact, LocalExpectation
from argrad.experiments.problems import Problem
from argrad.latents import Bits, Categorical, Latent

__all__ = ["DigitsModel", "DigitsProblem", "Trained", "make_problem", "train"]

PIXELS = 64
ENUMERABLE_BITS = 12
"""Up to here training enumerates all codes; beyond, it takes local expectations."""


@dataclass(frozen=True)
class DigitsProblem:
    """Settings of the model and of its training."""

    values: int = 10
    """Values k of the one categorical variable."""
    bits: int | None = None
    """Number of bits, in place of a categorical variable."""
    hidden: int = 64
    """Units in the hidden layer of encoder and decoder."""
    steps: int = 200
    """Training steps."""
    batch: int = 100
    """Images in a training batch."""
    examples: int = 32
    """Images of the test set in the problem to diagnose."""
    learning_rate: float = 3e-3
    """Of Adam."""
    seed: int = 0
    """Decides first weights, batches and noise."""

    def __post_init__(self) -> None:
        for name, least in (("values", 2), ("hidden", 1), ("steps", 0), ("batch", 1), ("examples", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.bits is not None and self.bits < 1:
            raise ValueError(f"bits must be at least 1, got {self.bits}")


class DigitsModel(nn.Module):
    """Encoder and decoder."""

    def __init__(self, settings: DigitsProblem) -> None:
        super().__init__()
        code, hidden = settings.bits or settings.values, settings.hidden
        self.is_bits = settings.bits is not None
        self.encoder = nn.Sequential(nn.Linear(PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, code))
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, PIXELS))

    def latent(self, x: Tensor) -> Latent:
        """q(z | x) for images ``[batch, 64]``."""
        scores = self.encoder(x)
        return Bits(scores) if self.is_bits else Categorical(scores)

    def cost(self, x: Tensor) -> Reconstruction:
        """−log p(x | z)."""
        return Reconstruction(x, self.decoder)

    def negative_elbo(self, x: Tensor, estimator: Estimator, generator: torch.Generator | None = None) -> Tensor:
        """The loss of each image, ``[batch]``: the estimated reconstruction cost plus the KL in closed form."""
        latent = self.latent(x)
        loss = estimator(latent, self.cost(x), generator=generator)
        assert isinstance(loss, Tensor)
        return loss + latent.kl()


@dataclass(frozen=True)
class Trained:
    """A trained model and how it went."""

    model: DigitsModel
    test_images: Tensor
    negative_elbo: float
    """Nats per test image; exact where all codes can be enumerated."""
    seconds: float


def train(settings: DigitsProblem, estimator: Estimator | None = None) -> Trained:
    """Train with an estimator; None is the exact gradient, or local expectations where there are too many codes."""
    from argrad.data import load

    digits = load("digits")
    images = digits.values(digits.train).flatten(1)
    test = digits.values(digits.test).flatten(1)
    enumerable = settings.bits is None or settings.bits <= ENUMERABLE_BITS
    best: Estimator = Exact() if enumerable else LocalExpectation()
    estimator = best if estimator is None else estimator
    generator = torch.Generator().manual_seed(settings.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = DigitsModel(settings)
        start = time.perf_counter()
        first = torch.randint(len(images), (settings.batch,), generator=generator)
        model.negative_elbo(images[first], estimator, generator)  # gives lazy parameters their size
        parameters = [*model.parameters(), *estimator.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=settings.learning_rate)
        for _ in range(settings.steps):
            batch = images[torch.randint(len(images), (settings.batch,), generator=generator)]
            optimizer.zero_grad()
            model.negative_elbo(batch, estimator, generator).mean().backward()
            optimizer.step()
    seconds = time.perf_counter() - start
    with torch.no_grad():
        score = model.negative_elbo(test, best, generator).mean().item()
    return Trained(model, test, score, seconds)


def make_problem(settings: DigitsProblem) -> tuple[Problem, Trained]:
    """Train by the exact gradient and take the latent and the cost of a batch of test images."""
    trained = train(settings)
    x = trained.test_images[: settings.examples]
    with torch.no_grad():
        latent = trained.model.latent(x)
    what = f"{settings.bits} bits" if settings.bits is not None else f"one of {settings.values} codes"
    loss = f"negative ELBO {trained.negative_elbo:.1f} nats per image"
    description = f"digits, {what}, after {settings.steps} training steps; {loss}"
    return Problem(latent, trained.model.cost(x), description), trained
