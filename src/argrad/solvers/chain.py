r"""Chains: the best sequence of n values out of k, and exact inference over all of them.

**Structures**: one-hot z, ``[*batch, n, k]``, one value for each position; there are k^n.
**Score**: :math:`\sum_t u_t(x_t) + \sum_t a_t(x_t, x_{t+1})`, a unary score for each value and a transition score for
each two neighbours.
**Law**: :math:`p(x) = e^{\text{score}(x)} / Z`, a linear-chain conditional random field. Every function rests on the
messages from the end,

.. math:: \beta_t(i) = \log\sum_j e^{a_t(i, j) + u_{t+1}(j) + \beta_{t+1}(j)}, \qquad \beta_{n-1} = 0,
          \qquad \log Z = \log\sum_i e^{u_0(i) + \beta_0(i)}.

The chain read from the front is a Markov chain whose start and steps are softmaxes,
:math:`p(x_{t+1} = j \mid x_t = i) \propto e^{a_t(i, j) + u_{t+1}(j) + \beta_{t+1}(j)}`; sampling, marginals and entropy
follow from these. With the maximum in place of the sum it is the Viterbi algorithm.

**Cost**: O(n k²), as n steps vectorised over the batch. All of it is plain torch: it runs on any device, under vmap,
and with ``validate=False`` waits for nothing.

References: L. R. Rabiner (1989), "A tutorial on hidden Markov models", Proceedings of the IEEE 77(2); J. Lafferty, A.
McCallum & F. Pereira (2001), "Conditional random fields", ICML.
"""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from argrad.solvers.checks import check_possible, check_scores
from argrad.solvers.log_space import finite, is_possible, log_softmax, log_sum, softmax

__all__ = [
    "chain_entropy",
    "chain_log_partition",
    "chain_marginals",
    "chain_pair_marginals",
    "chain_score",
    "enumerate_chains",
    "sample_chain",
    "viterbi",
]

MAX_CHAINS = 2**20
"""Most sequences that :func:`enumerate_chains` lists."""


def viterbi(unary: Tensor, transition: Tensor, *, validate: bool = True) -> Tensor:
    """The sequence of values with the largest score; never differentiable.

    Args:
        unary: ``[*batch, n, k]``; ``-inf`` is a value that may not be taken there.
        transition: ``[..., i, j]`` is the score of value i followed by value j: ``[k, k]`` for all steps alike, or
            ``[*batch, n − 1, k, k]``, broadcast; ``-inf`` is a step that may not be made.
        validate: False leaves out the checks that read the numbers.

    Returns:
        One-hot z ``[*batch, n, k]``.

    >>> follow_up = torch.tensor([[0.0, 2.0], [0.0, 0.0]])
    >>> viterbi(torch.tensor([[0.0, 1.0], [0.5, 0.0]]), follow_up).argmax(-1)  # 0 then 1 scores 2, 1 then 0 scores 1.5
    tensor([0, 1])
    """
    value_scores, step_scores = prepare("viterbi", unary.detach(), transition.detach(), validate=validate)
    best = value_scores[..., 0, :]
    came_from = []
    for t in range(unary.shape[-2] - 1):
        best, before = (best.unsqueeze(-1) + step_scores[..., t, :, :]).max(-2)
        best = best + value_scores[..., t + 1, :]
        came_from.append(before)
    value, last = best.max(-1, keepdim=True)
    check_possible("viterbi", is_possible(value.squeeze(-1)), ADVICE, validate=validate)
    path = [last]
    for before in reversed(came_from):
        path.append(before.gather(-1, path[-1]))
    return one_hot_of(torch.cat(path[::-1], -1), unary)


def chain_score(unary: Tensor, transition: Tensor, z: Tensor) -> Tensor:
    """The score of one-hot sequences z ``[*extra, *batch, n, k]``, ``[*extra, *batch]``; differentiable."""
    pairs = z[..., :-1, :, None] * z[..., 1:, None, :]
    # where, not a product: 0 times -inf is NaN.
    total = torch.where(z > 0, unary, 0.0).sum((-1, -2))
    return total + torch.where(pairs > 0, transition, 0.0).sum((-1, -2, -3))


