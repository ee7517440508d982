r"""What the semi-supervised VAE is trained on: Eq. (9) of the paper, and what a recipe may add to it.

For unlabelled x the negative ELBO, with c by any estimator and the Gaussian vector of each class re-parameterised:

.. math:: E_{q(c|x)}[-\log p(x|c, z_c) + \mathrm{KL}(q(z|x, c) \,\|\, N(0, I))] + \mathrm{KL}(q(c|x) \,\|\, 1/k)

For labelled (x, y) the negative ELBO of both, with c fixed at y, and a loss ℓ(y, c*) of the class c* that q(c|x)
samples. By default it is direct loss minimisation with c(ε) put at the label: the gradient (c* − y) / ε, which in
expectation is that of the cross-entropy of the label, over ε. A loss of your own goes through ``Direct`` as any cost
does.

(The paper's Eq. (9) writes + E[f] for a quantity to be minimised; what is trained here is −E[f] + KL.)

Everything is a deterministic function of parameters, batch and :class:`Draws`, with any leading dimensions of stacked
models, so it can be stacked, passed through ``vmap`` and captured in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from argrad.estimators import Direct, Estimator, Exact
from argrad.estimators.base import Noise
from argrad.latents import Categorical, Gaussian, Latent, Variables
from argrad.latents.base import can_read_values
from argrad.models.semi_supervised.augmentation import Augmentation
from argrad.models.semi_supervised.module import SemiSupervisedModule

__all__ = [
    "Draws",
    "Losses",
    "MixedCost",
    "Objective",
    "Terms",
    "balance_loss",
    "check_labels",
    "consistency_losses",
    "entropy_losses",
    "labelled_bound",
]

TaskLoss = Callable[[Tensor, Tensor], Tensor]
"""ℓ(z, y) of one-hot classes ``[*batch, k]``, one number each, to be minimised."""


@final
@dataclass(frozen=True)
class Terms:
    """The weight of every term; what the recipe adds to Eq. (9) is off by default."""

    reconstruction: float = 1.0
    """Of −log p(x|c, z) in the negative ELBO."""
    gaussian_kl: float = 1.0
    """Of the Gaussian's KL: above 1 limits what the continuous part may carry, so that the class has to."""
    class_kl: float = 1.0
    """Of the KL of q(c|x) to equal shares."""
    unlabelled: float = 1.0
    """Of the negative ELBO of unlabelled examples."""
    labelled: float = 1.0
    """Of the negative ELBO of labelled examples at their label."""
    prediction: float = 1.0
    """Of the loss of the predicted class; direct loss minimisation divides it by ε besides."""
    to_classes: float = 1.0
    """Share of the unlabelled ELBO's gradient that reaches the class scores: below 1 keeps the classes, which labels
    have named, from being moved to where they reconstruct best."""
    consistency: float = 0.0
    """Of the agreement between the class of an unlabelled image and that of its augmented copy."""
    confidence: float = 0.95
    """Posterior probability from which on an image's own class counts as a label for its copy."""
    entropy: float = 0.0
    """Of the entropy of q(c|x) of unlabelled examples: makes up its mind."""
    balance: float = 0.0
    """Of the KL of a batch's mean posterior to equal shares: all classes are used."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{field.name} must be a number that is not negative, got {value}")
        if self.confidence > 1 or self.to_classes > 1:
            raise ValueError(f"confidence and to_classes are shares, got {self.confidence} and {self.to_classes}")


class Draws(NamedTuple):
    """All that is random in one step, but for dropout. Parts that a step has no use for are empty."""

    vectors: Tensor
    """Standard normal, ``[*models, B, k, dim]``."""
    classes: Noise
    """The estimator's own."""
    augmented: Tensor
    """Uniform, ``[*models, B, numbers]``."""
    labelled_vectors: Tensor
    """Standard normal, ``[*models, L, dim]``."""
    labelled_classes: Tensor
    """Gumbel, ``[*models, L, k]``."""
    labelled_augmented: Tensor
    """Uniform, ``[*models, L, numbers]``."""


