"""The command line. Each command is a dataclass: its fields are the flags, and their docstrings the help."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, OmitSubcommandPrefixes, Positional, arg, subcommand

from argrad._version import __version__

if TYPE_CHECKING:
    from argrad.diagnostics import Diagnosis
    from argrad.experiments.problems import Problem

__all__ = ["main"]

DESCRIPTION = """Gradients of expected costs when the thing sampled is a discrete choice.

Start with
  argrad demo                             every estimator on handwritten digits, in half a minute
  argrad diagnose --problem mine.npz      which estimator suits your own problem
  argrad bench estimators                 what a training step costs with each
  argrad data list                        data sets, and which are on this machine

`argrad COMMAND --help` explains a command, `argrad --version` prints the version. With --json the last and only line on
standard output is for machines; everything else goes to standard error."""

OptionalNumber = Annotated[int | None, arg(metavar="INT", help_behavior_hint="(optional)")]


class Out:
    """Where a command's words go: results to standard output, or with ``--json`` one line of JSON in their place."""

    def __init__(self, *, json_only: bool) -> None:
        self.json_only = json_only
        self._live = sys.stderr.isatty()

    def say(self, text: str) -> None:
        """A line about what is going on."""
        self.clear()
        print(text, file=sys.stderr, flush=True)

    def progress(self, text: str) -> None:
        """A passing line: shown on a terminal only, each in place of the one before."""
        if self._live:
            print(f"\r\033[K{text[:100]}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the passing line."""
        if self._live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def result(self, text: str) -> None:
        """What the user asked for."""
        self.clear()
        print(text, file=sys.stderr if self.json_only else sys.stdout, flush=True)

    def machine(self, value: Any) -> None:
        """The one line of JSON, last."""
        if self.json_only:
            print(json.dumps(value, ensure_ascii=False, allow_nan=False, default=str), flush=True)


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


@dataclass
class Demo:
    """Show argrad at work on the handwritten digits that ship with scikit-learn, in about half a minute.

    Trains a small discrete auto-encoder with three estimators and compares the results, then measures bias, variance
    and time of every estimator on a half-trained one. Writes diagnosis.json and diagnosis.png into the output folder.
    """

    samples: int = 2000
    """Draws of every estimator's gradient."""
    steps: int = 800
    """Training steps with each of the three estimators."""
    train_steps: int = 300
    """Training steps of estimators that learn or adapt, before they are measured."""
    seed: int = 0
    """Decides first weights, batches and noise."""
    output: Path = Path("runs/demo")
    """Folder for diagnosis.json and diagnosis.png."""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """Train, diagnose, show, write."""
        out.say("Loading PyTorch …")
        use_threads(1)
        from argrad.estimators import Direct, Estimator, Exact, GumbelSoftmax
        from argrad.experiments.digits_problem import DigitsProblem, make_problem, train

        contestants: dict[str, Estimator] = {
            "Exact()": Exact(),
            'Direct("auto")': Direct("auto"),
            "GumbelSoftmax(0.5)": GumbelSoftmax(0.5),
        }
        out.say(f"A discrete auto-encoder on 8×8 digits, one of 10 codes per image, {self.steps} training steps each:")
        training = {}
        for name, estimator in contestants.items():
            out.progress(f"  {name} …")
            trained = train(DigitsProblem(steps=self.steps, seed=self.seed), estimator)
            training[name] = {"negative_elbo": trained.negative_elbo, "seconds": trained.seconds}
            out.result(
                f"  {name:<20} negative ELBO {trained.negative_elbo:6.2f} nats per test image, {trained.seconds:4.1f} s"
            )
        out.say("\nNow the gradients themselves, half-way through training, estimator by estimator …\n")
        problem, _ = make_problem(DigitsProblem(seed=self.seed))
        diagnosis = run_diagnosis(problem, self.samples, self.train_steps, 100, self.seed, out)
        record = {
            "settings": settings_of(self),
            "problem": problem.description,
            "training": training,
            **diagnosis.to_dict(),
        }
        out.result(diagnosis.table())
        out.result(f"\nPicture: {write_diagnosis(diagnosis, record, self.output)[-1]}")
        out.machine(record)
        return 0


@dataclass
class Bench:
    """Time training steps with every estimator against plain PyTorch.

    `argrad bench estimators --help` lists the settings.
    """

    what: Positional[Literal["estimators"]]
    """What to time."""

    def run(self, out: Out) -> int:
        """Never reached: main() reads the settings of a benchmark with the benchmark's own dataclass."""
        raise NotImplementedError


@dataclass
class ListData:
    """List the data sets that argrad knows, and which of them are on this machine."""

    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """One line for each data set."""
        from argrad.data import available

        listings = available()
        width = max(len(listing.name) for listing in listings)
        for listing in listings:
            here = "here" if listing.present else "not here" if listing.downloadable else "not here, get it by hand"
            size = f", {listing.size / 1e6:,.1f} MB" if listing.size else ""
            out.result(f"{listing.name:<{width}}  {listing.description} ({here}{size}; {listing.licence})")
        out.machine([asdict(listing) for listing in listings])
        return 0


@dataclass
class GetData:
    """Download a data set and verify it; files that are there and right are kept."""

    name: Positional[str]
    """A name from `argrad data list`."""
    mirror: Annotated[str | None, arg(metavar="URL", help_behavior_hint="(optional)")] = None
    """Address of a folder that holds the files, in place of their usual addresses."""
    replace: bool = False
    """Replace a file that is there but wrong."""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """Fetch what is missing."""
        from argrad.data import get

        def progress(file: str, done: int, total: int) -> None:
            out.progress(
                f"{file}: {done / 1e6:,.1f} of {total / 1e6:,.1f} MB" if total else f"{file}: {done / 1e6:,.1f} MB"
            )

        reports = get(self.name, mirror=self.mirror, replace=self.replace, progress=progress)
        return show_files(self.name, reports, out)


@dataclass
class CheckData:
    """Compare the files of a data set with their known hashes; exit code 1 if any is missing or wrong."""

    name: Positional[str]
    """A name from `argrad data list`."""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """One line for each file."""
        from argrad.data import check

        return show_files(self.name, check(self.name), out)


def show_files(name: str, reports: Sequence[Any], out: Out) -> int:
    """Show what is known about the files of a data set."""
    for report in reports:
        out.result(str(report))
    if not reports:
        out.result(f"{name}: comes with a package, no files of its own")
    out.machine([{**asdict(report), "ok": report.ok} for report in reports])
    return 0 if all(report.ok for report in reports) else 1


@dataclass
class Data:
    """List, download and check data sets. Nothing is downloaded unless you ask with `get`."""

    action: (
        Annotated[ListData, subcommand("list")]
        | Annotated[GetData, subcommand("get")]
        | Annotated[CheckData, subcommand("check")]
    )

    def run(self, out: Out) -> int:
        """Pass on to the action."""
        return self.action.run(out)

    @property
    def json(self) -> bool:
        """That of the action."""
        return self.action.json


COMMANDS: dict[str, type[Any]] = {"demo": Demo, "diagnose": Diagnose, "bench": Bench, "data": Data}


def any_command(*, brief: bool) -> Any:
    """The type that is one of the commands; brief, each described by the first line of its docstring."""
    described = [
        Annotated[kind, subcommand(name, description=(kind.__doc__ or "").split("\n")[0] if brief else None)]
        for name, kind in COMMANDS.items()
    ]
    return Union[tuple(described)]  # noqa: UP007


def bench_estimators() -> type[Any]:
    """The command `bench estimators`; its settings live with the benchmark, which takes a while to import."""
    from argrad.experiments import bench_estimators as bench

    @dataclass
    class BenchEstimators:
        """Time full training steps with every estimator against a plain PyTorch Gumbel-softmax loop.

        All take turns in one process; ratios are taken within a round.
        """

        settings: bench.BenchEstimators = field(default_factory=bench.BenchEstimators)
        json: bool = False
        """Print one line of JSON at the end, and all else to standard error."""

        def run(self, out: Out) -> int:
            result = bench.run(self.settings, progress=out.progress)
            out.result(bench.format_table(result))
            out.machine(result)
            return 0

    BenchEstimators.__annotations__["settings"] = bench.BenchEstimators
    return BenchEstimators


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


def use_threads(threads: int) -> None:
    """Problems this small gain nothing from threads, and lose much on a busy machine."""
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    import torch

    torch.set_num_threads(threads)


def settings_of(command: Any) -> dict[str, Any]:
    """The fields of a command as JSON has them."""
    assert is_dataclass(command)
    assert not isinstance(command, type)
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(command).items()}


