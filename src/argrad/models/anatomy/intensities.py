r"""Intensities given labels: Gaussian mixtures per label, their exact likelihood, and EM updates in closed form.

Each *group* of labels shares a few intensity classes, each a Gaussian: background is a mixture of several, and the two
parts of one organ may share a single one. Within a group the weights of the classes are the same at all voxels, or a
map learnt from all scans together: which tissue background is made of depends on the place, and a prior that does not
know it takes for the organ whatever looks like it. With labels distributed as f at every voxel,

.. math:: \log p(x|z) = \sum_j \log \sum_m f_{jm} \sum_k w_{jk} N(x_j; \mu_k, \sigma_k^2)

exactly, since voxels are independent given z. Jensen's bound moves the logarithm inside the sum over m. Neither leaves
out :math:`-\log\sigma - \frac12 \log 2\pi`: it is weighted by f, so it is no constant. All costs are linear in the
number of voxels times classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

__all__ = ["Classes", "Intensities", "fit_intensities", "image_log_likelihood"]

Mode = Literal["image", "global", "fixed"]
PSEUDO_VOXELS = 5.0
"""How many voxels the old mean and a spread of SPREAD count for: a class that loses all its voxels stays put."""
SPREAD = 0.1
LEAST_SPREAD = 0.02
AT_ONCE = 2**24
"""How many numbers one step may hold at a time."""


@final
@dataclass(frozen=True)
class Classes:
    """Which labels share intensity classes, and how many classes each group of labels has.

    >>> Classes.of(3, shared=((1, 2),), background=4)
    Classes(group_of_label=(0, 1, 1), classes_of_group=(4, 1))
    """

    group_of_label: tuple[int, ...]
    classes_of_group: tuple[int, ...]

    def __post_init__(self) -> None:
        groups = set(self.group_of_label)
        if groups != set(range(len(self.classes_of_group))):
            raise ValueError(
                f"labels belong to groups {sorted(groups)}, but {len(self.classes_of_group)} groups have classes"
            )
        if min(self.classes_of_group) < 1:
            raise ValueError(f"every group needs at least one intensity class, got {self.classes_of_group}")

    @classmethod
    def of(cls, labels: int, *, shared: Sequence[Sequence[int]] = (), background: int = 4, others: int = 1) -> Classes:
        """Label 0 with some classes; every other label with its own, but for those that share.

        Args:
            labels: how many there are.
            shared: sets of labels, each of which looks alike; sets with a label in common are one.
            background: classes of label 0.
            others: classes of every other group.
        """
        group = list(range(labels))
        for together in shared:
            wrong = [label for label in together if not 0 < label < labels]
            if wrong:
                raise ValueError(f"labels that share intensities must be from 1 to {labels - 1}, got {wrong}")
            joined = {group[label] for label in together}
            group = [min(joined) if one in joined else one for one in group]
        numbers = {old: new for new, old in enumerate(sorted(set(group)))}
        return cls(tuple(numbers[old] for old in group), (background, *(others for _ in range(len(numbers) - 1))))

    @property
    def number(self) -> int:
        """Classes in all."""
        return sum(self.classes_of_group)

    def even_log_weight(self) -> Tensor:
        """The logarithm of equal weights within each group, ``[classes]``."""
        return -torch.tensor([float(number) for number in self.classes_of_group for _ in range(number)]).log()

    def of_group(self, group: int) -> slice:
        """The classes of one group."""
        start = sum(self.classes_of_group[:group])
        return slice(start, start + self.classes_of_group[group])

    def group_probabilities(self, log_f: Tensor) -> Tensor:
        """log f summed over the labels of each group: ``[N, labels, V]`` to ``[N, groups, V]``."""
        members = [
            [label for label, of in enumerate(self.group_of_label) if of == group]
            for group in range(len(self.classes_of_group))
        ]
        return torch.stack([log_f[:, of[0]] if len(of) == 1 else log_f[:, of].logsumexp(1) for of in members], 1)


@final
@dataclass
class Intensities:
    """Means and standard deviations ``[N, classes]``, and log-weights within each group, ``[N or 1, classes, V or 1]``.

    N may be 1: the same for all scans.
    """

    classes: Classes
    mean: Tensor
    std: Tensor
    log_weight: Tensor

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x_j | label) for every label: x ``[N, V]`` to ``[N, labels, V]``."""
        weighted = self.class_log_density(x) + self.log_weight
        groups = [
            weighted[:, self.classes.of_group(group)].logsumexp(1)
            if number > 1
            else weighted[:, self.classes.of_group(group).start]
            for group, number in enumerate(self.classes.classes_of_group)
        ]
        return torch.stack([groups[group] for group in self.classes.group_of_label], 1)

    def class_log_density(self, x: Tensor) -> Tensor:
        """log N(x_j; μ_k, σ_k²), ``[N, classes, V]``."""
        mean, std = self.mean.unsqueeze(-1), self.std.unsqueeze(-1)
        return -0.5 * ((x.unsqueeze(1) - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)

    def responsibilities(self, x: Tensor, log_f: Tensor) -> Tensor:
        """The probability of every class at every voxel, ``[N, classes, V]``, with labels distributed as f."""
        groups = self.classes.group_probabilities(log_f)
        of_class = [group for group, number in enumerate(self.classes.classes_of_group) for _ in range(number)]
        return (self.class_log_density(x) + self.log_weight + groups[:, of_class]).softmax(1)

    def rows(self, chosen: Tensor | slice) -> Intensities:
        """The intensities of some scans."""
        one = len(self.mean) == 1
        weight = self.log_weight if len(self.log_weight) == 1 else self.log_weight[chosen]
        return Intensities(
            self.classes, self.mean if one else self.mean[chosen], self.std if one else self.std[chosen], weight
        )


def image_log_likelihood(
    log_f: Tensor, log_density: Tensor, likelihood: Literal["exact", "jensen"] = "exact"
) -> Tensor:
    """log p(x|z) of every scan, ``[N]``: exactly, or the bound that Jensen's inequality gives.

    Args:
        log_f: log-probabilities of labels, ``[N, labels, V]``.
        log_density: log p(x_j | label), ``[N, labels, V]``.
        likelihood: "exact" is Σ_j log Σ_m f_jm p(x_j|m), "jensen" is Σ_j Σ_m f_jm log p(x_j|m), never above it.

    >>> f, density = torch.tensor([[[0.5], [0.5]]]).log(), torch.tensor([[[0.0], [-200.0]]])
    >>> image_log_likelihood(f, density), image_log_likelihood(f, density, "jensen")
    (tensor([-0.6931]), tensor([-100.]))
    """
    if likelihood == "exact":
        return (log_f + log_density).logsumexp(1).sum(-1)
    if likelihood == "jensen":
        return (log_f.exp() * log_density).sum((1, 2))
    raise ValueError(f'likelihood must be "exact" or "jensen", got {likelihood!r}')


def fit_intensities(
    x: Tensor,
    log_f: Tensor,
    classes: Classes,
    *,
    mode: Mode = "image",
    iterations: int = 25,
    maps: Callable[[Tensor], Tensor] | None = None,
    given: Intensities | None = None,
) -> Intensities:
    """EM of the intensities with labels distributed as f, which stays as it is.

    Args:
        x: scaled scans, ``[N, V]``.
        log_f: log-probabilities of labels, ``[1, labels, V]`` or one per scan.
        classes: which labels have which intensity classes.
        mode: parameters for each "image", "global" ones for all scans, or "fixed" as given.
        iterations: of EM.
        maps: makes maps of class weights of summed responsibilities ``[classes, V]``, for instance by smoothing them;
            None gives each group the same weights at all voxels, per scan or for all, as ``mode`` says.
        given: where to start; its maps of weights, if it has any, are kept. Needed with mode "fixed".
    """
    if mode == "fixed" and given is None:
        raise ValueError('intensities="fixed" needs means and standard deviations to be given')
    keep_maps = given is not None and given.log_weight.shape[-1] > 1
    at = given if given is not None else _first_guess(x, log_f, classes)
    if mode == "global" and len(at.mean) > 1:
        at = Intensities(classes, at.mean.mean(0, True), at.std.mean(0, True), at.log_weight)
    for _ in range(iterations):
        statistics, total = _expectations(x, log_f, at)
        if mode != "image":
            statistics = statistics.sum(1, keepdim=True)
        mean, std = (at.mean, at.std) if mode == "fixed" else _moments(statistics, at)
        if keep_maps:
            log_weight = at.log_weight
        elif maps is not None:
            log_weight = _normalised(maps(total), classes).unsqueeze(0)
        else:
            log_weight = _normalised(statistics[0].unsqueeze(-1) + 1.0, classes)
        at = Intensities(classes, mean, std, log_weight)
    return at


def _expectations(x: Tensor, log_f: Tensor, at: Intensities) -> tuple[Tensor, Tensor]:
    """Responsibilities summed with 1, x and x² over voxels, ``[3, N, classes]``, and over scans, ``[classes, V]``."""
    size = max(1, AT_ONCE // (at.classes.number * x.shape[1]))
    statistics, total = [], x.new_zeros(at.classes.number, x.shape[1])
    for start in range(0, len(x), size):
        rows = slice(start, start + size)
        some, f = x[rows], log_f if len(log_f) == 1 else log_f[rows]
        r, numbers = at.rows(rows).responsibilities(some, f), some.unsqueeze(1)
        statistics.append(torch.stack([r.sum(2), (r * numbers).sum(2), (r * numbers.square()).sum(2)]))
        total += r.sum(0)
    return torch.cat(statistics, 1), total


def _moments(statistics: Tensor, old: Intensities) -> tuple[Tensor, Tensor]:
    """Means and standard deviations ``[N, classes]`` of summed 1, x and x², with the pseudo-voxels added."""
    count, first, second = statistics
    count = count + PSEUDO_VOXELS
    mean = (first + PSEUDO_VOXELS * old.mean) / count
    square = second + PSEUDO_VOXELS * (old.mean.square() + SPREAD**2)
    return mean, (square / count - mean.square()).clamp_min(LEAST_SPREAD**2).sqrt()


def _normalised(counts: Tensor, classes: Classes) -> Tensor:
    """Log-weights that sum to one within each group, along the dimension before the last."""
    parts = []
    for group in range(len(classes.classes_of_group)):
        part = counts[..., classes.of_group(group), :]
        parts.append((part / part.sum(-2, keepdim=True)).log())
    return torch.cat(parts, -2)


def _first_guess(x: Tensor, log_f: Tensor, classes: Classes) -> Intensities:
    """Each group's classes at evenly spaced quantiles of the intensities where the group is likely."""
    ordered, order = x.sort(1)
    groups = classes.group_probabilities(log_f).exp().expand(len(x), -1, -1)
    means = []
    for group, number in enumerate(classes.classes_of_group):
        weight = groups[:, group].gather(1, order).cumsum(1)
        weight = weight / weight[:, -1:]
        at = (torch.arange(number, device=x.device) + 0.5) / number
        found = torch.searchsorted(weight.contiguous(), at.expand(len(x), -1).contiguous()).clamp_max(x.shape[1] - 1)
        means.append(ordered.gather(1, found))
    mean = torch.cat(means, 1)
    weight = classes.even_log_weight().to(x.device)
    return Intensities(classes, mean, torch.full_like(mean, SPREAD), weight[None, :, None])