class Losses(NamedTuple):
    """The objective in parts: mean of the first, mean of the second, and the third, added up."""

    unlabelled: Tensor
    """``[*models, B]``."""
    labelled: Tensor
    """``[*models, L]``."""
    batch: Tensor
    """What only a batch has, ``[*models]``."""

    def total(self) -> Tensor:
        """One number for each model, ``[*models]``."""
        total = self.batch
        for part in (self.unlabelled, self.labelled):
            if part.shape[-1]:
                total = total + part.mean(-1)
        return total


@final
class MixedCost:
    """The cost of a class: −log p(x|c, z_c) plus the KL of its Gaussian, for one draw z_c of every class.

    It decodes one class for a sample, and all k, sharing the Gaussian draws, for an estimator that asks for all. Single
    changes are asked for without gradient: then only the sampled class is differentiated.

    Args:
        module: which decodes.
        x: ``[*models, B, features]``.
        gaussian: of every class, ``[*models, B, k, dim]``.
        noise: standard normal of the same shape.
        terms: the weights of reconstruction and KL.
    """

    def __init__(
        self, module: SemiSupervisedModule, x: Tensor, gaussian: Gaussian, noise: Tensor, terms: Terms | None = None
    ) -> None:
        self.module, self.x, self.terms = module, x, terms or Terms()
        self.vectors, self.kl = gaussian.rsample(noise=noise), gaussian.kl()

    def __call__(self, z: Tensor) -> Tensor:
        """The cost of z ``[*extra, *models, B, k]``; for z inside the simplex the decoder reads the mixed blocks."""
        costs = self.module.costs(self.x, self.module.decode_hidden(z, self.vectors))
        return self._weighted(costs, (z * self.kl).sum(-1))

    def all(self, latent: Latent) -> Tensor:
        """The cost of every class, ``[*models, B, k]``."""
        return self._weighted(self.module.costs_of_all(self.x, self.vectors), self.kl)

    @torch.no_grad()
    def single_changes(self, latent: Variables, z: Tensor) -> Tensor:
        """The same without gradient."""
        return self.all(latent)

    def _weighted(self, costs: Tensor, kl: Tensor) -> Tensor:
        if self.terms.reconstruction != 1:
            costs = self.terms.reconstruction * costs
        return costs + (kl if self.terms.gaussian_kl == 1 else self.terms.gaussian_kl * kl)


def labelled_bound(
    module: SemiSupervisedModule, x: Tensor, trunk: Tensor, target: Tensor, noise: Tensor, terms: Terms
) -> Tensor:
    """The negative ELBO of (x, y), ``[*models, L]``: the cost of the label's class, and log k for the prior's share.

    Args:
        module: the model.
        x: ``[*models, L, features]``.
        trunk: what the heads read of it.
        target: y, one-hot ``[*models, L, k]``.
        noise: standard normal, ``[*models, L, dim]``.
        terms: the weights.
    """
    gaussian = module.gaussian_of(trunk, target)
    vectors = gaussian.rsample(noise=noise).unsqueeze(-2).expand(*target.shape, module.latent)
    costs = module.costs(x, module.decode_hidden(target, vectors))
    return terms.reconstruction * costs + terms.gaussian_kl * gaussian.kl() + terms.class_kl * math.log(module.classes)


def consistency_losses(scores: Tensor, augmented: Tensor, confidence: float) -> Tensor:
    """Cross-entropy of an augmented image with the class of the image itself, where that is sure; ``[*batch]``.

    For spreading labels from image to image along small changes, with the image's own class as a hard label (FixMatch;
    Sohn et al., 2020). Images whose most probable class has less than ``confidence`` cost nothing.
    """
    probability, index = scores.detach().softmax(-1).max(-1, keepdim=True)
    chosen = augmented.log_softmax(-1).gather(-1, index)
    return -(chosen * (probability >= confidence)).squeeze(-1)


def entropy_losses(q: Categorical) -> Tensor:
    """The entropy of q(c|x), ``[*batch]``: for class borders that avoid the images (Grandvalet & Bengio, 2004)."""
    return q.entropy()


