r"""Measuring one estimator: many independent draws of its gradient in one batched call, and the time of a single one.

A latent expanded over S draws gives S independent losses per example, and the gradient of their sum with respect to
the expanded scores is the gradient estimate of each draw, ``[S, *batch, *event]``. Only gradients that are asked for
are computed (``torch.autograd.grad``), so that nothing is left in the ``.grad`` of a decoder.

**Bias with its error.** The mean of S draws misses its expectation by noise of total variance tr Σ / S, so
:math:`\|\bar g - g\|^2 - \mathrm{tr}\,\Sigma / S` is an unbiased estimate of the squared bias b². Its noise has two
parts: along b, of variance :math:`4 b^\top \Sigma b / S`, and noise times noise, of variance
:math:`2\,\mathrm{tr}\,\Sigma^2 / S^2`. Both are read off the means of :data:`GROUPS` groups of draws, which needs no
covariance matrix.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from argrad.costs import Cost
from argrad.estimators import Estimator
from argrad.latents import Latent

__all__ = ["Moments", "bias_with_error", "exactly", "measure", "milliseconds", "train"]

GROUPS = 20
"""Draws are averaged in this many groups; how the groups differ tells the error of the mean."""
MEMORY_LIMIT = 2**28
"""Bytes that the draws made in one call may take."""
LEARNING_RATE = 0.01
"""Of Adam, for the estimators' own parameters."""
ROUNDS = 20
"""How often each estimator is timed,"""
SECONDS_OF_TIMING = 0.5
"""unless that takes longer than this."""
EXAMPLES_PER_STEP = 64
"""A training step of an estimator's own parameters repeats a smaller batch up to about this many examples."""


@dataclass(frozen=True)
class Moments:
    """What S draws of a gradient of d coordinates (batch and event together) say.

    Args:
        draws: S; a deterministic estimator is drawn once.
        mean: ``[d]``, in double precision.
        variance: tr Σ, the variances of all coordinates added up; 0 when below rounding.
        deviations: means of the groups minus the mean, ``[groups, d]``; no groups for a single draw.
        cosine: mean over draws of the cosine to the reference; NaN without one.
    """

    draws: int
    mean: Tensor
    variance: float
    deviations: Tensor
    cosine: float

    def noise(self) -> float:
        """sqrt(tr C²) for the covariance C = Σ / S of the mean."""
        groups = len(self.deviations)
        if groups < 3:
            return 0.0
        gram = self.deviations @ self.deviations.T
        between = gram[~torch.eye(groups, dtype=torch.bool, device=gram.device)]
        # Each group mean has covariance groups · C, and the inner product of two has variance tr (groups · C)².
        return between.std(correction=0).item() / groups

    def variance_along(self, direction: Tensor) -> float:
        """Of the mean's projection on a direction of length one."""
        groups = len(self.deviations)
        return (self.deviations @ direction).square().sum().item() / (groups * (groups - 1)) if groups > 1 else 0.0


def exactly(gradient: Tensor) -> Moments:
    """The moments of a gradient that is known without error."""
    flat = gradient.detach().double().flatten()
    return Moments(1, flat, 0.0, flat.new_zeros(0, len(flat)), 1.0)


def bias_with_error(moments: Moments, reference: Moments) -> tuple[float, float]:
    """‖E g − reference‖ corrected for sampling noise, and its standard error; the noise of both sides counts.

    Where the bias is lost in noise, the error is the size of bias that would just have been seen.
    """
    away = moments.mean - reference.mean
    distance = away.norm().item()
    squared = distance**2 - moments.variance / moments.draws - reference.variance / reference.draws
    spread = math.sqrt(2) * (moments.noise() + reference.noise())
    error = 0.0
    if spread > 0 and distance > 0:
        along = sum(side.variance_along(away / distance) for side in (moments, reference))
        error = math.sqrt(along + spread**2 / max(squared, spread))
    return math.sqrt(max(squared, 0.0)), error


