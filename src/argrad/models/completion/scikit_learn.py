"""Image completion in scikit-learn's words: fit on whole images, then complete images of which a part is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from argrad.data import Images
from argrad.data.masks import MaskKind
from argrad.models.completion.mixture import MixtureLoss
from argrad.models.completion.module import CompletionModule
from argrad.models.completion.run import CompletionSettings, load_completion, save_completion, train_completion
from argrad.models.completion.scores import AT_ONCE
from argrad.models.discrete_vae.run import choose_device
from argrad.training import Interrupted

__all__ = ["ImageCompleter"]


@final
class ImageCompleter(BaseEstimator):  # type: ignore[misc]
    """Several ways to fill the hole in an image, from a mixture of Gaussians for what is missing.

    Args:
        components: Gaussians in the mixture.
        dimension: numbers in the latent of the missing part.
        features: numbers in the latent of the visible part.
        hidden: width of the hidden layers.
        loss: "kl", "evidence" (a bound on the likelihood of the missing part), or "as-published", whose sign is wrong.
        scale: standard deviation of a pixel given both latents.
        masks: what is hidden in training: "centre", "rectangle", "irregular" or "mixed".
        mirror: whether images are turned round, left for right, every other time.
        kl_weight: weight of the back-propagate-max loss.
        kl_warmup_epochs: epochs over which it rises from 0.
        epochs: passes over the training images, at most.
        batch_size: images per step.
        learning_rate: Adam's step size.
        validation_fraction: share of X that is held out to choose the best epoch; with 0 it is chosen on all of X.
        patience: stop after this many epochs without a better validation loss; 0 never stops early.
        random_state: as everywhere in scikit-learn; PyTorch's own random state is neither read nor changed.
        device: "cpu", "cuda", ..., or "auto" for a GPU where there is one.

    Attributes:
        module_: the trained :class:`~argrad.models.completion.module.CompletionModule`, a plain PyTorch module.
        history_: one dictionary per epoch: "train_loss", "loss" (validation), "components" (how many are picked), ...
        settings_: all that is needed to train the same again.

    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().images / 16
    >>> model = ImageCompleter(epochs=1, hidden=32, random_state=0).fit(X)
    >>> mask = np.zeros((8, 8), bool)
    >>> mask[4:] = True
    >>> model.complete(X[:5], mask, n=3).shape
    (5, 3, 8, 8)
    """

    module_: CompletionModule
    history_: list[dict[str, Any]]
    settings_: CompletionSettings

    def __init__(
        self,
        *,
        components: int = 8,
        dimension: int = 16,
        features: int = 128,
        hidden: int = 512,
        loss: MixtureLoss = "kl",
        scale: float = 0.1,
        masks: MaskKind = "mixed",
        mirror: bool = False,
        kl_weight: float = 1.0,
        kl_warmup_epochs: int = 5,
        epochs: int = 100,
        batch_size: int = 100,
        learning_rate: float = 1e-3,
        validation_fraction: float = 0.1,
        patience: int = 0,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
    ) -> None:
        self.components = components
        self.dimension = dimension
        self.features = features
        self.hidden = hidden
        self.loss = loss
        self.scale = scale
        self.masks = masks
        self.mirror = mirror
        self.kl_weight = kl_weight
        self.kl_warmup_epochs = kl_warmup_epochs
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.device = device

    @classmethod
    def load(cls, path: Path | str, *, device: str = "auto") -> Self:
        """A fitted model from a folder that :meth:`save` or ``argrad complete train`` wrote."""
        module, settings = load_completion(Path(path).expanduser(), device=choose_device(device))
        shared = {name: getattr(settings, name) for name in SHARED}
        model = cls(**shared, random_state=settings.seed, device=device)
        model.module_, model.settings_, model.history_ = module, settings, []
        return model

    def save(self, path: Path | str) -> Path:
        """Write the fitted model into a new folder, for :meth:`load` and ``argrad complete``; returns its path."""
        check_is_fitted(self, "module_")
        return save_completion(Path(path).expanduser(), self.settings_, self.module_.shape, self.module_.state_dict())

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Train on whole images; what is hidden is drawn in training.

        Args:
            X: images ``[n, H, W]`` or ``[n, C, H, W]`` with values from 0 to 1, an array or a CPU or GPU tensor.
            y: ignored.
        """
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be at least 0 and below 1, got {self.validation_fraction}")
        x = as_images(X)
        if not bool(((x >= 0) & (x <= 1)).all()):
            raise ValueError("X must hold numbers from 0 to 1, got others (or NaN); scale it, for example by 255")
        seed = self._draw_seed()
        settings = CompletionSettings(data="X", seed=seed, **{name: getattr(self, name) for name in SHARED})
        held_out = min(len(x) - 1, round(self.validation_fraction * len(x)))
        x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))]
        images = Images("X", x[held_out:], x[:held_out], x[:0], binarization="none")
        try:
            module, trained = train_completion(settings, None, images, device=choose_device(self.device))
        except Interrupted:
            raise KeyboardInterrupt from None
        self.module_, self.settings_, self.history_ = module, settings, trained.history
        return self

    def complete(self, X: ArrayLike, mask: ArrayLike, n: int = 8) -> NDArray[np.float32]:
        """Fill the hidden part of each image in several ways.

        Args:
            X: images ``[N, *shape]``, or one image; what they hold under the mask is not looked at, and may be NaN.
            mask: ``[H, W]`` for all images or ``[N, H, W]``: True (or above 0.5) where a pixel is hidden.
            n: completions of each image.

        Returns:
            ``[N, n, *shape]`` (of one image ``[n, *shape]``), equal to X wherever the mask does not hide.
        """
        check_is_fitted(self, "module_")
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        x, masks, single = self._prepare(X, mask)
        device = next(self.module_.parameters()).device
        generator = torch.Generator(device).manual_seed(self._draw_seed())
        parts = [
            self.module_.complete(part.to(device), hidden.to(device), n, generator=generator)[0].cpu()
            for part, hidden in zip(x.split(AT_ONCE), masks.split(AT_ONCE), strict=True)
        ]
        completed: NDArray[np.float32] = torch.cat(parts).numpy()
        return completed[0] if single else completed

    @torch.no_grad()
    def predict_proba(self, X: ArrayLike, mask: ArrayLike) -> NDArray[np.float32]:
        """The weights α of the mixture that the visible part predicts, ``[N, components]``."""
        check_is_fitted(self, "module_")
        x, masks, _ = self._prepare(X, mask)
        device = next(self.module_.parameters()).device
        parts = [
            self.module_.mixture(self.module_.look(part.to(device), hidden.to(device))).log_weights.exp().cpu()
            for part, hidden in zip(x.split(AT_ONCE), masks.split(AT_ONCE), strict=True)
        ]
        return torch.cat(parts).numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags

    def _prepare(self, X: ArrayLike, mask: ArrayLike) -> tuple[Tensor, Tensor, bool]:
        """Images and a mask for each, checked; and whether it was one image."""
        x = as_images(X, single=len(self.module_.shape))
        single = np.ndim(X) == len(self.module_.shape)
        masks = as_masks(mask)
        masks = masks.expand(len(x), *masks.shape) if masks.dim() == 2 else masks
        self.module_.check(x, masks)
        return x, masks, single

    def _draw_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))


