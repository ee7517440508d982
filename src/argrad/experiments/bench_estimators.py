"""How long a training step takes with every estimator, against the loop that everyone writes by hand.

The model is the discrete variational auto-encoder of Lorberbom et al., 2019: pixels-hidden-k, Linear-ReLU-Linear, a
mirrored decoder, a Bernoulli likelihood and one categorical variable with k values. A step is everything that training
does: encoder, analytic KL to the uniform prior, noise, estimator, backward pass, Adam. The loop to compare with is
plain PyTorch around ``F.gumbel_softmax`` (soft).

All contestants start from the same weights, read the same batches and use the same fused Adam. Each round runs all of
them in a fresh random order, a short block of steps each, so that whatever else the machine does falls on all alike; a
ratio is taken within a round, and the median over rounds is reported with its quartiles and a bootstrap interval. All
live in one process, except storchastic, which wraps PyTorch's functions for whoever shares a process with it: it takes
its turns in a process of its own while this one waits.
"""

from __future__ import annotations

import copy
import gc
import importlib
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from argrad import estimators
from argrad.costs import Reconstruction
from argrad.estimators import Estimator
from argrad.experiments.provenance import command_line, provenance
from argrad.latents import Categorical

__all__ = ["Autoencoder", "BenchEstimators", "Contestant", "contestants", "format_table", "make_batches", "run"]

LOOP = "F.gumbel_softmax"
"""The contestant that all others are divided by."""
DECODE_ALL = "decode batch·k"
"""Direct as the paper's own code does it: the decoder reads batch · k codes."""
TEMPERATURE = 0.5
EPSILON = 0.1
BATCHES = 10


@dataclass
class BenchEstimators:
    """Settings of the speed benchmark."""

    values: tuple[int, ...] = (10, 50)
    """The numbers of values k of the categorical variable."""
    batch: int = 100
    """Images in a batch."""
    hidden: int = 300
    """Units in the hidden layer of encoder and decoder."""
    pixels: int = 784
    """Pixels in an image."""
    rounds: int = 60
    """Rounds; each runs every contestant once, in random order, and yields one ratio for each."""
    steps: int = 3
    """Training steps that are timed together in a round, after one that is not timed."""
    warm_up: int = 20
    """Training steps of every contestant before the first round, one at least."""
    learning_rate: float = 1e-3
    """Adam's learning rate, the same for all."""
    seed: int = 0
    """Decides weights, images, noise and the order in each round."""
    threads: int | None = None
    """Threads that PyTorch may use; its own choice when left out."""
    storchastic: bool = True
    """Also time the step written with storchastic, if that package is installed."""

    def __post_init__(self) -> None:
        if not self.values or min(self.values) < 2:
            raise ValueError(f"values must be whole numbers of at least 2, got {tuple(self.values)}")
        for name in ("batch", "hidden", "pixels", "rounds", "steps", "threads"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")


class Autoencoder(nn.Module):
    """Encoder pixels-hidden-k, decoder k-hidden-pixels, ReLU between."""

    def __init__(self, values: int, hidden: int, pixels: int) -> None:
        super().__init__()
        self.values = values
        self.encoder = nn.Sequential(nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, values))
        self.decoder = nn.Sequential(nn.Linear(values, hidden), nn.ReLU(), nn.Linear(hidden, pixels))


Backpropagate = Callable[[Autoencoder, Tensor], Tensor]
"""Forward and backward pass on a batch ``[batch, pixels]``; returns the negative ELBO."""


# ----------------------------------------------------------------------------------------------- steps in plain PyTorch


def uniform_kl(logits: Tensor) -> Tensor:
    """KL to the uniform prior, averaged over the batch."""
    q, log_q = F.softmax(logits, -1), F.log_softmax(logits, -1)
    return (q * (log_q + math.log(logits.shape[-1]))).sum(-1).mean()


def gumbel_softmax_loop(model: Autoencoder, x: Tensor, *, hard: bool = False) -> Tensor:
    """The loop as everyone writes it."""
    logits = model.encoder(x)
    z = F.gumbel_softmax(logits, tau=TEMPERATURE, hard=hard)
    reconstruction = F.binary_cross_entropy_with_logits(model.decoder(z), x, reduction="sum") / len(x)
    loss: Tensor = reconstruction + uniform_kl(logits)
    loss.backward()
    return loss


