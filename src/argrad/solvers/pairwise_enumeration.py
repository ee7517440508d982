r"""Pairwise bits by enumeration: exact, any signs, in matrix products; CPU and GPU.

The score of n bits is a quadratic form, since z² = z:

.. math:: s(z) = \sum_i u_i z_i + \sum_{i<j} W_{ij} z_i z_j = z^\top T z, \qquad T_{ii} = u_i,\; T_{ij} = W_{ij}.

Cut z into halves (a, b). Then :math:`s = f(a) + g(b) + a^\top T_{ab}\, b`, where f and g have only :math:`2^{n/2}`
values each. All :math:`2^n` scores are one product of the codes a, ``[2^(n/2), n/2]``, with a matrix
``[n/2, 2^(n/2)]``: n/2 multiplications for each score. The arg max needs f only after the best b of each a is known.

There is no step that waits for the GPU or depends on the numbers, so it can be compiled and captured in a CUDA graph.
"""

import torch
from torch import Tensor

from argrad.solvers.checks import can_read_values
from argrad.solvers.pairwise_checks import check_pairwise, working_dtype
from argrad.solvers.rounding import products_are_exact

__all__ = ["MAX_BITS", "pairwise_by_enumeration", "pairwise_scores_all"]

MAX_BITS = 26
"""Most bits that are enumerated; at 20 one problem already has a million states."""
CACHE_SIZED = 2**20
"""Bytes that one chunk may take on a CPU, whose caches are much faster than its memory."""
GPU_MEMORY = 2**28
"""Bytes that one chunk may take on a GPU."""


