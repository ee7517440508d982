"""What is measured of image completion on images that were held out, under masks that are the same each time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from argrad.data import Images
from argrad.data.masks import MaskKind
from argrad.models.completion.module import CompletionModule, on_channels
from argrad.models.completion.task import fixed_masks
from argrad.models.dead_codes import perplexity, used

__all__ = ["evaluate_completion"]

AT_ONCE = 100
"""Images that are completed at a time."""


@torch.no_grad()
def evaluate_completion(
    module: CompletionModule,
    images: Images,
    split: str = "test",
    *,
    masks: MaskKind = "mixed",
    number: int = 8,
    samples: int = 100,
    seed: int = 0,
) -> dict[str, Any]:
    """Scores on one split, means over its images.

    Returns:
        squared errors per hidden pixel of ``number`` completions: ``best_error`` of the one closest to the truth,
        ``mean_error`` of all; ``diversity``, the standard deviation over completions per hidden pixel; nats per image:
        ``latent_log_likelihood``, log p(z_c|z_v) of a draw from the encoder of the missing part, and ``bound``, an
        importance-weighted bound on log p(x_c|x_v); over all images ``components``, how many are picked by the hard max
        (exp of the entropy), and ``used_components``, the share that is picked at least a tenth as often as equal
        shares would have it; ``visible_untouched``, whether no visible pixel differs.
    """
    stored: Tensor = getattr(images, split)
    if len(stored) == 0:
        raise ValueError(f"{images.name} has no {split} images; choose another split")
    device = next(module.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    all_masks = fixed_masks(masks, len(stored), (images.shape[-2], images.shape[-1]), device)
    totals = torch.zeros(5, dtype=torch.float64)
    picks = torch.zeros(module.components, device=device)
    untouched = True
    for rows in torch.arange(len(stored)).split(AT_ONCE):
        x, mask = images.values(stored[rows].to(device)), all_masks[rows.to(device)]
        completed, _ = module.complete(x, mask, number, generator=generator)
        hidden = on_channels(mask, x)
        untouched &= bool(((completed == x.unsqueeze(1)) | hidden.unsqueeze(1)).all())
        visible = module.look(x, mask)
        mixture, z = module.mixture(visible), module.posterior(x, mask, visible).sample(generator=generator)
        picks += torch.bincount(mixture.pick(z), minlength=module.components)
        parts = (
            *errors(completed, x, hidden),
            mixture.log_prob(z),
            module.log_likelihood_bound(x, mask, samples=samples, generator=generator),
        )
        totals += torch.stack([part.double().sum().cpu() for part in parts])
    names = ("best_error", "mean_error", "diversity", "latent_log_likelihood", "bound")
    usage = (picks / picks.sum())[None]
    return {
        "split": split,
        "images": len(stored),
        "masks": masks,
        **dict(zip(names, (totals / len(stored)).tolist(), strict=True)),
        "components": perplexity(usage),
        "used_components": used(usage),
        "visible_untouched": untouched,
    }


def errors(completed: Tensor, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each image the error of its best completion, the mean error, and the spread of completions.

    Args:
        completed: ``[B, n, *shape]``.
        x: the truth, ``[B, *shape]``.
        hidden: booleans of the same shape.
    """
    pixels = hidden.flatten(1).sum(1)
    squares = (completed - x.unsqueeze(1)).square().flatten(2).sum(2) / pixels[:, None]
    if completed.shape[1] == 1:
        return squares[:, 0], squares[:, 0], torch.zeros_like(squares[:, 0])
    spread = completed.var(1).flatten(1).sum(1) / pixels
    return squares.amin(1), squares.mean(1), spread.sqrt()
