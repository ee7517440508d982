"""Figure 3 of the paper: n bits on rounded Fashion-MNIST, with unstructured and structured encoders.

Left: an unstructured encoder trained with direct, Gumbel-softmax (soft and straight-through), REBAR, RELAX, ARM,
DisARM, local expectation, and the exact gradient over all 2^n codes, which the paper calls out of reach. Middle:
unstructured, supermodular and general pairwise encoders trained with direct. Right: what a step costs.

The objective is the negative ELBO with the exact KL of the posterior that is sampled (law="gibbs"), trained. Decoders
read 2 × n one-hot numbers, as in the paper, or the n bits. Every method has the same number of trials of its learning
rate and its ε or τ, by validation loss after a few epochs of a seed that is used for nothing else. Test losses are
exact sums over all codes, at the epoch of the least validation loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import Tensor

from argrad.experiments.bench_estimators import summarise
from argrad.experiments.figure3_model import Encoder
from argrad.experiments.figure3_page import format_table, markdown, plot
from argrad.experiments.figure3_training import Curve, Group, Method, SideBySide, Trial, make_trainer, train
from argrad.experiments.paper_model import load_bits, quickly
from argrad.experiments.provenance import command_line, provenance
from argrad.experiments.step_cost import rounded, take_turns
from argrad.solvers.compiled import has_numba
from argrad.solvers.pairwise import PairwiseSolverName

__all__ = ["Figure3", "assemble", "format_table", "markdown", "plot", "run", "run_rows", "run_steps", "run_tuning"]

Images = tuple[Tensor, Tensor, Tensor]

LEFT: tuple[Method, ...] = (
    "exact",
    "local-expectation",
    "direct",
    "disarm",
    "arm",
    "rebar",
    "relax",
    "straight-through",
    "gumbel-softmax",
)
Row = tuple[Method, Encoder]
ROWS: tuple[Row, ...] = (
    *((method, "unstructured") for method in LEFT),
    ("direct", "supermodular"),
    ("direct", "general"),
)
"""What is trained."""
TIMED: tuple[Row, ...] = (*ROWS, ("exact", "general"))
"""What is timed."""
PERTURBED: tuple[tuple[Encoder, PairwiseSolverName], ...] = (
    ("supermodular", "max-flow"),
    ("general", "branch-and-bound"),
    ("general", "enumeration"),
)
"""Timed beside them: samples by perturbed arg max, as in the paper, found by these solvers, without a KL."""
RATES = (1e-3, 3e-3)
SETTINGS: dict[str, tuple[float, ...]] = {
    "direct": (0.01, 0.02, 0.05, 0.1),
    "gumbel-softmax": (0.2, 0.4, 0.7, 1.0),
    "straight-through": (0.2, 0.4, 0.7, 1.0),
    "rebar": (0.3, 0.5, 1.0, 2.0),
    "relax": (0.3, 0.5, 1.0, 2.0),
}
"""Around what was best: first trials, not kept, of 0.05 to 1 for ε and 0.1 to 1 for these τ chose the edge."""
RATES_ALONE = (2e-4, 5e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 4e-3, 6e-3)
"""For methods that have no ε or τ: as many trials as the others have."""


@final
@dataclass(frozen=True)
class Figure3:
    """Settings of the experiment."""

    dataset: str = "fashion-mnist"
    """Images, rounded at 0.5; digits (which need no download) with --quick."""
    bits: int = 15
    """n; all 2^n codes are summed to evaluate a model."""
    epochs: int = 300
    """Passes over the training images."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """First weights, orders and noise."""
    inputs: tuple[str, ...] = ("one-hot", "plain")
    """What decoders read: 2 × n one-hot numbers, or the n bits. The exact gradient is trained with the first only."""
    tuning_epochs: int = 20
    """Of each trial."""
    tuning_seed: int = 100
    """Of the trials."""
    batch_size: int = 100
    """Images per step."""
    look_every: int = 5
    """Epochs between two exact evaluations."""
    rounds: int = 20
    """Rounds in which all methods take turns at being timed."""
    device: str = "auto"
    """cpu, cuda …"""
    quick: bool = False
    """8×8 digits, 8 bits, 10 epochs: minutes on a laptop, and not the paper's model."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "rounds", "tuning_epochs", "look_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 2 <= self.bits <= 16:
            raise ValueError(f"bits must be 2 to 16, since all codes are summed, got {self.bits}")
        if not self.seeds or self.tuning_seed in self.seeds:
            raise ValueError(f"give seeds, none of them the tuning seed {self.tuning_seed}, got {self.seeds}")
        if not self.inputs or not set(self.inputs) <= {"one-hot", "plain"}:
            raise ValueError(f"inputs are one-hot and plain, got {self.inputs}")

    def effective(self) -> Figure3:
        """The settings with ``quick`` spelt out."""
        if not self.quick:
            return self
        return quickly(
            self, dataset="digits", bits=8, epochs=10, seeds=(0,), inputs=("one-hot",), tuning_epochs=3, rounds=5
        )


