import hashlib
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from argrad.data import DataError
from argrad.data.parts import Part, Raw
from argrad.data.splits import permutation, split


def numbered(count: int, start: int = 0) -> Part:
    """Images that carry their number, as label and as pixel."""
    numbers = np.arange(start, start + count)
    return Part(np.repeat(numbers, 4).reshape(count, 2, 2).astype(np.float32), numbers)


def numbers(part: Part) -> list[int]:
    assert part.labels is not None
    assert (part.pixels == part.labels[:, None, None]).all(), "labels must stay with their images"
    return [int(label) for label in part.labels]


@given(
    count=st.integers(3, 300),
    seed=st.integers(0, 2**32 - 1),
    shares=st.tuples(st.floats(0.4, 1), st.floats(0, 0.3), st.floats(0, 0.3)),
)
def test_fractions_give_disjoint_complete_splits_that_depend_on_the_seed_alone(
    count: int, seed: int, shares: tuple[float, float, float]
) -> None:
    total = sum(shares)
    fractions = (shares[0] / total, shares[1] / total, shares[2] / total)
    parts = [numbers(part) for part in split(Raw(numbered(count)), seed, fractions)]
    assert sorted(chain(*parts)) == list(range(count))
    assert parts == [numbers(part) for part in split(Raw(numbered(count)), seed, fractions)]
    for part, fraction in zip(parts[1:], fractions[1:], strict=True):
        assert len(part) == (0 if fraction == 0 else max(1, round(count * fraction)))


@given(count=st.integers(6, 300), seed=st.integers(0, 2**32 - 1))
def test_official_test_set_stays_and_validation_comes_from_the_rest(count: int, seed: int) -> None:
    raw = Raw(numbered(count), test=numbered(7, start=1000), held_out=count // 6)
    train, validation, test = (numbers(part) for part in split(raw, seed))
    assert test == list(range(1000, 1007))
    assert len(validation) == count // 6
    assert sorted(train + validation) == list(range(count))


def test_official_test_set_without_custom_takes_validation_in_proportion() -> None:
    train, validation, test = split(Raw(numbered(90), test=numbered(5)), 0)
    assert (len(train), len(validation), len(test)) == (80, 10, 5)


def test_three_official_splits_are_left_alone() -> None:
    raw = Raw(numbered(3), test=numbered(2), validation=numbered(1))
    assert split(raw, seed=5) == (raw.rest, raw.validation, raw.test)


def test_seeds_differ_and_the_permutation_never_changes() -> None:
    assert permutation(1000, 0).tolist() != permutation(1000, 1).tolist()
    digest = hashlib.sha256(permutation(60_000, 0).astype("<i8").tobytes()).hexdigest()
    assert digest == "7e036c4b3f1dd66e54edf1c84c91af7933021075586bc01f9f38916f0fa3f23e", (
        "every published split depends on this"
    )


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seed_out_of_range(seed: int) -> None:
    with pytest.raises(DataError, match="split_seed="):
        permutation(3, seed)


@pytest.mark.parametrize(
    "fractions", [(0.8, 0.1), (0.8, 0.3, 0.1), (1.2, -0.1, -0.1), (0.0, 0.5, 0.5), (0.8, 0.1, 0.2)]
)
def test_fractions_that_do_not_add_up(fractions: tuple[float, float, float]) -> None:
    with pytest.raises(DataError, match=r"add up to 1.*such as \(0.8, 0.1, 0.1\)"):
        split(Raw(numbered(10)), 0, fractions)


def test_fractions_for_data_with_its_own_split() -> None:
    with pytest.raises(DataError, match="has its own split"):
        split(Raw(numbered(60), test=numbered(5), held_out=10), 0, (0.8, 0.1, 0.1))


def test_too_few_images() -> None:
    with pytest.raises(DataError, match=r"2 image\(s\) are too few.*at least 3"):
        split(Raw(numbered(2)), 0)