def parse(arguments: Sequence[str]) -> Any:
    """The command that the arguments describe; wrong ones end the program with one line and exit code 2."""
    read: Callable[..., Any] = tyro.cli
    options: dict[str, Any] = {"config": (OmitArgPrefixes, OmitSubcommandPrefixes, FlagCreatePairsOff)}
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            if list(arguments[:2]) == ["bench", "estimators"]:
                return read(bench_estimators(), prog="argrad bench estimators", args=arguments[2:], **options)
            commands = any_command(brief=not arguments or arguments[0] not in COMMANDS)
            return read(commands, prog="argrad", description=DESCRIPTION, args=arguments, **options)
    except SystemExit as exit_:
        if exit_.code not in (None, 0):
            print(f"argrad: {one_line(message.getvalue())}", file=sys.stderr)
        raise


def one_line(box: str) -> str:
    """The substance of a framed error message: its paragraphs but for the repeated help text, on one line."""
    paragraphs: list[list[str]] = [[]]
    for line in box.splitlines():
        text = line.strip("│╭╮╰╯─ ").strip()
        if line.startswith(("╭", "╰")):
            continue
        if text:
            paragraphs[-1].append(text)
        else:
            paragraphs.append([])
    noise = ("Argument helptext", "Got errors")
    kept = [" ".join(lines).rstrip(".") for lines in paragraphs if lines and not lines[0].startswith(noise)]
    return re.sub(r"For full helptext, (run:?|see) ", "see ", "; ".join(kept) or " ".join(box.split()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    0: done. 1: a check failed. 2: an error of the user's, said in one line. 130: interrupted. A bug shows its
    traceback.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) == ["--version"]:
        print(f"argrad {__version__}")
        return 0
    try:
        command = parse(arguments)
        code: int = command.run(Out(json_only=command.json))
        return code
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 0
    except KeyboardInterrupt:
        print("\nargrad: interrupted; run the same command again to start over", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of a pipe has gone; what Python writes on its way out goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        clear = "\r\033[K" if sys.stderr.isatty() else ""
        print(f"{clear}argrad: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
