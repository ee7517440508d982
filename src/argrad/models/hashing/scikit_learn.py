"""Hashing by contrast in scikit-learn's words: fit, transform to packed bits, kneighbors by Hamming distance."""

from __future__ import annotations

import copy
import json
import math
import os
from pathlib import Path
from typing import Any, Literal, Self, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor, nn

from argrad.estimators import Estimator
from argrad.estimators.by_name import EstimatorName
from argrad.models.discrete_vae.run import choose_device
from argrad.models.examples import check_examples, own_estimator
from argrad.models.hashing.costs import LossName
from argrad.models.hashing.module import (
    AT_ONCE,
    HashingModule,
    HashingTask,
    convolutional_encoder,
    dense_encoder,
    has_partner,
    prepare,
)
from argrad.models.hashing.retrieval import retrieval_by_bits
from argrad.models.hashing.search import hamming_neighbors, pack
from argrad.models.semi_supervised.augmentation import AUGMENTATIONS, Augmentation, AugmentationName
from argrad.training import BrokenFile, Interrupted, LoopSettings, read_tensors, train
from argrad.training.files import write_tensors

__all__ = ["HashingEncoder"]

EncoderName = Literal["dense", "convolutional"]
FORMAT = "argrad hashing 2"
"""What a saved file says it is."""


