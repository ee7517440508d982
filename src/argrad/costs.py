r"""Costs: functions of z to be minimised, one number per example.

A plain function ``cost(z)`` that maps ``[*extra, *batch, *event]`` to ``[*extra, *batch]`` works with every estimator.
A cost that knows its own structure answers three questions for less: the cost of all k codes of one categorical
variable (``table``), of every single change of z (``single_changes``), of every structure (``all``). Estimators ask
through the functions of the same names here, which fall back on plain evaluation.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as AbstractSequence
from typing import Any, Literal, Protocol, final

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, softplus
from torch.utils.checkpoint import checkpoint

from argrad.latents import Chain, Latent, Sequence, Variables
from argrad.latents.base import can_read_values, cheaply_known_finite

__all__ = [
    "ContinuedCost",
    "Cost",
    "Reconstruction",
    "SharedCost",
    "StepCost",
    "TableCost",
    "all_costs",
    "evaluate",
    "has_table",
    "possible_changes_only",
    "possible_only",
    "single_changes",
    "table",
]

MEMORY_LIMIT = 2**28
"""Bytes that one chunk of an enumeration may take."""


class Cost(Protocol):
    """Anything that maps structures ``[*extra, *batch, *event]`` to costs ``[*extra, *batch]``."""

    def __call__(self, z: Tensor, /) -> Tensor:
        """The cost of z."""


class SharedCost(ABC):
    """A cost that shares work between structures. Such costs add up, with each other and with plain functions."""

    @abstractmethod
    def __call__(self, z: Tensor, *, event_dims: int | None = None) -> Tensor:
        """The cost of z, ``[*extra, *batch]``; ``event_dims`` says how many trailing dimensions are one structure."""

    @abstractmethod
    def table(self, latent: Latent) -> Tensor:
        """The cost of all k codes of one categorical variable, ``[*batch, k]``, differentiable."""

    @abstractmethod
    def single_changes(self, latent: Variables, z: Tensor, value: Tensor | None = None) -> Tensor:
        """The cost of z with each variable set to each value, of ``latent.table_shape``, without gradient."""

    @abstractmethod
    def all(self, latent: Latent) -> Tensor:
        """The cost of every structure in the order of ``latent.enumerate()``, ``[*batch, S]``, differentiable."""

    @final
    def __add__(self, other: Cost) -> SharedCost:
        """The sum of two costs."""
        return _Sum(self, other) if callable(other) else NotImplemented

    @final
    def __radd__(self, other: Cost) -> SharedCost:
        """The sum of two costs."""
        return _Sum(other, self) if callable(other) else NotImplemented


def evaluate(cost: Cost, latent: Latent, z: Tensor) -> Tensor:
    """``cost(z)``, its shape checked: one number per structure, ``[*extra, *batch]``."""
    value = cost(z, event_dims=latent.event_dims) if isinstance(cost, SharedCost) else cost(z)
    return check_shape(value, z.shape[: z.dim() - latent.event_dims], f"cost(z) for z of shape {tuple(z.shape)}")


def check_shape(value: Any, expected: tuple[int, ...], what: str) -> Tensor:
    """Return the value if it is a tensor of the expected shape."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{what} must return a tensor, got {type(value).__name__}")
    if not value.is_floating_point():
        raise ValueError(f"{what} must return floating-point numbers, got {value.dtype}; convert them with .float()")
    if value.shape != expected:
        raise ValueError(
            f"{what} must return one number per structure, shape {tuple(expected)}, got {tuple(value.shape)}; "
            "sum over the event dimensions only, and keep extra leading dimensions"
        )
    return value


def has_table(cost: Cost, latent: Latent) -> bool:
    """Whether the cost can list all k codes of this latent's one variable for less than evaluating them."""
    return latent.is_one_of_k and hasattr(cost, "table")


def table(cost: Cost, latent: Latent) -> Tensor:
    """The cost of all codes of one categorical variable, ``[*batch, k]``."""
    shape = (*latent.batch_shape, latent.event_shape[-1])
    if has_table(cost, latent):
        return check_shape(cost.table(latent), shape, "cost.table(latent)")  # type: ignore[attr-defined]
    return all_costs(cost, latent)


