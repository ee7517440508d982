"""The command line. Each command is a dataclass: its fields are the flags, and their docstrings the help."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Union

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

from argrad._version import __version__
from argrad.cli.app import App
from argrad.cli.bench import BENCHMARKS, Bench, benchmark
from argrad.cli.complete import ACTIONS as COMPLETION_ACTIONS
from argrad.cli.complete import Complete, complete_command
from argrad.cli.data import Data
from argrad.cli.demo import Demo
from argrad.cli.diagnose import Diagnose
from argrad.cli.out import Out
from argrad.cli.reproduce import EXPERIMENTS, Reproduce, experiment
from argrad.cli.segment import STAGES, Segment, segment_command
from argrad.cli.tokenize import ACTIONS as TOKENIZER_ACTIONS
from argrad.cli.tokenize import Tokenize, tokenize_command
from argrad.cli.train import Evaluate, Sample, train_command
from argrad.cli.write import WRITING, Write, write_command

__all__ = ["main"]

DESCRIPTION = """Learning through discrete choices: gradients of expected costs, and models that are built on them.

Start with
  argrad demo                             three trainings and every estimator on handwritten digits, within a minute
  argrad train --data my-pictures/        a discrete VAE on your own images, with a report
  argrad diagnose --problem mine.npz      which estimator suits your own problem
  argrad reproduce figure1 --quick        the paper's tables and figures, quickly or in full
  argrad bench estimators                 what a training step costs with each
  argrad segment --help                   label medical scans with shapes learnt from other people's label maps
  argrad tokenize --help                  images to grids of codes and back, and new images from a prior over codes
  argrad complete --help                  fill the hole in a picture in several ways
  argrad write --help                     learn to write lines such as those of a text file
  argrad app                              look inside trained models in a browser
  argrad data list                        data sets, and which are on this machine

`argrad COMMAND --help` explains a command, `argrad --version` prints the version. With --json the last and only line on
standard output is for machines; everything else goes to standard error."""


@dataclass
class Train:
    """Train a discrete VAE on images and write a report. `argrad train --help` lists the settings."""

    def run(self, out: Out) -> int:
        """Never reached: main() reads the settings with the model's own dataclass."""
        raise NotImplementedError


COMMANDS: dict[str, type[Any]] = {
    "demo": Demo,
    "train": Train,
    "evaluate": Evaluate,
    "sample": Sample,
    "diagnose": Diagnose,
    "reproduce": Reproduce,
    "segment": Segment,
    "tokenize": Tokenize,
    "complete": Complete,
    "write": Write,
    "bench": Bench,
    "data": Data,
    "app": App,
}

ACTIONS: dict[str, tuple[Container[str], Callable[[str, Sequence[str]], type[Any]]]] = {
    "bench": (BENCHMARKS, lambda name, arguments: benchmark(name)),
    "reproduce": (EXPERIMENTS, lambda name, arguments: experiment(name)),
    "segment": (STAGES, segment_command),
    "tokenize": (TOKENIZER_ACTIONS, tokenize_command),
    "complete": (COMPLETION_ACTIONS, complete_command),
    "write": (WRITING, write_command),
}
"""Of commands that are followed by a second word: those words, and the settings that each takes, given the
arguments after it, which may name a run to resume."""


def any_command(*, brief: bool) -> Any:
    """The type that is one of the commands; brief, each described by the first line of its docstring."""
    described = [
        Annotated[kind, subcommand(name, description=(kind.__doc__ or "").split("\n")[0] if brief else None)]
        for name, kind in COMMANDS.items()
    ]
    return Union[tuple(described)]  # noqa: UP007


def parse(arguments: list[str]) -> Any:
    """The command that the arguments describe; wrong ones end the program with one line and exit code 2."""
    read: Callable[..., Any] = tyro.cli
    options: dict[str, Any] = {"config": (OmitArgPrefixes, OmitSubcommandPrefixes, FlagCreatePairsOff)}
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            if arguments[:1] == ["train"]:
                return read(train_command(arguments[1:]), prog="argrad train", args=arguments[1:], **options)
            if len(arguments) > 1 and arguments[1] in ACTIONS.get(arguments[0], ((), None))[0]:
                command, action = arguments[:2]
                settings = ACTIONS[command][1](action, arguments[2:])
                return read(settings, prog=f"argrad {command} {action}", args=arguments[2:], **options)
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
        if text.strip("-+|"):
            paragraphs[-1].append(text)
        else:
            paragraphs.append([])
    noise = ("Argument helptext", "Got errors")
    kept = [" ".join(lines).rstrip(".") for lines in paragraphs if lines and not lines[0].startswith(noise)]
    return re.sub(r"For full helptext, (run:?|see) ", "see ", "; ".join(kept) or " ".join(box.split()))


def check_seeds(settings: Any) -> None:
    """Raise a ValueError where a seed is none that PyTorch takes; those of splits are looked at where they are used."""
    for name, value in vars(settings).items():
        if name == "settings":
            check_seeds(value)
        elif name.endswith("seed") and name != "split_seed" and not -(2**63) <= value < 2**64:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} must be a whole number from 0 to {2**64 - 1}, got {value}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    0: done. 1: a check failed. 2: an error of the user's, said in one line. 130: interrupted. A bug shows its
    traceback.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments == ["--version"]:
        print(f"argrad {__version__}")
        return 0
    try:
        command = parse(arguments)
        check_seeds(command)
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
