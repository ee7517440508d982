"""What the training loop itself costs: a whole step of it against a loop written by hand that does the same work.

The model is that of :mod:`argrad.experiments.bench_estimators`: pixels-hidden-k, Linear-ReLU-Linear, a mirrored
decoder, a Bernoulli likelihood, one categorical variable. A step of the library is all that happens between the start
of one and the start of the next in :func:`argrad.training.train`, run as a user runs it, someone watching its progress:
schedules, seeds, indexing of 8-bit images, turning them into numbers, noise, estimator with its checks, KL, backward
pass, Adam, the running loss, looking whether to report, save or stop, and the end of an epoch where there is one. The
loop to compare with does what is needed of that in plain PyTorch, with the same fused Adam, and finds the cost of all k
codes by one matrix product, as the library does.

The two take turns in one process: after every few steps of the library, as many of the other, each block after one step
that is not timed. A ratio is taken between neighbouring blocks; the median is reported with quartiles and a bootstrap
interval.
"""

from __future__ import annotations

import copy
import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from argrad.estimators import Direct, Estimator, Exact, GumbelSoftmax
from argrad.experiments.bench_estimators import summarise
from argrad.experiments.provenance import command_line, provenance
from argrad.models.discrete_vae.module import DiscreteVAEModule, default_networks
from argrad.models.discrete_vae.task import Schedules, VAETask
from argrad.training import Decay, LoopSettings, World, train

__all__ = ["HAND_WRITTEN", "BenchTraining", "HandWritten", "format_table", "make_images", "run"]

EPSILON = 0.1
TEMPERATURE = 0.5
TARGET = 1.10
"""The loop should cost no more than this, relative to the one written by hand."""


@dataclass
class BenchTraining:
    """Settings of the loop benchmark."""

    values: int = 10
    """The number of values k of the categorical variable."""
    batch: int = 100
    """Images in a batch."""
    hidden: int = 300
    """Units in the hidden layer of encoder and decoder."""
    pixels: int = 784
    """Pixels in an image."""
    images: int = 10_000
    """Images in the data set, which both index at random."""
    rounds: int = 150
    """Rounds; each times a block of either loop, and yields one ratio."""
    steps: int = 5
    """Training steps that are timed together in a block, after one that is not timed."""
    learning_rate: float = 1e-3
    """Adam's learning rate, the same for both."""
    seed: int = 0
    """Decides weights, images and noise."""
    threads: int | None = None
    """Threads that PyTorch may use; its own choice when left out."""


# ------------------------------------------------------------------------------------------------------------- by hand


def gumbel_like(scores: Tensor) -> Tensor:
    """Gumbel noise, as ``F.gumbel_softmax`` draws it."""
    return -torch.empty_like(scores).exponential_().log()


def uniform_kl(log_q: Tensor) -> Tensor:
    """KL to the uniform prior, summed over the batch."""
    return (log_q.exp() * (log_q + math.log(log_q.shape[-1]))).sum()


def cost_table(decoder: nn.Module, x: Tensor, values: int) -> Tensor:
    """−log p(x|z) of every image and every code, ``[batch, k]``."""
    logits: Tensor = decoder(torch.eye(values)).flatten(1)
    return F.softplus(logits).sum(-1) - x.flatten(1) @ logits.T


def exact(encoder: nn.Module, decoder: nn.Module, x: Tensor) -> Tensor:
    """The negative ELBO by summing over all codes."""
    log_q: Tensor = encoder(x).log_softmax(-1)
    return (log_q.exp() * cost_table(decoder, x, log_q.shape[-1])).sum() + uniform_kl(log_q)


def direct(encoder: nn.Module, decoder: nn.Module, x: Tensor) -> Tensor:
    """Direct optimisation; the second term has the value 0 and the gradient that is wanted."""
    scores: Tensor = encoder(x)
    costs = cost_table(decoder, x, scores.shape[-1])
    with torch.no_grad():
        perturbed = scores + gumbel_like(scores)
        z = F.one_hot(perturbed.argmax(-1), scores.shape[-1])
        better = F.one_hot((perturbed - EPSILON * costs).argmax(-1), scores.shape[-1])
        gradient = (z - better) / EPSILON
    return (costs * z).sum() + ((scores - scores.detach()) * gradient).sum() + uniform_kl(scores.log_softmax(-1))


