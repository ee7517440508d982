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

from argrad.estimators.base import attach
from argrad.estimators.direct import adaptation_terms, closer_epsilon
from argrad.latents import Categorical
from argrad.noise import gumbel
from argrad.training.schedules import Decay

__all__ = ["Member", "Method", "Population", "Weights", "per_weight", "stack_networks"]

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


@final
class Population:
    """S × G models, all of which read the table of costs (exact, direct) or all decode a relaxed code.

    Args:
        weights: from :func:`stack_networks`.
        members: G members.
        betas: Adam's.
    """

    def __init__(
        self,
        weights: Weights,
        members: Sequence[Member],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
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
        self.log_values = sizes.log().expand(self.seeds, self.count).clone()
        self.learning_rate = per_member([member.learning_rate for member in members])
        self.temperature = per_member([at_start(member.temperature) for member in members])
        self.exact = per_member([float(member.method == "exact") for member in members])[..., None, None] > 0
        self.hard = per_member([float(member.method == "straight-through") for member in members])[..., None, None] > 0
        self.revive_until = per_member([float(member.revive_until) for member in members])
        self.kl_weight = per_member([member.kl_weight for member in members])
        self.epsilon = per_member([at_start(member.epsilon) for member in members])
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

    def scores(self, x: Tensor, weights: Weights | None = None) -> Tensor:
        """Encoder scores ``[S, G, B, K]`` for x ``[S, B, D]``; padded codes get −inf."""
        w = weights or self.weights
        hidden = torch.bmm(x, w["enter"].flatten(2)).unflatten(-1, (self.count, self.hidden)).transpose(1, 2)
        hidden = (hidden + w["enter_bias"].unsqueeze(-2)).relu()
        scores: Tensor = hidden @ w["scores"] + w["scores_bias"].unsqueeze(-2)
        return scores.masked_fill(self.impossible, -torch.inf)

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

    def losses(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """The negative ELBO of each model and example, ``[S, G, B]``, carrying the gradient estimates.

        Args:
            x: bits ``[S, B, D]``.
            noise: Gumbel noise ``[S, G, B, K]``; drawn where it is None.
        """
        scores = self.scores(x)
        if noise is None:
            noise = gumbel(scores.shape, device=scores.device)
        latent = Categorical(scores, validate=False)
        kl = self.kl_weight.unsqueeze(-1) * self.kl(scores)
        if self.relaxed:
            relaxed = latent.relax(scores + noise, self.temperature[..., None, None])
            if any(member.method == "straight-through" for member in self.members):
                through = latent.solve(scores + noise) + (relaxed - relaxed.detach())
                relaxed = torch.where(self.hard, through, relaxed)
            return self.decode_and_compare(x, relaxed) + kl
        costs = self.table(x)
        perturbed, epsilon = scores.detach() + noise, self.epsilon[..., None, None]
        table = costs.detach() - costs.detach().mean(-1, keepdim=True)  # an offset would swallow the noise
        z = latent.solve(perturbed)
        direct = (z - latent.solve(perturbed - epsilon * table)) / epsilon
        weight = torch.where(self.exact, latent.mean().detach(), z)
        gradient = torch.where(self.exact, latent.gradient_of_mean(table), direct)
        if self.auto:
            self._adapt(latent, table)
        return attach((costs * weight).sum(-1), scores, gradient) + kl

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

    def step(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """One training step of every model on x ``[S, B, D]``; returns the mean losses ``[S, G]``."""
        losses = self.losses(x, noise)
        names = list(self.weights)
        # Models do not share weights, so the gradient of the sum is each model's own gradient.
        gradients = torch.autograd.grad(losses.mean(-1).sum(), [self.weights[name] for name in names])
        self._adam(dict(zip(names, gradients, strict=True)))
        return losses.detach().mean(-1)

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
        for number, member in enumerate(self.members):
            for setting, values in ((member.epsilon, self.epsilon), (member.temperature, self.temperature)):
                if isinstance(setting, Decay) and step % setting.every == 0:
                    values[:, number] = setting(step)

    @torch.no_grad()
    def evaluate(self, x: Tensor, weights: Weights | None = None, chunk: int = 2000) -> tuple[Tensor, Tensor]:
        """Exact mean negative ELBO and −log p(x) of every model on the same images ``[N, D]``, each ``[S, G]``."""
        elbo = torch.zeros(self.seeds, self.count, dtype=torch.float64, device=x.device)
        nll = torch.zeros_like(elbo)
        for part in x.split(chunk):
            same = part.to(self.temperature.dtype).expand(self.seeds, *part.shape)
            scores, costs = self.scores(same, weights), self.table(same, weights)
            elbo += ((scores.softmax(-1) * costs).sum(-1) + self.kl(scores)).double().sum(-1)
            joint = (-costs).masked_fill(self.impossible, -torch.inf).logsumexp(-1) - self.log_values.unsqueeze(-1)
            nll -= joint.double().sum(-1)
        return elbo / len(x), nll / len(x)

    @torch.no_grad()
    def usage(self, x: Tensor) -> Tensor:
        """The mean posterior of every model over the same images ``[N, D]``, ``[S, G, K]``."""
        same = x.to(self.temperature.dtype).expand(self.seeds, *x.shape)
        return self.scores(same).softmax(-1).mean(-2)

    @torch.no_grad()
    def revive(self, usage: Tensor, epoch: int, *, threshold: float = 0.1, shake: float = 0.1) -> Tensor:
        """Split busy codes into dead ones, the busiest first, in members that still want it after an epoch.

        Returns:
            how many were revived in each model, ``[S, G]``.
        """
        possible = ~self.impossible[:, :, 0, :]
        wanted = (epoch <= self.revive_until).unsqueeze(-1)
        dead = possible & wanted & (usage < threshold / self.log_values.exp().unsqueeze(-1))
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
            copied += shake * weight.std() * torch.randn_like(copied)
            weight.copy_(torch.where(mask, copied, weight))
            for memory in (self.first[name], self.second[name]):
                memory.masked_fill_(mask, 0.0)
        return dead.sum(-1)


def per_weight(per_model: Tensor, name: str, dims: int) -> Tensor:
    """Numbers ``[S, G]``, shaped to broadcast against the weights of a name."""
    if name == "enter":
        return per_model[:, None, :, None]
    return per_model.reshape(per_model.shape + (1,) * (dims - 2))


def at_start(setting: float | str | Decay) -> float:
    """A setting's first value; "auto" starts at 1."""
    return 1.0 if isinstance(setting, str) else setting(0) if isinstance(setting, Decay) else float(setting)
