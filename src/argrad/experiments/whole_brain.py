"""A whole brain in three dimensions: shapes from deformations of one labelled brain, labels for other deformations.

There is one labelled brain (``brain-voxelmorph`` below the data folders, 30 structures). Smooth random deformations of
its label map are the shapes of stage 1. Stage 2 sees scans only: held-out deformations whose intensities are drawn
anew, another contrast for each scan. Reported is Dice on those, and on the real scan, which is labelled with the model
as it comes out, without being fitted to it; since all shapes come from this subject, that number says that the path
works, not how well strangers are labelled. Time and peak memory are measured along.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate

from argrad.data.errors import MissingFiles
from argrad.data.locate import data_folders
from argrad.experiments.hippocampus_baselines import read_location
from argrad.experiments.paper_model import quickly
from argrad.experiments.provenance import command_line, provenance
from argrad.models.anatomy.model import AnatomyModel
from argrad.models.anatomy.overlap import dice
from argrad.models.anatomy.prior import AnatomyPrior, blur
from argrad.models.anatomy.run import FitSettings, PriorSettings, grid_labels, grid_scans, train_model, train_prior
from argrad.models.discrete_vae.run import choose_device

__all__ = ["WholeBrain", "deformed", "format_table", "markdown", "run", "simulated"]

PAIRS = (
    *((2, 41), (3, 42), (4, 43), (7, 46), (8, 47), (10, 49)),
    *((11, 50), (12, 51), (13, 52), (17, 53), (18, 54), (28, 60), (31, 63)),
)
"""FreeSurfer's numbers for the left and the right of one structure, which look alike."""
CONTROL = 3
"""Points per side of the grid whose random shifts a deformation interpolates."""
BATCH = 2
"""Volumes per step."""
NAME = "brain-voxelmorph"
QUICK_STEP = 4
"""Which voxels a quick run takes: every fourth."""


