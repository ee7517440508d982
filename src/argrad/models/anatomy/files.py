"""One labelled scan and the files that tell of it, for the command line and the web app."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from argrad.data.label_table import LabelTable
from argrad.data.nifti import Volume, image_bytes
from argrad.models.anatomy.model import AnatomyModel
from argrad.models.anatomy.page import quality_page, volumes_csv

__all__ = ["LabelledScan", "label_scan"]


@final
@dataclass(frozen=True)
class LabelledScan:
    """A scan, and the probability of every label at each of its voxels."""

    scan: Volume
    probabilities: NDArray[np.float32]
    """``[labels, X, Y, Z]``, canonical."""
    table: LabelTable

    @cached_property
    def indices(self) -> NDArray[np.int64]:
        """The most probable label of every voxel, as numbers from 0."""
        indices: NDArray[np.int64] = self.probabilities.argmax(0)
        return indices

    @cached_property
    def names(self) -> dict[int, str]:
        """Names by label id, background first."""
        return dict(zip(self.table.ids, self.table.names, strict=True))

    def millilitres(self) -> dict[str, float]:
        """The volume of every structure."""
        counts = np.bincount(self.indices.ravel(), minlength=len(self.table))
        return {
            name: int(count) * self.scan.voxel_volume / 1000
            for name, count in zip(self.table.names[1:], counts[1:], strict=True)
        }

    def label_map(self, path: Path) -> bytes:
        """The contents of a label map of this name, which overlays the scan voxel by voxel."""
        return image_bytes(self.scan, self.table.to_ids(self.indices), path)

    def posterior(self, path: Path) -> bytes:
        """The contents of a file of this name with a map of probabilities for each label."""
        return image_bytes(self.scan, self.probabilities.transpose(1, 2, 3, 0), path)

    def volumes(self) -> str:
        """A table of volumes, comma-separated."""
        return volumes_csv(self.names, self.table.to_ids(self.indices), self.probabilities, self.scan.voxel_volume)

    def page(self, name: str, details: Mapping[str, Any]) -> str:
        """The page to look it over: HTML with everything inside.

        Args:
            name: what the scan is called.
            details: what else to list.
        """
        return quality_page(
            f"Segmentation of {name}",
            self.scan.data,
            self.indices,
            self.probabilities,
            self.names,
            self.scan.voxel_sizes,
            self.scan.voxel_volume,
            details,
        )


def label_scan(model: AnatomyModel, table: LabelTable, scan: Volume) -> LabelledScan:
    """Label one scan in its own voxels; the model's gradients and mode stay as they are."""
    found = model.segment(torch.from_numpy(scan.data).to(model.mean.device))
    return LabelledScan(scan, found.probabilities.cpu().numpy(), table)
