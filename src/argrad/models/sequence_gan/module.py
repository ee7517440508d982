r"""A GAN whose generator draws symbols: an LSTM through :class:`argrad.Sequence`, and a discriminator of sequences.

Algorithm 1 of *Re-parameterization and Gumbel-max trick* (R. Y. D. Xu, 2018) with its signs put right. With D = σ(d),
the discriminator minimises

.. math:: -\big[\operatorname{mean}_x \log D(x) + \operatorname{mean}_z \log(1 - D(G(z)))\big]

(a *plus* between the terms) and the generator the mean of :math:`-\log\frac{D}{1 - D} = -d` of what it draws. The best
discriminator has d = log p − log q for data p and generator q, so the generator minimises E_q[log q − log p], the
reverse KL: the slope of the log q inside d has mean zero. The noise z is the Gumbel noise that selects the symbols; how
the gradient gets through the selection is what an estimator is for.

**Step by step.** Both players are networks that read the symbols so far and have a number for every next one: the
generator its scores, the discriminator how much more likely the data is to go on like that, at best a_t(v) = log p(v |
z_<t) − log q(v | z_<t). Its verdict on a beginning is the sum d_t = a_1(z_1) + … + a_t(z_t), and every beginning is
trained by the loss above. So the generator pays −a_t(z_t) for a symbol, and REINFORCE weighs a step by what is paid
from there on (:class:`argrad.StepCost`), which is what SeqGAN's roll-outs are for, at the price of one reading.

**Who writes.** Two players that answer each other's moves go round the point where neither gains, and do not come to
rest there. The running average of the generator's weights does come near it, so the average writes, and the generator
plays.

References: Goodfellow et al., 2014, "Generative adversarial nets"; Yu, Zhang, Wang & Yu, 2017, "SeqGAN: sequence
generative adversarial nets with policy gradient"; Yazıcı et al., 2019, "The unusual effectiveness of averaging in GAN
training".
"""

from __future__ import annotations

import copy
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, softplus

from argrad.costs import StepCost
from argrad.data.text import END
from argrad.estimators import Estimator, Reinforce
from argrad.latents import Sequence

__all__ = ["SequenceDiscriminator", "SequenceGANModule", "SequenceGenerator", "SymbolReader"]

GAIN = 10.0
"""The discriminator's numbers are so many times what its network says, so that at the same step size of Adam its
verdict moves faster than the generator does, and keeps up with it."""


