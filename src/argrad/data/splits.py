"""Splits by seed: disjoint, complete, and the same on every machine.

The permutation comes from NumPy's `RandomState`, whose stream is frozen for good, so a split made today is the split
made by any later version.
"""

import math

import numpy as np
from numpy.typing import NDArray

from argrad.data.errors import WrongImages, WrongOption
from argrad.data.parts import Part, Raw

Fractions = tuple[float, float, float]
"""Shares of train, validation and test; they add up to 1."""

DEFAULT_FRACTIONS: Fractions = (0.8, 0.1, 0.1)


def permutation(count: int, seed: int) -> NDArray[np.intp]:
    """Numbers 0 .. count - 1 in an order that depends on the seed alone.

    Example:
        >>> permutation(5, seed=0).tolist()
        [2, 0, 1, 3, 4]
    """
    check_split_seed(seed)
    return np.random.RandomState(seed).permutation(count).astype(np.intp)


def check_split_seed(seed: int) -> None:
    """Raise a WrongOption unless a seed is one that every way of splitting takes."""
    if not 0 <= seed < 2**32:
        raise WrongOption(f"split_seed={seed} is out of range: choose a whole number from 0 to {2**32 - 1}")


def check_fractions(fractions: Fractions) -> None:
    """Raise `WrongOption` unless there are three shares that add up to 1 and leave something to train on."""
    good = len(fractions) == 3 and all(0 <= share <= 1 for share in fractions) and fractions[0] > 0
    if not good or not math.isclose(sum(fractions), 1, abs_tol=1e-6):
        raise WrongOption(
            f"fractions={tuple(fractions)} cannot be used: give three numbers from 0 to 1 for train, validation and "
            "test that add up to 1, with some for train, such as (0.8, 0.1, 0.1)"
        )


def share_of(count: int, fraction: float) -> int:
    """Number of images that a share of `count` comes to: rounded, and at least one where the share is not zero."""
    return max(1, round(count * fraction)) if fraction > 0 else 0


def split(raw: Raw, seed: int, fractions: Fractions | None = None) -> tuple[Part, Part, Part]:
    """Divide a data set into train, validation and test.

    Official test and validation sets are kept as they are. What has to be taken from the rest is taken from a
    permutation by `seed`, so the images of a split come in random order.

    Args:
        raw: the data set as read.
        seed: decides who goes where; 0 to 2**32 - 1.
        fractions: shares of train, validation and test where the data set has no custom of its own, default 80/10/10;
            with an official test set the first two are used in proportion.

    Returns:
        train, validation, test.
    """
    if fractions is not None:
        if raw.splits_are_fixed:
            raise WrongOption("fractions= does not apply: this data set has its own split; leave fractions out")
        check_fractions(fractions)
    shares = fractions or DEFAULT_FRACTIONS
    order = permutation(len(raw.rest), seed)
    if raw.test is not None and raw.validation is not None:
        return raw.rest, raw.validation, raw.test
    if raw.test is not None:
        part_of_rest = shares[1] / (shares[0] + shares[1])
        held_out = raw.held_out if raw.held_out is not None else share_of(len(order), part_of_rest)
        train, validation = cut(order, held_out)
        return raw.rest.take(train), raw.rest.take(validation), raw.test
    train, validation, test = cut(order, share_of(len(order), shares[1]), share_of(len(order), shares[2]))
    return raw.rest.take(train), raw.rest.take(validation), raw.rest.take(test)


def cut(order: NDArray[np.intp], *sizes: int) -> list[NDArray[np.intp]]:
    """Cut pieces of the given sizes off the end of `order`; the first piece is what remains."""
    train = len(order) - sum(sizes)
    if train < 1:
        wanted = " + ".join(str(size) for size in sizes)
        raise WrongImages(
            f"{len(order)} image(s) are too few: {wanted} are to be set aside for validation and test and nothing is "
            f"left to train on; give at least {sum(sizes) + 1} images"
        )
    return np.split(order, np.cumsum([train, *sizes])[:-1])
