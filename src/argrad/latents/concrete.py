r"""Densities of the Concrete (Gumbel-softmax) distribution, in log space.

:math:`x = \mathrm{softmax}((h + \gamma)/\tau)` has density :math:`(k-1)!\,\tau^{k-1} \prod_i e^{h_i} x_i^{-\tau-1} /
(\sum_i e^{h_i} x_i^{-\tau})^k` on the simplex. At low temperature entries of x underflow to zero; their logs do not, so
both functions take :math:`\log x` and stay finite at any temperature.

Reference: Maddison, Mnih & Teh, 2017, "The Concrete distribution", Eq. 10 and Appendix C.3.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

__all__ = ["binary_concrete_log_prob", "concrete_log_prob"]


def concrete_log_prob(log_x: Tensor, logits: Tensor, temperature: Tensor | float) -> Tensor:
    r"""The log-density of x at ``log_x``, ``[*extra, *batch]``.

    The density of :math:`y = \log x` itself (ExpConcrete) is this plus ``log_x.sum(-1)``.

    Args:
        log_x: logs of a point of the simplex, ``[*extra, *batch, k]``, as ``log_softmax((h + γ) / τ)`` gives.
        logits: h, ``[*batch, k]``.
        temperature: τ > 0.

    >>> concrete_log_prob(torch.tensor([0.5, 0.5]).log(), torch.zeros(2), 1.0)
    tensor(0.)
    """
    k = logits.shape[-1]
    temperature = torch.as_tensor(temperature, dtype=logits.dtype, device=logits.device)
    weighted = logits - temperature * log_x
    constant = math.lgamma(k) + (k - 1) * temperature.log()
    return constant + (weighted - log_x).sum(-1) - k * weighted.logsumexp(-1)


def binary_concrete_log_prob(logit_x: Tensor, logits: Tensor, temperature: Tensor | float) -> Tensor:
    r"""The log-density of n independent binary Concrete variables x = σ((h + λ)/τ), ``[*extra, *batch]``.

    With :math:`s = \tau\,\mathrm{logit}(x) - h` logistic, the density is :math:`\tau\,\sigma(s)\,\sigma(-s) / (x (1 -
    x))`.

    Args:
        logit_x: log-odds of x, ``[*extra, *batch, n]``, that is (h + λ)/τ.
        logits: h, ``[*batch, n]``.
        temperature: τ > 0.

    >>> binary_concrete_log_prob(torch.tensor([0.0]), torch.zeros(1), 1.0)
    tensor(0.)
    """
    temperature = torch.as_tensor(temperature, dtype=logits.dtype, device=logits.device)
    s = temperature * logit_x - logits
    log_density = logsigmoid(s) + logsigmoid(-s) - logsigmoid(logit_x) - logsigmoid(-logit_x)
    return (temperature.log() + log_density).sum(-1)