def chain_log_partition(unary: Tensor, transition: Tensor, *, validate: bool = True) -> Tensor:
    """log Z, the logarithm of the sum of exp(score) over all sequences; differentiable.

    Its gradient with respect to the scores is the marginals.

    Args:
        unary: ``[*batch, n, k]``.
        transition: ``[k, k]`` or ``[*batch, n − 1, k, k]``, as for :func:`viterbi`.
        validate: False leaves out the checks that read the numbers; an empty support is then −inf.

    Returns:
        ``[*batch]``.

    >>> chain_log_partition(torch.zeros(3, 2), torch.zeros(2, 2)).exp()
    tensor(8.0000)
    """
    first, _ = markov_chain("chain_log_partition", unary, transition, validate=validate)
    total = log_sum(first)
    return total.masked_fill(~is_possible(total), -torch.inf).to(unary.dtype)


def chain_marginals(unary: Tensor, transition: Tensor, *, validate: bool = True) -> Tensor:
    """The probability of each value at each position, ``[*batch, n, k]``; differentiable.

    >>> chain_marginals(torch.zeros(2, 2), torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]))
    tensor([[0.3333, 0.6667],
            [0.6667, 0.3333]])
    """
    first, steps = markov_chain("chain_marginals", unary, transition, validate=validate)
    marginals = [softmax(first)]
    for step in steps:
        marginals.append((marginals[-1].unsqueeze(-1) * softmax(step)).sum(-2))
    return torch.stack(marginals, -2).to(unary.dtype)


def chain_pair_marginals(unary: Tensor, transition: Tensor, *, validate: bool = True) -> Tensor:
    """The probability of each two values at neighbouring positions, ``[*batch, n − 1, k, k]``; differentiable."""
    first, steps = markov_chain("chain_pair_marginals", unary, transition, validate=validate)
    here = softmax(first)
    pairs = []
    for step in steps:
        pairs.append(here.unsqueeze(-1) * softmax(step))
        here = pairs[-1].sum(-2)
    if not pairs:
        return first.new_zeros((*first.shape[:-1], 0, first.shape[-1], first.shape[-1])).to(unary.dtype)
    return torch.stack(pairs, -3).to(unary.dtype)


def chain_entropy(unary: Tensor, transition: Tensor, *, validate: bool = True) -> Tensor:
    """Entropy in nats, ``[*batch]``; differentiable.

    By the chain rule it is the expected sum of the entropies of the start and of the steps, all of them ≥ 0.

    >>> chain_entropy(torch.zeros(3, 2), torch.zeros(2, 2)).exp()
    tensor(8.0000)
    """
    first, steps = markov_chain("chain_entropy", unary, transition, validate=validate)
    here = softmax(first)
    entropy = softmax_entropy(first)
    for step in steps:
        entropy = entropy + (here * softmax_entropy(step)).sum(-1)
        here = (here.unsqueeze(-1) * softmax(step)).sum(-2)
    return entropy.to(unary.dtype)


def sample_chain(unary: Tensor, transition: Tensor, noise: Tensor, *, validate: bool = True) -> Tensor:
    """Draw sequences exactly; never differentiable.

    Messages are filtered from the end to the front and values drawn from the front to the end, each by Gumbel-max
    given the one before: the mirror image of forward filtering, backward sampling.

    Args:
        unary: ``[*batch, n, k]``.
        transition: ``[k, k]`` or ``[*batch, n − 1, k, k]``, as for :func:`viterbi`.
        noise: standard Gumbel noise ``[*extra, *batch, n, k]``.
        validate: False leaves out the checks that read the numbers.

    Returns:
        One-hot z ``[*extra, *batch, n, k]``.

    >>> stay = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]])
    >>> sample_chain(torch.zeros(3, 2), stay, torch.tensor([[0.0, 1.0], [5.0, 0.0], [5.0, 0.0]])).argmax(-1)
    tensor([1, 1, 1])
    """
    with torch.no_grad():
        first, steps = markov_chain("sample_chain", unary, transition, validate=validate)
        k = first.shape[-1]
        lead = torch.broadcast_shapes(noise.shape[:-2], first.shape[:-1])
        noise = noise.expand(*lead, *noise.shape[-2:])
        path = [(first + noise[..., 0, :]).argmax(-1, keepdim=True)]
        for t, step in enumerate(steps):
            row = path[-1].unsqueeze(-1).expand(*lead, 1, k)
            given = step.expand(*lead, k, k).gather(-2, row).squeeze(-2)
            path.append((given + noise[..., t + 1, :]).argmax(-1, keepdim=True))
        return one_hot_of(torch.cat(path, -1), unary)


