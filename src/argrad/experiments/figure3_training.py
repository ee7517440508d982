"""Training of stacked models with any estimator: settings per model, Adam with a rate per model, one captured graph.

A step of one stack is a chain of some hundred small kernels, each waiting for the one before it, and most of a GPU is
idle. Stacks of different estimators share no tensor, so :class:`SideBySide` puts the steps of several into one graph,
each on a stream of its own. On an H200 the steps of ten rows of Figure 3 took 2.7 ms together and 5.7 ms one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor, nn

from argrad.estimators import (
    Arm,
    Direct,
    DisArm,
    Estimator,
    Exact,
    GumbelSoftmax,
    LocalExpectation,
    Rebar,
    Relax,
)
from argrad.experiments.figure3_model import Encoder, StackedBitsVAE, StackedReconstruction
from argrad.solvers.pairwise import PairwiseSolverName
from argrad.training.captured_step import CapturedStep
from argrad.training.matmul_precision import training_precision

__all__ = ["Curve", "Group", "Method", "SideBySide", "Trainer", "Trial", "make_estimator", "make_trainer", "train"]

Method = Literal[
    "direct",
    "gumbel-softmax",
    "straight-through",
    "rebar",
    "relax",
    "arm",
    "disarm",
    "local-expectation",
    "exact",
]


@final
@dataclass(frozen=True)
class Trial:
    """One model: where it starts and how it is trained."""

    seed: int
    """Of the first weights and of the orders of the images."""
    one_hot: bool = True
    """What its decoder reads."""
    learning_rate: float = 1e-3
    """Adam's."""
    setting: float | None = None
    """ε of direct; the first τ of the relaxations, REBAR and RELAX; None for the others."""


@final
@dataclass(frozen=True)
class Group:
    """Models that are stacked: of one method and one kind of encoder."""

    method: Method
    encoder: Encoder
    trials: Sequence[Trial]


def make_estimator(method: Method, trials: Sequence[Trial], bits: int) -> Estimator:
    """The estimator for stacked models, with each model's own setting."""
    settings = torch.tensor([1.0 if trial.setting is None else trial.setting for trial in trials])
    per_event = settings[:, None, None]
    if method == "direct":
        return Direct(settings[:, None])
    if method in ("gumbel-softmax", "straight-through"):
        relaxed = GumbelSoftmax(straight_through=method == "straight-through")
        relaxed.temperature = per_event
        return relaxed
    if method == "rebar":
        rebar = Rebar()
        rebar.log_temperature = nn.Parameter(per_event.log())
        rebar.eta = nn.Parameter(torch.ones(len(trials), 1))
        return rebar
    if method == "relax":
        relax = Relax(StackedControl([trial.seed for trial in trials], 2 * bits), relaxed_cost=True)
        relax.log_temperature = nn.Parameter(per_event.log())
        relax.moments = StackedMoments(len(trials))  # type: ignore[assignment]
        return relax
    plain: dict[str, type[Estimator]] = {
        "arm": Arm,
        "disarm": DisArm,
        "local-expectation": LocalExpectation,
        "exact": Exact,
    }
    return plain[method]()


