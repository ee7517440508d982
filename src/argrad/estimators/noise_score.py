r"""The score of the noise: how the density of perturbed scores changes when the scores move.

Where z is the arg max of h + γ and γ has density f, any function of z has an expectation that is an integral over t = h
+ γ, ∫ φ(t) f(t − h) dt, in which only the density depends on h. So

.. math:: \nabla_h E[\varphi(h + \gamma)] = E[\varphi(h + \gamma)\, s(\gamma)], \qquad s = -\nabla \log f,

for every solver and every structure, without a log-probability of z. Gumbel noise has s = 1 − exp(−γ), logistic noise s
= tanh(γ / 2), Gaussian noise s = γ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from argrad.latents import Bits, Latent, PairwiseBits, SpanningTree

__all__ = ["noise_score", "read"]


def noise_score(latent: Latent, noise: Tensor) -> Tensor:
    """s(γ) of the noise that the latent adds to its scores, ``[*extra, *batch, *event]``; 0 where nothing is read."""
    slope = (noise / 2).tanh() if isinstance(latent, Bits | PairwiseBits) else -torch.expm1(-noise)
    return torch.where(read(latent), slope, 0.0)


def read(latent: Latent) -> Tensor:
    """Which scores some possible structure may use, ``[*batch, *event]``: their noise matters, that of others not."""
    used = latent.scores.detach() > -torch.inf
    if isinstance(latent, SpanningTree):
        edges = torch.ones(latent.event_shape, dtype=torch.bool, device=used.device)
        if latent.directed:
            edges.fill_diagonal_(False)
            edges[:, latent.root] = False
        else:
            edges = edges.triu(1)
        used = used & edges
    return used
