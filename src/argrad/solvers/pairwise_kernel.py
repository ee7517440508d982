"""The Triton kernel of :mod:`argrad.solvers.pairwise_fused`, which says what it does; imported where Triton is."""

import triton
import triton.language as tl

__all__ = ["program"]


@triton.jit
def scores_of_rows(u, w, a, right, n: tl.constexpr, first: tl.constexpr, R: tl.constexpr):
    """Bits of R first halves a, with a column of ones behind them, and the scores [R, B] of their rows of the grid."""
    k = tl.arange(0, R)
    left = tl.where(k[None, :] == first, 1, (a[:, None] >> tl.maximum(first - 1 - k, 0)[None, :]) & 1)
    left = tl.where(k[None, :] <= first, left, 0).to(tl.float32)
    f = tl.zeros((R,), tl.float32)
    for i in tl.static_range(first):
        inner = tl.maximum(tl.load(u + i), -1e30) + tl.zeros((R,), tl.float32)
        for other in tl.static_range(i + 1, first):
            inner += tl.load(w + i * n + other) * ((a >> (first - 1 - other)) & 1).to(tl.float32)
        f += ((a >> (first - 1 - i)) & 1).to(tl.float32) * inner
    return left, tl.dot(left, right, input_precision="ieee") + f[:, None]


@triton.jit
def program(
    unary,
    pairwise,
    noise,
    z,
    kl,
    to_unary,
    to_pairwise,
    unary_stride,
    pairwise_stride,
    n: tl.constexpr,
    first: tl.constexpr,
    second: tl.constexpr,
    A: tl.constexpr,
    B: tl.constexpr,
    R: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    """One example: sample into z and, with GRADIENT, the KL and its gradients."""
    example = tl.program_id(0)
    u = unary + example.to(tl.int64) * unary_stride
    w = pairwise + example.to(tl.int64) * pairwise_stride
    draw = noise + example.to(tl.int64) * (A + B)
    k = tl.arange(0, R)
    b = tl.arange(0, B)
    # Rows of the product's right side: T_kb for the bits k of a, and g(b) in the row after them.
    right = tl.zeros((R, B), tl.float32)
    g = tl.zeros((B,), tl.float32)
    for j in tl.static_range(second):
        bit = ((b >> (second - 1 - j)) & 1).to(tl.float32)
        inner = tl.maximum(tl.load(u + first + j), -1e30) + tl.zeros((B,), tl.float32)
        for other in tl.static_range(j + 1, second):
            inner += tl.load(w + (first + j) * n + first + other) * ((b >> (second - 1 - other)) & 1).to(tl.float32)
        g += bit * inner
        column = tl.load(w + k * n + first + j, mask=k < first, other=0.0)
        right += column[:, None] * bit[None, :]
    right = tl.where((k == first)[:, None], g[None, :], right)
    highest, total, mean = -float("inf"), 0.0, 0.0
    best, best_row = -float("inf"), 0
    for tile in range(A // R):
        a = tile * R + tl.arange(0, R)
        left, scores = scores_of_rows(u, w, a, right, n, first, R)
        top = tl.max(scores, 1)
        weights = tl.exp(scores - top[:, None])
        row_total = tl.sum(weights, 1)
        perturbed = top + tl.log(row_total) + tl.load(draw + a)
        reached = tl.max(perturbed, 0)
        best_row = tl.where(reached > best, tile * R + tl.argmax(perturbed, 0), best_row)
        best = tl.maximum(reached, best)
        if GRADIENT:
            higher = tl.maximum(highest, tl.max(top, 0))
            scale = tl.exp(top - higher)
            shrink = tl.exp(highest - higher)
            mean = mean * shrink + tl.sum(scale * tl.sum(weights * scores, 1), 0)
            total = total * shrink + tl.sum(scale * row_total, 0)
            highest = higher
    # The other half given the first: f is the same for all of it.
    chosen = tl.where(k == first, 1, (best_row >> tl.maximum(first - 1 - k, 0)) & 1)
    chosen = tl.where(k <= first, chosen, 0).to(tl.float32)
    given = tl.sum(chosen[:, None] * right, 0) + tl.load(draw + A + b)
    number = best_row * B + tl.argmax(given, 0)
    place = tl.arange(0, 32)
    bits = (number >> tl.maximum(n - 1 - place, 0)) & 1
    tl.store(z + example * n + place, bits.to(tl.float32), mask=place < n)
    if GRADIENT:
        mean = mean / total
        log_z = highest + tl.log(total)
        tl.store(kl + example, mean - log_z + n * 0.6931471805599453)
        over_a = tl.zeros((R, R), tl.float32)
        over_b = tl.zeros((R, B), tl.float32)
        for tile in range(A // R):
            a = tile * R + tl.arange(0, R)
            left, scores = scores_of_rows(u, w, a, right, n, first, R)
            omega = tl.exp(scores - log_z) * (scores - mean)
            back = tl.trans(left)
            over_b += tl.dot(back, omega, input_precision="ieee")
            over_a += tl.dot(back, left * tl.sum(omega, 1)[:, None], input_precision="ieee")
        columns = tl.arange(0, R)
        code = ((b[:, None] >> tl.maximum(second - 1 - columns, 0)[None, :]) & 1).to(tl.float32)
        code = tl.where(columns[None, :] < second, code, 0.0)
        across = tl.dot(over_b, code, input_precision="ieee")  # [bits of a, and all; bits of b]
        every = tl.sum(tl.where((k == first)[:, None], over_b, 0.0), 0)
        within = tl.dot(tl.trans(code), every[:, None] * code, input_precision="ieee")
        out = to_unary + example * n
        tl.store(out + k, tl.sum(tl.where(k[:, None] == columns[None, :], over_a, 0.0), 1), mask=k < first)
        alone = tl.sum(tl.where((k == first)[:, None], across, 0.0), 0)
        tl.store(out + first + columns, alone, mask=columns < second)
        pairs = to_pairwise + example.to(tl.int64) * (n * n)
        upper = k[:, None] < columns[None, :]
        here = pairs + k[:, None] * n + columns[None, :]
        inside_a = (k < first)[:, None] & (columns < first)[None, :]
        inside_b = (k < second)[:, None] & (columns < second)[None, :]
        tl.store(here, tl.where(upper, over_a, 0.0), mask=inside_a)
        tl.store(here + first, across, mask=(k < first)[:, None] & (columns < second)[None, :])
        tl.store(here + first * n, 0.0 * across, mask=(k < second)[:, None] & (columns < first)[None, :])
        tl.store(here + first * n + first, tl.where(upper, within, 0.0), mask=inside_b)