def trials_of(method: Method, settings: Figure3) -> list[Trial]:
    """What is tried for a method, as many for each."""
    pairs: list[tuple[float, float | None]] = [(rate, None) for rate in RATES_ALONE]
    if method in SETTINGS:
        pairs = [(rate, setting) for rate in RATES for setting in SETTINGS[method]]
    if settings.quick:
        pairs = pairs[1::4]
    return [Trial(settings.tuning_seed, settings.inputs[0] == "one-hot", rate, setting) for rate, setting in pairs]


def run_tuning(
    rows: Sequence[Row], images: Images, settings: Figure3, progress: Callable[[str], object] = print
) -> list[dict[str, Any]]:
    """Try every setting of these rows, all side by side, and choose by validation loss: what was found for each row."""
    settings = settings.effective()
    groups = [Group(method, encoder, trials_of(method, settings)) for method, encoder in rows]
    curves = train(
        groups,
        (images[0], images[1], None),
        epochs=settings.tuning_epochs,
        bits=settings.bits,
        batch_size=settings.batch_size,
        look_every=settings.look_every,
        progress=lambda line: progress(f"trials of {line}"),
    )
    return [choose(group, curve) for group, curve in zip(groups, curves, strict=True)]


def choose(group: Group, curve: Curve) -> dict[str, Any]:
    """The trial with the least validation loss at any look; one that diverged is never chosen."""
    losses = [min(row) if all(map(math.isfinite, row)) else math.inf for row in curve.validation]
    best = min(range(len(losses)), key=losses.__getitem__)
    return {
        "method": group.method,
        "encoder": group.encoder,
        "trials": [
            {
                "learning_rate": trial.learning_rate,
                "setting": trial.setting,
                "validation": loss if math.isfinite(loss) else None,
            }
            for trial, loss in zip(group.trials, losses, strict=True)
        ],
        "learning_rate": group.trials[best].learning_rate,
        "setting": group.trials[best].setting,
    }


def run_rows(
    rows: Sequence[Row],
    tuned: Sequence[dict[str, Any]],
    images: Images,
    settings: Figure3,
    progress: Callable[[str], object] = print,
) -> list[list[dict[str, Any]]]:
    """Train these rows with their chosen settings, every seed and input, all side by side: for each a row per input."""
    settings = settings.effective()
    groups = [
        Group(
            method,
            encoder,
            [
                Trial(seed, name == "one-hot", chosen["learning_rate"], chosen["setting"])
                for name in inputs_of(method, settings)
                for seed in settings.seeds
            ],
        )
        for (method, encoder), chosen in zip(rows, tuned, strict=True)
    ]
    curves = train(
        groups,
        images,
        epochs=settings.epochs,
        bits=settings.bits,
        batch_size=settings.batch_size,
        look_every=settings.look_every,
        progress=progress,
    )
    together = sum(len(group.trials) for group in groups)
    return [
        describe(group, curve, chosen, together, settings)
        for group, curve, chosen in zip(groups, curves, tuned, strict=True)
    ]


def inputs_of(method: Method, settings: Figure3) -> tuple[str, ...]:
    """What the decoders of a method read."""
    return settings.inputs[:1] if method == "exact" else settings.inputs


def describe(
    group: Group, curve: Curve, chosen: dict[str, Any], together: int, settings: Figure3
) -> list[dict[str, Any]]:
    """A row per input: losses at the epoch of the least validation loss of each seed, and curves."""
    described = []
    for number, name in enumerate(inputs_of(group.method, settings)):
        own = range(number * len(settings.seeds), (number + 1) * len(settings.seeds))
        best = [min(range(len(curve.epochs)), key=curve.validation[model].__getitem__) for model in own]
        described.append(
            {
                "method": group.method,
                "encoder": group.encoder,
                "input": name,
                "learning_rate": chosen["learning_rate"],
                "setting": chosen["setting"],
                "best_epoch": [curve.epochs[look] for look in best],
                "validation": [curve.validation[model][look] for model, look in zip(own, best, strict=True)],
                "test_loss": [curve.test[model][look] for model, look in zip(own, best, strict=True)],
                "nll": [curve.test_nll[model][look] for model, look in zip(own, best, strict=True)],
                "epochs": curve.epochs,
                "curve": [curve.test[model] for model in own],
                "steps_per_epoch": curve.steps // settings.epochs,
                "codes_decoded_per_step": codes_decoded(group.method, settings),
                "models_side_by_side": together,
                "seconds_side_by_side": float(f"{curve.seconds:.4g}"),
            }
        )
    return described