def all_costs(cost: Cost, latent: Latent) -> Tensor:
    """The cost of every structure, in the order of ``latent.enumerate()``, ``[*batch, S]``."""
    latent.check_enumerable()
    shape = (*latent.batch_shape, latent.num_states)
    for name in ("table", "all") if has_table(cost, latent) else ("all",):
        if hasattr(cost, name):
            return check_shape(getattr(cost, name)(latent), shape, f"cost.{name}(latent)")
    states = latent.enumerate()

    def cost_of(chunk: Tensor) -> Tensor:
        lead = (chunk.shape[0], *latent.batch_shape)
        return evaluate(cost, latent, spread(chunk, latent).expand(*lead, *latent.event_shape)).movedim(0, -1)

    return in_chunks(cost_of, states, bytes_per_row=latent.scores.numel() * latent.scores.element_size() * 4)


def single_changes(cost: Cost, latent: Latent, z: Tensor, value: Tensor | None = None) -> Tensor:
    """The cost of z with each variable set to each value, all others as they are, without gradient.

    Args:
        cost: any cost.
        latent: says which changes there are.
        z: ``[*batch, *event]``.
        value: ``cost(z)``, if it is known already.

    Returns:
        ``[*batch, k]`` for one categorical variable, else ``[*batch, n, values]``.
    """
    if not isinstance(latent, Variables):
        raise ValueError(
            f"{latent!r} has no single changes: changing one part of a structure leaves the set; use the gradient of "
            "the cost, or all structures"
        )
    if has_table(cost, latent):
        return table(cost, latent).detach()
    if isinstance(cost, SharedCost):
        return cost.single_changes(latent, z, value)
    if hasattr(cost, "single_changes"):
        changes = cost.single_changes(latent, z)
        return check_shape(changes, latent.table_shape, "cost.single_changes(latent, z)").detach()
    bytes_per_row = z.numel() * z.element_size() * 4
    return evaluate_single_changes(cost, latent, z, value, bytes_per_row, MEMORY_LIMIT)


def evaluate_single_changes(
    cost: Cost, latent: Variables, z: Tensor, value: Tensor | None, bytes_per_row: int, memory_limit: int
) -> Tensor:
    """Single changes by evaluating the cost at each of them, a chunk of changes for the whole batch at a time."""
    with torch.no_grad():
        unchanged = evaluate(cost, latent, z) if value is None else value.detach()
        which = torch.arange(latent.num_changes, device=z.device)
        if latent.num_changes == 0:
            return latent.tabulate_changes(z, unchanged, unchanged.new_zeros((0, *unchanged.shape)))

        def cost_of(chunk: Tensor) -> Tensor:
            return evaluate(cost, latent, latent.change(z, chunk)).movedim(0, -1)

        changed = in_chunks(cost_of, which, bytes_per_row=bytes_per_row, memory_limit=memory_limit)
        return latent.tabulate_changes(z, unchanged, changed.movedim(-1, 0))


def possible_only(numbers: Tensor, latent: Latent) -> Tensor:
    """Costs or weights ``[*batch, *event]`` with 0 in place of those of impossible values, whatever they are.

    An infinite cost of what cannot happen would else be multiplied by its probability, 0.
    """
    return numbers if latent.known_finite else numbers.masked_fill(latent.scores == -torch.inf, 0.0)


def possible_changes_only(weights: Tensor, latent: Latent, z: Tensor) -> Tensor:
    """:func:`possible_only` for weights of single changes of z, ``[*batch, *event]``.

    In a :class:`argrad.Chain` a change that makes a step that is never made may be possible beside others, so a weight
    that is a number counts.
    """
    weights = possible_only(weights, latent)
    if isinstance(latent, Chain):
        weights = weights.masked_fill(latent.makes_impossible_step(z) & ~weights.isfinite(), 0.0)
    return weights


