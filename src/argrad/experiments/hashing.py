"""Hashing by contrast: what codes of 16, 32 and 64 bits find, beside float embeddings and thresholded PCA.

Fashion-MNIST: trained on 50,000 images; the 10,000 test images search all 60,000 training images for their class.
Omniglot: trained on the drawings of nine in ten of the 964 background characters; the 13,180 drawings of the 659
evaluation characters, none of which training has seen, search each other for their character.

Every row but PCA has the same network, loss, augmentation, steps and step size; what differs is the gradient through
the bits. ``float`` trains the same network's output as an embedding of as many dimensions, with the same loss of
n (1 − cosine) / 2, and ranks by angle; ``float, signs`` are the signs of these embeddings. For each method and loss the
margin or the scale is chosen from a few by the mean average precision of validation, at one number of bits with a seed
of its own; then fresh seeds are trained and tested. Measures are expectations over the order of ties
(:mod:`argrad.models.hashing.retrieval`).

The search itself is timed on the CPU: 100 random queries among 60,000 random codes of 64 bits, exhaustively, and
beside it the same by matrix product with 64 floats in place of bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, final, get_args

import numpy as np
import torch
from torch import Tensor

from argrad.estimators.by_name import estimator_by_name
from argrad.experiments.hashing_page import MEASURES, format_table, markdown, plot
from argrad.experiments.hashing_training import (
    Collection,
    Search,
    by_angle,
    by_sign,
    components,
    embed,
    load_collection,
    train,
)
from argrad.experiments.paper_model import quickly
from argrad.experiments.provenance import command_line, hardware, provenance
from argrad.models.discrete_vae.run import choose_device
from argrad.models.hashing.costs import LEAST_SCALE, LossName
from argrad.models.hashing.module import HashingModule, convolutional_encoder
from argrad.models.hashing.search import hamming_neighbors
from argrad.solvers.compiled import has_numba

__all__ = ["Hashing", "assemble", "format_table", "markdown", "plot", "run", "run_collection", "time_search"]

MethodName = Literal["local-expectation", "direct", "arm", "straight-through", "float"]
TUNING_SEED = 1_000_000
"""Chooses margins and scales; no seed that is reported."""
SHARES: dict[str, tuple[float, ...]] = {"logistic": (1 / 32, 1 / 16, 1 / 8), "triplet": (1 / 32, 1 / 16, 1 / 8, 1 / 4)}
"""Scales and margins to choose from, as shares of the bits."""
CODES, QUERIES, SEARCHED_BITS, NEIGHBOURS = 60_000, 100, 64, 10
"""Of the timed search."""


@final
@dataclass(frozen=True)
class Hashing:
    """Settings of the experiment."""

    datasets: tuple[str, ...] = ("fashion-mnist", "omniglot")
    """Which data sets; none leaves only the timed search."""
    bits: tuple[int, ...] = (16, 32, 64)
    """Lengths of codes."""
    losses: tuple[LossName, ...] = ("logistic", "triplet")
    """Which losses."""
    methods: tuple[MethodName, ...] = get_args(MethodName)
    """Which gradients through bits; float has no bits."""
    seeds: int = 3
    """Trainings of each row."""
    steps: int = 1200
    """Training steps."""
    batch_size: int = 128
    """Pairs per step."""
    learning_rate: float = 3e-3
    """Adam's step size."""
    channels: int = 16
    """Of the network's first block; the other two have twice as many."""
    tuning_bits: int = 32
    """The length of codes at which margin and scale are chosen."""
    rounds: int = 20
    """Times that the search is timed."""
    device: str = "auto"
    """cpu, cuda …"""
    graph: bool = True
    """On a GPU, capture a training step as one graph."""
    quick: bool = False
    """8×8 digits, 16 bits, one seed, few steps: a minute on a laptop."""

    def __post_init__(self) -> None:
        for name in ("seeds", "steps", "batch_size", "channels", "tuning_bits", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.bits or min(self.bits) < 1 or not self.losses or not self.methods:
            raise ValueError("give at least one number of bits, one loss and one method")
        for given, known in ((self.losses, get_args(LossName)), (self.methods, get_args(MethodName))):
            unknown = set(given) - set(known)
            if unknown:
                raise ValueError(f"there is no {', '.join(sorted(unknown))}; choose from {', '.join(known)}")

    def effective(self) -> Hashing:
        """The settings with ``quick`` spelt out."""
        if not self.quick:
            return self
        return quickly(
            self,
            datasets=("digits",),
            bits=(16,),
            seeds=1,
            steps=150,
            batch_size=64,
            channels=8,
            tuning_bits=16,
            rounds=3,
        )


def run(
    settings: Hashing,
    progress: Callable[[str], object] = print,
    load: Callable[[str], Collection] = load_collection,
) -> dict[str, Any]:
    """All data sets, and the timed search.

    Args:
        settings: of the experiment.
        progress: is told how far it is.
        load: where data sets come from, by name.

    Returns:
        A result ready for JSON. Each of its ``rows`` has a ``dataset``, ``bits``, a ``method`` and a ``loss``, the
        ``share`` of the bits that validation chose as margin or scale, and ``recall@1``, ``recall@10``, ``map`` and
        ``seconds``, one number per seed; ``tuning`` has every candidate; ``search`` the times of the search and the
        processor they were measured on, or None where numba is not installed.
    """
    command = command_line("argrad reproduce hashing", settings)
    settings = settings.effective()
    device = choose_device(settings.device)
    parts = [run_collection(load(name).to(device), settings, progress) for name in settings.datasets]
    return assemble(parts, settings, command, time_search(settings.rounds) if has_numba() else None)


def assemble(
    parts: Sequence[tuple[list[dict[str, Any]], list[dict[str, Any]]]],
    settings: Hashing,
    command: str,
    search: dict[str, Any] | None,
) -> dict[str, Any]:
    """The result from its parts.

    Args:
        parts: of :func:`run_collection`, one for each data set, or several with some of the losses each; PCA, which has
            no loss, is in all of these and is kept once.
        settings: of the whole.
        command: that would make it at once.
        search: from :func:`time_search`.
    """
    rows = {(row["dataset"], row["bits"], row["method"], row["loss"]): row for part in parts for row in part[0]}
    return {
        **provenance(command),
        "settings": asdict(settings),
        "quick": settings.quick,
        "rows": list(rows.values()),
        "tuning": [row for part in parts for row in part[1]],
        "search": search,
    }


def run_collection(
    collection: Collection, settings: Hashing, progress: Callable[[str], object] = print
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All rows of one data set, and what was tried to choose their settings.

    Args:
        collection: on its device.
        settings: of the experiment.
        progress: is told how far it is.
    """
    rows, tuning = [], []
    for bits in settings.bits:
        rows.append(pca_row(collection, bits))
    for loss in settings.losses:
        for method in settings.methods:
            tried = tune(collection, method, loss, settings, progress)
            tuning += tried
            best = max(tried, key=lambda candidate: float(candidate["validation"]))
            for bits in settings.bits:
                rows += measure(collection, method, loss, bits, best["share"], settings, progress)
    return rows, tuning


def tune(
    collection: Collection, method: str, loss: LossName, settings: Hashing, progress: Callable[[str], object]
) -> list[dict[str, Any]]:
    """One training for each margin or scale, judged by validation."""
    candidates = []
    for share in SHARES[loss] if not settings.quick else SHARES[loss][1:2]:
        progress(f"{collection.name}, {method}, {loss}: trying {share:g} of the bits")
        module, _ = trained(collection, method, loss, settings.tuning_bits, share, TUNING_SEED, settings)
        search = collection.validation
        judge = by_angle if method == "float" else by_sign
        found = judge(*both(search, partial(embed, module)), search)
        candidates.append(
            {
                "dataset": collection.name,
                "method": method,
                "loss": loss,
                "bits": settings.tuning_bits,
                "share": share,
                "validation": round(found["map"], 4),
            }
        )
    return candidates


def measure(
    collection: Collection,
    method: str,
    loss: LossName,
    bits: int,
    share: float,
    settings: Hashing,
    progress: Callable[[str], object],
) -> list[dict[str, Any]]:
    """Train every seed and look for what it finds; embeddings make a second row by their signs."""
    search = collection.test
    rows = {method: new_row(collection.name, bits, method, loss, share)}
    if method == "float":
        rows["float, signs"] = new_row(collection.name, bits, "float, signs", loss, share)
    for seed in range(settings.seeds):
        progress(f"{collection.name}, {method}, {loss}: {bits} bits, seed {seed}")
        module, seconds = trained(collection, method, loss, bits, share, seed, settings)
        queries, others = both(search, partial(embed, module))
        for name, row in rows.items():
            add(row, (by_angle if name == "float" else by_sign)(queries, others, search), seconds)
    return list(rows.values())


def trained(
    collection: Collection, method: str, loss: LossName, bits: int, share: float, seed: int, settings: Hashing
) -> tuple[HashingModule, float]:
    """A module trained from the first weights of a seed, and the seconds it took."""
    shape = tuple(collection.train.shape[1:])
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # the GPU's is left alone
        encoder = convolutional_encoder(shape, bits, settings.channels)
        estimator = None if method == "float" else estimator_by_name(method)
    module = HashingModule(
        encoder, estimator, bits, loss=loss, margin=share * bits, scale=max(LEAST_SCALE, share * bits)
    ).to(collection.train.device)
    seconds = train(
        module,
        collection,
        steps=settings.steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        seed=seed,
        graph=settings.graph,
    )
    return module, seconds


def pca_row(collection: Collection, bits: int) -> dict[str, Any]:
    """The signs of the first principal components of the training images."""
    began = time.monotonic()
    mean, directions = components(collection.train, bits)
    seconds = time.monotonic() - began
    search = collection.test
    queries, others = both(search, lambda images: (images.flatten(1) - mean) @ directions)
    row = new_row(collection.name, bits, "pca, signs", None, None)
    add(row, by_sign(queries, others, search), seconds)
    return row


def both(search: Search, embedding: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Embeddings of the queries and of what they search; where these are the same images, the same embeddings."""
    queries = embedding(search.queries)
    return queries, queries if search.among_themselves else embedding(search.images)


def new_row(dataset: str, bits: int, method: str, loss: str | None, share: float | None) -> dict[str, Any]:
    """A row without numbers."""
    row: dict[str, Any] = {"dataset": dataset, "bits": bits, "method": method, "loss": loss, "share": share}
    return {**row, **{name: [] for name in (*MEASURES, "seconds")}}


def add(row: dict[str, Any], found: dict[str, float], seconds: float) -> None:
    """The numbers of one more seed."""
    for name in MEASURES:
        row[name].append(round(found[name], 4))
    row["seconds"].append(round(seconds, 2))


def time_search(rounds: int) -> dict[str, Any]:
    """Milliseconds for 100 queries among 60,000 codes of 64 bits, and for the same with 64 floats, round by round.

    ``processor_milliseconds`` add up over threads, and leave out what other processes take. Some systems count them in
    ticks of several milliseconds, so that only their mean says something.
    """
    rng = np.random.default_rng(0)
    queries, codes = (rng.integers(0, 256, (number, SEARCHED_BITS // 8), np.uint8) for number in (QUERIES, CODES))
    few, many = (torch.from_numpy(rng.standard_normal((n, SEARCHED_BITS), np.float32)) for n in (QUERIES, CODES))
    ways: dict[str, Callable[[], object]] = {
        "milliseconds": lambda: hamming_neighbors(queries, codes, NEIGHBOURS),
        "float_milliseconds": lambda: (few @ many.T).topk(NEIGHBOURS),
    }
    times: dict[str, Any] = {f"{what}{name}": [] for name in ways for what in ("", "processor_")}
    for way in ways.values():
        way()  # compiles, warms up
    for _ in range(rounds):
        for name, way in ways.items():
            began, processor_began = time.perf_counter(), time.process_time()
            way()
            times[name].append(round(1000 * (time.perf_counter() - began), 2))
            times[f"processor_{name}"].append(round(1000 * (time.process_time() - processor_began), 2))
    sizes = {"queries": QUERIES, "codes": CODES, "bits": SEARCHED_BITS, "neighbours": NEIGHBOURS}
    return {**sizes, "hardware": hardware(), "threads": torch.get_num_threads(), **times}
