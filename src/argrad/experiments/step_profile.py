"""Where the time of a population's step goes, and how far it is from what the arithmetic asks for.

Operations: with S seeds, G members, batch B, D pixels, H hidden units and K codes (padded to the largest k) the matrix
products of a step take, forward and backward,

  2 S G [2 B D H + 3 B H K + 3 K H D + 2 B D K]    exact and direct
  2 S G [2 B D H + 3 B H K + 3 B K H + 3 B H D]    Gumbel-softmax

operations; two products in place of three where an operand is the images, which need no gradient. Adam reads weight,
gradient and two moments and writes three of them back: 28 bytes for each 4-byte weight, and 4 more where the gradient
was written.

Floor: on the same device in the same run, the speed of a large matrix product (on a GPU in TF32, as in training) and of
a large copy are measured; a step cannot take less than its products at that speed (or their operands at that bandwidth,
whichever is slower) plus Adam's traffic. Caches can beat the copy, so on a CPU the floor of a small model is a rough
one.

Profile: PyTorch's profiler adds up the time of each kernel (on a CPU: of each operation, its own time).

The images are random: what they show does not change how long a step takes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import Tensor

from argrad.experiments.drawing import new_figure, prepare, save
from argrad.experiments.paper_model import quickly
from argrad.experiments.provenance import command_line, provenance
from argrad.experiments.step_cost import PopulationSteps, Steps, take_turns
from argrad.training.matmul_precision import training_precision
from argrad.training.population import RELAXED, Member

__all__ = ["StepProfile", "count_operations", "format_table", "markdown", "plot", "run"]

NUMBER = 4
"""Bytes of a float32."""
TOP = 8
"""Kernels to name."""
HIDDEN = 300


@final
@dataclass(frozen=True)
class StepProfile:
    """Settings of the experiment."""

    k: tuple[int, ...] = (10, 20, 30, 40, 50)
    """Values of the categorical variables in the populations of many."""
    table_members: int = 6
    """Models per k and seed that read a table of costs, as many exact as direct; Table 1 trains 6."""
    relaxed_members: int = 2
    """Models per k and seed with Gumbel-softmax, as many soft as straight-through; Table 1 trains 2."""
    seeds: int = 3
    """Of the populations of many."""
    batch_size: int = 100
    """Images per step."""
    pixels: int = 784
    """In an image."""
    rounds: int = 10
    """Rounds in which all populations take turns at being timed."""
    steps: int = 20
    """Steps in a turn, and steps that are profiled."""
    device: str = "auto"
    """cpu, cuda …"""
    quick: bool = False
    """One seed, two k, few steps: seconds on a laptop."""

    def __post_init__(self) -> None:
        least = {"table_members": 1, "relaxed_members": 1, "seeds": 1, "batch_size": 1, "pixels": 1}
        for name, low in (*least.items(), ("rounds", 1), ("steps", 1)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}")
        if not self.k or min(self.k) < 2:
            raise ValueError(f"give at least one k, all at least 2; got {self.k}")

    def effective(self) -> StepProfile:
        """The settings with ``quick`` spelt out."""
        small = {"table_members": 2, "relaxed_members": 2, "seeds": 1, "rounds": 3, "steps": 3}
        return quickly(self, k=(10, 50), **small) if self.quick else self

    def populations(self) -> dict[str, tuple[list[Member], int]]:
        """Members and number of seeds by name."""
        table = [
            Member(k, "direct" if number % 2 else "exact", epsilon=0.1)
            for number in range(self.table_members)
            for k in self.k
        ]
        relaxed = [
            Member(k, "straight-through" if number % 2 else "gumbel-softmax")
            for number in range(self.relaxed_members)
            for k in self.k
        ]
        first = self.k[0]
        return {
            f"direct, one model, k = {first}": ([Member(first, "direct", epsilon=0.1)], 1),
            f"straight-through, one model, k = {first}": ([Member(first, "straight-through")], 1),
            f"exact and direct, {len(table) * self.seeds} models": (table, self.seeds),
            f"Gumbel-softmax, {len(relaxed) * self.seeds} models": (relaxed, self.seeds),
        }


def count_operations(
    members: Sequence[Member], seeds: int, batch: int, pixels: int, hidden: int = HIDDEN
) -> dict[str, int]:
    """Floating-point operations and bytes of one step.

    Returns:
        ``product_operations`` of the padded products, ``needed_operations`` with each model's own k,
        ``product_bytes`` (operands read and results written once by each product), ``parameters``, and
        ``adam_bytes``.
    """
    relaxed = members[0].method in RELAXED
    most = max(member.values for member in members)
    products = [shapes(relaxed, batch, pixels, hidden, most) for _ in members]
    needed = [shapes(relaxed, batch, pixels, hidden, member.values) for member in members]
    weights = 2 * pixels * hidden + 2 * hidden * most + 2 * hidden + most + pixels
    parameters = seeds * len(members) * weights
    return {
        "product_operations": seeds * sum(2 * times * m * n * o for own in products for times, m, n, o in own),
        "needed_operations": seeds * sum(2 * times * m * n * o for own in needed for times, m, n, o in own),
        "product_bytes": seeds
        * sum(NUMBER * times * (m * n + n * o + m * o) for own in products for times, m, n, o in own),
        "parameters": parameters,
        "adam_bytes": 8 * NUMBER * parameters,
    }


def shapes(relaxed: bool, batch: int, pixels: int, hidden: int, codes: int) -> list[tuple[int, int, int, int]]:
    """How often a step of one model multiplies an m × n by an n × o matrix, or a transpose of it: (times, m, n, o)."""
    encoder = [(2, batch, pixels, hidden), (3, batch, hidden, codes)]
    if relaxed:
        return [*encoder, (3, batch, codes, hidden), (3, batch, hidden, pixels)]
    return [*encoder, (3, codes, hidden, pixels), (2, batch, pixels, codes)]


def measure_speeds(device: torch.device, quick: bool) -> dict[str, float]:
    """Operations per second of a large product, bytes per second of a large copy; the best of a few."""
    on_gpu = device.type == "cuda"
    size = 8192 if on_gpu else 512 if quick else 2048
    left, right = (torch.randn(size, size, device=device) for _ in range(2))
    much = torch.zeros(2**28 if on_gpu else 2**22 if quick else 2**25, device=device)
    into = torch.empty_like(much)
    wait = waiting(device)
    with training_precision(device):
        product = best_seconds(lambda: torch.mm(left, right), wait)
    copy = best_seconds(lambda: into.copy_(much), wait)
    return {"operations_per_second": 2 * size**3 / product, "bytes_per_second": 2 * NUMBER * much.numel() / copy}


def best_seconds(work: Callable[[], object], wait: Callable[[], object], tries: int = 5) -> float:
    """The least time of a few tries, after one that is not timed."""
    found = []
    for _ in range(tries + 1):
        wait()
        began = time.perf_counter()
        work()
        wait()
        found.append(time.perf_counter() - began)
    return min(found[1:])


def waiting(device: torch.device) -> Callable[[], object]:
    """What returns when the device has done all it was given."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def top_kernels(steps: Steps, count: int, device: torch.device) -> list[dict[str, Any]]:
    """Microseconds per step, calls per step and share of the most expensive kernels, or operations on a CPU."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = device.type == "cuda"
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    wait = waiting(device)
    steps.rewind()
    steps.step()
    wait()
    with profile(activities=kinds) as profiler:
        for _ in range(count):
            steps.step()
        wait()
    found: list[tuple[float, int, str]] = []
    for event in profiler.key_averages():
        if on_gpu:
            if str(event.device_type).endswith("CUDA"):
                found.append((event.self_device_time_total, event.count, event.key))
        else:
            found.append((event.self_cpu_time_total, event.count, event.key))
    total = sum(entry[0] for entry in found) or 1.0
    return [
        {
            "name": name[:100],
            "microseconds_per_step": round(spent / count, 2),
            "calls_per_step": round(calls / count, 2),
            "share": round(spent / total, 4),
        }
        for spent, calls, name in sorted(found, reverse=True)[:TOP]
    ]


def run(settings: StepProfile, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """Count, time and profile; needs no data.

    Returns:
        A result ready for JSON, with the measured ``speeds`` of the device and one of ``rows`` per population.
    """
    from argrad.models.discrete_vae.run import choose_device

    record = provenance(command_line("argrad reproduce step-profile", settings))
    settings = settings.effective()
    device = choose_device(settings.device)
    images = torch.Generator().manual_seed(0)
    enough = settings.batch_size * (settings.steps + 2)
    train: Tensor = (torch.rand(enough, settings.pixels, generator=images) < 0.2).to(torch.uint8).to(device)
    progress("measuring the speed of a large product and a large copy")
    populations = settings.populations()
    with torch.random.fork_rng(devices=[]):
        speeds = measure_speeds(device, settings.quick)
        contestants = {
            name: PopulationSteps(members, range(seeds), train, settings.batch_size)
            for name, (members, seeds) in populations.items()
        }
        progress("timing steps")
        times = take_turns(contestants, settings.rounds, settings.steps, waiting(device))
        rows = []
        for name, (members, seeds) in populations.items():
            progress(f"profiling: {name}")
            counts = count_operations(members, seeds, settings.batch_size, settings.pixels)
            kernels = top_kernels(contestants[name], settings.steps, device)
            rows.append(
                {"name": name, "models": len(members) * seeds, **compare(counts, times[name], speeds), "top": kernels}
            )
    return {
        **record,
        "settings": asdict(settings),
        "quick": settings.quick,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "tf32": device.type == "cuda",
        "speeds": {name: float(f"{value:.4g}") for name, value in speeds.items()},
        "rows": rows,
    }


def compare(counts: dict[str, int], milliseconds: list[float], speeds: dict[str, float]) -> dict[str, Any]:
    """The counts, the measured step, and the floor under it."""
    sample = torch.tensor(milliseconds, dtype=torch.float64)
    products = max(
        counts["product_operations"] / speeds["operations_per_second"],
        counts["product_bytes"] / speeds["bytes_per_second"],
    )
    adam = counts["adam_bytes"] / speeds["bytes_per_second"]
    median, floor = float(sample.median()), 1e3 * (products + adam)
    return {
        **counts,
        "milliseconds": float(f"{median:.4g}"),
        "quartiles": [float(f"{sample.quantile(p):.4g}") for p in (0.25, 0.75)],
        "floor_milliseconds": {
            "products": float(f"{1e3 * products:.4g}"),
            "adam": float(f"{1e3 * adam:.4g}"),
            "all": float(f"{floor:.4g}"),
        },
        "times_the_floor": round(median / floor, 2),
    }


# ------------------------------------------------------------------------------------------------------- for a person


def speeds_in_words(result: dict[str, Any]) -> str:
    """The device's measured speeds."""
    speeds, numbers = result["speeds"], "TF32" if result["tf32"] else "float32"
    return (
        f"On {result['device']} ({result['hardware']}), measured: {speeds['operations_per_second'] / 1e12:.3g} TFLOP/s "
        f"in a large {numbers} product, {speeds['bytes_per_second'] / 1e9:.4g} GB/s in a large copy"
    )


