r"""Many models trained as one: stacked weights, one batched step, on a GPU one captured graph.

One model of the paper's size leaves a GPU idle. Here M = seeds × members models of the same shape (784-300-k, k padded
and masked) are trained side by side: every layer is one batched matrix product, Adam one pass over stacked weights with
a learning rate per model, and the noise is drawn by the device. Seeds have their own first weights, batches and noise;
members of one seed share its batches, so x is read once for all of them.

The decoder sees k distinct codes (the one-hot rows of its first layer), so with S seeds, G members, batch B, hidden
width H and D pixels a step multiplies :math:`S [B D G H + B G H K + G K H D + B D G K]` numbers forward and twice that
backward.

Given the same noise the gradients equal those of :class:`argrad.models.DiscreteVAEModule`, one model at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.optim.adam import adam

from argrad.estimators.direct import adaptation_terms, closer_epsilon
from argrad.latents import Categorical
from argrad.latents.categorical import one_hot_argmax
from argrad.training.matmul_precision import matmul_precision
from argrad.training.schedules import Decay

__all__ = ["Member", "Method", "Population", "Weights", "join_members", "per_weight", "pick_members", "stack_networks"]

Method = Literal["exact", "direct", "gumbel-softmax", "straight-through"]
RELAXED = ("gumbel-softmax", "straight-through")
Weights = dict[str, Tensor]
"""Stacked weights by name: seeds first, then members, except that ``enter`` is [seeds, pixels, members, hidden]."""
NAMES = ("enter", "enter_bias", "scores", "scores_bias", "codes", "codes_bias", "leave", "leave_bias")


@final
@dataclass(frozen=True)
class Member:
    """One model of a population, up to its seed."""

    values: int = 10
    """k."""
    method: Method = "direct"
    """The estimator."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    epsilon: float | Literal["auto"] | Decay = "auto"
    """Direct's ε."""
    temperature: float | Decay = 0.5
    """τ of the relaxations."""
    kl_weight: float = 1.0
    """Weight of the KL term in training."""
    revive_until: int = 0
    """Dead codes are revived after each epoch up to this one."""


def stack_networks(
    networks: Callable[[int, int], tuple[nn.Module, nn.Module]], members: Sequence[Member], seeds: Sequence[int]
) -> Weights:
    """The weights of two-layer networks, one pair per seed and member, padded to the largest k.

    Args:
        networks: maps (values, seed) to an encoder and a decoder with two linear layers each.
        members: G members.
        seeds: S seeds.

    Returns:
        ``enter`` [S, D, G, H], ``scores`` [S, G, H, K], ``codes`` [S, G, H, K], ``leave`` [S, G, H, D] and their
        biases.
    """
    most = max(member.values for member in members)
    rows: list[list[Tensor]] = [[] for _ in NAMES]
    for seed in seeds:
        for member in members:
            layers = [
                layer
                for net in networks(member.values, seed)
                for layer in net.modules()
                if isinstance(layer, nn.Linear)
            ]
            enter, scores, codes, leave = layers
            pad = most - member.values
            tensors = (
                enter.weight.T,
                enter.bias,
                nn.functional.pad(scores.weight.T, (0, pad)),
                nn.functional.pad(scores.bias, (0, pad)),
                nn.functional.pad(codes.weight, (0, pad)),
                codes.bias,
                leave.weight.T,
                leave.bias,
            )
            for row, tensor in zip(rows, tensors, strict=True):
                row.append(tensor.detach())
    stacked = [torch.stack(row).unflatten(0, (len(seeds), len(members))) for row in rows]
    weights = dict(zip(NAMES, stacked, strict=True))
    weights["enter"] = weights["enter"].transpose(1, 2)
    return {name: tensor.contiguous() for name, tensor in weights.items()}


MEMBER_DIMENSION = {name: 2 if name == "enter" else 1 for name in NAMES}
"""Where stacked weights list the members."""


def join_members(parts: Sequence[Weights]) -> Weights:
    """Stacked weights of several groups of members, one group after the other, padded to the largest k."""
    most = max(part["scores"].shape[-1] for part in parts)

    def padded(part: Weights, name: str) -> Tensor:
        missing = most - part["scores"].shape[-1] if name in ("scores", "scores_bias", "codes") else 0
        return nn.functional.pad(part[name], (0, missing)) if missing else part[name]

    return {name: torch.cat([padded(part, name) for part in parts], MEMBER_DIMENSION[name]) for name in NAMES}


