"""Nearest codes by Hamming distance: packed bits, exclusive or, population count, on all CPU cores."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from argrad.solvers.compiled import compile_function, has_numba, prange, pytorch_threads

__all__ = ["hamming_neighbors", "pack", "unpack"]

Words = NDArray[np.uint64]
BLOCK = 1024
"""Codes whose distances are counted before they are looked at."""
BYTES_AT_ONCE = 2**24
"""How many bytes are compared at a time without numba."""


def pack(bits: NDArray[Any]) -> NDArray[np.uint8]:
    """Zeros and ones ``[N, n]`` as bytes ``[N, n / 8]``, the first bit of each byte the highest."""
    if bits.ndim != 2 or bits.shape[1] == 0 or bits.shape[1] % 8:
        raise ValueError(f"codes are packed from [N, n] with n a multiple of 8 (8, 16, 24, …), got shape {bits.shape}")
    return np.packbits(bits > 0.5, axis=1)


def unpack(codes: ArrayLike) -> NDArray[np.uint8]:
    """The way back: bytes ``[N, n / 8]`` as zeros and ones ``[N, n]``."""
    return np.unpackbits(check_codes("codes", codes), axis=1)


def hamming_neighbors(
    queries: ArrayLike, codes: ArrayLike, n_neighbors: int = 5
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The codes nearest to each query, by exhaustive search.

    Args:
        queries: packed bits, uint8 ``[Q, n / 8]``.
        codes: packed bits, uint8 ``[N, n / 8]``.
        n_neighbors: how many, at most N.

    Returns:
        Hamming distances ``[Q, n_neighbors]``, rising, and the rows of ``codes`` they belong to; of equal distances the
        first row comes first.

    >>> codes = np.array([[0b0000], [0b0011], [0b1111]], dtype=np.uint8)
    >>> hamming_neighbors([[0b0111]], codes, 2)
    (array([[1, 1]]), array([[1, 2]]))
    """
    queries, codes = check_codes("queries", queries), check_codes("codes", codes)
    if queries.shape[1] != codes.shape[1]:
        raise ValueError(
            f"queries have {8 * queries.shape[1]} bits, but the codes have {8 * codes.shape[1]}; both must come from "
            "the same model"
        )
    if not 1 <= n_neighbors <= len(codes):
        raise ValueError(f"n_neighbors must be from 1 to the number of codes, {len(codes)}, got {n_neighbors}")
    distances = np.empty((len(queries), n_neighbors), np.int64)
    rows = np.empty_like(distances)
    if not has_numba():
        find_in_numpy(queries, codes, distances, rows)
        return distances, rows
    kernel = search_kernel()
    with pytorch_threads():
        kernel(as_words(queries), as_words(codes), distances, rows)
    return distances, rows


def check_codes(what: str, codes: ArrayLike) -> NDArray[np.uint8]:
    """Packed codes, if that is what they are."""
    array = np.asarray(codes)
    if array.dtype != np.uint8 and array.dtype.kind in "iu" and array.size and 0 <= array.min() <= array.max() <= 255:
        array = array.astype(np.uint8)
    if array.dtype != np.uint8 or array.ndim != 2 or 0 in array.shape:
        raise ValueError(
            f"{what} must be packed bits, bytes (uint8) of shape [N, n / 8] with N and n above 0, as transform() gives "
            f"them; got {array.dtype} of shape {array.shape}"
        )
    return array


def as_words(codes: NDArray[np.uint8]) -> Words:
    """Bytes as 64-bit words, the first word of all codes first, ``[words, N]``; zeros where a word is not full."""
    full = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 8)))
    return np.ascontiguousarray(np.ascontiguousarray(full).view(np.uint64).T)


def find_in_numpy(
    queries: NDArray[np.uint8], codes: NDArray[np.uint8], distances: NDArray[np.int64], rows: NDArray[np.int64]
) -> None:
    """The same as :func:`find_nearest` for packed bytes, slower, where numba is not installed."""
    wanted, number = distances.shape[1], len(codes)
    ones = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1)
    for start in range(0, len(queries), at_once := max(1, BYTES_AT_ONCE // codes.size)):
        part = slice(start, start + at_once)
        away = ones[queries[part, None] ^ codes].sum(-1, dtype=np.int64)
        order = away * number + np.arange(number)  # distance first, then row: no two are equal
        best = np.sort(np.partition(order, wanted - 1, axis=1)[:, :wanted], axis=1)
        distances[part], rows[part] = np.divmod(best, number)


def find_nearest(
    queries: Words, codes: Words, distances: NDArray[np.int64], rows: NDArray[np.int64]
) -> None:  # pragma: no cover, numba compiles it
    """For each query the nearest codes, in one pass.

    A code is a candidate if it is nearer than ``limit``, which falls to the distance of the last of the best so far.
    """
    wanted, words, number = distances.shape[1], len(codes), codes.shape[1]
    for query in prange(queries.shape[1]):
        away = np.empty(BLOCK, np.int64)
        candidates, candidates_away = np.empty(number, np.int64), np.empty(number, np.int64)
        at = np.zeros(64 * words + 1, np.int64)  # how many candidates are at each distance
        limit, nearer, kept = 64 * words + 1, 0, 0
        for start in range(0, number, BLOCK):
            size = min(BLOCK, number - start)
            away[:size] = 0
            for word in range(words):
                own, others = queries[word, query], codes[word]
                for place in range(size):  # the idiom that compilers know as the population count
                    x = own ^ others[start + place]
                    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
                    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
                    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
                    away[place] += np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))
            for place in range(size):
                if away[place] < limit:
                    candidates[kept], candidates_away[kept] = start + place, away[place]
                    kept += 1
                    nearer += 1
                    at[away[place]] += 1
                    while nearer >= wanted:
                        limit -= 1
                        nearer -= at[limit]
        following = np.zeros(limit + 1, np.int64)  # where the next code at each distance goes
        for distance in range(limit):
            following[distance + 1] = following[distance] + at[distance]
        for candidate in range(kept):
            distance = candidates_away[candidate]
            if distance <= limit and following[distance] < wanted:
                distances[query, following[distance]] = distance
                rows[query, following[distance]] = candidates[candidate]
                following[distance] += 1


@functools.cache
def search_kernel() -> Callable[..., None]:
    """The search, compiled when it is first needed."""
    return compile_function(find_nearest, parallel=True, reorder_sums=False)
