r"""Implicit maximum likelihood: move the distribution towards one that the cost's gradient likes better.

With z = arg max {h + γ} and v = ∇c(z), the target distribution has the scores h − λ v, and a step of maximum likelihood
towards it has the gradient E[z] − E[z'] of their means. Both means are estimated with the same noise,

.. math:: g = \frac1\lambda \big(\arg\max\{h + \gamma\} - \arg\max\{h - \lambda v + \gamma\}\big), \qquad
    \text{two-sided: } \frac1{2\lambda} \big(\arg\max\{h + \lambda v + \gamma\} - \arg\max\{h - \lambda v +
    \gamma\}\big).

The first paper leaves out 1/λ, which a learning rate absorbs; the second has it, and so do we: as λ → 0 the estimate is
the gradient of the cost linearised at the sample. With the latent's own noise this is :class:`argrad.Direct` with
``changes="gradient"`` and ε = λ; what is its own is the noise, and how λ adapts.

**Sum-of-gamma noise.** To sample structures with κ ones, noise whose sum over them is Gumbel suits better than Gumbel
noise on each. Since a Gumbel is Σ_i E_i / i − log s for s → ∞ exponentials E_i, and E_i / i is the sum of κ independent
Gamma(1/κ, scale 1/i),

.. math:: \gamma \sim \frac{\tau}{\kappa} \Big(\sum_{i=1}^{s} \mathrm{Gamma}(1/\kappa, \text{scale } \kappa / i) -
    \log s\Big)

has a κ-fold sum that is Gumbel of width τ up to the truncation at s terms.

**Adaptive λ** (``strength="auto"``). The step λ v is α times as long as the perturbed scores, λ = α ‖h + γ‖ / ‖v‖ for
each example, and α rises by a small step as long as fewer than ``target_moves`` entries of an example's gradient differ
from zero on (exponentially moving) average, else falls. (The paper has ‖h‖; with it, scores that start at zero would
stay there.) α and the average are buffers that change in train mode only.

**Bias**: that of linearising the cost, and of λ. The cost's own parameters are trained at samples of the perturbed law,
so with ``noise="latent"`` and temperature 1 value and their gradient are right under law "perturb". The latent's law is
not read.

References: Niepert, Minervini & Franceschi, 2021, "Implicit MLE: backpropagating through discrete exponential family
distributions"; Minervini, Franceschi & Niepert, 2023, "Adaptive perturbation-based gradient estimation for discrete
latent variable models".
"""

from __future__ import annotations

import math
from typing import Literal, final

import torch
from torch import Tensor

from argrad.costs import Cost, evaluate
from argrad.estimators.base import Estimator, attach_difference, positive_buffer, with_samples
from argrad.estimators.perturbed_optimizer import additive
from argrad.latents import Categorical, Chain, Factorised, Latent, Permutation, SpanningTree, Structured, Subset

__all__ = ["ImplicitMLE", "sum_of_gamma"]

SMALLEST_REACH = 1e-3
"""α stays above this: at zero nothing would ever move."""
DECAY = 0.9
"""Of the moving average of how many entries of the gradient differ from zero."""