def decode_all(model: Autoencoder, x: Tensor) -> Tensor:
    """Direct, with the cost of every code by decoding batch · k inputs.

    They are decoded without gradient, the cheapest way; z* is decoded once more for the decoder's own gradient.
    """
    logits = model.encoder(x)
    batch, k = logits.shape
    with torch.no_grad():
        perturbed = logits - torch.empty_like(logits).exponential_().log()
        z = F.one_hot(perturbed.argmax(-1), k).to(x.dtype)
        codes = torch.eye(k).repeat(batch, 1)
        pixels = F.binary_cross_entropy_with_logits(model.decoder(codes), x.repeat_interleave(k, 0), reduction="none")
        costs = pixels.sum(-1).reshape(batch, k)
        better = F.one_hot((perturbed - EPSILON * costs).argmax(-1), k).to(x.dtype)
        gradient = (z - better) / EPSILON
    reconstruction = F.binary_cross_entropy_with_logits(model.decoder(z), x, reduction="sum") / batch
    loss: Tensor = reconstruction + uniform_kl(logits)
    (loss + (logits * gradient).sum() / batch).backward()
    return loss


# ---------------------------------------------------------------------------------------------------- steps with argrad


def with_estimator(estimator: Estimator) -> Backpropagate:
    """The step as the documentation writes it."""

    def backpropagate(model: Autoencoder, x: Tensor) -> Tensor:
        q = Categorical(model.encoder(x))
        loss: Tensor = (estimator(q, Reconstruction(x, model.decoder)) + q.kl()).mean()
        loss.backward()
        return loss

    return backpropagate


def argrad_estimators() -> dict[str, Estimator]:
    """The contestants of this package."""
    return {
        "Direct(0.1)": estimators.Direct(EPSILON),
        'Direct("auto")': estimators.Direct("auto"),
        "Exact": estimators.Exact(),
        "LocalExpectation": estimators.LocalExpectation(),
        "GumbelSoftmax": estimators.GumbelSoftmax(TEMPERATURE),
        "GumbelSoftmax(straight_through)": estimators.GumbelSoftmax(TEMPERATURE, straight_through=True),
        "Reinforce": estimators.Reinforce(),
        "Reinforce(learnt)": estimators.Reinforce(baseline="learnt"),
        "Reinforce(samples=2)": estimators.Reinforce(samples=2),
        "Rebar": estimators.Rebar(),
        "Relax": estimators.Relax(),
    }


# ----------------------------------------------------------------------------------------------- steps with storchastic


def with_storchastic(method: Any) -> Backpropagate:
    """The step as the examples of storchastic write it."""
    storch = importlib.import_module("storch")

    def reconstruction(logits: Tensor, data: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, data.expand_as(logits), reduction="none").sum(-1)

    def backpropagate(model: Autoencoder, x: Tensor) -> Tensor:
        storch.reset()
        data = storch.denote_independent(x, 0, "data")
        posterior = torch.distributions.OneHotCategorical(logits=storch.deterministic(model.encoder.forward)(data))
        prior = torch.distributions.OneHotCategorical(logits=torch.zeros_like(posterior.logits))
        storch.add_cost(torch.distributions.kl_divergence(posterior, prior), "kl")
        logits = storch.deterministic(model.decoder.forward)(method(posterior))
        storch.add_cost(storch.deterministic(reconstruction)(logits, data), "reconstruction")
        loss = storch.backward()
        assert isinstance(loss, Tensor)
        return loss

    return backpropagate


def storchastic_steps() -> dict[str, Backpropagate]:
    """One step per method of storchastic; raises whatever keeps it from running here."""
    method = importlib.import_module("storch.method")
    steps = {
        "storchastic GumbelSoftmax": with_storchastic(method.GumbelSoftmax("z", initial_temperature=TEMPERATURE)),
        "storchastic ScoreFunction": with_storchastic(method.ScoreFunction("z", baseline_factory="moving_average")),
        "storchastic Expect": with_storchastic(method.Expect("z")),
    }
    model = Autoencoder(2, 3, 4)
    for backpropagate in steps.values():
        backpropagate(model, torch.zeros(2, 4))
    return steps


# ---------------------------------------------------------------------------------------------------------- the contest


@dataclass
class Contestant:
    """A model, its optimiser and a way to take a step."""

    name: str
    model: Autoencoder
    backpropagate: Backpropagate
    optimizer: torch.optim.Optimizer

    def step(self, x: Tensor) -> Tensor:
        """One training step; returns the negative ELBO before it."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.backpropagate(self.model, x)
        self.optimizer.step()
        return loss

    def time_block(self, batches: list[Tensor]) -> tuple[float, float]:
        """Seconds per step over the batches, and the last loss."""
        self.step(batches[0])  # brings the weights back into the caches
        start = time.perf_counter()
        for x in batches:
            loss = self.step(x)
        return (time.perf_counter() - start) / len(batches), loss.item()


def enter(
    settings: BenchEstimators, values: int, steps: dict[str, tuple[Backpropagate, nn.Module | None]]
) -> list[Contestant]:
    """A contestant for each kind of step, on copies of one model; Adam also trains the estimator's own parameters."""
    torch.manual_seed(settings.seed)
    first = Autoencoder(values, settings.hidden, settings.pixels)
    entered = []
    for name, (backpropagate, estimator) in steps.items():
        model = copy.deepcopy(first)
        parameters = list(model.parameters())
        if estimator is not None:
            # Sizes the networks that wait for their first input.
            backpropagate(model, torch.zeros(settings.batch, settings.pixels))
            parameters += estimator.parameters()
        optimizer = torch.optim.Adam(parameters, lr=settings.learning_rate, fused=True)
        entered.append(Contestant(name, model, backpropagate, optimizer))
    return entered


