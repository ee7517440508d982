"""Toy anatomy: ellipses of two parts, and scans of other ellipses whose background has two tissues."""

import numpy as np

SIDE = 24


def label_map(generator: np.random.Generator, shape: tuple[int, ...] = (SIDE, SIDE)) -> np.ndarray:
    """An ellipse of random centre and radii, its left half 1 and its right half 2 (ids 5 and 9)."""
    axes = np.meshgrid(*(np.linspace(-1, 1, side) for side in shape), indexing="ij")
    centre = generator.normal(0, 0.08, len(shape))
    radii = generator.uniform(0.35, 0.65, len(shape))
    inside = sum(((axis - c) / r) ** 2 for axis, c, r in zip(axes, centre, radii, strict=True)) < 1
    return np.where(inside, np.where(axes[0] < centre[0], 5, 9), 0)


def scan(labels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Organ 0.5; background dark at the top and, where it is bright, brighter than the organ; noise."""
    rows = np.arange(labels.shape[-1]) < labels.shape[-1] // 2
    background = np.broadcast_to(np.where(rows, 0.1, 0.9), labels.shape)
    image = np.where(labels > 0, 0.5, background) + generator.normal(0, 0.1, labels.shape)
    return image * 700


def cases(number: int, seed: int, shape: tuple[int, ...] = (SIDE, SIDE)) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Label maps and their scans."""
    generator = np.random.default_rng(seed)
    maps = [label_map(generator, shape) for _ in range(number)]
    return maps, [scan(one, generator) for one in maps]
