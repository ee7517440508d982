"""Drawn heads with the attributes of the CMU faces, for tests that need no data set."""

import torch
from torch import Tensor

from argrad.data import AttributeImages

NAMES = ("sunglasses", "left", "right", "up")


def heads(number: int, seed: int, side: int = 16) -> tuple[Tensor, Tensor]:
    """Bright discs of several sizes and shades; a pose darkens one edge, sunglasses are a dark bar in the middle."""
    generator = torch.Generator().manual_seed(seed)
    pose = torch.randint(4, (number,), generator=generator)
    glasses = torch.randint(2, (number,), generator=generator)
    radius = side * (0.32 + 0.08 * torch.rand(number, 1, 1, generator=generator))
    shade = 0.6 + 0.4 * torch.rand(number, 1, 1, generator=generator)
    steps = torch.arange(side) - (side - 1) / 2
    down, across = torch.meshgrid(steps, steps, indexing="ij")
    head = (down.square() + across.square() < radius.square()).float()
    edge = torch.tensor([[0.0, -1], [0, 1], [1, 0], [0, 0]])[pose][:, :, None, None]  # left, right, up, straight
    dark = (down * edge[:, 0] + across * edge[:, 1] > 0.35 * radius).float()
    bar = ((down + 1).abs() < 1.6).float()
    images = head * shade * (1 - 0.7 * dark) * (1 - glasses[:, None, None] * bar) + 0.05
    attributes = torch.stack([glasses, pose == 0, pose == 1, pose == 2], 1).long()
    return (images.clamp(0, 1) * 255).to(torch.uint8), attributes


def tiny_faces() -> AttributeImages:
    """96 heads to train on, 32 and 64 held out."""
    parts = [heads(number, seed) for seed, number in enumerate((96, 32, 64))]
    people = {"train": ("a", "b"), "validation": ("c",), "test": ("d", "e")}
    images, attributes = zip(*parts, strict=True)
    return AttributeImages("tiny", NAMES, *images, *attributes, groups=people)