@final
@dataclass(frozen=True)
class WholeBrain:
    """Settings of the experiment."""

    quick: bool = False
    """A quarter of the resolution and a few cases, to see that all works; the numbers mean nothing."""
    grid: tuple[int, int, int] = (80, 96, 112)
    """The working grid: half the resolution of the scan."""
    shapes: int = 200
    """Deformations for stage 1."""
    scans: int = 20
    """Held-out deformations with intensities drawn anew, for stage 2."""
    amplitude: float = 5.0
    """Standard deviation of the shifts, in millimetres."""
    latent: int = 64
    """Dimensions of the shape."""
    prior_epochs: int = 40
    """Passes over the label maps."""
    epochs: int = 10
    """Passes over the scans."""
    refine: int = 60
    """Gradient steps on the shape of each scan."""
    shape_weight: float = 0.1
    """What a voxel counts for when the shape is inferred; chosen on other deformations, on a coarse grid."""
    label_weight: float = 0.3
    """What it counts for when the voxel is labelled."""
    seed: int = 0
    """Of all randomness."""
    device: str = "auto"
    """cpu, cuda, …"""

    def __post_init__(self) -> None:
        for name in ("shapes", "scans", "prior_epochs", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def effective(self) -> WholeBrain:
        """The settings with ``quick`` spelt out."""
        if not self.quick:
            return self
        few = {"shapes": 4, "scans": 2, "prior_epochs": 2, "epochs": 1, "refine": 2, "latent": 8}
        return quickly(self, grid=(40, 48, 56), **few)


@final
@dataclass(frozen=True)
class Brain:
    """The one labelled brain."""

    scan: Tensor
    labels: Tensor
    """Numbers from 0."""
    ids: tuple[int, ...]
    """What they stand for."""
    voxel: float
    """Its side in millimetres."""


def run(settings: WholeBrain, progress: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Train both stages, label the held-out deformations and the real scan; ready for JSON."""
    used = settings.effective()
    device = choose_device(used.device)
    brain = load_brain(QUICK_STEP if settings.quick else 1)
    generator = torch.Generator().manual_seed(used.seed)
    began = time.monotonic()
    prior = learn_shapes(brain, used, generator, device, progress)
    references = [deformed(brain.labels, generator, used.amplitude / brain.voxel) for _ in range(used.scans)]
    scans = [simulated(one, brain.ids, generator) for one in references]
    model = learn_scans(prior, scans, brain.ids, used, device)
    progress(f"both stages trained after {time.monotonic() - began:.0f} s")
    rows, location = [], []
    for number, (scan, reference) in enumerate(zip(scans, references, strict=True)):
        rows.append(score(model.segment(scan.to(device)).labels, reference, brain))
        location.append(score(read_location(prior.location, reference, "fit"), reference, brain))
        progress(f"scan {number + 1} of {len(scans)}: mean Dice {np.nanmean(rows[-1]):.3f}")
    start = time.monotonic()
    found = model.segment(brain.scan.to(device)).labels.cpu()
    apply_seconds = time.monotonic() - start
    return {
        **provenance(command_line("argrad reproduce whole-brain", settings)),
        "quick": settings.quick,
        "settings": asdict(settings),
        "structures": list(brain.ids[1:]),
        "held_out": {
            "mean": mean(rows),
            "sd_over_scans": round(float(np.nanmean(rows, 1).std()), 4),
            "location_prior": mean(location),
            "per_structure": [round(float(value), 4) for value in np.nanmean(rows, 0)],
            "per_scan": [round(float(value), 4) for value in np.nanmean(rows, 1)],
        },
        "real_scan": {
            "mean": mean([score(found, brain.labels, brain)]),
            "location_prior": mean([score(read_location(prior.location, brain.labels, "fit"), brain.labels, brain)]),
            "apply_seconds": round(apply_seconds, 1),
        },
        "seconds": round(time.monotonic() - began, 1),
        "peak_memory_gb": peak_memory(device),
    }


def learn_shapes(
    brain: Brain,
    settings: WholeBrain,
    generator: torch.Generator,
    device: torch.device,
    progress: Callable[[str], None],
) -> AnatomyPrior:
    """Stage 1 on deformations of the one label map, at the resolution of the working grid."""
    on_grid = to_size(brain.labels, settings.grid)
    amplitude = settings.amplitude / (brain.voxel * brain.labels.shape[0] / settings.grid[0])
    maps = [deformed(on_grid, generator, amplitude) for _ in range(settings.shapes)]
    gridded, with_grid = grid_labels(
        maps,
        PriorSettings(
            grid=settings.grid,
            latent=settings.latent,
            epochs=settings.prior_epochs,
            batch_size=BATCH,
            augment=0.5,
            seed=settings.seed,
        ),
    )
    prior, trained = train_prior(gridded, len(brain.ids), with_grid, device=device)
    progress(f"prior: {trained.best_loss:.0f} nats per label map, {trained.seconds:.0f} s")
    return prior


def learn_scans(
    prior: AnatomyPrior, scans: list[Tensor], ids: Sequence[int], settings: WholeBrain, device: torch.device
) -> AnatomyModel:
    """Stage 2 on scans; each has a contrast of its own, so there are no maps of tissue classes to learn from all."""
    fit = FitSettings(
        shared=tuple(f"{left}+{right}" for left, right in pairs_in(ids)),
        background_classes=2,
        maps=False,
        epochs=settings.epochs,
        pretrain_epochs=min(2, settings.epochs - 1),
        refine=settings.refine,
        shape_weight=settings.shape_weight,
        label_weight=settings.label_weight,
        batch_size=BATCH,
        seed=settings.seed,
    )
    return train_model(prior, ids, grid_scans(scans, settings.grid, "fit"), fit, "fit", device=device)[0]


def score(found: Tensor, reference: Tensor, brain: Brain) -> list[float]:
    """Dice of every structure; the label map is brought to the grid of the reference."""
    return dice(to_size(found.cpu(), reference.shape), reference, len(brain.ids)).tolist()


def mean(rows: list[list[float]]) -> float:
    """Over scans and structures."""
    return round(float(np.nanmean(rows)), 4)


def peak_memory(device: torch.device) -> dict[str, float | None]:
    """Of this process, and of its GPU."""
    return {
        "host": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "device": round(torch.cuda.max_memory_allocated() / 2**30, 2) if device.type == "cuda" else None,
    }


def load_brain(step: int = 1) -> Brain:
    """The labelled brain; every ``step``-th voxel of each axis."""
    for folder in data_folders():
        if (folder / NAME / "test_scan.npz").is_file():
            place = folder / NAME
            break
    else:
        raise MissingFiles(f"{NAME}/test_scan.npz is not on this machine: put it into a folder below $ARGRAD_DATA")
    with np.load(place / "test_scan.npz") as both, np.load(place / "labels.npz") as listed:
        scan, found = both["vol"].astype(np.float32), both["seg"].astype(np.int64)
        ids = (0, *sorted(int(number) for number in listed["labels"] if number))
    numbers = np.zeros(int(found.max()) + 1, np.int16)
    numbers[list(ids)] = np.arange(len(ids))
    every = (slice(None, None, step),) * 3
    labels = torch.from_numpy(numbers[found][every].copy())
    return Brain(torch.from_numpy(scan[every].copy()), labels, ids, float(step))


def to_size(labels: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """A label map on another grid, by the nearest voxel."""
    return interpolate(labels[None, None].float(), tuple(shape), mode="nearest-exact")[0, 0].to(torch.int16)


def deformed(labels: Tensor, generator: torch.Generator, amplitude: float) -> Tensor:
    """A label map moved by smooth random shifts of the given standard deviation, in voxels."""
    shifts = amplitude * torch.randn(1, 3, *(CONTROL,) * 3, generator=generator)
    field = interpolate(shifts, tuple(labels.shape), mode="trilinear", align_corners=True)[0]
    places = torch.meshgrid(*(torch.arange(float(side)) for side in labels.shape), indexing="ij")
    # grid_sample wants coordinates from −1 to 1, the last axis first
    moved = [2 * (places[axis] + field[axis]) / max(labels.shape[axis] - 1, 1) - 1 for axis in reversed(range(3))]
    result = grid_sample(labels[None, None].float(), torch.stack(moved, -1)[None], mode="nearest", align_corners=True)
    return result[0, 0].round().to(torch.int16)


def simulated(labels: Tensor, ids: Sequence[int], generator: torch.Generator) -> Tensor:
    """A scan of a label map: a random intensity for each tissue, background dark, blurred, with noise.

    Args:
        labels: numbers from 0.
        ids: what they stand for; the left and the right of a structure are the same tissue.
        generator: of the intensities and of the noise.
    """
    means = 0.2 + 0.8 * torch.rand(len(ids), generator=generator)
    spread = 0.02 + 0.04 * torch.rand(len(ids), generator=generator)
    means[0] = 0.0
    for left, right in pairs_in(ids):
        means[ids.index(right)], spread[ids.index(right)] = means[ids.index(left)], spread[ids.index(left)]
    noise = torch.randn(labels.shape, generator=generator)
    chosen = labels.long()
    return blur((means[chosen] + spread[chosen] * noise)[None], 0.5)[0]


def pairs_in(ids: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs of left and right of which both are there."""
    return [(left, right) for left, right in PAIRS if left in ids and right in ids]


def format_table(result: dict[str, Any]) -> str:
    """The table, and above it that a quick run means nothing."""
    return ("A QUICK run: the numbers mean nothing.\n\n" if result["quick"] else "") + markdown(result)


def markdown(result: dict[str, Any]) -> str:
    """The table as it stands in the documentation."""
    held, real, memory = result["held_out"], result["real_scan"], result["peak_memory_gb"]
    on_gpu = f", on the GPU {memory['device']:.1f} GB" if memory["device"] else ""
    lines = [
        f"| mean Dice over {len(result['structures'])} structures | location prior | ours |",
        "|---|---|---|",
        f"| held-out deformations, intensities drawn anew | {held['location_prior']:.3f} | {held['mean']:.3f} |",
        f"| the real scan | {real['location_prior']:.3f} | {real['mean']:.3f} |",
        "",
        f"Everything took {result['seconds']:.0f} s, labelling the real scan {real['apply_seconds']:.1f} s; peak "
        f"memory {memory['host']:.1f} GB{on_gpu}.",
    ]
    return "\n".join(lines)
