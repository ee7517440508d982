"""Training a population: data that stays on the device, best weights per model, on a GPU one captured graph.

The graph holds a whole step: picking the batch, noise, forward, backward, Adam; its matrix products are in TF32, those
of evaluation in float32. Between two replays Python only counts; schedules write the tensors that the graph reads.
Batches are of one size, so what does not fill the last batch of an epoch waits for another epoch's order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from argrad.training.captured_step import CapturedStep
from argrad.training.matmul_precision import training_precision
from argrad.training.population import Population, Weights, per_weight

__all__ = ["PopulationHistory", "Stepper", "train_population"]


@final
@dataclass
class PopulationHistory:
    """What came of a population; tensors are on the CPU, [epochs, seeds, members] or [seeds, members]."""

    validation: Tensor
    """Negative ELBO after each epoch."""
    test: Tensor
    """Negative ELBO after each epoch; nothing where there was no test."""
    best_epoch: Tensor
    """The epoch of the least validation loss, counted from 1."""
    best: Weights
    """The weights of that epoch, on the device."""
    seconds: Tensor
    """Training time at the end of each epoch, [epochs], evaluation left out."""
    steps: int
    revived: Tensor = field(default_factory=lambda: torch.zeros(0))
    """Codes revived, in all."""


def train_population(
    population: Population,
    train: Tensor,
    validation: Tensor,
    test: Tensor | None,
    *,
    epochs: int,
    batch_size: int = 100,
    seed: int = 0,
    progress: Callable[[str], object] | None = None,
) -> PopulationHistory:
    """Train every model of a population; where it averages its weights, the averaged ones are looked at and kept.

    Args:
        population: on its device.
        train: bits ``[N, D]``, uint8, on the same device.
        validation: bits, to choose the best epoch by.
        test: bits, to record, or None; nothing is chosen by them.
        epochs: passes over the data.
        batch_size: examples per step and model.
        seed: of the orders; the device's own generator is seeded with it too.
        progress: is told how far it is.
    """
    device = train.device
    orders = torch.Generator(device).manual_seed(seed)
    torch.manual_seed(seed)
    stepper = Stepper(population, train, batch_size)
    per_epoch = len(train) // batch_size
    on_validation: list[Tensor] = []
    on_test: list[Tensor] = []
    seconds: list[float] = []
    best_loss = torch.full((population.seeds, population.count), torch.inf, dtype=torch.float64, device=device)
    best_epoch = torch.zeros_like(best_loss, dtype=torch.int64)
    best = {name: tensor.detach().clone() for name, tensor in population.weights.items()}
    revived = torch.zeros_like(best_epoch)
    most_revivals = max(member.revive_until for member in population.members)
    spent = 0.0
    for epoch in range(1, epochs + 1):
        began = time.monotonic()
        stepper.shuffle(orders)
        for number in range(per_epoch):
            population.apply_schedules((epoch - 1) * per_epoch + number)
            stepper.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        spent += time.monotonic() - began
        seconds.append(spent)
        weights = population.averaged()
        elbo, _ = population.evaluate(validation, weights)
        better = elbo < best_loss
        best_loss, best_epoch = torch.where(better, elbo, best_loss), best_epoch.masked_fill(better, epoch)
        for name, tensor in weights.items():
            mask = per_weight(better, name, tensor.dim())
            best[name].copy_(torch.where(mask, tensor, best[name]))
        on_validation.append(elbo.cpu())
        if test is not None:
            on_test.append(population.evaluate(test, weights)[0].cpu())
        if epoch <= most_revivals:
            revived += population.revive(population.usage(train[:5000]), epoch)
        if progress and (epoch == 1 or epoch == epochs or epoch % max(1, epochs // 10) == 0):
            progress(f"epoch {epoch}/{epochs}: validation {elbo.mean():.2f}, {spent:.0f} s")
    return PopulationHistory(
        torch.stack(on_validation),
        torch.stack(on_test) if on_test else torch.zeros(0, *best_loss.shape),
        best_epoch.cpu(),
        best,
        torch.tensor(seconds),
        per_epoch * epochs,
        revived.cpu(),
    )


@final
class Stepper:
    """Steps through the data, by a captured graph where the device can."""

    def __init__(self, population: Population, train: Tensor, batch_size: int) -> None:
        self.population, self.train, self.batch_size = population, train, batch_size
        self.order = torch.zeros((population.seeds, len(train)), dtype=torch.int64, device=train.device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=train.device)
        self.offsets = torch.arange(batch_size, device=train.device)
        self.step = CapturedStep(self._one_step, self._tensors, train.device)
        """The next batch of every seed."""
        self.step.prepare()

    def shuffle(self, generator: torch.Generator) -> None:
        """A fresh order for every seed."""
        for row in self.order:
            row.copy_(torch.randperm(len(row), generator=generator, device=row.device))
        self.cursor.zero_()

    def _one_step(self) -> None:
        chosen = self.order.index_select(1, self.cursor + self.offsets)
        x = self.train[chosen].to(self.population.temperature.dtype)
        with training_precision(x.device):
            self.population.step(x)
        self.cursor.add_(self.batch_size)

    def _tensors(self) -> list[Tensor]:
        p = self.population
        stacked = [tensor for part in (p.weights, p.first, p.second) for tensor in part.values()]
        return [*stacked, *p.sums.values(), p.summed, *p.steps.values(), p.epsilon, p.adaptations, self.cursor]
