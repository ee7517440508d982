"""What the experiments of the direct optimisation paper share: its images, its networks, what a quick run changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from argrad.models.discrete_vae.module import default_networks
from argrad.training.population import Weights

__all__ = ["as_bits", "load_bits", "networks", "networks_of", "quickly"]

Settings = TypeVar("Settings")


def load_bits(dataset: str, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Train, validation and test images of the catalogue, rounded at 0.5: bits ``[N, pixels]``, uint8, on a device."""
    from argrad.data import load

    images = load(dataset)
    train, validation, test = (
        as_bits(images.values(part)).to(device) for part in (images.train, images.validation, images.test)
    )
    return train, validation, test


def as_bits(images: Tensor) -> Tensor:
    """Values in [0, 1] rounded at 0.5, one row of uint8 per image."""
    return (images.flatten(1) >= 0.5).to(torch.uint8)


def networks(pixels: int) -> Callable[[int, int], tuple[nn.Module, nn.Module]]:
    """For an image size, what maps (k, seed) to the paper's encoder and decoder with the first weights of the seed."""

    def make(values: int, seed: int) -> tuple[nn.Module, nn.Module]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return default_networks((pixels,), values)

    return make


def networks_of(
    weights: Weights, values: int, *, seed: int = 0, member: int = 0
) -> tuple[nn.Sequential, nn.Sequential]:
    """One model of a population as plain networks: the way back from :func:`argrad.training.population.stack_networks`.

    Args:
        weights: stacked.
        values: k of the model.
        seed: which of the population's seeds, by place.
        member: which of its members, by place.
    """
    enter = weights["enter"]
    encoder, decoder = default_networks((enter.shape[1],), values, enter.shape[-1])
    own = {name: tensor[seed, member] for name, tensor in weights.items() if name != "enter"}
    tensors = (
        enter[seed, :, member].T,
        own["enter_bias"],
        own["scores"][:, :values].T,
        own["scores_bias"][:values],
        own["codes"][:, :values],
        own["codes_bias"],
        own["leave"].T,
        own["leave_bias"],
    )
    with torch.no_grad():
        for parameter, tensor in zip([*encoder.parameters(), *decoder.parameters()], tensors, strict=True):
            parameter.copy_(tensor)
    return encoder.to(enter.device), decoder.to(enter.device)


def quickly(settings: Settings, **changes: Any) -> Settings:
    """Settings with changes where they are as by default; what was set on purpose stays."""
    usual = {field.name: field.default for field in fields(settings)}  # type: ignore[arg-type]
    wanted = {name: value for name, value in changes.items() if getattr(settings, name) == usual[name]}
    return replace(settings, **wanted)  # type: ignore[type-var]
