r"""REINFORCE, the score-function estimator.

.. math:: \nabla_h E[c(z)] = E[(c(z) - b)\,\nabla_h \log q(z)]

for any baseline b that does not depend on the sample, since :math:`E[\nabla \log q(z)] = 0`. Baselines: a moving
average of earlier costs; with S samples, the mean of the other S − 1 (*leave-one-out*, which then reads
:math:`\frac1{S-1}\sum_s (c_s - \bar c)\,\nabla\log q(z_s)`); or a network that predicts the cost from the detached
scores or from a context that the user passes, trained by squared error in the same backward pass.

On structured latents this needs ``law="gibbs"``, whose log-probability is that of the samples: with perturbed samples
and the log-probability of the other law the gradient is wrong by far more than its noise.

**Sequences.** log q(z) is a sum over steps, and a step cannot change what was paid before it, so with a
:class:`argrad.StepCost` the gradient of step t is weighed by the *costs from t on*, less a baseline for that step: the
mean of the other samples there, or a moving average (``steps=length``).

References: Williams, 1992; Mnih & Gregor, 2014, "Neural variational inference and learning in belief networks" (learnt
baselines); Kool, van Hoof & Welling, 2019, "Buy 4 REINFORCE samples, get a baseline for free!" (leave-one-out).
"""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn

from argrad.costs import Cost, StepCost, evaluate
from argrad.estimators.base import Estimator, attach, attach_to_parameters, with_samples
from argrad.estimators.control import RunningMoments, apply_network, features, small_network
from argrad.latents import Factorised, Latent, Sequence

__all__ = ["Reinforce"]