def balance_loss(q: Categorical) -> Tensor:
    """KL of the batch's mean posterior to equal shares, ``[*models]``: against classes that take over or die out.

    A batch without examples costs nothing.
    """
    if q.scores.shape[-2] == 0:
        return q.scores.sum((-2, -1))
    # A class that underflows to 0 would have an infinite derivative, and a NaN gradient.
    mean = q.mean().mean(-2).clamp_min(torch.finfo(q.scores.dtype).tiny)
    entropy: Tensor = torch.special.entr(mean).sum(-1)
    return math.log(mean.shape[-1]) - entropy


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise a ValueError unless labels are class numbers, where Python may look at them."""
    if labels.numel() == 0 or not can_read_values(labels):
        return
    wrong = (labels < 0) | (labels >= classes)
    if bool(wrong.any()):
        raise ValueError(
            f"labels must be class numbers 0 … {classes - 1}, got {labels[wrong][0].item()} in {int(wrong.sum())} of "
            f"{labels.numel()} places; pass examples without a label as x alone"
        )


@final
class Objective(nn.Module):
    """Eq. (9), and the terms of a recipe.

    Args:
        estimator: of the gradient through the class of unlabelled examples; None is ``Exact()``, which takes k decoder
            passes per example, as ``Direct`` does.
        terms: the weights.
        label_loss: "direct" is direct loss minimisation with c(ε) at the label, "cross-entropy" is its expectation
            times ε, and a function ℓ(z, y) is a loss of your own, by ``Direct``.
        label_epsilon: ε of the label loss.
        augmentation: of labelled images for the label loss, and of unlabelled ones for consistency; None for none.
        shape: of one example, if it is an image.
        bits: whether images are bits.
        validate: False leaves out the check that reads the labels, as for trainings, which look at them once.

    >>> from argrad.models import SemiSupervisedModule
    >>> module, objective = SemiSupervisedModule(64, 10, 5), Objective()
    >>> x, labels = torch.rand(8, 64), torch.arange(3)
    >>> draws = objective.draw(module, x, x[:3], generator=torch.Generator().manual_seed(0))
    >>> objective(module, x, x[:3], labels, draws).total().shape
    torch.Size([])
    """

    def __init__(
        self,
        estimator: Estimator | None = None,
        terms: Terms | None = None,
        *,
        label_loss: Literal["direct", "cross-entropy"] | TaskLoss = "direct",
        label_epsilon: float = 0.1,
        augmentation: Augmentation | None = None,
        shape: tuple[int, ...] = (),
        bits: bool = False,
        validate: bool = True,
    ) -> None:
        super().__init__()
        if label_loss not in ("direct", "cross-entropy") and not callable(label_loss):
            raise ValueError(
                f'label_loss must be "direct", "cross-entropy" or a function of z and y; got {label_loss!r}'
            )
        self.estimator = Exact() if estimator is None else estimator
        self.terms = terms or Terms()
        self.label_loss = label_loss
        self.label_estimator = Direct(label_epsilon)
        self.augmentation = augmentation or Augmentation()
        self.shape, self.bits, self.validate = shape, bits, validate
        if self.terms.consistency > 0 and self.augmentation == Augmentation():
            raise ValueError("consistency compares an image with its augmented copy; give an augmentation too")

    def label_weight(self) -> float:
        """What the label loss is of the cross-entropy in expectation; for a loss of your own, as if it were one."""
        share = 1.0 if self.label_loss == "cross-entropy" else 1 / self.label_estimator.epsilon.item()
        return self.terms.prediction * share

    def draw(
        self,
        module: SemiSupervisedModule,
        x: Tensor | None,
        labelled: Tensor | None,
        *,
        generator: torch.Generator | None = None,
    ) -> Draws:
        """Everything random for one step on x ``[*models, B, features]`` and labelled x ``[*models, L, features]``."""
        like = module.trunk_enter.weight
        empty = like.new_empty(0)
        numbers = self.augmentation.numbers(module.features)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(shape, generator=generator, device=like.device) if numbers else empty

        classes: Noise = empty
        vectors, augmented = empty, empty
        if x is not None:
            lead = x.shape[:-1]
            vectors = normal(*lead, module.classes, module.latent)
            q = Categorical(like.new_zeros((*lead, module.classes)), validate=False)
            classes = self.estimator.draw_noise(q, generator=generator)
            augmented = uniform(*lead, numbers) if self.terms.consistency > 0 else empty
        if labelled is None:
            return Draws(vectors, classes, augmented, empty, empty, empty)
        lead = labelled.shape[:-1]
        q = Categorical(like.new_zeros((*lead, module.classes)), validate=False)
        return Draws(
            vectors,
            classes,
            augmented,
            normal(*lead, module.latent),
            q.draw_noise(generator=generator),
            uniform(*lead, numbers),
        )

    def forward(
        self,
        module: SemiSupervisedModule,
        x: Tensor | None,
        labelled: Tensor | None,
        labels: Tensor | None,
        draws: Draws,
    ) -> Losses:
        """The losses of a batch; without x only the labelled part, as in a label-first warm start.

        Args:
            module: the model, or stacked models.
            x: ``[*models, B, features]``, whose labels are not used, or None.
            labelled: ``[*models, L, features]`` or None.
            labels: class numbers ``[*models, L]``.
            draws: from :meth:`draw`.
        """
        like = module.trunk_enter.weight
        empty = like.new_zeros((*like.shape[:-2], 0))
        unlabelled, batch = (empty, empty.sum(-1)) if x is None else self._unlabelled(module, x, draws)
        if labelled is None or labels is None:
            return Losses(unlabelled, empty, batch)
        if self.validate:
            check_labels(labels, module.classes)
        return Losses(unlabelled, self._labelled(module, labelled, labels, draws), batch)

    def _unlabelled(self, module: SemiSupervisedModule, x: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        terms, rows = self.terms, [x]
        if terms.consistency > 0:
            rows.append(self.augmentation(x, draws.augmented, self.shape, bits=self.bits))
        trunk = module.trunk(torch.cat(rows, -2) if len(rows) > 1 else x)
        scores = module.class_scores(trunk)
        size = x.shape[-2]
        own = scores[..., :size, :]
        q = Categorical(own, validate=False)
        if terms.unlabelled > 0:
            losses = terms.unlabelled * self._negative_elbo(module, x, trunk[..., :size, :], own, draws)
        else:
            losses = x.new_zeros(x.shape[:-1])
        if terms.consistency > 0:
            copies = scores[..., size:, :]
            losses = losses + terms.consistency * consistency_losses(own, copies, terms.confidence)
        if terms.entropy > 0:
            losses = losses + terms.entropy * entropy_losses(q)
        batch = terms.balance * balance_loss(q) if terms.balance > 0 else losses.new_zeros(losses.shape[:-1])
        return losses, batch

    def _negative_elbo(
        self, module: SemiSupervisedModule, x: Tensor, trunk: Tensor, scores: Tensor, draws: Draws
    ) -> Tensor:
        share = self.terms.to_classes
        if share < 1:
            scores = share * scores + (1 - share) * scores.detach()
        q = Categorical(scores, validate=False)
        cost = MixedCost(module, x, module.gaussians(trunk), draws.vectors, self.terms)
        expected = self.estimator(q, cost, noise=draws.classes)
        assert isinstance(expected, Tensor)
        return expected + self.terms.class_kl * q.kl()

    def _labelled(self, module: SemiSupervisedModule, x: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        terms = self.terms
        target = (labels.unsqueeze(-1) == torch.arange(module.classes, device=labels.device)).to(x.dtype)
        moved = self.augmentation != Augmentation()
        warped = self.augmentation(x, draws.labelled_augmented, self.shape, bits=self.bits) if moved else x
        trunk = module.trunk(torch.cat([x, warped], -2) if moved else x)
        size = x.shape[-2]
        losses = x.new_zeros(x.shape[:-1])
        if terms.labelled > 0:
            bound = labelled_bound(module, x, trunk[..., :size, :], target, draws.labelled_vectors, terms)
            losses = losses + terms.labelled * bound
        if terms.prediction > 0:
            scores = module.class_scores(trunk[..., -size:, :])
            losses = losses + terms.prediction * self._label_losses(scores, target, draws.labelled_classes)
        return losses

    def _label_losses(self, scores: Tensor, target: Tensor, noise: Tensor) -> Tensor:
        """ℓ(y, c*), ``[*models, L]``, carrying its gradient."""
        if self.label_loss == "cross-entropy":
            return -(target * scores.log_softmax(-1)).sum(-1)
        q = Categorical(scores, validate=False)
        if callable(self.label_loss):
            loss = self.label_loss
            losses = self.label_estimator(q, lambda z: loss(z, target.expand_as(z)), noise=noise)
        else:
            missed = 1 - target
            losses = self.label_estimator(q, lambda z: (missed * z).sum(-1), noise=noise, target=target)
        assert isinstance(losses, Tensor)
        return losses
