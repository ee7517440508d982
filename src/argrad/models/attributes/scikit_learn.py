"""Images with attributes that can be read and switched, as a scikit-learn estimator: fit, predict, change, sample."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from argrad.estimators import Estimator
from argrad.estimators.by_name import EstimatorName
from argrad.latents.base import Law
from argrad.models.attributes.module import AttributeLatent, AttributeModule, LabelLoss, convolutional_networks, prepare
from argrad.models.attributes.report import write_attribute_report
from argrad.models.attributes.run import as_config, fill, open_run
from argrad.models.attributes.task import AttributeTask
from argrad.models.discrete_vae.run import choose_device
from argrad.models.examples import check_unit_interval, own_estimator
from argrad.training import Interrupted, LoopSettings, RunFolder, train

__all__ = ["AttributeVAE"]

EXAMPLES_AT_ONCE = 500
"""How many examples are encoded or decoded at a time."""


@final
class AttributeVAE(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""A variational auto-encoder of images whose attributes can be read, and switched on and off.

    The code of an image has two parts: its attributes, bits of which some are known for some images, and a continuous
    remainder. Training minimises Eq. (9) of the direct optimisation paper: a bound on −log p(x, y), the attributes that
    are not known through any estimator, and direct loss minimisation on those that are known
    (:class:`~argrad.models.AttributeModule`). For switching to work the remainder must not carry the attributes. Four
    things see to that: the decoder is told what is known, so that repeating it costs KL and gains nothing; what was
    decoded with other attributes must be read, by the model's own encoder, as having them (``switch_weight``);
    remainders with and without an attribute must look alike (``independence_weight``); and there is little room
    (``remainder``).

    Args:
        attribute_names: one word for each column of Y; None calls them "attribute0", "attribute1", ...
        latent: "bits", independent given the image, or "pairwise", with a score for each pair.
        law: of "pairwise": "gibbs", up to 20 attributes, or "perturb", at any number but without a bound to report.
        remainder: dimensions of the continuous part.
        estimator: for attributes that are not known: a name, such as "direct" or "exact", or an estimator object.
        epsilon: of "direct": a number, or "auto" (with "bits").
        temperature: of the relaxations.
        encoder: any module that maps images ``[n, *shape]`` to ``[n, AttributeModule.encoder_outputs(...)]``; copied.
            None is convolutional.
        decoder: any module that maps ``[n, attributes + remainder]`` to logits or means ``[n, *shape]``; copied.
        channels: width of the default networks.
        likelihood: "bernoulli" or "gaussian".
        scale: the gaussian's standard deviation.
        kl_weight: weight of the KL terms in training; 1 is the bound.
        label_loss: "direct" (direct loss minimisation with a(ε) at the label) or "cross-entropy".
        label_weight: of the known attributes, 1 / ε of "direct".
        label_first: epochs in which the attributes learn from what is known alone, so that they have their meaning
            before the others settle.
        switch_weight: of reading switched attributes back; 0 leaves it out, and halves the time.
        switch_mixed: in training, attributes are switched on remainders between those of two images, which stand for
            images that the model has not seen; for few images, or many of the same few people.
        independence_weight: of what the remainder tells about known attributes, measured batch by batch; 0 leaves it
            out. It is weighed against the reconstruction, which grows with the number of pixels.
        shift: in training, images are moved by up to so many pixels,
        brightness: and multiplied by a number from 1 − brightness to 1 + brightness.
        blur: in training, the encoder reads images blurred by a Gaussian of up to so many pixels, those that were
            switched too: what the decoder draws is blurred, and fine patterns are not to be read as attributes.
        epochs: passes over the training data, at most.
        batch_size: images per step.
        learning_rate: Adam's step size at the start; it falls along a cosine.
        validation_fraction: share of X that is held out to choose the best epoch; with 0 it is chosen on all of X.
        patience: stop after this many epochs without a better validation loss; 0 never stops early.
        random_state: as everywhere in scikit-learn; PyTorch's own random state is neither read nor changed.
        device: "cpu", "cuda", ..., or "auto" for a GPU where there is one.
        verbose: print a line after each epoch.

    Attributes:
        module_: the trained :class:`~argrad.models.AttributeModule`, a plain PyTorch module.
        attribute_names_: the words for the attributes.
        history_: one dictionary per epoch: "epoch", "train_loss", "loss" (validation), "accuracy", ...
        best_epoch_: whose weights were kept.

    >>> g = np.random.default_rng(0)
    >>> Y = g.integers(0, 2, (60, 1))
    >>> X = 0.1 * g.random((60, 8, 8))
    >>> X[:, 3] += 0.8 * Y  # a bar, on or off
    >>> model = AttributeVAE(attribute_names=["bar"], remainder=2, epochs=3, random_state=0).fit(X, Y)
    >>> model.predict(X).shape, model.change(X[:5], bar=True).shape, model.sample(2, bar=False)[0].shape
    ((60, 1), (5, 8, 8), (2, 8, 8))

    Reference: Lorberbom, Gane, Jaakkola & Hazan, 2019, "Direct optimization through arg max for discrete variational
    auto-encoder", section 4.3.
    """

    module_: AttributeModule
    attribute_names_: tuple[str, ...]
    history_: list[dict[str, Any]]
    best_epoch_: int
    example_shape_: tuple[int, ...]
    n_features_in_: int

    def __init__(
        self,
        *,
        attribute_names: Sequence[str] | None = None,
        latent: AttributeLatent = "bits",
        law: Law = "gibbs",
        remainder: int = 16,
        estimator: EstimatorName | Estimator = "direct",
        epsilon: float | Literal["auto"] = "auto",
        temperature: float = 0.5,
        encoder: nn.Module | None = None,
        decoder: nn.Module | None = None,
        channels: int = 16,
        likelihood: Literal["bernoulli", "gaussian"] = "bernoulli",
        scale: float = 1.0,
        kl_weight: float = 1.0,
        label_loss: LabelLoss = "direct",
        label_weight: float = 20.0,
        label_first: int = 10,
        switch_weight: float = 1.0,
        switch_mixed: bool = False,
        independence_weight: float = 0.0,
        shift: int = 0,
        brightness: float = 0.0,
        blur: float = 0.0,
        epochs: int = 100,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        validation_fraction: float = 0.1,
        patience: int = 0,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.attribute_names = attribute_names
        self.latent = latent
        self.law = law
        self.remainder = remainder
        self.estimator = estimator
        self.epsilon = epsilon
        self.temperature = temperature
        self.encoder = encoder
        self.decoder = decoder
        self.channels = channels
        self.likelihood = likelihood
        self.scale = scale
        self.kl_weight = kl_weight
        self.label_loss = label_loss
        self.label_weight = label_weight
        self.label_first = label_first
        self.switch_weight = switch_weight
        self.switch_mixed = switch_mixed
        self.independence_weight = independence_weight
        self.shift = shift
        self.brightness = brightness
        self.blur = blur
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    @classmethod
    def from_run(cls, path: Path | str, *, device: str = "auto") -> Self:
        """A fitted model from a run folder that :meth:`save` wrote."""
        folder = open_run(path, set(cls().get_params()))
        model = cls(**folder.config["settings"], device=device)
        shape, names = tuple(folder.config["shape"]), tuple(folder.config["attribute_names"])
        module = model._build(shape, len(names), seed=0)
        fill(module, folder)
        return model._keep(module.to(choose_device(device)), names, shape, folder.read_metrics())

    def save(self, path: Path | str) -> Path:
        """Write a new run folder: settings, weights, metrics, and a report with switched samples.

        Args:
            path: a folder that does not exist or is empty.

        Returns:
            where the report is.
        """
        check_is_fitted(self, "module_")
        own = [name for name in ("encoder", "decoder", "estimator") if isinstance(getattr(self, name), nn.Module)]
        if own:
            raise ValueError(
                f"{own[0]} is an object of your own, which config.json cannot describe; save module_.state_dict()"
            )
        config = as_config(self.get_params(deep=False), self.example_shape_, self.attribute_names_)
        folder = RunFolder.create(Path(path).expanduser(), config)
        folder.write_derived(self.history_, self.module_.state_dict())
        return write_attribute_report(folder, self.module_)

    def fit(self, X: ArrayLike, Y: ArrayLike) -> Self:
        """Train on images and what is known of their attributes.

        Args:
            X: images ``[n, H, W]`` or ``[n, C, H, W]``, numbers from 0 to 1 (any with likelihood="gaussian").
            Y: attributes ``[n, attributes]``: 1 on, 0 off, −1 not known.
        """
        images = self._check_images(X, reset=True)
        known = check_attributes(Y, len(images))
        names = self._check_names(known.shape[1])
        self._check_settings()
        seed = self._draw_seed()
        loop = LoopSettings(self.epochs, self.batch_size, self.learning_rate, seed, self.patience)
        module = self._build(images.shape[1:], known.shape[1], seed).to(choose_device(self.device))
        held_out = min(len(images) - 1, round(self.validation_fraction * len(images)))
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed)).numpy()
        task = AttributeTask(
            module,
            as_tensor(images[order], module),
            torch.as_tensor(known[order], device=module.prior_scores.device),
            held_out,
            kl_weight=self.kl_weight,
            switch_weight=self.switch_weight,
            switch_mixed=self.switch_mixed,
            independence_weight=self.independence_weight,
            label_first=self.label_first,
            shift=self.shift,
            brightness=self.brightness,
            blur=self.blur,
            epochs=self.epochs,
        )
        try:
            trained = train(task, loop, progress=AccuracyPrinter(self.epochs) if self.verbose else None)
        except Interrupted:
            raise KeyboardInterrupt from None
        return self._keep(module, names, images.shape[1:], trained.history)

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """The most probable attributes, 0 or 1, ``[n, attributes]``; with "pairwise" the most probable combination."""
        return self._read(X)[0].cpu().numpy().astype(np.int64)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The probability that each attribute is on, ``[n, attributes]``."""
        images = self._check_images(X)
        generator = torch.Generator(self.module_.prior_scores.device).manual_seed(0)
        parts = [self.module_.probabilities(part, generator=generator) for part in self._in_parts(images)]
        return torch.cat(parts).cpu().numpy().astype(np.float64)

    def score(self, X: ArrayLike, Y: ArrayLike) -> float:
        """The share of the known attributes that :meth:`predict` gets right."""
        predicted = self.predict(X)
        known = check_attributes(Y, len(predicted), predicted.shape[1])
        if not (known >= 0).any():
            raise ValueError("no attribute in Y is known (all are -1), so there is nothing to score")
        return float((predicted == known)[known >= 0].mean())

    def transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """The probabilities of the attributes and the means of the remainder, ``[n, attributes + remainder]``."""
        return np.concatenate([self.predict_proba(X), self._read(X)[1].cpu().numpy()], 1).astype(np.float64)

    def change(
        self, X: ArrayLike, switches: Mapping[str, bool] | None = None, /, **more: bool
    ) -> NDArray[np.floating[Any]]:
        """Images generated again with some attributes forced on or off, and all else as the encoder reads it.

        Args:
            X: images.
            switches: attributes by name, for names that are no Python words.
            **more: attributes by name, such as ``sunglasses=True``; none at all gives reconstructions.

        Returns:
            the mean of x, ``[n, *shape]``.
        """
        attributes, remainder = self._read(X)
        return self._decode(self._force(attributes, {**(switches or {}), **more}), remainder)

    def sample(
        self, n_samples: int = 1, switches: Mapping[str, bool] | None = None, /, **more: bool
    ) -> tuple[NDArray[np.floating[Any]], NDArray[np.int64]]:
        """New images, with attributes from the learnt prior unless they are forced.

        Returns:
            the mean of x, ``[n_samples, *shape]``, and the attributes, ``[n_samples, attributes]``.
        """
        check_is_fitted(self, "module_")
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1, got {n_samples}")
        module = self.module_
        device = module.prior_scores.device
        generator = torch.Generator(device).manual_seed(self._draw_seed())
        with torch.no_grad():
            attributes = module.draw_attributes(n_samples, generator=generator)
        attributes = self._force(attributes, {**(switches or {}), **more})
        remainder = torch.randn(n_samples, module.remainder, device=device, generator=generator)
        return self._decode(attributes, remainder), attributes.cpu().numpy().astype(np.int64)

    def score_samples(self, X: ArrayLike, Y: ArrayLike | None = None) -> NDArray[np.float64]:
        """The bound on log p(x), or with known attributes on log p(x, y), ``[n]``, always with the same noise."""
        images = self._check_images(X)
        module = self.module_
        wide = module.attributes
        known = np.full((len(images), wide), -1) if Y is None else check_attributes(Y, len(images), wide)
        generator = torch.Generator(module.prior_scores.device).manual_seed(0)
        labels = torch.as_tensor(known, device=module.prior_scores.device).split(EXAMPLES_AT_ONCE)
        bounds = [
            -module.negative_elbo(part, y, generator=generator)
            for part, y in zip(self._in_parts(images), labels, strict=True)
        ]
        return torch.cat(bounds).cpu().numpy().astype(np.float64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        return tags

    def _keep(
        self, module: AttributeModule, names: tuple[str, ...], shape: tuple[int, ...], history: list[dict[str, Any]]
    ) -> Self:
        self.module_ = module.eval()
        self.attribute_names_ = names
        self.history_ = history
        self.best_epoch_ = min(history, key=lambda row: float(row["loss"]))["epoch"]
        self.example_shape_ = shape
        self.n_features_in_ = math.prod(shape)
        return self

    def _read(self, X: ArrayLike) -> tuple[Tensor, Tensor]:
        """The most probable attributes and the mean remainder of images."""
        images = self._check_images(X)
        with torch.no_grad():
            found = [self.module_.posterior(part) for part in self._in_parts(images)]
            return torch.cat([q.mode() for q, _ in found]), torch.cat([r.mean for _, r in found])

    def _decode(self, attributes: Tensor, remainder: Tensor) -> NDArray[np.floating[Any]]:
        with torch.no_grad():
            parts = [
                self.module_.decode(a, r)
                for a, r in zip(attributes.split(EXAMPLES_AT_ONCE), remainder.split(EXAMPLES_AT_ONCE), strict=True)
            ]
        images: NDArray[np.floating[Any]] = torch.cat(parts).cpu().numpy()
        return images

    def _force(self, attributes: Tensor, switches: Mapping[str, bool]) -> Tensor:
        attributes = attributes.clone()
        for name, on in switches.items():
            if name not in self.attribute_names_:
                raise ValueError(f"there is no attribute {name!r}; choose from {', '.join(self.attribute_names_)}")
            if on not in (True, False):
                raise ValueError(f"{name} can be switched to True or False, got {on!r}")
            attributes[:, self.attribute_names_.index(name)] = float(on)
        return attributes

    def _in_parts(self, images: NDArray[np.floating[Any]]) -> list[Tensor]:
        return list(as_tensor(images, self.module_).split(EXAMPLES_AT_ONCE))

    def _draw_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _check_settings(self) -> None:
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be at least 0 and below 1, got {self.validation_fraction}")
        for name in ("kl_weight", "label_first", "switch_weight", "independence_weight", "shift", "brightness", "blur"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number that is not negative, got {getattr(self, name)}")
        if self.switch_weight > 0 and self.law == "perturb":
            raise ValueError('switched attributes cannot be read under law="perturb"; set switch_weight=0')

    def _check_names(self, attributes: int) -> tuple[str, ...]:
        if self.attribute_names is None:
            return tuple(f"attribute{number}" for number in range(attributes))
        names = tuple(self.attribute_names)
        if isinstance(self.attribute_names, str) or len(names) != attributes or len(set(names)) < len(names):
            raise ValueError(
                f"attribute_names={self.attribute_names!r} must be {attributes} different names, one for each column "
                "of Y"
            )
        return names

    def _check_images(self, X: Any, *, reset: bool = False) -> NDArray[np.floating[Any]]:
        """X as an array of floats ``[n, *shape]`` that this model can read."""
        if not reset:
            check_is_fitted(self, "module_")
        images = np.asarray(X.detach().cpu() if isinstance(X, Tensor) else X)
        if images.dtype.kind not in "fiub" or images.ndim not in (3, 4) or len(images) == 0:
            raise ValueError(
                f"X must be images [n, H, W] or [n, C, H, W], got {images.dtype} numbers of shape {images.shape}"
            )
        if not reset and images.shape[1:] != self.example_shape_:
            raise ValueError(f"X has images of shape {images.shape[1:]}, but was fitted on {self.example_shape_}")
        least, most = float(images.min()), float(images.max())
        if not (math.isfinite(least) and math.isfinite(most)):
            raise ValueError("X holds NaN or infinite numbers; remove or fill them")
        check_unit_interval(images, self.likelihood)
        return images.astype(np.float32)

    def _build(self, shape: tuple[int, ...], attributes: int, seed: int) -> AttributeModule:
        for name in ("encoder", "decoder"):
            part = getattr(self, name)
            if part is not None and not isinstance(part, nn.Module):
                raise ValueError(f"{name} must be a torch.nn.Module or None, got {part!r}")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # the GPU's is left alone
            encoder, decoder = convolutional_networks(shape, attributes, self.remainder, self.latent, self.channels)
            module = AttributeModule(
                encoder if self.encoder is None else copy.deepcopy(self.encoder),
                decoder if self.decoder is None else copy.deepcopy(self.decoder),
                own_estimator(self),
                attributes=attributes,
                remainder=self.remainder,
                latent=self.latent,
                law=self.law,
                likelihood=self.likelihood,
                scale=self.scale,
                label_loss=self.label_loss,
                label_weight=self.label_weight,
            ).cpu()
            prepare(module)
        return module


@final
class AccuracyPrinter:
    """Prints a line after each epoch."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def start(self, steps: int, done: int) -> None:
        """Nothing to say yet."""

    def step(self, done: int, epoch: int, loss: float) -> None:
        """Nothing to say yet."""

    def epoch(self, metrics: dict[str, Any]) -> None:
        """The losses and the accuracy."""
        accuracy = f", {metrics['accuracy']:.1%} of known attributes right" if "accuracy" in metrics else ""
        print(
            f"epoch {metrics['epoch']} of {self.epochs}: validation loss {metrics['loss']:.4f}, "
            f"training loss {metrics['train_loss']:.4f}{accuracy}",
            flush=True,
        )


def check_attributes(Y: Any, count: int, attributes: int | None = None) -> NDArray[np.int64]:
    """Y as whole numbers −1, 0 and 1, ``[count, attributes]``."""
    known = np.asarray(Y.detach().cpu() if isinstance(Y, Tensor) else Y)
    if (
        known.ndim != 2
        or len(known) != count
        or known.shape[1] == 0
        or known.shape[1] != (attributes or known.shape[1])
    ):
        raise ValueError(
            f"Y must have shape ({count}, {attributes or 'attributes'}), a row for each image and a column for each "
            f"attribute, got {known.shape}"
        )
    wrong = ~np.isin(known, (-1, 0, 1))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"Y must hold 1 (on), 0 (off) and -1 (not known), got {known[row, column]} in row {row}, column {column}"
        )
    return known.astype(np.int64)


def as_tensor(array: NDArray[Any], module: AttributeModule) -> Tensor:
    """A copy of an array, of the type and on the device of the networks."""
    return torch.tensor(array, dtype=module.prior_scores.dtype, device=module.prior_scores.device)
