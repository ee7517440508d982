r"""Sequences of symbols whose scores depend on the symbols before them: autoregressive models, policies, generators.

**Structures**: one-hot z, ``[*batch, length, k]``. **Law**: :math:`q(z) = \prod_t \mathrm{softmax}(h_t(z_{<t}))_{z_t}`,
with scores :math:`h_t` from a function of yours that is called once per step. A sample is drawn by Gumbel-max, step by
step, from noise ``[*batch, length, k]``: :math:`z_t = \arg\max\{h_t(z_{<t}) + \gamma_t\}`. With scores that ignore what
came before it is :class:`argrad.Categorical` with ``event_dims=2``.

**How estimators see it.** Along a sample, :meth:`Sequence.given` is n independent categorical variables with scores
``[batch, length, k]``, differentiable. Let :math:`Q_t(v)` be the cost of the sequence that keeps :math:`z_{<t}`, has v
at t, and *goes on from there with the same noise* (:meth:`Sequence.continued`). Then

.. math:: \nabla E[c(z)] = E\Big[\sum_t \sum_v \nabla q(v \mid z_{<t})\, Q_t(v)\Big],

the policy gradient: given :math:`z_{<t}` and the noise of later steps, the cost is a function of the symbol at t alone.
So what is known of one categorical variable with costs :math:`Q_t` holds at every step: the local expectation gradient
is unbiased, and the direct one has the bias that it has there.
"""

from __future__ import annotations

import collections.abc
import math
from collections.abc import Callable
from typing import Any, Self, final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from argrad.latents.base import (
    MAX_STATES,
    Latent,
    Unavailable,
    can_read_values,
    check_scores,
    describe_bad_scores,
)
from argrad.latents.categorical import Categorical, one_hot_argmax
from argrad.noise import gumbel

__all__ = ["Sequence", "Step"]

Step = Callable[[Tensor | None, Any], tuple[Tensor, Any]]
"""Maps the symbols of the step before, one-hot ``[N, k]`` (None at the first step), and a state to scores ``[N, k]``
and the next state: a tensor, a tuple or dict of them with rows first, or None."""