@final
class StackedControl(nn.Module):
    """RELAX's network, one per model: ``[M, B, inputs]`` to ``[M, B]``; the last layer starts at zero."""

    def __init__(self, seeds: Sequence[int], inputs: int, hidden: int = 64) -> None:
        super().__init__()
        layers = []
        for seed in seeds:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                layers.append(nn.Linear(inputs, hidden))
        self.first = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
        self.first_bias = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))
        self.last = nn.Parameter(torch.zeros(len(seeds), hidden, 1))
        self.last_bias = nn.Parameter(torch.zeros(len(seeds), 1, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        """One number per example."""
        hidden = nn.functional.silu(torch.baddbmm(self.first_bias, inputs, self.first))
        return torch.baddbmm(self.last_bias, hidden, self.last).squeeze(-1)


@final
class StackedMoments(nn.Module):
    """:class:`argrad.estimators.control.RunningMoments` of each model's own costs."""

    sums: Tensor

    def __init__(self, models: int, decay: float = 0.95) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("sums", torch.zeros(3, models, 1))

    def location(self) -> Tensor:
        """``[M, 1]``."""
        return self.sums[1] / self.sums[0].clamp_min(torch.finfo(self.sums.dtype).tiny)

    def scale(self) -> Tensor:
        """``[M, 1]``."""
        tiny = torch.finfo(self.sums.dtype).tiny
        variance = self.sums[2] / self.sums[0].clamp_min(tiny) - self.location().square()
        return torch.where(variance > 0, variance.clamp_min(tiny).sqrt(), 1.0)

    @torch.no_grad()
    def update(self, costs: Tensor) -> None:
        """Take in costs ``[M, B]``."""
        batch = torch.stack([torch.ones_like(costs), costs, costs.square()]).mean(-1, keepdim=True)
        self.sums.lerp_(batch, 1 - self.decay)


@final
class StackedAdam:
    """Adam with a step size per model, for parameters whose first dimension is the model."""

    def __init__(self, parameters: Iterable[Tensor], rates: Sequence[float], betas: tuple[float, float] = (0.9, 0.999)):
        self.parameters = list(parameters)
        device = self.parameters[0].device
        self.first = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.second = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.steps = torch.zeros((), device=device)
        self.betas = betas
        rate = torch.tensor(rates, device=device)
        self.rates = [rate.reshape(-1, *(1 for _ in parameter.shape[1:])) for parameter in self.parameters]

    def tensors(self) -> list[Tensor]:
        """What it remembers."""
        return [*self.first, *self.second, self.steps]

    @torch.no_grad()
    def step(self) -> None:
        """Follow the gradients."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        assert len(gradients) == len(self.parameters)
        first_decay, second_decay = self.betas
        self.steps.add_(1)
        torch._foreach_lerp_(self.first, gradients, 1 - first_decay)
        torch._foreach_mul_(self.second, second_decay)
        torch._foreach_addcmul_(self.second, gradients, gradients, 1 - second_decay)
        sizes = torch._foreach_sqrt(self.second)
        torch._foreach_mul_(sizes, (1 - second_decay**self.steps).rsqrt())
        torch._foreach_add_(sizes, 1e-8)
        moves = torch._foreach_div(self.first, sizes)
        torch._foreach_mul_(moves, 1 / (1 - first_decay**self.steps))
        torch._foreach_mul_(moves, self.rates)
        torch._foreach_sub_(self.parameters, moves)


@final
class Trainer:
    """Steps of stacked models through images that stay on the device; :class:`SideBySide` makes them.

    Args:
        model: stacked, on its device.
        estimator: for stacked models, on the same device.
        trials: one per model.
        images: bits ``[N, pixels]``, uint8, on the same device.
        batch_size: images per step and model.
    """

    def __init__(
        self,
        model: StackedBitsVAE,
        estimator: Estimator,
        trials: Sequence[Trial],
        images: Tensor,
        batch_size: int = 100,
    ) -> None:
        self.model, self.estimator, self.images, self.batch_size = model, estimator, images, batch_size
        seeds = sorted({trial.seed for trial in trials})
        device = images.device
        self.orders = torch.zeros(len(seeds), len(images), dtype=torch.int64, device=device)
        self.own_order = torch.tensor([seeds.index(trial.seed) for trial in trials], device=device)
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)
        self.offsets = torch.arange(batch_size, device=device)
        parameters = [p for part in (model, estimator) for p in part.parameters() if p.requires_grad]
        rates = {trial.learning_rate for trial in trials}
        self.parameters = parameters
        self.adam: StackedAdam | torch.optim.Adam
        if len(rates) == 1:
            self.adam = torch.optim.Adam(parameters, lr=rates.pop(), fused=True, capturable=device.type == "cuda")
        else:
            self.adam = StackedAdam(parameters, [trial.learning_rate for trial in trials])
        self.stays_on_device = model.perturbed_solver in (None, "enumeration")  # other solvers work on the CPU

    def rewind(self) -> None:
        """A fresh order for every seed."""
        for row, generator in zip(self.orders, self.generators, strict=True):
            row.copy_(torch.randperm(len(row), generator=generator, device=row.device))
        self.cursor.zero_()

    def losses(self, x: Tensor) -> Tensor:
        """What is minimised, ``[M, B]``: the cost with the estimator's gradient, and the exact KL of the posterior.

        Perturbed samples have no known KL, and none is trained.
        """
        q = self.model.latent(x)
        value: Tensor = self.estimator(q, StackedReconstruction(self.model, x))
        return value + q.kl() if self.model.perturbed_solver is None else value

    def one_step(self) -> None:
        """Pick, draw, decode, differentiate, move."""
        chosen = self.orders.index_select(1, self.cursor + self.offsets)
        x = self.images[chosen].to(self.model.enter.dtype)
        if len(self.orders) != len(self.own_order):
            x = x[self.own_order]
        for parameter in self.parameters:
            parameter.grad = None
        (self.losses(x).sum() / self.batch_size).backward()
        self.adam.step()
        self.cursor.add_(self.batch_size)

    def changes(self) -> list[Tensor]:
        """All that a step changes; Adam's moments and counts come with the first."""
        kept = [*self.model.state_dict().values(), *self.estimator.state_dict().values(), self.cursor]
        if isinstance(self.adam, StackedAdam):
            return [*kept, *self.adam.tensors()]
        return [*kept, *(tensor for state in self.adam.state.values() for tensor in state.values())]


@final
class SideBySide:
    """Steps of one or more stacks; on a GPU one captured graph, each stack on a stream of its own.

    Args:
        trainers: of the same device, which share no parameter.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers = list(trainers)
        self.device = self.trainers[0].images.device
        apart = self.device.type == "cuda" and len(self.trainers) > 1
        self.streams = [torch.cuda.Stream(self.device) for _ in self.trainers] if apart else []
        captured = all(trainer.stays_on_device for trainer in self.trainers)
        self.step = CapturedStep(self.one_step, self.changes, self.device, capture=captured)
        """The next batch of every model of every stack."""
        self.step.prepare()

    def rewind(self) -> None:
        """A fresh order for every seed."""
        for trainer in self.trainers:
            trainer.rewind()

    def one_step(self) -> None:
        """A step of each stack; on a GPU with matrix products in TF32."""
        with training_precision(self.device):
            if not self.streams:
                for trainer in self.trainers:
                    trainer.one_step()
                return
            here = torch.cuda.current_stream(self.device)
            for trainer, stream in zip(self.trainers, self.streams, strict=True):
                stream.wait_stream(here)
                with torch.cuda.stream(stream):
                    trainer.one_step()
            for stream in self.streams:
                here.wait_stream(stream)

    def changes(self) -> list[Tensor]:
        """All that a step changes."""
        return [tensor for trainer in self.trainers for tensor in trainer.changes()]


@final
@dataclass
class Curve:
    """How stacked models fared; a list per model."""

    epochs: list[int]
    """After which the models were looked at."""
    validation: list[list[float]]
    """Exact negative ELBO."""
    test: list[list[float]]
    """The same on the test images, where they were given; nothing is chosen by it."""
    test_nll: list[list[float]]
    """−log p(x) of the test images."""
    seconds: float
    """Of all steps of all models that were trained side by side."""
    steps: int


def make_trainer(
    method: Method,
    encoder: Encoder,
    trials: Sequence[Trial],
    images: Tensor,
    *,
    bits: int,
    batch_size: int,
    perturbed_solver: PairwiseSolverName | None = None,
) -> Trainer:
    """One model per trial, ready to step through images."""
    model = StackedBitsVAE(
        images.shape[1],
        [trial.seed for trial in trials],
        [trial.one_hot for trial in trials],
        bits=bits,
        encoder=encoder,
        perturbed_solver=perturbed_solver,
    )
    estimator = make_estimator(method, trials, bits)
    return Trainer(model.to(images.device), estimator.to(images.device), trials, images, batch_size)


def train(
    groups: Sequence[Group],
    images: tuple[Tensor, Tensor, Tensor | None],
    *,
    epochs: int,
    bits: int = 15,
    batch_size: int = 100,
    look_every: int = 5,
    progress: Callable[[str], object] | None = None,
) -> list[Curve]:
    """Train one model per trial of every group, all side by side, and look at them now and then.

    Args:
        groups: what is trained; the noise of the first group's first seed is that of all.
        images: train, validation and test bits ``[N, pixels]``, uint8, on the device; None for no test.
        epochs: passes over the training images.
        bits: n.
        batch_size: images per step and model.
        look_every: epochs between two looks, each an exact sum over all 2^n codes; the first ten epochs and the last
            are all looked at.
        progress: is told how far it is.

    Returns:
        A curve per group.
    """
    train_images, validation, test = images
    device = train_images.device
    torch.manual_seed(groups[0].trials[0].seed)
    side_by_side = SideBySide(
        [
            make_trainer(group.method, group.encoder, group.trials, train_images, bits=bits, batch_size=batch_size)
            for group in groups
        ]
    )
    per_epoch = len(train_images) // batch_size
    looked: list[int] = []
    seen: list[dict[str, list[list[float]]]] = [{"validation": [], "test": [], "test_nll": []} for _ in groups]
    seconds = 0.0
    for epoch in range(1, epochs + 1):
        began = time.monotonic()
        side_by_side.rewind()
        for _ in range(per_epoch):
            side_by_side.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds += time.monotonic() - began
        if epoch > 10 and epoch % look_every and epoch != epochs:
            continue
        looked.append(epoch)
        for group, trainer, found in zip(groups, side_by_side.trainers, seen, strict=True):
            on_validation, _ = trainer.model.evaluate(validation)
            found["validation"].append(on_validation.tolist())
            if test is not None:
                for name, numbers in zip(("test", "test_nll"), trainer.model.evaluate(test), strict=True):
                    found[name].append(numbers.tolist())
            if progress and (epoch == 1 or epoch == epochs or epoch % max(1, epochs // 10) == 0):
                progress(
                    f"{group.method}, {group.encoder}: epoch {epoch}/{epochs}, validation {on_validation.mean():.2f}, "
                    f"{seconds:.0f} s"
                )
    return [Curve(looked, **by_model(found), seconds=seconds, steps=per_epoch * epochs) for found in seen]


def by_model(found: dict[str, list[list[float]]]) -> dict[str, list[list[float]]]:
    """What was seen at each look, as a list per model."""
    return {
        name: [[round(number, 3) for number in model] for model in zip(*rows, strict=True)]
        for name, rows in found.items()
    }
