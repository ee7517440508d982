"""How long the pairwise solvers take on a CPU, against the programs one would call in a loop instead.

Three kinds of problems, in batches: scores of any sign, standard normal, at 15 bits (against HiGHS, one mixed-integer
program for each problem) and at 30 bits; and pairwise scores that only attract, uniform on [0, 1], with unary scores
that leave every bit in doubt, at 15 and 50 bits (against PyMaxflow, one graph for each problem).

Every round solves a fresh batch by all contestants in random order, so that whatever else the machine does falls on all
alike; a ratio is taken within a round. Slow peers solve only some problems of the batch, and their time is scaled up to
all of it. That everyone finds the same optimum is checked on the way.
"""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from argrad.experiments.bench_estimators import summarise
from argrad.experiments.provenance import command_line, provenance
from argrad.solvers import (
    pairwise_by_branch_and_bound,
    pairwise_by_enumeration,
    pairwise_by_max_flow,
    pairwise_score,
    prove_pairwise,
    solve_pairwise,
)

__all__ = ["BenchSolvers", "by_highs", "by_pymaxflow", "format_table", "make_problems", "markdown", "run"]


@dataclass
class BenchSolvers:
    """Settings of the solver benchmark."""

    batch: int = 100
    """Problems in a batch."""
    rounds: int = 30
    """Rounds; each solves a fresh batch by every contestant once, in random order."""
    highs_problems: int = 5
    """Problems of each batch that HiGHS solves; it takes about a tenth of a second for each."""
    seed: int = 0
    """Decides the problems and the order in each round."""
    threads: int | None = None
    """Threads that PyTorch and the compiled solvers may use; PyTorch's own choice when left out."""

    def __post_init__(self) -> None:
        for name in ("batch", "rounds", "highs_problems", "threads"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")


Solver = Callable[[Tensor, Tensor], Tensor]


# --------------------------------------------------------------------------------------------------------- the problems


def make_problems(kind: str, batch: int, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Unary ``[batch, n]`` and pairwise scores ``[batch, n, n]``, "general" or "attractive"."""
    if kind == "general":
        return torch.randn(batch, n, generator=generator), torch.randn(batch, n, n, generator=generator).triu(1)
    pairwise = torch.rand(batch, n, n, generator=generator).triu(1)
    # Half of what a bit can gain from the others is taken away, so that all zeros and all ones are about as good; the
    # noise is just large enough that the optimum is neither. Smaller or larger, the cut is easier to find.
    doubt = -(pairwise + pairwise.mT).sum(-1) / 2
    return doubt + 0.2 * n * torch.randn(batch, n, generator=generator), pairwise


# ------------------------------------------------------------------------------------------------------------ the peers


def by_highs(unary: Tensor, pairwise: Tensor) -> Tensor:
    """Each problem as a mixed-integer program, the usual way, by HiGHS in scipy.

    A product z_i z_j becomes a variable y between 0 and 1: y ≤ z_i and y ≤ z_j hold it down where its score is
    positive, y ≥ z_i + z_j - 1 holds it up where it is negative.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_matrix

    batch, n = unary.shape
    first, second = np.triu_indices(n, 1)
    pairs = len(first)
    best = torch.zeros(batch, n)
    for problem in range(batch):
        u, w = unary[problem].double().numpy(), pairwise[problem].double().numpy()[first, second]
        attract, repel = np.flatnonzero(w > 0), np.flatnonzero(w <= 0)
        # Rows: y - z_i ≤ 0 and y - z_j ≤ 0 for each pair that attracts, z_i + z_j - y ≤ 1 for each that repels.
        up, down = len(attract), len(repel)
        rows = [np.arange(2 * up), np.arange(2 * up), *[2 * up + np.arange(down)] * 3]
        columns = [n + np.tile(attract, 2), np.concatenate([first[attract], second[attract]])]
        columns += [first[repel], second[repel], n + repel]
        signs = [np.ones(2 * up), -np.ones(2 * up), np.ones(down), np.ones(down), -np.ones(down)]
        matrix = coo_matrix(
            (np.concatenate(signs), (np.concatenate(rows), np.concatenate(columns))), (2 * up + down, n + pairs)
        ).tocsc()
        limits = np.concatenate([np.zeros(2 * up), np.ones(down)])
        result = milp(
            -np.concatenate([u, w]),
            constraints=[LinearConstraint(matrix, -np.inf, limits)] if pairs else [],
            integrality=np.repeat([1, 0], [n, pairs]),
            bounds=Bounds(0, 1),
            options={"mip_rel_gap": 0.0},
        )
        if result.x is None:
            raise RuntimeError(f"HiGHS found nothing: {result.message}")
        best[problem] = torch.from_numpy(result.x[:n].round())
    return best.to(unary.dtype)


def by_pymaxflow(unary: Tensor, pairwise: Tensor) -> Tensor:
    """Each problem as a graph of PyMaxflow; what can be computed for the whole batch at once is."""
    import maxflow

    batch, n = unary.shape
    first, second = np.triu_indices(n, 1)
    halves = (pairwise.triu(1) / 2).double().numpy()
    capacities = halves[:, first, second]
    c = unary.double().numpy() + halves.sum(1) + halves.sum(2)
    sources, sinks = np.maximum(c, 0), np.maximum(-c, 0)
    z = np.empty((batch, n))
    for problem in range(batch):
        graph = maxflow.Graph[float](n, len(first))
        nodes = graph.add_nodes(n)
        graph.add_edges(first, second, capacities[problem], capacities[problem])
        graph.add_grid_tedges(nodes, sources[problem], sinks[problem])
        graph.maxflow()
        z[problem] = ~graph.get_grid_segments(nodes)
    return torch.from_numpy(z).to(unary.dtype)


# ---------------------------------------------------------------------------------------------------------- the contest


@dataclass
class Contest:
    """One kind of problem and who solves it; the peer is whom the others are compared with."""

    title: str
    kind: str
    bits: int
    solvers: dict[str, Solver]
    peer: str | None = None
    peer_problems: int | None = None


def contests(settings: BenchSolvers) -> tuple[list[Contest], dict[str, str]]:
    """All contests, and who is left out of them and why."""
    skipped = {}
    attractive: dict[str, Solver] = {"pairwise_by_max_flow": pairwise_by_max_flow}
    peer = None
    if importlib.util.find_spec("maxflow") is None:
        skipped["PyMaxflow"] = "not installed: pip install 'argrad[maxflow]'"
    else:
        peer = "PyMaxflow, loop"
        attractive[peer] = by_pymaxflow
    general: dict[str, Solver] = {
        "solve_pairwise": solve_pairwise,
        "pairwise_by_branch_and_bound": pairwise_by_branch_and_bound,
        "pairwise_by_enumeration": pairwise_by_enumeration,
        "HiGHS, loop": by_highs,
    }
    beyond: dict[str, Solver] = {"pairwise_by_branch_and_bound": pairwise_by_branch_and_bound}
    highs = min(settings.highs_problems, settings.batch)
    return [
        Contest("any sign, 15 bits", "general", 15, general, "HiGHS, loop", highs),
        Contest("any sign, 30 bits", "general", 30, beyond),
        Contest("attractive, 15 bits", "attractive", 15, attractive, peer),
        Contest("attractive, 50 bits", "attractive", 50, attractive, peer),
    ], skipped


def compete(contest: Contest, settings: BenchSolvers) -> list[dict[str, Any]]:
    """One row for each solver of a contest."""
    generator = torch.Generator().manual_seed(settings.seed)
    order = random.Random(settings.seed)
    seconds: dict[str, list[float]] = {name: [] for name in contest.solvers}
    worst = dict.fromkeys(contest.solvers, 0.0)
    proven = solved = 0
    tiny = make_problems(contest.kind, 2, contest.bits, generator)
    for solve in contest.solvers.values():
        solve(*tiny)  # compiles what is compiled on first use
    collecting = gc.isenabled()
    gc.disable()  # as timeit does; what has piled up is collected between the rounds
    try:
        for _ in range(settings.rounds):
            gc.collect()
            unary, pairwise = make_problems(contest.kind, settings.batch, contest.bits, generator)
            best = prove_pairwise(unary, pairwise)
            proven, solved = proven + int(best.proven.sum()), solved + settings.batch
            for name in order.sample(list(contest.solvers), len(contest.solvers)):
                number = contest.peer_problems if name == contest.peer else None
                some = slice(number or settings.batch)
                start = time.perf_counter()
                z = contest.solvers[name](unary[some], pairwise[some])
                taken = (time.perf_counter() - start) * settings.batch / (number or settings.batch)
                seconds[name].append(taken)
                found = pairwise_score(unary[some].double(), pairwise[some].double(), z.double())
                worst[name] = max(worst[name], float((best.value[some] - found).max()))
    finally:
        if collecting:
            gc.enable()
    rows = []
    for name, own in seconds.items():
        row: dict[str, Any] = {
            "contest": contest.title,
            "bits": contest.bits,
            "name": name,
            "milliseconds": {key: scaled(value) for key, value in summarise(own, settings.seed).items()},
            "milliseconds_per_problem": 1e3 * statistics.median(own) / settings.batch,
            "below_optimum": worst[name],
        }
        if name != contest.peer:
            row["optima_proven"] = f"{proven} of {solved}"
        if contest.peer is not None and name != contest.peer:
            faster = [b / a for a, b in zip(own, seconds[contest.peer], strict=True)]
            row |= {"peer": contest.peer, "times_faster": summarise(faster, settings.seed)}
        rows.append(row)
    return rows


def scaled(seconds: float | list[float]) -> float | list[float]:
    """Milliseconds."""
    return [1e3 * value for value in seconds] if isinstance(seconds, list) else 1e3 * seconds


def versions() -> dict[str, str]:
    """Of the packages that take part."""
    found = {}
    for package in ("numba", "scipy", "PyMaxflow"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def run(settings: BenchSolvers, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """Time everyone, and return a result that can be written as JSON.

    Each row has the contest, the solver's name, the milliseconds for a batch (median over rounds, quartiles, bootstrap
    interval of the median), the median milliseconds for one problem, by how much its worst answer missed the optimum,
    and, but for peers, of how many problems that optimum was proven and how many times faster than the peer it is.
    """
    threads = torch.get_num_threads()
    rows: list[dict[str, Any]] = []
    try:
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        used = torch.get_num_threads()
        entered, skipped = contests(settings)
        for contest in entered:
            progress(f"{contest.title}: {settings.rounds} rounds")
            rows += compete(contest, settings)
    finally:
        torch.set_num_threads(threads)
    return {
        **provenance(command_line("argrad bench solvers", settings)),
        "packages": versions(),
        "settings": asdict(settings),
        "threads": used,
        "rows": rows,
        "skipped": skipped,
    }


def format_table(result: dict[str, Any]) -> str:
    """The result as a person reads it."""
    settings = result["settings"]
    lines = [
        f"Batches of {settings['batch']} problems on {result['hardware']}, {result['threads']} threads, "
        f"{result['software']}.",
        f"Medians of {settings['rounds']} rounds [quartiles]. {highs_in_words(settings)}",
    ]
    for title in dict.fromkeys(row["contest"] for row in result["rows"]):
        lines += ["", f"{title:<32}{'ms a batch':>12}  {'[quartiles]':<22}{'ms a problem':>12}  than the peer"]
        for row in result["rows"]:
            if row["contest"] == title:
                low, high = row["milliseconds"]["quartiles"]
                faster = f"{row['times_faster']['median']:.1f} × faster" if "times_faster" in row else ""
                lines.append(
                    f"{row['name']:<32}{row['milliseconds']['median']:>12.2f}  {f'[{low:.2f}, {high:.2f}]':<22}"
                    f"{row['milliseconds_per_problem']:>12.4f}  {faster}".rstrip()
                )
    lines += [f"left out: {name} ({reason})" for name, reason in result["skipped"].items()]
    return "\n".join(lines)


def highs_in_words(settings: dict[str, Any]) -> str:
    """How much of a batch HiGHS solves."""
    batch, number = settings["batch"], min(settings["highs_problems"], settings["batch"])
    if number == batch:
        return f"HiGHS solves all {batch} problems of a batch, one after the other."
    return (
        f"HiGHS solves {number} of the {batch} problems of a batch, one after the other; its time is that, "
        f"times {batch / number:.3g}."
    )


def markdown(result: dict[str, Any]) -> str:
    """The times as a table for the documentation."""
    lines = [
        f"| Problems | Solver | ms for {result['settings']['batch']} [quartiles] | times faster than the peer |",
        "|---|---|---|---|",
    ]
    for row in result["rows"]:
        low, high = row["milliseconds"]["quartiles"]
        faster = f"{row['times_faster']['median']:.3g}" if "times_faster" in row else ""
        times = f"{row['milliseconds']['median']:.3g} [{low:.3g}, {high:.3g}]"
        lines.append(f"| {row['contest']} | `{row['name']}` | {times} | {faster} |")
    words = highs_in_words(result["settings"])
    if "PyMaxflow" not in result["skipped"]:
        words += " PyMaxflow solves all of them, one after the other."
    return "\n".join([*lines, "", f"Medians of {result['settings']['rounds']} rounds. {words}"])
