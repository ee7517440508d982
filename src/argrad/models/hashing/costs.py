r"""Contrastive costs of discrete codes, with negatives from the batch.

A batch has 2B codes of n bits; rows i and i + B are a pair, and whatever is in another group than an anchor is its
negative. With d the Hamming distance, the loss of anchor a with partner p is one of

.. math::
    \mathrm{triplet}: \quad \mathrm{mean}_{j}\, \max(0,\, m + d_{ap} - d_{aj}), \qquad
    \mathrm{logistic}: \quad \log\Big(1 + \sum_j e^{(d_{ap} - d_{aj}) / s}\Big),

over its negatives j, with the margin m and the scale s in bits. Codes of ±1 have the inner product n − 2d, so a hinge
is ½ max(0, 2m − qᵀd₊ + qᵀd₋), and the logistic loss with one negative and s = ½ is −log σ(qᵀd₊ − qᵀd₋).

**One code at a time.** The sum F of all losses depends on all codes at once. Let c be a draw of all of them; the cost
of code i is

.. math:: C_i(z_i) = F(c_1, …, z_i, …, c_{2B}) - \sum_{a \ne i} L_a(c),

all that z_i has a part in: as an anchor, as a partner, as a negative. Given the others this is a cost like any other,
one number per row. The other codes are independent of z_i, so the gradient of :math:`E[C_i]` for the scores of row i is
that of E[F]: every estimator for bits can be used, and stays unbiased if it was. The mean of C_i is that of L_i.

**Single changes.** A flipped bit moves each distance by 1, up where the two codes agreed in it and down where they did
not. So a term that depends on one distance takes one of two values, and the sum of such terms, for every bit, is a
matrix product with the codes as ±1. The whole table, 2B · n costs, takes a few products of the size of the distances
themselves, and nothing is encoded again.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Literal, final

import torch
from torch import Tensor
from torch.nn.functional import softplus

from argrad.costs import SharedCost, all_costs
from argrad.latents import Latent, Variables
from argrad.latents.base import can_read_values

__all__ = ["InBatchCost", "LogisticCost", "LossName", "Pairs", "TripletCost", "logistic_loss", "triplet_loss"]

LossName = Literal["triplet", "logistic"]
LEAST_SCALE = 0.5
"""In bits; below, one bit would count more than e⁴-fold, and float32 would lose digits when it is flipped."""


@final
class Pairs:
    """Who belongs to whom in a batch: rows i and i + B are a pair, rows of different groups are negatives.

    Args:
        groups: whole numbers ``[2B]``, the same for both rows of a pair.

    >>> Pairs(torch.tensor([3, 5, 3, 5])).partner
    tensor([2, 3, 0, 1])
    """

    def __init__(self, groups: Tensor) -> None:
        if groups.dim() != 1 or len(groups) < 2 or len(groups) % 2:
            raise ValueError(f"pairs need the groups of an even number of rows, [2B], got shape {tuple(groups.shape)}")
        self.rows = torch.arange(len(groups), device=groups.device)
        self.partner = self.rows.roll(len(groups) // 2)
        """``[2B]``: the row of each row's partner."""
        self.is_partner = self.rows == self.partner.unsqueeze(1)
        """``[2B, 2B]``: whether the column is the row's partner."""
        self.negative = groups != groups.unsqueeze(1)
        """``[2B, 2B]``: whether the column is a negative of the row."""
        if groups.is_cpu and can_read_values(groups) and bool((self.negative & self.is_partner).any()):
            raise ValueError("both rows of a pair, i and i + B, must be of the same group")
        self.share = self.negative / self.negative.sum(1, keepdim=True).clamp_min(1)
        """``[2B, 2B]``: each negative's weight in the mean of its row; a row without negatives has none."""

    def to_partner(self, away: Tensor) -> Tensor:
        """Of distances ``[*extra, 2B, 2B]`` those to the partner, ``[*extra, 2B]``."""
        return away[..., self.rows, self.partner]


def triplet_loss(away: Tensor, pairs: Pairs, margin: float) -> Tensor:
    """The mean over negatives j of max(0, margin + d_ap − d_aj), for distances ``[*extra, 2B, 2B]``."""
    behind = margin + pairs.to_partner(away).unsqueeze(-1) - away
    return (pairs.share * behind.relu()).sum(-1)


