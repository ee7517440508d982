r"""The models of Figure 3, many side by side: n bits, a decoder that reads all of them, three kinds of encoders.

Encoder 784-300-n (for pairs of bits with n² more outputs, of which the upper triangle is read), decoder 300-784 on the
bits: as 2 × n one-hot numbers, as in the paper, or as they are. M models of one kind and estimator are stacked:
every layer is one batched matrix product, latents have the batch ``[M, B]``, and estimators treat that as they treat
any batch. A setting (ε, τ, what REBAR and RELAX learn) is a tensor with one row per model, so models share nothing.

**What a step costs.** The decoder's second layer is nearly all of it: 300 · 784 multiplications a code. One code per
example for the relaxations, n + 1 where single changes are asked for, and 2^n codes for *all* examples together with
the exact gradient, because the decoder does not see x. With hidden units h(z) and the layer (W, b), a code costs

.. math:: \sum_d \mathrm{softplus}(h W + b)_d - \langle h, x W^\top\rangle - \langle x, b\rangle,

so x meets the hidden units, not the pixels: [B, 784] × [784, 300], then [B, 300] × [300, 2^n]. The first layer is
linear in the bits, so it sees each half of the bits alone, and all h(z) are sums of 2 × 2^(n/2) rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from argrad.costs import SharedCost, evaluate_single_changes
from argrad.experiments.softplus_sum import all_costs, hidden_of_pairs
from argrad.latents import Bits, Latent, PairwiseBits, Variables
from argrad.solvers.pairwise import PairwiseSolverName
from argrad.solvers.pairwise_enumeration import split_codes

__all__ = ["Encoder", "StackedBitsVAE", "StackedReconstruction"]

Encoder = Literal["unstructured", "supermodular", "general"]


@final
class StackedBitsVAE(nn.Module):
    """M models of the same shape.

    Args:
        pixels: of an image.
        seeds: of the first weights, one per model; equal seeds give equal weights.
        one_hot: whether the decoder of each model reads 2 × n numbers.
        bits: n.
        hidden: width of the layer between.
        encoder: "unstructured" (independent bits), "general" (a score of any sign for every pair), or "supermodular"
            (those through a softplus, which starts at 0.05, so that bits start nearly independent).
        perturbed_solver: None for exact samples (law="gibbs"); a solver's name for samples by perturbed arg max.
    """

    def __init__(
        self,
        pixels: int,
        seeds: Sequence[int],
        one_hot: Sequence[bool],
        *,
        bits: int = 15,
        hidden: int = 300,
        encoder: Encoder = "unstructured",
        perturbed_solver: PairwiseSolverName | None = None,
    ) -> None:
        super().__init__()
        self.bits, self.encoder, self.perturbed_solver = bits, encoder, perturbed_solver
        sizes = {"enter": (pixels, hidden), "scores": (hidden, bits), "codes": (2 * bits, hidden)}
        sizes["leave"] = (hidden, pixels)
        if encoder != "unstructured":  # last, so that the other layers start as those of the unstructured encoder
            sizes["pairs"] = (hidden, bits * bits)
        weights: dict[str, list[Tensor]] = {}
        for seed in seeds:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                for name, (inputs, outputs) in sizes.items():
                    layer = nn.Linear(inputs, outputs)
                    weights.setdefault(name, []).append(layer.weight.detach().T)
                    bias = layer.bias.detach()[None]
                    start = torch.full_like(bias, -3.0) if (name, encoder) == ("pairs", "supermodular") else bias
                    weights.setdefault(f"{name}_bias", []).append(start)
        stacked = {name: torch.stack(rows) for name, rows in weights.items()}
        for kind in ("", "_bias") if encoder != "unstructured" else ():  # one product for scores of bits and of pairs
            stacked[f"scores{kind}"] = torch.cat([stacked[f"scores{kind}"], stacked.pop(f"pairs{kind}")], -1)
        for name, tensor in stacked.items():
            self.register_parameter(name, nn.Parameter(tensor.contiguous()))
        for name, codes in zip(("first_codes", "last_codes"), split_codes(bits, self.enter), strict=True):
            self.register_buffer(name, codes, persistent=False)
        self.register_buffer("one_hot", torch.tensor(one_hot, dtype=torch.get_default_dtype())[:, None, None])

    enter: Tensor
    enter_bias: Tensor
    scores: Tensor
    scores_bias: Tensor
    codes: Tensor
    codes_bias: Tensor
    leave: Tensor
    leave_bias: Tensor
    first_codes: Tensor
    last_codes: Tensor
    one_hot: Tensor

    def latent(self, x: Tensor) -> Bits | PairwiseBits:
        """The posterior of images ``[M, B, pixels]``, of batch ``[M, B]``."""
        hidden = torch.baddbmm(self.enter_bias, x, self.enter).relu()
        scores = torch.baddbmm(self.scores_bias, hidden, self.scores)
        if self.encoder == "unstructured":
            return Bits(scores, validate=False)
        unary, pairs = scores.split([self.bits, self.bits**2], -1)
        pairs = pairs.unflatten(-1, (self.bits, self.bits))
        if self.encoder == "supermodular":
            pairs = softplus(pairs)
        solver = self.perturbed_solver
        q = PairwiseBits(unary, pairs, solver or "auto", "perturb" if solver else "gibbs", validate=False)
        q.differentiated_once = True
        return q

    def code_layer(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the bits, where 1 − z is read as well if codes are one-hot.

        ``[M, n, hidden]`` and ``[M, 1, hidden]``.
        """
        on, off = self.codes.split(self.bits, 1)
        off = off * self.one_hot
        return on - off, self.codes_bias + off.sum(1, keepdim=True)

    def decoder_hidden(self, z: Tensor) -> Tensor:
        """Hidden units of codes ``[M, N, n]``, ``[M, N, hidden]``."""
        weight, bias = self.code_layer()
        return torch.baddbmm(bias, z, weight).relu()

    def code_halves(self) -> tuple[Tensor, Tensor]:
        """What all codes of the first ⌊n/2⌋ bits and of the others add to the hidden units, the bias to the latter.

        ``[M, 2^⌊n/2⌋, hidden]`` and ``[M, 2^⌈n/2⌉, hidden]``; rectified sums of pairs are the hidden units of all 2^n
        codes, the last bit changing fastest.
        """
        weight, bias = self.code_layer()
        first, last = (codes.expand(len(weight), -1, -1) for codes in (self.first_codes, self.last_codes))
        cut = first.shape[-1]
        return torch.bmm(first, weight[:, :cut]), torch.baddbmm(bias, last, weight[:, cut:])

    def log_normalizers(self, hidden: Tensor) -> Tensor:
        """The sum over pixels of softplus(logit) for hidden units ``[M, N, hidden]``, ``[M, N]``."""
        return softplus(torch.baddbmm(self.leave_bias, hidden, self.leave), threshold=40).sum(-1)

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What <x, logits> needs of images ``[M, B, pixels]``: x Wᵀ ``[M, B, hidden]`` and <x, b> ``[M, B]``."""
        return torch.bmm(x, self.leave.mT), torch.bmm(x, self.leave_bias.mT).squeeze(-1)

    @torch.no_grad()
    def evaluate(self, images: Tensor, chunk: int = 250) -> tuple[Tensor, Tensor]:
        """The exact mean negative ELBO and −log p(x) of every model on the same images ``[N, pixels]``, each ``[M]``.

        Of exact samples only: the law of perturbed ones has no known ELBO.
        """
        hidden = hidden_of_pairs(*self.code_halves())
        normalizers = self.log_normalizers(hidden).unsqueeze(1)
        elbo = torch.zeros(len(self.enter), dtype=torch.float64, device=images.device)
        nll = torch.zeros_like(elbo)
        for part in images.split(chunk):
            x = part.to(self.enter.dtype).expand(len(self.enter), *part.shape)
            read, constant = self.read(x)
            costs = normalizers - torch.baddbmm(constant.unsqueeze(-1), read, hidden.mT)
            log_q = self.latent(x).log_prob_all()
            elbo += (log_q.exp() * (costs + log_q)).sum(-1).double().sum(-1)
            nll -= (-costs).logsumexp(-1).double().sum(-1)
        constant_of_prior = self.bits * math.log(2)
        return elbo / len(images) + constant_of_prior, nll / len(images) + constant_of_prior


@final
class StackedReconstruction(SharedCost):
    """−log p(x|z) of each model's own images, ``[M, B, pixels]``, under its own decoder."""

    def __init__(self, model: StackedBitsVAE, x: Tensor) -> None:
        self.model, self.x = model, x
        self.seen, self.constant = model.read(x)

    def __call__(self, z: Tensor, *, event_dims: int | None = None) -> Tensor:
        """The cost of codes ``[*extra, M, B, n]``, ``[*extra, M, B]``."""
        models, batch = self.x.shape[:2]
        extra = z.shape[:-3]
        folded = z.reshape(-1, *z.shape[-3:]).movedim(0, 1).reshape(models, -1, z.shape[-1])
        hidden = self.model.decoder_hidden(folded)
        normalizers = self.model.log_normalizers(hidden).unflatten(1, (-1, batch))
        seen = (hidden.unflatten(1, (-1, batch)) * self.seen.unsqueeze(1)).sum(-1)
        costs: Tensor = normalizers - seen - self.constant.unsqueeze(1)
        return costs.movedim(1, 0).reshape(*extra, models, batch)

    def table(self, latent: Latent) -> Tensor:
        """Not for bits."""
        raise NotImplementedError("several bits have no table of k codes")

    def single_changes(self, latent: Variables, z: Tensor, value: Tensor | None = None) -> Tensor:
        """Every bit flipped, all at once."""
        return evaluate_single_changes(self, latent, z, value, 1, 2**30)

    def all(self, latent: Latent) -> Tensor:
        """All 2^n codes, ``[M, B, 2^n]``: each model decodes every code once, for all its images."""
        first, last = self.model.code_halves()
        return all_costs(first, last, self.model.leave, self.model.leave_bias, self.seen, self.constant)