def format_table(result: dict[str, Any]) -> str:
    """A line per population, then its kernels."""
    lines = ["QUICK: small populations and few steps."] if result["quick"] else []
    lines += [
        speeds_in_words(result),
        f"{'':<40}{'ms':>9} {'floor':>8} {'products':>9} {'Adam':>8} {'times':>7}",
    ]
    for row in result["rows"]:
        floor = row["floor_milliseconds"]
        numbers = f"{row['milliseconds']:>9.3f} {floor['all']:>8.3f} {floor['products']:>9.3f} {floor['adam']:>8.3f}"
        lines.append(f"{row['name']:<40}{numbers} {row['times_the_floor']:>7.2f}")
    for row in result["rows"]:
        lines += ["", f"{row['name']}:"]
        lines += [
            f"  {kernel['share']:>6.1%} {kernel['microseconds_per_step']:>10.1f} µs {kernel['calls_per_step']:>6g} × "
            f"{kernel['name']}"
            for kernel in row["top"]
        ]
    return "\n".join(lines)


def markdown(result: dict[str, Any]) -> str:
    """The same for the documentation."""
    lines = [f"{speeds_in_words(result)}.", ""]
    lines += [
        "| Population | Step, ms | Floor, ms | of it products | of it Adam | Step over floor | Most of the time |"
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in result["rows"]:
        floor = row["floor_milliseconds"]
        most = ", ".join(f"{kernel['share']:.0%} `{kernel['name'][:40]}`" for kernel in row["top"][:2]) or "–"
        lines.append(
            f"| {row['name']} | {row['milliseconds']:.3f} | {floor['all']:.3f} | {floor['products']:.3f} | "
            f"{floor['adam']:.3f} | {row['times_the_floor']:.2f} | {most} |"
        )
    return "\n".join(lines)


def plot(result: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """What part of each measured step its arithmetic accounts for."""
    figure = new_figure(8.5, 1.6 + 0.55 * len(result["rows"]))
    axes = figure.subplots()
    prepare(axes, "The part of a step that its arithmetic accounts for", "share of the measured step")
    for place, row in enumerate(result["rows"]):
        products, adam = (row["floor_milliseconds"][part] / row["milliseconds"] for part in ("products", "adam"))
        labels = ("matrix products", "Adam's traffic") if place == 0 else (None, None)
        axes.barh(place, products, 0.6, color="#1f5fa8", label=labels[0])
        axes.barh(place, adam, 0.6, left=products, color="#d1662a", label=labels[1])
        axes.text(products + adam + 0.01, place, f"of {row['milliseconds']:.3g} ms", va="center", fontsize=9)
    axes.set_yticks(range(len(result["rows"])), [row["name"] for row in result["rows"]])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.1)
    axes.legend(frameon=False, fontsize=9, loc="center right")
    save(figure, result, f"{result['hardware']}, {result['software']}", path)