def logistic_loss(away: Tensor, pairs: Pairs, scale: float) -> Tensor:
    """−log of the partner's share in softmax(−d / s) over partner and negatives, for distances ``[*extra, 2B, 2B]``."""
    candidates = (-away / scale).masked_fill(~(pairs.negative | pairs.is_partner), -torch.inf)
    return candidates.logsumexp(-1) + pairs.to_partner(away) / scale


class InBatchCost(SharedCost):
    """What each code of a batch costs, given a draw of the others; see the module.

    Args:
        codes: a draw of all codes, zeros and ones ``[2B, n]``; no gradient flows into it.
        pairs: who belongs to whom.
    """

    def __init__(self, codes: Tensor, pairs: Pairs) -> None:
        if codes.dim() != 2 or codes.shape[0] != len(pairs.rows):
            raise ValueError(f"{len(pairs.rows)} rows in pairs need codes of as many rows, got {tuple(codes.shape)}")
        codes = codes.detach()
        self.pairs = pairs
        self.signs = 2 * codes - 1
        self.ones = codes.sum(-1)
        self.drawn = self.distances(codes)

    @abstractmethod
    def as_anchor(self, away: Tensor) -> Tensor:
        """The loss of each row as an anchor, from its distances to the draw: ``[*extra, 2B, 2B]`` to ``[*extra, 2B]``.

        The column of the row itself has no part in it.
        """

    @abstractmethod
    def as_anchor_flipped(self, away: Tensor, signs: Tensor) -> Tensor:
        """The same with each bit flipped, ``[2B, n]``; ``signs`` are the rows' own bits as ±1."""

    @abstractmethod
    def as_candidate(self, away: Tensor) -> Tensor:
        """What the loss of each anchor (last dimension) gains with the row in place of its drawn code.

        Entry (i, a) may depend on the distance (i, a) only.
        """

    @final
    def distances(self, z: Tensor) -> Tensor:
        """Hamming distances of z ``[*extra, 2B, n]`` to the draw, ``[*extra, 2B, 2B]``, linear in z."""
        return self.ones - z @ self.signs.T

    @final
    def __call__(self, z: Tensor, *, event_dims: int | None = None) -> Tensor:
        """The cost of each row of z, ``[*extra, 2B]``; z may be relaxed."""
        if z.shape[-2:] != self.signs.shape:
            raise ValueError(f"the draw has codes {tuple(self.signs.shape)}, but z has shape {tuple(z.shape)}")
        away = self.distances(z)
        return self.as_anchor(away) + self.as_candidate(away).sum(-1)

    @final
    def table(self, latent: Latent) -> Tensor:
        """By evaluation."""
        return self.all(latent)

    @final
    @torch.no_grad()
    def single_changes(self, latent: Variables, z: Tensor, value: Tensor | None = None) -> Tensor:
        """Every flip of every code, in closed form."""
        unchanged = self(z) if value is None else value.detach()
        away, signs = self.distances(z), 2 * z - 1
        farther, nearer = self.as_candidate(away + 1), self.as_candidate(away - 1)
        as_candidate = (farther + nearer).sum(-1, keepdim=True) + signs * ((farther - nearer) @ self.signs)
        flipped = self.as_anchor_flipped(away, signs) + 0.5 * as_candidate
        return latent.tabulate_changes(z, unchanged, flipped.movedim(-1, 0))

    @final
    def all(self, latent: Latent) -> Tensor:
        """By evaluation."""
        return all_costs(lambda z: self(z), latent)


