r"""RELAX: REBAR with a learnt control in place of the relaxed cost, so that the cost may be a black box.

The estimate is that of :mod:`argrad.estimators.rebar` with :math:`k(t) = b + s\,r_\phi(\mathrm{softmax}(t/\tau),
E[z])`: a small network r that sees the relaxed sample and the probabilities, on the scale (b, s) of the costs seen so
far. The network and τ descend E[g²]. The network's last layer starts at zero, so RELAX starts as REINFORCE with a
moving-average baseline. With ``relaxed_cost=True`` the relaxed cost is added to the control, as in the original's
experiments, and the cost must be differentiable.

Reference: Grathwohl, Choi, Wu, Roeder & Duvenaud, 2018, "Backpropagation through the void: optimizing control variates
for black-box gradient estimation".
"""

from typing import final

import torch
from torch import Tensor, nn

from argrad.costs import Cost, evaluate
from argrad.estimators.base import Estimator, attach, attach_to_parameters, is_factorised, positive_buffer
from argrad.estimators.control import RunningMoments, apply_network, features, small_network
from argrad.estimators.rebar import controlled_gradient
from argrad.latents import Factorised, Latent

__all__ = ["Relax"]


@final
class Relax(Estimator):
    """Unbiased for any cost. Pass ``parameters()`` to your optimiser: the control learns from the variance.

    Args:
        control: a module that maps ``[*batch, features]`` to ``[*batch]``; None makes a small network, sized by the
            first call.
        temperature: the first τ > 0.
        relaxed_cost: add the relaxed cost to the control; the cost must then be differentiable in z.

    >>> from argrad import Bits
    >>> logits = torch.zeros(4, 3, requires_grad=True)
    >>> Relax()(Bits(logits), lambda z: z.sum(-1)).shape
    torch.Size([4])
    """

    unbiased = True

    def __init__(
        self, control: nn.Module | None = None, *, temperature: float = 0.5, relaxed_cost: bool = False
    ) -> None:
        super().__init__()
        self.control = small_network() if control is None else control
        self.relaxed_cost = relaxed_cost
        self.needs_cost_gradient = relaxed_cost
        self.moments = RunningMoments()
        self.log_temperature = nn.Parameter(positive_buffer("temperature", temperature).log())

    def forward(
        self,
        latent: Latent,
        cost: Cost,
        *,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        """The cost of one sample, ``[*batch]``.

        Args:
            latent: any latent with a relaxation.
            cost: any cost.
            generator: where fresh noise comes from.
            noise: ``[*batch, *event]``.
            context: what the control sees beside the latent, ``[*batch, d]``.
        """
        self.require_support(latent)
        assert isinstance(latent, Factorised)
        noise = latent.draw_noise(generator=generator) if noise is None else noise
        perturbed = latent.perturb(noise).detach()
        z = latent.solve(perturbed).to(latent.scores.dtype)
        value = evaluate(cost, latent, z)
        if not (latent.scores.requires_grad and torch.is_grad_enabled()):
            return value
        observed = value.detach()
        perturbed.requires_grad_()
        relaxed = latent.relax(perturbed, self.log_temperature.exp()).to(latent.scores.dtype)
        inputs = features(latent, [relaxed, latent.mean().detach()], context)
        output = apply_network(self.control, inputs, latent.batch_shape)
        control = self.moments.location().to(observed) + self.moments.scale().to(observed) * output
        if self.relaxed_cost:
            # The network and the location then model what the relaxed cost leaves over.
            control = control + evaluate(cost, latent, relaxed) - self.moments.location().to(observed)
        gradient = controlled_gradient(latent, z, perturbed, observed, control)
        if self.training:
            if gradient.numel():
                second_moment = gradient.square().sum() / value.numel()
                value = attach_to_parameters(value, second_moment, self.parameters())
            self.moments.update(observed)
        return attach(value, latent.scores, gradient)

    def draw_noise(self, latent: Latent, *, generator: torch.Generator | None = None) -> Tensor:
        """The noise of one sample."""
        return latent.draw_noise(generator=generator)

    def cost_evaluations(self, latent: Latent) -> int:
        """The sample, and its relaxation where the control uses the cost."""
        return 2 if self.relaxed_cost else 1

    def supports(self, latent: Latent) -> bool:
        """Latents with a relaxation and conditional noise."""
        return is_factorised(latent)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"temperature={self.log_temperature.exp().item():.4g}, relaxed_cost={self.relaxed_cost}"