def gumbel_softmax(encoder: nn.Module, decoder: nn.Module, x: Tensor) -> Tensor:
    """The relaxation, as everyone writes it."""
    scores: Tensor = encoder(x)
    reconstruction = decoder(F.softmax((scores + gumbel_like(scores)) / TEMPERATURE, -1))
    return F.binary_cross_entropy_with_logits(reconstruction, x, reduction="sum") + uniform_kl(scores.log_softmax(-1))


HAND_WRITTEN: dict[str, tuple[Estimator, Callable[[nn.Module, nn.Module, Tensor], Tensor]]] = {
    "Exact": (Exact(), exact),
    "Direct(0.1)": (Direct(EPSILON), direct),
    "GumbelSoftmax": (GumbelSoftmax(TEMPERATURE), gumbel_softmax),
}
"""The estimator, and the same by hand: the summed loss of a batch."""


@final
class HandWritten:
    """The loop as one would write it for this model alone."""

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        loss: Callable[[nn.Module, nn.Module, Tensor], Tensor],
        images: Tensor,
        settings: BenchTraining,
    ) -> None:
        self.encoder, self.decoder, self.loss, self.images = encoder, decoder, loss, images
        self.batch = settings.batch
        self.optimiser = torch.optim.Adam(
            [*encoder.parameters(), *decoder.parameters()], lr=settings.learning_rate, fused=True
        )
        self.order = torch.randperm(len(images))
        self.at = 0
        self.total = torch.zeros(())

    def step(self) -> None:
        """One step."""
        index = self.order[self.at : self.at + self.batch]
        x = self.images[index].float()
        loss = self.loss(self.encoder, self.decoder, x)
        self.optimiser.zero_grad()
        (loss / len(index)).backward()
        self.optimiser.step()
        self.total += loss.detach()
        self.at += self.batch
        if self.at + self.batch > len(self.images):
            self.order, self.at = torch.randperm(len(self.images)), 0


# ---------------------------------------------------------------------------------------------------------- the contest


@final
class TakingTurns:
    """A task that trains as another does, and lets the loop written by hand run after every block of steps.

    The training loop calls :meth:`set_step` once a step: from one call to the next is one whole step of it.
    """

    def __init__(self, task: VAETask, other: HandWritten, settings: BenchTraining) -> None:
        self.task, self.other, self.block = task, other, settings.steps
        self.module, self.device = task.module, task.device
        self.rounds, self.train_size = settings.rounds, task.train_size
        self.library: list[float] = []
        self.hand: list[float] = []
        self.began = 0.0

    def set_step(self, step: int) -> None:
        """Before each step; where a block is over, the other's turn."""
        place = step % (1 + self.block)
        if place == 1:
            self.began = time.perf_counter()
        elif place == 0 and step > 0 and len(self.library) < self.rounds:
            self.library.append((time.perf_counter() - self.began) / self.block)
            self.hand.append(self.time_other())
        self.task.set_step(step)

    def time_other(self) -> float:
        """Seconds per step of the loop written by hand; garbage is collected before it, and before the library's."""
        gc.collect()
        self.other.step()  # brings its weights back into the caches
        began = time.perf_counter()
        for _ in range(self.block):
            self.other.step()
        seconds = (time.perf_counter() - began) / self.block
        gc.collect()
        return seconds

    def losses(self, batch: Tensor, generator: torch.Generator, world: World) -> Tensor:
        """Those of the task."""
        return self.task.losses(batch, generator, world)

    def validate(self, generator: torch.Generator) -> dict[str, float]:
        """Not what is timed."""
        return {"loss": 0.0}

    def after_epoch(self, epoch: int, optimiser: torch.optim.Optimizer, generator: torch.Generator) -> dict[str, float]:
        """Not what is timed."""
        return {}


