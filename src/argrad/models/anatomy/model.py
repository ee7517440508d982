r"""Stage 2 of segmentation with an anatomical prior: from scans without labels to labels.

An image encoder gives q(z|x), the decoder of :mod:`argrad.models.anatomy.prior` stays as stage 1 left it, and
intensities are Gaussian mixtures per label (:mod:`argrad.models.anatomy.intensities`). Maximised is

.. math:: w \, E_{q(z|x)}[\log p(x|z)] - \mathrm{KL}(q(z|x) \,\|\, N(0, I))

with the exact :math:`\log p(x|z)`. With w = 1 (``shape_weight``) this is the lower bound on log p(x) of a model whose
voxels are independent given the labels. Those of a scan are not: neighbours share partial volume, texture and shading,
so that a hundred of them say about as much as a few, and w < 1 counts them so. For the same reason voxels are labelled
by :math:`f_{jm}(z) \, p(x_j|m)^v` with v (``label_weight``) of its own: 1 is the posterior, 0 the shape alone.

One scan costs one pass of the encoder and, for every step of refinement, one pass of the decoder and back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor, nn

from argrad.data.working_grid import Alignment, from_grid, scale_intensities, to_grid
from argrad.estimators import Estimator
from argrad.latents import Categorical, Gaussian
from argrad.models.anatomy.intensities import Classes, Intensities, Mode, fit_intensities, image_log_likelihood
from argrad.models.anatomy.prior import AnatomyPrior, ConvDecoder, ConvEncoder, blur
from argrad.models.anatomy.variational_bounds import prior_contrastive_bound
from argrad.training import World

__all__ = ["AnatomyModel", "Reading", "ScanTask", "Segmentation", "sampled_log_likelihood"]

MAP_SIGMA = 1.0
"""Blur of the maps of class weights, in voxels."""
MAP_FLOOR = 0.02
"""Scans' worth of even weights added to the maps, as a share of all scans."""
PRETRAINING_SPREAD = 0.1
"""Standard deviation of the Gaussian that the image auto-encoder reconstructs with."""
REFINEMENT_RATE = 0.1


