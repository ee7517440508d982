"""The sequence GAN as one object: fit it to lines of text, draw new ones, score them, keep it in a folder."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self, final

import torch

from argrad.data.text import Text, Vocabulary, as_text
from argrad.estimators import Estimator
from argrad.models.discrete_vae.run import choose_device
from argrad.models.sequence_gan.module import SequenceGANModule
from argrad.models.sequence_gan.run import (
    SequenceGANSettings,
    build_sequence_gan,
    load_lines,
    load_sequence_gan,
    train_adversarially,
    train_likelihood,
)
from argrad.training import Interrupted

__all__ = ["SequenceGAN"]


@final
class SequenceGAN:
    """A generator of lines of text, trained by maximum likelihood and then against a discriminator.

    Args:
        settings: what is trained and how.
        estimator: an estimator object in place of the one that the settings name; it is copied.
        device: "cpu", "cuda", ..., or "auto" for a GPU where there is one.

    Attributes:
        module_: the trained :class:`~argrad.models.SequenceGANModule`, a plain PyTorch module.
        vocabulary_: its symbols, a :class:`~argrad.data.text.Vocabulary`.
        history_: one dictionary per epoch of the game.
        likelihood_history_: the same for maximum likelihood.

    >>> lines = [first + second + third for first in "abc" for second in "xyz" for third in "abc"]
    >>> model = SequenceGAN(SequenceGANSettings(hidden=8, likelihood_epochs=2, epochs=1)).fit(lines)
    >>> len(model.sample(5)), model.log_prob(["axa", "cyb"]).shape
    (5, torch.Size([2]))
    """

    module_: SequenceGANModule
    vocabulary_: Vocabulary
    history_: list[dict[str, Any]]
    likelihood_history_: list[dict[str, Any]]

    def __init__(
        self,
        settings: SequenceGANSettings | None = None,
        *,
        estimator: Estimator | None = None,
        device: str = "auto",
    ) -> None:
        self.settings = settings or SequenceGANSettings()
        self.estimator = estimator
        self.device = device

    @classmethod
    def from_run(cls, path: Path | str, *, device: str = "auto") -> Self:
        """A fitted model from a run folder of ``argrad write train``."""
        module, vocabulary, settings = load_sequence_gan(Path(path).expanduser(), device=choose_device(device))
        model = cls(settings, device=device)
        model.module_, model.vocabulary_ = module, vocabulary
        model.history_, model.likelihood_history_ = [], []
        return model

    def fit(self, lines: Iterable[str] | Text | None = None) -> Self:
        """Train on lines: strings, or text that is split already; without any, on the data that the settings name."""
        settings = self.settings
        if lines is None:
            text = load_lines(settings)
        elif isinstance(lines, Text):
            text = lines
        else:
            level = "characters" if settings.level == "auto" else settings.level
            text = as_text(lines, level=level, length=settings.length or None, split_seed=settings.split_seed)
        device = choose_device(self.device)
        text = text.to(device)
        module = build_sequence_gan(settings, len(text.vocabulary), text.length, copy.deepcopy(self.estimator))
        module.to(device)
        self.likelihood_history_ = []
        try:
            if settings.likelihood_epochs:
                self.likelihood_history_ = train_likelihood(settings, None, module, text).history
            self.history_ = train_adversarially(settings, None, module, text).history
        except Interrupted:
            raise KeyboardInterrupt from None
        self.module_, self.vocabulary_ = module.eval(), text.vocabulary
        return self

    def sample(self, number: int = 1, *, seed: int = 0) -> list[str]:
        """New lines; the same for the same seed."""
        if number < 1:
            raise ValueError(f"number must be at least 1, got {number}")
        module = self._fitted()
        noise = torch.Generator(module.writer.device).manual_seed(seed)
        return self.vocabulary_.decode(module.writer.sample(number, generator=noise))

    def log_prob(self, lines: Iterable[str]) -> torch.Tensor:
        """log q of lines, ``[N]``: how probable it finds them; refuses symbols that it does not know."""
        writer = self._fitted().writer
        indices = self.vocabulary_.encode(lines, writer.length, "lines")
        with torch.no_grad():
            return writer.log_prob(indices.to(writer.device)).cpu()

    def _fitted(self) -> SequenceGANModule:
        if not hasattr(self, "module_"):
            raise ValueError("this SequenceGAN is not fitted yet; call fit(lines), or load one with from_run(folder)")
        return self.module_
