r"""n bits that depend on each other in pairs.

**Structures**: all z in {0, 1}^n. **Score**: :math:`\sum_i u_i z_i + \sum_{i<j} W_{ij} z_i z_j`.

**law="gibbs"** is the Boltzmann machine :math:`p(z) = e^{\mathrm{score}(z)} / Z`, by enumeration: one categorical
variable over the 2^n vectors of bits, whose scores are matrix products
(:func:`argrad.solvers.pairwise_scores_all`). A sample is drawn by Gumbel-max in two steps: the first half a of the bits
from its marginal :math:`\log p(a) = \log\sum_b e^{\mathrm{score}(a, b)} + \mathrm{const}`, then the other half given
a. So a sample needs 2^(n/2) + 2^(n/2) numbers of noise, and not 2^n. Up to 20 bits; costs n/2 · 2^n multiplications an
example. On a GPU one kernel does it all (:mod:`argrad.solvers.pairwise_fused`). **law="perturb"** adds logistic noise
to the n unary scores and calls a solver (:func:`argrad.solvers.solve_pairwise`), at any size. With no pairwise scores
both are :class:`argrad.Bits`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from argrad.latents.base import MAX_STATES, Law, Variables
from argrad.latents.bits import Bits
from argrad.latents.categorical import Categorical
from argrad.latents.structured import Structured, choose_law, kl_from_entropy
from argrad.noise import gumbel, logistic
from argrad.solvers.pairwise import PairwiseSolver, PairwiseSolverName, pairwise_score, solve_pairwise
from argrad.solvers.pairwise_checks import check_pairwise
from argrad.solvers.pairwise_enumeration import exact_product, pairwise_scores_all, split_codes
from argrad.solvers.pairwise_fused import can_fuse, sample_and_kl

__all__ = ["PairwiseBits"]


@final
class PairwiseBits(Structured, Variables):
    """A batch of vectors of n bits with a score for each bit and for each pair of bits.

    Args:
        unary: u, ``[*batch, n]``: what a bit adds to the score when it is 1; ``-inf`` is a bit that is always 0.
        pairwise: W, ``[*batch, n, n]``, of which the upper triangle is read: what two bits add when both are 1. Its
            batch broadcasts, so ``[n, n]`` is shared by all.
        solver: "auto", a name, or a function, as for :func:`argrad.solvers.solve_pairwise`.
        law: "gibbs" (exact, n at most 20) or "perturb".
        validate: False leaves out the checks that read the numbers.

    >>> q = PairwiseBits(torch.zeros(2), torch.tensor([[0.0, 3.0], [0.0, 0.0]]))
    >>> q.mean()
    tensor([0.9134, 0.9134])
    >>> q.sample((4,), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([4, 2])
    """

    def __init__(
        self,
        unary: Tensor,
        pairwise: Tensor,
        solver: PairwiseSolverName | PairwiseSolver = "auto",
        law: Law = "gibbs",
        *,
        validate: bool = True,
    ) -> None:
        batch = check_pairwise(unary, pairwise, validate=validate)
        self.law = choose_law("PairwiseBits", law)
        self.scores = unary if unary.shape[:-1] == batch else unary.expand(*batch, unary.shape[-1])
        self.pairwise = pairwise
        self.solver: PairwiseSolverName | PairwiseSolver = solver
        self.event_dims = 1
        self._kept: Categorical | None = None
        self._kl_kept: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def unary(self) -> Tensor:
        """The scores of single bits, under the paper's name."""
        return self.scores

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """Unary and pairwise scores."""
        return self.scores, self.pairwise

    @property
    def variables(self) -> int:
        """n, the number of bits."""
        return self.scores.shape[-1]

    @property
    def values(self) -> int:
        """Two."""
        return 2

    @property
    def noise_shape(self) -> torch.Size:
        """``[*batch, 2^⌊n/2⌋ + 2^⌈n/2⌉]`` under the law "gibbs", ``[*batch, n]`` under "perturb"."""
        if self.law == "perturb":
            return self.scores.shape
        self._check_size()
        return torch.Size((*self.batch_shape, sum(self._halves())))

    def with_scores(self, scores: Tensor) -> Self:
        """The same pairwise scores with other unary ones, unchecked."""
        return type(self)(scores, self.pairwise, self.solver, self.law, validate=False)

    def with_law(self, law: Law) -> Self:
        """The same scores under another law, unchecked."""
        return type(self)(self.scores, self.pairwise, self.solver, law, validate=False)

    def draw_noise(self, shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Gumbel noise for all first and all second halves, or logistic noise for the n bits."""
        make = gumbel if self.law == "gibbs" else logistic
        shape = (*shape, *self.noise_shape)
        return make(shape, dtype=self.scores.dtype, device=self.scores.device, generator=generator)

    def solve(self, scores: Tensor) -> Tensor:
        """The best bits for other unary scores."""
        return solve_pairwise(scores.detach(), self.pairwise.detach(), self.solver, validate=False)

    def score(self, z: Tensor) -> Tensor:
        """The sum of the scores of bits and pairs of bits that are 1, ``[*extra, *batch]``."""
        return pairwise_score(self.scores, self.pairwise, self.check_structure(z)).to(self.scores.dtype)

    def select_from_all(self, scores: Tensor, noise: Tensor | None) -> Tensor:
        """The sample that noise selects from other scores of all structures, or the best structure.

        Args:
            scores: ``[*batch, 2^n]``, in the order of :meth:`enumerate`.
            noise: ``[*extra, *noise_shape]``; None for the best.
        """
        first, second = self._halves()
        grid = scores.detach().unflatten(-1, (first, second))
        if noise is None:
            number = grid.flatten(-2).argmax(-1)
        else:
            row = (grid.logsumexp(-1) + noise[..., :first]).argmax(-1)
            grid = grid.expand(*row.shape, first, second)
            chosen = grid.gather(-2, row[..., None, None].expand(*row.shape, 1, second)).squeeze(-2)
            number = row * second + (chosen + noise[..., first:]).argmax(-1)
        place = torch.arange(self.variables - 1, -1, -1, device=number.device)
        bits: Tensor = number.unsqueeze(-1) >> place & 1
        return bits.to(self.scores.dtype)

    def scores_all(self) -> Tensor:
        """The score of every vector of bits in the order of :meth:`enumerate`, ``[*batch, 2^n]``, differentiable."""
        return self._states().scores

    def enumerate(self) -> Tensor:
        """All 2^n bit vectors, ``[S, n]``, in counting order, the last bit changing fastest."""
        return self._independent().enumerate()

    def change(self, z: Tensor, which: Tensor) -> Tensor:
        """Change number i flips bit i."""
        return self._independent().change(z, which)

    def tabulate_changes(self, z: Tensor, unchanged: Tensor, changed: Tensor) -> Tensor:
        """``[*batch, n, 2]``: the cost with bit i at 0 and at 1."""
        return self._independent().tabulate_changes(z, unchanged, changed)

    def linear(self, table: Tensor) -> Tensor:
        """What setting a bit adds to the cost, ``[*batch, n]``."""
        return self._independent().linear(table)

    def _independent(self) -> Bits:
        """The bits without their pairwise scores: the same structures."""
        return Bits(self.scores, validate=False)

    def _halves(self) -> tuple[int, int]:
        """How many codes the first ⌊n/2⌋ bits have, and the others."""
        return 2 ** (self.variables // 2), 2 ** (self.variables - self.variables // 2)

    def _check_size(self) -> None:
        if 2**self.variables > MAX_STATES:
            self._too_large("20 bits")

    def _states(self) -> Categorical:
        """One categorical variable over all vectors of bits; kept where one backward pass takes all."""
        if self._kept is not None and (self._kept.scores.requires_grad or not torch.is_grad_enabled()):
            return self._kept
        self._check_size()
        states = Categorical(pairwise_scores_all(self.scores, self.pairwise, validate=False), validate=False)
        if self.differentiated_once:
            states.differentiated_once = True
            self._kept = states
        return states

    def _draw(self, noise: Tensor) -> Tensor:
        if noise.shape != self.noise_shape or not can_fuse(self.scores, self.pairwise):
            return self.select_from_all(self._states().scores, noise)
        return self._sample_and_keep_kl(noise)

    def _sample_and_keep_kl(self, noise: Tensor) -> Tensor:
        """One kernel for the sample and, where it will be wanted, the KL with its gradient."""
        both = self.differentiated_once and self.requires_grad and self._kl_kept is None
        z, *kl = sample_and_kl(self.scores, self.pairwise, noise, gradient=both)
        if both:
            self._kl_kept = (kl[0], kl[1], kl[2])
        return z

    def _log_partition(self) -> Tensor:
        return self._states().scores.logsumexp(-1).to(self.scores.dtype)

    def _mean(self) -> Tensor:
        """Sums over one half of the bits first: 2^(n/2) numbers are left to be multiplied with the codes."""
        p = self._states().mean()
        first, last = split_codes(self.variables, p)
        p = p.unflatten(-1, (len(first), len(last)))
        halves = [exact_product(p.sum(dim).unsqueeze(-2), code).squeeze(-2) for dim, code in ((-1, first), (-2, last))]
        return torch.cat(halves, -1).to(self.scores.dtype)

    def _entropy(self) -> Tensor:
        known = self._known_kl()
        if known is not None:
            return self.variables * math.log(2) - known
        return self._states().entropy().to(self.scores.dtype)

    def _kl_to_uniform(self) -> Tensor:
        known = self._known_kl()
        return kl_from_entropy(self, self._entropy()) if known is None else known

    def _known_kl(self) -> Tensor | None:
        """The KL to the uniform distribution where the kernel finds it together with its gradients."""
        if not (self.differentiated_once and self.requires_grad and can_fuse(self.scores, self.pairwise)):
            return None
        if self._kl_kept is None:
            self._sample_and_keep_kl(self.scores.new_zeros(self.noise_shape))
        assert self._kl_kept is not None
        kl: Tensor = KnownKL.apply(self.scores, self.pairwise, *self._kl_kept)  # type: ignore[no-untyped-call]
        return kl

    def _kl_to(self, prior: Self) -> Tensor:
        return self._states().kl(prior._states()).to(self.scores.dtype)

    def _scores_all(self) -> Tensor:
        return self._states().scores.to(self.scores.dtype)

    def _details(self) -> str:
        return f"variables={self.variables}"


class KnownKL(torch.autograd.Function):
    """A KL whose gradients are known already: for latents that are differentiated once."""

    @staticmethod
    def forward(ctx: Any, unary: Tensor, pairwise: Tensor, kl: Tensor, to_unary: Tensor, to_pairwise: Tensor) -> Tensor:
        ctx.save_for_backward(to_unary, to_pairwise)
        ctx.shared = pairwise.dim() == 2 < to_pairwise.dim()
        return kl.clamp_min(0.0)  # rounding alone makes it negative

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        to_unary, to_pairwise = ctx.saved_tensors
        pairs = to_pairwise * upstream[..., None, None]
        if ctx.shared:
            pairs = pairs.sum(tuple(range(pairs.dim() - 2)))
        return to_unary * upstream.unsqueeze(-1), pairs, None, None, None
