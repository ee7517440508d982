r"""Noise: standard Gumbel and logistic draws, and perturbed scores conditioned on their outcome.

Adding independent standard Gumbel noise γ to scores h and taking the arg max samples ``softmax(h)`` (Gumbel-max). With
two outcomes only the difference of the two Gumbels matters, and that difference is logistic. Every latent is sampled
this way, so that an estimator is a deterministic function of its noise.

Noise is drawn in float32 at least: half precision has so few values near zero that the arg max would be biased.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

__all__ = ["gumbel", "gumbel_given_outcome", "logistic", "logistic_given_outcome"]


def gumbel(
    shape: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Draw standard Gumbel noise, density :math:`e^{-(\gamma + e^{-\gamma})}`, as −log(−log u) of a uniform.

    Its mean is Euler's constant, 0.577; shifting all of it by a constant changes no arg max.

    >>> gumbel((2, 3), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3])
    """
    dtype = torch.promote_types(dtype, torch.float32)
    uniform = torch.rand(tuple(shape), dtype=dtype, device=device, generator=generator)
    # Neither end of the interval: 0 would give -inf and 1 would give +inf.
    uniform.clamp_(torch.finfo(dtype).tiny, 1 - torch.finfo(dtype).eps / 2)
    return uniform.log_().neg_().log_().neg_()


def logistic(
    shape: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Draw standard logistic noise, distribution function :math:`\sigma(t)`: the difference of two Gumbels.

    >>> logistic((4,), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([4])
    """
    first, second = gumbel((2, *shape), dtype=dtype, device=device, generator=generator).unbind(0)
    return first - second


def gumbel_given_outcome(scores: Tensor, z: Tensor, noise: Tensor) -> Tensor:
    r"""Perturbed scores :math:`h + \gamma` drawn from their law given that the arg max is ``z``.

    The maximum does not depend on where it is attained: it is :math:`T = \log\sum_j e^{h_j} + \gamma_z`. The others are
    Gumbels with location :math:`h_i`, truncated at T (Maddison, Tarlow & Minka, 2014, "A* sampling"):

    .. math:: -\log(e^{-(h_i + \gamma_i)} + e^{-T}).

    Args:
        scores: h, ``[*batch, k]``; ``-inf`` stays ``-inf``.
        z: one-hot outcome, ``[*extra, *batch, k]``.
        noise: fresh standard Gumbel noise, ``[*extra, *batch, k]``, independent of what produced z.

    Returns:
        ``[*extra, *batch, k]``, a differentiable function of ``scores``.
    """
    scores = scores.to(torch.promote_types(scores.dtype, noise.dtype))
    top = scores.logsumexp(-1, keepdim=True) + (noise * z).sum(-1, keepdim=True)
    possible = scores > -torch.inf
    finite = torch.where(possible, scores, 0.0)  # keeps inf - inf out of the backward pass
    below = -torch.logaddexp(-(finite + noise), -top)
    return torch.where(z > 0, top, torch.where(possible, below, -torch.inf))


def logistic_given_outcome(scores: Tensor, z: Tensor, noise: Tensor) -> Tensor:
    r"""Perturbed scores :math:`h + \lambda` drawn from their law given that the bits ``1[h + λ > 0]`` are ``z``.

    Given z = 1, :math:`P(t > s) = \sigma(h - s) / \sigma(h)` for s > 0; setting it to the uniform
    :math:`\sigma(-\lambda)` gives :math:`e^s = 1 + e^\lambda (1 + e^h)`, that is s = softplus(λ + softplus(h)). z = 0
    is the mirror image.

    Args:
        scores: h, ``[*batch, n]``; ``-inf`` stays ``-inf``.
        z: bits, ``[*extra, *batch, n]``.
        noise: fresh standard logistic noise, ``[*extra, *batch, n]``, independent of what produced z.

    Returns:
        ``[*extra, *batch, n]``, a differentiable function of ``scores``.
    """
    scores = scores.to(torch.promote_types(scores.dtype, noise.dtype))
    possible = scores > -torch.inf
    finite = torch.where(possible, scores, 0.0)
    sign = 2 * z - 1
    inner = softplus(sign * finite, threshold=40)  # beyond the threshold PyTorch returns the argument itself
    perturbed = sign * softplus(sign * noise + inner, threshold=40)
    return torch.where(possible, perturbed, -torch.inf)
