"""`argrad diagnose`: every estimator measured on one problem."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from argrad.cli.out import Out, settings_of, use_threads

if TYPE_CHECKING:
    from argrad.diagnostics import Diagnosis
    from argrad.experiments.problems import Problem

__all__ = ["Diagnose"]

OptionalNumber = Annotated[int | None, arg(metavar="INT", help_behavior_hint="(optional)")]


@dataclass
class Diagnose:
    """Measure bias, variance and time of every estimator on one problem, and recommend one.

    The problem is a small discrete auto-encoder on handwritten digits, random costs, or your own: an .npz file that
    holds `logits` and `costs`, both [examples, k], written by numpy.savez("mine.npz", logits=..., costs=...).

    For example,
      argrad diagnose                                 digits, one of 10 codes
      argrad diagnose --values 50                     digits, one of 50 codes
      argrad diagnose --bits 12                       digits, 12 bits
      argrad diagnose --problem mine.npz --json       your own, for a script

    Writes diagnosis.json and diagnosis.png into the output folder.
    """

    problem: str = "digits"
    """digits, toy, or the path of an .npz file."""
    values: OptionalNumber = None
    """Values k of the one categorical variable (10 unless given)."""
    bits: OptionalNumber = None
    """Number of bits, in place of a categorical variable."""
    samples: int = 4000
    """Draws of every estimator's gradient."""
    train_steps: int = 500
    """Training steps of estimators that learn or adapt, before they are measured."""
    horizon: int = 100
    """Compare the errors of means over the time of this many calls of the fastest estimator."""
    seed: int = 0
    """Decides the problem's random parts and all noise."""
    every: bool = False
    """Show every setting of ε and τ in the table, not only the best."""
    threads: int = 1
    """Threads that PyTorch may use; more pay off on big problems only."""
    output: Path = Path("runs/diagnosis")
    """Folder for diagnosis.json and diagnosis.png."""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """Diagnose, show, write."""
        use_threads(self.threads)
        problem = self.make_problem(out)
        diagnosis = run_diagnosis(problem, self.samples, self.train_steps, self.horizon, self.seed, out)
        record = {"settings": settings_of(self), "problem": problem.description, **diagnosis.to_dict()}
        out.result(diagnosis.table(every=self.every))
        out.result(f"\nWritten: {', '.join(write_diagnosis(diagnosis, record, self.output))}")
        out.machine(record)
        return 0

    def make_problem(self, out: Out) -> Problem:
        """The problem that the settings describe."""
        if self.values is not None and self.bits is not None:
            raise ValueError(f"give --values {self.values} or --bits {self.bits}, not both")
        chosen = {name: value for name, value in (("values", self.values), ("bits", self.bits)) if value is not None}
        if self.problem == "digits":
            from argrad.experiments.digits_problem import DigitsProblem, make_problem

            out.progress("training a small auto-encoder on the digits …")
            return make_problem(DigitsProblem(**chosen, seed=self.seed))[0]
        from argrad.experiments.problems import read_problem, toy_problem

        if self.problem == "toy":
            return toy_problem(**chosen, seed=self.seed)
        if chosen:
            raise ValueError(f"--{next(iter(chosen))} is for digits and toy; the codes of {self.problem} are its own")
        return read_problem(Path(self.problem).expanduser())


def run_diagnosis(problem: Problem, samples: int, train_steps: int, horizon: int, seed: int, out: Out) -> Diagnosis:
    """Diagnose a problem and show how far it is."""
    import torch

    from argrad.diagnostics import diagnose

    generator = torch.Generator().manual_seed(seed)
    diagnosis = diagnose(
        problem.latent,
        problem.cost,
        samples,
        train_steps=train_steps,
        horizon=horizon,
        generator=generator,
        progress=out.progress,
    )
    out.say(f"Problem: {problem.description}")
    return diagnosis


def write_diagnosis(diagnosis: Diagnosis, record: dict[str, Any], folder: Path) -> list[str]:
    """Write diagnosis.json and diagnosis.png; returns their paths."""
    folder = folder.expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    text, picture = folder / "diagnosis.json", folder / "diagnosis.png"
    text.write_text(json.dumps(record, ensure_ascii=False, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    diagnosis.plot(picture)
    return [str(text), str(picture)]
