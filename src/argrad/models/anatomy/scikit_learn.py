"""Segmentation with an anatomical prior as a scikit-learn estimator: fit_prior, fit, predict, predict_proba."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from argrad.data.label_table import LabelTable
from argrad.data.working_grid import Alignment
from argrad.models.anatomy.intensities import Mode
from argrad.models.anatomy.model import AnatomyModel, Segmentation
from argrad.models.anatomy.prior import AnatomyPrior
from argrad.models.anatomy.run import FitSettings, PriorSettings, grid_labels, grid_scans, train_model, train_prior
from argrad.models.discrete_vae.run import choose_device
from argrad.training import Interrupted

__all__ = ["AnatomicalSegmenter"]

Volumes = Sequence[NDArray[Any]] | NDArray[Any]


@final
class AnatomicalSegmenter(BaseEstimator):  # type: ignore[misc]
    """Learns shapes from label maps and intensities from other scans, and labels the scans: no scan has a label map.

    Volumes are lists of arrays in two or three dimensions, whose sizes may differ, all in the same orientation.

    Args:
        grid: sides of the working grid, multiples of 8; the mean size of the label maps when None.
        align: "fit" resamples each field of view onto the grid, "centre" pads and crops.
        latent: dimensions of the shape z.
        width: of the networks.
        likelihood: "exact" log p(x|z), or the bound of "jensen".
        intensities: for each "image", "global", or "fixed" (give ``fixed``).
        fixed: means and standard deviations of the intensity classes, on the scale where a scan's 1 % and 99 %
            quantiles are 0 and 1: background's classes first, then the other labels'.
        background_classes: intensity classes that background is a mixture of.
        shared: sets of label ids that look alike.
        shape_weight: what a voxel counts for when the shape is inferred; 1 is the bound on log p(x).
        label_weight: what it counts for when the voxel is labelled; 1 is the posterior, 0 the shape alone.
        refine: gradient steps on the shape of each scan.
        prior_epochs: passes over the label maps.
        epochs: passes over the scans, of which ``pretrain_epochs`` as an image auto-encoder.
        pretrain_epochs: see above.
        batch_size: volumes per step.
        random_state: a seed.
        device: "cpu", "cuda", ..., or "auto" for a GPU where there is one.

    Attributes:
        prior_: the trained :class:`~argrad.models.anatomy.prior.AnatomyPrior`.
        model_: the trained :class:`~argrad.models.anatomy.model.AnatomyModel`.
        classes_: the label ids, background first.

    >>> maps = [np.pad(np.ones((4, 4 + i), int), 4) for i in range(3)]
    >>> scans = [one + 0.1 * np.random.default_rng(0).normal(size=one.shape) for one in maps]
    >>> model = AnatomicalSegmenter(latent=2, width=4, prior_epochs=1, epochs=1, pretrain_epochs=0, device="cpu")
    >>> model.fit_prior(maps).fit(scans).predict(scans[:1])[0].shape
    (12, 12)
    """

    prior_: AnatomyPrior
    model_: AnatomyModel
    classes_: NDArray[np.int64]

    def __init__(
        self,
        *,
        grid: tuple[int, ...] | None = None,
        align: Alignment = "fit",
        latent: int = 32,
        width: int = 8,
        likelihood: Literal["exact", "jensen"] = "exact",
        intensities: Mode = "image",
        fixed: tuple[Sequence[float], Sequence[float]] | None = None,
        background_classes: int = 4,
        shared: Sequence[Sequence[int]] = (),
        shape_weight: float = 0.03,
        label_weight: float = 0.3,
        refine: int = 40,
        prior_epochs: int = 150,
        epochs: int = 30,
        pretrain_epochs: int = 5,
        batch_size: int = 10,
        random_state: int = 0,
        device: str = "auto",
    ) -> None:
        self.grid = grid
        self.align = align
        self.latent = latent
        self.width = width
        self.likelihood = likelihood
        self.intensities = intensities
        self.fixed = fixed
        self.background_classes = background_classes
        self.shared = shared
        self.shape_weight = shape_weight
        self.label_weight = label_weight
        self.refine = refine
        self.prior_epochs = prior_epochs
        self.epochs = epochs
        self.pretrain_epochs = pretrain_epochs
        self.batch_size = batch_size
        self.random_state = random_state
        self.device = device

    def fit_prior(self, label_maps: Volumes) -> Self:
        """Stage 1: learn the shapes from label maps of whole numbers; 0 is background."""
        maps = [whole_numbers(one, number) for number, one in enumerate(label_maps)]
        if len({one.ndim for one in maps}) > 1:
            raise ValueError("some label maps have 2 dimensions and others 3; give maps of one kind")
        self.table_ = LabelTable.from_maps(maps)
        indices = [self.table_.to_indices(one, f"label map {number}") for number, one in enumerate(maps)]
        settings = PriorSettings(
            grid=tuple(self.grid or ()),
            align=self.align,
            latent=self.latent,
            width=self.width,
            epochs=self.prior_epochs,
            batch_size=self.batch_size,
            seed=self.random_state,
        )
        gridded, settings = grid_labels([torch.from_numpy(one) for one in indices], settings)
        device = choose_device(self.device)
        try:
            self.prior_, _ = train_prior(gridded, len(self.table_), settings, device=device)
        except Interrupted:
            raise KeyboardInterrupt from None
        self.classes_ = np.asarray(self.table_.ids)
        return self

    def fit(self, scans: Volumes, y: object = None) -> Self:
        """Stage 2: learn from scans without labels; y is ignored."""
        check_is_fitted(self, "prior_")
        settings = FitSettings(
            likelihood=self.likelihood,
            intensities=self.intensities,
            background_classes=self.background_classes,
            shared=tuple("+".join(map(str, together)) for together in self.shared),
            shape_weight=self.shape_weight,
            label_weight=self.label_weight,
            refine=self.refine,
            width=self.width,
            pretrain_epochs=self.pretrain_epochs,
            epochs=self.epochs,
            batch_size=self.batch_size,
            seed=self.random_state,
        )
        fixed = None
        if self.fixed is not None:
            mean, std = self.fixed
            fixed = torch.tensor(mean, dtype=torch.float32), torch.tensor(std, dtype=torch.float32)
        checked = [as_scan(one, number, len(self.prior_.grid)) for number, one in enumerate(scans)]
        gridded = grid_scans(checked, self.prior_.grid, self.align)
        device = choose_device(self.device)
        try:
            self.model_, _ = train_model(
                self.prior_,
                self.table_.ids,
                gridded,
                settings,
                self.align,
                fixed=fixed,
                device=device,
            )
        except Interrupted:
            raise KeyboardInterrupt from None
        return self

    def segment(self, scan: NDArray[Any]) -> Segmentation:
        """All that the model says about one scan, in the scan's own voxels."""
        check_is_fitted(self, "model_")
        return self.model_.segment(as_scan(scan, 0, len(self.prior_.grid)).to(self.model_.mean.device))

    def predict(self, scans: Volumes) -> list[NDArray[np.int64]]:
        """The most probable label id of every voxel of every scan."""
        return [self.table_.to_ids(self.segment(one).labels.cpu().numpy()) for one in scans]

    def predict_proba(self, scans: Volumes) -> list[NDArray[np.float32]]:
        """The probability of every label at every voxel, ``[labels, *shape]`` for each scan, as in ``classes_``."""
        return [self.segment(one).probabilities.cpu().numpy() for one in scans]


def whole_numbers(label_map: NDArray[Any], number: int) -> NDArray[np.int64]:
    """A label map as integers, if it is one."""
    array = np.asarray(label_map)
    if array.ndim not in (2, 3) or not np.isfinite(array).all() or not np.array_equal(np.rint(array), array):
        raise ValueError(
            f"label map {number} must hold whole numbers in 2 or 3 dimensions, not {array.dtype} {array.shape}"
        )
    return array.astype(np.int64)


def as_scan(scan: NDArray[Any], number: int, dimensions: int) -> Tensor:
    """A scan as a tensor, if it is one."""
    array = np.asarray(scan, np.float32)
    if array.ndim != dimensions:
        raise ValueError(f"scan {number} must have {dimensions} dimensions as the label maps, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"scan {number} has voxels that are NaN or infinite; give them a value first")
    return torch.from_numpy(array)