@final
class Sequence(Latent):
    """A batch of distributions over sequences of one length.

    Args:
        step: maps (previous symbols or None, state) to (scores, next state), see :data:`Step`; its first call tells
            the batch, ``[batch, k]``. Symbols inside the simplex must be allowed where a relaxation is asked for.
        length: how many symbols.
        state: given to the first call.
        end: a symbol after which there is nothing but itself, so that sequences may end early.
        validate: False leaves out the checks that read the scores, the first and all later ones.

    >>> again = torch.tensor([[2.0, 0.0], [0.0, 2.0]])  # a symbol likes to be repeated
    >>> def step(previous, state):
    ...     return (torch.zeros(1, 2) if previous is None else previous @ again), None
    >>> q = Sequence(step, 3)
    >>> q.log_prob(torch.eye(2)[torch.tensor([[0, 0, 1]])]).exp()
    tensor([0.0525])
    """

    def __init__(
        self, step: Step, length: int, *, state: Any = None, end: int | None = None, validate: bool = True
    ) -> None:
        if not callable(step):
            raise ValueError(f"Sequence needs a function (previous, state) -> (scores, state), got {step!r}")
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise ValueError(f"Sequence needs a length of at least 1, got {length!r}")
        self.step = step
        self.end = end
        self.validate = validate
        self._first, self._state = call(step, None, state)
        if self._first.dim() != 2:
            raise ValueError(
                f"the first step of a Sequence must return scores [batch, k], got shape {tuple(self._first.shape)}"
            )
        check_scores("Sequence", self._first, 1, one_of_k=True, validate=validate)
        rows, k = self._first.shape
        if end is not None and not 0 <= end < k:
            raise ValueError(f"end must be one of the k={k} symbols, 0 to {k - 1}, got {end}")
        self.event_dims = 2
        self.scores = self._first.unsqueeze(-2).expand(rows, length, k)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The first scores and, where these want no gradient, those that follow, up to the first that want one.

        What a function makes its scores of cannot be listed, but whether any of them want a gradient can be seen by
        walking along one sequence, here the greedy one.
        """
        if self.scores.requires_grad:
            return (self.scores,)
        with torch.enable_grad():
            _, seen = self._walk(
                len(self._first), lambda t, scores: one_hot_argmax(scores), until=lambda scores: scores.requires_grad
            )
        return self.scores, seen

    @property
    def length(self) -> int:
        """How many symbols."""
        return self.scores.shape[-2]

    @property
    def values(self) -> int:
        """k, the number of symbols."""
        return self.scores.shape[-1]

    @property
    def num_states(self) -> int:
        """k^length."""
        return int(self.values**self.length)

    @property
    def noise_shape(self) -> torch.Size:
        """``[batch, length, k]``."""
        return self.scores.shape

    def with_scores(self, scores: Tensor) -> Self:
        """Not possible: scores come from the function."""
        raise ValueError("the scores of a Sequence come from its step function; build another Sequence")

    def draw_noise(
        self, shape: collections.abc.Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Standard Gumbel noise ``[*shape, batch, length, k]``."""
        shape = (*shape, *self.scores.shape)
        return gumbel(shape, dtype=self.scores.dtype, device=self.scores.device, generator=generator)

    def select(self, noise: Tensor) -> Tensor:
        """The sequences that noise selects, symbol by symbol."""
        rows = noise.flatten(0, -3)
        with torch.no_grad():
            z, _ = self._walk(len(rows), lambda t, scores: one_hot_argmax(scores + rows[:, t]))
        return z.reshape(noise.shape)

    def given(self, z: Tensor) -> Categorical:
        """The symbols along z as independent variables: scores ``[*extra, batch, length, k]``, differentiable."""
        rows = self.check_structure(z).expand(*z.shape[:-3], *self.scores.shape).flatten(0, -3)
        _, scores = self._walk(len(rows), lambda t, scores: rows[:, t])
        return Categorical(scores.reshape(*z.shape[:-3], *self.scores.shape), event_dims=2, validate=False)

    def continued(self, z: Tensor, other: Tensor, noise: Tensor) -> Tensor:
        """Sequences that go another way at one place: kept up to their first difference from z, then drawn from noise.

        Args:
            z: ``[batch, length, k]``, what the noise selects.
            other: ``[*extra, batch, length, k]``; what comes after the first difference is not looked at.
            noise: ``[batch, length, k]``.
        """
        differs = (other != z).any(-1)
        kept = (differs.long().cumsum(-1) - differs.long() == 0).flatten(0, -2)  # no difference before this symbol
        rows = other.flatten(0, -3)
        repeated = noise.expand(other.shape).flatten(0, -3)

        def choose(t: int, scores: Tensor) -> Tensor:
            return torch.where(kept[:, t, None], rows[:, t], one_hot_argmax(scores + repeated[:, t]))

        with torch.no_grad():
            found, _ = self._walk(len(rows), choose)
        return found.reshape(other.shape)

    def relax(self, noise: Tensor, temperature: Tensor | float, *, straight_through: bool) -> Tensor:
        """Differentiable sequences ``[batch, length, k]``: each step is fed what the one before it relaxed to."""

        def choose(t: int, scores: Tensor) -> Tensor:
            perturbed = scores + noise[:, t]
            soft = Categorical(scores, validate=False).relax(perturbed, temperature).to(scores.dtype)
            return one_hot_argmax(perturbed) + (soft - soft.detach()) if straight_through else soft

        return self._walk(len(noise), choose)[0]

    def greedy(self) -> Tensor:
        """The sequence whose every symbol is the most probable one after those before it, ``[batch, length, k]``."""
        with torch.no_grad():
            return self._walk(len(self._first), lambda t, scores: one_hot_argmax(scores))[0]

    def score(self, z: Tensor) -> Tensor:
        """The log-probability."""
        return self.log_prob(z)

    def log_prob(self, z: Tensor) -> Tensor:
        """The sum over steps of log q(z_t | z_<t), ``[*extra, batch]``."""
        return self.step_log_probs(z).sum(-1)

    def step_log_probs(self, z: Tensor) -> Tensor:
        """log q(z_t | z_<t), ``[*extra, batch, length]``."""
        return torch.where(z > 0, self.given(z).scores.log_softmax(-1), 0.0).sum(-1)

    def enumerate(self) -> Tensor:
        """All k^length sequences, ``[S, length, k]``, the last symbol changing fastest."""
        self.check_enumerable()
        return Categorical(self.scores, event_dims=2, validate=False).enumerate()

    def log_prob_all(self) -> Tensor:
        """The log-probability of every sequence, ``[batch, S]``: S rows go through the steps."""
        states = self.enumerate()
        every = states[:, None].expand(len(states), *self.scores.shape)
        return self.log_prob(every).movedim(0, -1)

    def mode(self) -> Tensor:
        """The most probable sequence, where all can be listed; :meth:`greedy` is quick, and not always the same."""
        self._require_few("the most probable sequence", "greedy() takes the best symbol at each step")
        return self.enumerate()[self.log_prob_all().argmax(-1)]

    def mean(self) -> Tensor:
        """The marginals of every symbol, where all sequences can be listed."""
        self._require_few("the marginals", "average samples")
        return torch.einsum("bs,stk->btk", self.log_prob_all().exp(), self.enumerate())

    def entropy(self) -> Tensor:
        """Entropy in nats, where all sequences can be listed."""
        self._require_few("the entropy", "average −log_prob(z) over samples")
        return -expected(self.log_prob_all(), 0.0)

    def kl(self, prior: Latent | None = None) -> Tensor:
        """KL to the uniform distribution over all k^length sequences, or to another Sequence of the same size."""
        self._require_few("the KL", "average log_prob(z) − prior.log_prob(z) over samples")
        if prior is None:
            return expected(self.log_prob_all(), -self.length * math.log(self.values))
        if not isinstance(prior, Sequence) or prior.event_shape != self.event_shape:
            raise ValueError(f"the KL of {self!r} needs a Sequence of the same length and symbols, got {prior!r}")
        return expected(self.log_prob_all(), prior.log_prob_all())

    def solve(self, scores: Tensor) -> Tensor:
        """The best symbol at every step, whatever the others are."""
        return one_hot_argmax(scores)

    def _walk(
        self,
        rows: int,
        choose: Callable[[int, Tensor], Tensor],
        *,
        until: Callable[[Tensor], bool] = lambda scores: False,
    ) -> tuple[Tensor, Tensor]:
        """Symbols and scores ``[rows, length, k]`` of a walk in which ``choose(t, scores)`` picks the symbols.

        It is shorter where ``until(scores)`` says that a step was the last.
        """
        times = rows // len(self._first) if rows else 1

        def repeat(tensor: Any) -> Any:
            if not isinstance(tensor, Tensor) or times == 1:
                return tensor
            return tensor.expand(times, *tensor.shape).flatten(0, 1)

        scores, state = repeat(self._first), tree_map(repeat, self._state)
        symbols: list[Tensor] = []
        seen: list[Tensor] = []
        over = torch.zeros(rows, 1, dtype=torch.bool, device=scores.device)
        for t in range(self.length):
            if t > 0:
                scores, state = call(self.step, symbols[-1], state)
                if scores.shape != (rows, self.values):
                    raise ValueError(
                        f"step {t} returned scores of shape {tuple(scores.shape)} for {rows} rows, expected "
                        f"{(rows, self.values)}"
                    )
            if self.end is not None:
                only = torch.full((self.values,), -torch.inf, dtype=scores.dtype, device=scores.device)
                only[self.end] = 0.0
                scores = torch.where(over, only, scores)
            symbols.append(choose(t, scores).to(scores.dtype))  # noise is drawn in at least float32
            seen.append(scores)
            if until(scores):
                break
            if self.end is not None:
                over = over | (symbols[-1].detach().argmax(-1, keepdim=True) == self.end)
        z, along = torch.stack(symbols, -2), torch.stack(seen, -2)
        return z, check_reached(z, along) if self.validate and can_read_values(along) else along

    def _require_few(self, what: str, instead: str) -> None:
        if self.num_states > MAX_STATES:
            raise Unavailable(f"{what} of {self!r} needs all {self.number_of_states()} sequences; {instead}")

    def __repr__(self) -> str:
        """Name the family and the shapes, not the numbers."""
        return f"Sequence(batch={tuple(self.batch_shape)}, length={self.length}, values={self.values})"


