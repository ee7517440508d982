r"""What latents over combinatorial structures share: two laws, and exact inference under one of them.

**law="gibbs"** draws exactly from :math:`p(z) = e^{\mathrm{score}(z)} / Z`; log-probability, entropy, KL and marginals
are those of p. **law="perturb"** draws :math:`z = \arg\max_z \{\mathrm{score}(z) + \langle\gamma, z\rangle\}` with
independent noise γ, one number for each score. That needs nothing but a solver, so it works at any size; but for
structures it is *another distribution*, whose probabilities are not known, so what rests on them is
:class:`~argrad.latents.Unavailable`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, NoReturn, Self, final

import torch
from torch import Tensor

from argrad.latents.base import Latent, Law, Unavailable, can_read_values
from argrad.noise import gumbel
from argrad.solvers.checks import check_possible
from argrad.solvers.log_space import finite, is_possible
from argrad.solvers.pairwise_enumeration import exact_product

__all__ = ["Solver", "Structured", "SumOfParts"]

Solver = Callable[..., Tensor]
"""Takes scores ``[*batch, *event]`` (and pairwise or transition scores, where there are), returns structures."""


class Structured(Latent):
    """A latent over combinatorial structures under one of two laws."""

    solver: str | Solver
    """"auto", or your own function: finds the mode, and under the law "perturb" the samples."""

    @final
    def log_partition(self) -> Tensor:
        """log Z, ``[*batch]``, differentiable; its gradient with respect to the scores is :meth:`mean`."""
        self._require_gibbs("log_partition")
        return self._log_partition()

    @final
    def mode(self) -> Tensor:
        """The structure with the best score, ``[*batch, *event]``; under the law "gibbs" the most probable one."""
        return self.solve(self.scores).to(self.scores.dtype)

    @final
    def mean(self) -> Tensor:
        """The marginals E[z], ``[*batch, *event]``, differentiable."""
        self._require_gibbs("mean")
        return self._mean()

    @final
    def log_prob(self, z: Tensor) -> Tensor:
        """score(z) − log Z, ``[*extra, *batch]``; ``-inf`` for impossible structures. z must be a structure."""
        self._require_gibbs("log_prob")
        return self.score(z) - self._log_partition()

    @final
    def entropy(self) -> Tensor:
        """Entropy in nats, ``[*batch]``."""
        self._require_gibbs("entropy")
        return self._entropy()

    @final
    def kl(self, prior: Latent | None = None) -> Tensor:
        """KL(self || prior) in nats, ``[*batch]``; to the uniform distribution over all structures when None."""
        self._require_gibbs("kl")
        if prior is None:
            return self._kl_to_uniform()
        if type(prior) is not type(self) or prior._details() != self._details() or prior.law != "gibbs":
            raise ValueError(f"the KL of {self!r} needs a prior of the same family, shape and law, got {prior!r}")
        return self._kl_to(prior).clamp_min(0.0)

    @final
    def log_prob_all(self) -> Tensor:
        """The log-probability of every structure in the order of :meth:`enumerate`, ``[*batch, S]``."""
        self._require_gibbs("log_prob_all")
        self.check_enumerable()
        return self._scores_all() - self._log_partition().unsqueeze(-1)

    @final
    def select(self, noise: Tensor) -> Tensor:
        """An exact draw, or the arg max of scores plus noise."""
        return self._draw(noise) if self.law == "gibbs" else self.solve(self.scores + noise)

    @abstractmethod
    def with_law(self, law: Law) -> Self:
        """The same scores under another law, unchecked."""

    @abstractmethod
    def _draw(self, noise: Tensor) -> Tensor:
        """An exact sample."""

    @abstractmethod
    def _log_partition(self) -> Tensor:
        """log Z."""

    @abstractmethod
    def _mean(self) -> Tensor:
        """E[z]."""

    @abstractmethod
    def _entropy(self) -> Tensor:
        """The entropy."""

    @abstractmethod
    def _kl_to_uniform(self) -> Tensor:
        """KL to the uniform distribution over all structures; :func:`kl_from_entropy` is one way."""

    @abstractmethod
    def _kl_to(self, prior: Self) -> Tensor:
        """KL to another latent of the family."""

    @abstractmethod
    def _scores_all(self) -> Tensor:
        """The score of every structure."""

    @final
    def _require_gibbs(self, what: str) -> None:
        """Raise Unavailable under the law "perturb"; the message names the usual substitute."""
        if self.law == "gibbs":
            return
        noise = "a zero-mean Gumbel for each value of each variable"
        substitute = {"mean": "average samples", "entropy": f"E[<noise, z>] bounds it, with {noise}"}.get(
            what, f"E[max(score + noise)] bounds log Z, with {noise}"
        )
        raise Unavailable(
            f"{what} is not known for {self!r}: its samples do not follow exp(score) / Z; {substitute}; "
            'or use law="gibbs"'
        )

    @final
    def _too_large(self, limit: str) -> NoReturn:
        """Raise Unavailable where exact inference is out of reach."""
        raise Unavailable(
            f'exact inference over {self!r} is out of reach: it goes up to {limit}; use law="perturb", which needs '
            "only the best structure"
        )

    @abstractmethod
    def _details(self) -> str:
        """What tells this latent from others of its family, for printing."""

    @final
    def __repr__(self) -> str:
        """Name the family, the shapes and the law, not the numbers."""
        return f"{type(self).__name__}(batch={tuple(self.batch_shape)}, {self._details()}, law={self.law!r})"


class SumOfParts(Structured):
    """A structured latent whose score is the sum of the scores of the chosen parts, <scores, z>."""

    @property
    @final
    def parameters(self) -> tuple[Tensor, ...]:
        """The scores alone."""
        return (self.scores,)

    @final
    def score(self, z: Tensor) -> Tensor:
        """The sum of the chosen scores, ``[*extra, *batch]``."""
        chosen = torch.where(self.check_structure(z) > 0, self.scores, 0.0)
        return chosen.sum(tuple(range(-self.event_dims, 0)))

    @abstractmethod
    def _read_scores(self) -> Tensor:
        """The scores with 0 in place of those that no structure uses."""

    @final
    def _scores_all(self) -> Tensor:
        """One product with all structures; what holds an impossible part is −inf and sends no gradient."""
        scores = finite(self._read_scores()).flatten(self.scores.dim() - self.event_dims)
        total = exact_product(scores.unsqueeze(-2), self.enumerate().to(scores.dtype).flatten(1).mT).squeeze(-2)
        return total.masked_fill(~is_possible(total), -torch.inf).to(self.scores.dtype)

    @final
    def _kl_to_uniform(self) -> Tensor:
        return kl_from_entropy(self, self._entropy())

    @final
    def _kl_to(self, prior: Self) -> Tensor:
        """E[score − prior's score] − log Z + log prior's Z, where the expectation is linear in the marginals."""
        gap = expected_gap(self._mean(), self._read_scores(), prior._read_scores())
        return gap.sum(tuple(range(-self.event_dims, 0))) - self._log_partition() + prior._log_partition()


def kl_from_entropy(latent: Latent, entropy: Tensor) -> Tensor:
    """log |structures| − entropy, ``[*batch]``, which rounding alone makes negative."""
    return (math.log(latent.num_states) - entropy).clamp_min(0.0)


def expected_gap(mean: Tensor, scores: Tensor, prior: Tensor) -> Tensor:
    """mean * (scores − prior), where what has no probability counts 0 in value and gradient."""
    return mean * torch.where((mean > 0) & (scores > -torch.inf), scores - prior, 0.0)


def choose_law(name: str, law: str) -> Law:
    """The law, checked."""
    if law not in ("gibbs", "perturb"):
        raise ValueError(f'{name} needs law="gibbs" (exact) or law="perturb" (noise on the scores), got {law!r}')
    return law  # type: ignore[return-value]


def choose_solver(name: str, solver: str | Solver) -> Literal["auto"] | Solver:
    """The solver, checked."""
    if solver == "auto":
        return "auto"
    if not callable(solver):
        raise ValueError(f'{name} needs solver="auto" or a function that returns structures, got {solver!r}')
    return solver


def solve_with(solver: Solver, *scores: Tensor, shape: Sequence[int]) -> Tensor:
    """What a user's solver finds, its shape checked."""
    with torch.no_grad():
        z = solver(*(given.detach() for given in scores))
    if not isinstance(z, Tensor) or tuple(z.shape) != tuple(shape):
        given = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
        raise ValueError(f"the solver must return a tensor of structures of shape {tuple(shape)}, got {given}")
    return z.to(scores[0].device, scores[0].dtype)


def all_finite(scores: Tensor) -> bool:
    """Whether Python may look and sees nothing but finite scores."""
    return can_read_values(scores) and (scores.numel() == 0 or math.isfinite(scores.detach().sum().item()))


def refuse_empty_support(name: str, total: Tensor, complete: Tensor, advice: str) -> None:
    """Raise a ValueError where the best structure holds an impossible part or there is none.

    Args:
        name: the latent, for the message.
        total: the score of the best structure, ``[*batch]``.
        complete: whether a structure was found at all, ``[*batch]``.
        advice: what to do about it.
    """
    check_possible(name, (total > -torch.inf) & complete, advice, validate=True)


def draw_gumbel(scores: Tensor, shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
    """Standard Gumbel noise ``[*shape, *scores]``."""
    return gumbel((*shape, *scores.shape), dtype=scores.dtype, device=scores.device, generator=generator)