@final
class TripletCost(InBatchCost):
    """The margin loss: a negative should be at least ``margin`` bits farther away than the partner.

    Args:
        codes: a draw of all codes, zeros and ones ``[2B, n]``.
        pairs: who belongs to whom.
        margin: in bits.

    >>> codes = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    >>> TripletCost(codes, Pairs(torch.tensor([0, 1, 0, 1])), margin=2.0)(codes)
    tensor([0.5000, 1.0000, 0.5000, 2.0000])
    """

    def __init__(self, codes: Tensor, pairs: Pairs, margin: float) -> None:
        if not 0 < margin < math.inf:
            raise ValueError(f"margin must be a positive number of bits, got {margin}")
        super().__init__(codes, pairs)
        self.margin = margin
        self.near = pairs.to_partner(self.drawn)
        self.losses = triplet_loss(self.drawn, pairs, margin)

    def as_anchor(self, away: Tensor) -> Tensor:
        """The mean over negatives."""
        return triplet_loss(away, self.pairs, self.margin)

    def as_anchor_flipped(self, away: Tensor, signs: Tensor) -> Tensor:
        r"""A flip moves d_ip − d_ij by t = s_i (s_p − s_j), which is −2, 0 or 2.

        The quadratic through the three values of the hinge is exact at all three, and
        :math:`t^2 = 2 - 2 s_p s_j`, so that the sums over j are matrix products.
        """
        behind = self.margin + self.pairs.to_partner(away).unsqueeze(-1) - away
        down, same, up = ((behind + move).relu() * self.pairs.share for move in (-2, 0, 2))
        slope, bend = (up - down) / 4, (up + down - 2 * same) / 4
        partner = self.signs[self.pairs.partner]
        moved = signs * (partner * slope.sum(-1, keepdim=True) - slope @ self.signs)
        return (same + bend).sum(-1, keepdim=True) + moved - partner * (bend @ self.signs)

    def as_candidate(self, away: Tensor) -> Tensor:
        """As a negative of most anchors, and as the partner of one."""
        limit = self.margin + self.near  # nearer than this, a negative costs something
        farther = self.pairs.share.T * ((limit - away).relu() - (limit - self.drawn.T).relu())
        near, partner = self.pairs.to_partner(away).unsqueeze(-1), self.pairs.partner
        behind = (self.margin + near - self.drawn[partner]).relu()
        closer = (self.pairs.share[partner] * behind).sum(-1) - self.losses[partner]
        return torch.where(self.pairs.is_partner, closer.unsqueeze(-1), farther)


@final
class LogisticCost(InBatchCost):
    """The logistic loss: −log of the partner's share among partner and negatives, by softmax(−d / s).

    Args:
        codes: a draw of all codes, zeros and ones ``[2B, n]``.
        pairs: who belongs to whom.
        scale: s, in bits.

    >>> codes = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    >>> LogisticCost(codes, Pairs(torch.tensor([0, 1, 0, 1])), scale=1.0)(codes)
    tensor([0.4076, 0.5514, 0.4076, 1.0986])
    """

    def __init__(self, codes: Tensor, pairs: Pairs, scale: float) -> None:
        if not LEAST_SCALE <= scale < math.inf:
            raise ValueError(f"scale must be a number of bits, at least {LEAST_SCALE}, got {scale}")
        super().__init__(codes, pairs)
        self.scale = scale
        self.near = pairs.to_partner(self.drawn)
        self.losses = logistic_loss(self.drawn, pairs, scale)
        self.competes = pairs.negative | pairs.is_partner
        self.others = sums_without_one((-self.drawn / scale).masked_fill(~self.competes, -torch.inf)).T

    def as_anchor(self, away: Tensor) -> Tensor:
        """The softmax over partner and negatives."""
        return logistic_loss(away, self.pairs, self.scale)

    def as_anchor_flipped(self, away: Tensor, signs: Tensor) -> Tensor:
        """A candidate's weight grows by e^(1/s) if it becomes nearer, and shrinks as much if it does not."""
        candidates = (-away / self.scale).masked_fill(~self.competes, -torch.inf)
        grow = math.exp(1 / self.scale)
        agreeing = (0.5 + 0.5 * signs * (candidates.softmax(-1) @ self.signs)).clamp(0, 1)
        total = candidates.logsumexp(-1, keepdim=True) + (agreeing / grow + (1 - agreeing) * grow).log()
        near = self.pairs.to_partner(away).unsqueeze(-1) + signs * self.signs[self.pairs.partner]
        return total + near / self.scale

    def as_candidate(self, away: Tensor) -> Tensor:
        """One candidate of each anchor's softmax is replaced."""
        own = -away / self.scale
        total = own + softplus(self.others - own, threshold=40)  # logaddexp, which is not vectorised on a CPU
        near = torch.where(self.pairs.is_partner, away, self.near)
        return torch.where(self.competes.T, total + near / self.scale - self.losses, 0.0)


def sums_without_one(logs: Tensor) -> Tensor:
    """log Σ_{k ≠ j} exp(logs[i, k]) for every i and j.

    What is left after subtracting a term holds the largest one, so nothing cancels, except where it is the largest
    itself: that column is summed anew.
    """
    top, where = logs.max(1, keepdim=True)
    terms = (logs - top).exp()
    left = top + (terms.sum(1, keepdim=True) - terms).clamp_min(0).log()
    without_top = logs.scatter(1, where, -torch.inf).logsumexp(1, keepdim=True)
    return left.scatter(1, where, without_top)