def call(step: Step, previous: Tensor | None, state: Any) -> tuple[Tensor, Any]:
    """Call a step function and check what it returns."""
    returned = step(previous, state)
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[0], Tensor):
        raise ValueError(f"a step must return (scores, state), got {type(returned).__name__}")
    return returned


def check_reached(symbols: Tensor, scores: Tensor) -> Tensor:
    """Raise a ValueError that names the first step by whose scores no symbol can be drawn; both ``[rows, steps, k]``.

    What comes after an impossible symbol does not matter: such scores are returned as zeros where they are bad.
    """
    # The maximum is finite exactly when there is no NaN, no +inf and something above -inf.
    allowed = scores.detach().amax(-1).abs() < torch.inf
    if bool(allowed.all()):
        return scores
    possible = torch.where(symbols > 0, scores, 0.0).detach().amin(-1) > -torch.inf
    reached = (~possible).long().cumsum(-1) - (~possible).long() == 0
    scores = torch.where((allowed | reached).unsqueeze(-1), scores, 0.0)
    if bool((bad := reached & ~allowed).any()):
        step = int(bad.any(0).nonzero()[0])
        raise ValueError(describe_bad_scores(f"Sequence step {step}", scores[:, step].detach()))
    return scores


def expected(log_p: Tensor, other: Tensor | float) -> Tensor:
    """Σ p (log p − other), where 0 log 0 is 0 in value and gradient."""
    p = log_p.exp()
    return (p * torch.where(p > 0, log_p - other, 0.0)).sum(-1)