@final
class SymbolReader(nn.Module):
    """An LSTM that reads symbols and has a number for every symbol that may come next.

    Args:
        symbols: how many there are, the end (symbol 0) included.
        hidden: width of the LSTM and of the embedding.
    """

    def __init__(self, symbols: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(symbols, hidden, bias=False)  # of one-hot symbols, or of relaxed ones
        self.first = nn.Parameter(torch.zeros(hidden))
        self.memory = nn.LSTM(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, symbols)

    def forward(self, z: Tensor) -> Tensor:
        """The numbers at each place of one-hot or relaxed sequences ``[N, length, symbols]``, given those before it."""
        inputs = torch.cat([self.first.expand(len(z), 1, -1), self.embedding(z[:, :-1])], 1)
        found: Tensor = self.head(self.memory(inputs)[0])
        return found

    def step(self, previous: Tensor | None, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The same, one place at a time, as :class:`argrad.Sequence` calls it."""
        inputs = self.first.expand(len(state[0]), -1) if previous is None else self.embedding(previous)
        hidden, cell = torch.lstm_cell(inputs, state, *self.memory.all_weights[0])
        return self.head(hidden), (hidden, cell)


@final
class SequenceGenerator(nn.Module):
    """Draws one symbol after the other, until it draws the end.

    Args:
        symbols: how many there are, the end (symbol 0) included.
        length: of every sequence, the end included; what is left after the end is filled with it.
        hidden: width of the LSTM.

    >>> generator = SequenceGenerator(symbols=5, length=7, hidden=8)
    >>> drawn = generator.sample(3, generator=torch.Generator().manual_seed(0))
    >>> drawn.shape, generator.log_prob(drawn).shape
    (torch.Size([3, 7]), torch.Size([3]))
    """

    def __init__(self, symbols: int, length: int, hidden: int = 64) -> None:
        super().__init__()
        if symbols < 2 or length < 1 or hidden < 1:
            raise ValueError(
                f"a generator needs symbols >= 2, length >= 1 and hidden >= 1, got {symbols}, {length} and {hidden}"
            )
        self.symbols, self.length = symbols, length
        self.reader = SymbolReader(symbols, hidden)

    def sequences(self, rows: int) -> Sequence:
        """A batch of equal distributions over sequences."""
        start = self.reader.first.new_zeros(rows, len(self.reader.first))
        return Sequence(self.reader.step, self.length, state=(start, start), end=END, validate=False)

    def log_prob(self, indices: Tensor) -> Tensor:
        """log q of symbol numbers ``[N, length]``, in one call; what follows the first end costs nothing."""
        log_q = self.reader(self.one_hot(indices)).log_softmax(-1)
        found = log_q.gather(-1, indices.unsqueeze(-1)).squeeze(-1)
        return torch.where(ended_before(indices == END), 0.0, found).sum(-1)

    @torch.no_grad()
    def sample(self, number: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Symbol numbers ``[number, length]``."""
        return self.sequences(number).sample(generator=generator).argmax(-1)

    def one_hot(self, indices: Tensor) -> Tensor:
        """Symbol numbers as both players read them."""
        return one_hot(indices, self.symbols).to(self.reader.first.dtype)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.reader.first.device


@final
class SequenceDiscriminator(nn.Module):
    """Says of every symbol how much it speaks for the data, given those before it; undecided at first.

    Args:
        symbols: how many there are, the end (symbol 0) included.
        hidden: width of the LSTM.

    >>> SequenceDiscriminator(symbols=5, hidden=8)(torch.eye(5)[torch.tensor([[1, 2, 0], [3, 0, 0]])]).shape
    torch.Size([2, 3])
    """

    def __init__(self, symbols: int, hidden: int = 64) -> None:
        super().__init__()
        self.reader = SymbolReader(symbols, hidden)
        self.forget()

    def forward(self, z: Tensor) -> Tensor:
        """a of every symbol of one-hot or relaxed sequences ``[*extra, length, symbols]``, 0 after the end."""
        found = GAIN * (self.reader(z.flatten(0, -3)).reshape(z.shape) * z).sum(-1)
        return torch.where(ended_before(z.detach().argmax(-1) == END), 0.0, found)

    @torch.no_grad()
    def forget(self) -> None:
        """Be undecided about everything."""
        for parameter in self.reader.head.parameters():
            parameter.zero_()

    @torch.no_grad()
    def read_like(self, generator: SequenceGenerator) -> None:
        """Read as the generator does, and be undecided: what it has learnt of the language is a good start."""
        self.reader.load_state_dict(generator.reader.state_dict())
        self.forget()


@final
class SequenceGANModule(nn.Module):
    """Generator, discriminator and estimator, with the losses of both players.

    ``writer`` is a generator with the running average of the weights, which is what one draws from in the end.

    Args:
        generator: of sequences.
        discriminator: of sequences.
        estimator: of the gradient through the symbols; any that supports :class:`argrad.Sequence`.
    """

    def __init__(
        self, generator: SequenceGenerator, discriminator: SequenceDiscriminator, estimator: Estimator
    ) -> None:
        super().__init__()
        self.generator, self.discriminator, self.estimator = generator, discriminator, estimator
        self.writer = copy.deepcopy(generator).requires_grad_(False)

    @torch.no_grad()
    def follow(self, average: float) -> None:
        """Let the writer keep this share of its weights and take the rest from the generator; 0 copies them."""
        for own, new in zip(self.writer.parameters(), self.generator.parameters(), strict=True):
            own.lerp_(new, 1 - average)

    def likelihood_losses(self, indices: Tensor) -> Tensor:
        """Maximum likelihood: −log q, ``[N]``."""
        return -self.generator.log_prob(indices)

    def discriminator_losses(self, real: Tensor, fake: Tensor) -> Tensor:
        """−log D(x) − log(1 − D(G(z))) by pairs, mean over beginnings, ``[N]``, of symbol numbers ``[N, length]``."""
        verdicts = self.discriminator(self.generator.one_hot(torch.cat([real, fake]))).cumsum(-1)
        on_real, on_fake = verdicts.chunk(2)
        return (softplus(-on_real) + softplus(on_fake)).mean(-1)

    def generator_losses(self, rows: int, *, noise: torch.Generator | None = None) -> Tensor:
        """−d of sampled sequences with the estimator's gradient for the generator; the discriminator gets none.

        Args:
            rows: how many sequences are drawn. They have one distribution, so REINFORCE takes its samples from it, and
                they are each other's baseline.
            noise: where fresh noise comes from.

        Returns:
            one number per row, or per group of REINFORCE's samples.
        """
        groups = max(1, rows // self.estimator.samples) if isinstance(self.estimator, Reinforce) else rows
        fixed = list(self.discriminator.parameters())
        for parameter in fixed:
            parameter.requires_grad_(False)
        try:
            losses: Tensor = self.estimator(
                self.generator.sequences(groups), StepCost(self.step_costs), generator=noise
            )
            return losses
        finally:
            for parameter in fixed:
                parameter.requires_grad_(True)

    def step_costs(self, z: Tensor) -> Tensor:
        """What the generator pays for each symbol, ``[*extra, length]``: the sum is −d of the whole sequence."""
        costs: Tensor = -self.discriminator(z)
        return costs


def ended_before(is_end: Tensor) -> Tensor:
    """Whether there is an end before each place of a sequence, ``[*extra, length]``."""
    ends = is_end.long()
    return ends.cumsum(-1) - ends > 0
