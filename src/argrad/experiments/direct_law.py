r"""The law of the direct gradient of one categorical variable, in closed form: not its mean only, all of it.

An estimate is (z* − z(ε)) / ε with z* = arg max {h + γ} and z(ε) = arg max {h − s + γ}, s = ε c. Number the codes by
rising s. The arg max moves from i to j only if s_i > s_j. Given that h_i + γ_i exceeds h_j + γ_j by δ in
[0, s_i − s_j], every other perturbed score has to stay below a threshold, and with Gumbel noise the integral over the
height of the maximum is elementary. What remains is an integral over t = s_j + δ, of one piece between each two
neighbouring s:

.. math::
    P(z^* = i, z(\varepsilon) = j) = e^{h_i} e^{h_j - s_j} \sum_{m=j}^{i-1} \int_{s_m}^{s_{m+1}}
    \frac{e^t\, dt}{(A_m + b_m e^t)^2}, \qquad A_m = \sum_{l > m} e^{h_l}, \quad b_m = \sum_{l \le m} e^{h_l - s_l},

and each integral is :math:`(e^{s_{m+1}} - e^{s_m}) / ((A_m + b_m e^{s_m})(A_m + b_m e^{s_{m+1}}))`. Nothing moves with
probability :math:`P(i, i) = 1 / \sum_l e^{h_l - h_i + \max(0, s_i - s_l)}`. The margins are softmax(h) and
softmax(h − s), which gives the mean; the joint law gives the covariance.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["direct_moments", "joint_law"]


def joint_law(scores: Tensor, shift: Tensor) -> Tensor:
    """P(arg max {h + γ} = i, arg max {h − s + γ} = j) for independent Gumbel noise γ, the same in both.

    Args:
        scores: h, ``[*batch, k]``, finite.
        shift: s, ``[*batch, k]``, finite.

    Returns:
        ``[*batch, k, k]``, in double precision; i in rows, j in columns.

    >>> law = joint_law(torch.zeros(2), torch.tensor([0.0, 1.0]))
    >>> law.sum(-1)
    tensor([0.5000, 0.5000], dtype=torch.float64)
    >>> law[0, 1]  # from the cheaper to the dearer: never
    tensor(0., dtype=torch.float64)
    """
    s, order = shift.double().sort(-1)
    h = scores.double().gather(-1, order)
    after = h.flip(-1).logcumsumexp(-1).flip(-1)[..., 1:]  # log A_m
    before = (h - s).logcumsumexp(-1)[..., :-1]  # log b_m
    low, high = s[..., :-1], s[..., 1:]
    pieces = high + (-torch.expm1(low - high)).log()
    pieces = pieces - torch.logaddexp(after, before + low) - torch.logaddexp(after, before + high)
    k = h.shape[-1]
    place = torch.arange(k, device=h.device)
    between = (place[None, :, None] <= place[:-1]) & (place[:-1] < place[:, None, None])  # [i, j, m]: j <= m < i
    crossing = pieces[..., None, None, :].masked_fill(~between, -torch.inf).logsumexp(-1)
    law = (h.unsqueeze(-1) + (h - s).unsqueeze(-2) + crossing).exp()
    ahead = (s.unsqueeze(-1) - s.unsqueeze(-2)).clamp_min(0)  # [..., i, l]
    stays = (h - (h.unsqueeze(-2) + ahead).logsumexp(-1)).exp()
    law = law + torch.diag_embed(stays)
    back = order.argsort(-1)
    rows = law.gather(-2, back.unsqueeze(-1).expand_as(law))
    return rows.gather(-1, back.unsqueeze(-2).expand_as(law))


def direct_moments(scores: Tensor, costs: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Mean ``[*batch, k]`` and covariance ``[*batch, k, k]`` of the direct gradient for the scores.

    The mean is (softmax(h) − softmax(h − ε c)) / ε.

    Args:
        scores: h, ``[*batch, k]``.
        costs: c, ``[*batch, k]``.
        epsilon: ε, not 0.
    """
    scores, shift = scores.double(), epsilon * costs.double()
    law = joint_law(scores, shift)
    mean = (scores.softmax(-1) - (scores - shift).softmax(-1)) / epsilon
    second = torch.diag_embed(law.sum(-1) + law.sum(-2)) - law - law.mT
    return mean, second / epsilon**2 - mean.unsqueeze(-1) * mean.unsqueeze(-2)
