r"""A small autoregressive prior over grids of codes, which makes a tokenizer generate images.

The codes are read row by row, :math:`p(z) = \prod_t p(z_t \mid z_{<t})`. A recurrent network (GRU) reads at every cell
the code before it, the code above it and where it is. It is trained by teacher forcing, on grids that are known whole;
a sample is drawn as :class:`argrad.Sequence` draws it, symbol by symbol.
"""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Tensor, nn

from argrad.latents import Sequence
from argrad.models.discrete_vae.task import evaluate_in_batches
from argrad.models.tokenizer.task import at_once
from argrad.training import World

__all__ = ["CodePrior", "PriorTask"]


@final
class CodePrior(nn.Module):
    """p(z) of grids of codes.

    Args:
        grid: rows and columns.
        codes: K, the size of the vocabulary.
        width: of the recurrent network.

    >>> prior = CodePrior((2, 2), codes=5, width=8)
    >>> prior.log_prob(torch.zeros(3, 2, 2, dtype=torch.int64)).shape
    torch.Size([3])
    >>> prior.sample(4, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([4, 2, 2])
    """

    def __init__(self, grid: tuple[int, int], codes: int, width: int = 256) -> None:
        super().__init__()
        if width < 1 or codes < 2:
            raise ValueError(f"a prior needs width >= 1 and codes >= 2, got {width} and {codes}")
        self.grid = grid
        self.codes = codes
        self.before = nn.Parameter(torch.randn(codes, width) / math.sqrt(width))
        self.above = nn.Parameter(torch.randn(codes, width) / math.sqrt(width))
        self.place = nn.Parameter(torch.randn(math.prod(grid), width) / math.sqrt(width))
        self.memory = nn.GRU(width, width, batch_first=True)
        self.scores = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, codes))

    @property
    def length(self) -> int:
        """How many cells."""
        return math.prod(self.grid)

    def logits(self, codes: Tensor) -> Tensor:
        """The scores of every cell given those before it, ``[N, cells, K]``, from grids ``[N, rows, columns]``."""
        row = codes.flatten(1)
        columns = self.grid[1]
        read = self.place.expand(len(row), *self.place.shape)
        before = nn.functional.embedding(row[:, :-1], self.before)
        above = nn.functional.embedding(row[:, :-columns], self.above)
        read = read + nn.functional.pad(before, (0, 0, 1, 0)) + nn.functional.pad(above, (0, 0, columns, 0))
        scores: Tensor = self.scores(self.memory(read)[0])
        return scores

    def log_prob(self, codes: Tensor) -> Tensor:
        """log p(z), ``[N]``, in one pass."""
        per_cell = nn.functional.cross_entropy(self.logits(codes).mT, codes.flatten(1), reduction="none")
        return -per_cell.sum(-1)

    def sequence(self, number: int) -> Sequence:
        """The same law as a latent: ``number`` grids, cell by cell."""

        def step(previous: Tensor | None, state: Any) -> tuple[Tensor, Any]:
            hidden, recent, t = state
            read = self.place[t].expand(number if previous is None else len(previous), -1)
            if previous is not None:
                read = read + previous @ self.before
                recent = torch.cat([recent[:, 1:], previous[:, None] @ self.above], 1)
            if t >= self.grid[1]:
                read = read + recent[:, 0]
            output, hidden = self.memory(read[:, None], hidden[None])
            return self.scores(output[:, 0]), (hidden[0], recent, t + 1)

        width = self.place.shape[1]
        hidden = self.place.new_zeros(number, width)
        recent = self.place.new_zeros(number, self.grid[1], width)
        return Sequence(step, self.length, state=(hidden, recent, 0), validate=False)

    @torch.no_grad()
    def sample(self, number: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw grids of codes, ``[number, rows, columns]``, so many at a time that they fit into memory."""
        pieces = torch.arange(number).split(at_once((self.length, self.codes)))
        drawn = [self.sequence(len(piece)).sample(generator=generator).argmax(-1) for piece in pieces]
        return torch.cat(drawn).reshape(-1, *self.grid)


@final
class PriorTask:
    """A prior and the codes of images, as the training loop wants them.

    Args:
        prior: on its device already.
        train: codes ``[N, rows, columns]``, on the same device.
        validation: codes; the training codes where there are none.
    """

    def __init__(self, prior: CodePrior, train: Tensor, validation: Tensor) -> None:
        self.module = prior
        self.train = train
        self.validation = validation if len(validation) else train
        self.device = train.device
        self.train_size = len(train)

    def set_step(self, step: int) -> None:
        """Nothing follows a schedule."""

    def losses(self, batch: Tensor, generator: torch.Generator, world: World) -> Tensor:
        """−log p of each grid."""
        if world.size > 1:
            raise ValueError("a prior over codes is trained by one process; leave out torchrun")
        return -self.module.log_prob(self.train[batch])

    def validate(self, generator: torch.Generator) -> dict[str, float]:
        """−log p of validation codes, in nats per image."""
        size = at_once((self.module.length, self.module.codes))
        return {"loss": evaluate_in_batches(lambda codes: -self.module.log_prob(codes), self.validation, size)}

    def after_epoch(self, epoch: int, optimiser: torch.optim.Optimizer, generator: torch.Generator) -> dict[str, float]:
        """Nothing is done between epochs."""
        return {}