@final
class Silent:
    """Someone who watches and says nothing."""

    def start(self, steps: int, done: int) -> None:
        """Nothing."""

    def step(self, done: int, epoch: int, loss: float) -> None:
        """Nothing."""

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Nothing."""


def make_images(settings: BenchTraining) -> Tensor:
    """Bits, stored in 8: noisy copies of ten random patterns."""
    generator = torch.Generator().manual_seed(settings.seed)
    patterns = torch.rand(10, settings.pixels, generator=generator) < 0.3
    which = torch.randint(10, (settings.images,), generator=generator)
    flipped = torch.rand(settings.images, settings.pixels, generator=generator) < 0.05
    return (patterns[which] ^ flipped).to(torch.uint8)


def compete(name: str, settings: BenchTraining, images: Tensor) -> dict[str, Any]:
    """One row: the library's loop and the one written by hand, with one estimator, from the same weights."""
    torch.manual_seed(settings.seed)
    encoder, decoder = default_networks((settings.pixels,), settings.values, settings.hidden)
    estimator, loss = HAND_WRITTEN[name]
    other = HandWritten(copy.deepcopy(encoder), copy.deepcopy(decoder), loss, images, settings)
    task = VAETask(
        DiscreteVAEModule(encoder, decoder, copy.deepcopy(estimator), values=settings.values),
        images,
        images[:0],
        lambda stored, generator: stored.float(),
        Schedules(Decay(EPSILON), Decay(TEMPERATURE)),
    )
    turns = TakingTurns(task, other, settings)
    epochs = math.ceil(((1 + settings.steps) * settings.rounds + 1) / math.ceil(settings.images / settings.batch))
    loop = LoopSettings(epochs, settings.batch, settings.learning_rate, settings.seed)
    collecting = gc.isenabled()
    gc.disable()  # as timeit does; what has piled up is collected between the blocks,
    gc.freeze()  # which should not take so long that it empties the caches
    try:
        train(turns, loop, progress=Silent())
    finally:
        gc.unfreeze()
        if collecting:
            gc.enable()
    ratios = [library / hand for library, hand in zip(turns.library, turns.hand, strict=True)]
    return {
        "name": name,
        "library_milliseconds": 1e3 * statistics.median(turns.library),
        "hand_milliseconds": 1e3 * statistics.median(turns.hand),
        "ratio": summarise(ratios, settings.seed),
    }


def run(settings: BenchTraining, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """Time both loops with each estimator, and return a result that can be written as JSON."""
    threads = torch.get_num_threads()
    rows = []
    try:
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        used = torch.get_num_threads()
        with torch.random.fork_rng(devices=[]):
            images = make_images(settings)
            for name in HAND_WRITTEN:
                progress(f"{name}: {settings.rounds} rounds")
                rows.append(compete(name, settings, images))
    finally:
        torch.set_num_threads(threads)
    return {
        **provenance(command_line("argrad bench training", settings)),
        "settings": asdict(settings),
        "threads": used,
        "target": TARGET,
        "rows": rows,
    }


def format_table(result: dict[str, Any]) -> str:
    """The result as a person reads it."""
    settings = result["settings"]
    lines = [
        f"Whole training steps of the {settings['pixels']}-{settings['hidden']}-{settings['values']} model, batch "
        f"{settings['batch']}, on {result['hardware']}, {result['threads']} threads, {result['software']}.",
        f"Ratios are between neighbouring blocks: median of {settings['rounds']} [quartiles]; the target is at most "
        f"{result['target']:.2f}.",
        "",
        f"{'':<16}{'argrad ms':>12}{'by hand ms':>12}{'ratio':>8}  [quartiles]",
    ]
    for row in result["rows"]:
        low, high = row["ratio"]["quartiles"]
        milliseconds = f"{row['library_milliseconds']:>12.2f}{row['hand_milliseconds']:>12.2f}"
        lines.append(f"{row['name']:<16}{milliseconds}{row['ratio']['median']:>8.2f}  [{low:.2f}, {high:.2f}]")
    return "\n".join(lines)
