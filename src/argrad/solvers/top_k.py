r"""Subsets of a given size: the best m of n items, and exact inference over all of them.

**Structures**: z in {0, 1}^n with m ones, ``[*batch, n]``; there are C(n, m).
**Score**: the sum of the chosen items' scores, :math:`\langle h, z\rangle`.
**Law**: :math:`p(z) = e^{\langle h, z\rangle} / Z` with :math:`Z = e_m(e^{h_1}, \dots, e^{h_n})`, the elementary
symmetric polynomial of degree m. Every function here rests on the polynomials of the items from i on,

.. math:: E_i[r] = E_{i+1}[r] + e^{h_i} E_{i+1}[r - 1], \qquad E_n = (1, 0, \dots, 0), \qquad Z = E_0[m],

kept as logarithms: item i is left out, or taken with r − 1 left to take. Going through the items in order with r still
to take, item i is taken with probability :math:`p_i[r] = e^{h_i} E_{i+1}[r-1] / E_i[r]`; sampling, marginals and
entropy follow from these conditionals, and nowhere are nearly equal numbers subtracted.

**Cost**: a partial sort for the arg max, O(n m) for the rest, as n steps vectorised over the batch and over r. All of
it is plain torch: it runs on any device, under vmap, and with ``validate=False`` waits for nothing.

Reference: S. X. Chen, A. P. Dempster & J. S. Liu (1994), "Weighted finite population sampling to maximize entropy",
Biometrika 81(3), which calls the law conditional Bernoulli.
"""

import functools
import itertools
import math

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from argrad.solvers.checks import check_possible, check_scores, worth_keeping
from argrad.solvers.log_space import finite, impossible, is_possible, log_add

__all__ = [
    "enumerate_subsets",
    "sample_subset",
    "subset_entropy",
    "subset_log_partition",
    "subset_marginals",
    "top_k",
]

MAX_SUBSETS = 2**20
"""Most subsets that :func:`enumerate_subsets` lists."""


def top_k(scores: Tensor, size: int, *, validate: bool = True) -> Tensor:
    """The subset of the given size with the largest sum of scores; never differentiable.

    Args:
        scores: ``[*batch, n]``; ``-inf`` is an item that may not be taken.
        size: m, how many items are taken, 0 to n.
        validate: False leaves out the checks that read the numbers.

    Returns:
        z ``[*batch, n]`` with m ones in each row. Among equal scores any may win.

    >>> top_k(torch.tensor([0.3, 2.0, -1.0, 0.7]), 2)
    tensor([0., 1., 0., 1.])
    """
    check("top_k", scores, size, validate=validate)
    scores = scores.detach()
    check_possible("top_k", enough(scores, size), ADVICE, validate=validate)
    chosen = scores.topk(size, -1, sorted=False).indices
    return torch.zeros_like(scores).scatter(-1, chosen, 1.0)


def subset_log_partition(scores: Tensor, size: int, *, validate: bool = True) -> Tensor:
    r"""log Z, the logarithm of :math:`\sum_z e^{\langle h, z\rangle}`; differentiable, its gradient is the marginals.

    Args:
        scores: ``[*batch, n]``.
        size: m.
        validate: False leaves out the checks that read the numbers; an empty support is then −inf.

    Returns:
        ``[*batch]``.

    >>> subset_log_partition(torch.zeros(5), 2).exp()
    tensor(10.0000)
    """
    polynomials = suffix_polynomials("subset_log_partition", scores, size, validate=validate)
    total = polynomials[0][..., size]
    return total.masked_fill(~is_possible(total), -torch.inf).to(scores.dtype)


def subset_marginals(scores: Tensor, size: int, *, validate: bool = True) -> Tensor:
    """The probability of each item to be in the subset, ``[*batch, n]``; differentiable. Each row sums to m.

    >>> subset_marginals(torch.tensor([0.0, 0.0, -torch.inf]), 1)
    tensor([0.5000, 0.5000, 0.0000])
    """
    conditionals = conditional_log_odds("subset_marginals", scores, size, validate=validate)
    marginals = []
    state = start(scores, size)
    for log_odds in conditionals:
        marginals.append((state * log_odds.sigmoid()).sum(-1))
        state = advance(state, log_odds)
    return torch.stack(marginals, -1).to(scores.dtype)


def subset_entropy(scores: Tensor, size: int, *, validate: bool = True) -> Tensor:
    """Entropy in nats, ``[*batch]``; differentiable.

    By the chain rule it is the expected sum of the entropies of the n decisions to take an item or to leave it, all of
    them ≥ 0, so that no digits are lost where scores are large.

    >>> subset_entropy(torch.zeros(5), 2).exp()
    tensor(10.0000)
    """
    conditionals = conditional_log_odds("subset_entropy", scores, size, validate=validate)
    state = start(scores, size)
    entropy = state.new_zeros(scores.shape[:-1])
    for log_odds in conditionals:
        entropy = entropy + (state * decision_entropy(log_odds)).sum(-1)
        state = advance(state, log_odds)
    return entropy.to(scores.dtype)


