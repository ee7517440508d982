"""The image tokenizer in scikit-learn's words: fit, transform (encode), inverse_transform (decode), sample."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any, Literal, Self, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from argrad.data import Images
from argrad.estimators import Estimator
from argrad.models.discrete_vae.module import Likelihood
from argrad.models.discrete_vae.run import choose_device
from argrad.models.tokenizer.module import TokenizerModule, check_image_shape
from argrad.models.tokenizer.prior import CodePrior
from argrad.models.tokenizer.run import (
    TokenizerEstimator,
    TokenizerSettings,
    build_tokenizer,
    decode_in_batches,
    encode_in_batches,
    load_prior,
    load_tokenizer,
    prior_path,
    train_prior,
    train_tokenizer,
)
from argrad.training import Interrupted

__all__ = ["Tokenizer"]


@final
class Tokenizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Images as grids of codes from one vocabulary, and back (a discrete VAE with convolutions).

    Args:
        codes: size of the vocabulary.
        width: channels of the convolutions.
        dimension: numbers in a code's vector.
        blocks: residual blocks on each side.
        estimator: "straight-through", "gumbel-softmax", "direct" (a number of random changes), "direct-gradient",
            "reinforce" (leave-one-out), or an estimator object, which is copied.
        epsilon: of the direct ones: a number, or "auto" to adapt it.
        changes: of "direct": changes per image and step, drawn at random from likely ones.
        samples: of "reinforce": draws per image.
        temperature: τ of the relaxations at first.
        temperature_minimum: and at last.
        anneal_epochs: epochs with codes over which it falls.
        continuous_steps: steps at first without codes, which are placed then where the encoder's vectors are; a shorter
            training places them after each epoch, and does not train them. 0 starts with random codes.
        likelihood: "bernoulli" for X in [0, 1], or "gaussian".
        scale: the gaussian's standard deviation.
        kl_weight: weight of an image's KL to the uniform distribution over codes; 1 is the ELBO.
        kl_warmup_epochs: epochs with codes over which it rises from 0.
        revive_until: after each of the first so many epochs with codes, those that no image uses are moved to where
            codes are lacking.
        epochs: passes over the training images, at most.
        prior_epochs: passes over their codes for the prior, which :meth:`sample` needs; 0 trains none.
        prior_width: of its network.
        batch_size: images per step.
        learning_rate: Adam's step size.
        validation_fraction: share of X that is held out to choose the best epoch; with 0 it is chosen on all of X.
        patience: stop after this many epochs without a better validation loss; 0 never stops early.
        random_state: as everywhere in scikit-learn; PyTorch's own random state is neither read nor changed.
        device: "cpu", "cuda", ..., or "auto" for a GPU where there is one.

    Attributes:
        module_: the trained :class:`~argrad.models.TokenizerModule`, a plain PyTorch module.
        prior_: the trained :class:`~argrad.models.CodePrior`, or None.
        history_: one dictionary per epoch: "train_loss", "loss", "hard_error", "soft_error", "perplexity", ...
        prior_history_: the same for the prior.
        vocabulary_: the codebook, ``[codes, dimension]``.

    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().images[:200] / 16
    >>> few = {"epochs": 1, "continuous_steps": 1, "prior_epochs": 1, "prior_width": 8}
    >>> model = Tokenizer(codes=16, width=8, random_state=0, **few).fit(X)
    >>> model.transform(X).shape, model.inverse_transform(model.transform(X)).shape, model.sample(3)[0].shape
    ((200, 2, 2), (200, 8, 8), (3, 8, 8))
    """

    module_: TokenizerModule
    prior_: CodePrior | None
    history_: list[dict[str, Any]]
    prior_history_: list[dict[str, Any]]
    vocabulary_: NDArray[np.float32]

    def __init__(
        self,
        *,
        codes: int = 512,
        width: int = 64,
        dimension: int = 64,
        blocks: int = 1,
        estimator: TokenizerEstimator | Estimator = "straight-through",
        epsilon: float | Literal["auto"] = "auto",
        changes: int = 8,
        samples: int = 4,
        temperature: float = 1.0,
        temperature_minimum: float = 0.2,
        anneal_epochs: int = 10,
        continuous_steps: int = 200,
        likelihood: Likelihood = "bernoulli",
        scale: float = 1.0,
        kl_weight: float = 0.1,
        kl_warmup_epochs: int = 2,
        revive_until: int = 25,
        epochs: int = 30,
        prior_epochs: int = 20,
        prior_width: int = 256,
        batch_size: int = 100,
        learning_rate: float = 1e-3,
        validation_fraction: float = 0.1,
        patience: int = 0,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
    ) -> None:
        self.codes = codes
        self.width = width
        self.dimension = dimension
        self.blocks = blocks
        self.estimator = estimator
        self.epsilon = epsilon
        self.changes = changes
        self.samples = samples
        self.temperature = temperature
        self.temperature_minimum = temperature_minimum
        self.anneal_epochs = anneal_epochs
        self.continuous_steps = continuous_steps
        self.likelihood = likelihood
        self.scale = scale
        self.kl_weight = kl_weight
        self.kl_warmup_epochs = kl_warmup_epochs
        self.revive_until = revive_until
        self.epochs = epochs
        self.prior_epochs = prior_epochs
        self.prior_width = prior_width
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.device = device

    @classmethod
    def from_run(cls, path: Path | str, *, device: str = "auto") -> Self:
        """A fitted tokenizer from a run folder of ``argrad tokenize train``, with its prior where there is one."""
        path = Path(path).expanduser()
        where = choose_device(device)
        module, settings = load_tokenizer(path, device=where)
        own = {name: getattr(settings, name) for name in cls().get_params() if hasattr(settings, name)}
        model = cls(**own, random_state=settings.seed, device=device)
        has_prior = (prior_path(path) / "model.safetensors").exists()
        model._keep(module, load_prior(path, device=where) if has_prior else None, [], [])
        return model

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Train on X.

        Args:
            X: images ``[n, H, W]`` or ``[n, C, H, W]``, an array or a CPU or GPU tensor.
            y: ignored.
        """
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be at least 0 and below 1, got {self.validation_fraction}")
        seed = self._draw_seed()
        settings = self._settings(seed)
        estimator = self._estimator()
        x = as_floats(X, "X")
        if len(x) == 0:
            raise ValueError(f"X has shape {tuple(x.shape)}, which holds no image")
        check_image_shape(tuple(x.shape[1:]))
        build_tokenizer(settings, tuple(x.shape[1:]), copy.deepcopy(estimator)).check_images(x)
        held_out = min(len(x) - 1, round(self.validation_fraction * len(x)))
        x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))]
        images = Images("X", x[held_out:], x[:held_out], x[:0], binarization="none")
        device = choose_device(self.device)
        prior, prior_history = None, []
        try:
            module, trained = train_tokenizer(settings, None, images, device=device, estimator=estimator)
            if self.prior_epochs:
                prior, prior_trained = train_prior(settings, None, module, images)
                prior_history = prior_trained.history
        except Interrupted:
            raise KeyboardInterrupt from None
        if "continuous" in trained.history[-1]:
            warnings.warn(
                f"codes were placed, but not trained: all {trained.step} steps were among the first continuous_steps="
                f"{self.continuous_steps}, which are without codes; give more epochs, or fewer continuous_steps",
                stacklevel=2,
            )
        return self._keep(module, prior, trained.history, prior_history)

    def transform(self, X: ArrayLike) -> NDArray[np.int64]:
        """The most probable code of every cell, whole numbers ``[n, H / 4, W / 4]``."""
        check_is_fitted(self, "module_")
        x = as_floats(X, "X")
        self.module_.check_images(x)
        return encode_in_batches(self.module_, x, lambda chunk: chunk).cpu().numpy()

    def encode(self, X: ArrayLike) -> NDArray[np.int64]:
        """Another word for :meth:`transform`."""
        return self.transform(X)

    def inverse_transform(self, codes: ArrayLike) -> NDArray[np.float32]:
        """The mean image given codes ``[n, H / 4, W / 4]``: ``[n, *shape]``."""
        check_is_fitted(self, "module_")
        return decode_in_batches(self.module_, codes).numpy()

    def decode(self, codes: ArrayLike) -> NDArray[np.float32]:
        """Another word for :meth:`inverse_transform`."""
        return self.inverse_transform(codes)

    def sample(self, n_samples: int = 1) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Draw codes from the prior and decode them.

        Returns:
            the mean image under each grid of codes, ``[n_samples, *shape]``, and the codes.
        """
        check_is_fitted(self, "module_")
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1, got {n_samples}")
        if self.prior_ is None:
            raise ValueError("this tokenizer has no prior to sample from; fit it with prior_epochs above 0")
        generator = torch.Generator(self.module_.decoder.codebook.device).manual_seed(self._draw_seed())
        codes = self.prior_.sample(n_samples, generator=generator).cpu().numpy()
        return self.inverse_transform(codes), codes

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Minus the squared error per pixel of X from its codes: higher is better, as model selection expects."""
        rebuilt = self.inverse_transform(self.transform(X))
        return -float(np.square(rebuilt - as_floats(X, "X").numpy()).mean())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags

    def _keep(
        self,
        module: TokenizerModule,
        prior: CodePrior | None,
        history: list[dict[str, Any]],
        prior_history: list[dict[str, Any]],
    ) -> Self:
        self.module_, self.prior_ = module.eval(), prior
        self.history_, self.prior_history_ = history, prior_history
        self.vocabulary_ = module.decoder.codebook.detach().cpu().numpy()
        return self

    def _draw_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _settings(self, seed: int) -> TokenizerSettings:
        known = {field: value for field, value in self.get_params(deep=False).items() if field in SHARED}
        if isinstance(self.estimator, str):
            known["estimator"] = self.estimator
        return TokenizerSettings(data="X", seed=seed, **known)

    def _estimator(self) -> Estimator | None:
        if isinstance(self.estimator, str):
            return None
        if not isinstance(self.estimator, Estimator):
            raise ValueError(f"estimator must be a name or an estimator object, got {self.estimator!r}")
        return copy.deepcopy(self.estimator)


SHARED = {name for name in TokenizerSettings.__dataclass_fields__ if name not in ("data", "seed", "estimator")}
"""Settings that mean the same here and in a run."""


def as_floats(X: Any, name: str) -> Tensor:
    """An array or tensor as float32 on the CPU."""
    if isinstance(X, Tensor):
        return X.detach().cpu().float()
    array = np.asarray(X)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold numbers, got an array of {array.dtype}")
    return torch.from_numpy(array.astype(np.float32))  # in whatever order its bytes were
