r"""One of k, or n independent variables that are each one of k.

:math:`q(z) = \prod_i \mathrm{softmax}(h_i)_{z_i}`; z is one-hot in its last dimension. Sampling, log-probability,
entropy and KL cost one pass over the scores; enumeration lists :math:`k^n` structures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self, final

import torch
from torch import Tensor

from argrad.latents.base import Factorised, Latent, check_scores
from argrad.noise import gumbel, gumbel_given_outcome

__all__ = ["Categorical", "one_hot_argmax"]


@final
class Categorical(Factorised):
    """A batch of categorical variables, one or n per structure.

    Args:
        logits: ``[*batch, k]``, or ``[*batch, n, k]`` with ``event_dims=2``; ``-inf`` marks impossible values.
        event_dims: 1 for one variable, 2 for n independent ones.
        validate: False leaves out the checks that read the numbers.

    >>> q = Categorical(torch.zeros(2, 3))
    >>> q.sample(generator=torch.Generator().manual_seed(0)).sum(-1)
    tensor([1., 1.])
    >>> q.kl()
    tensor([0., 0.])
    """

    def __init__(self, logits: Tensor, *, event_dims: int = 1, validate: bool = True) -> None:
        if event_dims not in (1, 2):
            raise ValueError(f"Categorical needs event_dims 1 (one variable) or 2 (n variables), got {event_dims}")
        self.known_finite = check_scores("Categorical", logits, event_dims, one_of_k=True, validate=validate)
        self.scores = logits
        self.event_dims = event_dims
        self.is_one_of_k = event_dims == 1
        self._kept: tuple[Tensor, Tensor] | None = None

    @property
    def logits(self) -> Tensor:
        """The scores, under PyTorch's name."""
        return self.scores

    @property
    def variables(self) -> int:
        """How many variables one structure has."""
        return self.scores.shape[-2] if self.event_dims == 2 else 1

    @property
    def values(self) -> int:
        """k, the number of values of each variable."""
        return self.scores.shape[-1]

    def with_scores(self, scores: Tensor) -> Self:
        """The same kind of latent with other scores, unchecked."""
        return type(self)(scores, event_dims=self.event_dims, validate=False)

    def draw_noise(self, shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Standard Gumbel noise ``[*shape, *batch, *event]``."""
        shape = (*shape, *self.scores.shape)
        return gumbel(shape, dtype=self.scores.dtype, device=self.scores.device, generator=generator)

    def solve(self, scores: Tensor) -> Tensor:
        """One-hot arg max over the last dimension; the first of equals."""
        return one_hot_argmax(scores)

    def mode(self) -> Tensor:
        """The most probable value of every variable, one-hot."""
        return one_hot_argmax(self.scores)

    def mean(self) -> Tensor:
        """The probabilities, ``[*batch, *event]``."""
        return self._probabilities()[1] if self.differentiated_once else self.scores.softmax(-1)

    def gradient_of_mean(self, weights: Tensor) -> Tensor:
        """p * (w − <p, w>) for every variable."""
        p = self.scores.detach().softmax(-1)
        return p * (weights - (p * weights).sum(-1, keepdim=True))

    def score(self, z: Tensor) -> Tensor:
        """The sum of the chosen logits, ``[*extra, *batch]``."""
        return self._sum_variables(torch.where(self.check_structure(z) > 0, self.scores, 0.0).sum(-1))

    def log_prob(self, z: Tensor) -> Tensor:
        """The sum of the chosen log-probabilities, ``[*extra, *batch]``; ``-inf`` for impossible values."""
        return self._sum_variables(torch.where(self.check_structure(z) > 0, self.scores.log_softmax(-1), 0.0).sum(-1))

    def score_gradient(self, z: Tensor) -> Tensor:
        """z − p."""
        return z - self.scores.detach().softmax(-1)

    def entropy(self) -> Tensor:
        """−Σ p log p, summed over variables."""
        return -self._expected_log_ratio(0.0)

    def kl(self, prior: Latent | None = None) -> Tensor:
        """KL to the uniform distribution over all k^n structures, or to another categorical latent."""
        if prior is None:
            return self._expected_log_ratio(-math.log(self.values))
        if not isinstance(prior, Categorical) or prior.event_shape != self.event_shape:
            raise ValueError(f"the KL of {self!r} needs a prior of the same family and event shape, got {prior!r}")
        return self._expected_log_ratio(prior.scores.log_softmax(-1))

    def relax(self, perturbed: Tensor, temperature: Tensor | float) -> Tensor:
        """softmax(perturbed / temperature): the Concrete, or Gumbel-softmax, variable."""
        perturbed = perturbed.to(torch.promote_types(perturbed.dtype, torch.float32))
        shifted = perturbed - perturbed.detach().amax(-1, keepdim=True)  # keeps the quotient from overflowing
        if not self.known_finite:
            shifted = shifted.clamp_min(-1e6)  # keeps -inf out of the temperature's gradient
        return (shifted / temperature).softmax(-1)

    def perturb_given(self, z: Tensor, noise: Tensor) -> Tensor:
        """Gumbel-perturbed scores given that z is their arg max."""
        return gumbel_given_outcome(self.scores, z, self.check_noise(noise))

    def outcome_path_gradient(self, z: Tensor, perturbed: Tensor, weights: Tensor) -> Tensor:
        r"""With r = exp(t − max t): r * w − p <r, w>.

        :func:`argrad.noise.gumbel_given_outcome` with its noise fixed has :math:`\partial\tilde t_i / \partial h = (1 -
        r_i) e_i + r_i p`: the maximum moves with :math:`\log\sum e^h`, and the others follow it the more the closer
        they are.
        """
        closeness = (perturbed - perturbed.amax(-1, keepdim=True)).exp() * weights
        return closeness - self.scores.detach().softmax(-1) * closeness.sum(-1, keepdim=True)

    def enumerate(self) -> Tensor:
        """All k^n structures, one-hot, ``[S, *event]``."""
        self.check_enumerable()
        codes = torch.eye(self.values, dtype=self.scores.dtype, device=self.scores.device)
        if self.event_dims == 1:
            return codes
        digits = torch.cartesian_prod(*[torch.arange(self.values, device=codes.device)] * self.variables)
        return codes[digits.reshape(-1, self.variables)]

    def log_prob_all(self) -> Tensor:
        """The log-probability of every structure, ``[*batch, S]``."""
        self.check_enumerable()
        log_p = self.scores.log_softmax(-1)
        return log_p if self.event_dims == 1 else sum_of_all_choices(log_p)

    def places_of_change(self, z: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """Change number i * (k − 1) + j moves variable i on by j + 1 values, around the circle."""
        k, batch = self.values, z.shape[: z.dim() - self.event_dims]
        which = which.reshape(which.shape + (1,) * (len(batch) + 1 - which.dim())).expand(*which.shape[:1], *batch)
        variable, step = which // (k - 1), which % (k - 1) + 1
        now = z.argmax(-1).reshape(*batch, self.variables)
        old = now.expand(*which.shape, self.variables).gather(-1, variable.unsqueeze(-1)).squeeze(-1)
        places = k * variable.unsqueeze(-1) + torch.stack([old, (old + step) % k], -1)
        return places, torch.arange(2, dtype=z.dtype, device=z.device).expand(places.shape)

    def changes_at(self, z: Tensor, places: Tensor) -> Tensor:
        """Undo the circular numbering of :meth:`places_of_change`."""
        k, variable = self.values, places // self.values
        now = z.argmax(-1).reshape(*z.shape[: z.dim() - self.event_dims], self.variables)
        old = now.expand(*places.shape, self.variables).gather(-1, variable.unsqueeze(-1)).squeeze(-1)
        return variable * (k - 1) + (places - old - 1) % k

    def tabulate_changes(self, z: Tensor, unchanged: Tensor, changed: Tensor) -> Tensor:
        """Undo the circular numbering of :meth:`change`: ``[*batch, k]`` or ``[*batch, n, k]``."""
        changed = changed.movedim(0, -1)
        if self.event_dims == 2:
            changed = changed.unflatten(-1, (self.variables, self.values - 1))
            unchanged = unchanged.unsqueeze(-1).expand(changed.shape[:-1])
        by_step = torch.cat([unchanged.unsqueeze(-1), changed], -1)
        step = (torch.arange(self.values, device=z.device) - z.argmax(-1, keepdim=True)) % self.values
        return by_step.gather(-1, step)

    def linear(self, table: Tensor) -> Tensor:
        """The table itself: z picks one entry of each row."""
        return table

    def to_distribution(self) -> torch.distributions.Distribution:
        """The same distribution as ``torch.distributions`` has it, over one-hot vectors."""
        one_hot = torch.distributions.OneHotCategorical(logits=self.scores)
        return torch.distributions.Independent(one_hot, 1) if self.event_dims == 2 else one_hot

    @classmethod
    def from_distribution(cls, distribution: torch.distributions.Distribution) -> Self:
        """From ``Categorical`` or ``OneHotCategorical``, or ``Independent`` with one dimension around either.

        >>> Categorical.from_distribution(torch.distributions.Categorical(logits=torch.zeros(5, 3)))
        Categorical(batch=(5,), variables=1, values=3)
        """
        base, extra = distribution, 0
        if isinstance(distribution, torch.distributions.Independent):
            base, extra = distribution.base_dist, distribution.reinterpreted_batch_ndims
        kinds = (torch.distributions.Categorical, torch.distributions.OneHotCategorical)
        if not isinstance(base, kinds) or extra > 1:
            raise ValueError(
                "Categorical.from_distribution needs a Categorical or OneHotCategorical, or Independent(…, 1) of it, "
                f"got {distribution}"
            )
        return cls(base.logits, event_dims=1 + extra)

    def _probabilities(self) -> tuple[Tensor, Tensor]:
        """log p and p; kept where one backward pass takes all."""
        if self._kept is not None:
            return self._kept
        log_p = self.scores.log_softmax(-1)
        both = log_p, log_p.exp()
        if self.differentiated_once and torch.is_grad_enabled():
            self._kept = both
        return both

    def _sum_variables(self, per_variable: Tensor) -> Tensor:
        return per_variable.sum(-1) if self.event_dims == 2 else per_variable

    def _expected_log_ratio(self, log_prior: Tensor | float) -> Tensor:
        """Σ p (log p − log prior), where 0 log 0 is 0 in value and gradient."""
        log_p, p = self._probabilities()
        if isinstance(log_prior, Tensor):
            return self._sum_variables((p * torch.where(p > 0, log_p - log_prior, 0.0)).sum(-1))
        if not self.known_finite:
            # Far below what exp() tells from 0, and far enough from overflow for any weight on the result.
            log_p = log_p.clamp_min(-math.sqrt(torch.finfo(p.dtype).max))
        return self._sum_variables((p * log_p).sum(-1) - log_prior)


def one_hot_argmax(scores: Tensor) -> Tensor:
    """The arg max over the last dimension as a one-hot vector, without gradient."""
    scores = scores.detach()
    return torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)


def sum_of_all_choices(values: Tensor) -> Tensor:
    """For ``[*batch, n, k]``, the sum over variables of each of the k^n choices, the last changing fastest.

    Half the variables and the other half are summed on their own, so that only one addition, and on the way back two
    sums along its sides, are as large as the result.
    """
    n = values.shape[-2]
    if n < 2:
        return values[..., 0, :]
    first, last = (sum_of_all_choices(half) for half in values.split([n // 2, n - n // 2], -2))
    return (first.unsqueeze(-1) + last.unsqueeze(-2)).flatten(-2)
