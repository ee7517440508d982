r"""Images with attributes: bits that are known for some images, a continuous remainder, one decoder for both.

The encoder gives q(a|x), n bits (independent, or dependent in pairs), and q(r|x), a Gaussian; the decoder p(x|a, r).
With some of the attributes known, y, the objective is that of Eq. (9) of the direct optimisation paper,

.. math:: E_{q(a|x, y)\,q(r|x)}[-\log p(x|a, r)] + \mathrm{KL}(q(a|x, y) \,\|\, p(a)) + \mathrm{KL}(q(r|x) \,\|\, p(r))
    - w \log q(y|x),

where q(a|x, y) is the posterior with the known attributes held at their values: without the last term a bound on
−log p(x, y). What is not known goes through any estimator; what is known needs none. The last term, which teaches the
encoder the known attributes, is trained by direct loss minimisation or as the cross-entropy that this is in
expectation (:meth:`AttributeModule.label_losses`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import interpolate, logsigmoid, softplus

from argrad.costs import Cost, evaluate
from argrad.estimators import Direct, Estimator, Exact
from argrad.estimators.control import prepare_for
from argrad.latents import MAX_STATES, Bits, Gaussian, PairwiseBits
from argrad.latents.base import Law
from argrad.models.attributes.dependence import dependence

__all__ = ["AttributeLatent", "AttributeModule", "LabelLoss", "convolutional_networks", "prepare"]

AttributeLatent = Literal["bits", "pairwise"]
LabelLoss = Literal["direct", "cross-entropy"]

HELD = 30.0
"""The score of an attribute that is known: its probability is 1 − 1e-13."""


def as_it_is(x: Tensor) -> Tensor:
    """An image is read as it is."""
    return x


@final
class Resize(nn.Module):
    """Pixels repeated, or left out at the edge, until the image has a given size."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, h, w]`` to ``[N, C, *size]``."""
        return interpolate(x, self.size)


