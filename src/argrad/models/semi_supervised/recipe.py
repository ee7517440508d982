"""How a semi-supervised VAE is trained: one flat record for the classifier, the command line and the experiments."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal, final

import torch

from argrad.estimators.by_name import EstimatorName, estimator_by_name
from argrad.models.semi_supervised.augmentation import AUGMENTATIONS, Augmentation
from argrad.models.semi_supervised.loss import Objective, Terms
from argrad.models.semi_supervised.module import SemiSupervisedModule
from argrad.models.semi_supervised.task import Trainee

__all__ = ["DEFAULT", "Recipe", "augmentation_by_name", "build_trainee", "check_label_first", "terms_with", "widths"]


@final
@dataclass(frozen=True)
class Recipe:
    """The model's size, the estimator, the terms of the objective and the phases."""

    latent: int = 10
    """Dimensions of the Gaussian vector."""
    hidden: int = 200
    """Width of the first hidden layer; the others follow in the paper's proportions (400, 200, 100, 66)."""
    dropout: float = 0.0
    """In the Gaussian head."""
    estimator: EstimatorName = "exact"
    """Of the gradient through the class."""
    epsilon: float | Literal["auto"] = "auto"
    """Direct's ε, or auto to adapt it to the spread of the cost."""
    temperature: float = 0.5
    """τ of the relaxations."""
    label_loss: Literal["direct", "cross-entropy"] = "direct"
    """Direct loss minimisation with c(ε) at the label, or its expectation times ε."""
    label_epsilon: float = 0.1
    """ε of the label loss."""
    terms: Terms = field(default_factory=Terms)
    """Weights of the objective's terms."""
    augmentation: Literal["auto", "none", "digits", "clothes", "drop"] = "auto"
    """Small changes that leave the class alone; auto is digits for images and none for other data."""
    label_first: int = 20
    """Epochs on labelled examples alone, before the others join: a warm start that gives the classes their names."""
    average: float = 0.99
    """Decay of the moving average of the weights that predicts; 0 is none."""

    def __post_init__(self) -> None:
        widths(self.hidden)
        if self.label_first < 0:
            raise ValueError(f"label_first must be at least 0, got {self.label_first}")


def widths(hidden: int) -> tuple[int, int, int, int]:
    """The widths of the hidden layers, in the paper's proportions.

    >>> widths(400)
    (400, 200, 100, 66)
    """
    if hidden < 6:
        raise ValueError(f"hidden must be at least 6, got {hidden}")
    return hidden, hidden // 2, hidden // 4, hidden // 6


DEFAULT = Recipe(terms=Terms(consistency=20.0, confidence=0.8, entropy=5.0, balance=20.0))
"""What the classifier and the command line use: the paper's objective, images that agree with their own copies, and
classes that are sure and balanced."""
DEFAULT_EPOCHS = 120
"""Passes over the data, where nothing else is asked for."""
DEFAULT_LEARNING_RATE = 3e-3
"""Adam's step size, likewise."""


def check_label_first(label_first: int, epochs: int) -> None:
    """Refuse a warm start that leaves no epoch for the rest."""
    if not 0 <= label_first < max(1, epochs):
        raise ValueError(
            f"label_first must be at least 0 and below epochs={epochs}, got {label_first}; give more epochs, or fewer "
            "on labelled examples alone"
        )


def augmentation_by_name(name: str | Augmentation, shape: tuple[int, ...]) -> Augmentation:
    """An augmentation by its name, for examples of a given shape."""
    if isinstance(name, Augmentation):
        return name
    if name == "auto":
        name = "digits" if len(shape) in (2, 3) else "none"
    if name not in AUGMENTATIONS:
        known = ", ".join(map(repr, ("auto", *AUGMENTATIONS)))
        raise ValueError(f"augmentation must be an Augmentation or one of {known}, got {name!r}")
    return AUGMENTATIONS[name]


def terms_with(terms: Terms, augmentation: Augmentation) -> Terms:
    """The terms without consistency, where nothing is augmented that could be compared."""
    return replace(terms, consistency=0.0) if augmentation == Augmentation() else terms


def build_trainee(
    recipe: Recipe,
    shape: tuple[int, ...],
    classes: int,
    seed: int,
    *,
    likelihood: Literal["bernoulli", "gaussian"] = "bernoulli",
    bits: bool = False,
) -> Trainee:
    """The model that a recipe describes, for examples of a given shape; its weights depend on the seed alone."""
    augmentation = augmentation_by_name(recipe.augmentation, shape)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # the GPU's is left alone
        module = SemiSupervisedModule(
            math.prod(shape),
            classes,
            recipe.latent,
            hidden=widths(recipe.hidden),
            dropout=recipe.dropout,
            likelihood=likelihood,
        )
        objective = Objective(
            estimator_by_name(recipe.estimator, epsilon=recipe.epsilon, temperature=recipe.temperature),
            terms_with(recipe.terms, augmentation),
            label_loss=recipe.label_loss,
            label_epsilon=recipe.label_epsilon,
            augmentation=augmentation,
            shape=shape,
            bits=bits,
            validate=False,
        )
        return Trainee(module, objective, recipe.average)