def pick_members(weights: Weights, chosen: Tensor) -> Weights:
    """For each seed other members out of the stacked ones: ``chosen`` holds their numbers, ``[S, G]``."""
    picked = {}
    for name, tensor in weights.items():
        dim = MEMBER_DIMENSION[name]
        rows = [row.index_select(dim - 1, numbers) for row, numbers in zip(tensor, chosen, strict=True)]
        picked[name] = torch.stack(rows).detach()
    return picked


@final
class Population:
    """S × G models, all of which read the table of costs (exact, direct) or all decode a relaxed code.

    Args:
        weights: from :func:`stack_networks`.
        members: G members.
        betas: Adam's.
        average: decay of a moving average of the weights; 0 is none.
    """

    def __init__(
        self,
        weights: Weights,
        members: Sequence[Member],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        average: float = 0.0,
    ) -> None:
        device = weights["enter"].device
        self.members = tuple(members)
        self.relaxed = members[0].method in RELAXED
        if any((member.method in RELAXED) != self.relaxed for member in members):
            raise ValueError(
                "a population is of members that read a table (exact, direct) or of relaxed ones, not both"
            )
        self.weights = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
        self.seeds, self.pixels, self.count, self.hidden = weights["enter"].shape
        self.values = weights["scores"].shape[-1]
        self.betas = betas

        def per_member(numbers: list[float]) -> Tensor:
            return torch.tensor(numbers, device=device).expand(self.seeds, self.count).clone()

        sizes = torch.tensor([member.values for member in members], device=device)
        self.impossible = (torch.arange(self.values, device=device) >= sizes[:, None])[None, :, None, :]
        self.padded = any(member.values < self.values for member in members)
        methods = {member.method for member in members}
        self.any_exact, self.any_direct = "exact" in methods, "direct" in methods
        self.any_soft, self.any_hard = "gumbel-softmax" in methods, "straight-through" in methods
        self.log_values = sizes.log().expand(self.seeds, self.count).clone()
        self.learning_rate = per_member([member.learning_rate for member in members])
        self.temperature = per_member([at_start(member.temperature) for member in members])
        self.exact = per_member([float(member.method == "exact") for member in members])[..., None, None] > 0
        self.hard = per_member([float(member.method == "straight-through") for member in members])[..., None, None] > 0
        self.revive_until = per_member([float(member.revive_until) for member in members])
        self.kl_weight = per_member([member.kl_weight for member in members])
        self.epsilon = per_member([at_start(member.epsilon) for member in members])
        self.scheduled = [
            (number, setting, values)
            for number, member in enumerate(members)
            for setting, values in ((member.epsilon, self.epsilon), (member.temperature, self.temperature))
            if isinstance(setting, Decay)
        ]
        self.batch = 0
        self.kl_share = self.ends_share = torch.zeros(0, device=device)
        self.auto = any(member.epsilon == "auto" and member.method == "direct" for member in members)
        self.adapts = torch.tensor([member.epsilon == "auto" for member in members], device=device).expand(
            self.seeds, self.count
        )
        self.adaptations = torch.zeros(self.seeds, self.count, dtype=torch.int64, device=device)
        self.first = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        self.second = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        self.steps = {name: torch.zeros((), device=device) for name in weights}
        rates = {member.learning_rate for member in members}
        self.one_rate = rates.pop() if len(rates) == 1 else None  # one rate for all takes one pass over the weights
        self.decay = average
        self.sums = {name: torch.zeros_like(tensor) for name, tensor in weights.items()} if average else {}
        self.summed = torch.zeros((), device=device)

    def scores(self, x: Tensor, weights: Weights | None = None, *, mask: bool = True) -> Tensor:
        """Encoder scores ``[S, G, B, K]`` for x ``[S, B, D]``; padded codes get −inf, unless they are not masked."""
        w = weights or self.weights
        hidden = torch.bmm(x, w["enter"].flatten(2)).unflatten(-1, (self.count, self.hidden)).transpose(1, 2)
        hidden = (hidden + w["enter_bias"].unsqueeze(-2)).relu()
        scores: Tensor = hidden @ w["scores"] + w["scores_bias"].unsqueeze(-2)
        return scores.masked_fill(self.impossible, -torch.inf) if mask and self.padded else scores

    def table(self, x: Tensor, weights: Weights | None = None) -> Tensor:
        """The cost of every code, ``[S, G, B, K]``."""
        w = weights or self.weights
        hidden = (w["codes"] + w["codes_bias"].unsqueeze(-1)).relu()
        logits = hidden.transpose(-1, -2) @ w["leave"] + w["leave_bias"].unsqueeze(-2)
        inner = torch.bmm(x, logits.flatten(1, 2).transpose(1, 2)).unflatten(-1, (self.count, self.values))
        costs: Tensor = softplus(logits, threshold=40).sum(-1).unsqueeze(-2) - inner.transpose(1, 2)
        return costs

    def kl(self, scores: Tensor) -> Tensor:
        """KL to the uniform prior over each member's own k codes, ``[S, G, B]``."""
        log_p = scores.log_softmax(-1)
        p = log_p.exp()
        negative_entropy: Tensor = (p * log_p.masked_fill(self.impossible, 0.0)).sum(-1)
        return negative_entropy + self.log_values.unsqueeze(-1)

    def step(self, x: Tensor, noise: Tensor | None = None) -> None:
        """One training step of every model.

        Args:
            x: bits ``[S, B, D]``.
            noise: Gumbel noise ``[S, G, B, K]``; drawn where it is None.
        """
        self._adam(self.gradients(x, noise)[0])
        if self.decay:
            with torch.no_grad():
                torch._foreach_lerp_(list(self.sums.values()), list(self.weights.values()), 1 - self.decay)
                self.summed.lerp_(torch.ones_like(self.summed), 1 - self.decay)

    def averaged(self) -> Weights:
        """The moving average of the weights, where there is one and a step was made; else the weights."""
        if not self.decay or not bool(self.summed):
            return {name: tensor.detach() for name, tensor in self.weights.items()}
        return {name: tensor / self.summed for name, tensor in self.sums.items()}

    def gradients(
        self, x: Tensor, noise: Tensor | None = None, *, measure: bool = False
    ) -> tuple[Weights, Tensor | None]:
        """The gradient estimate of each model's mean negative ELBO and, only if measured, its losses ``[S, G, B]``.

        The gradient at the scores and at the table of costs is known in closed form; autograd goes on from there,
        through the networks. Models do not share weights, so the gradients of their sum are each model's own.
        """
        self._share_among(x.shape[-2])
        scores = self.scores(x, mask=False)
        known = scores.detach().masked_fill(self.impossible, -torch.inf) if self.padded else scores.detach()
        towards_kl, negative_entropy = self._gradient_of_kl(known)
        if self.relaxed:
            losses = self.decode_and_compare(x, self._relax(scores, noise))
            ends, starts = [losses, scores], [torch.full_like(losses, 1 / x.shape[-2]), towards_kl]
            losses = losses.detach()
        else:
            costs = self.table(x)
            at_scores, at_costs = self._gradients_from_table(known, costs.detach(), noise, towards_kl)
            ends, starts = [scores, costs], [at_scores, at_costs]
            losses = (costs.detach() * at_costs).sum(-1) * x.shape[-2] if measure else costs
        names = list(self.weights)
        found = torch.autograd.grad(ends, [self.weights[name] for name in names], starts)
        gradients = dict(zip(names, found, strict=True))
        if not measure:
            return gradients, None
        kl = self.kl_weight.unsqueeze(-1) * (negative_entropy + self.log_values.unsqueeze(-1))
        return gradients, losses + kl

    def _share_among(self, batch: int) -> None:
        """What does not change as long as batches are of one size: an example's share of the KL and of a move."""
        if batch != self.batch:
            self.batch = batch
            self.kl_share = self.kl_weight[..., None, None] / batch
            self.ends_share = torch.tensor([1.0, -1.0], device=self.kl_weight.device) / batch

    def _gradient_of_kl(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of the mean weighted KL at the scores, p (log p − Σ p log p) / B, and Σ p log p."""
        log_p = scores.log_softmax(-1)
        p = log_p.exp()
        weighted = p * (log_p.masked_fill_(self.impossible, 0.0) if self.padded else log_p)
        negative_entropy = weighted.sum(-1, keepdim=True)
        gradient = torch.addcmul(weighted, p, negative_entropy, value=-1)
        return gradient.mul_(self.kl_share), negative_entropy.squeeze(-1)

    def _perturb(self, scores: Tensor, noise: Tensor | None, out: Tensor | None = None) -> Tensor:
        """Scores plus Gumbel noise, which is minus the log of an exponential variable."""
        if noise is not None:
            return torch.add(scores, noise, out=out)
        waits = torch.empty_like(scores, requires_grad=False).exponential_()
        waits.clamp_min_(torch.finfo(waits.dtype).tiny).log_()  # 0 would make an infinity
        return torch.sub(scores, waits, out=out)

    def _gradients_from_table(
        self, scores: Tensor, costs: Tensor, noise: Tensor | None, towards_kl: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The gradients of the mean loss at the scores and at the costs."""
        share = 1 / scores.shape[-2]
        if self.any_exact:
            p = scores.softmax(-1)
            exact = torch.addcmul(towards_kl, p, costs - (p * costs).sum(-1, keepdim=True), value=share)
            if not self.any_direct:
                return exact, p * share
        epsilon = self.epsilon[..., None, None]
        pair = scores.new_empty((2, *scores.shape))  # one arg max for both
        perturbed = self._perturb(scores, noise, out=pair[0])
        # Offsets of hundreds, times ε of about 0.1, still leave the noise all its digits that matter.
        torch.addcmul(perturbed, costs, epsilon, value=-1, out=pair[1])
        both = pair.argmax(-1).movedim(0, -1)
        index = both[..., :1]
        direct = towards_kl.scatter_add_(-1, both, (self.ends_share / epsilon).expand(both.shape))
        at_costs = torch.zeros_like(costs).scatter_(-1, index, share)
        if self.auto:
            self._adapt(Categorical(scores, validate=False), costs - costs.gather(-1, index))
        if self.any_exact:
            return torch.where(self.exact, exact, direct), torch.where(self.exact, p * share, at_costs)
        return direct, at_costs

    def _relax(self, scores: Tensor, noise: Tensor | None) -> Tensor:
        """Relaxed codes, ``[S, G, B, K]``; with straight-through, one-hot ones with the gradient of relaxed ones."""
        masked = scores.masked_fill(self.impossible, -torch.inf) if self.padded else scores
        perturbed = self._perturb(masked, noise)
        relaxed = (perturbed / self.temperature[..., None, None]).softmax(-1)
        if not self.any_hard:
            return relaxed
        through = one_hot_argmax(perturbed) + (relaxed - relaxed.detach())
        return torch.where(self.hard, through, relaxed) if self.any_soft else through

    def decode_and_compare(self, x: Tensor, z: Tensor) -> Tensor:
        """−log p(x|z) for one code per model and example, ``[S, G, B]``."""
        w = self.weights
        hidden = (z @ w["codes"].transpose(-1, -2) + w["codes_bias"].unsqueeze(-2)).relu()
        logits = hidden @ w["leave"] + w["leave_bias"].unsqueeze(-2)
        return (softplus(logits, threshold=40) - x.unsqueeze(1) * logits).sum(-1)

    @torch.no_grad()
    def _adapt(self, latent: Categorical, costs: Tensor) -> None:
        terms = adaptation_terms(latent, costs, self.epsilon[..., None, None], two_sided=False)
        totals = torch.stack([term.flatten(2).sum(-1) for term in terms])
        closer, informative = closer_epsilon(
            self.epsilon, totals, self.adaptations == 0, two_sided=False, averaging=100.0
        )
        self.epsilon.copy_(torch.where(self.adapts, closer, self.epsilon))
        self.adaptations.add_(informative)

    @torch.no_grad()
    def _adam(self, gradients: Weights) -> None:
        first_decay, second_decay = self.betas
        if self.one_rate is not None:
            adam(
                list(self.weights.values()),
                [gradient.contiguous() for gradient in gradients.values()],  # the fused kernel ignores strides
                list(self.first.values()),
                list(self.second.values()),
                [],
                list(self.steps.values()),
                fused=True,
                amsgrad=False,
                beta1=first_decay,
                beta2=second_decay,
                lr=self.one_rate,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )
            return
        for name, gradient in gradients.items():
            first, second, steps = self.first[name], self.second[name], self.steps[name].add_(1)
            first.lerp_(gradient, 1 - first_decay)
            second.mul_(second_decay).addcmul_(gradient, gradient, value=1 - second_decay)
            rate = self.learning_rate / (1 - first_decay**steps)
            size = per_weight(rate, name, gradient.dim())
            self.weights[name].sub_(size * first / (second.sqrt() / (1 - second_decay**steps).sqrt() + 1e-8))

    def apply_schedules(self, step: int) -> None:
        """Set ε and τ for a step; a captured graph reads them from where they are."""
        for number, setting, values in self.scheduled:
            if step % setting.every == 0:
                values[:, number] = setting(step)

    @torch.no_grad()
    def evaluate(self, x: Tensor, weights: Weights | None = None, chunk: int = 2000) -> tuple[Tensor, Tensor]:
        """Exact mean negative ELBO and −log p(x) of every model on the same images ``[N, D]``, each ``[S, G]``."""
        elbo = torch.zeros(self.seeds, self.count, dtype=torch.float64, device=x.device)
        nll = torch.zeros_like(elbo)
        for part in x.split(chunk):
            same = part.to(self.temperature.dtype).expand(self.seeds, *part.shape)
            with matmul_precision("highest"):
                scores, costs = self.scores(same, weights), self.table(same, weights)
            elbo += ((scores.softmax(-1) * costs).sum(-1) + self.kl(scores)).double().sum(-1)
            joint = (-costs).masked_fill(self.impossible, -torch.inf).logsumexp(-1) - self.log_values.unsqueeze(-1)
            nll -= joint.double().sum(-1)
        return elbo / len(x), nll / len(x)

    @torch.no_grad()
    def usage(self, x: Tensor, weights: Weights | None = None) -> Tensor:
        """The mean posterior of every model over the same images ``[N, D]``, ``[S, G, K]``."""
        same = x.to(self.temperature.dtype).expand(self.seeds, *x.shape)
        return self.scores(same, weights).softmax(-1).mean(-2)

    def dead(self, usage: Tensor, threshold: float = 0.1) -> Tensor:
        """Codes of a member's own that are used less than so many of an equal share, ``[S, G, K]``."""
        return ~self.impossible[:, :, 0, :] & (usage < threshold / self.log_values.exp().unsqueeze(-1))

    @torch.no_grad()
    def revive(self, usage: Tensor, epoch: int, *, threshold: float = 0.1, shake: float = 0.1) -> Tensor:
        """Split busy codes into dead ones, the busiest first, in members that still want it after an epoch.

        Returns:
            how many were revived in each model, ``[S, G]``.
        """
        possible = ~self.impossible[:, :, 0, :]
        wanted = (epoch <= self.revive_until).unsqueeze(-1)
        dead = wanted & self.dead(usage, threshold)
        share = usage.masked_fill(~possible | dead, 0.0)
        bias = self.weights["scores_bias"].detach().clone()
        donor = torch.arange(self.values, device=usage.device).expand_as(usage).clone()
        for code in range(self.values):  # each dead code halves the busiest one that is left
            takes = dead[..., code]
            busiest = share.argmax(-1, keepdim=True)
            half = torch.where(takes.unsqueeze(-1), 0.5, 1.0)
            share.scatter_(-1, busiest, share.gather(-1, busiest) * half)
            bias.scatter_(-1, busiest, bias.gather(-1, busiest) + half.log())
            share[..., code] = torch.where(takes, share.gather(-1, busiest)[..., 0], share[..., code])
            bias[..., code] = torch.where(takes, bias.gather(-1, busiest)[..., 0], bias[..., code])
            donor[..., code] = torch.where(takes, donor.gather(-1, busiest)[..., 0], donor[..., code])
        self.weights["scores_bias"].copy_(bias)
        for memory in (self.first["scores_bias"], self.second["scores_bias"]):
            memory.masked_fill_(dead, 0.0)
        for name in ("scores", "codes"):  # their last dimension is the code
            weight, mask = self.weights[name], dead.unsqueeze(-2)
            copied = weight.gather(-1, donor.unsqueeze(-2).expand_as(weight))
            copied += shake * spread(weight, possible.unsqueeze(-2)) * torch.randn_like(copied)
            weight.copy_(torch.where(mask, copied, weight))
            for memory in (self.first[name], self.second[name]):
                memory.masked_fill_(mask, 0.0)
        return dead.sum(-1)


def spread(weight: Tensor, possible: Tensor) -> Tensor:
    """The standard deviation of each model's weights ``[S, G, H, K]`` over the codes that it has, ``[S, G, 1, 1]``."""
    share = possible / (possible.sum((-2, -1), keepdim=True) * weight.shape[-2])
    mean = (weight * share).sum((-2, -1), keepdim=True)
    return ((weight - mean).square() * share).sum((-2, -1), keepdim=True).sqrt()


def per_weight(per_model: Tensor, name: str, dims: int) -> Tensor:
    """Numbers ``[S, G]``, shaped to broadcast against the weights of a name."""
    if name == "enter":
        return per_model[:, None, :, None]
    return per_model.reshape(per_model.shape + (1,) * (dims - 2))


def at_start(setting: float | str | Decay) -> float:
    """A setting's first value; "auto" starts at 1."""
    return 1.0 if isinstance(setting, str) else setting(0) if isinstance(setting, Decay) else float(setting)
