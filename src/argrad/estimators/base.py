r"""What every estimator offers, and how a gradient estimate is put on a value.

An estimator turns (latent, cost) into a tensor ``[*batch]`` whose value is the cost and whose ``backward()`` is an
estimate of the gradient of E[cost(z)]: with respect to the scores of the latent, and with respect to whatever the cost
itself depends on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from argrad.costs import ContinuedCost, Cost
from argrad.latents import Categorical, Factorised, Latent, PairwiseBits, Structured
from argrad.latents import Sequence as SequenceLatent
from argrad.latents.base import can_read_values

__all__ = [
    "Estimator",
    "Noise",
    "along_a_sample",
    "attach",
    "attach_difference",
    "attach_to_parameters",
    "is_factorised",
    "positive_buffer",
]

Noise = Tensor | tuple[Tensor, ...]
"""What an estimator is a deterministic function of: one tensor for most, a tuple for some."""


def unchanged(total: Tensor) -> Tensor:
    """The sum over one process."""
    return total


class Estimator(nn.Module, ABC):
    """A gradient estimator. Theory is declared as data; tests and diagnostics read it.

    ``estimator(latent, cost, *, generator=None, noise=None)`` returns a tensor ``[*batch]``. With ``noise`` from
    :meth:`draw_noise` it is a deterministic function of its arguments and of what it remembers, which changes in train
    mode only.
    """

    unbiased: bool
    """Whether the expectation of the gradient is the gradient of E[cost] for every setting."""
    needs_cost_gradient: bool
    """Whether the cost must be differentiable with respect to z."""
    sum_over_processes: Callable[[Tensor], Tensor] = staticmethod(unchanged)
    """Adds up what is remembered of a batch where several processes share it; training sets it."""

    @abstractmethod
    def forward(
        self, latent: Latent, cost: Cost, *, generator: torch.Generator | None = None, noise: Any = None
    ) -> Tensor:
        """The value of the cost, ``[*batch]``, carrying the gradient estimate."""

    @abstractmethod
    def draw_noise(self, latent: Latent, *, generator: torch.Generator | None = None) -> Noise:
        """Everything random that one call needs."""

    @abstractmethod
    def cost_evaluations(self, latent: Latent) -> int:
        """How many structures per example the cost is evaluated at, where it shares no work."""

    @abstractmethod
    def supports(self, latent: Latent) -> bool:
        """Whether this estimator works on this latent."""

    def require_support(self, latent: Latent) -> None:
        """Raise a ValueError that names what works instead, unless this estimator supports the latent."""
        if not isinstance(latent, Latent):
            raise ValueError(
                f"{type(self).__name__} needs a latent such as Categorical(logits) or Bits(logits), "
                f"got {type(latent).__name__}"
            )
        if not self.supports(latent):
            from argrad import estimators

            works = [name for name in estimators.ESTIMATORS if getattr(estimators, name)().supports(latent)]
            if "Direct" not in works and estimators.Direct(changes="gradient").supports(latent):
                works.append('Direct(changes="gradient")')
            reason = ""
            if isinstance(latent, Structured) and latent.law == "perturb" and self.supports(latent.with_law("gibbs")):
                reason = (
                    " (it needs the log-probability of its samples, which only law='gibbs' has: perturbed samples do "
                    "not follow exp(score) / Z)"
                )
            raise ValueError(f"{type(self).__name__} does not support {latent!r}{reason}; these do: {', '.join(works)}")


class _Attach(torch.autograd.Function):
    """Identity on a value; in the backward pass, a given gradient for the scores."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, scores: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return upstream, gradient * upstream.reshape(upstream.shape + (1,) * (gradient.dim() - upstream.dim())), None