def contestants(settings: BenchEstimators, values: int) -> list[Contestant]:
    """Everyone who takes part in this process."""
    steps: dict[str, tuple[Backpropagate, nn.Module | None]] = {
        LOOP: (gumbel_softmax_loop, None),
        "F.gumbel_softmax(hard=True)": (lambda model, x: gumbel_softmax_loop(model, x, hard=True), None),
    }
    for name, estimator in argrad_estimators().items():
        steps[name] = (with_estimator(estimator), estimator)
    steps[DECODE_ALL] = (decode_all, None)
    return enter(settings, values, steps)


class Guests:
    """The contestants of storchastic, in a process of their own that answers one JSON line with another."""

    def __init__(self, settings: BenchEstimators, values: int) -> None:
        code = f"from {__name__} import serve; serve()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        start = {"settings": asdict(settings), "values": values, "threads": torch.get_num_threads()}
        answer = self.ask(start)
        self.names: list[str] = answer.get("names", [])
        self.reason: str | None = answer.get("reason")

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline() or '{"reason": "its process ended"}')
        return answer

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def serve() -> None:
    """The other end of :class:`Guests`: build the contestants, then time blocks of steps until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing that a package prints may get between the answers

    def answer(content: dict[str, Any]) -> None:
        print(json.dumps(content), file=answers, flush=True)

    start = json.loads(sys.stdin.readline())
    torch.set_num_threads(start["threads"])
    settings = BenchEstimators(**start["settings"])
    try:
        steps: dict[str, tuple[Backpropagate, nn.Module | None]]
        steps = {name: (step, None) for name, step in storchastic_steps().items()}
        found = {contestant.name: contestant for contestant in enter(settings, start["values"], steps)}
    except Exception as error:  # a peer that does not run here must not stop the others
        answer({"reason": f"{type(error).__name__}: {error}".splitlines()[0]})
        return
    answer({"names": list(found)})
    batches = make_batches(settings)
    gc.disable()
    for line in sys.stdin:
        request = json.loads(line)
        gc.collect()
        seconds, loss = found[request["name"]].time_block([batches[index] for index in request["batches"]])
        answer({"seconds": seconds, "loss": loss})


def make_batches(settings: BenchEstimators, number: int = BATCHES) -> list[Tensor]:
    """Binary images: noisy copies of ten random patterns, so that there is something to learn."""
    generator = torch.Generator().manual_seed(settings.seed)
    patterns = torch.rand(10, settings.pixels, generator=generator) < 0.3
    which = torch.randint(10, (number, settings.batch), generator=generator)
    flipped = torch.rand(number, settings.batch, settings.pixels, generator=generator) < 0.05
    return list((patterns[which] ^ flipped).float())


Block = Callable[[list[int]], tuple[float, float]]
"""Takes a step on each of the numbered batches; returns the seconds per step and the last loss."""


def time_rounds(
    blocks: dict[str, Block], settings: BenchEstimators, tell: Callable[[str], object]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds per step in every round, and the loss after the warm-up and after every round."""
    seconds: dict[str, list[float]] = {name: [] for name in blocks}
    losses = {
        name: [block([step % BATCHES for step in range(max(1, settings.warm_up))])[1]] for name, block in blocks.items()
    }
    order = random.Random(settings.seed)
    collecting = gc.isenabled()
    gc.disable()  # as timeit does; what has piled up is collected between the rounds
    try:
        for number in range(settings.rounds):
            gc.collect()
            batches = [(number * settings.steps + step) % BATCHES for step in range(settings.steps)]
            for name in order.sample(list(blocks), len(blocks)):
                taken, loss = blocks[name](batches)
                seconds[name].append(taken)
                losses[name].append(loss)
            if (number + 1) % max(1, settings.rounds // 5) == 0:
                tell(f"  round {number + 1} of {settings.rounds}")
    finally:
        if collecting:
            gc.enable()
    return seconds, losses


def compete(
    settings: BenchEstimators, values: int, tell: Callable[[str], object]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """One row for each contestant at one k, and why others did not take part."""
    batches, skipped = make_batches(settings), {}

    def here(contestant: Contestant) -> Block:
        return lambda which: contestant.time_block([batches[index] for index in which])

    def there(guests: Guests, name: str) -> Block:
        def block(which: list[int]) -> tuple[float, float]:
            answer = guests.ask({"name": name, "batches": which})
            if "reason" in answer:
                raise RuntimeError(f"{name}: {answer['reason']}")
            return answer["seconds"], answer["loss"]

        return block

    blocks = {contestant.name: here(contestant) for contestant in contestants(settings, values)}
    guests = Guests(settings, values) if settings.storchastic else None
    try:
        if guests is not None:
            blocks |= {name: there(guests, name) for name in guests.names}
            if guests.reason is not None:
                skipped["storchastic"] = guests.reason
        seconds, losses = time_rounds(blocks, settings, tell)
    finally:
        if guests is not None:
            guests.close()
    rows = []
    for name, own in seconds.items():
        against_loop = [a / b for a, b in zip(own, seconds[LOOP], strict=True)]
        against_all = [b / a for a, b in zip(own, seconds[DECODE_ALL], strict=True)]
        rows.append(
            {
                "values": values,
                "name": name,
                "milliseconds": 1e3 * statistics.median(own),
                "ratio": summarise(against_loop, settings.seed),
                "decode_all_ratio": summarise(against_all, settings.seed),
                "loss": [losses[name][0], losses[name][-1]],
            }
        )
    return rows, skipped


def summarise(ratios: list[float], seed: int, resamples: int = 1000) -> dict[str, Any]:
    """The median of paired ratios, their quartiles, and a 95% bootstrap interval of the median."""
    sample = torch.tensor(ratios, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    medians = sample[torch.randint(len(sample), (resamples, len(sample)), generator=generator)].quantile(0.5, dim=1)
    return {
        "median": sample.quantile(0.5).item(),
        "quartiles": [sample.quantile(p).item() for p in (0.25, 0.75)],
        "interval_95": [medians.quantile(p).item() for p in (0.025, 0.975)],
    }


def run(settings: BenchEstimators, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """Time everyone, and return a result that can be written as JSON.

    Each row has the contestant's name, k, the median milliseconds of a step, ``ratio`` (its time over that of the loop,
    in the same round), ``decode_all_ratio`` (the time of decoding batch · k inputs over its own), and the loss after
    the warm-up and at the end.
    """
    threads = torch.get_num_threads()
    rows: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    try:
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        used_threads = torch.get_num_threads()
        with torch.random.fork_rng(devices=[]):
            for values in settings.values:
                progress(f"k = {values}")
                more, skipped = compete(settings, values, progress)
                rows += more
    finally:
        torch.set_num_threads(threads)
    return {
        **provenance(command_line("argrad bench estimators", settings)),
        "settings": asdict(settings),
        "threads": used_threads,
        "loop": LOOP,
        "rows": rows,
        "skipped": skipped,
    }


def format_table(result: dict[str, Any]) -> str:
    """The result as a person reads it."""
    settings = result["settings"]
    lines = [
        f"Training steps of the {settings['pixels']}-{settings['hidden']}-k model, batch {settings['batch']}, "
        f"on {result['hardware']}, {result['threads']} threads, {result['software']}.",
        f"Ratios are to the {result['loop']} loop in the same round: median of {settings['rounds']} [quartiles].",
    ]
    for values in settings["values"]:
        lines += ["", f"{f'k = {values}':<34}{'ms':>8}{'ratio':>8}  {'[quartiles]':<16}{'decode batch·k takes':>22}"]
        for row in result["rows"]:
            if row["values"] == values:
                low, high = row["ratio"]["quartiles"]
                spread = f"[{low:.2f}, {high:.2f}]"
                times = f"{row['decode_all_ratio']['median']:.1f} ×"
                numbers = f"{row['milliseconds']:>8.2f}{row['ratio']['median']:>8.2f}"
                lines.append(f"{row['name']:<34}{numbers}  {spread:<16}{times:>22}")
    lines += [f"left out: {name} ({reason})" for name, reason in result["skipped"].items()]
    return "\n".join(lines)


def markdown(result: dict[str, Any]) -> str:
    """The ratios as a table for the documentation."""
    names = list(dict.fromkeys(row["name"] for row in result["rows"]))
    cells = {(row["name"], row["values"]): row["ratio"] for row in result["rows"]}
    values = result["settings"]["values"]
    lines = ["| Step | " + " | ".join(f"k = {k}" for k in values) + " |", "|---|" + "---|" * len(values)]
    for name in names:
        texts = [
            f"{cells[name, k]['median']:.2f} [{', '.join(f'{q:.2f}' for q in cells[name, k]['quartiles'])}]"
            for k in values
        ]
        lines.append(f"| `{name}` | " + " | ".join(texts) + " |")
    return "\n".join(lines)
