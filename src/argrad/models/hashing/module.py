"""An encoder to bits that is trained by contrast, as a plain module, and its training."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from argrad.estimators import Direct, Estimator
from argrad.estimators.control import has_lazy, prepare_for
from argrad.latents import Bits
from argrad.latents.base import cheaply_known_finite
from argrad.models.hashing.costs import (
    LEAST_SCALE,
    InBatchCost,
    LogisticCost,
    LossName,
    Pairs,
    TripletCost,
    logistic_loss,
    triplet_loss,
)
from argrad.models.semi_supervised.augmentation import Augmentation
from argrad.training import World

__all__ = [
    "HashingModule",
    "HashingTask",
    "PairSampler",
    "Spread",
    "convolutional_encoder",
    "dense_encoder",
    "has_partner",
    "prepare",
]

AT_ONCE = 1000
"""Examples encoded at a time."""
SPREAD = 4.0
"""The standard deviation of each bit's score over examples."""
SETTLED_BY = 5000
"""Examples that say how scores are spread once training is over."""


def dense_encoder(shape: tuple[int, ...], bits: int, hidden: int = 300) -> nn.Sequential:
    """One hidden layer of ReLUs, for examples of any shape."""
    if hidden < 1:
        raise ValueError(f"hidden must be at least 1, got {hidden}")
    last = nn.Linear(hidden, bits, bias=False)  # scores are shifted in any case
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU(), last)