class _AttachUnderTransforms(torch.autograd.Function):
    """The same in the form that vmap asks for, which takes several times as long to call."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, scores: Tensor, gradient: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    backward = staticmethod(_Attach.backward)


def attach(value: Tensor, scores: Tensor, gradient: Tensor, *, known_finite: bool = False) -> Tensor:
    """Put a detached gradient on a value: the value is unchanged, ``backward()`` adds ``gradient`` to the scores.

    Args:
        value: ``[*batch]``; gradients that it carries already still flow.
        scores: ``[*batch, *event]``; ``-inf`` does no harm, since no arithmetic touches the scores.
        gradient: ``[*batch, *event]``.
        known_finite: that the scores are finite, which allows a quicker way.

    >>> h = torch.zeros(3, requires_grad=True)
    >>> attach(torch.tensor(7.0), h, torch.tensor([1.0, 2.0, 3.0])).backward()
    >>> h.grad
    tensor([1., 2., 3.])
    """
    if not (scores.requires_grad and torch.is_grad_enabled()):
        return value
    if known_finite:
        event = tuple(range(value.dim() - gradient.dim(), 0))
        return value + ((scores - scores.detach()) * gradient.detach().to(scores.dtype)).sum(event)
    function = _Attach if can_read_values(scores) else _AttachUnderTransforms
    result: Tensor = function.apply(value, scores, gradient.detach().to(scores.dtype))  # type: ignore[no-untyped-call]
    return result


def attach_difference(value: Tensor, latent: Latent, plus: Tensor, minus: Tensor, factor: Tensor | float) -> Tensor:
    r"""Put :math:`\mathrm{factor}\,(\nabla\mathrm{score}(z_+) - \nabla\mathrm{score}(z_-))` on a value.

    For independent variables the gradient of the score with respect to the scores is z itself, for pairwise scores it
    is the product of two bits. For other structured latents it is taken through ``latent.score``, so that transition
    scores receive theirs too.

    Args:
        value: ``[*batch]``; gradients that it carries already still flow.
        latent: whose score is differentiated, with respect to all its parameters.
        plus: structures ``[*extra, *batch, *event]``; the gradient is averaged over extra dimensions.
        minus: structures of the same shape.
        factor: a number, or numbers that broadcast to ``[*extra, *batch]``.

    >>> from argrad import Bits
    >>> h = torch.zeros(2, requires_grad=True)
    >>> plus, minus = torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.0])
    >>> attach_difference(torch.tensor(7.0), Bits(h), plus, minus, 5.0).backward()
    >>> h.grad
    tensor([5., 0.])
    """
    if not (torch.is_grad_enabled() and latent.requires_grad):
        return value
    extra = tuple(range(plus.dim() - latent.scores.dim()))
    if isinstance(latent, Factorised):
        if isinstance(factor, Tensor):
            factor = factor.detach().reshape(factor.shape + (1,) * latent.event_dims)
        gradient = (plus - minus) * factor
        gradient = gradient.mean(extra) if extra else gradient
        return attach(value, latent.scores, gradient, known_finite=latent.known_finite)
    if isinstance(latent, PairwiseBits):
        scale = torch.as_tensor(factor, dtype=plus.dtype, device=plus.device).detach()
        to_unary = (plus - minus) * scale.unsqueeze(-1)
        pairs = plus.unsqueeze(-1) * plus.unsqueeze(-2) - minus.unsqueeze(-1) * minus.unsqueeze(-2)
        to_pairs = (pairs * scale[..., None, None]).triu(1)
        if extra:
            to_unary, to_pairs = to_unary.mean(extra), to_pairs.mean(extra)
        pairwise = latent.pairwise.expand(*latent.batch_shape, *latent.pairwise.shape[-2:])
        return attach(attach(value, latent.scores, to_unary), pairwise, to_pairs)
    # The difference is only ever differentiated: its value may be inf - inf where a structure is impossible.
    difference = latent.score(plus) - latent.score(minus)
    weight = torch.as_tensor(factor, dtype=difference.dtype, device=difference.device).detach().expand_as(difference)
    if extra:
        weight = weight / difference.shape[: len(extra)].numel()
        last = tuple(range(-len(extra), 0))
        return attach(value, difference.movedim(extra, last), weight.movedim(extra, last))
    return attach(value, difference, weight)


def attach_to_parameters(value: Tensor, objective: Tensor, parameters: Iterable[nn.Parameter]) -> Tensor:
    """Let ``backward()`` on the value also follow the gradient of an objective, for the given parameters only.

    The objective is a mean over the batch. Its gradient is added once per example of a batch mean, so that
    ``value.mean()`` trains the parameters on the objective itself; nothing else that the objective depends on receives
    a gradient.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained or not torch.is_grad_enabled():
        return value
    gradients = torch.autograd.grad(objective, trained, allow_unused=True)
    for parameter, gradient in zip(trained, gradients, strict=True):
        if gradient is not None:
            value = value + ((parameter - parameter.detach()) * gradient).sum()
    return value


def positive_buffer(name: str, number: float | Tensor) -> Tensor:
    """A setting as a 0-dimensional tensor, so that schedules and captured graphs can change it in place."""
    tensor = torch.as_tensor(number, dtype=torch.get_default_dtype())
    if tensor.dim() != 0 or (can_read_values(tensor) and not (bool(tensor > 0) and bool(tensor.isfinite()))):
        raise ValueError(f"{name} must be a positive finite number, got {number}")
    return tensor.clone()


def is_factorised(latent: Latent) -> TypeGuard[Factorised]:
    """Whether the latent's variables are independent: categorical variables or bits."""
    return isinstance(latent, Factorised)


def with_samples(latent: Latent, noise: Tensor, samples: int) -> Tensor:
    """Noise ``[samples, *noise_shape]``; without the leading dimension it is accepted for one sample."""
    latent.check_noise(noise)
    shape = latent.noise_shape
    if samples == 1 and noise.dim() == len(shape):
        noise = noise.unsqueeze(0)
    expected: Sequence[int] = (samples, *shape)
    if noise.shape != expected:
        raise ValueError(f"noise has shape {tuple(noise.shape)}, expected {tuple(expected)}; draw it with draw_noise()")
    return noise


def along_a_sample(latent: SequenceLatent, cost: Cost, noise: Tensor) -> tuple[Categorical, ContinuedCost]:
    """A sequence as independent variables along the sample that noise selects, with the cost of going another way.

    Estimators for independent variables that look at one variable at a time are right for these two
    (:mod:`argrad.latents.sequence`).
    """
    z = latent.sample(noise=noise)
    return latent.given(z), ContinuedCost(latent, cost, z, noise)
