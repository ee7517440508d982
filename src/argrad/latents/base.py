"""What every latent offers, and the checks that all of them share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, Self, final

import torch
from torch import Tensor

from argrad.solvers.checks import can_read_values

__all__ = [
    "MAX_STATES",
    "Factorised",
    "Latent",
    "Law",
    "Unavailable",
    "Variables",
    "broadcasts",
    "can_read_values",
    "cheaply_known_finite",
    "check_scores",
]

MAX_STATES = 2**20
"""Most structures that :meth:`Latent.enumerate` lists; beyond, an estimator that samples is the better tool."""


class Unavailable(NotImplementedError):
    """The quantity does not exist, or is out of reach, under this latent's law; the message names a substitute."""


Law = Literal["gibbs", "perturb"]
"""What a sample is: exactly exp(score) / Z, or the arg max of scores with independent noise on each of them."""


class Latent(ABC):
    """A batch of distributions over discrete structures: scores + noise + solver.

    Shapes: ``scores`` is ``[*batch, *event]``, z the same, with entries 0 and 1. A sample is a deterministic function
    of the noise that :meth:`draw_noise` returns.

    Independent variables are :class:`Factorised`; latents whose structures are all the combinations of the values of n
    variables, independent or not, are :class:`Variables`.
    """

    scores: Tensor
    """Unnormalised log-probabilities, ``[*batch, *event]``: what the estimators differentiate."""
    event_dims: int
    """How many trailing dimensions of z make up one structure."""
    law: Law = "gibbs"
    """Whether samples follow exp(score) / Z ("gibbs"); for independent variables both laws are this one."""
    is_one_of_k: bool = False
    """Whether z is a single categorical variable, so that a table of k costs says all there is to say."""
    known_finite: bool = False
    """Whether the check of the scores found all of them finite; False says nothing."""

    differentiated_once: bool = False
    """Set to True where one backward pass takes all that is asked of this latent: work is then shared between calls."""

    @property
    @final
    def batch_shape(self) -> torch.Size:
        """The shape of the batch of distributions."""
        return self.scores.shape[: self.scores.dim() - self.event_dims]

    @property
    @final
    def event_shape(self) -> torch.Size:
        """The shape of one structure z."""
        return self.scores.shape[self.scores.dim() - self.event_dims :]

    @property
    @abstractmethod
    def parameters(self) -> tuple[Tensor, ...]:
        """Every tensor that :meth:`score` depends on, ``scores`` first."""

    @property
    @final
    def requires_grad(self) -> bool:
        """Whether anything that :meth:`score` depends on wants a gradient."""
        return any(parameter.requires_grad for parameter in self.parameters)

    @property
    @abstractmethod
    def num_states(self) -> int:
        """How many structures there are."""

    @property
    @abstractmethod
    def noise_shape(self) -> torch.Size:
        """The shape of the noise of one sample, ``[*batch, …]``."""

    @abstractmethod
    def with_scores(self, scores: Tensor) -> Self:
        """The same kind of latent with other scores, unchecked; leading dimensions may be added."""

    @final
    def expand(self, *shape: int) -> Self:
        """The same distributions repeated over new leading batch dimensions, without copying."""
        return self.with_scores(self.scores.expand(*shape, *self.scores.shape))

    @abstractmethod
    def draw_noise(self, shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Fresh noise ``[*shape, *noise_shape]`` of the kind that :meth:`sample` takes."""

    @abstractmethod
    def solve(self, scores: Tensor) -> Tensor:
        """The best structure for the given scores ``[*extra, *batch, *event]``; never differentiable."""

    @abstractmethod
    def select(self, noise: Tensor) -> Tensor:
        """The structures that noise ``[*extra, *noise_shape]`` selects; :meth:`sample` checks first and calls it."""

    @final
    def sample(
        self,
        shape: Sequence[int] = (),
        *,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Draw structures ``[*shape, *batch, *event]``, or the ones that the given noise selects. Never differentiable.

        Args:
            shape: leading dimensions of fresh draws; leave out when noise is given.
            generator: where fresh noise comes from.
            noise: ``[*extra, *noise_shape]`` from :meth:`draw_noise`.
        """
        with torch.no_grad():
            if noise is None:
                noise = self.draw_noise(shape, generator=generator)
            elif tuple(shape) not in ((), tuple(noise.shape[: noise.dim() - len(self.noise_shape)])):
                raise ValueError(
                    f"sample(shape={tuple(shape)}) does not fit noise of shape {tuple(noise.shape)}; "
                    "leave shape out when noise is given"
                )
            return self.select(self.check_noise(noise)).to(self.scores.dtype)

    @abstractmethod
    def mode(self) -> Tensor:
        """The most probable structure, ``[*batch, *event]``."""

    @abstractmethod
    def mean(self) -> Tensor:
        """E[z], ``[*batch, *event]``, differentiable: the probability of each coordinate being 1."""

    @abstractmethod
    def score(self, z: Tensor) -> Tensor:
        """The unnormalised log-probability of z, ``[*extra, *batch]``, differentiable in all :attr:`parameters`."""

    @abstractmethod
    def log_prob(self, z: Tensor) -> Tensor:
        """The log-probability of z, ``[*extra, *batch]``."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Entropy in nats, ``[*batch]``."""

    @abstractmethod
    def kl(self, prior: Latent | None = None) -> Tensor:
        """KL(self || prior) in nats, ``[*batch]``; the prior is uniform over all structures when None."""

    @abstractmethod
    def enumerate(self) -> Tensor:
        """Every structure, ``[S, *event]``, the last variable changing fastest."""

    @abstractmethod
    def log_prob_all(self) -> Tensor:
        """The log-probability of every structure in the order of :meth:`enumerate`, ``[*batch, S]``."""

    @final
    def check_enumerable(self) -> None:
        """Raise a ValueError where there are more structures than :data:`MAX_STATES`."""
        if self.num_states > MAX_STATES:
            raise ValueError(
                f"{self!r} has {self.number_of_states()} structures, more than the {MAX_STATES:,} that can be "
                "enumerated; "
                f"use an estimator that samples, such as {self._samplers()}"
            )

    @final
    def check_noise(self, noise: Tensor) -> Tensor:
        """Return the noise if its trailing shape is that of the noise of one sample."""
        shape = self.noise_shape
        if noise.shape[noise.dim() - len(shape) :] != shape:
            raise ValueError(
                f"noise has shape {tuple(noise.shape)}, but {self!r} needs "
                f"[*extra, {', '.join(map(str, shape))}]; draw it with draw_noise()"
            )
        return noise

    @final
    def check_structure(self, z: Tensor) -> Tensor:
        """Return z if its trailing shape is that of one structure and the rest goes with the batch."""
        lead = z.dim() - self.event_dims
        if lead < 0 or z.shape[lead:] != self.event_shape or not broadcasts(z.shape[:lead], self.batch_shape):
            raise ValueError(
                f"z has shape {tuple(z.shape)}, but {self!r} needs [*extra, {', '.join(map(str, self.scores.shape))}]"
            )
        return z

    @final
    def number_of_states(self) -> str:
        """How many structures there are, in a form fit to print."""
        if isinstance(self, Variables):
            return f"{self.values}^{self.variables}"
        return f"{self.num_states:,}" if self.num_states < 10**15 else f"over 2^{self.num_states.bit_length() - 1}"

    @final
    def _samplers(self) -> str:
        """Estimators that sample, for a message."""
        return "LocalExpectation, Direct or Reinforce" if isinstance(self, Factorised) else "Direct or Reinforce"


class Variables(Latent):
    """Latents over n discrete variables, every combination of whose values is a structure.

    So each variable can be changed on its own. The variables need not be independent.
    """

    @property
    @abstractmethod
    def variables(self) -> int:
        """How many discrete variables one structure has."""

    @property
    @abstractmethod
    def values(self) -> int:
        """How many values each variable takes."""

    @property
    @final
    def num_states(self) -> int:
        """How many structures there are."""
        return int(self.values**self.variables)

    @property
    @final
    def num_changes(self) -> int:
        """How many structures differ from a given one in a single variable."""
        return self.variables * (self.values - 1)

    @property
    @final
    def table_shape(self) -> tuple[int, ...]:
        """Of a table of single changes: ``[*batch, k]`` for one categorical variable, else ``[*batch, n, values]``."""
        return (*self.batch_shape, *(() if self.is_one_of_k else (self.variables,)), self.values)

    @abstractmethod
    def change(self, z: Tensor, which: Tensor) -> Tensor:
        """Apply single changes to z.

        Args:
            z: ``[*batch, *event]``.
            which: change numbers ``[m]`` (the same for all) or ``[m, *batch]``, each in ``range(num_changes)``.

        Returns:
            ``[m, *batch, *event]``: z with one variable set to another value.
        """

    @abstractmethod
    def tabulate_changes(self, z: Tensor, unchanged: Tensor, changed: Tensor) -> Tensor:
        """Arrange costs by variable and value.

        Args:
            z: ``[*batch, *event]``.
            unchanged: the cost of z, ``[*batch]``.
            changed: the cost of every single change of z, ``[num_changes, *batch]``.

        Returns:
            ``[*batch, k]`` for one categorical variable, otherwise ``[*batch, n, values]``: the cost with that variable
            set to that value and all others as in z.
        """

    @abstractmethod
    def linear(self, table: Tensor) -> Tensor:
        """Weights w ``[*batch, *event]`` with <w, z> = the sum over variables of ``table``, up to a constant."""


class Factorised(Variables):
    """Latents whose variables are independent: z is drawn as ``solve(scores + noise)``, one noise for each score.

    ``score(z)`` is linear in z, so the gradient of ``score(z)`` with respect to the scores is z itself.
    """

    @property
    @final
    def parameters(self) -> tuple[Tensor, ...]:
        """The scores alone."""
        return (self.scores,)

    @property
    @final
    def noise_shape(self) -> torch.Size:
        """That of the scores."""
        return self.scores.shape

    @final
    def perturb(self, noise: Tensor) -> Tensor:
        """Scores plus noise, in the precision of the noise."""
        return self.scores + self.check_noise(noise)

    @final
    def select(self, noise: Tensor) -> Tensor:
        """The arg max of scores plus noise."""
        return self.solve(self.scores + noise)

    @final
    def change(self, z: Tensor, which: Tensor) -> Tensor:
        """Apply single changes to z."""
        places, values = self.places_of_change(z, which)
        numbers = z.flatten(z.dim() - self.event_dims)
        changed = numbers.expand(*places.shape[:-1], numbers.shape[-1]).scatter(-1, places, values)
        return changed.reshape(*places.shape[:-1], *z.shape[z.dim() - self.event_dims :])

    @abstractmethod
    def places_of_change(self, z: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """Where single changes set other numbers into z.

        Args:
            z: ``[*batch, *event]``.
            which: as in :meth:`change`.

        Returns:
            Places among the numbers of one structure, counted row by row, and what is put there, 0 or 1 in place of the
            other: both ``[m, *batch, p]``, with p = 1 for a bit and 2 for a value that takes the place of another.
        """

    @abstractmethod
    def changes_at(self, z: Tensor, places: Tensor) -> Tensor:
        """Numbers of the single changes that set a number of z which is 0 to 1, or flip a bit: ``[m, *batch]``.

        Args:
            z: ``[*batch, *event]``.
            places: among the numbers of one structure, counted row by row, ``[m, *batch]``.
        """

    @abstractmethod
    def gradient_of_mean(self, weights: Tensor) -> Tensor:
        """The gradient of E[<weights, z>] with respect to the scores: Cov(z) @ weights, ``[*batch, *event]``."""

    @abstractmethod
    def score_gradient(self, z: Tensor) -> Tensor:
        """The gradient of ``log_prob(z)`` with respect to the scores: z − E[z], without an autograd graph."""

    @abstractmethod
    def relax(self, perturbed: Tensor, temperature: Tensor | float) -> Tensor:
        """The softened arg max of perturbed scores, in the interior of the hull of the structures; differentiable."""

    @abstractmethod
    def perturb_given(self, z: Tensor, noise: Tensor) -> Tensor:
        """Perturbed scores drawn from their law given the outcome z, from fresh noise of the same shape as z."""

    @abstractmethod
    def outcome_path_gradient(self, z: Tensor, perturbed: Tensor, weights: Tensor) -> Tensor:
        r"""The part of a pathwise gradient that the outcome carries.

        Let t = ``perturbed`` be the perturbed scores whose arg max is z. Moving the scores moves t along two paths:
        with the noise fixed (outcomes may change), or with the noise *given the outcome* fixed (they may not). Returned
        is ``(∂t/∂h − ∂t̃/∂h)ᵀ weights``, the difference of the two pulled-back gradients, in closed form.
        """

    def __repr__(self) -> str:
        """Name the family and the shapes, not the numbers."""
        values = f", values={self.values}" if self.event_dims > 1 or self.variables == 1 else ""
        return f"{type(self).__name__}(batch={tuple(self.batch_shape)}, variables={self.variables}{values})"


def broadcasts(first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether two shapes broadcast together."""
    return all(a == b or 1 in (a, b) for a, b in zip(reversed(first), reversed(second), strict=False))


def cheaply_known_finite(scores: Tensor) -> bool:
    """Whether all scores are finite; False also where looking would take long: a GPU would have to be waited for."""
    return scores.is_cpu and can_read_values(scores) and math.isfinite(scores.detach().sum().item())


def check_scores(name: str, scores: Tensor, event_dims: int, *, one_of_k: bool, validate: bool) -> bool:
    """Raise a ValueError that says what is wrong with scores; returns whether all of them are known to be finite.

    Args:
        name: the latent, for the message.
        scores: ``[*batch, *event]``.
        event_dims: how many trailing dimensions make up one structure.
        one_of_k: whether the last dimension lists the values of one variable, of which one must be possible.
        validate: False checks type and shape only.
    """
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        given = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(f"{name} needs a floating-point tensor of scores, got {given}; convert it with .float()")
    if scores.dim() < event_dims or math.prod(scores.shape[scores.dim() - event_dims :]) == 0:
        event = "n, k" if event_dims == 2 else "k" if one_of_k else "n"
        raise ValueError(
            f"{name} needs scores [*batch, {event}] with no empty event dimension, got shape {tuple(scores.shape)}"
        )
    if not validate or scores.numel() == 0 or not can_read_values(scores):
        return False
    scores = scores.detach()
    if math.isfinite(scores.sum().item()):
        return True
    # The maximum of a row is finite exactly when the row has no NaN, no +inf and something above -inf.
    allowed = scores.amax(-1).abs() < torch.inf if one_of_k else scores < torch.inf
    if not bool(allowed.all()):
        raise ValueError(describe_bad_scores(name, scores))
    return False


def describe_bad_scores(name: str, scores: Tensor) -> str:
    """One line that says which kind of bad number the scores hold, where, and what to do."""
    if bool(scores.isnan().any()):
        kind, bad, advice = "NaN", scores.isnan(), "the network that made them has diverged: lower the learning rate"
    elif bool((scores == torch.inf).any()):
        kind, bad, advice = "+inf", scores == torch.inf, "use a large finite number, or -inf for what is impossible"
    else:
        bad = (scores == -torch.inf).all(-1)
        kind, advice = "all -inf (no possible outcome)", "leave at least one outcome possible in every row"
    where = tuple(bad.nonzero()[0].tolist())
    return f"{name} scores are {kind} in {int(bad.sum())} of {bad.numel()} places, first at index {where}; {advice}"
