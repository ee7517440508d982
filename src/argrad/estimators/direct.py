r"""Direct optimisation through arg max.

With z* = arg max {h + γ} and z(ε) = arg max {h − ε c + γ} for the *same* noise γ,

.. math:: \nabla_h E_\gamma[c(z^*)] = \lim_{\varepsilon \to 0} \frac1\varepsilon E_\gamma[z^* - z(\varepsilon)],

because both sides are a mixed second derivative of :math:`G(h, \varepsilon) = E_\gamma[\max_z \{h(z) - \varepsilon c(z)
+ \gamma(z)\}]`: the derivative of a maximum is its maximiser, :math:`\partial_h G = E[z(\varepsilon)]` and
:math:`\partial_\varepsilon G = -E[c(z(\varepsilon))]`, and the order of differentiation does not matter.

**Bias.** For one categorical variable G = log Σ exp(h − ε c) up to a constant, so at any ε ≠ 0 the expectation of the
estimate is

.. math:: (\mathrm{softmax}(h) - \mathrm{softmax}(h - \varepsilon c)) / \varepsilon,

the gradient of :math:`-\frac1\varepsilon \log E_q[e^{-\varepsilon c}] = E_q[c] - \frac\varepsilon2 \mathrm{Var}_q[c] +
O(\varepsilon^2)`: positive ε rewards spread of the cost under q, negative ε punishes it, and the two-sided difference
(z(−ε) − z(ε)) / 2ε cancels the first order. **Variance.** An estimate is zero unless the arg max moves, and of size 1/ε
when it does, which happens with probability proportional to ε: the variance grows as 1/ε. So ε has to match the spread
of the cost under q, and ``epsilon="auto"`` measures it (:meth:`Direct.adapt`).

**Several variables.** c(z) for every structure is out of reach, so around z* it is replaced by a sum over variables,
c(z*) + Σ_i [c(z* with z_i = v) − c(z*)] (``changes="single"``), by its gradient (``changes="gradient"``), or by m
random single changes (``changes=m``), each of which may move on its own and counts 1 / (m · its probability) times.

**Structured latents.** The cost is replaced by c(z*) + <w, z − z*> in the same ways, and z(ε) is the sample of the
latent with scores h − ε w *for the same noise*. The estimate is the difference of two gradients of the score,
(∇score(z*) − ∇score(z(ε))) / ε: for the scores h that is (z* − z(ε)) / ε, and pairwise and transition scores have
theirs too.

- Under ``law="perturb"`` this is the paper's re-solve. The derivation above holds for :math:`G(\theta, \varepsilon) =
  E_\gamma[\max_z \{\mathrm{score}_\theta(z) - \varepsilon c(z) + \langle\gamma, z\rangle\}]`, whose derivatives are
  :math:`E[\nabla_\theta \mathrm{score}(z(\varepsilon))]` and :math:`-E[c(z(\varepsilon))]`.
- Under ``law="gibbs"`` it is the difference of two exact samplers with common random numbers. Each has its own law
  whatever the other does, so for a *linear* cost, whose w is the same everywhere, and with m(h) = E[z], the
  expectation is :math:`(m(h) - m(h - \varepsilon w)) / \varepsilon` at every ε. Since m = ∇ log Z, its Jacobian is the
  covariance of z, and the limit is :math:`\mathrm{Cov}(z)\,w = \nabla_h E[\langle w, z\rangle]`, the exact gradient;
  with ∇score in place of z the same holds for pairwise and transition scores. Which noise the samplers share decides
  the variance, and not the expectation.
- For a cost that is not linear, w is found around z*, while near ties (all that counts as ε → 0) may lie between
  structures that differ in many places: then a bias stays at any ε. ``changes="all"`` has none of that: for
  :class:`argrad.PairwiseBits` under ``law="gibbs"`` every structure moves by its own cost, and what is said above of
  one categorical variable holds for the expectation.

**Sequences.** At every step the other symbols are followed by sequences that go on with the same noise
(:mod:`argrad.latents.sequence`); then each step is one categorical variable.

Where one part of a structure cannot be changed on its own (subsets, permutations, trees) there are no single changes:
take ``changes="gradient"``, or give a function of z* that returns w.

Reference: Lorberbom, Gane, Jaakkola & Hazan, 2019, "Direct optimization through arg max for discrete variational
auto-encoder". McAllester, Hazan & Keshet, 2010, "Direct loss minimization for structured prediction", is the case
without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, final

import torch
from torch import Tensor

from argrad.costs import (
    Cost,
    all_costs,
    evaluate,
    has_table,
    possible_changes_only,
    possible_only,
    single_changes,
    table,
)
from argrad.estimators.base import Estimator, Noise, along_a_sample, attach, attach_difference
from argrad.latents import MAX_STATES, Categorical, Factorised, Latent, PairwiseBits, Variables
from argrad.latents import Sequence as SequenceLatent
from argrad.latents.base import can_read_values, cheaply_known_finite

__all__ = ["Direct"]

ADAPTATION_RATE = 0.1
"""How far log ε moves towards its target in one step."""
ANYWHERE = 0.1
"""The share of random changes that are chosen evenly among all."""


@final
class Direct(Estimator):
    """The difference of two arg maxes, divided by ε. Treats the cost as a black box unless ``changes="gradient"``.

    Args:
        epsilon: a number other than 0, negative ones allowed, or "auto" to adapt it to the spread of the cost (start
            with "auto"). A tensor that broadcasts to ``[*batch]`` gives examples their own.
        two_sided: use z(−ε) − z(ε) over 2ε, whose bias is of second order in ε.
        changes: how the cost is approximated around z* when there are several variables: "single", "gradient", a
            number m of single changes, drawn at random from those that are likely to matter, or your own function of z*
            that returns weights w of the same shape, for a cost that is about <w, z> plus a constant. "all" is no
            approximation: it uses the cost of every structure, where a sample is drawn from the scores of all of them
            (PairwiseBits with law="gibbs").
        noise: False is classic direct loss minimisation: z* is the mode.
        target: a structure to put in place of z(ε), or class indices; also accepted in the call. In expectation the
            gradient is then that of the cross-entropy of the target, over ε.
        averaging: with "auto", over how many draws the user's batches and optimiser average; ε falls with its cube
            root.

    >>> from argrad import Categorical, TableCost
    >>> logits = torch.zeros(4, 3, requires_grad=True)
    >>> loss = Direct(epsilon=0.5)(Categorical(logits), TableCost(torch.tensor([1.0, 2.0, 3.0])))
    >>> loss.shape
    torch.Size([4])
    """

    unbiased = False
    epsilon: Tensor
    adaptations: Tensor

    def __init__(
        self,
        epsilon: float | Tensor | Literal["auto"] = 0.1,
        *,
        two_sided: bool = False,
        changes: Literal["single", "gradient", "all"] | int | Callable[[Tensor], Tensor] = "single",
        noise: bool = True,
        target: Tensor | None = None,
        averaging: float = 100.0,
    ) -> None:
        super().__init__()
        if isinstance(epsilon, str) and epsilon != "auto":
            raise ValueError(f'epsilon must be a number or "auto", got {epsilon!r}')
        numbers = torch.as_tensor(1.0 if isinstance(epsilon, str) else epsilon, dtype=torch.get_default_dtype())
        if can_read_values(numbers) and not bool(((numbers != 0) & numbers.isfinite()).all()):
            raise ValueError(
                f"epsilon must be finite and not 0, got {epsilon}; 0.1 is a common start, or use epsilon='auto'"
            )
        known = changes in ("single", "gradient", "all") or callable(changes)
        if not known and (not isinstance(changes, int) or changes < 1):
            raise ValueError(
                f'changes must be "single", "gradient", "all", a number of random changes >= 1 or a function of z, '
                f"got {changes!r}"
            )
        if target is not None and two_sided:
            raise ValueError("a target replaces z(ε) on one side; use two_sided=False with it")
        if not averaging > 0:
            raise ValueError(f"averaging must be a positive number of draws, got {averaging}")
        self.auto = epsilon == "auto"
        self.two_sided = two_sided
        self.changes = changes
        self.noise = noise
        self.target = target
        self.averaging = averaging
        self.needs_cost_gradient = changes == "gradient"
        self.register_buffer("epsilon", numbers.detach().clone())
        self.register_buffer("adaptations", torch.tensor(0, dtype=torch.int64))

    def forward(
        self,
        latent: Latent,
        cost: Cost,
        *,
        generator: torch.Generator | None = None,
        noise: Noise | Literal[False] | None = None,
        target: Tensor | None = None,
    ) -> Tensor:
        """The cost of z*, ``[*batch]``.

        Args:
            latent: any latent; see the module about structured ones.
            cost: any cost.
            generator: where fresh noise comes from.
            noise: from :meth:`draw_noise`; False for none.
            target: a structure ``[*batch, *event]``, or class indices, to put in place of z(ε).
        """
        if isinstance(latent, Latent) and (reason := self._why_not(latent)):
            raise ValueError(f"Direct does not support {latent!r}: {reason}")
        self.require_support(latent)
        target = self.target if target is None else target
        noise = False if noise is None and not self.noise else noise
        if isinstance(latent, SequenceLatent):
            if noise is None:
                noise = self.draw_noise(latent, generator=generator)
            symbols = (
                torch.zeros_like(latent.scores) if noise is False else noise[0] if isinstance(noise, tuple) else noise
            )
            latent, cost = along_a_sample(latent, cost, symbols)
        if not isinstance(latent, Factorised):
            return self._on_structure(latent, cost, noise, generator, target)
        perturbed, choice = self._perturb(latent, noise, generator)
        z = latent.solve(perturbed).to(latent.scores.dtype)
        if not (latent.scores.requires_grad and torch.is_grad_enabled()):
            return evaluate(cost, latent, z)
        epsilon = self._epsilon_for(latent.event_dims)
        if target is not None:
            if self.two_sided:
                raise ValueError("a target replaces z(ε) on one side; use two_sided=False with it")
            gradient = (z - self._as_structure(latent, target)) / epsilon
            return attach(evaluate(cost, latent, z), latent.scores, gradient)
        if choice is not None:
            return self._random_changes(latent, cost, z, perturbed, choice)
        value, weights = self._linearise(latent, cost, z)
        better = latent.solve(torch.addcmul(perturbed, weights, epsilon, value=-1))
        if self.two_sided:
            worse = latent.solve(torch.addcmul(perturbed, weights, epsilon))
            gradient = (worse - better) / (2 * epsilon)
        else:
            gradient = (z - better) / epsilon
        value = attach(value, latent.scores, gradient, known_finite=latent.known_finite)
        if self.auto and self.training:
            self.adapt(latent, weights)
        return value

    def _epsilon_for(self, event_dims: int) -> Tensor:
        """ε, shaped to broadcast against scores."""
        return self.epsilon if self.epsilon.dim() == 0 else self.epsilon.reshape(self.epsilon.shape + (1,) * event_dims)

    def draw_noise(self, latent: Latent, *, generator: torch.Generator | None = None) -> Noise:
        """The latent's noise; with ``changes=m`` also m uniform numbers per example, which choose the changes."""
        noise = latent.draw_noise(generator=generator)
        if not isinstance(self.changes, int):
            return noise
        shape = (self.changes, *latent.batch_shape)
        return noise, torch.rand(shape, dtype=noise.dtype, device=noise.device, generator=generator)

    def cost_evaluations(self, latent: Latent) -> int:
        """z* and its approximation around it."""
        if self.changes == "gradient" or callable(self.changes):
            return 1
        if self.changes == "all":
            return latent.num_states
        if isinstance(self.changes, int):
            return 1 + self.changes
        if isinstance(latent, SequenceLatent):
            return 1 + latent.length * (latent.values - 1)
        return 1 + changeable(latent).num_changes

    def supports(self, latent: Latent) -> bool:
        """Every latent, if ``changes`` and ``epsilon`` suit it."""
        return self._why_not(latent) is None

    def _why_not(self, latent: Latent) -> str | None:
        """What about the settings does not suit the latent, and what does."""
        if self.changes == "all" and not latent.is_one_of_k:
            if not isinstance(latent, PairwiseBits) or latent.law != "gibbs":
                return (
                    'changes="all" needs the scores of all structures, which PairwiseBits with law="gibbs" has; use '
                    'changes="gradient", or a function that returns weights'
                )
            if latent.num_states > MAX_STATES:
                return f'{latent.number_of_states()} structures are too many for changes="all"; use changes="single"'
        if isinstance(latent, SequenceLatent) and (self.changes == "gradient" or callable(self.changes)):
            return 'another symbol changes what comes after it; use changes="single" or a number of random changes'
        if isinstance(latent, Factorised | SequenceLatent):
            return None
        if self.changes == "single" and not isinstance(latent, Variables):
            return (
                'a single change leaves the set of structures; use changes="gradient", or changes=function, a function '
                "of z that returns weights w for a cost that is about <w, z>"
            )
        if isinstance(self.changes, int):
            return f'changes={self.changes} needs independent variables; use changes="single" or changes="gradient"'
        if self.auto:
            return (
                'epsilon="auto" knows its mean squared error for independent variables only; give a number, about one '
                "over the standard deviation of the cost"
            )
        return None

    @torch.no_grad()
    def adapt(self, latent: Factorised, weights: Tensor) -> None:
        r"""Move ε towards the value that minimises the mean squared error of the gradient.

        With the cost linearised as ``weights`` w, m(h) = E[z] and N = ``averaging``, everything needed is known in
        closed form: the expectation :math:`\hat g = (m(h) - m(h - \varepsilon w)) / \varepsilon`, the bias :math:`\hat
        g - \mathrm{Cov}(z) w`, and the second moment, which is :math:`\|\hat g\|_1 / \varepsilon` for bits and within a
        factor of two of it for categorical variables (each move of the arg max contributes its two ends). Near the
        optimum bias² grows as ε² (two-sided: ε⁴) and variance falls as 1/ε, so bias² + variance / N is least where 2
        bias² = variance / N (two-sided: 4 bias²), and the distance of log ε from there is the log of their ratio over 3
        (5).

        Called by ``forward`` in train mode, after the gradient of the step is fixed: ε never depends on the noise of
        its own step.
        """
        terms = adaptation_terms(latent, weights, self.epsilon, two_sided=self.two_sided)
        totals = self.sum_over_processes(torch.stack([term.sum() for term in terms]))
        closer, informative = closer_epsilon(
            self.epsilon, totals, self.adaptations == 0, two_sided=self.two_sided, averaging=self.averaging
        )
        self.epsilon.copy_(closer)
        self.adaptations.add_(informative)

    def _on_structure(
        self,
        latent: Latent,
        cost: Cost,
        noise: Noise | Literal[False] | None,
        generator: torch.Generator | None,
        target: Tensor | None,
    ) -> Tensor:
        """The same with two samples in place of two arg maxes."""
        if noise is None:
            noise = latent.draw_noise(generator=generator)
        elif noise is not False and (isinstance(noise, tuple) or noise.shape != latent.noise_shape):
            raise ValueError(f"Direct on {latent!r} needs the noise that its own draw_noise(latent) returns")
        draw = None if noise is False else noise

        def choose(latent: Latent) -> Tensor:
            return latent.mode() if draw is None else latent.sample(noise=draw)

        if not (torch.is_grad_enabled() and latent.requires_grad):
            return evaluate(cost, latent, choose(latent))
        if target is not None:
            if self.two_sided:
                raise ValueError("a target replaces z(ε) on one side; use two_sided=False with it")
            z, better = choose(latent), self._as_structure(latent, target)
            return attach_difference(evaluate(cost, latent, z), latent, z, better, 1 / self.epsilon)
        if self.changes == "all":
            assert isinstance(latent, PairwiseBits)
            z, value, better, worse = self._move_all(latent, cost, draw)
        else:
            z = choose(latent)
            value, weights = self._linearise(latent, cost, z)
            scores, epsilon = latent.scores.detach(), self._epsilon_for(latent.event_dims)
            better = choose(latent.with_scores(torch.addcmul(scores, weights, epsilon, value=-1)))
            worse = choose(latent.with_scores(torch.addcmul(scores, weights, epsilon))) if self.two_sided else z
        return attach_difference(
            value, latent, worse, better, (2 * self.epsilon if self.two_sided else self.epsilon).reciprocal()
        )

    def _move_all(
        self, latent: PairwiseBits, cost: Cost, noise: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """z*, its cost, z(ε) and, if there are two sides, z(−ε): every structure moves by its own cost."""
        costs = all_costs(cost, latent)
        scores = latent.scores_all().detach()
        if not cheaply_known_finite(scores):
            costs = costs.masked_fill(scores == -torch.inf, 0.0)
        z = latent.select_from_all(scores, noise)
        place = 2 ** torch.arange(latent.variables - 1, -1, -1, device=z.device)
        value = costs.gather(-1, (z.long() * place).sum(-1, keepdim=True)).squeeze(-1)
        step = self._epsilon_for(1) * (costs.detach() - value.detach().unsqueeze(-1))
        better = latent.select_from_all(scores - step, noise)
        return z, value, better, latent.select_from_all(scores + step, noise) if self.two_sided else z

    def _perturb(
        self, latent: Factorised, noise: Noise | Literal[False] | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor | None]:
        """Perturbed scores, and what chooses the random changes."""
        wants_choice = isinstance(self.changes, int)
        if noise is None or (noise is False and wants_choice):
            fresh = self.draw_noise(latent, generator=generator)
            noise = (torch.zeros_like(fresh[0]), fresh[1]) if noise is False else fresh
        if noise is False:
            return latent.scores.detach(), None
        if isinstance(noise, tuple) != wants_choice:
            raise ValueError(
                f"Direct(changes={self.changes!r}) needs the noise that its own draw_noise(latent) returns"
            )
        draw, choice = noise if isinstance(noise, tuple) else (noise, None)
        return latent.scores.detach() + latent.check_noise(draw), choice

    def _linearise(self, latent: Latent, cost: Cost, z: Tensor) -> tuple[Tensor, Tensor]:
        """The cost of z and weights w with c(z') ≈ constant + <w, z'>."""
        if callable(self.changes):
            value = evaluate(cost, latent, z)
            with torch.no_grad():
                weights = self.changes(z)
            if not isinstance(weights, Tensor) or not broadcasts_to(weights.shape, z.shape):
                given = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
                raise ValueError(f"changes(z) must return weights of the shape of z, {tuple(z.shape)}, got {given}")
            return value, weights.detach().to(z).expand_as(z)
        if self.changes == "gradient":
            z = z.detach().requires_grad_()
            value = evaluate(cost, latent, z)
            slope = None
            if value.requires_grad:
                (slope,) = torch.autograd.grad(value.sum(), z, retain_graph=True, allow_unused=True)
            if slope is None:
                raise ValueError('changes="gradient" needs a cost that is differentiable in z; use changes="single"')
            return value, slope
        # Costs are taken relative to that of z*: an offset of hundreds would swallow the noise in float32.
        if has_table(cost, latent):
            costs = possible_only(table(cost, latent), latent)
            value = (costs * z).sum(-1)
            return value, costs.detach() - value.detach().unsqueeze(-1)
        value = evaluate(cost, latent, z)
        changes = single_changes(cost, latent, z, value)
        changes = changes - value.detach().reshape(value.shape + (1,) * (changes.dim() - value.dim()))
        return value, possible_changes_only(changeable(latent).linear(changes), latent, z)

    def _random_changes(self, latent: Factorised, cost: Cost, z: Tensor, perturbed: Tensor, choice: Tensor) -> Tensor:
        """Let every chosen change move on its own: to first order in ε the full arg max is the sum of such moves.

        That sum is estimated by a few of its terms, each over its probability; a change is the more probable, the less
        it lags behind z*, since those that lag far behind move for no ε that is of use.
        """
        value = evaluate(cost, latent, z)
        number = latent.num_changes
        if number == 0:
            return attach(value, latent.scores, torch.zeros_like(z))
        with torch.no_grad():
            flat = perturbed.flatten(perturbed.dim() - latent.event_dims)
            chosen, probability = likely_changes(latent, z, perturbed, choice)
            which = latent.changes_at(z, chosen)
            places, values = latent.places_of_change(z, which)
            signs = 2 * values - 1
            behind = (flat.expand(*places.shape[:-1], flat.shape[-1]).gather(-1, places) * signs).sum(-1)
            gain = evaluate(cost, latent, latent.change(z, which)) - value
            if not latent.known_finite:
                gain = gain.masked_fill(behind == -torch.inf, 0.0)  # an impossible change moves at no ε

            def add_up(per_change: Tensor) -> Tensor:
                terms = (per_change.unsqueeze(-1) * signs).movedim(0, -2).flatten(-2).to(flat.dtype)
                return torch.zeros_like(flat).scatter_add(-1, places.movedim(0, -2).flatten(-2), terms).reshape(z.shape)

            better = (behind - self.epsilon * gain > 0).to(z.dtype)
            if self.two_sided:
                moves = ((behind + self.epsilon * gain > 0).to(z.dtype) - better) / (2 * self.epsilon)
            else:
                moves = -better / self.epsilon
            gradient = add_up(moves / (len(choice) * probability))
            if self.auto and self.training:
                index, ones = chosen.movedim(0, -1), torch.ones_like(gain).movedim(0, -1)
                times = torch.zeros_like(flat, dtype=gain.dtype).scatter_add(-1, index, ones).gather(-1, index)
                self.adapt(latent, add_up(gain / (signs.shape[-1] * times.movedim(-1, 0))))
        return attach(value, latent.scores, gradient)

    def _as_structure(self, latent: Latent, target: Tensor) -> Tensor:
        """Class indices as one-hot structures; structures as they are."""
        if (
            isinstance(latent, Categorical)
            and not target.is_floating_point()
            and target.shape == latent.scores.shape[:-1]
        ):
            if can_read_values(target) and bool(((target < 0) | (target >= latent.values)).any()):
                raise ValueError(f"target class indices must lie in 0 … {latent.values - 1}")
            return torch.zeros_like(latent.scores).scatter(-1, target.unsqueeze(-1), 1.0)
        if target.shape != latent.scores.shape:
            raise ValueError(
                f"target has shape {tuple(target.shape)}, but structures have {tuple(latent.scores.shape)}"
            )
        return target.to(latent.scores.dtype)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        numbers = f"{self.epsilon.item():.4g}" if self.epsilon.dim() == 0 else f"one of {tuple(self.epsilon.shape)}"
        epsilon = '"auto"' if self.auto else numbers
        return f"epsilon={epsilon}, two_sided={self.two_sided}, changes={self.changes!r}"


def changeable(latent: Latent) -> Variables:
    """The latent, known to have single changes."""
    assert isinstance(latent, Variables)
    return latent


def likely_changes(latent: Factorised, z: Tensor, perturbed: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
    """Changes that uniform numbers choose, as places in a structure, and their probabilities: both ``[m, *batch]``.

    The probability is that of a softmax of how little a change lags behind z*, in perturbed scores, mixed with
    :data:`ANYWHERE` of a uniform one.
    """
    if isinstance(latent, Categorical):
        possible = 1 - z.to(perturbed.dtype)
        closeness = (perturbed - perturbed.amax(-1, keepdim=True)).exp() * possible
    else:
        possible = torch.ones_like(perturbed)
        closeness = (-perturbed.abs()).exp()
    event = -latent.event_dims
    closeness, possible = closeness.flatten(event), possible.flatten(event)
    total = closeness.sum(-1, keepdim=True).clamp_min(torch.finfo(perturbed.dtype).tiny)
    share = torch.lerp(closeness / total, possible / latent.num_changes, ANYWHERE)
    precise = torch.float32 if share.device.type == "mps" else torch.float64  # shares of a millionth have to count
    up_to = share.cumsum(-1, dtype=precise)
    aim = choice.movedim(0, -1).to(precise) * up_to[..., -1:]
    chosen = torch.searchsorted(up_to, aim.contiguous(), right=True).clamp_max(share.shape[-1] - 1)
    return chosen.movedim(-1, 0), (share.gather(-1, chosen) / up_to[..., -1:].to(share.dtype)).movedim(-1, 0)


def broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether a shape broadcasts to another without changing it."""
    return len(shape) <= len(target) and all(
        a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False)
    )


def adaptation_terms(latent: Factorised, weights: Tensor, epsilon: Tensor, *, two_sided: bool) -> list[Tensor]:
    """What the adaptation of ε sums over a batch (see :meth:`Direct.adapt`), each ``[*batch, …]``.

    Squared bias, absolute and squared expectation of the estimate, and the squared variance and variance of each
    variable's cost; ``epsilon`` broadcasts against the scores.
    """
    mean, exact = latent.mean(), latent.gradient_of_mean(weights)
    ahead = latent.with_scores(latent.scores - epsilon * weights).mean()
    behind = latent.with_scores(latent.scores + epsilon * weights).mean() if two_sided else mean
    expected = (behind - ahead) / (2 * epsilon if two_sided else epsilon)
    variance = (weights * exact).sum(-1) if isinstance(latent, Categorical) else weights * exact
    return [(expected - exact).square(), expected.abs(), expected.square(), variance.square(), variance]


def closer_epsilon(
    epsilon: Tensor, totals: Tensor, first: Tensor, *, two_sided: bool, averaging: float
) -> tuple[Tensor, Tensor]:
    """A better ε from the summed terms ``[5, …]``, and whether they said anything: costs that do not vary do not."""
    width, order = (2 * epsilon, 4) if two_sided else (epsilon, 2)
    variance = (totals[1] / width - totals[2]).clamp_min(0)
    tiny = torch.finfo(totals.dtype).tiny
    distance = ((variance + tiny) / (averaging * order * totals[0] + tiny)).log() / (order + 1)
    # The first guess is one over the spread of the cost, most weight on the variables that still vary.
    spread = (totals[3] / totals[4].clamp_min(tiny)).clamp_min(tiny).sqrt()
    adapted = torch.where(first, 1 / spread, epsilon * (ADAPTATION_RATE * distance.clamp(-10, 10)).exp())
    informative = (totals[4] > 0) & totals.isfinite().all(0)
    return torch.where(informative, adapted.clamp(1e-12, 1e12), epsilon), informative