@final
class Reinforce(Estimator):
    """Unbiased for any cost and any latent with a log-probability.

    Args:
        samples: S ≥ 1 samples per example.
        baseline: "none", "moving-average", "leave-one-out" (S ≥ 2), "learnt" (a small network, sized by the first
            call), or your own module that maps ``[*batch, features]`` to ``[*batch]``. "auto" is leave-one-out where
            there are several samples, else the moving average.
        steps: the length of sequences, where a moving average is to be kept for each step; see above.

    >>> from argrad import Categorical
    >>> logits = torch.zeros(4, 3, requires_grad=True)
    >>> Reinforce(samples=2)(Categorical(logits), lambda z: z[..., 0]).shape
    torch.Size([4])
    """

    unbiased = True
    needs_cost_gradient = False

    def __init__(
        self,
        samples: int = 1,
        *,
        baseline: Literal["auto", "none", "moving-average", "leave-one-out", "learnt"] | nn.Module = "auto",
        steps: int | None = None,
    ) -> None:
        super().__init__()
        if samples < 1 or samples != int(samples):
            raise ValueError(f"Reinforce needs at least one sample, and a whole number of them, got samples={samples}")
        if baseline == "auto":
            baseline = "leave-one-out" if samples > 1 else "moving-average"
        names = ("none", "moving-average", "leave-one-out", "learnt")
        if not isinstance(baseline, nn.Module) and baseline not in names:
            raise ValueError(f"baseline must be one of {', '.join(names)}, or a module, got {baseline!r}")
        if baseline == "leave-one-out" and samples < 2:
            raise ValueError('baseline="leave-one-out" needs samples >= 2')
        self.samples = samples
        self.baseline = "learnt" if isinstance(baseline, nn.Module) else baseline
        self.network = (
            baseline if isinstance(baseline, nn.Module) else small_network() if baseline == "learnt" else None
        )
        self.moments = RunningMoments() if self.baseline in ("moving-average", "learnt") else None
        self.steps = steps
        per_step = steps is not None and self.baseline == "moving-average"
        self.step_moments = nn.ModuleList([RunningMoments() for _ in range(steps or 0)]) if per_step else None

    def forward(
        self,
        latent: Latent,
        cost: Cost,
        *,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        """The mean cost of the samples, ``[*batch]``.

        Args:
            latent: any latent with a log-probability.
            cost: any cost.
            generator: where fresh noise comes from.
            noise: ``[samples, *noise_shape]``; for one sample the leading dimension may be left out.
            context: what a learnt baseline sees beside the detached scores, ``[*batch, d]``.
        """
        self.require_support(latent)
        noise = (
            self.draw_noise(latent, generator=generator) if noise is None else with_samples(latent, noise, self.samples)
        )
        z = latent.sample(noise=noise)
        if isinstance(latent, Sequence) and isinstance(cost, StepCost):
            return self._by_steps(latent, cost, z)
        costs = evaluate(cost, latent, z)
        value = costs.mean(0) if self.samples > 1 else costs.squeeze(0)
        if not (torch.is_grad_enabled() and latent.requires_grad):
            return value
        observed = costs.detach()
        advantage = observed
        if self.baseline == "leave-one-out":
            advantage = (observed - observed.mean(0)) * (self.samples / (self.samples - 1))
        elif self.moments is not None:
            predicted = self.moments.location().to(observed)
            if self.network is not None:
                scale = self.moments.scale().to(observed)
                inputs = features(latent, [latent.scores.detach().clamp(-30, 30)], context)
                output = apply_network(self.network, inputs, latent.batch_shape)
                if self.training:
                    error = (output - (observed - predicted) / scale).square().mean()
                    value = attach_to_parameters(value, error, self.network.parameters())
                predicted = predicted + scale * output.detach()
            advantage = observed - predicted
            if self.training:
                self.moments.update(observed)
        if not isinstance(latent, Factorised):  # pairwise and transition scores have their share of log q
            return attach(value, latent.log_prob(z).movedim(0, -1), (advantage / self.samples).movedim(0, -1))
        weight = advantage.reshape(advantage.shape + (1,) * latent.event_dims)
        # The score's gradient is z − E[z]: the mean need not be taken from every sample.
        gradient = (weight * z).mean(0) + weight.mean(0) * latent.score_gradient(torch.zeros_like(z[0]))
        return attach(value, latent.scores, gradient, known_finite=latent.known_finite)

    def _by_steps(self, latent: Sequence, cost: StepCost, z: Tensor) -> Tensor:
        """Each step is weighed by the costs from there on, against a baseline of its own."""
        costs = cost.per_step(z)
        value = costs.sum(-1).mean(0)
        if not (torch.is_grad_enabled() and latent.requires_grad):
            return value
        ahead = costs.detach().flip(-1).cumsum(-1).flip(-1)
        advantage = ahead
        if self.baseline == "leave-one-out":
            advantage = (ahead - ahead.mean(0)) * (self.samples / (self.samples - 1))
        elif self.baseline != "none":
            if self.step_moments is None or self.steps != latent.length:
                raise ValueError(
                    f"a baseline for each of {latent.length} steps needs several samples, Reinforce(samples=2), or a "
                    f"moving average for each, Reinforce(steps={latent.length})"
                )
            kept = [moments for moments in self.step_moments if isinstance(moments, RunningMoments)]
            advantage = ahead - torch.stack([moments.location() for moments in kept]).to(ahead)
            if self.training:
                for moments, seen in zip(kept, ahead.unbind(-1), strict=True):
                    moments.update(seen)
        log_probs = latent.step_log_probs(z)
        return attach(value, log_probs.movedim(0, -2), (advantage / self.samples).movedim(0, -2))

    def draw_noise(self, latent: Latent, *, generator: torch.Generator | None = None) -> Tensor:
        """``[samples, *noise_shape]``, of the latent."""
        return latent.draw_noise((self.samples,), generator=generator)

    def cost_evaluations(self, latent: Latent) -> int:
        """One per sample."""
        return self.samples

    def supports(self, latent: Latent) -> bool:
        """Latents whose log-probability is that of their samples."""
        return latent.law == "gibbs"

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"samples={self.samples}, baseline={self.baseline!r}"
