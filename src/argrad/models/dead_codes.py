"""Codes that no example uses, and a way to bring them back.

A code is dead when its share of the mean posterior is far below an equal share. Its decoder row gets no gradient, so it
stays dead; training has settled on fewer codes than it was given. The cure is a split: a dead code becomes a slightly
shaken copy of a busy one, in the encoder's last layer and in the decoder's first, and each takes half of the busy one's
probability, in the posterior and in a learnt prior, so that the two share its examples and can grow apart. But for the
shaking, no other code's probability and no reconstruction changes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from argrad.models.discrete_vae.module import DiscreteVAEModule

__all__ = ["check_revivable", "perplexity", "revive", "used"]


def perplexity(usage: Tensor) -> float:
    """exp(entropy) of the usage ``[variables, values]``, the geometric mean over variables: from 1 to ``values``."""
    return float(torch.special.entr(usage.double()).sum(-1).mean().exp())


def used(usage: Tensor, threshold: float = 0.1) -> float:
    """The share of codes whose usage is at least ``threshold`` of an equal share."""
    return float((usage >= threshold / usage.shape[-1]).double().mean())


def check_revivable(module: DiscreteVAEModule) -> tuple[nn.Linear, nn.Linear]:
    """The encoder's last layer and the decoder's first, or an error that says why dead codes cannot be revived."""
    if module.latent != "categorical":
        raise ValueError(
            "dead codes are revived for categorical latents; a bit that never changes has no busy twin to split"
        )
    return last_linear(module), first_linear(module)


@torch.no_grad()
def revive(
    module: DiscreteVAEModule,
    usage: Tensor,
    optimiser: torch.optim.Optimizer,
    generator: torch.Generator,
    *,
    threshold: float = 0.1,
    shake: float = 0.1,
) -> int:
    """Split busy codes into dead ones; returns how many were revived.

    Args:
        module: its encoder must end, and its decoder begin, in a linear layer over the codes.
        usage: ``[variables, values]``.
        optimiser: Adam's memory of the changed rows is cleared.
        generator: of the shaking.
        threshold: dead is below this share of an equal share.
        shake: size of the shaking, relative to the spread of the layer's weights.
    """
    out, into = check_revivable(module)
    revived = 0
    for variable, shares in enumerate(usage):
        remaining = shares.clone()
        for code in (shares < threshold / module.values).nonzero().flatten().tolist():
            donor = int(remaining.argmax())
            remaining[donor] /= 2
            first = variable * module.values
            split_code(module, out, into, first + donor, first + code, optimiser, generator, shake)
            remaining[code] = 0.0
            revived += 1
    return revived


def split_code(
    module: DiscreteVAEModule,
    out: nn.Linear,
    into: nn.Linear,
    donor: int,
    code: int,
    optimiser: torch.optim.Optimizer,
    generator: torch.Generator,
    shake: float,
) -> None:
    """Make one code a shaken copy of another, half of its probability to each; forget the optimiser's memory of it."""

    def noise_like(row: Tensor, layer: nn.Linear) -> Tensor:
        draw = torch.randn(row.shape, generator=generator, device=row.device, dtype=row.dtype)
        return shake * layer.weight.std() * draw

    out.weight[code] = out.weight[donor] + noise_like(out.weight[donor], out)
    into.weight[:, code] = into.weight[:, donor] + noise_like(into.weight[:, donor], into)
    changed: list[tuple[Tensor, tuple[int | slice, ...]]] = [(out.weight, (code,)), (into.weight, (slice(None), code))]
    tables = [out.bias] if module.prior_scores is None else [out.bias, module.prior_scores]
    for scores in tables:
        flat = scores.view(-1)
        flat[donor] -= math.log(2)
        flat[code] = flat[donor]
        changed.append((scores, (code,) if scores.dim() == 1 else divmod(code, module.values)))
    for parameter, row in changed:
        for memory in optimiser.state.get(parameter, {}).values():
            if isinstance(memory, Tensor) and memory.shape == parameter.shape:
                memory[row] = 0.0


def last_linear(module: DiscreteVAEModule) -> nn.Linear:
    """The encoder's last linear layer, which must give one score per code."""
    layers = [layer for layer in module.encoder.modules() if isinstance(layer, nn.Linear)]
    return check_layer(layers[-1:], "out_features", module, "the encoder must end")


def first_linear(module: DiscreteVAEModule) -> nn.Linear:
    """The decoder's first linear layer, which must read one number per code."""
    layers = [layer for layer in module.decoder.modules() if isinstance(layer, nn.Linear)]
    return check_layer(layers[:1], "in_features", module, "the decoder must begin")


def check_layer(layers: list[nn.Linear], side: str, module: DiscreteVAEModule, what: str) -> nn.Linear:
    """The layer, if it is there and has the right size."""
    codes = module.variables * module.values
    if not layers or getattr(layers[0], side) != codes or layers[0].bias is None:
        raise ValueError(
            f"to revive dead codes {what} in a linear layer with bias over all {codes} codes; turn reviving off"
        )
    return layers[0]
