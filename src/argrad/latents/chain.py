r"""Sequences of n variables with k values, each tied to the next.

**Structures**: one-hot z, ``[*batch, n, k]``. **Score**: :math:`\sum_t u_t(x_t) + \sum_t a_t(x_t, x_{t+1})`.

**law="gibbs"** is the linear-chain conditional random field :math:`p(x) \propto e^{\mathrm{score}(x)}`, in O(n k²) by
the messages of :mod:`argrad.solvers.chain`. **law="perturb"** is the Viterbi path for unary scores with Gumbel noise.
With transition scores that are all alike both are :class:`argrad.Categorical` with ``event_dims=2``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, final

import torch
from torch import Tensor

from argrad.latents.base import Law, Variables, broadcasts
from argrad.latents.categorical import Categorical, sum_of_all_choices
from argrad.latents.structured import (
    Solver,
    Structured,
    all_finite,
    choose_law,
    choose_solver,
    draw_gumbel,
    expected_gap,
    kl_from_entropy,
    refuse_empty_support,
    solve_with,
)
from argrad.solvers.chain import (
    ADVICE,
    chain_entropy,
    chain_log_partition,
    chain_marginals,
    chain_pair_marginals,
    chain_score,
    prepare,
    sample_chain,
    viterbi,
)
from argrad.solvers.checks import can_read_values

__all__ = ["Chain"]


@final
class Chain(Structured, Variables):
    """A batch of distributions over sequences of n values out of k.

    Args:
        unary: u, ``[*batch, n, k]``; ``-inf`` is a value that is never taken there.
        transition: a, the score of value i followed by value j: ``[k, k]`` for all steps alike, or ``[*batch, n − 1, k,
            k]``, broadcast; ``-inf`` is a step that is never made.
        law: "gibbs" or "perturb".
        solver: "auto", or a function that takes unary and transition scores and returns one-hot z like the unary ones.
        validate: False leaves out the checks that read the numbers.

    >>> stay = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> q = Chain(torch.zeros(3, 2), stay)
    >>> q.log_prob(torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])).exp()
    tensor(0.2672)
    """

    def __init__(
        self,
        unary: Tensor,
        transition: Tensor,
        *,
        law: Law = "gibbs",
        solver: str | Solver = "auto",
        validate: bool = True,
    ) -> None:
        if (
            isinstance(transition, Tensor)
            and isinstance(unary, Tensor)
            and not broadcasts(unary.shape[:-2], transition.shape[:-3])
        ):
            raise ValueError(
                f"Chain got unary scores of shape {tuple(unary.shape)} and transition scores of shape "
                f"{tuple(transition.shape)}, whose batch dimensions do not agree; give both the same batch shape"
            )
        wide, _ = prepare("Chain", unary, transition, validate=validate)
        self.law = choose_law("Chain", law)
        self.solver = choose_solver("Chain", solver)
        self.scores = unary if wide.shape == unary.shape else unary.expand(wide.shape)
        self.transition = transition
        self.event_dims = 2
        if validate and can_read_values(unary) and not (all_finite(unary) and all_finite(transition)):
            best = viterbi(self.scores, transition, validate=False)
            refuse_empty_support("Chain", self.score(best), best.sum((-1, -2)) > 0, ADVICE)

    @property
    def unary(self) -> Tensor:
        """The scores of single variables."""
        return self.scores

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """Unary and transition scores."""
        return self.scores, self.transition

    @property
    def variables(self) -> int:
        """n, the length."""
        return self.scores.shape[-2]

    @property
    def values(self) -> int:
        """k, the number of values of each variable."""
        return self.scores.shape[-1]

    @property
    def noise_shape(self) -> torch.Size:
        """That of the unary scores."""
        return self.scores.shape

    def with_scores(self, scores: Tensor) -> Self:
        """The same transition scores with other unary ones, unchecked."""
        return type(self)(scores, self.transition, law=self.law, solver=self.solver, validate=False)

    def with_law(self, law: Law) -> Self:
        """The same scores under another law, unchecked."""
        return type(self)(self.scores, self.transition, law=law, solver=self.solver, validate=False)

    def draw_noise(self, shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Standard Gumbel noise ``[*shape, *batch, n, k]``."""
        return draw_gumbel(self.scores, shape, generator)

    def solve(self, scores: Tensor) -> Tensor:
        """The Viterbi path for other unary scores."""
        if callable(self.solver):
            return solve_with(self.solver, scores, self.transition, shape=scores.shape)
        return viterbi(scores, self.transition, validate=False)

    def score(self, z: Tensor) -> Tensor:
        """The sum of the scores of values and steps, ``[*extra, *batch]``."""
        return chain_score(self.scores, self.transition, self.check_structure(z)).to(self.scores.dtype)

    def enumerate(self) -> Tensor:
        """All k^n sequences, one-hot, ``[S, n, k]``, the last position changing fastest."""
        return self._independent().enumerate()

    def change(self, z: Tensor, which: Tensor) -> Tensor:
        """Change number i * (k − 1) + j moves variable i on by j + 1 values, around the circle."""
        return self._independent().change(z, which)

    def tabulate_changes(self, z: Tensor, unchanged: Tensor, changed: Tensor) -> Tensor:
        """``[*batch, n, k]``."""
        return self._independent().tabulate_changes(z, unchanged, changed)

    def makes_impossible_step(self, z: Tensor) -> Tensor:
        """Whether z with one variable set to another value makes a step that is never made, ``[*batch, n, k]``."""
        never = (self.transition == -torch.inf).to(z.dtype)
        after, before = torch.zeros_like(z), torch.zeros_like(z)
        after[..., 1:, :] = (z[..., :-1, None, :] @ never).squeeze(-2)
        before[..., :-1, :] = (never @ z[..., 1:, :, None]).squeeze(-1)
        return after + before > 0

    def linear(self, table: Tensor) -> Tensor:
        """The table itself: z picks one entry of each row."""
        return table

    def _independent(self) -> Categorical:
        """The variables without their transition scores: the same structures."""
        return Categorical(self.scores, event_dims=2, validate=False)

    def _draw(self, noise: Tensor) -> Tensor:
        return sample_chain(self.scores, self.transition, noise, validate=False)

    def _log_partition(self) -> Tensor:
        return chain_log_partition(self.scores, self.transition, validate=False)

    def _mean(self) -> Tensor:
        return chain_marginals(self.scores, self.transition, validate=False)

    def _entropy(self) -> Tensor:
        return chain_entropy(self.scores, self.transition, validate=False)

    def _kl_to_uniform(self) -> Tensor:
        return kl_from_entropy(self, self._entropy())

    def _kl_to(self, prior: Self) -> Tensor:
        """E[score − prior's score] − log Z + log prior's Z, by the marginals of values and of steps."""
        values = expected_gap(self._mean(), self.scores, prior.scores).sum((-1, -2))
        pairs = chain_pair_marginals(self.scores, self.transition, validate=False)
        steps = expected_gap(pairs, self.transition, prior.transition).sum((-1, -2, -3))
        return values + steps - self._log_partition() + prior._log_partition()

    def _scores_all(self) -> Tensor:
        """The sums over values, plus the sums over steps, each step added where its two values meet."""
        k, n = self.values, self.variables
        total = sum_of_all_choices(self.scores)
        steps = self.transition.expand(*self.batch_shape, n - 1, k, k)
        for t in range(n - 1):
            by_step = total.unflatten(-1, (k**t, k, k, k ** (n - t - 2)))
            total = (by_step + steps[..., t, None, :, :, None]).flatten(-4)
        return total

    def _details(self) -> str:
        return f"variables={self.variables}, values={self.values}"