def pairwise_by_enumeration(
    unary: Tensor, pairwise: Tensor, *, memory_limit: int | None = None, validate: bool = True
) -> Tensor:
    """The best bits, found by looking at all of them: exact for any signs.

    Costs n/2 · 2^n multiplications for each problem. Among equally good bits any may be returned.

    Args:
        unary: u, ``[*batch, n]``, n at most 26; -inf means that the bit is 0.
        pairwise: W, ``[*batch, n, n]``, of which the upper triangle is read. The two batches broadcast, so that unary
            scores may have further dimensions in front, such as draws of noise.
        memory_limit: bytes of scores that are held at a time: 1 MiB on a CPU (its cache), 256 MiB on a GPU.
        validate: False leaves out the check that reads the numbers.

    Returns:
        z, ``[*batch, n]``, 0 or 1, in the precision of ``unary``; never differentiable.

    >>> unary = torch.tensor([1.0, 1.0, -1.0])
    >>> pairwise = torch.tensor([[0.0, -3.0, 2.0], [0.0, 0.0, 0.5], [0.0, 0.0, 0.0]])
    >>> pairwise_by_enumeration(unary, pairwise)
    tensor([1., 0., 1.])
    """
    batch = check_pairwise(unary, pairwise, validate=validate)
    n = check_bits(unary)
    if batch.numel() == 0:
        return unary.new_zeros(*batch, n)
    with torch.no_grad(), torch.autocast(unary.device.type, enabled=False):
        form = quadratic_form(unary, pairwise).expand(*batch, n, n).reshape(-1, n, n)
        if memory_limit is None:
            memory_limit = CACHE_SIZED if unary.device.type == "cpu" else GPU_MEMORY
        return best_bits(form, memory_limit // form.element_size()).to(unary.dtype).reshape(*batch, n)


def pairwise_scores_all(unary: Tensor, pairwise: Tensor, *, validate: bool = True) -> Tensor:
    """The score of every vector of bits, ``[*batch, 2^n]``, the last bit changing fastest; differentiable.

    Costs n/2 · 2^n multiplications for each problem, forwards, and twice that backwards. Bits that a unary score of
    -inf rules out have the score -inf and send no gradient.

    Args:
        unary: u, ``[*batch, n]``.
        pairwise: W, ``[*batch, n, n]``, of which the upper triangle is read; the two batches broadcast.
        validate: False leaves out the check that reads the numbers.

    >>> pairwise_scores_all(torch.tensor([1.0, 2.0]), torch.tensor([[0.0, 5.0], [0.0, 0.0]]))  # of 00, 01, 10, 11
    tensor([0., 2., 1., 8.])
    """
    batch = check_pairwise(unary, pairwise, validate=validate)
    n = check_bits(unary)
    with torch.autocast(unary.device.type, enabled=False):
        form = quadratic_form(unary, pairwise).expand(*batch, n, n)
        first, last = split_codes(n, form)
        f, g, cross = halves(form, first, last)
        # f and g join the product as a column and a row of their own, each against ones. So does what is ruled out, as
        # 0 or -inf: here there are 2^(n/2) sums to look at, and not 2^n.
        f_possible, g_possible = (part > torch.finfo(form.dtype).min / 128 for part in (f, g))
        f, g = torch.where(f_possible, f, 0.0)[..., None], torch.where(g_possible, g, 0.0)[..., None, :]
        left, right = full_precision(
            torch.cat([first.expand(*batch, *first.shape), torch.ones_like(f), f], -1),
            torch.cat([cross, g, torch.ones_like(g)], -2),
        )
        f_out = torch.where(f_possible, 0.0, -torch.inf).to(form.dtype)[..., None]
        g_out = torch.where(g_possible, 0.0, -torch.inf).to(form.dtype)[..., None, :]
        left = torch.cat([left, torch.ones_like(f_out), f_out], -1)
        right = torch.cat([right, g_out, torch.ones_like(g_out)], -2)
        return (left @ right).flatten(-2)


def best_bits(form: Tensor, held: int) -> Tensor:
    """The best bits ``[N, n]`` of quadratic forms ``[N, n, n]``, holding so many scores at a time."""
    problems, n, _ = form.shape
    first, last = split_codes(n, form)
    f, g, cross = halves(form, first, last)
    left = torch.cat([first, first.new_ones(len(first), 1)], -1)
    right = torch.cat([cross, g[..., None, :]], -2)
    together = max(1, min(problems, held >> n))
    rows = max(1, held // (together * len(last)))
    best_of_row = [
        torch.cat([exact_product(some, those).amax(-1) for some in left.split(rows)], -1)
        for those in right.split(together)
    ]
    # Finding only the maximum and then its place in one row is much quicker than looking for the place everywhere.
    row = (torch.cat(best_of_row) + f).argmax(-1)
    column = exact_product(left[row][:, None, :], right).squeeze(-2).argmax(-1)
    return torch.cat([first[row], last[column]], -1)


def halves(form: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """f ``[*batch, A]``, g ``[*batch, B]`` and T_ab b ``[*batch, n_a, B]`` for all codes a ``first`` and b ``last``."""
    cut = first.shape[-1]
    f = exact_product(form[..., :cut, :cut].flatten(-2), products(first).mT)
    g = exact_product(form[..., cut:, cut:].flatten(-2), products(last).mT)
    return f, g, exact_product(form[..., :cut, cut:], last.mT)


def quadratic_form(unary: Tensor, pairwise: Tensor) -> Tensor:
    """T: upper triangular, the unary scores on its diagonal; -inf becomes a number that no sum can make up for."""
    dtype = working_dtype(unary, pairwise)
    diagonal = unary.to(dtype).clamp_min(torch.finfo(dtype).min / 64)  # 26 of them still add up to a finite number
    here = torch.eye(unary.shape[-1], dtype=torch.bool, device=unary.device)
    return torch.where(here, diagonal[..., None, :], pairwise.to(dtype).triu(1))


def check_bits(unary: Tensor) -> int:
    """n, if so many bits can be enumerated."""
    n = unary.shape[-1]
    if n > MAX_BITS:
        raise ValueError(
            f"{n} bits have 2^{n} states, and enumeration goes up to {MAX_BITS} bits; use pairwise_by_branch_and_bound "
            "(or pairwise_by_max_flow, where no pairwise score is negative)"
        )
    return n


# ----------------------------------------------------------------------------------------------------------- the codes

_codes: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}


def split_codes(n: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """All codes of the first ⌊n/2⌋ bits and of the others."""
    return codes(n // 2, like), codes(n - n // 2, like)


def codes(bits: int, like: Tensor) -> Tensor:
    """Every vector of so many bits, ``[2^bits, bits]``, the last bit changing fastest."""
    key = (bits, like.dtype, like.device)
    if not can_read_values(like):
        # What is made while a graph is captured holds its numbers only when the graph runs: not for keeping.
        return _codes[key] if key in _codes and not torch.compiler.is_compiling() else new_codes(bits, like)
    if key not in _codes:
        with torch.inference_mode(False):
            _codes[key] = new_codes(bits, like)
    return _codes[key]


def new_codes(bits: int, like: Tensor) -> Tensor:
    """Count in binary."""
    numbers = torch.arange(2**bits, device=like.device)[:, None]
    places = torch.arange(bits - 1, -1, -1, device=like.device)
    return ((numbers >> places) & 1).to(like.dtype)


def products(code: Tensor) -> Tensor:
    """All products of two bits of each code, ``[S, bits²]``."""
    return (code[:, :, None] * code[:, None, :]).flatten(-2)


# ------------------------------------------------------------------------------------------------------------ precision


def exact_product(left: Tensor, right: Tensor) -> Tensor:
    """The matrix product in full precision, where every product that it adds up has a factor 0 or 1."""
    if left.dim() < right.dim():
        left = left.expand(*right.shape[:-2], *left.shape)  # PyTorch would otherwise transpose the result
    left, right = full_precision(left, right)
    return left @ right


def full_precision(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Factors with the same product, which stays exact where the user lets PyTorch round factors to 10 or 7 bits.

    Numbers are cut into three pieces of 8 bits, which such rounding leaves alone. Where one of two numbers is 0 or 1,
    the pieces of each with the first piece of the other are all there is to their product.
    """
    if left.dtype != torch.float32 or products_are_exact(left.device):
        return left, right
    a, b = pieces(left), pieces(right)
    return torch.cat([a[0], a[0], a[0], a[1], a[2]], -1), torch.cat([b[0], b[1], b[2], b[0], b[0]], -2)


def pieces(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Three numbers of 8 significant bits each that add up to x."""
    high = x.bfloat16().float()
    middle = (x - high).bfloat16().float()
    return high, middle, x - high - middle