@final
@dataclass(frozen=True)
class Reading:
    """How scans become labels."""

    likelihood: Literal["exact", "jensen"] = "exact"
    """log p(x|z) as a sum over labels at every voxel, or Jensen's bound on it."""
    intensities: Mode = "image"
    """Intensity parameters for each image, global ones, or fixed ones."""
    maps: bool = True
    """Learn from all scans which intensity class background has where."""
    shape_weight: float = 0.03
    """What a voxel's intensity counts for when the shape is inferred; 1 is the bound on log p(x)."""
    label_weight: float = 0.3
    """What it counts for when the voxel is labelled; 1 is the posterior, 0 leaves the shape alone to decide."""
    refine: int = 40
    """Gradient steps on z for each scan after the encoder has spoken."""

    def __post_init__(self) -> None:
        if self.likelihood not in ("exact", "jensen"):
            raise ValueError(f'likelihood must be "exact" or "jensen", got {self.likelihood!r}')
        if self.intensities not in ("image", "global", "fixed"):
            raise ValueError(f'intensities must be "image", "global" or "fixed", got {self.intensities!r}')
        for name in ("shape_weight", "label_weight", "refine"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")


@final
@dataclass(frozen=True)
class Segmentation:
    """One scan, labelled in its own voxels."""

    probabilities: Tensor
    """``[labels, *shape]``, summing to one."""
    z: Tensor
    """The shape, ``[latent]``."""
    mean: Tensor
    """Of the intensity classes, on the scale where the scan's 1 % and 99 % quantiles are 0 and 1."""
    std: Tensor

    @property
    def labels(self) -> Tensor:
        """The most probable label of every voxel, ``[*shape]``."""
        return self.probabilities.argmax(0)


@final
class AnatomyModel(nn.Module):
    """A frozen shape prior, an image encoder, and intensities.

    Args:
        prior: as stage 1 left it; it is not trained any more.
        classes: intensity classes of the labels.
        reading: how scans become labels.
        width: of the image encoder.
        align: how scans come onto the prior's grid.
    """

    voxels: Tensor
    log_weight: Tensor
    mean: Tensor
    std: Tensor
    fitted: Tensor

    def __init__(
        self,
        prior: AnatomyPrior,
        classes: Classes,
        reading: Reading | None = None,
        *,
        width: int = 8,
        align: Alignment = "fit",
    ) -> None:
        super().__init__()
        if len(classes.group_of_label) != prior.labels:
            raise ValueError(f"classes are for {len(classes.group_of_label)} labels, the prior has {prior.labels}")
        self.prior = prior.requires_grad_(False)
        self.classes, self.align = classes, align
        self.reading = reading or Reading()
        self.encoder = ConvEncoder(1, prior.grid, prior.latent, width)
        self.image_decoder = ConvDecoder(1, prior.grid, prior.latent, width)
        number = classes.number
        self.register_buffer("voxels", prior.region.flatten().nonzero().squeeze(1), persistent=False)
        even = classes.even_log_weight()[:, None].expand(number, len(self.voxels))
        self.register_buffer("log_weight", even.clone())
        self.register_buffer("mean", torch.zeros(number))
        self.register_buffer("std", torch.ones(number))
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))

    def inside(self, volumes: Tensor) -> Tensor:
        """The voxels of the region of interest: ``[..., *grid]`` to ``[..., V]``."""
        return volumes.flatten(-len(self.prior.grid))[..., self.voxels]

    def log_f(self, z: Tensor) -> Tensor:
        """Log-probabilities of labels in the region, ``[N, labels, V]``."""
        return self.inside(self.prior.log_probabilities(z))

    def set_intensities(self, mean: Tensor, std: Tensor) -> None:
        """Fix the intensities, on the scale where a scan's 1 % and 99 % quantiles are 0 and 1."""
        if mean.shape != self.mean.shape or std.shape != self.std.shape or not bool((std > 0).all()):
            raise ValueError(
                f"fixed intensities need {len(self.mean)} means and positive standard deviations, one for each class, "
                f"got {tuple(mean.shape)} and {tuple(std.shape)}"
            )
        self.mean.copy_(mean)
        self.std.copy_(std)
        self.fitted.fill_(True)

    def learn_intensities(self, scans: Tensor, *, iterations: int = 25) -> None:
        """Learn from all scans together what they share: maps of class weights, and global intensities.

        EM with the location prior in the place of the shape, which is not known yet.

        Args:
            scans: scaled, on the grid, ``[N, *grid]``.
            iterations: of EM.
        """
        mode, location = self.reading.intensities, self.inside(self.prior.location)[None]
        fixed = self._shared() if mode == "fixed" else None
        if not self.reading.maps and mode == "image":
            return
        with torch.no_grad():
            found = fit_intensities(
                self.inside(scans),
                location,
                self.classes,
                mode=mode,
                iterations=iterations,
                maps=(lambda total: self._smooth(total, len(scans))) if self.reading.maps else None,
                given=fixed,
            )
        self.log_weight.copy_(found.log_weight[0].expand_as(self.log_weight))
        if mode == "global":
            self.mean.copy_(found.mean[0])
            self.std.copy_(found.std[0])
        self.fitted.fill_(True)

    def intensities_of(self, x: Tensor, log_f: Tensor | None = None, *, iterations: int = 25) -> Intensities:
        """The intensities of scans given by their voxels in the region, ``[N, V]``: EM for each, or those of all."""
        if self.reading.intensities != "image":
            return self._shared(self.log_weight[None])
        log_f = self.inside(self.prior.location)[None] if log_f is None else log_f
        start = None
        if self.reading.maps:
            start = fit_intensities(x, log_f, self.classes, iterations=0)
            start = Intensities(self.classes, start.mean, start.std, self.log_weight[None])
        with torch.no_grad():
            return fit_intensities(x, log_f, self.classes, iterations=iterations, given=start)

    def log_likelihood(self, z: Tensor, log_density: Tensor) -> Tensor:
        """log p(x|z) or its bound, ``[N]``; ``log_density`` is that of the scans' voxels, ``[N, labels, V]``."""
        return image_log_likelihood(self.log_f(z), log_density, self.reading.likelihood)

    def bound(self, scans: Tensor, log_density: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The weighted lower bound of every scan, ``[N]``, from one draw of z."""
        q: Gaussian = self.encoder(scans.unsqueeze(1))
        return prior_contrastive_bound(
            lambda z: self.reading.shape_weight * self.log_likelihood(z[0], log_density)[None], q, generator=generator
        )

    def image_bound(self, scans: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The lower bound of an image auto-encoder with the same image encoder, with which training starts, ``[N]``."""

        def log_likelihood(z: Tensor) -> Tensor:
            error = self.inside(self.image_decoder(z[0])[:, 0] - scans) / PRETRAINING_SPREAD
            return self.reading.shape_weight * -0.5 * error.square().sum(-1)[None]

        return prior_contrastive_bound(log_likelihood, self.encoder(scans.unsqueeze(1)), generator=generator)

    def infer(self, scans: Tensor, log_density: Tensor) -> Tensor:
        """The most probable shape of every scan, ``[N, latent]``: the encoder's mean, refined by gradient steps."""
        with torch.no_grad():
            z = self.encoder(scans.unsqueeze(1)).mean
        return self.refine(z, log_density, self.reading.refine)

    def refine(self, z: Tensor, log_density: Tensor, steps: int) -> Tensor:
        """Gradient steps on w log p(x|z) + log p(z) from a first z ``[N, latent]``; no label is looked at."""
        return self.climb(z, lambda at: self.log_likelihood(at, log_density), steps)

    def climb(self, z: Tensor, log_likelihood: Callable[[Tensor], Tensor], steps: int) -> Tensor:
        """The same for any function of z ``[N, latent]`` to log p(x|z) ``[N]``, or an estimate of it."""
        with torch.enable_grad():
            z = z.detach().clone().requires_grad_()
            optimiser = torch.optim.Adam([z], REFINEMENT_RATE)
            for _ in range(steps):
                optimiser.zero_grad()
                (0.5 * z.square().sum() - self.reading.shape_weight * log_likelihood(z).sum()).backward()
                optimiser.step()
        return z.detach()

    def segment(self, scan: Tensor) -> Segmentation:
        """Label one scan ``[*shape]`` in its own voxels.

        Shape and intensities are found on the grid; the shape and the maps are then brought to the scan's voxels, where
        its intensities are read as they are.
        """
        if scan.dim() != len(self.prior.grid):
            raise ValueError(f"a scan needs {len(self.prior.grid)} dimensions, got shape {tuple(scan.shape)}")
        if not bool(self.fitted) and (self.reading.maps or self.reading.intensities != "image"):
            raise ValueError("the model has not seen any scans; fit it first")
        scaled = scale_intensities(scan)
        gridded = to_grid(scaled[None], self.prior.grid, self.align)
        x = self.inside(gridded)
        intensities = self.intensities_of(x)
        z = self.infer(gridded, intensities.log_density(x))
        with torch.no_grad():
            return self.label(scaled, z, intensities)

    def label(self, scaled: Tensor, z: Tensor, intensities: Intensities) -> Segmentation:
        """Label one scaled scan ``[*shape]`` given its shape ``[1, latent]`` and intensities."""
        shape = scaled.shape
        log_f = from_grid(self.prior.log_probabilities(z)[0], shape, self.align, beyond=-torch.inf)
        log_f[0] = log_f[0].nan_to_num(0.0, neginf=0.0)  # beyond the grid all is background
        reach = from_grid(self.prior.region[None].float(), shape, self.align)[0].flatten() > 0.5
        weights = intensities.log_weight[0].expand(self.classes.number, len(self.voxels))
        volume = weights.new_zeros(self.classes.number, self.prior.region.numel())
        volume[:, self.voxels] = weights.exp()
        weight = from_grid(volume.view(-1, *self.prior.grid), shape, self.align).flatten(1)[:, reach]
        native = Intensities(
            self.classes, intensities.mean, intensities.std, weight.clamp_min(1e-6).log()[None]
        ).log_density(scaled.flatten()[reach][None])[0]
        scores = log_f.flatten(1).log_softmax(0)
        scores[:, reach] += self.reading.label_weight * native
        return Segmentation(scores.softmax(0).view(-1, *shape), z[0], intensities.mean[0], intensities.std[0])

    def _shared(self, log_weight: Tensor | None = None) -> Intensities:
        """The intensities of all scans; weights are even within each group unless given."""
        if not bool(self.fitted):
            raise ValueError('intensities="fixed" needs means and standard deviations: call set_intensities first')
        if log_weight is None:
            log_weight = self.classes.even_log_weight().to(self.mean.device)[None, :, None]
        return Intensities(self.classes, self.mean[None], self.std[None], log_weight)

    def _smooth(self, total: Tensor, scans: int) -> Tensor:
        """Summed responsibilities ``[classes, V]``, blurred over the grid."""
        volume = total.new_zeros(len(total), self.prior.region.numel())
        volume[:, self.voxels] = total
        blurred = blur(volume.view(-1, *self.prior.grid), MAP_SIGMA).flatten(1)[:, self.voxels]
        return blurred + MAP_FLOOR * scans / self.classes.number


@final
class ScanTask:
    """The model and its scans, as the training loop wants them: first an image auto-encoder, then the bound.

    Args:
        module: on its device already, its intensities learnt.
        train: scaled scans on the grid, ``[N, *grid]``, on the same device.
        validation: scans that choose the best epoch; the training scans where there are none.
        pretraining: steps as an image auto-encoder.
    """

    def __init__(self, module: AnatomyModel, train: Tensor, validation: Tensor, *, pretraining: int) -> None:
        self.module = module
        self.train = train
        self.validation = validation if len(validation) else train
        self.intensities = module.intensities_of(module.inside(train))
        self.validation_intensities = module.intensities_of(module.inside(self.validation))
        self.pretraining = pretraining
        self.step = 0
        self.train_size = len(train)
        self.device = train.device

    def set_step(self, step: int) -> None:
        """Remember where training is."""
        self.step = step

    def losses(self, batch: Tensor, generator: torch.Generator, world: World) -> Tensor:
        """The negative bound of each scan: the image auto-encoder's at first, then the segmentation model's."""
        batch = world.share(batch)
        scans = self.train[batch]
        if self.step < self.pretraining:
            return -self.module.image_bound(scans, generator=generator)
        log_density = self.intensities.rows(batch).log_density(self.module.inside(scans))
        return -self.module.bound(scans, log_density, generator=generator)

    def validate(self, generator: torch.Generator) -> dict[str, float]:
        """The negative weighted bound, always with the same noise."""
        fixed = torch.Generator(self.device).manual_seed(0)
        total, size = 0.0, self.module.prior.at_once()
        for start in range(0, len(self.validation), size):
            rows = slice(start, start + size)
            scans = self.validation[rows]
            density = self.validation_intensities.rows(rows).log_density(self.module.inside(scans))
            total -= float(self.module.bound(scans, density, generator=fixed).sum())
        return {"loss": total / len(self.validation)}

    def after_epoch(self, epoch: int, optimiser: torch.optim.Optimizer, generator: torch.Generator) -> dict[str, float]:
        """Nothing is done between epochs."""
        return {}


def sampled_log_likelihood(
    log_f: Tensor,
    log_density: Tensor,
    estimator: Estimator,
    *,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    """E_{s ~ f}[log p(x|s)] from one segmentation drawn by Gumbel-max at every voxel, ``[N]``.

    The expectation is Jensen's bound, Σ_j Σ_m f_jm log p(x_j|m), which is known in closed form: this is for comparison,
    and for costs of whole segmentations that do not factorise.

    Args:
        log_f: log-probabilities of labels, ``[N, labels, V]``.
        log_density: log p(x_j | label), ``[N, labels, V]``.
        estimator: of the gradient through the segmentation, such as ``GumbelSoftmax(straight_through=True)`` or
            ``Direct(changes="gradient")``, which is exact in the cost since that is linear in s.
        generator: where the Gumbel noise comes from.
        noise: the noise itself, ``[N, V, labels]``.
    """
    density = log_density.movedim(1, -1)
    latent = Categorical(log_f.movedim(1, -1), event_dims=2, validate=False)
    cost: Tensor = estimator(latent, lambda s: -(s * density).sum((-2, -1)), generator=generator, noise=noise)
    return -cost
