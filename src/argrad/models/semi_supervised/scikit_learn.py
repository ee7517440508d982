"""The semi-supervised VAE as a scikit-learn classifier: fit, predict, predict_proba, score, sample."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from argrad.estimators import Estimator
from argrad.estimators.by_name import EstimatorName
from argrad.models.discrete_vae.run import choose_device
from argrad.models.examples import check_examples, check_unit_interval, own_estimator
from argrad.models.semi_supervised.augmentation import Augmentation
from argrad.models.semi_supervised.loss import Objective, Terms
from argrad.models.semi_supervised.module import SemiSupervisedModule
from argrad.models.semi_supervised.recipe import (
    DEFAULT,
    DEFAULT_EPOCHS,
    DEFAULT_LEARNING_RATE,
    augmentation_by_name,
    check_label_first,
    terms_with,
    widths,
)
from argrad.models.semi_supervised.task import SemiSupervisedTask, Trainee
from argrad.training import Interrupted, LoopSettings, train

__all__ = ["SemiSupervisedVAE"]

EXAMPLES_AT_ONCE = 1000
"""How many examples are encoded at a time."""


@final
class SemiSupervisedVAE(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    r"""A classifier and generator that learns from a few labelled and many unlabelled examples.

    A variational auto-encoder with the class c and, for each class, a Gaussian vector z as its code. Unlabelled
    examples train its bound on log p(x), labelled ones that on log p(x, c) and the prediction of c itself (Eq. (9) of
    the paper); ``terms`` weighs these, and what a recipe adds to them. The weights kept are those of the epoch with
    the least objective: the bound on held-out unlabelled examples plus the label loss.

    Args:
        latent: dimensions of the Gaussian vector.
        hidden: width of the first hidden layer; the others follow in the paper's proportions (400, 200, 100, 66).
        estimator: of the gradient through c: a name, such as "exact" or "direct", or an estimator object, which is
            copied.
        epsilon: of "direct".
        temperature: of the relaxations.
        terms: weights of the objective's terms; None is the recipe of the documentation.
        label_loss: "direct" for direct loss minimisation with c(ε) at the label, "cross-entropy", or a function ℓ(z, y)
            of one-hot classes.
        label_epsilon: ε of the label loss.
        augmentation: small changes of X that leave the class alone: "digits", "clothes", "drop" (which also data other
            than images can take), "none", or an :class:`~argrad.models.Augmentation`. "auto" is "digits" for X of
            shape [n, height, width] and "none" otherwise: give images as images.
        label_first: epochs on labelled examples alone, before the others join.
        average: decay of the moving average of the weights that predicts; 0 is none.
        dropout: in the Gaussian head.
        likelihood: "bernoulli" for X in [0, 1], or "gaussian".
        scale: the gaussian's standard deviation.
        classes: all classes, in the order of ``predict_proba``; None takes those that y has labels of.
        epochs: passes over X.
        batch_size: examples per step.
        labelled_batch_size: labelled examples per step, drawn with replacement.
        learning_rate: Adam's step size.
        validation_fraction: share of the unlabelled examples that is held out to choose the best epoch.
        random_state: as everywhere in scikit-learn; PyTorch's own random state is neither read nor changed.
        device: "cpu", "cuda", ..., or "auto" for a GPU where there is one.
        verbose: print a line after each epoch.

    Attributes:
        classes_: the classes, without the mark of the unlabelled.
        module_: the trained :class:`~argrad.models.SemiSupervisedModule`, a plain PyTorch module.
        history_: one dictionary per epoch: "epoch", "train_loss", "loss", "bound", "labelled_accuracy", ...
        best_epoch_: the epoch whose weights were kept.
        example_shape_: the shape of one example.
        n_features_in_: the numbers in one example.

    >>> from sklearn.datasets import load_digits
    >>> images, y = load_digits(return_X_y=True)
    >>> y[100:] = -1
    >>> model = SemiSupervisedVAE(epochs=3, label_first=2, hidden=60, random_state=0).fit(images / 16, y)
    >>> model.predict_proba(images[:3] / 16).shape, model.sample(2, label=7)[0].shape
    ((3, 10), (2, 64))

    Reference: Lorberbom, Gane, Jaakkola & Hazan, 2019, "Direct optimization through arg max for discrete variational
    auto-encoder".
    """

    classes_: NDArray[Any]
    module_: SemiSupervisedModule
    history_: list[dict[str, Any]]
    best_epoch_: int
    example_shape_: tuple[int, ...]
    n_features_in_: int

    def __init__(
        self,
        *,
        latent: int = DEFAULT.latent,
        hidden: int = DEFAULT.hidden,
        estimator: EstimatorName | Estimator = "exact",
        epsilon: float | Literal["auto"] = "auto",
        temperature: float = 0.5,
        terms: Terms | None = None,
        label_loss: Literal["direct", "cross-entropy"] | Callable[[Tensor, Tensor], Tensor] = "direct",
        label_epsilon: float = DEFAULT.label_epsilon,
        augmentation: str | Augmentation = "auto",
        label_first: int = DEFAULT.label_first,
        average: float = DEFAULT.average,
        dropout: float = 0.0,
        likelihood: Literal["bernoulli", "gaussian"] = "bernoulli",
        scale: float = 1.0,
        classes: Sequence[Any] | None = None,
        epochs: int = DEFAULT_EPOCHS,
        batch_size: int = 100,
        labelled_batch_size: int = 50,
        learning_rate: float = DEFAULT_LEARNING_RATE,
        validation_fraction: float = 0.1,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.latent = latent
        self.hidden = hidden
        self.estimator = estimator
        self.epsilon = epsilon
        self.temperature = temperature
        self.terms = terms
        self.label_loss = label_loss
        self.label_epsilon = label_epsilon
        self.augmentation = augmentation
        self.label_first = label_first
        self.average = average
        self.dropout = dropout
        self.likelihood = likelihood
        self.scale = scale
        self.classes = classes
        self.epochs = epochs
        self.batch_size = batch_size
        self.labelled_batch_size = labelled_batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train on X, some of which is labelled.

        Args:
            X: ``[n, features]`` or ``[n, *shape]``, an array or a CPU or GPU tensor.
            y: ``[n]`` classes; −1 marks what is not labelled (in an array of strings "-1", in an array of objects
                either).
        """
        examples, targets = self._check_both(X, y)
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be at least 0 and below 1, got {self.validation_fraction}")
        check_label_first(self.label_first, self.epochs)
        classes, labels = number_classes(targets, self.classes)
        seed = self._draw_seed()
        loop = LoopSettings(self.epochs, self.batch_size, self.learning_rate, seed)
        device = choose_device(self.device)
        trainee = self._build(examples.shape[1:], len(classes), seed).to(device)
        trained_on, held_out = self._split(labels, seed)
        data = torch.tensor(examples, dtype=torch.float32, device=device)
        task = SemiSupervisedTask(
            trainee,
            data[trained_on],
            torch.tensor(labels[trained_on], device=device),
            data[held_out],
            lambda stored, generator: stored,
            label_first=self.label_first * math.ceil(len(trained_on) / self.batch_size),
            labelled_batch=self.labelled_batch_size,
        )
        try:
            trained = train(task, loop, progress=EpochPrinter(self.epochs) if self.verbose else None)
        except Interrupted:
            raise KeyboardInterrupt from None
        self.classes_ = classes
        self.module_ = trainee.predictor.requires_grad_(True).eval()
        self.history_ = trained.history
        self.best_epoch_ = trained.best_epoch
        self.example_shape_ = examples.shape[1:]
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class of each example, ``[n]``."""
        probabilities = self.predict_proba(X)
        predicted: NDArray[Any] = self.classes_[probabilities.argmax(1)]
        return predicted

    def predict_proba(self, X: ArrayLike) -> NDArray[np.floating[Any]]:
        """q(c|x), ``[n, classes]``, in the order of ``classes_``."""
        examples = self._check_examples(X)
        probabilities = self._encode(
            examples, lambda module, x: module.class_scores(module.trunk(x)).softmax(-1)
        ).astype(examples.dtype, copy=False)
        return probabilities

    def sample(self, n_samples: int = 1, *, label: Any = None) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Draw examples, of one class or of all.

        Args:
            n_samples: how many.
            label: their class; None draws classes with equal probability.

        Returns:
            the mean of x for each draw, ``[n_samples, *shape]`` (the noise of the likelihood is left out), and the
            classes, ``[n_samples]``.
        """
        check_is_fitted(self, "module_")
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1, got {n_samples}")
        device = self.module_.trunk_enter.weight.device
        generator = torch.Generator(device).manual_seed(self._draw_seed())
        if label is None:
            numbers = torch.randint(len(self.classes_), (n_samples,), generator=generator, device=device)
        else:
            found = np.flatnonzero(self.classes_ == label)
            if len(found) != 1:
                raise ValueError(f"label must be one of {list_of(self.classes_)}, got {label!r}")
            numbers = torch.full((n_samples,), int(found[0]), device=device)
        means = self.module_.sample(numbers, generator=generator).cpu().numpy().astype(np.float64)
        drawn: NDArray[Any] = self.classes_[numbers.cpu().numpy()]
        return means.reshape(n_samples, *self.example_shape_), drawn

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _draw_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _split(self, labels: NDArray[np.int64], seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Which examples are trained on, and which are held out: never a labelled one."""
        order = np.random.RandomState(seed % 2**32).permutation(len(labels))
        free = order[labels[order] < 0]
        held_out = free[: round(self.validation_fraction * len(free))]
        rest = np.ones(len(labels), dtype=bool)
        rest[held_out] = False
        return order[rest[order]], held_out

    def _build(self, shape: tuple[int, ...], classes: int, seed: int) -> Trainee:
        augmentation = augmentation_by_name(self.augmentation, shape)
        terms = self.terms if self.terms is not None else terms_with(DEFAULT.terms, augmentation)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # the GPU's is left alone
            module = SemiSupervisedModule(
                math.prod(shape),
                classes,
                self.latent,
                hidden=widths(self.hidden),
                dropout=self.dropout,
                likelihood=self.likelihood,
                scale=self.scale,
            )
            objective = Objective(
                own_estimator(self),
                terms,
                label_loss=self.label_loss,
                label_epsilon=self.label_epsilon,
                augmentation=augmentation,
                shape=shape,
                validate=False,
            )
            return Trainee(module, objective, self.average)

    def _check_both(self, X: Any, y: Any) -> tuple[NDArray[np.floating[Any]], NDArray[Any]]:
        """X and y as arrays of equal length, y still with its marks of the unlabelled."""
        if y is None:
            raise ValueError(
                "requires y to be passed, but the target y is None: give a class for each example, -1 for unknown"
            )
        examples = self._check_examples(X, reset=True)
        if isinstance(y, Tensor):
            y = y.detach().cpu().numpy()
        targets = column_or_1d(y, warn=True)
        if len(targets) != len(examples):
            raise ValueError(
                f"X has {len(examples)} examples and y has {len(targets)}: give one class for each, -1 for unknown"
            )
        if targets.dtype.kind == "f" and not np.isfinite(targets).all():
            raise ValueError("Input y contains NaN or infinity; mark examples without a label by -1")
        return examples, targets

    def _check_examples(self, X: Any, *, reset: bool = False) -> NDArray[np.floating[Any]]:
        """X as an array of floats ``[n, *shape]`` that this model can read."""
        examples = check_examples(self, X, reset=reset)
        check_unit_interval(examples, self.likelihood if reset else self.module_.likelihood)
        return examples

    @torch.no_grad()
    def _encode(
        self, examples: NDArray[np.floating[Any]], function: Callable[[SemiSupervisedModule, Tensor], Tensor]
    ) -> NDArray[Any]:
        """``function(module, x)`` of all examples, in pieces; on the CPU in float64.

        In float32 the last digit of a matrix product depends on a row's place in the matrix.
        """
        module, weight = self.module_, self.module_.trunk_enter.weight
        if weight.device.type == "cpu":
            module = copy.deepcopy(module).double()
        dtype = module.trunk_enter.weight.dtype
        flat = examples.reshape(len(examples), -1)
        parts = [
            function(module, torch.tensor(flat[start : start + EXAMPLES_AT_ONCE], dtype=dtype, device=weight.device))
            for start in range(0, len(flat), EXAMPLES_AT_ONCE)
        ]
        return torch.cat(parts).cpu().numpy()


def number_classes(targets: NDArray[Any], given: Sequence[Any] | None) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The classes, and the number of each example's class in them, −1 where it is not labelled.

    Args:
        targets: y.
        given: all classes, or None for those that occur.
    """
    labelled = ~unlabelled(targets)
    if not labelled.any():
        raise ValueError(
            "y has no label, only -1: label at least one example of each class, or train a DiscreteVAE without labels"
        )
    known = targets[labelled]
    check_classification_targets(known)
    found = np.unique(known)
    if given is None:
        classes = found
    else:
        classes = np.asarray(given)
        if len(np.unique(classes)) != len(classes):
            raise ValueError(f"classes must differ from each other, got {list_of(classes)}")
        strange = sorted(set(found.tolist()) - set(classes.tolist()))
        if strange:
            raise ValueError(f"y has labels {list_of(strange)} that are not among the classes {list_of(classes)}")
        missing = [kind for kind in classes.tolist() if kind not in set(found.tolist())]
        if missing:
            raise ValueError(
                f"no example is labelled as class {list_of(missing)}: label at least one of each class, or leave the "
                "class out of classes"
            )
    if len(classes) < 2:
        raise ValueError(
            f"a classifier needs labels of at least 2 classes, got 1 class: {list_of(classes)} (-1 marks examples "
            "without a label and is no class)"
        )
    numbers = np.full(len(targets), -1, dtype=np.int64)
    order = np.argsort(classes)
    numbers[labelled] = order[np.searchsorted(classes, known, sorter=order)]
    return classes, numbers


def unlabelled(targets: NDArray[Any]) -> NDArray[np.bool_]:
    """Where y is −1, or "-1" among strings."""
    if targets.dtype.kind in "US":
        return np.asarray(targets.astype(str) == "-1")
    if targets.dtype.kind == "O":
        return np.array([not isinstance(value, bool) and value in (-1, "-1") for value in targets])
    return np.asarray(targets == -1) if targets.dtype.kind in "iuf" else np.zeros(len(targets), dtype=bool)


def list_of(values: Any) -> str:
    """Some values in words; the first few of many."""
    words = [repr(value) for value in np.asarray(values).tolist()]
    return ", ".join(words[:10]) + (f", … ({len(words)} in all)" if len(words) > 10 else "")


@final
class EpochPrinter:
    """Prints a line after each epoch."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def start(self, steps: int, done: int) -> None:
        """Nothing to say yet."""

    def step(self, done: int, epoch: int, loss: float) -> None:
        """Nothing to say yet."""

    def epoch(self, metrics: dict[str, Any]) -> None:
        """The losses, and how many labels are predicted."""
        print(
            f"epoch {metrics['epoch']} of {self.epochs}: bound {metrics['bound']:.4f}, "
            f"training loss {metrics['train_loss']:.4f}, {metrics['labelled_accuracy']:.0%} of the labels right",
            flush=True,
        )
