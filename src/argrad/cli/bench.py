"""`argrad bench`: benchmarks, whose settings live with them and take a while to import."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from argrad.cli.out import Out

__all__ = ["BENCHMARKS", "Bench", "benchmark"]

BENCHMARKS = {
    "estimators": ("argrad.experiments.bench_estimators", "BenchEstimators"),
    "solvers": ("argrad.experiments.bench_solvers", "BenchSolvers"),
    "training": ("argrad.experiments.bench_training", "BenchTraining"),
    "epsilon": ("argrad.experiments.auto_epsilon", "AutoEpsilon"),
}
"""Each is a module with a dataclass of settings, ``run(settings, progress)`` and ``format_table(result)``."""


@dataclass
class Bench:
    """Time training steps against plain PyTorch (estimators, training), solvers against others, or try out ε (epsilon).

    `argrad bench estimators --help` lists the settings.
    """

    what: Positional[Literal["estimators", "solvers", "training", "epsilon"]]
    """What to measure."""

    def run(self, out: Out) -> int:
        """Never reached: main() reads the settings of a benchmark with the benchmark's own dataclass."""
        raise NotImplementedError


def benchmark(name: str) -> type[Any]:
    """The command `bench NAME`."""
    module, settings_name = BENCHMARKS[name]
    bench = import_module(module)
    kind = getattr(bench, settings_name)

    @dataclass
    class Benchmark:
        settings: kind = field(default_factory=kind)  # type: ignore[valid-type]
        output: Path | None = None
        """File to write the JSON to as well."""
        json: bool = False
        """Print one line of JSON at the end, and all else to standard error."""

        def run(self, out: Out) -> int:
            if self.output is not None and not self.output.expanduser().parent.is_dir():
                raise ValueError(f"the folder of --output {self.output} does not exist; make it first")
            result = bench.run(self.settings, progress=out.progress)
            out.result(bench.format_table(result))
            if self.output is not None:
                from argrad.training.files import write_json

                write_json(self.output.expanduser(), result)
            out.machine(result)
            return 0

    Benchmark.__annotations__.update(settings=kind, output=Path | None, json=bool)
    Benchmark.__doc__ = (bench.__doc__ or "").strip()
    return Benchmark
