"""Rivals for the mixture: another number of Gaussians for the same latents, fitted by the same loss or by likelihood.

Log-densities of latents from two models cannot be compared, since each model chooses the scale of its own. So the
encoders of a trained model are kept as they are, and a new head is trained on their latents, with fresh masks: by the
back-propagate-max loss, as the model's own, or to maximise log p(z_c|z_v) itself, all components at once, which is what
a head of so many components can do at best. The weights of the best epoch on validation images are kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn

from argrad.data import Images
from argrad.data.masks import MaskKind, draw_masks
from argrad.models.completion.mixture import MixtureLoss, back_propagate_max
from argrad.models.completion.module import CompletionModule
from argrad.models.completion.run import CompletionSettings, build_completion
from argrad.models.completion.task import AT_ONCE, fixed_masks, half_mirrored
from argrad.models.discrete_vae.task import evaluate_in_batches
from argrad.training import World, train

__all__ = ["fit_head"]


def fit_head(
    module: CompletionModule,
    settings: CompletionSettings,
    images: Images,
    components: int,
    *,
    by_likelihood: bool,
) -> CompletionModule:
    """The same encoders with a new mixture.

    Args:
        module: trained.
        settings: that it was trained with.
        images: that it was trained on.
        components: of the new mixture.
        by_likelihood: whether the loss is −log p(z_c|z_v), in place of that of the settings.
    """
    device = next(module.parameters()).device
    rival = build_completion(replace(settings, components=components), images.shape).to(device)
    for name in ("visible_encoder", "missing_encoder"):
        getattr(rival, name).load_state_dict(getattr(module, name).state_dict())
    form = None if by_likelihood else settings.loss
    train(LatentTask(rival, images.to(device), settings.masks, settings.mirror, form), settings.loop())
    return rival.eval()


@final
class LatentTask:
    """The mixture head of a model and the latents that it learns, as the training loop wants them."""

    def __init__(
        self, model: CompletionModule, images: Images, masks: MaskKind, mirror: bool, form: MixtureLoss | None
    ) -> None:
        self.model, self.images, self.mirror = model, images, mirror
        self.form: MixtureLoss | None = form
        self.masks: MaskKind = masks
        self.module: nn.Module = model.mixture_head
        self.device = images.train.device
        self.train_size = len(images.train)
        self.size = (images.shape[-2], images.shape[-1])

    def set_step(self, step: int) -> None:
        """Nothing changes."""

    def losses(self, batch: Tensor, generator: torch.Generator, world: World) -> Tensor:
        """The loss of draws from the encoder of the missing part."""
        x = self.images.values(self.images.train[batch])
        x = half_mirrored(x, generator) if self.mirror else x
        mask = draw_masks(self.masks, len(x), self.size, generator=generator, device=self.device)
        return self._fit(x, mask, generator)

    def validate(self, generator: torch.Generator) -> dict[str, float]:
        """The same on validation images, with the same masks and noise each time."""
        stored = self.images.validation if len(self.images.validation) else self.images.train
        masks = fixed_masks(self.masks, len(stored), self.size, self.device)
        fixed = torch.Generator(self.device).manual_seed(0)

        def measure(rows: Tensor) -> Tensor:
            return self._fit(self.images.values(stored[rows]), masks[rows], fixed)

        return {"loss": evaluate_in_batches(measure, torch.arange(len(stored), device=self.device), AT_ONCE)}

    def after_epoch(self, epoch: int, optimiser: torch.optim.Optimizer, generator: torch.Generator) -> dict[str, float]:
        """Nothing is done between epochs."""
        return {}

    def _fit(self, x: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
        with torch.no_grad():
            visible = self.model.look(x, mask)
            posterior = self.model.posterior(x, mask, visible)
            z = posterior.sample(generator=generator)
        mixture = self.model.mixture(visible)
        return -mixture.log_prob(z) if self.form is None else back_propagate_max(mixture, posterior, z, self.form)