def convolutional_encoder(shape: tuple[int, ...], bits: int, channels: int = 32) -> nn.Sequential:
    """Three blocks of convolution, group normalisation and ReLU, each of half the size, then a linear layer.

    The first two halve by stride, so that nothing but the image has full size, and the last by its largest values.
    Every image is normalised by itself: what the encoder says of it does not depend on the batch it comes in.

    Args:
        shape: of one image, ``[H, W]`` or ``[C, H, W]``, with sides of at least 8.
        bits: n.
        channels: in the first block; the others have twice as many.
    """
    if len(shape) not in (2, 3) or min(shape[-2:]) < 8:
        raise ValueError(
            f"a convolutional encoder needs images [n, H, W] or [n, C, H, W] with sides of at least 8, got examples of "
            f'shape {shape}; use encoder="dense" or an encoder of your own'
        )
    if channels < 1:
        raise ValueError(f"channels must be at least 1, got {channels}")
    colours = shape[0] if len(shape) == 3 else 1
    layers: list[nn.Module] = [nn.Unflatten(1, (1, shape[0]))] if len(shape) == 2 else []
    blocks = ((colours, channels, 5, 2), (channels, 2 * channels, 3, 2), (2 * channels, 2 * channels, 3, 1))
    for before, after, width, stride in blocks:
        layers.append(nn.Conv2d(before, after, width, stride, padding=width // 2))
        layers += [nn.GroupNorm(math.gcd(8, after), after), nn.ReLU()]
    high, wide = ((side + 3) // 4 // 2 for side in shape[-2:])
    last = nn.Linear(2 * channels * high * wide, bits, bias=False)  # scores are shifted in any case
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), last)


@final
class Spread(nn.Module):
    """Shift and scale every bit's score so that, over examples, it is 1 about half of the time and mostly decided.

    In training by the mean and deviation of the batch, as batch normalisation does it; in evaluation by those that
    :meth:`settle` was given, so that a code does not depend on the others of its batch.

    Codes need it at every step. Two random codes of n bits are n/2 apart and vary about that, and by chance some
    negative is nearer than the partner. A code that all examples share is n/2 nearer to everything, and costs less than
    random ones: left to themselves, scores drift there, grow, and stay, since a bit that is all but certain has no
    gradient.

    Args:
        bits: n.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(bits))
        self.register_buffer("variance", torch.ones(bits))

    def forward(self, scores: Tensor) -> Tensor:
        """Scores ``[N, n]``, in training of mean 0 and deviation :data:`SPREAD`."""
        scores = scores.to(self.mean.dtype)
        mean, variance = self.mean, self.variance
        if self.training:
            variance, mean = torch.var_mean(scores, 0, correction=0)
        return (scores - mean) * (SPREAD * (variance + 1e-8).rsqrt())

    @torch.no_grad()
    def settle(self, scores: Tensor) -> None:
        """Spread by the mean and deviation of these from now on, in evaluation."""
        variance, mean = torch.var_mean(scores.to(self.mean.dtype), 0, correction=0)
        self.mean.copy_(mean)
        self.variance.copy_(variance)


@final
class HashingModule(nn.Module):
    """Encoder, estimator and contrastive loss.

    Args:
        encoder: maps x ``[N, *shape]`` to scores ``[N, bits]``; they are spread by :class:`Spread`.
        estimator: of the gradient through the bits; None trains the scores themselves as embeddings on the unit sphere,
            with the same loss of n (1 − cosine) / 2, which for codes of ±1 is the Hamming distance.
        bits: n.
        loss: "triplet" or "logistic"; see :mod:`argrad.models.hashing.costs`.
        margin: of the triplet loss, in bits; None is an eighth of them.
        scale: of the logistic loss, in bits; None is a sixteenth of them.

    >>> from argrad import LocalExpectation
    >>> module = HashingModule(nn.Linear(5, 8), LocalExpectation(), 8)
    >>> x, groups = torch.rand(6, 5), torch.tensor([0, 1, 2, 0, 1, 2])  # three pairs: rows 0 and 3, 1 and 4, 2 and 5
    >>> module.losses(x, groups).shape
    torch.Size([3])
    >>> module.settle(x)  # training is over
    >>> module.codes(x).shape
    torch.Size([6, 8])
    """

    def __init__(
        self,
        encoder: nn.Module,
        estimator: Estimator | None,
        bits: int,
        *,
        loss: LossName = "logistic",
        margin: float | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        if loss not in ("triplet", "logistic"):
            raise ValueError(f'loss must be "triplet" or "logistic", got {loss!r}')
        if bits < 1:
            raise ValueError(f"bits must be at least 1, got {bits}")
        self.encoder = encoder
        self.estimator = estimator
        self.bits = bits
        self.loss = loss
        self.margin = bits / 8 if margin is None else margin
        self.scale = max(LEAST_SCALE, bits / 16) if scale is None else scale
        self.cost(torch.zeros(2, bits), Pairs(torch.zeros(2)))  # says what is wrong with margin and scale
        self.spread = Spread(bits)

    def settle(self, x: Tensor) -> None:
        """Go over to evaluation, with scores spread as they are over these examples.

        Without it, or after more training, evaluation would shift and scale by numbers that are not the encoder's.
        """
        if not len(x):
            raise ValueError("there are no examples to settle by; give some of those that were trained on")
        self.eval()
        with torch.no_grad():
            self.spread.settle(torch.cat([self._encoded(part) for part in x.split(AT_ONCE)]))

    def scores(self, x: Tensor) -> Tensor:
        """The encoder's output, spread; in train mode over the batch. See :class:`Spread`."""
        spread: Tensor = self.spread(self._encoded(x))
        return spread

    def _encoded(self, x: Tensor) -> Tensor:
        """The encoder's output, its shape checked."""
        scores = self.encoder(x)
        if not isinstance(scores, Tensor) or scores.shape != (len(x), self.bits):
            given = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(
                f"the encoder turned x of shape {tuple(x.shape)} into {given}; for {self.bits} bits it must return "
                f"[{len(x)}, {self.bits}]"
            )
        return scores

    def codes(self, x: Tensor) -> Tensor:
        """The most probable bits of each example, zeros and ones ``[N, bits]``, once :meth:`settle` was called."""
        return (self.scores(x) > 0).to(x.dtype)

    def cost(self, drawn: Tensor, pairs: Pairs) -> InBatchCost:
        """What each code costs given a draw of all."""
        if self.loss == "triplet":
            return TripletCost(drawn, pairs, self.margin)
        return LogisticCost(drawn, pairs, self.scale)

    def losses(self, x: Tensor, groups: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """One number per pair, ``[B]``, whose mean has the gradient of the mean loss over all anchors.

        Args:
            x: ``[2B, *shape]``, rows i and i + B a pair.
            groups: ``[2B]``; rows of different groups are negatives of each other.
            generator: where noise comes from.
        """
        pairs, scores = Pairs(groups), self.scores(x)
        if self.estimator is None:
            each = self._plain(self._angles(scores), pairs)
        else:
            latent = Bits(scores, validate=False)  # the training loop looks at the loss
            latent.known_finite = cheaply_known_finite(scores)
            drawn = latent.sample(generator=generator)
            each = self.estimator(latent, self.cost(drawn, pairs), generator=generator)
        return each.reshape(2, -1).mean(0)

    @torch.no_grad()
    def losses_of_codes(self, x: Tensor, groups: Tensor) -> Tensor:
        """The same for the codes that are kept, or for float embeddings, without gradient, in evaluation."""
        pairs, scores = Pairs(groups), self.scores(x)
        if self.estimator is None:
            away = self._angles(scores)
        else:
            signs = torch.where(scores > 0, 1.0, -1.0).to(scores)
            away = (self.bits - signs @ signs.T) / 2
        return self._plain(away, pairs).reshape(2, -1).mean(0)

    def _angles(self, scores: Tensor) -> Tensor:
        unit = normalize(scores, dim=1)
        return self.bits * (1 - unit @ unit.T) / 2

    def _plain(self, away: Tensor, pairs: Pairs) -> Tensor:
        if self.loss == "triplet":
            return triplet_loss(away, pairs, self.margin)
        return logistic_loss(away, pairs, self.scale)


def prepare(module: HashingModule, shape: tuple[int, ...]) -> None:
    """Refuse an estimator that does not work on bits, and size whatever is sized by its first call.

    Args:
        module: in train mode and on the CPU.
        shape: of one example.
    """
    if has_lazy(module.encoder):
        module.eval()
        module.codes(torch.zeros(1, *shape))
        module.train()
    if module.estimator is None:
        return
    prepare_for(module.estimator, Bits(torch.zeros(1, module.bits, requires_grad=True)))


def has_partner(groups: Tensor) -> Tensor:
    """Whether each example has another one in its group.

    >>> has_partner(torch.tensor([0, 2, 0]))
    tensor([ True, False,  True])
    """
    return groups.bincount()[groups] > 1


@final
class PairSampler:
    """Draws a partner for each example: another one of its group.

    Args:
        groups: whole numbers from 0, ``[N]``; each group must have two members.

    >>> PairSampler(torch.tensor([0, 1, 0, 1]))(torch.tensor([0, 1]), torch.Generator())
    tensor([2, 3])
    """

    def __init__(self, groups: Tensor) -> None:
        self.order = groups.argsort(stable=True)
        sizes = groups.bincount()
        self.size = sizes[groups]
        self.first = (sizes.cumsum(0) - sizes)[groups]
        self.place = torch.empty_like(self.order)
        self.place[self.order] = torch.arange(len(groups), device=groups.device)
        if not bool(has_partner(groups).all()):
            raise ValueError("a group has one member, which has no partner; leave such examples out")

    def __call__(self, which: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A partner for each of the examples ``which``, uniformly among the others of its group."""
        size, first = self.size[which], self.first[which]
        uniform = torch.rand(which.shape, generator=generator, device=which.device, dtype=torch.float64)
        step = 1 + (uniform * (size - 1)).long()
        return self.order[first + (self.place[which] - first + step) % size]


@final
class HashingTask:
    """A module and its pairs, as the training loop wants them; for one process, since negatives are the whole batch's.

    Args:
        module: on its device already.
        train: examples ``[N, *shape]``, on the same device.
        groups: whole numbers ``[N]``: the partner of an example is another one of its group. None: its partner is the
            example itself, changed once more.
        validation: examples; the training examples where there are none.
        validation_groups: of these.
        augmentation: how each example is changed every time it is seen.
    """

    def __init__(
        self,
        module: HashingModule,
        train: Tensor,
        groups: Tensor | None,
        validation: Tensor,
        validation_groups: Tensor | None,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.module = module
        self.device = train.device
        self.train_size = len(train)
        self.augmentation = augmentation
        self.parts = (
            self._part(train, groups),
            self._part(validation, validation_groups) if len(validation) else self._part(train, groups),
        )

    def _part(self, x: Tensor, groups: Tensor | None) -> tuple[Tensor, Tensor, PairSampler | None]:
        if groups is None:
            return x, torch.arange(len(x), device=x.device), None
        return x, groups, PairSampler(groups)

    def pairs(self, part: int, which: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Examples ``[2B, *shape]`` and their groups ``[2B]``."""
        examples, groups, sampler = self.parts[part]
        both = torch.cat([which, which if sampler is None else sampler(which, generator)])
        x = examples[both]
        if self.augmentation is not None:
            numbers = self.augmentation.numbers(x[0].numel())
            uniform = torch.rand(len(x), numbers, generator=generator, device=x.device, dtype=x.dtype)
            x = self.augmentation(x.flatten(1), uniform, tuple(x.shape[1:])).reshape(x.shape)
        return x, groups[both]

    def set_step(self, step: int) -> None:
        """Nothing follows a schedule."""

    def losses(self, batch: Tensor, generator: torch.Generator, world: World) -> Tensor:
        """One number for each example of the batch, with its partner."""
        return self.module.losses(*self.pairs(0, batch, generator), generator=generator)

    def settle(self) -> None:
        """Let the module go over to evaluation, with scores spread over training examples as they are."""
        examples = self.parts[0][0]
        order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))
        self.module.settle(examples[order[:SETTLED_BY].to(self.device)])

    def validate(self, generator: torch.Generator) -> dict[str, float]:
        """The loss of the most probable codes of validation pairs, always the same ones."""
        self.settle()
        fixed = torch.Generator(self.device).manual_seed(0)
        everyone = torch.arange(len(self.parts[1][0]), device=self.device)
        losses = [self.module.losses_of_codes(*self.pairs(1, which, fixed)) for which in everyone.split(AT_ONCE // 2)]
        return {"loss": float(torch.cat(losses).double().mean())}

    def after_epoch(self, epoch: int, optimiser: torch.optim.Optimizer, generator: torch.Generator) -> dict[str, float]:
        """Say where ε is."""
        estimator = self.module.estimator
        return {"epsilon": estimator.epsilon.item()} if isinstance(estimator, Direct) else {}
