r"""Stage 1 of segmentation with an anatomical prior: an auto-encoder that learns shapes from label maps alone.

:math:`z \sim N(0, I)`, and given z every voxel is a categorical variable of its own, :math:`p(s|z) = \prod_j
f_{j, s_j}(z)`. A decoder's scores are added to the *location prior*, the smoothed frequency of each label at each
voxel, in log space, and renormalised: :math:`f_j = \mathrm{softmax}(\mathrm{decoder}_j(z) + \log p_{loc, j})`. Volumes
in two or three dimensions; one decoding costs one pass of a small convolutional network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    affine_grid,
    conv2d,
    conv3d,
    grid_sample,
    interpolate,
    max_pool2d,
    max_pool3d,
    one_hot,
    pad,
)

from argrad.latents import Gaussian
from argrad.models.anatomy.variational_bounds import prior_contrastive_bound
from argrad.training import World

__all__ = [
    "AnatomyPrior",
    "ConvDecoder",
    "ConvEncoder",
    "PriorTask",
    "blur",
    "deform",
    "location_prior",
    "region_of_interest",
]

CONVOLUTIONS: dict[int, Any] = {2: nn.Conv2d, 3: nn.Conv3d}
LINEAR = {2: "bilinear", 3: "trilinear"}
FLOOR = 1e-3
"""Added to every frequency of the location prior: a label never seen at a place is unlikely there, not impossible."""
MARGIN = 2
"""By how many voxels the region of interest is wider than all labels that were ever seen."""
AT_ONCE = 2**26
"""How many probabilities are held at a time where nothing is learnt."""


def blur(volumes: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of ``[N, *grid]`` in every direction, the edge repeated beyond itself; 0 leaves all as it is."""
    if sigma <= 0:
        return volumes
    reach = max(1, math.ceil(3 * sigma))
    steps = torch.arange(-reach, reach + 1, dtype=volumes.dtype, device=volumes.device)
    kernel = (-0.5 * (steps / sigma).square()).exp()
    kernel = kernel / kernel.sum()
    dims = volumes.dim() - 1
    convolve, result = (conv2d if dims == 2 else conv3d), volumes.unsqueeze(1)
    for axis in range(dims):
        padding = [0] * (2 * dims)
        padding[2 * (dims - 1 - axis)] = padding[2 * (dims - 1 - axis) + 1] = reach
        shape = [1, 1, *(len(kernel) if axis == other else 1 for other in range(dims))]
        result = convolve(pad(result, padding, mode="replicate"), kernel.view(shape))
    return result.squeeze(1)


def location_prior(label_maps: Tensor, labels: int, *, sigma: float = 0.5, floor: float = FLOOR) -> Tensor:
    """The log of the smoothed frequency of every label at every voxel, ``[labels, *grid]``, normalised over labels.

    Args:
        label_maps: ``[N, *grid]``, whole numbers below ``labels``.
        labels: how many there are.
        sigma: of the blur, in voxels.
        floor: added to each frequency, so that none is zero.

    >>> location_prior(torch.tensor([[[0, 1]], [[0, 0]]]), 2, sigma=0).exp()
    tensor([[[0.9990, 0.5000]],
    <BLANKLINE>
            [[0.0010, 0.5000]]])
    """
    counts = torch.stack([(label_maps == label).float().mean(0) for label in range(labels)])
    frequency = blur(counts, sigma) + floor
    return (frequency / frequency.sum(0)).log()


def deform(volumes: Tensor, generator: torch.Generator, *, rotate: float, scale: float, shift: float) -> Tensor:
    """Random affine copies of one-hot maps ``[N, labels, *grid]``: what a slightly different head would have given.

    Args:
        volumes: probabilities over labels.
        generator: where randomness comes from, on the device of the volumes.
        rotate: standard deviation of the off-diagonal terms (radians, for small angles).
        scale: standard deviation of the scale of each axis.
        shift: standard deviation of the shift, in units of half the grid.
    """
    dims = volumes.dim() - 2
    noise = torch.randn(len(volumes), dims, dims + 1, device=volumes.device, generator=generator)
    sizes = torch.full((dims, dims + 1), rotate, device=volumes.device)
    sizes[:, :dims].fill_diagonal_(scale)
    sizes[:, dims] = shift
    matrix = torch.eye(dims, dims + 1, device=volumes.device) + sizes * noise
    field = affine_grid(matrix, list(volumes.shape), align_corners=False)
    return grid_sample(volumes, field, padding_mode="border", align_corners=False)