@final
class ImplicitMLE(Estimator):
    """The difference of two perturbed arg maxes, one of them moved along the cost's gradient, over λ.

    Args:
        strength: λ > 0, or "auto".
        samples: S ≥ 1 samples per example, each with its cost and its derivative.
        two_sided: move to both sides.
        noise: "latent" for the noise of the latent's law "perturb", or "sum-of-gamma".
        temperature: the width τ > 0 of the noise.
        ones: κ for sum-of-gamma noise; None takes the number of ones in a structure, where it is the same for all.
        terms: s, the number of gamma variables that are added up.
        target_moves: with "auto", how many entries of an example's gradient should differ from zero.
        adaptation_step: with "auto", by how much α changes in a call.

    >>> from argrad import Subset
    >>> scores = torch.zeros(4, 5, requires_grad=True)
    >>> estimator = ImplicitMLE("auto", noise="sum-of-gamma")
    >>> estimator(Subset(scores, size=2), lambda z: z[..., 0].square()).shape
    torch.Size([4])
    """

    unbiased = False
    needs_cost_gradient = True
    strength: Tensor
    temperature: Tensor
    reach: Tensor
    moves: Tensor

    def __init__(
        self,
        strength: float | Literal["auto"] = 10.0,
        *,
        samples: int = 1,
        two_sided: bool = False,
        noise: Literal["latent", "sum-of-gamma"] = "latent",
        temperature: float = 1.0,
        ones: int | None = None,
        terms: int = 10,
        target_moves: float = 1.0,
        adaptation_step: float = 1e-3,
    ) -> None:
        super().__init__()
        if isinstance(strength, str) and strength != "auto":
            raise ValueError(f'strength must be a positive number or "auto", got {strength!r}')
        if samples < 1 or samples != int(samples):
            raise ValueError(f"ImplicitMLE needs a whole number of samples >= 1, got samples={samples}")
        if noise not in ("latent", "sum-of-gamma"):
            raise ValueError(f'noise must be "latent" or "sum-of-gamma", got {noise!r}')
        if terms < 1 or (ones is not None and ones < 1):
            raise ValueError(f"sum-of-gamma noise needs ones >= 1 and terms >= 1, got ones={ones}, terms={terms}")
        if not target_moves > 0 or not adaptation_step > 0:
            raise ValueError(
                "target_moves and adaptation_step must be positive, "
                f"got target_moves={target_moves}, adaptation_step={adaptation_step}"
            )
        self.auto = strength == "auto"
        self.samples = samples
        self.two_sided = two_sided
        self.noise = noise
        self.ones = ones
        self.terms = terms
        self.target_moves = target_moves
        self.adaptation_step = adaptation_step
        self.register_buffer("strength", positive_buffer("strength", 1.0 if isinstance(strength, str) else strength))
        self.register_buffer("temperature", positive_buffer("temperature", temperature))
        self.register_buffer("reach", torch.tensor(1.0))
        self.register_buffer("moves", torch.tensor(1.0))

    def forward(
        self,
        latent: Latent,
        cost: Cost,
        *,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """The mean cost of the samples, ``[*batch]``.

        Args:
            latent: any latent with a solver.
            cost: a cost that is differentiable in z.
            generator: where fresh noise comes from.
            noise: ``[samples, *batch, *event]``; for one sample the leading dimension may be left out.
        """
        self.require_support(latent)
        latent = additive(latent)
        noise = (
            self.draw_noise(latent, generator=generator) if noise is None else with_samples(latent, noise, self.samples)
        )
        perturbed = latent.scores.detach() + self.temperature * noise
        z = latent.solve(perturbed).to(latent.scores.dtype)
        wanted = torch.is_grad_enabled() and latent.requires_grad
        costs, slope = value_and_slope(latent, cost, z, wanted=wanted)
        value = costs.mean(0)
        if slope is None:
            return value
        strength = self._strength(latent, perturbed, slope)
        step = strength.reshape(strength.shape + (1,) * latent.event_dims) * slope if self.auto else strength * slope
        better = latent.solve(perturbed - step).to(z.dtype)
        worse = latent.solve(perturbed + step).to(z.dtype) if self.two_sided else z
        factor = torch.where(strength > 0, 1 / (2 * strength if self.two_sided else strength), 0.0)
        if self.auto and self.training:
            self.adapt(latent, worse - better)
        return attach_difference(value, latent, worse, better, factor)

    @torch.no_grad()
    def adapt(self, latent: Latent, difference: Tensor) -> None:
        """Count the moves ``[*extra, *batch, *event]`` and change α by one step."""
        moved = (difference != 0).sum()
        examples = difference.numel() // math.prod(latent.event_shape)
        totals = torch.stack([moved.to(self.moves), torch.full_like(self.moves, examples)])
        moved, seen = self.sum_over_processes(totals)
        self.moves.lerp_(moved / seen.clamp_min(1), (1 - DECAY) * seen.clamp_max(1))
        direction = torch.where(self.moves <= self.target_moves, 1.0, -1.0)
        self.reach.add_(self.adaptation_step * direction * seen.clamp_max(1)).clamp_(min=SMALLEST_REACH)

    def draw_noise(self, latent: Latent, *, generator: torch.Generator | None = None) -> Tensor:
        """``[samples, *batch, *event]``, of width 1."""
        if self.noise == "latent":
            return additive(latent).draw_noise((self.samples,), generator=generator)
        scores = latent.scores
        return sum_of_gamma(
            (self.samples, *scores.shape),
            self._ones(latent),
            terms=self.terms,
            dtype=scores.dtype,
            device=scores.device,
            generator=generator,
        )

    def cost_evaluations(self, latent: Latent) -> int:
        """One per sample, and its derivative."""
        return self.samples

    def supports(self, latent: Latent) -> bool:
        """Everything with a solver; the law does not matter."""
        return isinstance(latent, Factorised | Structured)

    def _strength(self, latent: Latent, perturbed: Tensor, slope: Tensor) -> Tensor:
        """λ: a number, or ``[samples, *batch]``."""
        if not self.auto:
            return self.strength
        event = tuple(range(-latent.event_dims, 0))
        length = torch.where(perturbed.isfinite(), perturbed, 0.0).square().sum(event).sqrt()
        steepness = slope.square().sum(event).sqrt()
        return self.reach * torch.where(steepness > 0, length / steepness, 0.0)

    def _ones(self, latent: Latent) -> int:
        ones = number_of_ones(latent) if self.ones is None else self.ones
        if ones is None:
            raise ValueError(
                f"the structures of {latent!r} do not all have the same number of ones; "
                'say ImplicitMLE(ones=…), or use noise="latent"'
            )
        return ones

    def extra_repr(self) -> str:
        """The settings, for printing."""
        strength = '"auto"' if self.auto else f"{self.strength.item():.4g}"
        return f"strength={strength}, samples={self.samples}, two_sided={self.two_sided}, noise={self.noise!r}"


def value_and_slope(latent: Latent, cost: Cost, z: Tensor, *, wanted: bool) -> tuple[Tensor, Tensor | None]:
    """The cost of z and, if wanted, its derivative with respect to z; gradients of the cost's own parameters flow."""
    if not wanted:
        return evaluate(cost, latent, z), None
    z = z.detach().requires_grad_()
    value = evaluate(cost, latent, z)
    slope = None
    if value.requires_grad:
        (slope,) = torch.autograd.grad(value.sum(), z, retain_graph=True, allow_unused=True)
    if slope is None:
        raise ValueError("this estimator needs a cost that is differentiable in z; Direct and Reinforce do not")
    # The graph keeps z as a leaf; nobody reads its gradient.
    return value, slope


def number_of_ones(latent: Latent) -> int | None:
    """How many ones every structure has, for each of its independent parts; None where structures differ."""
    if isinstance(latent, Subset):
        return max(1, latent.size)
    if isinstance(latent, Permutation):
        return latent.scores.shape[-1]
    if isinstance(latent, SpanningTree):
        return max(1, latent.scores.shape[-1] - 1)
    if isinstance(latent, Chain):
        return latent.variables
    return 1 if isinstance(latent, Categorical) else None


def sum_of_gamma(
    shape: tuple[int, ...],
    ones: int,
    *,
    terms: int = 10,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Noise of which ``ones`` independent copies add up to a standard Gumbel, up to the truncation at ``terms``.

    >>> sum_of_gamma((2, 3), 4, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3])
    """
    dtype = torch.promote_types(dtype, torch.float32)
    shapes = torch.full((terms, *shape), 1 / ones, dtype=dtype, device=device)
    parts = torch._standard_gamma(shapes, generator=generator)
    scale = 1 / torch.arange(1, terms + 1, dtype=dtype, device=device)
    return (parts * scale.reshape(-1, *[1] * len(shape))).sum(0) - math.log(terms) / ones