def codes_decoded(method: Method, settings: Figure3) -> int:
    """How many codes the decoder reads in one step of one model; the exact gradient's are shared by the batch."""
    if method == "exact":
        return int(2**settings.bits)
    per_example = {"direct": settings.bits + 1, "local-expectation": settings.bits + 1}
    per_example |= {"arm": 2, "disarm": 2, "rebar": 2, "relax": 2}
    return per_example.get(method, 1) * settings.batch_size


def run_steps(images: Images, settings: Figure3, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """What a step of one model costs with every method and encoder, all taking turns."""
    settings = settings.effective()
    train_images = images[0]
    on_gpu = train_images.device.type == "cuda"
    progress(f"timing steps of one model on {train_images.device.type}")
    trial = Trial(0, True, 1e-3, 0.5)

    def make(method: Method, encoder: Encoder, solver: PairwiseSolverName | None = None) -> SideBySide:
        sizes = {"bits": settings.bits, "batch_size": settings.batch_size}
        return SideBySide([make_trainer(method, encoder, [trial], train_images, perturbed_solver=solver, **sizes)])

    with torch.random.fork_rng(devices=[]):
        contestants = {f"{method}, {encoder}": make(method, encoder) for method, encoder in TIMED}
        for encoder, solver in PERTURBED:
            if solver == "enumeration" or has_numba():
                contestants[f"direct, {encoder}, {solver}"] = make("direct", encoder, solver)
        block = min(200 if on_gpu else 2, len(train_images) // settings.batch_size - 1)
        times = take_turns(contestants, settings.rounds, block, torch.cuda.synchronize if on_gpu else lambda: None)
    base = times["direct, unstructured"]
    return {
        "device": train_images.device.type,
        "hardware": torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} threads",
        "rounds": settings.rounds,
        "steps_per_round": block,
        "milliseconds": {name: rounded(summarise(found, 0)) for name, found in times.items()},
        "ratios": {
            f"{name} / direct, unstructured": rounded(summarise([a / b for a, b in zip(found, base, strict=True)], 0))
            for name, found in times.items()
        },
    }


def assemble(
    tuning: Sequence[dict[str, Any]],
    rows: Sequence[dict[str, Any]],
    steps: Sequence[dict[str, Any]],
    settings: Figure3,
    command: str,
) -> dict[str, Any]:
    """A result ready for JSON: seconds are those of one model's steps, measured on the device that trained."""
    settings = settings.effective()
    milliseconds = steps[0]["milliseconds"]
    for row in rows:
        step = milliseconds[f"{row['method']}, {row['encoder']}"]["median"]
        row["seconds_per_epoch"] = float(f"{row['steps_per_epoch'] * step / 1000:.4g}")
    order = {f"{method}, {encoder}": number for number, (method, encoder) in enumerate(ROWS)}
    return {
        **provenance(command),
        "figure": "figure3",
        "settings": asdict(settings),
        "quick": settings.quick,
        "tuning": list(tuning),
        "rows": sorted(rows, key=lambda row: (row["input"], order[f"{row['method']}, {row['encoder']}"])),
        "step_cost": list(steps),
    }


def run(settings: Figure3, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """The figure from the catalogue's images."""
    from argrad.models.discrete_vae.run import choose_device

    device = choose_device(settings.device)
    images = load_bits(settings.effective().dataset, device)
    command = command_line("argrad reproduce figure3", settings)
    tuning: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    with torch.random.fork_rng(devices=[]):
        for together in side_by_side(device):
            found = run_tuning(together, images, settings, progress)
            tuning += found
            rows += [row for rows_of in run_rows(together, found, images, settings, progress) for row in rows_of]
    return assemble(tuning, rows, [run_steps(images, settings, progress)], settings, command)


def side_by_side(device: torch.device) -> list[tuple[Row, ...]]:
    """Which rows share a graph: on a GPU all but the exact gradient, which fills it alone; elsewhere none."""
    alone = [row for row in ROWS if device.type != "cuda" or row[0] == "exact"]
    others = tuple(row for row in ROWS if row not in alone)
    return [*((row,) for row in alone), *((others,) if others else ())]