def in_chunks(
    function: Callable[[Tensor], Tensor], rows: Tensor, *, bytes_per_row: int, memory_limit: int = MEMORY_LIMIT
) -> Tensor:
    """Apply a function to chunks of rows and join the results in the last dimension.

    More than one chunk with gradients on is checkpointed: its insides are computed again in the backward pass, not
    kept.
    """
    size = max(1, memory_limit // max(1, bytes_per_row))
    if rows.shape[0] <= size:
        return function(rows)
    if torch.is_grad_enabled():
        keep = function

        def function(chunk: Tensor) -> Tensor:
            result = checkpoint(keep, chunk, use_reentrant=False, preserve_rng_state=False)
            assert isinstance(result, Tensor)
            return result

    return torch.cat([function(chunk) for chunk in rows.split(size)], -1)


def with_shape(tensor: Tensor, shape: AbstractSequence[int]) -> Tensor:
    """Reshape; a tensor that already has the shape is returned as it is, one node fewer to differentiate."""
    return tensor if tensor.shape == tuple(shape) else tensor.reshape(tuple(shape))


def spread(structures: Tensor, latent: Latent) -> Tensor:
    """Structures ``[S, *event]`` with singleton batch dimensions, ``[S, 1, ..., 1, *event]``."""
    return structures.reshape(structures.shape[:1] + (1,) * len(latent.batch_shape) + latent.event_shape)


@final
class TableCost(SharedCost):
    """The cost of each of k codes, given as numbers.

    Args:
        values: ``[*batch, k]``.

    >>> cost = TableCost(torch.tensor([[3.0, 1.0, 2.0]]))
    >>> cost(torch.tensor([[0.0, 1.0, 0.0]]))
    tensor([1.])
    """

    def __init__(self, values: Tensor) -> None:
        if not isinstance(values, Tensor):
            raise ValueError(f"TableCost needs a tensor of values [*batch, k], got {type(values).__name__}")
        if values.dim() < 1 or not values.is_floating_point():
            raise ValueError(
                f"TableCost needs floating-point values [*batch, k], got {values.dtype} of shape {tuple(values.shape)}"
            )
        self.values = values

    def __call__(self, z: Tensor, *, event_dims: int | None = None) -> Tensor:
        """The value that z picks; for z inside the simplex, the weighted mean. What z has none of may be infinite."""
        self._check((event_dims or 1) == 1, z.shape[-1])
        values = self.values
        if not cheaply_known_finite(values):
            values = values.masked_fill(~values.isfinite() & (z == 0), 0.0)
        return (values * z).sum(-1)

    def table(self, latent: Latent) -> Tensor:
        """The values themselves."""
        self._check(latent.is_one_of_k, latent.event_shape[-1])
        own, batch = self.values.shape[:-1], latent.batch_shape
        if len(own) > len(batch) or any(a not in (1, b) for a, b in zip(reversed(own), reversed(batch), strict=False)):
            raise ValueError(
                f"this TableCost has values of shape {tuple(self.values.shape)}, which do not fit {latent!r}; "
                "give one row per example, or one row for all"
            )
        return self.values.expand(*latent.batch_shape, latent.event_shape[-1])

    def single_changes(self, latent: Variables, z: Tensor, value: Tensor | None = None) -> Tensor:
        """The values themselves."""
        return self.table(latent).detach()

    def all(self, latent: Latent) -> Tensor:
        """The values themselves."""
        return self.table(latent)

    def _check(self, is_one_of_k: bool, k: int) -> None:
        if not is_one_of_k or k != self.values.shape[-1]:
            raise ValueError(
                f"this TableCost lists {self.values.shape[-1]} codes of one categorical variable, but z has {k} values"
                f"{'' if is_one_of_k else ' for each of several variables'}; give a function of z instead"
            )


@final
class Reconstruction(SharedCost):
    r"""The negative log-likelihood of x under a decoder that reads z.

    All three likelihoods are exponential families, :math:`-\log p(x|z) = A(\eta) - \langle T(x), \eta\rangle + b(x)`
    with :math:`\eta` from the decoder, so the costs of S codes for B examples are one matrix product of ``[B, D]`` with
    ``[D, S]``: the decoder runs S times, not B · S times, wherever the codes do not depend on x.

    Args:
        x: data, ``[*batch, *x_event]``: numbers in [0, 1] (bernoulli), any numbers (gaussian), class indices
            (categorical).
        decoder: maps codes ``[N, *event]`` to logits or means ``[N, *x_event]``, or to class logits ``[N, classes,
            *x_event]``.
        likelihood: "bernoulli", "gaussian" or "categorical".
        batch_dims: how many leading dimensions of x are batch.
        scale: standard deviation of the gaussian likelihood.
        memory_limit: bytes that one chunk of an enumeration may take.

    >>> cost = Reconstruction(torch.ones(2, 5), torch.nn.Linear(3, 5))
    >>> cost(torch.eye(3)[:2]).shape
    torch.Size([2])
    """

    def __init__(
        self,
        x: Tensor,
        decoder: Callable[[Tensor], Tensor],
        likelihood: Literal["bernoulli", "gaussian", "categorical"] = "bernoulli",
        *,
        batch_dims: int = 1,
        scale: float = 1.0,
        memory_limit: int = MEMORY_LIMIT,
    ) -> None:
        if likelihood not in ("bernoulli", "gaussian", "categorical"):
            raise ValueError(f'likelihood must be "bernoulli", "gaussian" or "categorical", got {likelihood!r}')
        if not 0 <= batch_dims <= x.dim():
            raise ValueError(f"batch_dims={batch_dims} does not fit x of shape {tuple(x.shape)}")
        if not 0 < scale < math.inf or (scale != 1.0 and likelihood != "gaussian"):
            raise ValueError(
                f"scale is the standard deviation (> 0) of the gaussian likelihood, got {scale} for {likelihood}"
            )
        if likelihood == "categorical" and x.is_floating_point():
            raise ValueError(f"a categorical likelihood needs class indices in x, got {x.dtype}; convert with .long()")
        if likelihood == "bernoulli" and not x.is_floating_point() and x.numel() and can_read_values(x) and x.max() > 1:
            raise ValueError(
                f"x holds whole numbers up to {int(x.max())}, a bernoulli likelihood needs 0 to 1; divide first"
            )
        if not x.is_floating_point():
            x = x.long() if likelihood == "categorical" else x.to(torch.get_default_dtype())
        self.x = x
        self.decoder = decoder
        self.likelihood = likelihood
        self.batch_dims = batch_dims
        self.scale = scale
        self.memory_limit = memory_limit

    @property
    def batch_shape(self) -> torch.Size:
        """The batch dimensions of x."""
        return self.x.shape[: self.batch_dims]

    def __call__(self, z: Tensor, *, event_dims: int | None = None) -> Tensor:
        """Decode z and compare with x, ``[*extra, *batch]``."""
        if event_dims is None:
            event_dims = self._find_event_dims(z)
        lead, event = z.shape[: z.dim() - event_dims], z.shape[z.dim() - event_dims :]
        self._check_batch("z has leading", lead)
        codes = with_shape(z, (math.prod(lead), *event))
        if self.likelihood == "gaussian":  # the squared distance itself: the expanded square loses digits
            away = self._decoded(codes).reshape(*lead, *self.x.shape[self.batch_dims :]) - self.x
            away = away.flatten(len(lead)) if away.dim() > len(lead) else away.unsqueeze(-1)
            return 0.5 * (away / self.scale).square().sum(-1) + self._gaussian_constant()
        natural, log_normalizer = self._decode(codes)
        inner = (self._statistic(natural) * with_shape(natural, (*lead, natural.shape[-1]))).sum(-1)
        return with_shape(log_normalizer, lead) - inner

    def table(self, latent: Latent) -> Tensor:
        """All k codes: the decoder runs k times in all."""
        return self.all(latent)

    def single_changes(self, latent: Variables, z: Tensor, value: Tensor | None = None) -> Tensor:
        """Every single change, the whole batch and as many changes at a time as the memory limit allows."""
        self._refuse_random_layers()
        examples = max(1, z.numel() // math.prod(latent.event_shape))
        x_size = math.prod(self.x.shape[self.batch_dims :])
        bytes_per_row = 4 * 4 * max(examples * x_size, z.numel())
        return evaluate_single_changes(self, latent, z, value, bytes_per_row, self.memory_limit)

    def all(self, latent: Latent) -> Tensor:
        """Every structure: the decoder runs S times in all, shared by the batch."""
        self._check_batch("the latent has batch", latent.batch_shape)
        self._refuse_random_layers()
        bytes_per_row = 4 * (4 * max(1, math.prod(self.x.shape[self.batch_dims :])) + 2 * math.prod(self.batch_shape))
        costs = in_chunks(
            self._compare_with_all, latent.enumerate(), bytes_per_row=bytes_per_row, memory_limit=self.memory_limit
        )
        return costs if costs.shape[:-1] == latent.batch_shape else costs.expand(*latent.batch_shape, costs.shape[-1])

    def _compare_with_all(self, codes: Tensor) -> Tensor:
        if self.likelihood == "gaussian":
            return self._distances_to_all(codes)
        natural, log_normalizer = self._decode(codes)
        return log_normalizer - self._statistic(natural) @ natural.T

    def _distances_to_all(self, codes: Tensor) -> Tensor:
        """The gaussian cost of every code. Both sides are centred: no distance changes, and squares stay small."""
        means = with_shape(self._decoded(codes), (codes.shape[0], math.prod(self.x.shape[self.batch_dims :])))
        centre = means.detach().mean(0)
        x, means = self.x.reshape(*self.batch_shape, means.shape[-1]) - centre, means - centre
        squares = x.square().sum(-1, keepdim=True) + means.square().sum(-1) - 2 * x @ means.T
        return squares * (0.5 / self.scale**2) + self._gaussian_constant()

    def _decode(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Natural parameters ``[N, D]`` and log-normalisers ``[N]`` of the likelihood under each code."""
        output = self._decoded(codes)
        flat = (codes.shape[0], math.prod(self.x.shape[self.batch_dims :]))
        if self.likelihood == "bernoulli":
            natural = with_shape(output, flat)
            return natural, softplus(natural, threshold=40).sum(-1)
        return output.log_softmax(1).flatten(1), output.new_zeros(output.shape[0])

    def _decoded(self, codes: Tensor) -> Tensor:
        """What the decoder makes of codes, its shape checked."""
        output = self.decoder(codes)
        x_event = self.x.shape[self.batch_dims :]
        shape = output.shape if self.likelihood != "categorical" else output.shape[:1] + output.shape[2:]
        if shape != (codes.shape[0], *x_event):
            wanted = ("N", *(("classes",) if self.likelihood == "categorical" else ()), *x_event)
            raise ValueError(
                f"the decoder turned {codes.shape[0]} codes into shape {tuple(output.shape)}; for x of shape "
                f"{tuple(self.x.shape)} and batch_dims={self.batch_dims} it must return [{', '.join(map(str, wanted))}]"
            )
        return output

    def _gaussian_constant(self) -> float:
        pixels = math.prod(self.x.shape[self.batch_dims :])
        return pixels * (math.log(self.scale) + 0.5 * math.log(2 * math.pi))

    def _statistic(self, natural: Tensor) -> Tensor:
        """T(x) ``[*batch, D]``."""
        if self.likelihood == "categorical":
            classes = natural.shape[-1] // max(1, math.prod(self.x.shape[self.batch_dims :]))
            return one_hot(self.x, classes).movedim(-1, self.batch_dims).flatten(self.batch_dims).to(natural.dtype)
        return with_shape(self.x, (*self.batch_shape, natural.shape[-1])).to(natural.dtype)

    def _check_batch(self, what: str, lead: torch.Size) -> None:
        if len(lead) < self.batch_dims or lead[len(lead) - self.batch_dims :] != self.batch_shape:
            raise ValueError(
                f"{what} shape {tuple(lead)}, but x has batch shape {tuple(self.batch_shape)}; they must end alike"
            )

    def _find_event_dims(self, z: Tensor) -> int:
        """The fewest extra dimensions in front of the batch for which the shapes agree."""
        for extra in range(z.dim() - self.batch_dims):
            if z.shape[extra : extra + self.batch_dims] == self.batch_shape:
                return z.dim() - self.batch_dims - extra
        raise ValueError(
            f"z has shape {tuple(z.shape)}, in which the batch shape {tuple(self.batch_shape)} of x does not occur"
        )

    def _refuse_random_layers(self) -> None:
        """A table compares codes across decoder rows, so rows may not depend on each other or on chance."""
        for module in layers_to_check(self.decoder) if isinstance(self.decoder, nn.Module) else ():
            if mixes_rows(module) or (module.training and is_random(module)):
                state = "in train mode" if module.training else "without running statistics"
                raise ValueError(
                    f"the decoder has a {type(module).__name__} {state}, so the cost of one code would depend on "
                    "chance or on the other codes; use GroupNorm or LayerNorm, call eval() on that layer, or take an "
                    "estimator that decodes samples only, such as Reinforce or GumbelSoftmax"
                )


HARMLESS = {nn.Sequential, nn.Linear, nn.ReLU, nn.Flatten, nn.Unflatten, nn.Conv2d, nn.ConvTranspose2d}
"""Layers that need no second look, which would cost more than they do on small models."""


def layers_to_check(module: nn.Module) -> list[nn.Module]:
    """The module and all inside it, without those known to be harmless; ``modules()`` takes five times as long."""
    found = [] if type(module) in HARMLESS else [module]
    for inside in module._modules.values():
        if inside is not None and (inside._modules or type(inside) not in HARMLESS):
            found += layers_to_check(inside)
    return found


def mixes_rows(module: nn.Module) -> bool:
    """Whether the module normalises over the rows it is given: BatchNorm, unless it uses running statistics."""
    is_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
    return is_norm and (module.training or not module.track_running_stats)


def is_random(module: nn.Module) -> bool:
    """Whether the module is random in train mode."""
    if isinstance(module, nn.RReLU):
        return True
    rate = module.p if isinstance(module, nn.modules.dropout._DropoutNd) else vars(module).get("dropout", 0.0)
    return isinstance(rate, int | float) and rate > 0


@final
class _Sum(SharedCost):
    """The sum of two costs, each asked in the way that suits it."""

    def __init__(self, first: Cost, second: Cost) -> None:
        self.parts = (first, second)

    def __call__(self, z: Tensor, *, event_dims: int | None = None) -> Tensor:
        first, second = [
            part(z, event_dims=event_dims) if isinstance(part, SharedCost) else part(z) for part in self.parts
        ]
        if first.shape != second.shape:
            raise ValueError(
                f"costs that are added must return equal shapes, got {tuple(first.shape)} and {tuple(second.shape)} "
                f"for z of shape {tuple(z.shape)}; return one number per structure"
            )
        return first + second

    def table(self, latent: Latent) -> Tensor:
        return table(self.parts[0], latent) + table(self.parts[1], latent)

    def single_changes(self, latent: Variables, z: Tensor, value: Tensor | None = None) -> Tensor:
        return single_changes(self.parts[0], latent, z) + single_changes(self.parts[1], latent, z)

    def all(self, latent: Latent) -> Tensor:
        return all_costs(self.parts[0], latent) + all_costs(self.parts[1], latent)


@final
class StepCost(SharedCost):
    """A cost that comes step by step along a sequence, such as the rewards of a trajectory, with the sign changed.

    :class:`argrad.Reinforce` then weighs a step by what comes after it, not by all.

    Args:
        function: maps z ``[*extra, batch, length, k]`` to the cost of each step, ``[*extra, batch, length]``, which may
            depend on the symbols up to that step, and not on later ones.

    >>> cost = StepCost(lambda z: z[..., 0])
    >>> cost(torch.eye(2)[torch.tensor([[0, 1, 0]])])
    tensor([2.])
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def per_step(self, z: Tensor) -> Tensor:
        """The cost of each step, its shape checked."""
        return check_shape(self.function(z), tuple(z.shape[:-1]), f"the cost of steps for z of shape {tuple(z.shape)}")

    def __call__(self, z: Tensor, *, event_dims: int | None = None) -> Tensor:
        """The sum over steps."""
        return self.per_step(z).sum(-1)

    def table(self, latent: Latent) -> Tensor:
        """Every code, as a sequence of one step."""
        return self.all(latent)

    def single_changes(self, latent: Variables, z: Tensor, value: Tensor | None = None) -> Tensor:
        """By evaluation."""
        return evaluate_single_changes(self, latent, z, value, 4 * z.numel() * z.element_size(), MEMORY_LIMIT)

    def all(self, latent: Latent) -> Tensor:
        """By evaluation."""
        return all_costs(lambda z: self(z), latent)


@final
class ContinuedCost(SharedCost):
    """The cost of going another way at one place of a sampled sequence, and on from there with the same noise.

    See :mod:`argrad.latents.sequence`.

    Args:
        sequence: where the sample comes from.
        cost: of whole sequences.
        z: the sample, ``[batch, length, k]``.
        noise: what selected it.
    """

    def __init__(self, sequence: Sequence, cost: Cost, z: Tensor, noise: Tensor) -> None:
        self.sequence, self.cost, self.z, self.noise = sequence, cost, z, noise

    def __call__(self, z: Tensor, *, event_dims: int | None = None) -> Tensor:
        """The cost of z up to its first difference from the sample, and of what the noise adds."""
        return evaluate(self.cost, self.sequence, self.sequence.continued(self.z, z, self.noise))

    def table(self, latent: Latent) -> Tensor:
        """There is none."""
        raise ValueError("a sequence has no table of k codes")

    def single_changes(self, latent: Variables, z: Tensor, value: Tensor | None = None) -> Tensor:
        """Every other symbol at every step."""
        return evaluate_single_changes(self, latent, z, value, 8 * z.numel() * z.element_size(), MEMORY_LIMIT)

    def all(self, latent: Latent) -> Tensor:
        """There is none."""
        raise ValueError("the cost of going another way is known around one sample")
