"""The problems of the estimator lab: built in, from a run, or from a visitor's file, each studied once for all."""

from __future__ import annotations

import math
import struct
import threading
import tokenize
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from argrad.app.library import Library
from argrad.costs import TableCost, all_costs
from argrad.diagnostics import ClosedForm, diagnose
from argrad.diagnostics.candidates import why_not
from argrad.diagnostics.measure import draw
from argrad.estimators import Exact
from argrad.experiments.digits_problem import DigitsProblem, make_problem
from argrad.experiments.problems import Problem, read_problem, toy_problem
from argrad.latents import Bits, Categorical
from argrad.models.discrete_vae.run import load_run

__all__ = ["SOURCES", "Choice", "Problems", "Studied", "read_upload"]

RANDOM, RANDOM_BITS = "Random costs, one of k values", "Random quadratic cost of n bits"
EARLY, TRAINED, DIGIT_BITS = "Digits, early in training", "Digits, trained", "Digits with n bits, trained"
FROM_RUN, FROM_FILE = "From a run", "From your own file"
SOURCES = (RANDOM, RANDOM_BITS, EARLY, TRAINED, DIGIT_BITS, FROM_RUN, FROM_FILE)
"""What a visitor can choose."""
STEPS = {EARLY: 20, TRAINED: 500, DIGIT_BITS: 500}
"""Training steps of the small auto-encoder; at the last of them its loss hardly falls any more."""

