r"""REBAR: REINFORCE with the relaxed cost as control variate, its mean added back through the re-parameterisation.

Let t = h + γ be the perturbed scores, z their arg max, t̃ perturbed scores drawn *given* z, and :math:`k(t) =
c(\mathrm{softmax}(t/\tau))` the relaxed cost. Then

.. math:: g = [c(z) - \eta\,k(\tilde t)]\,\nabla_h \log q(z) + \eta\,\nabla_h k(t) - \eta\,\nabla_h k(\tilde t)

is unbiased for any η and τ: :math:`\nabla_h E[k(t)] = E_z[E[k(\tilde t)|z]\,\nabla\log q(z) + \nabla_h E[k(\tilde
t)|z]]`, so what is subtracted in the first term and the last is what the second adds. They are learnt by descending
E[g²], which since E[g] is fixed descends the variance.

As in the original, t̃ shares its noise with t: given z, t is itself a draw from that law, so t̃ = t in value, and only
the two *paths* from h differ. Their difference has a closed form
(:meth:`argrad.latents.Factorised.outcome_path_gradient`), so the control costs one relaxed evaluation and its gradient,
not two.

Reference: Tucker, Mnih, Maddison, Lawson & Sohl-Dickstein, 2017, "REBAR: low-variance, unbiased gradient estimates for
discrete latent variable models".
"""

from typing import final

import torch
from torch import Tensor, nn

from argrad.costs import Cost, evaluate
from argrad.estimators.base import Estimator, attach, attach_to_parameters, is_factorised, positive_buffer
from argrad.latents import Factorised, Latent

__all__ = ["Rebar", "controlled_gradient"]


def controlled_gradient(latent: Factorised, z: Tensor, perturbed: Tensor, value: Tensor, control: Tensor) -> Tensor:
    """The gradient estimate ``[*batch, *event]`` with control k(t), differentiable in the control's own parameters.

    Args:
        latent: the distribution.
        z: the sample, the arg max of ``perturbed``.
        perturbed: t, ``[*batch, *event]``, requiring grad.
        value: c(z), ``[*batch]``, detached.
        control: k(t), ``[*batch]``, a function of ``perturbed``.
    """
    (slope,) = torch.autograd.grad(control.sum(), perturbed, create_graph=True, allow_unused=True)
    if slope is None:
        raise ValueError(
            "the control does not depend differentiably on z; use an estimator that needs no derivative of the cost, "
            "such as Direct, Reinforce or Relax()"
        )
    weight = (value - control).reshape(value.shape + (1,) * latent.event_dims)
    return weight * latent.score_gradient(z) + latent.outcome_path_gradient(z, perturbed.detach(), slope)


@final
class Rebar(Estimator):
    """Unbiased; needs a differentiable cost. Pass ``parameters()`` to your optimiser: η and τ learn from the variance.

    Args:
        temperature: the first τ > 0.
        eta: the first strength of the control.

    >>> from argrad import Categorical
    >>> logits = torch.zeros(4, 3, requires_grad=True)
    >>> Rebar()(Categorical(logits), lambda z: z[..., 0].square()).shape
    torch.Size([4])
    """

    unbiased = True
    needs_cost_gradient = True

    def __init__(self, temperature: float = 0.5, *, eta: float = 1.0) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(positive_buffer("temperature", temperature).log())
        self.eta = nn.Parameter(torch.tensor(float(eta)))

    def forward(
        self,
        latent: Latent,
        cost: Cost,
        *,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """The cost of one sample, ``[*batch]``."""
        self.require_support(latent)
        assert isinstance(latent, Factorised)
        noise = latent.draw_noise(generator=generator) if noise is None else noise
        perturbed = latent.perturb(noise).detach()
        z = latent.solve(perturbed).to(latent.scores.dtype)
        value = evaluate(cost, latent, z)
        if not (latent.scores.requires_grad and torch.is_grad_enabled()):
            return value
        perturbed.requires_grad_()
        relaxed = latent.relax(perturbed, self.log_temperature.exp()).to(latent.scores.dtype)
        control = self.eta * evaluate(cost, latent, relaxed)
        gradient = controlled_gradient(latent, z, perturbed, value.detach(), control)
        if self.training and gradient.numel():
            second_moment = gradient.square().sum() / value.numel()
            value = attach_to_parameters(value, second_moment, [self.log_temperature, self.eta])
        return attach(value, latent.scores, gradient)

    def draw_noise(self, latent: Latent, *, generator: torch.Generator | None = None) -> Tensor:
        """The noise of one sample."""
        return latent.draw_noise(generator=generator)

    def cost_evaluations(self, latent: Latent) -> int:
        """The sample and its relaxation."""
        return 2

    def supports(self, latent: Latent) -> bool:
        """Latents with a relaxation and conditional noise."""
        return is_factorised(latent)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"temperature={self.log_temperature.exp().item():.4g}, eta={self.eta.item():.4g}"
