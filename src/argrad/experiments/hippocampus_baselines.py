"""What the segmentation model stands beside: the location prior, a Gaussian mixture with it, and a supervised U-Net."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool3d, cross_entropy, interpolate, one_hot

from argrad.data.working_grid import Alignment, from_grid, scale_intensities, to_grid
from argrad.experiments.hippocampus_data import Cases
from argrad.models.anatomy.intensities import Classes, fit_intensities
from argrad.models.anatomy.run import grid_scans

__all__ = ["UNet", "mixture", "read_location", "read_unet", "train_unet"]

LEARNING_RATE = 3e-3
BATCH = 2
"""Scans per step of the U-Net."""
OUTSIDE = 1e-6
"""Added to every probability, so that where the grid does not reach all labels are possible."""


def read_location(location: Tensor, scan: Tensor, align: Alignment) -> Tensor:
    """The most frequent label at every place; ``location`` is a log-probability ``[labels, *grid]``."""
    return from_grid(location.exp(), scan.shape, align).argmax(0)


def mixture(location: Tensor, region: Tensor, scan: Tensor, align: Alignment, classes: Classes) -> Tensor:
    """EM of a Gaussian mixture whose mixing weights are the location prior, and the most probable label of each voxel.

    Args:
        location: log of the location prior, ``[labels, *grid]``.
        region: outside it only the location prior speaks, bool ``[*grid]``.
        scan: ``[*shape]``.
        align: how the grid lies over the scan.
        classes: intensity classes of the labels.
    """
    scaled = scale_intensities(scan)
    log_f = (from_grid(location.exp(), scan.shape, align) + OUTSIDE).log().log_softmax(0).flatten(1)
    reach = from_grid(region[None].float(), scan.shape, align)[0].flatten() > 0.5
    x = scaled.flatten()[None, reach]
    scores = log_f.clone()
    scores[:, reach] += fit_intensities(x, log_f[None, :, reach], classes).log_density(x)[0]
    return scores.argmax(0).view(scan.shape)


class UNet(nn.Module):
    """Three levels of two convolutions each.

    Args:
        labels: how many scores each voxel gets.
        width: channels of the first level; they double with each.
    """

    def __init__(self, labels: int = 3, width: int = 8) -> None:
        super().__init__()
        sizes = (width, 2 * width, 4 * width)
        self.down = nn.ModuleList([block(1, sizes[0]), block(sizes[0], sizes[1]), block(sizes[1], sizes[2])])
        self.up = nn.ModuleList([block(sizes[2] + sizes[1], sizes[1]), block(sizes[1] + sizes[0], sizes[0])])
        self.last = nn.Conv3d(width, labels, 1)

    def forward(self, scans: Tensor) -> Tensor:
        """Scores ``[N, labels, *grid]`` of scans ``[N, 1, *grid]``."""
        first = self.down[0](scans)
        second = self.down[1](avg_pool3d(first, 2))
        third = self.down[2](avg_pool3d(second, 2))
        second = self.up[0](torch.cat([interpolate(third, scale_factor=2, mode="trilinear"), second], 1))
        first = self.up[1](torch.cat([interpolate(second, scale_factor=2, mode="trilinear"), first], 1))
        scores: Tensor = self.last(first)
        return scores


def block(into: int, out: int) -> nn.Sequential:
    """Two convolutions."""
    layers: list[nn.Module] = []
    for channels in (into, out):
        layers += [nn.Conv3d(channels, out, 3, padding=1), nn.GroupNorm(4, out), nn.SiLU()]
    return nn.Sequential(*layers)


def train_unet(cases: Cases, grid: torch.Size, *, epochs: int, seed: int, device: torch.device) -> UNet:
    """Trained on scans and their own labels, by cross-entropy and soft Dice, with a cosine schedule."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network = UNet().to(device)
    scans = grid_scans(cases.scans, grid, "fit").to(device)
    labels = torch.stack([to_grid(one[None], grid, "fit", labels=True)[0] for one in cases.labels]).long().to(device)
    optimiser = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * -(-len(scans) // BATCH))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for batch in torch.randperm(len(scans), generator=generator).to(device).split(BATCH):
            optimiser.zero_grad()
            overlap_loss(network(scans[batch].unsqueeze(1)), labels[batch]).backward()
            optimiser.step()
            schedule.step()
    return network.eval()


def overlap_loss(scores: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy plus one minus the mean soft Dice of the structures; ``[N, labels, *grid]`` and ``[N, *grid]``."""
    probabilities, hot = scores.softmax(1).flatten(2), one_hot(target, scores.shape[1]).movedim(-1, 1).flatten(2)
    overlap = (2 * (probabilities * hot).sum(2) + 1) / (probabilities.sum(2) + hot.sum(2) + 1)
    return cross_entropy(scores, target) + 1 - overlap[:, 1:].mean()


@torch.no_grad()
def read_unet(network: UNet, scan: Tensor, grid: torch.Size, device: torch.device) -> Tensor:
    """The network's labels in the scan's own voxels."""
    scores = network(grid_scans([scan], grid, "fit").to(device).unsqueeze(1))[0]
    return from_grid(scores.softmax(0), scan.shape, "fit").argmax(0)
