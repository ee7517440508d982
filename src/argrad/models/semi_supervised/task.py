"""Training a semi-supervised VAE with the common loop: which data, which phase, which weights predict."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from argrad.models.discrete_vae.task import evaluate_in_batches
from argrad.models.semi_supervised.loss import Objective, check_labels
from argrad.models.semi_supervised.module import SemiSupervisedModule
from argrad.training import World

__all__ = ["SemiSupervisedTask", "Trainee", "follow"]


@final
class Trainee(nn.Module):
    """All that is learnt or remembered: the model, the average of its weights that predicts, and the objective.

    Args:
        module: the model that is trained.
        objective: with the estimators, which may remember something.
        decay: of the average; 0 is no average, the model itself predicts.
    """

    def __init__(self, module: SemiSupervisedModule, objective: Objective, decay: float = 0.0) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise ValueError(f"the decay of the averaged weights must be at least 0 and below 1, got {decay}")
        self.module, self.objective, self.decay = module, objective, decay
        self.average = copy.deepcopy(module).requires_grad_(False) if decay > 0 else None

    @property
    def predictor(self) -> SemiSupervisedModule:
        """The model that predicts."""
        return self.module if self.average is None else self.average

    def update(self, step: int) -> None:
        """Move the average after a number of steps."""
        if self.average is not None:
            follow(self.average, self.module, min(self.decay, (1 + step) / (10 + step)))


@torch.no_grad()
def follow(average: nn.Module, module: nn.Module, decay: float | Tensor) -> None:
    """Exponential moving average of weights: less noise in what predicts than in what is trained."""
    away = 1 - decay
    for slow, fast in zip(average.parameters(), module.parameters(), strict=True):
        slow.lerp_(fast, away)


@final
class SemiSupervisedTask:
    """A semi-supervised VAE and its data, as the training loop wants them.

    Every step takes a batch of all images, whose labels are not looked at, and a batch of labelled ones, drawn with
    replacement. The first ``label_first`` steps take the labelled batch alone, so that the classes get their names
    before the bound can give them other meanings.

    Args:
        trainee: on its device already.
        train: stored images ``[N, *shape]``, on the same device.
        labels: class numbers ``[N]``, −1 where there is none.
        validation: stored images; the training images where there are none.
        values: turns stored images into numbers, such as ``Images.values``.
        label_first: steps on labelled images alone.
        labelled_batch: labelled images per step.
        validation_labels: to record the accuracy by, −1 where there is none; nothing is chosen by them.
    """

    def __init__(
        self,
        trainee: Trainee,
        train: Tensor,
        labels: Tensor,
        validation: Tensor,
        values: Callable[[Tensor, torch.Generator], Tensor],
        *,
        label_first: int = 0,
        labelled_batch: int = 50,
        validation_labels: Tensor | None = None,
    ) -> None:
        if label_first < 0 or labelled_batch < 1:
            raise ValueError(
                f"label_first must be at least 0 and labelled_batch at least 1, got {label_first} and {labelled_batch}"
            )
        self.module = trainee
        self.train = train
        self.labels = labels
        self.labelled = (labels >= 0).nonzero().flatten()
        check_labels(labels[self.labelled], trainee.module.classes)
        self.validation = validation if len(validation) else train
        self.validation_labels = validation_labels if len(validation) else None
        self.values = values
        self.label_first, self.labelled_batch = label_first, labelled_batch
        self.device = train.device
        self.train_size = len(train)
        self.step = 0

    def set_step(self, step: int) -> None:
        """Move the average, and know the phase."""
        self.step = step
        if step > 0:
            self.module.update(step)

    def losses(self, batch: Tensor, generator: torch.Generator, world: World) -> Tensor:
        """The losses of the batch and of a labelled one, in shares that add up to the objective's mean."""
        if world.size > 1:
            raise ValueError("a semi-supervised VAE is trained by one process; leave out torchrun")
        module, objective, size = self.module.module, self.module.objective, len(batch)
        chosen = torch.randint(len(self.labelled), (self.labelled_batch,), generator=generator, device=self.device)
        rows = self.labelled[chosen]
        labelled = self.values(self.train[rows], generator).flatten(1)
        x = self.values(self.train[batch], generator).flatten(1) if self.step >= self.label_first else None
        draws = objective.draw(module, x, labelled, generator=generator)
        losses = objective(module, x, labelled, self.labels[rows], draws)
        parts = [losses.unlabelled, losses.labelled * (size / self.labelled_batch), losses.batch.reshape(1) * size]
        return torch.cat(parts)

    def validate(self, generator: torch.Generator) -> dict[str, float]:
        """What the best epoch has least of: the bound on validation images plus the label loss of the labelled ones.

        The bound is the negative ELBO, always with the same noise; the label loss is the cross-entropy with the weight
        that it has in training. The bound alone would choose an epoch that does not know the classes yet, and no other
        label than those that are trained on is looked at.
        """
        fixed = torch.Generator(self.device).manual_seed(0)
        predictor = self.module.predictor

        def bound(stored: Tensor) -> Tensor:
            return predictor.negative_elbo(self.values(stored, fixed).flatten(1), generator=fixed)

        held_out = evaluate_in_batches(bound, self.validation)
        scores = self._scores(self.train[self.labelled], fixed).double()
        surprise = nn.functional.cross_entropy(scores, self.labels[self.labelled])
        metrics = {"loss": held_out + self.module.objective.label_weight() * float(surprise), "bound": held_out}
        if self.validation_labels is not None and bool((self.validation_labels >= 0).any()):
            right = self._scores(self.validation, fixed).argmax(-1) == self.validation_labels
            metrics["accuracy"] = float(right[self.validation_labels >= 0].double().mean())
        return metrics

    def after_epoch(self, epoch: int, optimiser: torch.optim.Optimizer, generator: torch.Generator) -> dict[str, float]:
        """The share of labelled images that are given their own label."""
        right = self._scores(self.train[self.labelled], generator).argmax(-1) == self.labels[self.labelled]
        return {"labelled_accuracy": float(right.double().mean())}

    @torch.no_grad()
    def _scores(self, stored: Tensor, generator: torch.Generator) -> Tensor:
        predictor = self.module.predictor
        x = self.values(stored, generator).flatten(1)
        return predictor.class_scores(predictor.trunk(x))