def enumerate_chains(
    n: int, k: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Tensor:
    """Every sequence, one-hot, ``[k^n, n, k]``, the last position changing fastest.

    >>> enumerate_chains(2, 2).argmax(-1).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    if n < 1 or k < 1:
        raise ValueError(f"enumerate_chains needs at least one position and one value, got n={n}, k={k}")
    if k**n > MAX_CHAINS:
        raise ValueError(f"there are {k}^{n} sequences, more than the {MAX_CHAINS:,} that are listed")
    values = torch.cartesian_prod(*[torch.arange(k, device=device)] * n).reshape(-1, n)
    return one_hot(values, k).to(torch.get_default_dtype() if dtype is None else dtype)


# ---------------------------------------------------------------------------------------------------- the recursion

ADVICE = "leave at least one sequence of possible values joined by possible steps"


def prepare(name: str, unary: Tensor, transition: Tensor, *, validate: bool) -> tuple[Tensor, Tensor]:
    """Finite unary ``[*batch, n, k]`` and transition ``[*batch, n − 1, k, k]`` scores, checked."""
    check_scores(name, unary, "n, k", validate=validate)
    n, k = unary.shape[-2:]
    wanted = f"[{k}, {k}] or [*batch, {n - 1}, {k}, {k}]"
    if not isinstance(transition, Tensor) or not transition.is_floating_point():
        raise ValueError(f"{name} needs a floating-point tensor of transition scores {wanted}")
    event = transition.shape[-3:]
    if event[-2:] != (k, k) or (transition.dim() > 2 and event[0] not in (1, n - 1)):
        raise ValueError(
            f"{name} got unary scores of shape {tuple(unary.shape)}, with which transition scores must be {wanted}, "
            f"not {tuple(transition.shape)}"
        )
    if transition.numel() > 0:
        check_scores(name, transition, "k, k", validate=validate)
    batch = torch.broadcast_shapes(unary.shape[:-2], transition.shape[:-3])
    dtype = torch.promote_types(unary.dtype, transition.dtype)
    unary, transition = finite(unary.to(dtype)), finite(transition.to(dtype))
    return unary.expand(*batch, n, k), transition.expand(*batch, n - 1, k, k)


def markov_chain(name: str, unary: Tensor, transition: Tensor, *, validate: bool) -> tuple[Tensor, list[Tensor]]:
    """The law as a Markov chain: unnormalised log-probabilities of the start and of each step.

    Returns:
        ``[*batch, k]`` for the first value, and for each of the n − 1 steps ``[*batch, k, k]``, row i given value i.
    """
    unary, transition = prepare(name, unary, transition, validate=validate)
    steps = []
    ahead = unary[..., -1, :]
    for t in reversed(range(unary.shape[-2] - 1)):
        step = transition[..., t, :, :] + ahead.unsqueeze(-2)
        steps.append(step)
        ahead = unary[..., t, :] + log_sum(step)
    check_possible(name, is_possible(ahead.detach().amax(-1)), ADVICE, validate=validate)
    return ahead, steps[::-1]


def softmax_entropy(scores: Tensor) -> Tensor:
    """The entropy of softmax(scores) over the last dimension, for finite scores."""
    log_p = log_softmax(scores)
    return -(log_p.exp() * log_p).sum(-1)


def one_hot_of(index: Tensor, like: Tensor) -> Tensor:
    """One-hot ``[*index, k]`` in the dtype of scores ``[..., k]``; scatter, unlike one_hot, never reads the numbers."""
    zeros = torch.zeros((*index.shape, like.shape[-1]), dtype=like.dtype, device=like.device)
    return zeros.scatter(-1, index.unsqueeze(-1), 1.0)
