r"""Perturbed optimisers: differentiate the mean of a solver's answers under noise.

A solver is piecewise constant. Its mean under noise Z of width σ on the scores is smooth,

.. math:: y(h) = E[\arg\max_z \langle h + \sigma Z, z\rangle], \qquad
    \partial_h y = \tfrac1\sigma E[z\, s(Z)^\top], \quad s = -\nabla\log f,

since the derivative may be moved from the arg max to the density f of the noise (:mod:`argrad.estimators.noise_score`;
Gaussian noise has s = Z). As a layer, y takes the place of z: **the value is the cost of the mean**, c(ȳ) for the mean
ȳ of M samples, and **the gradient is that of c(y(h))**, with the same M samples in the Jacobian, centred:

.. math:: g = \frac{1}{(M - 1)\,\sigma} \sum_m \langle \nabla c(\bar y), z_m - \bar y\rangle\, s(Z_m).

**Bias.** c(y(h)) = c(E[z]) is another objective than E[c(z)], unless the cost is linear, and ȳ is not a structure: the
cost must make sense between structures, and its own parameters are trained at ȳ. As an estimate of the gradient of
c(y(h)) it is right up to O(1/M). The law of the latent is not used, only its scores and its solver; with
``noise="latent"``, width 1 and law "perturb", y is E[z]. **Variance** of order d / (M σ²) for d scores.

**Scores without noise**, such as pairwise or transition scores A: the Jacobian is a second derivative of E[max_z
{score(z) + σ <Z, z>}] and therefore symmetric, so :math:`\nabla_A \langle v, y\rangle = \frac1\sigma E[\langle s(Z),
v\rangle\, \nabla_A \mathrm{score}(z)]`, which needs no noise on A.

Reference: Berthet, Blondel, Teboul, Cuturi, Vert & Bach, 2020, "Learning with differentiable perturbed optimizers".
"""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor

from argrad.costs import Cost, evaluate
from argrad.estimators.base import Estimator, positive_buffer, with_samples
from argrad.estimators.noise_score import noise_score, read
from argrad.latents import Factorised, Latent, Structured

__all__ = ["PerturbedOptimizer"]


@final
class PerturbedOptimizer(Estimator):
    """The cost of the mean structure under noise, and its gradient. Needs a cost that is differentiable in z.

    Args:
        sigma: the width σ > 0 of the noise.
        samples: M ≥ 1 calls of the solver per example; with one the Jacobian is not centred.
        noise: "gaussian", as usual for this method, or "latent" for that of the latent's law "perturb".

    >>> from argrad import Subset
    >>> scores = torch.zeros(4, 5, requires_grad=True)
    >>> PerturbedOptimizer()(Subset(scores, size=2), lambda z: z[..., 0].square()).shape
    torch.Size([4])
    """

    unbiased = False
    needs_cost_gradient = True
    sigma: Tensor

    def __init__(
        self, sigma: float = 1.0, *, samples: int = 10, noise: Literal["gaussian", "latent"] = "gaussian"
    ) -> None:
        super().__init__()
        if samples < 1 or samples != int(samples):
            raise ValueError(f"PerturbedOptimizer needs a whole number of samples >= 1, got samples={samples}")
        if noise not in ("gaussian", "latent"):
            raise ValueError(f'noise must be "gaussian" or "latent", got {noise!r}')
        self.samples = samples
        self.noise = noise
        self.register_buffer("sigma", positive_buffer("sigma", sigma))

    def forward(
        self,
        latent: Latent,
        cost: Cost,
        *,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """The cost of the mean of the samples, ``[*batch]``.

        Args:
            latent: any latent with a solver.
            cost: a cost that is differentiable in z, also between structures.
            generator: where fresh noise comes from.
            noise: ``[samples, *batch, *event]``.
        """
        self.require_support(latent)
        latent = additive(latent)
        noise = (
            self.draw_noise(latent, generator=generator) if noise is None else with_samples(latent, noise, self.samples)
        )
        scores = latent.scores
        with torch.no_grad():
            z = latent.solve(scores + self.sigma * noise).to(scores.dtype)
            mean = z.mean(0)
            slope = noise_score(latent, noise) if self.noise == "latent" else torch.where(read(latent), noise, 0.0)
            slope = (slope / self.sigma).to(scores.dtype)
            centred = (z - mean) / (self.samples - 1) if self.samples > 1 else z
        if torch.is_grad_enabled() and latent.requires_grad:
            mean = mean + self._response(latent, z, centred, slope)
        return evaluate(cost, latent, mean)

    def _response(self, latent: Latent, z: Tensor, centred: Tensor, slope: Tensor) -> Tensor:
        """Zero, ``[*batch, *event]``, whose Jacobian is that of the mean."""
        event = tuple(range(-latent.event_dims, 0))

        def per_sample(number: Tensor) -> Tensor:
            return number.reshape(number.shape + (1,) * latent.event_dims)

        scores = torch.where(read(latent), latent.scores, 0.0)
        response = (centred * per_sample((slope * (scores - scores.detach())).sum(event))).sum(0)
        if any(other.requires_grad for other in latent.parameters[1:]):
            # z − ȳ would do as well as s(Z) − its mean for the centring; it is the score that is centred here.
            score = latent.with_scores(latent.scores.detach()).score(z)
            score = score - score.detach()
            if self.samples > 1:
                score = (score - score.mean(0)) / (self.samples - 1)
            response = response + (slope * per_sample(score)).sum(0)
        return response

    def draw_noise(self, latent: Latent, *, generator: torch.Generator | None = None) -> Tensor:
        """``[samples, *batch, *event]``."""
        if self.noise == "latent":
            return additive(latent).draw_noise((self.samples,), generator=generator)
        scores = latent.scores
        dtype = torch.promote_types(scores.dtype, torch.float32)
        return torch.randn((self.samples, *scores.shape), dtype=dtype, device=scores.device, generator=generator)

    def cost_evaluations(self, latent: Latent) -> int:
        """One, at the mean, and its derivative."""
        return 1

    def supports(self, latent: Latent) -> bool:
        """Everything with a solver; the law does not matter."""
        return isinstance(latent, Factorised | Structured)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"sigma={self.sigma.item():.4g}, samples={self.samples}, noise={self.noise!r}"


def additive(latent: Latent) -> Latent:
    """The same scores under the law whose noise is added to them."""
    return latent.with_law("perturb") if isinstance(latent, Structured) else latent