SHARED = tuple(
    name for name in CompletionSettings.__dataclass_fields__ if name in ImageCompleter().get_params(deep=False)
)
"""Settings that mean the same here and in a run."""


def as_images(X: Any, single: int = 0) -> Tensor:
    """Images as float32 on the CPU, ``[N, *shape]``; an array of ``single`` axes is one image."""
    array = X.detach().cpu() if isinstance(X, Tensor) else np.asarray(X)
    if not isinstance(array, Tensor) and array.dtype.kind not in "fiub":
        raise ValueError(f"X must hold numbers, got an array of {array.dtype}")
    x = torch.as_tensor(array).to(torch.float32)
    x = x.unsqueeze(0) if single and x.dim() == single else x
    if x.dim() not in (3, 4) or len(x) == 0:
        raise ValueError(f"X must hold images [n, H, W] or [n, C, H, W], got an array of shape {tuple(x.shape)}")
    return x


def as_masks(mask: Any) -> Tensor:
    """A mask or masks as booleans on the CPU."""
    array = mask.detach().cpu().numpy() if isinstance(mask, Tensor) else np.asarray(mask)
    if array.ndim not in (2, 3) or array.dtype.kind not in "biuf":
        raise ValueError(f"a mask is an array [H, W] or [N, H, W], True where hidden, got one of shape {array.shape}")
    return torch.as_tensor(array > 0.5)