@final
class ConvEncoder(nn.Module):
    """Volumes to the mean and log-variance of a Gaussian: strided convolutions and one linear layer.

    Args:
        channels: of the volumes.
        grid: their size; every side a multiple of 8.
        latent: dimensions of z.
        width: channels after the first convolution; they double with each of the three.
    """

    def __init__(self, channels: int, grid: Sequence[int], latent: int, width: int) -> None:
        super().__init__()
        convolution, self.latent = CONVOLUTIONS[len(grid)], latent
        layers: list[nn.Module] = []
        for into, out in ((channels, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [convolution(into, out, 3, stride=2, padding=1), nn.GroupNorm(4, out), nn.SiLU()]
        self.convolutions = nn.Sequential(*layers)
        self.linear = nn.Linear(4 * width * math.prod(side // 8 for side in grid), 2 * latent)

    def forward(self, volumes: Tensor) -> Gaussian:
        """q(z | volume) for ``[N, channels, *grid]``."""
        mean, logvar = self.linear(self.convolutions(volumes).flatten(1)).split(self.latent, -1)
        return Gaussian(mean, logvar.clamp(-10, 10), validate=False)


@final
class ConvDecoder(nn.Module):
    """z to volumes ``[N, channels, *grid]``: one linear layer, then convolutions and interpolation up to the grid.

    The last convolution works at half the grid and its scores are interpolated: a smooth score has its boundary between
    voxels, and the widest layers cost an eighth.
    """

    def __init__(self, channels: int, grid: Sequence[int], latent: int, width: int) -> None:
        super().__init__()
        convolution = CONVOLUTIONS[len(grid)]
        self.grid, self.mode = tuple(grid), LINEAR[len(grid)]
        self.start = (4 * width, *(side // 8 for side in grid))
        self.linear = nn.Linear(latent, math.prod(self.start))
        self.first = convolution(4 * width, 2 * width, 3, padding=1)
        self.second = convolution(2 * width, width, 3, padding=1)
        self.last = convolution(width, channels, 3, padding=1)
        nn.init.normal_(self.last.weight, std=0.02)
        nn.init.zeros_(self.last.bias)

    def forward(self, z: Tensor) -> Tensor:
        """One volume for every row of z."""
        volumes = self.linear(z).view(-1, *self.start)
        for layer in (self.first, self.second):
            volumes = nn.functional.silu(layer(interpolate(volumes, scale_factor=2, mode=self.mode)))
        return interpolate(self.last(volumes), size=self.grid, mode=self.mode)


@final
class AnatomyPrior(nn.Module):
    """The shape model: label map → q(z|s), and z → probabilities of every label at every voxel.

    Args:
        location: log of the location prior, ``[labels, *grid]``, as :func:`location_prior` gives it.
        region: where labels other than background may be, bool ``[*grid]``; None is everywhere.
        latent: dimensions of z.
        width: of the networks.

    >>> prior = AnatomyPrior(torch.zeros(3, 8, 8).log_softmax(0), latent=4, width=4)
    >>> prior.log_probabilities(torch.zeros(2, 4)).shape
    torch.Size([2, 3, 8, 8])
    """

    location: Tensor
    region: Tensor

    def __init__(self, location: Tensor, region: Tensor | None = None, *, latent: int = 32, width: int = 8) -> None:
        super().__init__()
        labels, *grid = location.shape
        check_grid(grid)
        check_networks(latent, width)
        self.register_buffer("location", location)
        self.register_buffer("region", torch.ones(grid, dtype=torch.bool) if region is None else region)
        self.labels, self.grid, self.latent = labels, tuple(grid), latent
        self.encoder = ConvEncoder(labels, grid, latent, width)
        self.decoder = ConvDecoder(labels, grid, latent, 2 * width)

    @classmethod
    def from_label_maps(
        cls, label_maps: Tensor, labels: int, *, latent: int = 32, width: int = 8, sigma: float = 0.5
    ) -> AnatomyPrior:
        """An untrained prior whose location prior and region come from label maps ``[N, *grid]``."""
        return cls(
            location_prior(label_maps, labels, sigma=sigma),
            region_of_interest(label_maps),
            latent=latent,
            width=width,
        )

    def posterior(self, maps: Tensor) -> Gaussian:
        """q(z|s) for one-hot or soft label maps ``[N, labels, *grid]``."""
        return self.encoder(maps)  # type: ignore[no-any-return]

    def log_probabilities(self, z: Tensor) -> Tensor:
        """log f(z), ``[N, labels, *grid]``, normalised over labels."""
        scores: Tensor = self.decoder(z) + self.location
        return scores.log_softmax(1)

    def log_likelihood(self, maps: Tensor, z: Tensor) -> Tensor:
        """log p(s|z), the sum over voxels, for one-hot or soft label maps; ``[N]``."""
        return (maps * self.log_probabilities(z)).flatten(1).sum(1)

    def bound(self, maps: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The lower bound on log p(s) of every label map, ``[N]``, from one draw of z."""
        return prior_contrastive_bound(
            lambda z: self.log_likelihood(maps, z[0])[None], self.posterior(maps), generator=generator
        )

    def at_once(self) -> int:
        """How many volumes may be decoded together where memory matters."""
        return max(1, AT_ONCE // (self.labels * math.prod(self.grid)))

    def one_hot(self, label_maps: Tensor) -> Tensor:
        """Whole-number label maps ``[N, *grid]`` as ``[N, labels, *grid]``."""
        return one_hot(label_maps.long(), self.labels).movedim(-1, 1).float()


def check_grid(grid: Sequence[int]) -> None:
    """Refuse a working grid that the networks cannot halve three times."""
    if len(grid) not in CONVOLUTIONS:
        raise ValueError(f"the working grid needs 2 or 3 sides, got {tuple(grid)}")
    if any(side < 8 or side % 8 for side in grid):
        raise ValueError(f"every side of the working grid must be a multiple of 8, got {tuple(grid)}")


def check_networks(latent: int, width: int) -> None:
    """Refuse networks that cannot be built."""
    if width < 4 or width % 4:
        raise ValueError(f"width must be a multiple of 4, got {width}")
    if latent < 1:
        raise ValueError(f"latent must be at least 1, got {latent}")


def region_of_interest(label_maps: Tensor, margin: int = MARGIN) -> Tensor:
    """Where any label map ``[N, *grid]`` has a label above 0, and a margin around it: bool ``[*grid]``."""
    seen = (label_maps > 0).any(0)[None, None].float()
    widen = max_pool2d if seen.dim() == 4 else max_pool3d
    return widen(seen, 2 * margin + 1, 1, margin)[0, 0] > 0


@final
class PriorTask:
    """The prior and its label maps, as the training loop wants them.

    Args:
        module: on its device already.
        train: label maps ``[N, *grid]``, small whole numbers, on the same device.
        validation: label maps that choose the best epoch; the training maps where there are none.
        augment: 1 for small random rotations, scalings and shifts of the training maps, 0 for none.
    """

    def __init__(self, module: AnatomyPrior, train: Tensor, validation: Tensor, *, augment: float = 1.0) -> None:
        self.module = module
        self.train = train
        self.validation = validation if len(validation) else train
        self.augment = augment
        self.train_size = len(train)
        self.device = train.device

    def set_step(self, step: int) -> None:
        """Nothing follows a schedule."""

    def losses(self, batch: Tensor, generator: torch.Generator, world: World) -> Tensor:
        """The negative bound of each label map, in nats."""
        maps = self.module.one_hot(self.train[batch])
        if self.augment > 0:
            a = self.augment
            maps = deform(maps, generator, rotate=0.05 * a, scale=0.04 * a, shift=0.03 * a)
        return -self.module.bound(world.share(maps), generator=generator)

    def validate(self, generator: torch.Generator) -> dict[str, float]:
        """The negative bound on maps that were not trained on, always with the same noise."""
        fixed = torch.Generator(self.device).manual_seed(0)
        total = 0.0
        for chunk in self.validation.split(self.module.at_once()):
            total -= float(self.module.bound(self.module.one_hot(chunk), generator=fixed).sum())
        return {"loss": total / len(self.validation)}

    def after_epoch(self, epoch: int, optimiser: torch.optim.Optimizer, generator: torch.Generator) -> dict[str, float]:
        """Nothing is done between epochs."""
        return {}