@final
class SideBySide(nn.Module):
    """Several networks that read the same x, their numbers one after the other."""

    def __init__(self, *networks: nn.Module) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, ...]`` to ``[B, outputs]``."""
        return torch.cat([network(x) for network in self.networks], 1)


def convolutional_networks(
    shape: tuple[int, ...], attributes: int, remainder: int, latent: AttributeLatent = "bits", channels: int = 16
) -> tuple[nn.Module, nn.Module]:
    """An encoder of two networks, one for the attributes and one for the remainder, and a decoder.

    Each network halves the image three times, the decoder doubles it three times. That of the attributes keeps the
    largest of four pixels, so that it does not matter where exactly something is, and has dropout: there may be few
    labels.

    Args:
        shape: of one image, ``[H, W]`` or ``[C, H, W]``, at least 8 by 8.
        attributes: n.
        remainder: dimensions of the continuous part.
        latent: "bits" or "pairwise".
        channels: of the first layer, a multiple of 8.

    >>> encoder, decoder = convolutional_networks((28, 30), attributes=3, remainder=2)
    >>> encoder(torch.zeros(4, 28, 30)).shape, decoder(torch.zeros(4, 5)).shape
    (torch.Size([4, 7]), torch.Size([4, 28, 30]))
    """
    if len(shape) not in (2, 3) or min(shape[-2:]) < 8:
        raise ValueError(f"images must have shape (H, W) or (C, H, W) and be at least 8 by 8, got {shape}")
    if channels < 8 or channels % 8:
        raise ValueError(f"channels must be a multiple of 8, got {channels}")
    half, quarter, eighth = ((math.ceil(shape[-2] / part), math.ceil(shape[-1] / part)) for part in (2, 4, 8))
    depth = 1 if len(shape) == 2 else shape[0]
    scores = AttributeModule.encoder_outputs(attributes, remainder, latent) - 2 * remainder
    wide = 2 * channels

    def layer(before: int, after: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, stride, 1), nn.GroupNorm(8, after), nn.ReLU()]

    def half_of_encoder(outputs: int, dropout: float, halving: Callable[[int, int], list[nn.Module]]) -> nn.Sequential:
        return nn.Sequential(
            nn.Unflatten(1, (1, shape[0])) if len(shape) == 2 else nn.Identity(),
            *(*halving(depth, channels), *halving(channels, wide), *halving(wide, 2 * wide)),
            *(nn.Flatten(), nn.Dropout(dropout), nn.Linear(2 * wide * math.prod(eighth), 128), nn.ReLU()),
            *(nn.Dropout(dropout), nn.Linear(128, outputs)),
        )

    def pooled(before: int, after: int) -> list[nn.Module]:
        return [*layer(before, after, 1), nn.MaxPool2d(2, ceil_mode=True)]

    def strided(before: int, after: int) -> list[nn.Module]:
        return layer(before, after, 2)

    decoder = nn.Sequential(
        *(nn.Linear(attributes + remainder, 256), nn.ReLU(), nn.Linear(256, wide * math.prod(eighth)), nn.ReLU()),
        *(nn.Unflatten(1, (wide, *eighth)), Resize(quarter), *layer(wide, wide, 1)),
        *(Resize(half), *layer(wide, channels, 1), nn.Conv2d(channels, 4 * depth, 3, 1, 1), nn.PixelShuffle(2)),
        *(Resize((shape[-2], shape[-1])), nn.Flatten(1, 2) if len(shape) == 2 else nn.Identity()),
    )
    encoder = SideBySide(half_of_encoder(scores, 0.5, pooled), half_of_encoder(2 * remainder, 0.0, strided))
    return encoder, decoder


@final
class AttributeModule(nn.Module):
    """Encoder, decoder, prior and estimator.

    Args:
        encoder: maps x ``[B, *shape]`` to ``[B, outputs]``: the scores of the attributes, for "pairwise" those of the
            n (n − 1) / 2 pairs, then means and log-variances of the remainder; see :meth:`encoder_outputs`.
        decoder: maps ``[N, attributes + remainder]`` to logits or means ``[N, *shape]``; attributes come as −1 and 1.
        estimator: of the gradient through the attributes that are not known.
        attributes: n.
        remainder: dimensions of the continuous part.
        latent: "bits" or "pairwise".
        law: of "pairwise": "gibbs" (n up to 20), or "perturb", under which the KL of the attributes is not known: it is
            left out of training, and there is no bound to report.
        likelihood: "bernoulli" for x in [0, 1], or "gaussian".
        scale: the gaussian's standard deviation.
        label_loss: "direct" or "cross-entropy".
        label_weight: w.

    >>> from argrad import Exact
    >>> module = AttributeModule(*convolutional_networks((8, 8), 2, 3), Exact(), attributes=2, remainder=3)
    >>> y = torch.tensor([[1, 0], [1, -1], [-1, -1]])
    >>> module.losses(torch.rand(3, 8, 8), y).shape
    torch.Size([3])
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        estimator: Estimator,
        *,
        attributes: int,
        remainder: int,
        latent: AttributeLatent = "bits",
        law: Law = "gibbs",
        likelihood: Literal["bernoulli", "gaussian"] = "bernoulli",
        scale: float = 1.0,
        label_loss: LabelLoss = "direct",
        label_weight: float = 20.0,
    ) -> None:
        super().__init__()
        for name, value, choices in (
            ("latent", latent, ("bits", "pairwise")),
            ("law", law, ("gibbs", "perturb")),
            ("likelihood", likelihood, ("bernoulli", "gaussian")),
            ("label_loss", label_loss, ("direct", "cross-entropy")),
        ):
            if value not in choices:
                raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")
        if attributes < 1 or remainder < 1:
            raise ValueError(f"attributes and remainder must be at least 1, got {attributes} and {remainder}")
        if not 0 < scale < math.inf or not 0 < label_weight < math.inf:
            raise ValueError(f"scale and label_weight must be positive numbers, got {scale} and {label_weight}")
        if law == "perturb" and (latent == "bits" or label_loss == "cross-entropy"):
            raise ValueError('law="perturb" goes with latent="pairwise" and label_loss="direct": it has no log_prob')
        self.encoder = encoder
        self.decoder = decoder
        self.estimator = estimator
        self.attributes = attributes
        self.remainder = remainder
        self.latent: AttributeLatent = latent
        self.law: Law = law
        self.likelihood = likelihood
        self.scale = scale
        self.label_loss: LabelLoss = label_loss
        self.label_weight = label_weight
        self.teacher = Direct(1 / label_weight)
        self.prior_scores = nn.Parameter(torch.zeros(attributes))
        self.prior_pairs = nn.Parameter(torch.zeros(attributes, attributes)) if latent == "pairwise" else None

    @staticmethod
    def encoder_outputs(attributes: int, remainder: int, latent: AttributeLatent = "bits") -> int:
        """How many numbers the encoder gives."""
        return attributes + 2 * remainder + (attributes * (attributes - 1) // 2 if latent == "pairwise" else 0)

    def posterior(self, x: Tensor) -> tuple[Bits | PairwiseBits, Gaussian]:
        """q(a|x) and q(r|x) for a batch."""
        return self.split(self.encoder(x))

    def split(self, outputs: Tensor) -> tuple[Bits | PairwiseBits, Gaussian]:
        """The encoder's numbers as distributions."""
        n, d = self.attributes, self.remainder
        wanted = self.encoder_outputs(n, d, self.latent)
        if outputs.dim() != 2 or outputs.shape[1] != wanted:
            raise ValueError(f"the encoder must give [B, {wanted}] numbers, got {tuple(outputs.shape)}")
        scores, pairs, mean, logvar = outputs.split([n, wanted - n - 2 * d, d, d], 1)
        return self.distribution(scores, pairs), Gaussian(mean, logvar.clamp(-12, 12), validate=False)

    def distribution(self, scores: Tensor, pairs: Tensor) -> Bits | PairwiseBits:
        """Attributes with scores ``[B, n]`` and, for "pairwise", scores of pairs ``[B, n (n − 1) / 2]``."""
        if self.latent == "bits":
            return Bits(scores, validate=False)
        n = self.attributes
        first, second = torch.triu_indices(n, n, 1, device=scores.device)
        matrix = scores.new_zeros(len(scores), n, n)
        matrix = matrix.index_put((torch.arange(len(scores), device=scores.device)[:, None], first, second), pairs)
        return PairwiseBits(scores, matrix, law=self.law, validate=False)

    def prior(self) -> Bits | PairwiseBits:
        """p(a), which is learnt; without batch dimensions."""
        if self.prior_pairs is None:
            return Bits(self.prior_scores, validate=False)
        return PairwiseBits(self.prior_scores, self.prior_pairs, validate=False)

    def decode(self, attributes: Tensor, remainder: Tensor) -> Tensor:
        """The mean of x given attributes ``[N, n]`` and a remainder ``[N, d]``."""
        output = self._decoded(attributes, remainder)
        return output.sigmoid() if self.likelihood == "bernoulli" else output

    def cost(self, x: Tensor, remainder: Tensor) -> Cost:
        """−log p(x|a, r) as a function of the attributes ``[*extra, B, n]``, for a remainder ``[B, d]``."""

        def cost(a: Tensor) -> Tensor:
            lead = a.shape[:-1]
            wide = remainder.expand(*lead, self.remainder)
            output = self._decoded(a.flatten(0, -2), wide.flatten(0, -2)).reshape(*lead[:-1], *x.shape)
            if self.likelihood == "bernoulli":
                values = softplus(output) - x * output
            else:
                constant = math.log(self.scale) + 0.5 * math.log(2 * math.pi)
                values = 0.5 * ((x - output) / self.scale).square() + constant
            return values.flatten(len(lead)).sum(-1)

        return cost

    def losses(
        self,
        x: Tensor,
        y: Tensor,
        *,
        kl_weight: float = 1.0,
        switch_weight: float = 0.0,
        switch_mixed: bool = False,
        independence_weight: float = 0.0,
        labels_only: bool = False,
        view: Callable[[Tensor], Tensor] = as_it_is,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The objective of each example, ``[B]``, carrying the gradient estimate.

        Args:
            x: ``[B, *shape]``.
            y: attributes ``[B, n]``: 0, 1, or −1 where one is not known.
            kl_weight: of both KL terms; 1 is the bound.
            switch_weight: of :meth:`switch_losses`; 0 leaves them out.
            switch_mixed: what is switched has a remainder between those of two images (:func:`mixed`).
            independence_weight: of what the remainder tells about known attributes
                (:func:`~argrad.models.attributes.dependence.dependence`); the same number for the whole batch.
            labels_only: q(a|x) learns from known attributes alone. With few of them, start so: otherwise attributes
                that are not known settle on whatever helps the reconstruction, before they have their meaning.
            view: what the encoder reads of images, x as well as those that were switched, such as a blurred copy; x
                itself is what is to be reconstructed.
            generator: of all noise.
        """
        q, r = self.posterior(view(x))
        remainder = r.rsample(generator=generator)
        held = detached(hold(q, y)) if labels_only else hold(q, y)
        costs = self._expected_cost(held, y, self.cost(x, remainder), x, remainder, generator)
        kl = r.kl() + (held.kl(self.prior()) if self.law == "gibbs" else 0.0)
        total = costs + kl_weight * kl + self.label_losses(q, y, generator=generator)
        if switch_weight > 0:
            switched = mixed(r, remainder, generator=generator) if switch_mixed else (r, remainder)
            total = total + switch_weight * self.switch_losses(held, *switched, y, view=view, generator=generator)
        if independence_weight > 0:
            total = total + independence_weight * dependence(remainder, y)
        return total

    def _expected_cost(
        self,
        held: Bits | PairwiseBits,
        y: Tensor,
        cost: Cost,
        x: Tensor,
        remainder: Tensor,
        generator: torch.Generator | None,
    ) -> Tensor:
        """E[cost] with known attributes in place: only examples that have unknown ones pay for an estimator."""
        open_rows = (y < 0).any(1)
        if not bool(open_rows.any()):
            return cost(y.to(x.dtype))
        if bool(open_rows.all()):
            return self.estimator(held, cost, generator=generator)  # type: ignore[no-any-return]
        rows = open_rows.nonzero().squeeze(1)
        known = (~open_rows).nonzero().squeeze(1)
        free = self.estimator(take(held, rows), self.cost(x[rows], remainder[rows]), generator=generator)
        fixed = self.cost(x[known], remainder[known])(y[known].to(x.dtype))
        return fixed.new_zeros(len(x)).index_put((rows,), free).index_put((known,), fixed)

    def label_losses(self, q: Bits | PairwiseBits, y: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        r"""What teaches q(a|x) the known attributes, ``[B]``.

        "cross-entropy" is :math:`-w \log q(y|x)`. "direct" has the gradient :math:`(\nabla\mathrm{score}(a^*) -
        \nabla\mathrm{score}(a(\varepsilon))) / \varepsilon` with ε = 1 / w, where a* is a sample and a(ε) the sample
        for the same noise with the known attributes held at their values. Its expectation is the gradient of the
        cross-entropy, whose value it reports; under the law "perturb", where that is not known, the number of wrong
        attributes.
        """
        known = y >= 0
        if not bool(known.any()):
            return q.scores.new_zeros(len(y))
        if self.label_loss == "cross-entropy":
            return -self.label_weight * log_prob_of_known(q, y)
        noise = q.draw_noise(generator=generator)
        with torch.no_grad():
            target = hold(q, y).sample(noise=noise)

        def wrong(a: Tensor) -> Tensor:
            return ((a != y) & known).sum(-1).to(a.dtype)

        loss = self.teacher(q, wrong, noise=noise, target=target)
        assert isinstance(loss, Tensor)
        if self.law == "perturb":
            return loss
        with torch.no_grad():
            value = -self.label_weight * log_prob_of_known(q, y)
        return loss - loss.detach() + value

    def switch_losses(
        self,
        held: Bits | PairwiseBits,
        r: Gaussian,
        remainder: Tensor,
        y: Tensor,
        *,
        view: Callable[[Tensor], Tensor] = as_it_is,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """How badly switching works, ``[B]``: is an image with another's attributes read as having them?

        Each image is decoded with the attributes of another one of the batch, and read again by the encoder as it is:
        the encoder does not learn to read what the decoder makes. It must find those attributes, and the remainder that
        was there before. The weight must not be too large: the decoder then learns to please this encoder, and
        nobody else. A ``view`` that leaves out what is small takes from it the easiest way to do so, patterns of single
        pixels.
        """
        order = torch.randperm(len(y), generator=generator, device=y.device)
        with torch.no_grad():
            attributes = torch.where(y < 0, held.sample(generator=generator), y.to(remainder.dtype))[order]
        frozen = {name: parameter.detach() for name, parameter in self.encoder.named_parameters()}
        outputs = functional_call(self.encoder, frozen, (view(self.decode(attributes, remainder)),))
        q_after, r_after = self.split(outputs)
        assert r.logvar is not None
        moved = (r_after.mean - remainder).square() * (-r.logvar).exp().clamp(max=100.0).detach()
        return -log_prob_of_known(q_after, attributes.long()) + 0.5 * moved.mean(1)

    @torch.no_grad()
    def negative_elbo(self, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None) -> Tensor:
        """The bound on −log p(x, y), ``[B]``, with one sample of the remainder; y = None is a bound on −log p(x).

        Attributes that are not known are summed over where there are at most 1024 combinations, else sampled.
        """
        if y is None:
            y = torch.full((len(x), self.attributes), -1, device=x.device)
        q, r = self.posterior(x)
        held, remainder = hold(q, y), r.rsample(generator=generator)
        kl = held.kl(self.prior()) + r.kl()
        cost = self.cost(x, remainder)
        if not bool((y < 0).any()):
            return cost(y.to(x.dtype)) + kl
        if held.num_states <= min(1024, MAX_STATES):
            return Exact()(held, cost) + kl  # type: ignore[no-any-return]
        return evaluate(cost, held, held.sample(generator=generator)) + kl

    @torch.no_grad()
    def validation_losses(self, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """What the best epoch has least of, ``[B]``: the bound, and the cross-entropy of what is known.

        Under the law "perturb" neither is known; the cost of the best attributes, the KL of the remainder and the
        number of wrong attributes take their place.
        """
        q, r = self.posterior(x)
        if self.law == "gibbs":
            return self.negative_elbo(x, y, generator=generator) - self.label_weight * log_prob_of_known(q, y)
        best = hold(q, y).mode()
        wrong = ((q.mode() != y) & (y >= 0)).sum(-1)
        return self.cost(x, r.mean)(best) + r.kl() + self.label_weight * wrong

    def draw_attributes(self, number: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Attributes from the prior, ``[number, n]``; where it is too large to be drawn from, fair coins."""
        if self.law == "perturb":
            coins = torch.rand(number, self.attributes, generator=generator, device=self.prior_scores.device)
            return (coins < 0.5).to(self.prior_scores.dtype)
        return self.prior().sample((number,), generator=generator)

    @torch.no_grad()
    def probabilities(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The probability of each attribute, ``[B, n]``; under the law "perturb" the mean of 100 samples."""
        q, _ = self.posterior(x)
        return q.mean() if self.law == "gibbs" else q.sample((100,), generator=generator).mean(0)

    def _decoded(self, attributes: Tensor, remainder: Tensor) -> Tensor:
        output = self.decoder(torch.cat([2 * attributes - 1, remainder], -1))
        assert isinstance(output, Tensor)
        return output


def prepare(module: AttributeModule) -> None:
    """Refuse an estimator that does not fit the attributes, and size whatever of it is sized by its first call."""
    outputs = module.encoder_outputs(module.attributes, module.remainder, module.latent)
    q, _ = module.split(torch.zeros(1, outputs, dtype=module.prior_scores.dtype, requires_grad=True))
    prepare_for(module.estimator, q)


def mixed(r: Gaussian, remainder: Tensor, *, generator: torch.Generator | None = None) -> tuple[Gaussian, Tensor]:
    """Remainders between those of two images of a batch, cos φ r + sin φ r', with φ from 0 to π / 2.

    They stand for images that are not among the training ones: switching that has to work for them too cannot rely on
    one drawing for each image it knows. Two independent standard normal remainders give a standard normal one.

    Args:
        r: the posterior, whose samples
        remainder: are, ``[B, d]``.
        generator: decides who goes with whom, and the angles.

    Returns:
        the posterior with the means mixed in the same way, and for each number the larger of the two variances; and
        the mixed remainders.
    """
    assert r.logvar is not None
    other = torch.randperm(len(remainder), generator=generator, device=remainder.device)
    angle = torch.rand(len(remainder), 1, generator=generator, device=remainder.device, dtype=remainder.dtype)
    near, far = (0.5 * math.pi * angle).cos(), (0.5 * math.pi * angle).sin()
    between = Gaussian(near * r.mean + far * r.mean[other], torch.maximum(r.logvar, r.logvar[other]), validate=False)
    return between, near * remainder + far * remainder[other]


def hold(q: Bits | PairwiseBits, y: Tensor) -> Bits | PairwiseBits:
    """q given what is known: known attributes (0 or 1 in y) are certain, the others as the known ones leave them.

    >>> hold(Bits(torch.zeros(1, 3)), torch.tensor([[1, 0, -1]])).mean()
    tensor([[1.0000e+00, 9.3576e-14, 5.0000e-01]])
    """
    known = y >= 0
    certain = torch.where(y > 0, HELD, -HELD).to(q.scores.dtype)
    if isinstance(q, Bits):
        return Bits(torch.where(known, certain, q.scores), validate=False)
    pairs = q.pairwise.triu(1)
    on = (y > 0).to(q.scores.dtype)
    from_known = ((pairs + pairs.mT) @ on.unsqueeze(-1)).squeeze(-1)
    free = (~known).to(q.scores.dtype)
    scores = torch.where(known, certain, q.scores + from_known)
    return PairwiseBits(
        scores, pairs * free.unsqueeze(-1) * free.unsqueeze(-2), solver=q.solver, law=q.law, validate=False
    )


def detached(q: Bits | PairwiseBits) -> Bits | PairwiseBits:
    """The same attributes, through which no gradient flows."""
    if isinstance(q, Bits):
        return Bits(q.scores.detach(), validate=False)
    return PairwiseBits(q.scores.detach(), q.pairwise.detach(), solver=q.solver, law=q.law, validate=False)


def take(q: Bits | PairwiseBits, rows: Tensor) -> Bits | PairwiseBits:
    """Some examples of a batch."""
    if isinstance(q, Bits):
        return Bits(q.scores[rows], validate=False)
    return PairwiseBits(q.scores[rows], q.pairwise[rows], solver=q.solver, law=q.law, validate=False)


def log_prob_of_known(q: Bits | PairwiseBits, y: Tensor) -> Tensor:
    """log q(y): the log-probability of the attributes that are known, the others summed over; ``[B]``."""
    known = y >= 0
    if isinstance(q, Bits):
        return (torch.where(y > 0, logsigmoid(q.scores), logsigmoid(-q.scores)) * known).sum(-1)
    agrees = ((q.enumerate() == y.unsqueeze(-2)) | ~known.unsqueeze(-2)).all(-1)
    return q.log_prob_all().masked_fill(~agrees, -torch.inf).logsumexp(-1)
