r"""The direct gradient with its bias removed: exactly unbiased at every ε, with finite variance.

Let γ have density f, and let <w, z> be a linear stand-in for the cost whose weights w do not depend on γ. Write M(t) =
max_z {<h − t w + γ, z>} with arg max z(t), and z* = z(0). M is convex in t with slope −<w, z(t)>. The estimate is

.. math::
    g = \underbrace{\frac{z^* - z(\varepsilon)}{\varepsilon}}_{\text{direct}}
        + \underbrace{(\langle w, z^*\rangle - a)\, s(\gamma)}_{\text{what the secant missed}}
        + \underbrace{(c(z^*) - b - \langle w, z^*\rangle)\, s(\gamma)}_{\text{what is not linear}}, \qquad
    a = \frac{M(0) - M(\varepsilon)}{\varepsilon}, \quad s = -\nabla \log f,

with any number b that does not depend on γ. Gumbel noise has s = 1 − exp(−γ), logistic noise s = tanh(γ / 2). The
two-sided form has (z(−ε) − z(ε)) / 2ε and a = (M(−ε) − M(ε)) / 2ε.

**Theorem.** For every ε ≠ 0, every w and every cost, E[g] is the gradient of J(h) = E[c(z*)], and E‖g‖² is finite.

*Proof.* Let F(h) = E[a] and differentiate it in two ways. First, under the expectation: a maximum is a Lipschitz
function of h, almost surely differentiable because the noise has a density, and its derivative is its maximiser. So ∇F
= E[z* − z(ε)] / ε, the mean of the direct gradient. Second, a depends on h and γ only through t = h + γ, so F(h) = ∫
a(t) f(t − h) dt, and with the derivative moved to f, ∇F = E[a s(γ)]; it may be moved, as a lies between the least and
the largest <w, z> and ∇f is integrable. Hence *the direct gradient minus a s(γ) has mean zero*, at every ε. In the same
way J(h) = ∫ c(z(t)) f(t − h) dt gives ∇J = E[c(z*) s(γ)], and E[b s(γ)] = b E[s] = 0. The three terms of g are (direct
− a s) + (c(z*) − b) s, of mean ∇J. There are finitely many structures, so all that multiplies s is bounded, and so is
direct; E[s²] is 1 for each Gumbel and 1/3 for each logistic noise. ∎

**What the terms do.** As long as the arg max stays where it is, a = <w, z*> and the second term is exactly zero: it
only ever corrects a move, by 0 ≤ <w, z*> − a ≤ <w, z* − z(ε)> (one-sided, ε > 0). It needs no evaluation of the cost,
and no solver call beyond those of direct: the value of a maximum is the score of its maximiser. The third term is zero
where the stand-in is the cost itself. So ε no longer trades bias for variance. As ε → 0 the variance grows as 1/ε, as
Direct's does; as ε → ∞ g becomes (c(z*) − min c) s(γ), REINFORCE on the noise. In between lies a best ε, about one over
the spread of w. ``epsilon="auto"`` takes it from w, which the theorem allows, for each variable or example by itself:
nothing has to be remembered.

**Independent variables: no third term.** Take the theorem for variable i with the noise of all others fixed. The costs
w_i(v) = c(z* with z_i = v) do not depend on γ_i, and as a function of variable i alone they *are* the cost. So w is the
table of single changes around z* itself, as in Direct and at its price, and each variable has its own a and s. With m
random variables (``changes=m``), those count n / m times. For a categorical variable, the noise of values that are none
of the arg maxes is Gumbel below known bounds β, given the rest, and the mean of its s is −exp(−β), which replaces it.
More ``draws`` average over more noise of variable i, w as it is: solver calls only. Over all noise the average is
Cov(z_i) w_i, the estimate of :class:`argrad.LocalExpectation`, which has less variance at the same price. (All other
``changes`` go the way of structures, below, with s in the third term replaced by its mean given z*, which is z* −
E[z].)

**Structures: where it is needed.** Under ``law="perturb"`` there is no log-probability for REINFORCE, and direct has a
bias of its own from linearising the cost around z*. The theorem removes both, given an exact solver and noise on every
score that is trained. (With pairwise scores, M and a hold score(z) + <γ, z> in place of <h + γ, z>; the proof for the
unary scores is the same.) Here w must not depend on γ: it comes from another sample z', by its single changes
(``"single"``, m), by a function of yours, or by the cost's gradient at E[z], or at the mean of a few other samples
(``"gradient"``); b is what makes the stand-in agree with the cost there. ``changes=0`` has w = 0 and b = c(z'),
REINFORCE on the noise. Under ``law="gibbs"`` the first two terms are replaced by their limit, whose mean is known, and
s by ∇ log q:

.. math:: g = \nabla \langle w, E[z]\rangle + (c(z^*) - b - \langle w, z^*\rangle)\, \nabla \log q(z^*),

unbiased because E[b ∇ log q] = 0 and E[<w, z> ∇ log q] = ∇<w, E[z]>, for all parameters of the score.

**What does not work**: telescoping over ε_j = ε 2^{−j} with a random level J = j of probability p_j. The difference of
the direct gradients at ε_j and ε_{j+1} with the same noise has a second moment of order 1/ε_j ~ 2^j (a move of
probability ~ ε_j and size 1/ε_j), so finite variance needs Σ_j 2^j / p_j < ∞ while Σ_j p_j = 1: impossible.

References: the direct gradient is that of Lorberbom, Gane, Jaakkola & Hazan, 2019, "Direct optimization through arg max
for discrete variational auto-encoder", whose outlook asks for an unbiased form; moving a derivative to the density of
the noise is used by Berthet et al., 2020, "Learning with differentiable perturbed optimizers". Putting them together
through the two derivatives of F is argrad's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeGuard, final

import torch
from torch import Tensor

from argrad.costs import Cost, evaluate, has_table, possible_changes_only, possible_only, single_changes, table
from argrad.estimators.base import Estimator, Noise, attach, is_factorised
from argrad.estimators.noise_score import noise_score, read
from argrad.latents import Bits, Categorical, Chain, Factorised, Latent, Structured, Variables

__all__ = ["DebiasedDirect"]

CENTRE_SAMPLES = 8
"""Samples whose mean stands in for E[z] where it is not known."""


@final
class DebiasedDirect(Estimator):
    """Direct plus a correction that makes it unbiased for every ε. The cost is a black box unless "gradient".

    Args:
        epsilon: a number other than 0, or "auto": one over the spread of the weights, for each example by itself.
        two_sided: use z(−ε) − z(ε), which has half the variance for one more call of the solver.
        changes: where the weights come from: "single" for all single changes, a number m for those of m random
            variables, "gradient" for the cost's derivative, or your own function of a sample that returns weights of
            the same shape. 0 is REINFORCE on the noise, for any structure and any cost.
        draws: noises over which all but the cost of the sample is averaged.

    >>> from argrad import Categorical, TableCost
    >>> logits = torch.zeros(4, 3, requires_grad=True)
    >>> loss = DebiasedDirect()(Categorical(logits), TableCost(torch.tensor([1.0, 2.0, 3.0])))
    >>> loss.shape
    torch.Size([4])
    """

    unbiased = True
    epsilon: Tensor

    def __init__(
        self,
        epsilon: float | Literal["auto"] = "auto",
        *,
        two_sided: bool = True,
        changes: Literal["single", "gradient"] | int | Callable[[Tensor], Tensor] = "single",
        draws: int = 1,
    ) -> None:
        super().__init__()
        if isinstance(epsilon, str) and epsilon != "auto":
            raise ValueError(f'epsilon must be a number or "auto", got {epsilon!r}')
        if not isinstance(epsilon, str) and (epsilon == 0 or not math.isfinite(epsilon)):
            raise ValueError(f"epsilon must be finite and not 0, got {epsilon}; use epsilon='auto'")
        known = changes in ("single", "gradient") or callable(changes)
        if not known and (not isinstance(changes, int) or changes < 0):
            raise ValueError(
                f'changes must be "single", "gradient", a number of variables >= 0 or a function of z, got {changes!r}'
            )
        if draws < 1 or draws != int(draws):
            raise ValueError(f"DebiasedDirect needs at least one draw, and a whole number of them, got draws={draws}")
        self.auto = epsilon == "auto"
        self.two_sided = two_sided
        self.changes = changes
        self.draws = draws
        self.needs_cost_gradient = changes == "gradient"
        self.register_buffer("epsilon", torch.tensor(1.0 if isinstance(epsilon, str) else float(epsilon)))

    def forward(
        self,
        latent: Latent,
        cost: Cost,
        *,
        generator: torch.Generator | None = None,
        noise: Noise | None = None,
    ) -> Tensor:
        """The cost of z*, ``[*batch]``.

        Args:
            latent: independent variables, or structures that are sampled exactly or whose noise reaches all scores.
            cost: any cost.
            generator: where fresh noise comes from.
            noise: from :meth:`draw_noise`.
        """
        if isinstance(latent, Structured) and not self._has_weights(latent):
            raise ValueError(
                f"DebiasedDirect does not support {latent!r}: a single change leaves the set of structures; use "
                'changes="gradient", changes=function, a function of z that returns weights, or changes=0'
            )
        if isinstance(latent, Structured) and not self.supports(latent):
            raise ValueError(
                f"DebiasedDirect does not support {latent!r} where scores without noise require grad: only law='gibbs' "
                "gives them an unbiased gradient; detach them, or use Direct"
            )
        self.require_support(latent)
        draw, choice = self._split(latent, self.draw_noise(latent, generator=generator) if noise is None else noise)
        draws = self._draws(latent)
        z = latent.sample(noise=draw[0])
        if not (torch.is_grad_enabled() and latent.requires_grad):
            return evaluate(cost, latent, z)
        if self._one_at_a_time(latent):
            value, weights, share = self._around_sample(latent, cost, z, choice)
            gradient, _ = self._move(latent, weights, draw[:draws])
            return attach(value, latent.scores, gradient * share, known_finite=latent.known_finite)
        level, weights, centre = self._around_centre(latent, cost, draw[draws:], choice)
        value = evaluate(cost, latent, z)
        left_over = value.detach() - level - total(latent, weights * (z - centre))
        if isinstance(latent, Structured) and latent.law == "gibbs":
            surrogate = total(latent, weights * latent.mean()) + left_over * latent.log_prob(z)
            return value + (surrogate - surrogate.detach())
        gradient, slope = self._move(latent, weights, draw[:draws])
        if is_factorised(latent):
            slope = latent.score_gradient(z)
        gradient = gradient + left_over.reshape(left_over.shape + (1,) * latent.event_dims) * slope
        return attach(value, latent.scores, gradient, known_finite=latent.known_finite)

    def draw_noise(self, latent: Latent, *, generator: torch.Generator | None = None) -> Noise:
        """``[draws + others, *noise_shape]``, z* first; with ``changes=m`` also m uniform numbers per example."""
        noise = latent.draw_noise((self._draws(latent) + self._others(latent),), generator=generator)
        if not isinstance(self.changes, int):
            return noise
        shape = (self.changes, *latent.batch_shape)
        return noise, torch.rand(shape, dtype=noise.dtype, device=noise.device, generator=generator)

    def cost_evaluations(self, latent: Latent) -> int:
        """The sample and what is tried around it, or around another."""
        if not isinstance(latent, Variables) or not (self.changes == "single" or isinstance(self.changes, int)):
            return 2
        tried = self.changes * (latent.values - 1) if isinstance(self.changes, int) else latent.num_changes
        return tried + (1 if self._one_at_a_time(latent) else 2)

    def supports(self, latent: Latent) -> bool:
        """Independent variables; structures that are sampled exactly, or whose noise reaches all that is trained."""
        if is_factorised(latent):
            return True
        if not isinstance(latent, Structured) or not self._has_weights(latent):
            return False
        return latent.law == "gibbs" or not any(other.requires_grad for other in latent.parameters[1:])

    def _has_weights(self, latent: Latent) -> bool:
        """Whether weights can be had: single changes need variables that can be changed one by one."""
        return isinstance(latent, Variables) or self.changes in ("gradient", 0) or callable(self.changes)

    def _one_at_a_time(self, latent: Latent) -> TypeGuard[Factorised]:
        """Whether each variable's costs, the others as in z*, are independent of the variable's own noise."""
        tries = self.changes == "single" or (isinstance(self.changes, int) and self.changes > 0)
        return is_factorised(latent) and tries

    def _draws(self, latent: Latent) -> int:
        """Noises that are averaged; exact sampling has nothing to average."""
        return self.draws if is_factorised(latent) or latent.law == "perturb" else 1

    def _others(self, latent: Latent) -> int:
        """Samples beside z* around which the cost is linearised."""
        if self.changes == "gradient":
            return CENTRE_SAMPLES if not is_factorised(latent) and latent.law == "perturb" else 0
        return 0 if self._one_at_a_time(latent) else 1

    def _split(self, latent: Latent, noise: Noise) -> tuple[Tensor, Tensor | None]:
        """The samples' noise, and what chooses the random changes."""
        draw, choice = noise if isinstance(noise, tuple) and len(noise) == 2 else (noise, None)
        if (
            not isinstance(draw, Tensor)
            or (choice is None) == isinstance(self.changes, int)
            or draw.shape != (self._draws(latent) + self._others(latent), *latent.noise_shape)
        ):
            raise ValueError(f"{self!r} needs the noise that its own draw_noise(latent) returns")
        return draw, choice

    def _around_sample(
        self, latent: Factorised, cost: Cost, z: Tensor, choice: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | float]:
        """The cost of z*, of every change of it relative to that, and how often each variable counts."""
        if choice is None and has_table(cost, latent):
            costs = possible_only(table(cost, latent), latent)
            value = (costs * z).sum(-1)
            return value, costs.detach() - value.detach().unsqueeze(-1), 1.0
        value = evaluate(cost, latent, z)
        if choice is None:
            return value, all_changes(latent, cost, z, value.detach()), 1.0
        weights, times = random_changes(latent, cost, z, value.detach(), choice)
        return value, weights, times * (latent.variables / len(choice))

    def _around_centre(
        self, latent: Latent, cost: Cost, noise: Tensor, choice: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """c(centre), weights and centre, all independent of z*, with c(z) ≈ c(centre) + <weights, z − centre>."""
        if self.changes == "gradient":
            centre = latent.sample(noise=noise).mean(0) if len(noise) else latent.mean().detach()
            return *cost_gradient(latent, cost, centre), centre
        centre = latent.sample(noise=noise[0])
        with torch.no_grad():
            level = evaluate(cost, latent, centre)
        if self.changes == 0:
            return level, torch.zeros_like(centre), centre
        if callable(self.changes):
            return level, self._given_weights(self.changes, centre), centre
        assert isinstance(latent, Variables)
        if choice is None:
            return level, all_changes(latent, cost, centre, level), centre
        return level, random_changes(latent, cost, centre, level, choice)[0], centre

    @staticmethod
    def _given_weights(function: Callable[[Tensor], Tensor], centre: Tensor) -> Tensor:
        """What the user's function says, its shape checked."""
        weights = function(centre)
        if not isinstance(weights, Tensor) or weights.shape != centre.shape:
            given = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
            raise ValueError(f"changes=function must return weights of shape {tuple(centre.shape)}, got {given}")
        return weights.detach()

    @torch.no_grad()
    def _move(self, latent: Latent, weights: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Direct and what its secant missed, averaged over the draws; and s(γ) of the first draw."""
        scores = latent.scores.detach()
        epsilon = automatic_epsilon(latent, weights) if self.auto else self.epsilon
        perturbed = scores + noise
        shift = epsilon * weights
        z = latent.solve(perturbed)
        better = latent.solve(perturbed - shift)
        worse = latent.solve(perturbed + shift) if self.two_sided else z
        width = 2 * epsilon if self.two_sided else epsilon
        middle = (better + worse) / 2 if self.two_sided else better
        step = worse - better
        slope = noise_score(latent, noise)
        if not is_factorised(latent):
            ahead = latent.score(worse) - latent.score(better) + total(latent, noise * step)
            missed = total(latent, weights * (z - middle)).reshape(ahead.shape + (1,) * latent.event_dims)
            missed = missed - ahead.reshape(missed.shape) / width
        else:
            missed = weights * (z - middle) - torch.where(step != 0, perturbed * step, 0.0) / width
        if isinstance(latent, Categorical):
            missed = missed.sum(-1, keepdim=True)
            below = torch.minimum(perturbed.amax(-1, keepdim=True), (perturbed - shift).amax(-1, keepdim=True) + shift)
            if self.two_sided:
                below = torch.minimum(below, (perturbed + shift).amax(-1, keepdim=True) - shift)
            slope = torch.where(z + better + worse > 0, slope, -torch.exp(scores - below))
        gradient = (step / width + missed * slope).mean(0)
        return gradient, slope[0]

    def extra_repr(self) -> str:
        """The settings, for printing."""
        epsilon = '"auto"' if self.auto else f"{self.epsilon.item():.4g}"
        changes = getattr(self.changes, "__name__", "function") if callable(self.changes) else self.changes
        return f"epsilon={epsilon}, two_sided={self.two_sided}, changes={changes!r}, draws={self.draws}"


def all_changes(latent: Variables, cost: Cost, z: Tensor, value: Tensor) -> Tensor:
    """Weights from every single change of z."""
    costs = single_changes(cost, latent, z, value)
    changes = costs - value.reshape(value.shape + (1,) * (costs.dim() - value.dim()))
    return possible_changes_only(latent.linear(changes), latent, z)


@torch.no_grad()
def random_changes(latent: Variables, cost: Cost, z: Tensor, value: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
    """Weights from all changes of the variables that uniform numbers choose, and how often each was chosen.

    Both are 0 for the coordinates of other variables.
    """
    others = latent.values - 1
    if others == 0:
        return torch.zeros_like(z), torch.zeros_like(z)
    variable = (choice * latent.variables).long().clamp_max(latent.variables - 1)
    which = variable.unsqueeze(1) * others + torch.arange(others, device=z.device).reshape(-1, *[1] * value.dim())
    changed = latent.change(z, which.flatten(0, 1))
    gain = evaluate(cost, latent, changed) - value
    event = (1,) * latent.event_dims
    if not latent.known_finite:
        taken = (changed > 0) & (latent.scores == -torch.inf)
        gain = gain.masked_fill(taken.any(tuple(range(-latent.event_dims, 0))), 0.0)
    if isinstance(latent, Chain):
        gain = gain.masked_fill((latent.score(changed) == -torch.inf) & ~gain.isfinite(), 0.0)
    step = changed - z
    if isinstance(latent, Categorical | Chain):
        step = step.clamp_min(0)  # the weight goes to the new value
    # A variable that was chosen twice has the same weights twice.
    twice = (variable.unsqueeze(0) == variable.unsqueeze(1)).sum(0)
    gain = gain.unflatten(0, (len(choice), others)) / twice.unsqueeze(1)
    weights = (gain.reshape(gain.shape + event) * step.unflatten(0, gain.shape[:2])).sum((0, 1))
    here = variable.unsqueeze(-1) == torch.arange(latent.variables, device=z.device)
    times = here.sum(0).to(z.dtype)
    return weights, times.unsqueeze(-1) if latent.event_dims == 2 else times


def cost_gradient(latent: Latent, cost: Cost, z: Tensor) -> tuple[Tensor, Tensor]:
    """The cost of z, detached, and its derivative there; the cost's own parameters get nothing."""
    z = z.detach().requires_grad_()
    value = evaluate(cost, latent, z)
    weights = None
    if value.requires_grad:
        (weights,) = torch.autograd.grad(value.sum(), z, allow_unused=True)
    if weights is None:
        raise ValueError('changes="gradient" needs a cost that is differentiable in z; use changes="single"')
    return value.detach(), weights


def automatic_epsilon(latent: Latent, weights: Tensor) -> Tensor:
    """One over the spread of the weights, for each variable or structure, broadcasting against the scores.

    Independent of the noise, of the unit of the cost and of other examples.
    """
    possible = read(latent)
    if isinstance(latent, Bits):
        spread = weights.abs() / 2
    else:
        event = (-1,) if isinstance(latent, Categorical) else tuple(range(-latent.event_dims, 0))
        count = possible.sum(event, keepdim=True).clamp_min(1)
        mean = torch.where(possible, weights, 0.0).sum(event, keepdim=True) / count
        squares = torch.where(possible, (weights - mean).square(), 0.0).sum(event, keepdim=True)
        spread = (squares / count).sqrt() if isinstance(latent, Categorical) else squares.sqrt()
    return torch.where(spread > 0, 1 / spread, 1.0)


def total(latent: Latent, per_coordinate: Tensor) -> Tensor:
    """The sum over the event dimensions."""
    return per_coordinate.sum(tuple(range(-latent.event_dims, 0)))
