r"""Many semi-supervised VAEs trained as one: stacked parameters, one batched step, on a GPU a captured graph per phase.

One model of the paper's size leaves a GPU idle. Here M models of one recipe, which differ in their labels and first
weights, are trained side by side: every layer is one batched product, Adam one pass over stacked parameters. Each model
has its own order of the images and its own labelled batches, all picked on the device.

With B images per step, k classes and D pixels a step multiplies :math:`M B\,[400 D + 80{,}000 + 20{,}000 + k\,(20{,}000
+ 6{,}600 + 132\,\mathrm{dim} + 400\,\mathrm{dim} + 400 D + 100)]` numbers forward and twice that backward; 400 D k, the
decoder's last layer for every class, is most of it.

Given the same draws a step equals those of the models one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import final

import torch
from torch import Tensor
from torch.optim.adam import adam

from argrad.models.semi_supervised.loss import Draws, Objective, check_labels
from argrad.models.semi_supervised.module import SemiSupervisedModule, stack
from argrad.models.semi_supervised.task import follow
from argrad.training.captured_step import CapturedStep

__all__ = ["Stack", "evaluate_stack", "train_stack"]


@final
class Stack:
    """M models, their optimiser, and the average of their weights.

    Args:
        modules: of one shape, on the device.
        objective: the same for all, on the device.
        learning_rate: Adam's step size.
        decay: of the averaged weights; 0 is none.
    """

    def __init__(
        self,
        modules: Sequence[SemiSupervisedModule],
        objective: Objective,
        *,
        learning_rate: float = 1e-3,
        decay: float = 0.0,
    ) -> None:
        self.module, self.objective = stack(modules), objective
        self.learning_rate, self.decay = learning_rate, decay
        self.average = stack(modules).requires_grad_(False) if decay > 0 else None
        self.parameters: list[Tensor] = list(self.module.parameters())
        device = self.parameters[0].device
        self.first = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.second = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.steps = [torch.zeros((), device=device) for _ in self.parameters]

    @property
    def size(self) -> int:
        """M."""
        return self.parameters[0].shape[0]

    @property
    def predictor(self) -> SemiSupervisedModule:
        """The stacked models that predict."""
        return self.module if self.average is None else self.average

    def tensors(self) -> list[Tensor]:
        """All that a step changes."""
        averaged = [] if self.average is None else list(self.average.parameters())
        remembered = list(self.objective.buffers())
        return [*self.parameters, *self.first, *self.second, *self.steps, *averaged, *remembered]

    def step(self, x: Tensor | None, labelled: Tensor, labels: Tensor, draws: Draws | None = None) -> Tensor:
        """One step of every model; returns their losses ``[M]``.

        Args:
            x: ``[M, B, features]``, or None in a label-first phase.
            labelled: ``[M, L, features]``.
            labels: class numbers ``[M, L]``.
            draws: from ``objective.draw``; drawn where it is None.
        """
        if draws is None:
            draws = self.objective.draw(self.module, x, labelled)
        losses: Tensor = self.objective(self.module, x, labelled, labels, draws).total()
        used = [parameter for parameter in self.parameters if parameter.requires_grad]
        gradients = torch.autograd.grad(losses.sum(), used, allow_unused=True)
        self._adam([torch.zeros_like(p) if g is None else g for p, g in zip(used, gradients, strict=True)])
        if self.average is not None:
            done = self.steps[0]
            follow(self.average, self.module, ((1 + done) / (10 + done)).clamp_max(self.decay))
        return losses.detach()

    @torch.no_grad()
    def _adam(self, gradients: list[Tensor]) -> None:
        adam(
            self.parameters,
            [gradient.contiguous() for gradient in gradients],  # the fused kernel ignores strides
            self.first,
            self.second,
            [],
            self.steps,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.learning_rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


@final
class _Stepper:
    """Picks batches and steps, by one captured graph for each phase where the device can."""

    def __init__(
        self, stacked: Stack, train: Tensor, labels: Tensor, labelled: Sequence[Tensor], batch: int, labelled_batch: int
    ) -> None:
        device, most = train.device, max(len(rows) for rows in labelled)
        self.stacked, self.train, self.labels = stacked, train, labels
        self.batch, self.labelled_batch = batch, labelled_batch
        self.rows = torch.stack([torch.nn.functional.pad(rows, (0, most - len(rows))) for rows in labelled]).to(device)
        self.counts = torch.tensor([[len(rows)] for rows in labelled], device=device)
        self.order = torch.zeros((stacked.size, len(train)), dtype=torch.int64, device=device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)
        self.offsets = torch.arange(batch, device=device)
        self._steps = {
            labels_only: CapturedStep(partial(self._one_step, labels_only), self._tensors, device)
            for labels_only in (True, False)
        }

    def shuffle(self, generator: torch.Generator) -> None:
        """A fresh order for every model."""
        for row in self.order:
            row.copy_(torch.randperm(len(row), generator=generator, device=row.device))
        self.cursor.zero_()

    def step(self, *, labels_only: bool) -> None:
        """The next batch of every model."""
        self._steps[labels_only]()

    def _one_step(self, labels_only: bool) -> None:
        dtype = self.stacked.parameters[0].dtype
        pick = torch.rand((self.stacked.size, self.labelled_batch), device=self.train.device)
        chosen = self.rows.gather(1, (pick * self.counts).long())
        labelled = self.train[chosen].to(dtype)
        x = None
        if not labels_only:
            x = self.train[self.order.index_select(1, self.cursor + self.offsets)].to(dtype)
        self.stacked.step(x, labelled, self.labels[chosen])
        self.cursor.add_(self.batch)

    def _tensors(self) -> list[Tensor]:
        return [*self.stacked.tensors(), self.cursor]


def train_stack(
    stacked: Stack,
    train: Tensor,
    labels: Tensor,
    labelled: Sequence[Tensor],
    *,
    epochs: int,
    label_first: int = 0,
    batch_size: int = 100,
    labelled_batch: int = 100,
    seed: int = 0,
    progress: Callable[[str], object] | None = None,
    after_epoch: Callable[[int], object] | None = None,
) -> float:
    """Train every model of a stack; returns the seconds it took.

    Args:
        stacked: on its device.
        train: images ``[N, features]`` in any type that becomes numbers in [0, 1], on the same device.
        labels: class numbers of all of them, ``[N]``; only the labelled ones are looked at.
        labelled: for each model, which images are labelled: indices, at least one.
        epochs: passes over the data, those on labelled images alone included; a batch is never short, so what does not
            fill the last one waits for another epoch's order.
        label_first: how many of the epochs take labelled images alone.
        batch_size: images per step and model.
        labelled_batch: labelled images per step and model, drawn with replacement.
        seed: of the orders; the device's own generator is seeded with it too.
        progress: is told how far it is.
        after_epoch: is called with the number of the epoch; its time is not counted.
    """
    if len(train) < batch_size:
        raise ValueError(f"a batch of {batch_size} needs at least as many images, got {len(train)}")
    for rows in labelled:
        check_labels(labels[rows.to(labels.device)], stacked.module.classes)
    orders = torch.Generator(train.device).manual_seed(seed)
    torch.manual_seed(seed)
    stepper = _Stepper(stacked, train, labels, labelled, batch_size, labelled_batch)
    stacked.module.train()
    spent = 0.0
    for epoch in range(1, epochs + 1):
        began = time.monotonic()
        stepper.shuffle(orders)
        for _ in range(len(train) // batch_size):
            stepper.step(labels_only=epoch <= label_first)
        if train.device.type == "cuda":
            torch.cuda.synchronize(train.device)
        spent += time.monotonic() - began
        if progress and (epoch in (1, epochs) or epoch % max(1, epochs // 10) == 0):
            progress(f"epoch {epoch}/{epochs}, {spent:.0f} s")
        if after_epoch:
            after_epoch(epoch)
    return spent


@torch.no_grad()
def evaluate_stack(
    module: SemiSupervisedModule, x: Tensor, labels: Tensor, *, chunk: int = 500, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Accuracy of the deterministic prediction, in percent, and mean negative ELBO of every model, each ``[M]``.

    Args:
        module: stacked models.
        x: images ``[N, features]``, the same for all models.
        labels: class numbers ``[N]``.
        chunk: images at a time.
        seed: of the Gaussian draws, one per image and class, the same for all models.
    """
    weight = module.trunk_enter.weight
    generator = torch.Generator(x.device).manual_seed(seed)
    right = torch.zeros(len(weight), dtype=torch.float64, device=x.device)
    bound = torch.zeros_like(right)
    training = module.training
    module.eval()
    for rows, known in zip(x.split(chunk), labels.split(chunk), strict=True):
        same = rows.to(weight.dtype).expand(len(weight), *rows.shape)
        shape = (len(rows), module.classes, module.latent)
        noise = torch.randn(shape, generator=generator, device=x.device, dtype=weight.dtype)
        scores = module.class_scores(module.trunk(same))
        right += (scores.argmax(-1) == known).double().sum(-1)
        bound += module.negative_elbo(same, noise=noise.expand(len(weight), *shape)).double().sum(-1)
    module.train(training)
    return 100 * right / len(x), bound / len(x)