@final
class HashingEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Examples to codes of a few bits, near each other for examples that belong together.

    Examples of one class are pairs, examples of different classes in a batch are negatives; without y, an example's
    partner is itself, changed at random once more. The loss is one of the *bits*, with its gradient by an estimator.

    Args:
        bits: how many, a multiple of 8.
        loss: "logistic": the partner should have most of softmax(−distance / scale); "triplet": a negative should be
            ``margin`` bits farther away than the partner. See :mod:`argrad.models.hashing.costs`.
        margin: of the triplet loss, in bits; None is an eighth of all.
        scale: of the logistic loss, in bits; None is a sixteenth of all.
        estimator: a name, such as "local-expectation", "direct", "disarm", "straight-through", or an estimator object,
            which is copied.
        epsilon: of "direct": a number, or "auto" to adapt it.
        temperature: of the relaxations, rebar and relax.
        encoder: "dense" (one hidden layer), "convolutional" (for images), or any module that maps x ``[n, *shape]`` to
            scores ``[n, bits]``; it is copied, and training starts from its weights.
        hidden: width of the dense encoder.
        channels: of the convolutional encoder's first block; the other two have twice as many.
        augmentation: how examples are changed each time they are seen: "none", "digits" or "clothes" for images,
            "drop" for other data, or an :class:`~argrad.models.Augmentation`. "auto" is "none" with y and "drop"
            without.
        epochs: passes over the training data, at most.
        batch_size: pairs per step.
        learning_rate: Adam's step size.
        validation_fraction: share of X that is held out to choose the best epoch; with 0 it is chosen on all of X.
        patience: stop after this many epochs without a better validation loss; 0 never stops early.
        random_state: as everywhere in scikit-learn; PyTorch's own random state is neither read nor changed.
        device: "cpu", "cuda", ..., or "auto" for a GPU where there is one.

    Attributes:
        module_: the trained :class:`~argrad.models.HashingModule`, a plain PyTorch module.
        codes_: packed codes of the examples that :meth:`kneighbors` searches: those of ``fit``, or of :meth:`index`.
        history_: one dictionary per epoch: "epoch", "train_loss", "loss" (of validation pairs, by codes), "seconds".
        best_epoch_: the epoch whose weights were kept.
        example_shape_: the shape of one example.
        n_features_in_: the numbers in one example.

    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> model = HashingEncoder(bits=16, epochs=2, random_state=0).fit(X[:1000] / 16, y[:1000])
    >>> model.transform(X[1000:] / 16).shape
    (797, 2)
    >>> distances, rows = model.kneighbors(X[1000:] / 16, n_neighbors=3)
    >>> rows.shape
    (797, 3)
    """

    module_: HashingModule
    codes_: NDArray[np.uint8]
    history_: list[dict[str, Any]]
    best_epoch_: int
    example_shape_: tuple[int, ...]
    n_features_in_: int

    def __init__(
        self,
        *,
        bits: int = 32,
        loss: LossName = "logistic",
        margin: float | None = None,
        scale: float | None = None,
        estimator: EstimatorName | Estimator = "local-expectation",
        epsilon: float | Literal["auto"] = "auto",
        temperature: float = 0.5,
        encoder: EncoderName | nn.Module = "dense",
        hidden: int = 300,
        channels: int = 32,
        augmentation: Literal["auto"] | AugmentationName | Augmentation = "auto",
        epochs: int = 20,
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        validation_fraction: float = 0.1,
        patience: int = 0,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
    ) -> None:
        self.bits = bits
        self.loss = loss
        self.margin = margin
        self.scale = scale
        self.estimator = estimator
        self.epsilon = epsilon
        self.temperature = temperature
        self.encoder = encoder
        self.hidden = hidden
        self.channels = channels
        self.augmentation = augmentation
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.device = device

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Train on X, and keep its codes to be searched.

        Args:
            X: ``[n, features]`` or ``[n, *shape]``, an array or a CPU or GPU tensor.
            y: a class for each example; those that are alone in their class are not trained on. None: see the class.
        """
        examples = check_examples(self, X, reset=True)
        groups = None if y is None else number_groups(y, len(examples))
        if len(examples) < 2:
            raise ValueError(f"contrast needs at least 2 examples, got n_samples={len(examples)}")
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be at least 0 and below 1, got {self.validation_fraction}")
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        loop = LoopSettings(self.epochs, self.batch_size, self.learning_rate, seed, self.patience)
        augmentation = self._augmentation(examples.shape[1:], labelled=groups is not None)
        module = self._build(examples.shape[1:], seed).to(choose_device(self.device))
        train_rows, held_out = self._split(groups, len(examples), seed)
        x = as_tensor(examples, module)
        classes = None if groups is None else groups.to(x.device)
        task = HashingTask(
            module,
            x[train_rows],
            None if classes is None else classes[train_rows],
            x[held_out],
            None if classes is None else classes[held_out],
            augmentation,
        )
        try:
            trained = train(task, loop)
        except Interrupted:
            raise KeyboardInterrupt from None
        self.module_ = module.eval()
        self.history_, self.best_epoch_ = trained.history, trained.best_epoch
        self.example_shape_ = examples.shape[1:]
        self._n_features_out = self.bits // 8
        self.codes_ = self._encode(examples)
        return self

    def transform(self, X: ArrayLike) -> NDArray[np.uint8]:
        """Codes as packed bits: bytes ``[n, bits / 8]``, the first bit of each byte the highest."""
        return self._encode(check_examples(self, X))

    def index(self, X: ArrayLike) -> Self:
        """Let :meth:`kneighbors` search these examples in place of those of ``fit``; nothing is trained."""
        self.codes_ = self.transform(X)
        return self

    def kneighbors(
        self, X: ArrayLike, n_neighbors: int = 5, return_distance: bool = True
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]] | NDArray[np.int64]:
        """The searched examples with the nearest codes.

        Args:
            X: queries ``[n, features]`` or ``[n, *shape]``.
            n_neighbors: how many for each.
            return_distance: whether distances come too.

        Returns:
            Hamming distances ``[n, n_neighbors]``, rising, and the rows they belong to; of equal distances the first
            row comes first. Only the rows if ``return_distance`` is False.
        """
        distances, rows = hamming_neighbors(self.transform(X), self.codes_, n_neighbors)
        return (distances, rows) if return_distance else rows

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Mean average precision when each example searches all others for its class; higher is better."""
        examples = check_examples(self, X)
        groups = number_groups(y, len(examples))
        bits = torch.tensor(np.unpackbits(self._encode(examples), axis=1), dtype=torch.float32)
        return retrieval_by_bits(bits, bits, groups, groups, leave_one_out=True, recall_at=())["map"]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights, settings and the codes that are searched to one safetensors file, with a checksum."""
        check_is_fitted(self, "module_")
        settings = self.get_params(deep=False)
        own = [name for name in ("encoder", "estimator") if not isinstance(settings[name], str)]
        settings.update(dict.fromkeys(own), random_state=None)
        if isinstance(self.augmentation, Augmentation):
            settings["augmentation"] = "auto"
        about = {"settings": settings, "shape": self.example_shape_, "own": own}
        tensors = {"codes": torch.from_numpy(self.codes_), **saved_parts(self.module_).state_dict()}
        model = json.dumps(about, default=lambda number: number.item())  # settings may be numpy's numbers
        write_tensors(Path(path), tensors, {"format": FORMAT, "model": model})

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, encoder: nn.Module | None = None, device: str | None = None) -> Self:
        """A fitted model from a file that :meth:`save` wrote.

        What only training needs is not kept: an estimator or augmentation object becomes the default, and ``history_``
        is empty.

        Args:
            path: the file.
            encoder: a module of the same kind, if the model was fitted with one of your own.
            device: where it works; None is where the model was made to work.
        """
        path = Path(path)
        tensors, about = read_model(path)
        settings, shape = about["settings"], tuple(about["shape"])
        if ("encoder" in about["own"]) != (encoder is not None):
            wanted = "an encoder of its own" if encoder is None else f"encoder={settings['encoder']!r}"
            cure = "give it: load(path, encoder=…)" if encoder is None else "leave encoder out"
            raise ValueError(f"{path} holds a model with {wanted}; {cure}")
        chosen = {name: value for name, value in settings.items() if name not in about["own"]}
        own = {} if encoder is None else {"encoder": encoder}
        model = cls(**{**chosen, **own, **({} if device is None else {"device": device})})
        module = model._build(shape, seed=0)
        codes = tensors.pop("codes").numpy()
        try:
            saved_parts(module).load_state_dict(tensors)
        except RuntimeError as error:
            first = str(error).splitlines()[-1].strip()
            raise ValueError(f"{path} does not fit the encoder ({first}); give the one it was fitted with") from error
        model.module_, model.codes_ = module.to(choose_device(model.device)).eval(), codes
        model.history_, model.best_epoch_ = [], 0
        model.example_shape_, model.n_features_in_ = shape, math.prod(shape)
        model._n_features_out = model.bits // 8
        return model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _augmentation(self, shape: tuple[int, ...], *, labelled: bool) -> Augmentation | None:
        name = self.augmentation
        if isinstance(name, str):
            if name == "auto":
                name = "none" if labelled else "drop"
            if name not in AUGMENTATIONS:
                known = ", ".join(map(repr, ("auto", *AUGMENTATIONS)))
                raise ValueError(f"augmentation must be an Augmentation or one of {known}, got {name!r}")
            name = AUGMENTATIONS[name]
        if not isinstance(name, Augmentation):
            raise ValueError(f"augmentation must be a name or an Augmentation, got {name!r}")
        if name == Augmentation():
            if labelled:
                return None
            raise ValueError(
                "without y an example's partner is itself, changed at random: give an augmentation other than 'none', "
                "or y"
            )
        if name.moves and len(shape) not in (2, 3):
            raise ValueError(
                f"examples of shape {shape} are no images and cannot be moved; give X as [n, height, width], or "
                "augmentation='drop'"
            )
        return name

    def _split(self, groups: Tensor | None, number: int, seed: int) -> tuple[Tensor, Tensor]:
        """Rows to train on and rows to validate on, in random order, all of them with a partner in their part."""
        order = torch.randperm(number, generator=torch.Generator().manual_seed(seed))
        held_out, rest = order.split([size := round(self.validation_fraction * number), number - size])
        if groups is None:
            return (rest, held_out) if size >= 2 and len(rest) >= 2 else (order, order[:0])
        parts = [part[has_partner(groups[part])] for part in (rest, held_out)]
        if len(groups[parts[0]].unique()) < 2 or len(groups[parts[1]].unique()) < 2:
            return order[has_partner(groups)[order]], order[:0]  # too few to hold any out
        return parts[0], parts[1]

    def _build(self, shape: tuple[int, ...], seed: int) -> HashingModule:
        if not isinstance(self.bits, int | np.integer) or self.bits < 8 or self.bits % 8:
            raise ValueError(f"bits must be a multiple of 8 (8, 16, 24, …), got {self.bits}")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # the GPU's is left alone
            module = HashingModule(
                self._make_encoder(shape),
                own_estimator(self),
                int(self.bits),
                loss=self.loss,
                margin=self.margin,
                scale=self.scale,
            ).cpu()
            prepare(module, shape)
        return module

    def _make_encoder(self, shape: tuple[int, ...]) -> nn.Module:
        if isinstance(self.encoder, nn.Module):
            return copy.deepcopy(self.encoder)
        if self.encoder == "dense":
            return dense_encoder(shape, self.bits, self.hidden)
        if self.encoder == "convolutional":
            return convolutional_encoder(shape, self.bits, self.channels)
        raise ValueError(f'encoder must be "dense", "convolutional" or a torch.nn.Module, got {self.encoder!r}')

    @torch.no_grad()
    def _encode(self, examples: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
        """Packed codes of all examples, in pieces.

        In float32 the last digit of a matrix product depends on a row's place in the matrix. X in float64 asks for
        better: on the CPU the encoders made here then work in float64; an encoder of the user's own works as it is.
        """
        module = self.module_
        if examples.dtype == np.float64 and isinstance(self.encoder, str) and module.spread.mean.is_cpu:
            module = copy.deepcopy(module).double()
        parts = [
            pack(module.codes(as_tensor(examples[start : start + AT_ONCE], module)).cpu().numpy())
            for start in range(0, len(examples), AT_ONCE)
        ]
        return np.concatenate(parts)


def saved_parts(module: HashingModule) -> nn.ModuleDict:
    """What is saved of a module: all but its estimator."""
    return nn.ModuleDict({"encoder": module.encoder, "spread": module.spread})


def as_tensor(array: NDArray[Any], module: HashingModule) -> Tensor:
    """A copy of an array, of the type and on the device of the module."""
    return torch.tensor(array, dtype=module.spread.mean.dtype, device=module.spread.mean.device)


def number_groups(y: Any, examples: int) -> Tensor:
    """Classes of any kind as numbers from 0."""
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    targets = column_or_1d(y, warn=True)
    if len(targets) != examples:
        raise ValueError(f"X has {examples} examples and y has {len(targets)}: give one class for each")
    if targets.dtype.kind == "f" and not np.isfinite(targets).all():
        raise ValueError("Input y contains NaN or infinity; give one class for each example")
    check_classification_targets(targets)
    classes, numbers = np.unique(targets, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"y has one class only, {classes[0]!r}: contrast needs examples of at least 2 classes")
    groups = torch.from_numpy(numbers.reshape(-1).astype(np.int64))
    if not bool(has_partner(groups).any()):
        raise ValueError(
            f"no two of the {examples} examples have the same class in y, so there is no pair to learn from; give "
            "classes of at least 2 examples, or leave y out"
        )
    return groups


def read_model(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a saved model, and what it says about itself."""
    tensors, metadata = read_tensors(path)
    if (written := metadata.get("format", "")) != FORMAT:
        if written.startswith(FORMAT.rstrip("0123456789")):
            raise BrokenFile(f"{path} was saved by another version of argrad ({written!r}); fit the model again")
        raise BrokenFile(f"{path} does not hold a HashingEncoder; give a file that its save() wrote")
    about: dict[str, Any] = json.loads(metadata["model"])
    return tensors, about
