r"""How well similar examples are found: recall@k and mean average precision, fair to ties.

Recall@k is the share of queries with at least one example of their own class among the k nearest; average precision is
the mean, over the examples of the query's class, of the precision of the list that ends with each of them. Codes of few
bits put many examples at one distance, so the order among them is chance. For codes both measures are therefore given
as *expectations over the order of ties*, in closed form. In a group of c examples of which r are right, after t others
of which R are right, and with H the harmonic numbers,

.. math:: \sum_{i=1}^{c} \frac rc \cdot \frac{R + 1 + (i - 1)\frac{r - 1}{c - 1}}{t + i}
    = \frac rc\Big[(R + 1)\,\eta + \frac{r - 1}{c - 1}\,(c - (t + 1)\,\eta)\Big], \qquad \eta = H_{t + c} - H_t,

is what it adds to the sum of precisions, and the chance that m draws from it miss all r is C(c − r, m) / C(c, m).

Reference: McSherry & Najork, 2008, "Computing information retrieval performance measures efficiently in the presence of
tied scores".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

__all__ = ["from_groups", "retrieval_by_bits", "retrieval_by_cosine"]

NUMBERS_AT_ONCE = {"cpu": 2**20, "cuda": 2**24}
"""How many distances are held at a time: on a CPU what its cache holds, on a GPU what keeps it busy."""


def from_groups(right: Tensor, total: Tensor, recall_at: Sequence[int] = (1, 10)) -> dict[str, float]:
    """Mean measures over queries, from counts by distance.

    Args:
        right: how many examples of the query's class are in each group of ties, nearest first, ``[Q, groups]``.
        total: how many examples are in it, ``[Q, groups]``.
        recall_at: which k.

    Returns:
        ``"recall@k"`` for each k, and ``"map"``, over the queries that have something to find.

    >>> from_groups(torch.tensor([[0, 1]]), torch.tensor([[1, 2]]), recall_at=(1, 2))
    {'recall@1': 0.0, 'recall@2': 0.5, 'map': 0.4166}
    """
    some = right.sum(1) > 0
    right, total = right[some].double(), total[some].double()
    if not len(right):
        raise ValueError("no query has an example of its own class to find")
    before, right_before = total.cumsum(1) - total, right.cumsum(1) - right
    recall = {f"recall@{k}": float(found_within(right, total, before, right_before, k).mean()) for k in recall_at}
    largest = int(total.sum(1).max())
    harmonic = torch.cat([right.new_zeros(1), (1 / torch.arange(1, largest + 1).to(right)).cumsum(0)])
    eta = harmonic[(before + total).long()] - harmonic[before.long()]
    others = (right - 1) / (total - 1).clamp_min(1)
    gained = right / total.clamp_min(1) * ((right_before + 1) * eta + others * (total - (before + 1) * eta))
    return {**recall, "map": float((gained.sum(1) / right.sum(1)).mean())}


def found_within(right: Tensor, total: Tensor, before: Tensor, right_before: Tensor, k: int) -> Tensor:
    """The probability that one of the first k is right, for each query."""
    drawn = (k - before).clamp(min=0).minimum(total)
    wrong = total - right
    possible = drawn <= wrong  # to draw wrong ones only
    wrong, kept = torch.where(possible, wrong, total), torch.where(possible, drawn, 0.0)
    log_miss = log_choices(wrong, kept) - log_choices(total, kept)
    miss = torch.where(possible, log_miss.exp(), 0.0)
    return 1 - torch.where(right > 0, miss, 1.0).prod(1)


def log_choices(of: Tensor, chosen: Tensor) -> Tensor:
    """The log of how many ways there are to choose some in order."""
    return torch.lgamma(of + 1) - torch.lgamma(of - chosen + 1)


@torch.no_grad()
def retrieval_by_bits(
    queries: Tensor,
    codes: Tensor,
    query_labels: Tensor,
    labels: Tensor,
    *,
    leave_one_out: bool = False,
    recall_at: Sequence[int] = (1, 10),
) -> dict[str, float]:
    """Recall@k and mean average precision of codes ranked by Hamming distance.

    Args:
        queries: zeros and ones ``[Q, n]``.
        codes: zeros and ones to search, ``[N, n]``.
        query_labels: classes ``[Q]``.
        labels: classes ``[N]``.
        leave_one_out: the queries are the codes themselves, and none is to find itself.
        recall_at: which k.
    """
    check(queries, codes, query_labels, labels, leave_one_out)
    bits = codes.shape[1]
    signs = 2 * codes.float() - 1
    counts = []
    for rows in torch.arange(len(queries), device=codes.device).split(rows_at_once(codes)):
        away = ((bits - (2 * queries[rows].float() - 1) @ signs.T) / 2).round().long()
        same = query_labels[rows].unsqueeze(1) == labels
        place = away + (bits + 1) * (same + 2 * torch.arange(len(rows), device=codes.device).unsqueeze(1))
        by_query = torch.bincount(place.flatten(), minlength=2 * (bits + 1) * len(rows)).reshape(-1, 2, bits + 1)
        by_query[:, 1, 0] -= int(leave_one_out)
        counts.append(by_query)
    wrong, right = torch.cat(counts).unbind(1)
    return from_groups(right, right + wrong, recall_at)


@torch.no_grad()
def retrieval_by_cosine(
    queries: Tensor,
    embeddings: Tensor,
    query_labels: Tensor,
    labels: Tensor,
    *,
    leave_one_out: bool = False,
    recall_at: Sequence[int] = (1, 10),
) -> dict[str, float]:
    """The same for embeddings ``[Q, d]`` and ``[N, d]`` ranked by their angle; of equal ones the wrong come first."""
    check(queries, embeddings, query_labels, labels, leave_one_out)
    unit = torch.nn.functional.normalize(embeddings, dim=1)
    found: list[Tensor] = []
    ranks = torch.arange(1, len(embeddings) + 1, device=unit.device, dtype=torch.float64)
    for rows in torch.arange(len(queries), device=unit.device).split(rows_at_once(unit)):
        likeness = torch.nn.functional.normalize(queries[rows], dim=1) @ unit.T
        right = query_labels[rows].unsqueeze(1) == labels
        if leave_one_out:
            likeness[torch.arange(len(rows), device=unit.device), rows] = -torch.inf
            right[torch.arange(len(rows), device=unit.device), rows] = False
        right = in_order(-likeness, right)
        precision = right.cumsum(1) / ranks
        average = (precision * right).sum(1) / right.sum(1)
        found.append(torch.stack([*(right[:, :k].any(1).double() for k in recall_at), average], 1)[right.any(1)])
    each = torch.cat(found)
    if not len(each):
        raise ValueError("no query has an example of its own class to find")
    names = [*(f"recall@{k}" for k in recall_at), "map"]
    return dict(zip(names, each.mean(0).tolist(), strict=True))


def in_order(away: Tensor, right: Tensor) -> Tensor:
    """Which of each row are right, nearest first; among equal ones wrong ones first.

    What is sorted is the distance in float64 with the answer in its last bit: one sort of numbers, for which NumPy is
    an order of magnitude faster on a CPU than a sort that says what went where.

    >>> in_order(torch.tensor([[0.5, 0.1, 0.5]]), torch.tensor([[True, True, False]]))
    tensor([[ True, False,  True]])
    """
    keys = (away.double() + 0.0).view(torch.int64) & ~1  # + 0 makes both zeros one
    keys = torch.where(keys < 0, keys | ~right, keys | right).view(torch.float64)  # below 0, more is nearer
    keys = torch.from_numpy(np.sort(keys.numpy(), 1)) if keys.is_cpu else keys.sort(1).values
    last = keys.view(torch.int64)
    return ((last & 1) == 1) ^ (last < 0)


def rows_at_once(searched: Tensor) -> int:
    """For how many queries distances to everything are held at a time."""
    return max(1, NUMBERS_AT_ONCE["cuda" if searched.is_cuda else "cpu"] // len(searched))


def check(queries: Tensor, others: Tensor, query_labels: Tensor, labels: Tensor, leave_one_out: bool) -> None:
    """One line about shapes that do not fit."""
    if queries.dim() != 2 or others.dim() != 2 or queries.shape[1] != others.shape[1]:
        raise ValueError(
            f"queries and what is searched must be [Q, n] and [N, n] with the same n, got {tuple(queries.shape)} and "
            f"{tuple(others.shape)}"
        )
    if query_labels.shape != queries.shape[:1] or labels.shape != others.shape[:1] or not len(queries):
        raise ValueError(
            f"{len(queries)} queries and {len(others)} examples to search need a label each, and there must be some; "
            f"got labels of shape {tuple(query_labels.shape)} and {tuple(labels.shape)}"
        )
    if leave_one_out and len(queries) != len(others):
        raise ValueError("leave_one_out is for queries that are the searched examples themselves, in the same order")