def measure(
    estimator: Estimator,
    latent: Latent,
    cost: Cost,
    samples: int,
    generator: torch.Generator,
    reference: Tensor | None = None,
) -> Moments:
    """Draw the gradient at least ``samples`` times, as the estimator is (train or eval mode), and add up its moments.

    Args:
        estimator: any estimator that supports the latent.
        latent: the problem's distribution.
        cost: the problem's cost.
        samples: rounded up to a multiple of the number of groups.
        generator: where all noise comes from.
        reference: the gradient that draws are compared with, ``[d]``.
    """
    if is_deterministic(estimator, latent, generator):
        (gradient,) = draw(estimator, latent, cost, 1, generator)
        return Moments(1, gradient, 0.0, gradient.new_zeros(0, len(gradient)), mean_cosine(gradient[None], reference))
    groups = min(GROUPS, samples)
    per_group = -(-samples // groups)
    at_once = max(1, MEMORY_LIMIT // max(1, bytes_of_a_draw(estimator, latent, cost, generator)))
    sums = torch.zeros(groups, latent.scores.numel(), dtype=torch.float64, device=latent.scores.device)
    squares = cosines = 0.0
    for group in range(groups):
        for start in range(0, per_group, at_once):
            gradients = draw(estimator, latent, cost, min(at_once, per_group - start), generator)
            sums[group] += gradients.sum(0)
            squares += gradients.square().sum().item()
            cosines += len(gradients) * mean_cosine(gradients, reference)
    draws = groups * per_group
    mean = sums.sum(0) / draws
    length = mean.square().sum().item()
    variance = (squares / draws - length) * (draws / (draws - 1)) if draws > 1 else 0.0
    rounding = torch.finfo(latent.scores.dtype).eps ** 2 * 64 * max(squares / draws, length)
    variance = variance if variance > rounding else 0.0
    return Moments(draws, mean, variance, sums / per_group - mean, cosines / draws)


def draw(estimator: Estimator, latent: Latent, cost: Cost, count: int, generator: torch.Generator) -> Tensor:
    """Independent draws of the gradient with respect to the scores, ``[count, d]``, in double precision."""
    expanded = latent_on_leaf(latent, count)
    loss = estimator(expanded, cost, generator=generator)
    (gradient,) = torch.autograd.grad(loss.sum(), expanded.scores, allow_unused=True)
    gradient = torch.zeros_like(expanded.scores) if gradient is None else gradient
    return gradient.double().reshape(count, -1)


def latent_on_leaf(latent: Latent, count: int) -> Latent:
    """The latent repeated over a new leading dimension, on scores of its own that require grad."""
    scores = latent.scores.detach().expand(count, *latent.scores.shape).clone()
    return latent.with_scores(scores.requires_grad_())


def mean_cosine(gradients: Tensor, reference: Tensor | None) -> float:
    """The mean cosine to the reference; a draw of length zero points nowhere and counts as 0."""
    if reference is None or not bool(reference.any()):
        return math.nan
    lengths = gradients.norm(dim=-1) * reference.norm()
    return torch.where(lengths > 0, (gradients @ reference) / lengths, 0.0).mean().item()


def is_deterministic(estimator: Estimator, latent: Latent, generator: torch.Generator) -> bool:
    """Whether the estimator uses no noise at all."""
    noise = estimator.draw_noise(latent, generator=generator)
    return isinstance(noise, Tensor) and noise.numel() == 0


class _Allocations(TorchDispatchMode):
    """Adds up the bytes of every result, as if none were ever freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.total: int = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, Tensor):
                self.total += tensor.numel() * tensor.element_size()
        return result


def bytes_of_a_draw(estimator: Estimator, latent: Latent, cost: Cost, generator: torch.Generator) -> int:
    """An upper bound on the memory of one draw, from the sizes of all results on its way."""
    with _Allocations() as allocations:
        draw(estimator, latent, cost, 1, generator)
    return int(allocations.total)


def train(estimator: Estimator, latent: Latent, cost: Cost, steps: int, generator: torch.Generator) -> bool:
    """Let an estimator with a memory learn the problem, scores fixed, and put it in eval mode.

    Returns:
        Whether it has anything to learn: parameters, or buffers that change in train mode.
    """
    estimator.train()
    before = {name: buffer.clone() for name, buffer in estimator.named_buffers()}
    examples = max(1, math.prod(latent.batch_shape))
    expanded = latent_on_leaf(latent, max(1, EXAMPLES_PER_STEP // examples))
    estimator(expanded, cost, generator=generator)  # gives lazy parameters their size
    parameters = [parameter for parameter in estimator.parameters() if parameter.requires_grad]
    remembers = any(not torch.equal(before[name], buffer) for name, buffer in estimator.named_buffers())
    if parameters or remembers:
        optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE) if parameters else None
        for _ in range(steps):
            loss = estimator(expanded, cost, generator=generator)
            if optimizer is not None:
                gradients = torch.autograd.grad(loss.mean(), parameters, allow_unused=True)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
                optimizer.step()
        for parameter in parameters:
            parameter.grad = None
    estimator.eval()
    return bool(parameters) or remembers


def milliseconds(estimators: Sequence[Estimator], latent: Latent, cost: Cost) -> list[float]:
    """The time of one training call of each, with gradients for scores, the cost's parameters and the estimator's own.

    The estimators take turns, and of each the best of :data:`ROUNDS` calls counts: the one least disturbed by other
    work on the machine.
    """
    scores = latent.scores.detach().clone().requires_grad_()
    latent = latent.with_scores(scores)
    # Of its own: how many calls there are depends on the clock, and no other number may.
    generator = torch.Generator(scores.device).manual_seed(0)
    copies = [copy.deepcopy(estimator).train() for estimator in estimators]
    inputs = [leaves(estimator(latent, cost, generator=generator)) for estimator in copies]
    best = [math.inf] * len(copies)
    spent = [0.0] * len(copies)
    for _ in range(ROUNDS):
        for index, estimator in enumerate(copies):
            if spent[index] < SECONDS_OF_TIMING:
                seconds = time_of_call(estimator, latent, cost, inputs[index], generator)
                spent[index] += seconds
                best[index] = min(best[index], 1000 * seconds)
    return best


def time_of_call(
    estimator: Estimator, latent: Latent, cost: Cost, inputs: Sequence[Tensor], generator: torch.Generator
) -> float:
    """Seconds that one call and its gradients take."""
    wait = latent.scores.is_cuda
    if wait:
        torch.cuda.synchronize()
    start = time.perf_counter()
    loss = estimator(latent, cost, generator=generator).sum()
    torch.autograd.grad(loss, inputs, allow_unused=True)
    if wait:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def leaves(loss: Tensor) -> list[Tensor]:
    """The leaf tensors that a backward pass from the loss would reach."""
    found: list[Tensor] = []
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(variable := getattr(node, "variable", None), Tensor):
            found.append(variable)
        waiting.extend(following for following, _ in node.next_functions)
    return found