EXAMPLES = 16
"""Examples in a problem: gradients of all of them are measured together."""
PAIRS = 400_000
"""Most examples times k²: the closed form looks at every pair of codes."""
PLAYED_STATES = 2**12
"""Most structures whose costs are kept for the step-by-step picture."""
LARGEST_FILE = 8 * 2**20
"""Bytes of a visitor's file, packed and unpacked."""
MOST_VALUES = 1000
"""Largest k of a visitor's file."""
DAMAGED = (
    EOFError, MemoryError, OSError, OverflowError, RuntimeError, SyntaxError, TypeError, KeyError,
    struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What the readers of zip files and of the heads of arrays raise when bytes are wrong."""
KEPT = 24
"""How many problems are kept in memory."""


@final
@dataclass(frozen=True)
class Choice:
    """What a visitor chose.

    Args:
        source: one of :data:`SOURCES`.
        values: k of one categorical variable.
        bits: n, where the problem is made of bits.
        seed: of the random parts.
        run: the name of a run.
        file: the path of an uploaded file.
    """

    source: str = RANDOM
    values: int = 10
    bits: int = 6
    seed: int = 0
    run: str | None = None
    file: str | None = None

    @property
    def relevant(self) -> Choice:
        """The same without what its source does not look at, so that equal problems are equal choices."""
        if self.source == FROM_RUN:
            return Choice(self.source, run=self.run)
        if self.source == FROM_FILE:
            return Choice(self.source, file=self.file)
        chosen = Choice(self.source, seed=self.seed)
        if self.source in (RANDOM_BITS, DIGIT_BITS):
            return replace(chosen, bits=self.bits)
        return replace(chosen, values=self.values)


@final
@dataclass(frozen=True)
class Studied:
    """A problem and what is known of it without sampling.

    Args:
        problem: a latent with scores ``[examples, *event]`` and its cost.
        gradient: the exact one for the scores, ``[examples, *event]``, or None where it cannot be enumerated.
        costs: of every structure, ``[examples, S]``, where there are few, and one categorical variable or bits.
        closed_form: Direct's bias and standard deviation at every ε, for one categorical variable.
        images: of the examples, in [0, 1], where the problem is made of images.
    """

    problem: Problem
    gradient: Tensor | None
    costs: Tensor | None
    closed_form: ClosedForm | None
    images: NDArray[Any] | None = None

    @property
    def norm(self) -> float:
        """Of the exact gradient; 1 where it is zero or not known, so that numbers can be divided by it."""
        return (self.gradient.norm().item() if self.gradient is not None else 0.0) or 1.0

    @property
    def examples(self) -> int:
        """How many."""
        return len(self.problem.latent.scores)


@final
class Problems:
    """Makes problems and keeps those made last, for all visitors together.

    Args:
        library: where runs come from.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self._kept: OrderedDict[tuple[Any, ...], Studied] = OrderedDict()
        self._looking = threading.Lock()
        self._making = threading.Lock()

    def find(self, choice: Choice) -> Studied:
        """The problem that somebody chose; an error that can be shown where it cannot be made."""
        key, make = self._recipe(choice.relevant)
        found = self._look_up(key)
        if found is not None:
            return found
        # One at a time: two visitors who want the same digits train them once, and PyTorch's own generator, from which
        # first weights come, is one for all.
        with self._making:
            found = self._look_up(key) or make()
        with self._looking:
            self._kept[key] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found

    def _look_up(self, key: tuple[Any, ...]) -> Studied | None:
        with self._looking:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _recipe(self, choice: Choice) -> tuple[tuple[Any, ...], Callable[[], Studied]]:
        """What tells the problem from others, and how to make it."""
        if choice.source == FROM_RUN:
            run = self.library.find(choice.run, "vae")
            changed = run.path.joinpath("model.safetensors").stat().st_mtime_ns
            return (run.path, changed), lambda: study_run(self.library.load(run, load_run), run.name)
        if choice.source == FROM_FILE:
            if not choice.file:
                raise ValueError("choose an .npz file with logits and costs first")
            path = Path(choice.file)
            return (path, path.stat().st_mtime_ns), lambda: study(read_upload(path))
        if choice.source == RANDOM:
            return (choice,), lambda: study(toy_problem(choice.values, examples=EXAMPLES, seed=choice.seed))
        if choice.source == RANDOM_BITS:
            return (choice,), lambda: study(toy_problem(bits=choice.bits, examples=EXAMPLES, seed=choice.seed))
        if choice.source in STEPS:
            return (choice,), lambda: study_digits(choice)
        raise ValueError(f"there is no problem {choice.source!r}; choose one of {', '.join(SOURCES)}")


def study(problem: Problem, images: NDArray[Any] | None = None) -> Studied:
    """Find out about a problem what needs no sampling."""
    latent, cost = problem.latent, problem.cost
    gradient = costs = closed_form = None
    if why_not(Exact(), latent, cost) is None:
        generator = torch.Generator().manual_seed(0)
        with torch.enable_grad():
            gradient = draw(Exact(), latent, cost, 1, generator).reshape(latent.scores.shape)
    if (latent.is_one_of_k or isinstance(latent, Bits)) and latent.num_states <= PLAYED_STATES:
        with torch.no_grad():
            costs = all_costs(cost, latent)
    if latent.is_one_of_k:
        closed_form = diagnose(latent, cost, 100, estimators=[Exact()]).closed_form
    return Studied(problem, gradient, costs, closed_form, images)


def study_digits(choice: Choice) -> Studied:
    """The small auto-encoder on digits after some training."""
    bits = choice.bits if choice.source == DIGIT_BITS else None
    settings = DigitsProblem(
        values=choice.values, bits=bits, steps=STEPS[choice.source], examples=EXAMPLES, seed=choice.seed
    )
    problem, trained = make_problem(settings)
    return study(problem, trained.test_images[:EXAMPLES].reshape(-1, 8, 8).numpy())


def study_run(loaded: tuple[Any, Any, Any], name: str) -> Studied:
    """A trained VAE at its trained weights, and some of its test images.

    Args:
        loaded: what :func:`argrad.models.discrete_vae.run.load_run` gives.
        name: of the run.
    """
    module, settings, images = loaded
    if len(images.test) == 0:
        raise ValueError(f"the data of {name} has no test images to measure on; choose another run")
    few = examples_for(module.values) if module.variables == 1 else EXAMPLES
    x = images.values(images.test[:few], torch.Generator().manual_seed(0))
    with torch.no_grad():
        latent = module.posterior(x)
    one = "one of {k} codes" if module.variables == 1 else "{n} variables, each one of {k}"
    what = "{n} bits" if module.latent == "bits" else one
    described = what.format(n=module.variables, k=module.values)
    words = f"{name}: {settings.data}, {described}, trained with {settings.estimator}; {len(x)} test images"
    return study(Problem(latent, module.reconstruction(x), words), x.numpy() if x.dim() in (3, 4) else None)


def examples_for(values: int) -> int:
    """How many examples of k values are looked at."""
    return max(1, min(EXAMPLES, PAIRS // values**2))


def read_upload(path: Path) -> Problem:
    """The problem in a visitor's file, as ``argrad diagnose --problem`` takes it, within limits.

    Raises:
        ValueError: it is too large, or not such a file; the message names the file and not where the server keeps it.
    """
    unreadable = f"{path.name} cannot be read; write it again with numpy.savez"
    try:
        check_size(path)
        problem = read_problem(path)
    except ValueError as error:
        words = str(error).replace(str(path), path.name)
        raise ValueError(words if words.startswith(path.name) else unreadable) from error
    except DAMAGED as error:
        raise ValueError(unreadable) from error
    scores, cost = problem.latent.scores, problem.cost
    assert isinstance(cost, TableCost)
    number, values = scores.shape
    if values > MOST_VALUES:
        raise ValueError(f"{path.name} has {values:,} codes; the lab takes at most {MOST_VALUES:,}")
    few = min(number, examples_for(values))
    which = f"its first {few} of {number:,} examples" if few < number else f"{few} example{'s' * (few != 1)}"
    words = f"{path.name}, one of {values} codes; {which}"
    return Problem(Categorical(scores[:few]), TableCost(cost.values[:few]), words)


def check_size(path: Path) -> None:
    """Refuse a file that is large, or says of itself that it would be once unpacked."""
    limit = f"the lab takes at most {LARGEST_FILE // 2**20} MiB; send fewer examples"
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise ValueError(f"{path.name} has {size / 2**20:.0f} MiB; {limit}")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path.name} is not an .npz file of plain numbers; write one with numpy.savez")
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        if unpacked > LARGEST_FILE:
            raise ValueError(f"{path.name} has {unpacked / 2**20:.0f} MiB once unpacked; {limit}")
        for member in members:
            with archive.open(member) as stream:
                announced = announced_bytes(stream)
            if announced > LARGEST_FILE:
                raise ValueError(f"{path.name} says that {member.filename} has {announced / 2**20:.0f} MiB; {limit}")


def announced_bytes(stream: Any) -> int:
    """The size of the array that the head of an .npy file announces; 0 where it is none, which the reader will say."""
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    except (ValueError, EOFError, SyntaxError, tokenize.TokenError):
        return 0
    return int(math.prod(shape) * dtype.itemsize)
