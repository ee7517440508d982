"""Which labels to keep: a few of each class, for learning with few labels."""

import numpy as np
import torch
from torch import Tensor

from argrad.data.errors import WrongImages, WrongOption

__all__ = ["UNLABELLED", "hide_labels"]

UNLABELLED = -1
"""What stands for "not labelled"."""


def hide_labels(labels: Tensor, number: int, seed: int = 0) -> Tensor:
    """Keep a number of labels, the same for each class (or one more for some), and hide the others.

    The choice comes from NumPy's `RandomState`, whose stream is frozen: the same labels on every machine.

    Args:
        labels: int64 [N]; those that are -1 stay so.
        number: how many to keep; 0 keeps all.
        seed: of the choice; another seed is another draw.

    Returns:
        int64 [N], -1 where there is no label.

    Example:
        >>> hide_labels(torch.tensor([0, 0, 1, 1, 1, 2, 2]), 3).sort().values
        tensor([-1, -1, -1, -1,  0,  1,  2])
    """
    known = labels.cpu().numpy()
    classes, counts = np.unique(known[known != UNLABELLED], return_counts=True)
    if len(classes) < 2:
        raise WrongImages(f"labels of {len(classes)} class(es) are too few to learn from: at least 2 are needed")
    if number == 0:
        return labels.clone()
    if not len(classes) <= number <= counts.sum():
        raise WrongOption(
            f"labels={number} cannot be had: there are {len(classes)} classes, each of which needs one, and "
            f"{counts.sum()} labels in all"
        )
    random = np.random.RandomState(seed)
    places = [random.permutation(np.flatnonzero(known == kind)) for kind in classes]
    shares = equal_shares(number, counts)
    kept = np.concatenate([place[:share] for place, share in zip(places, shares, strict=True)])
    hidden = torch.full_like(labels, UNLABELLED)
    hidden[torch.from_numpy(kept).to(labels.device)] = labels[torch.from_numpy(kept).to(labels.device)]
    return hidden


def equal_shares(number: int, counts: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
    """Shares of a number as equal as the counts allow, the first classes taking what is over."""
    shares = [0] * len(counts)
    while number > 0:
        for kind, count in enumerate(counts):
            if number > 0 and shares[kind] < count:
                shares[kind] += 1
                number -= 1
    return shares
