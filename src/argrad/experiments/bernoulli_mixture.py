r"""The mixture that a VAE with one categorical variable is, fitted by EM: the practical optimum of its likelihood.

With a uniform prior the model is :math:`p(x) = \frac1k \sum_z \prod_d \mu_{zd}^{x_d} (1 - \mu_{zd})^{1 - x_d}`; the
decoder may choose any :math:`\mu`. EM alternates responsibilities and weighted means; many restarts run as one batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["fit_mixture", "mixture_nll"]


def fit_mixture(
    train: Tensor, values: int, *, restarts: int = 8, iterations: int = 150, seed: int = 0, smoothing: float = 0.05
) -> Tensor:
    """EM from random responsibilities.

    Args:
        train: bits ``[N, D]``.
        values: k.
        restarts: R independent starts.
        iterations: of EM.
        seed: of the starts.
        smoothing: pseudo-counts of a 0 and a 1 for every pixel of every component, so that no probability is 0.

    Returns:
        logits of μ, ``[R, k, D]``.
    """
    generator = torch.Generator(train.device).manual_seed(seed)
    pixels = train.shape[-1]
    overall = train.float().mean(0)
    noise = torch.rand((restarts, values, pixels), generator=generator, device=train.device)
    means = (0.75 * overall + 0.25 * noise).clamp(0.01, 0.99)
    for _ in range(iterations):
        counts = torch.full((restarts, values, 1), 2 * smoothing, device=train.device)
        sums = torch.full((restarts, values, pixels), smoothing, device=train.device)
        for part in train.split(10_000):
            x = part.float()
            responsibility = (-component_costs(x, means.logit())).softmax(-1)
            counts += responsibility.sum(1).unsqueeze(-1)
            sums += responsibility.transpose(1, 2) @ x
        means = sums / counts
    return means.logit()


def component_costs(x: Tensor, logits: Tensor) -> Tensor:
    """−log p(x|z) for ``[B, D]`` bits under ``[R, k, D]`` logits: ``[R, B, k]``."""
    return torch.nn.functional.softplus(logits, threshold=40).sum(-1).unsqueeze(-2) - x @ logits.transpose(1, 2)


def mixture_nll(x: Tensor, logits: Tensor) -> Tensor:
    """The mean of −log p(x) under each restart, ``[R]``."""
    total = torch.zeros(logits.shape[0], dtype=torch.float64, device=x.device)
    for part in x.split(10_000):
        log_p = (-component_costs(part.float(), logits)).logsumexp(-1) - math.log(logits.shape[1])
        total -= log_p.double().sum(-1)
    return total / len(x)
