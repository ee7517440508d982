r"""n independent bits.

:math:`q(z) = \prod_i \sigma(h_i)^{z_i} \sigma(-h_i)^{1 - z_i}`, the categorical latent with two values of which only
the difference of scores is kept. The noise is logistic: z = 1[h + λ > 0].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self, final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from argrad.latents.base import Factorised, Latent, check_scores
from argrad.latents.categorical import sum_of_all_choices
from argrad.noise import logistic, logistic_given_outcome

__all__ = ["Bits"]


@final
class Bits(Factorised):
    """A batch of vectors of n independent bits.

    Args:
        logits: ``[*batch, n]``, the log-odds of each bit; ``-inf`` is a bit that is always 0.
        validate: False leaves out the check that reads the numbers.

    >>> q = Bits(torch.tensor([[-torch.inf, 0.0, 100.0]]))
    >>> q.mean()
    tensor([[0.0000, 0.5000, 1.0000]])
    >>> q.entropy()
    tensor([0.6931])
    """

    def __init__(self, logits: Tensor, *, validate: bool = True) -> None:
        self.known_finite = check_scores("Bits", logits, 1, one_of_k=False, validate=validate)
        self.scores = logits
        self.event_dims = 1

    @property
    def logits(self) -> Tensor:
        """The scores, under PyTorch's name."""
        return self.scores

    @property
    def variables(self) -> int:
        """n, the number of bits."""
        return self.scores.shape[-1]

    @property
    def values(self) -> int:
        """Two."""
        return 2

    def with_scores(self, scores: Tensor) -> Self:
        """The same kind of latent with other scores, unchecked."""
        return type(self)(scores, validate=False)

    def draw_noise(self, shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Standard logistic noise ``[*shape, *batch, n]``."""
        shape = (*shape, *self.scores.shape)
        return logistic(shape, dtype=self.scores.dtype, device=self.scores.device, generator=generator)

    def solve(self, scores: Tensor) -> Tensor:
        """1 where the score is positive."""
        scores = scores.detach()
        return (scores > 0).to(scores.dtype)

    def mode(self) -> Tensor:
        """The most probable bits; 0 at even odds."""
        return self.solve(self.scores)

    def mean(self) -> Tensor:
        """The probability of each bit being 1."""
        return self.scores.sigmoid()

    def gradient_of_mean(self, weights: Tensor) -> Tensor:
        """σ'(h) * w."""
        p = self.scores.detach().sigmoid()
        return p * (1 - p) * weights

    def score(self, z: Tensor) -> Tensor:
        """The sum of the logits of the bits that are 1, ``[*extra, *batch]``."""
        return torch.where(self.check_structure(z) > 0, self.scores, 0.0).sum(-1)

    def log_prob(self, z: Tensor) -> Tensor:
        """The log-probability, ``[*extra, *batch]``; ``-inf`` for a 1 where only 0 is possible."""
        return torch.where(self.check_structure(z) > 0, logsigmoid(self.scores), logsigmoid(-self.scores)).sum(-1)

    def score_gradient(self, z: Tensor) -> Tensor:
        """z − σ(h)."""
        return z - self.scores.detach().sigmoid()

    def entropy(self) -> Tensor:
        """The sum of the bits' entropies."""
        return -self._expected_log_ratio(0.0, 0.0)

    def kl(self, prior: Latent | None = None) -> Tensor:
        """KL to the uniform distribution over all 2^n vectors, or to another ``Bits``."""
        if prior is None:
            return self._expected_log_ratio(-math.log(2), -math.log(2))
        if not isinstance(prior, Bits) or prior.event_shape != self.event_shape:
            raise ValueError(f"the KL of {self!r} needs a prior of the same family and event shape, got {prior!r}")
        return self._expected_log_ratio(logsigmoid(prior.scores), logsigmoid(-prior.scores))

    def relax(self, perturbed: Tensor, temperature: Tensor | float) -> Tensor:
        """σ(perturbed / temperature): the binary Concrete variable."""
        perturbed = perturbed.to(torch.promote_types(perturbed.dtype, torch.float32))
        # The clamp keeps -inf out of the temperature's gradient.
        return (perturbed.clamp_min(-1e6) / temperature).sigmoid()

    def perturb_given(self, z: Tensor, noise: Tensor) -> Tensor:
        """Logistic-perturbed scores given that their signs are z."""
        return logistic_given_outcome(self.scores, z, self.check_noise(noise))

    def outcome_path_gradient(self, z: Tensor, perturbed: Tensor, weights: Tensor) -> Tensor:
        r"""With s = ±1 for z = 1, 0: w * σ(−s h) / σ(s (t − h)).

        Given z = 1, t̃ solves σ(h − t̃) = w σ(h) for a fixed uniform w; differentiating both sides gives :math:`1 -
        \partial\tilde t/\partial h = \sigma(-h) / \sigma(\tilde t - h)`. z = 0 is the mirror image.
        """
        scores = self.scores.detach()
        finite = scores > -torch.inf
        sign = 2 * z - 1
        away = torch.where(finite, sign * (perturbed - scores), 0.0)
        log_share = logsigmoid(-sign * scores) - logsigmoid(away)
        return torch.where(finite, weights * log_share.exp(), 0.0)

    def enumerate(self) -> Tensor:
        """All 2^n bit vectors, ``[S, n]``, in counting order, the last bit changing fastest."""
        self.check_enumerable()
        number = torch.arange(2**self.variables, device=self.scores.device)
        weight = torch.arange(self.variables - 1, -1, -1, device=self.scores.device)
        return (number.unsqueeze(-1) >> weight & 1).to(self.scores.dtype)

    def log_prob_all(self) -> Tensor:
        """The log-probability of every bit vector, ``[*batch, S]``."""
        self.check_enumerable()
        return sum_of_all_choices(torch.stack([logsigmoid(-self.scores), logsigmoid(self.scores)], -1))

    def places_of_change(self, z: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """Change number i flips bit i."""
        which = which.reshape(which.shape + (1,) * (z.dim() - which.dim()))
        places = which.expand(*which.shape[:1], *z.shape[:-1]).unsqueeze(-1)
        return places, 1 - z.expand(*places.shape[:-1], z.shape[-1]).gather(-1, places)

    def changes_at(self, z: Tensor, places: Tensor) -> Tensor:
        """The same numbers: change number i flips bit i."""
        return places

    def tabulate_changes(self, z: Tensor, unchanged: Tensor, changed: Tensor) -> Tensor:
        """``[*batch, n, 2]``: the cost with bit i at 0 and at 1."""
        changed, unchanged = changed.movedim(0, -1), unchanged.unsqueeze(-1)
        is_one = z > 0
        return torch.stack([torch.where(is_one, changed, unchanged), torch.where(is_one, unchanged, changed)], -1)

    def linear(self, table: Tensor) -> Tensor:
        """What setting a bit adds to the cost, ``[*batch, n]``."""
        return table[..., 1] - table[..., 0]

    def to_distribution(self) -> torch.distributions.Distribution:
        """The same distribution as ``torch.distributions`` has it."""
        return torch.distributions.Independent(torch.distributions.Bernoulli(logits=self.scores), 1)

    @classmethod
    def from_distribution(cls, distribution: torch.distributions.Distribution) -> Self:
        """From ``Bernoulli``, whose last batch dimension becomes the bits, or ``Independent(Bernoulli, 1)``.

        >>> Bits.from_distribution(torch.distributions.Bernoulli(logits=torch.zeros(5, 3)))
        Bits(batch=(5,), variables=3)
        """
        base, extra = distribution, 1
        if isinstance(distribution, torch.distributions.Independent):
            base, extra = distribution.base_dist, distribution.reinterpreted_batch_ndims
        if not isinstance(base, torch.distributions.Bernoulli) or extra != 1:
            raise ValueError(
                f"Bits.from_distribution needs a Bernoulli or Independent(Bernoulli, 1), got {distribution}"
            )
        return cls(base.logits)

    def _expected_log_ratio(self, log_prior_one: Tensor | float, log_prior_zero: Tensor | float) -> Tensor:
        """The mean of log q − log prior, where 0 log 0 is 0 in value and gradient."""
        p = self.scores.sigmoid()
        one = torch.where(p > 0, logsigmoid(self.scores) - log_prior_one, 0.0)
        zero = logsigmoid(-self.scores) - log_prior_zero
        return (p * one + (-self.scores).sigmoid() * zero).sum(-1)
