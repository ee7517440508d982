"""Search by Hamming distance: against counting by hand, with and without numba."""

import time

import numpy as np
import pytest

from argrad.models.hashing import search as hashing_search
from argrad.models.hashing.search import hamming_neighbors, pack, unpack


def random_codes(rng: np.random.Generator, number: int, bits: int) -> np.ndarray:
    return rng.integers(0, 256, (number, bits // 8), dtype=np.uint8)


def by_hand(queries: np.ndarray, codes: np.ndarray, wanted: int) -> tuple[np.ndarray, np.ndarray]:
    away = (np.unpackbits(queries, axis=1)[:, None] != np.unpackbits(codes, axis=1)).sum(-1)
    rows = np.argsort(away, axis=1, kind="stable")[:, :wanted]
    return np.take_along_axis(away, rows, 1), rows


@pytest.fixture(params=["numba", "numpy"])
def _way(request, monkeypatch):
    if request.param == "numba":
        pytest.importorskip("numba")
    else:
        monkeypatch.setattr(hashing_search, "has_numba", lambda: False)
        monkeypatch.setattr(hashing_search, "BYTES_AT_ONCE", 2000)  # several pieces


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("bits", [8, 16, 64, 72, 136])
@pytest.mark.parametrize(("number", "wanted"), [(1, 1), (7, 7), (300, 1), (300, 10), (2500, 100), (2500, 2500)])
def test_neighbours_are_those_counted_by_hand(bits, number, wanted):
    """Every number of words, full or not; several blocks of codes; ties in the order of rows."""
    rng = np.random.default_rng(0)
    queries, codes = random_codes(rng, 5, bits), random_codes(rng, number, bits)
    codes[number // 2 :] = codes[: number - number // 2]  # the same codes again, farther down
    distances, rows = hamming_neighbors(queries, codes, wanted)
    expected_distances, expected_rows = by_hand(queries, codes, wanted)
    np.testing.assert_array_equal(distances, expected_distances)
    np.testing.assert_array_equal(rows, expected_rows)


@pytest.mark.usefixtures("_way")
def test_codes_in_the_worst_order():
    """The farthest first: every code is a candidate when it is seen."""
    codes = pack(np.tril(np.ones((64, 64)))[::-1])
    distances, rows = hamming_neighbors(np.zeros((1, 8), np.uint8), codes, 3)
    assert distances.tolist() == [[1, 2, 3]]
    assert rows.tolist() == [[63, 62, 61]]


def test_packing_there_and_back():
    bits = np.random.default_rng(0).integers(0, 2, (7, 24))
    packed = pack(bits.astype(np.float32))
    assert packed.dtype == np.uint8
    assert packed.shape == (7, 3)
    np.testing.assert_array_equal(unpack(packed), bits)
    assert pack(np.array([[1, 0, 0, 0, 0, 0, 0, 0]])).tolist() == [[128]]


def test_bad_input():
    codes = np.zeros((5, 4), np.uint8)
    with pytest.raises(ValueError, match="queries have 16 bits, but the codes have 32; both must come from the same"):
        hamming_neighbors(np.zeros((2, 2), np.uint8), codes)
    with pytest.raises(ValueError, match=r"queries must be packed bits, bytes .* got float64 of shape \(2, 4\)"):
        hamming_neighbors(np.zeros((2, 4)), codes)
    with pytest.raises(ValueError, match=r"queries must be packed bits.* got int64 of shape \(1, 4\)"):
        hamming_neighbors(np.full((1, 4), 256), codes)
    for wrong in (codes[0], codes[:0], codes[:, :0]):
        with pytest.raises(ValueError, match="codes must be packed bits"):
            hamming_neighbors(codes, wrong)
    for wanted in (0, 6):
        with pytest.raises(ValueError, match=f"n_neighbors must be from 1 to the number of codes, 5, got {wanted}"):
            hamming_neighbors(codes, codes, wanted)
    with pytest.raises(ValueError, match="n a multiple of 8"):
        pack(np.zeros((3, 12)))


@pytest.mark.slow
def test_a_hundred_queries_among_sixty_thousand_codes():
    """Under 20 ms on two cores: at most 40 ms of processor time, which other processes do not add to."""
    pytest.importorskip("numba")
    rng = np.random.default_rng(0)
    queries, codes = random_codes(rng, 100, 64), random_codes(rng, 60_000, 64)
    hamming_neighbors(queries, codes, 10)  # compiles
    took = []
    for _ in range(20):
        began = time.process_time()
        hamming_neighbors(queries, codes, 10)
        took.append(time.process_time() - began)
    assert min(took) < 0.04