def sample_subset(scores: Tensor, size: int, uniform: Tensor, *, validate: bool = True) -> Tensor:
    """Draw subsets exactly, item by item; never differentiable.

    Args:
        scores: ``[*batch, n]``.
        size: m.
        uniform: noise in [0, 1), ``[*extra, *batch, n]``: item i is taken where its number is below the conditional
            probability.
        validate: False leaves out the checks that read the numbers.

    Returns:
        z ``[*extra, *batch, n]`` with m ones in each row.

    >>> sample_subset(torch.zeros(4), 3, torch.tensor([0.9, 0.5, 0.5, 0.5]))
    tensor([0., 1., 1., 1.])
    """
    with torch.no_grad():
        conditionals = conditional_log_odds("sample_subset", scores, size, validate=validate)
        shape = torch.broadcast_shapes(uniform.shape, scores.shape)
        uniform = uniform.expand(shape)
        to_take = torch.full((*shape[:-1], 1), size, device=scores.device)
        z = []
        for i, log_odds in enumerate(conditionals):
            p = log_odds.expand(*shape[:-1], size + 1).gather(-1, to_take).sigmoid()
            taken = (uniform[..., i : i + 1] < p) | (p == 1)  # whatever the noise, what must be taken is taken
            to_take = (to_take - taken.long()).clamp_min(0)
            z.append(taken)
        return torch.cat(z, -1).to(scores.dtype)


def enumerate_subsets(
    n: int, size: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Tensor:
    """Every subset of the given size, ``[C(n, m), n]``, the first items first.

    >>> enumerate_subsets(3, 2).tolist()
    [[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]
    """
    if not 0 <= size <= n:
        raise ValueError(f"enumerate_subsets needs a size between 0 and n={n}, got {size}")
    count = math.comb(n, size)
    if count > MAX_SUBSETS:
        raise ValueError(f"there are {count:,} subsets of {size} of {n} items, more than the {MAX_SUBSETS:,} listed")
    zeros = torch.zeros(count, n, dtype=dtype, device=device)
    return zeros.scatter(-1, combinations(n, size, zeros), 1.0)


def combinations(n: int, size: int, like: Tensor) -> Tensor:
    """The items of every subset, ``[C(n, m), m]``, on the device of another tensor."""
    make = kept_combinations if worth_keeping(like) else new_combinations
    return make(n, size, like.device)


def new_combinations(n: int, size: int, device: torch.device) -> Tensor:
    """List them."""
    with torch.inference_mode(False):  # else a first call in inference mode would spoil them for autograd
        listed = list(itertools.combinations(range(n), size))
        return torch.tensor(listed, dtype=torch.long, device=device).reshape(math.comb(n, size), size)


kept_combinations = functools.lru_cache(maxsize=4)(new_combinations)


# ---------------------------------------------------------------------------------------------------- the recursion

ADVICE = "leave at least as many items possible as are to be taken"


def check(name: str, scores: Tensor, size: int, *, validate: bool) -> None:
    """Raise a ValueError for scores or a size that no function here takes."""
    check_scores(name, scores, "n", validate=validate)
    if not 0 <= size <= scores.shape[-1]:
        raise ValueError(f"{name} needs a size between 0 and n={scores.shape[-1]}, got {size}")


def enough(scores: Tensor, size: int) -> Tensor:
    """Whether enough items are possible, ``[*batch]``."""
    return (scores > -torch.inf).sum(-1) >= size


def suffix_polynomials(name: str, scores: Tensor, size: int, *, validate: bool) -> list[Tensor]:
    """The logarithms of E_0 to E_n, each ``[*batch, m + 1]``."""
    check(name, scores, size, validate=validate)
    check_possible(name, enough(scores.detach(), size), ADVICE, validate=validate)
    scores = finite(scores)
    nothing = scores.new_full((*scores.shape[:-1], size + 1), impossible(scores.dtype))
    nothing[..., 0] = 0.0
    result = [nothing]
    for i in reversed(range(scores.shape[-1])):
        following = result[-1]
        taken = scores[..., i, None] + following[..., :-1]
        result.append(torch.cat([following[..., :1], log_add(following[..., 1:], taken)], -1))
    return result[::-1]


def conditional_log_odds(name: str, scores: Tensor, size: int, *, validate: bool) -> list[Tensor]:
    """For each item the log-odds of taking it with r still to take, ``[*batch, m + 1]``."""
    polynomials = suffix_polynomials(name, scores, size, validate=validate)
    scores = finite(scores)
    never = scores.new_full((*scores.shape[:-1], 1), impossible(scores.dtype))
    return [
        torch.cat([never, scores[..., i, None] + following[..., :-1] - following[..., 1:]], -1)
        for i, following in enumerate(polynomials[1:])
    ]


def start(scores: Tensor, size: int) -> Tensor:
    """The probability of each r before the first item: all of it at r = m."""
    state = scores.new_zeros((*scores.shape[:-1], size + 1), dtype=torch.promote_types(scores.dtype, torch.float32))
    state[..., size] = 1.0
    return state


def advance(state: Tensor, log_odds: Tensor) -> Tensor:
    """The probability of each r after an item, from that before: stay at r, or come down from r + 1."""
    taken = state * log_odds.sigmoid()
    return state * (-log_odds).sigmoid() + pad(taken[..., 1:], (0, 1))


def decision_entropy(log_odds: Tensor) -> Tensor:
    """The entropy of one bit with log-odds a: softplus(a) − a σ(a)."""
    return softplus(log_odds, threshold=40.0) - log_odds * log_odds.sigmoid()
