r"""How good generated sequences are, and whether they are always the same few.

**Divergence.** The n-grams of a text, with a mark for its start and one for its end, have shares p; those of another
have q. The Jensen-Shannon divergence :math:`\frac12 KL(p \| m) + \frac12 KL(q \| m)`, m the mean of the two, is 0 for
equal shares and log 2 for texts with no n-gram in common. Two samples of one distribution are not at 0, so compare with
what another part of the data scores at the same size.

**Diversity.** The entropy of a generator, estimated by the mean of −log q over its own samples; the share of samples
that are distinct, the share of the commonest; the number of distinct 4-grams over that in as much data.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from argrad.data.text import END
from argrad.models.discrete_vae.task import evaluate_in_batches
from argrad.models.sequence_gan.module import SequenceGenerator, ended_before

__all__ = ["LONGEST", "check_symbols", "divergence", "mean_divergence", "ngrams", "score_sequences"]

LONGEST = 4
"""The longest n-grams that are looked at."""


def check_symbols(symbols: int) -> None:
    """Raise a ValueError where there are too many symbols, the end included, for the scores of what is drawn."""
    if not fit_into_numbers(LONGEST, symbols):
        most = math.floor((2**63) ** (1 / LONGEST)) - 2
        raise ValueError(
            f"{symbols - 1:,} different symbols are too many: {LONGEST}-grams of at most {most:,} fit into whole "
            "numbers of 64 bits; put one symbol in place of all rare ones, or take characters"
        )


def fit_into_numbers(n: int, symbols: int) -> bool:
    """Whether n-grams of so many symbols, and the start, are whole numbers of 64 bits."""
    return bool((symbols + 1) ** n < 2**63)


def ngrams(indices: Tensor, n: int, symbols: int) -> Tensor:
    """The n-grams of sequences of symbol numbers ``[N, length]``, each as one whole number.

    >>> ngrams(torch.tensor([[1, 2, 0, 0]]), 2, symbols=3).tolist()  # start-1, 1-2, 2-end; the start is number 3
    [13, 6, 8]
    """
    if not fit_into_numbers(n, symbols):
        raise ValueError(f"{n}-grams of {symbols} symbols do not fit into whole numbers of 64 bits; take a smaller n")
    marked = torch.nn.functional.pad(indices, (n - 1, 0), value=symbols)
    windows = marked.unfold(1, n, 1)
    place = (symbols + 1) ** torch.arange(n - 1, -1, -1, device=indices.device)
    inside = ~ended_before(indices == END)
    return (windows * place).sum(-1)[inside]


def divergence(first: Tensor, second: Tensor, n: int, symbols: int) -> float:
    """The Jensen-Shannon divergence of the n-grams of two texts, in nats, from 0 to log 2."""
    one, other = ngrams(first, n, symbols), ngrams(second, n, symbols)
    _, which = torch.cat([one, other]).unique(return_inverse=True)
    kinds = int(which.max()) + 1
    p, q = (
        torch.bincount(part, minlength=kinds).double() / len(part) for part in (which[: len(one)], which[len(one) :])
    )
    middle = (p + q) / 2
    return float(sum((share.xlogy(share / middle)).sum() for share in (p, q)) / 2)


def mean_divergence(first: Tensor, second: Tensor, symbols: int) -> float:
    """The mean over n = 1 … 4."""
    return sum(divergence(first, second, n, symbols) for n in range(1, LONGEST + 1)) / LONGEST


@torch.no_grad()
def score_sequences(generator: SequenceGenerator, drawn: Tensor, train: Tensor, held_out: Tensor) -> dict[str, float]:
    """Scores of sequences that a generator drew.

    Args:
        generator: where they come from.
        drawn: symbol numbers ``[M, length]``.
        train: what it was trained on.
        held_out: what it never saw.

    Returns:
        ``nll``: −log q of held-out sequences, nats each; ``divergence_1`` … ``divergence_4`` and their mean
        ``divergence``; ``novel``: the share of draws that are not among the training sequences; ``found``: the share of
        different held-out sequences among the draws; ``distinct``, ``commonest``, ``entropy`` and ``distinct_4_grams``:
        see the module.
    """
    if not len(drawn) or not len(held_out):
        raise ValueError(f"scores need sequences to compare, got {len(drawn)} drawn and {len(held_out)} held out")
    symbols = generator.symbols
    by_n = {f"divergence_{n}": divergence(drawn, held_out, n, symbols) for n in range(1, LONGEST + 1)}
    known, wanted, lines = as_set(train), as_set(held_out), [tuple(row) for row in drawn.tolist()]
    _, counts = drawn.unique(dim=0, return_counts=True)
    size = min(len(drawn), len(held_out))
    kinds = [len(ngrams(part[:size], LONGEST, symbols).unique()) for part in (drawn, held_out)]
    return {
        "nll": mean_nll(generator, held_out),
        **by_n,
        "divergence": sum(by_n.values()) / LONGEST,
        "novel": sum(line not in known for line in lines) / len(lines),
        "found": len(wanted & set(lines)) / len(wanted),
        "distinct": len(counts) / len(drawn),
        "commonest": int(counts.max()) / len(drawn),
        "entropy": mean_nll(generator, drawn),
        "distinct_4_grams": kinds[0] / kinds[1],
    }


def mean_nll(generator: SequenceGenerator, indices: Tensor) -> float:
    """The mean of −log q."""
    return evaluate_in_batches(lambda chunk: -generator.log_prob(chunk), indices)


def as_set(indices: Tensor) -> set[tuple[int, ...]]:
    """Sequences, to look them up."""
    return {tuple(row) for row in indices.tolist()}
