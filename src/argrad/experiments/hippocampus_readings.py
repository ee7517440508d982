"""Many scans at once through the segmentation model: fit, shapes, labels, and shapes from sampled segmentations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from argrad.data.working_grid import scale_intensities
from argrad.estimators import Estimator
from argrad.models.anatomy.intensities import Intensities
from argrad.models.anatomy.model import AnatomyModel, sampled_log_likelihood
from argrad.models.anatomy.prior import AnatomyPrior
from argrad.models.anatomy.run import FitSettings, grid_scans, train_model

__all__ = ["Shapes", "fitted", "infer_all", "infer_sampled", "label_all", "label_on_grid"]

AT_A_TIME = 10
"""Scans whose shapes are refined together."""


@final
@dataclass(frozen=True)
class Shapes:
    """What was inferred of some scans: their shapes ``[N, latent]`` and the intensities of their tissues."""

    z: Tensor
    intensities: Intensities

    def __getitem__(self, rows: slice) -> Shapes:
        """Those of some scans."""
        return Shapes(self.z[rows], self.intensities.rows(rows))


def fitted(
    prior: AnatomyPrior, ids: Sequence[int], scans: list[Tensor], settings: FitSettings, device: torch.device
) -> AnatomyModel:
    """Stage 2 on these scans."""
    return train_model(prior, ids, grid_scans(scans, prior.grid, "fit"), settings, "fit", device=device)[0]


def infer_all(model: AnatomyModel, scans: list[Tensor]) -> Shapes:
    """Shapes by the encoder and gradient steps on the likelihood in closed form."""
    return _infer(model, scans, lambda gridded, density: model.infer(gridded, density))


def infer_sampled(model: AnatomyModel, scans: list[Tensor], estimator: Estimator, seed: int) -> Shapes:
    """Shapes by gradient steps through sampled segmentations, in the place of the likelihood in closed form."""
    generator = torch.Generator(model.mean.device).manual_seed(seed)
    estimator = estimator.to(model.mean.device)

    def infer(gridded: Tensor, density: Tensor) -> Tensor:
        with torch.no_grad():
            z: Tensor = model.encoder(gridded.unsqueeze(1)).mean
        return model.climb(
            z,
            lambda at: sampled_log_likelihood(model.log_f(at), density, estimator, generator=generator),
            model.reading.refine,
        )

    return _infer(model, scans, infer)


def _infer(model: AnatomyModel, scans: list[Tensor], infer: Callable[[Tensor, Tensor], Tensor]) -> Shapes:
    gridded = grid_scans(scans, model.prior.grid, model.align).to(model.mean.device)
    x = model.inside(gridded)
    intensities = model.intensities_of(x)
    parts = []
    for start in range(0, len(x), AT_A_TIME):
        rows = slice(start, start + AT_A_TIME)
        parts.append(infer(gridded[rows], intensities.rows(rows).log_density(x[rows])))
    return Shapes(torch.cat(parts), intensities)


def label_all(model: AnatomyModel, scans: list[Tensor], shapes: Shapes) -> list[Tensor]:
    """Label maps in the scans' own voxels."""
    return [
        _label(model, scale_intensities(scan.to(shapes.z.device)), shapes[number : number + 1])
        for number, scan in enumerate(scans)
    ]


def label_on_grid(model: AnatomyModel, scans: list[Tensor], shapes: Shapes) -> list[Tensor]:
    """Label maps on the working grid."""
    gridded = grid_scans(scans, model.prior.grid, model.align).to(shapes.z.device)
    return [_label(model, scan, shapes[number : number + 1]) for number, scan in enumerate(gridded)]


@torch.no_grad()
def _label(model: AnatomyModel, scaled: Tensor, shape: Shapes) -> Tensor:
    return model.label(scaled, shape.z, shape.intensities).labels
