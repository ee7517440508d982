"""Run the long experiments in parts, on machines that have the source, torch and numpy, and nothing else of argrad's.

python benchmarks/parts.py pack images.npz                           # here: the images, rounded, eight pixels a byte
python benchmarks/parts.py run images.npz OUT table1:mnist figure6   # there: each part writes OUT/PART.json
python benchmarks/parts.py assemble OUT                              # here: results/NAME.json from all its parts

A part that was written is not run again. A part that builds on another (figures 2 and 6 on the curves of table1, the
rows of figure3, figure3:0 and so on, on figure3:trials) reads it from OUT. Results name the machine and the commit that
ran the parts; where there is no git, `run` takes the commit from the file COMMIT beside the sources.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from argrad.experiments import epsilon_learning_rate, figure2, figure3, step_profile, table1  # noqa: E402
from argrad.experiments.provenance import command_line, provenance  # noqa: E402

DATASETS = ("mnist", "fashion-mnist", "omniglot")
Images = tuple[Tensor, Tensor, Tensor]


class Machine:
    """The images, the device, and the folder of parts."""

    def __init__(self, packed: Path, folder: Path) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.packed, self.folder = np.load(packed), folder

    def images(self, dataset: str) -> Images:
        """Train, validation and test bits ``[N, 784]`` on the device."""
        train, validation, test = (
            torch.from_numpy(np.unpackbits(self.packed[f"{dataset}/{part}"], axis=1)).to(self.device)
            for part in ("train", "validation", "test")
        )
        return train, validation, test

    def part(self, name: str) -> Any:
        """One that was run before."""
        return read_part(self.folder, name)["part"]


def read_part(folder: Path, name: str) -> dict[str, Any]:
    """A part and where it was run."""
    part: dict[str, Any] = json.loads((folder / f"{name.replace(':', '-')}.json").read_text())
    return part


def run_table1(machine: Machine, dataset: str) -> Any:
    """The rows of a data set."""
    return table1.run_dataset(dataset, *machine.images(dataset), table1.Table1())


def table1_of(parts: Callable[[str], Any]) -> dict[str, Any]:
    """The table from the parts of its data sets."""
    settings = table1.Table1()
    found = {dataset: parts(f"table1:{dataset}") for dataset in DATASETS}
    return table1.assemble(found, settings, command_line("argrad reproduce table1", settings))


def run_figure2(machine: Machine, k: str) -> Any:
    """Step costs, and the curves of table1."""
    table = machine.folder / "table1-assembled.json"
    table.write_text(json.dumps(table1_of(machine.part)))
    values = tuple(map(int, k.split(",")))
    names = ("mnist",) if values == (10,) else DATASETS
    settings = figure2.Figure2(k=values, datasets=names if values != (10,) else (), table1=str(table))
    return figure2.run_figure2({name: machine.images(name) for name in names}, settings)


def run_figure3(machine: Machine, what: str) -> Any:
    """`steps`, `trials`, or the row with the number given."""
    images, settings = machine.images("fashion-mnist"), figure3.Figure3()
    if what == "steps":
        return figure3.run_steps(images, settings)
    if what == "trials":
        return [figure3.run_tuning(method, encoder, images, settings) for method, encoder in figure3.ROWS]
    tuned = machine.part("figure3:trials")[int(what)]
    return figure3.run_row(*figure3.ROWS[int(what)], tuned, images, settings)


def run_epsilon_learning_rate(machine: Machine, dataset: str) -> Any:
    """The heat map."""
    settings = epsilon_learning_rate.EpsilonLearningRate()
    return epsilon_learning_rate.run_epsilon_learning_rate(*machine.images(dataset), settings)


RUN: dict[str, Callable[[Machine, str], Any]] = {
    "table1": run_table1,
    "figure2": lambda machine, _: run_figure2(machine, "10"),
    "figure6": lambda machine, _: run_figure2(machine, "20,30,40,50"),
    "figure3": run_figure3,
    "epsilon-learning-rate": lambda machine, _: run_epsilon_learning_rate(machine, "mnist"),
    "step-profile": lambda machine, _: step_profile.run(step_profile.StepProfile()),
}


def pack(output: Path) -> None:
    """Write the images of all data sets."""
    from argrad.experiments.paper_model import load_bits

    arrays = {}
    for dataset in DATASETS:
        for part, bits in zip(("train", "validation", "test"), load_bits(dataset, torch.device("cpu")), strict=True):
            arrays[f"{dataset}/{part}"] = np.packbits(bits.numpy(), axis=1)
    np.savez_compressed(output, **arrays)


def run(packed: Path, folder: Path, names: list[str]) -> None:
    """Run the parts that are not there yet."""
    machine = Machine(packed, folder)
    source = ROOT / "COMMIT"
    for name in names:
        path = folder / f"{name.replace(':', '-')}.json"
        if path.exists():
            continue
        kind, _, argument = name.partition(":")
        part = RUN[kind](machine, argument)
        where = provenance("")
        if source.exists():
            where["commit"] = source.read_text().strip()
        path.write_text(json.dumps({"where": where, "part": part}))
        print(f"{name}: done", flush=True)


def assemble(folder: Path) -> None:
    """Every result whose parts are all there, into results/."""
    from argrad.training.files import write_json

    for name, result in results_of(folder).items():
        write_json(ROOT / "results" / f"{name}.json", result)
        print(f"results/{name}.json")


def results_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Results by name, each with the machine that ran it."""
    there = {path.stem for path in folder.glob("*.json")}
    found: dict[str, dict[str, Any]] = {}

    def part(name: str) -> Any:
        return read_part(folder, name)["part"]

    def add(name: str, result: dict[str, Any], source: str) -> None:
        where = {key: value for key, value in read_part(folder, source)["where"].items() if key != "command"}
        found[name] = {**result, **where}

    if {f"table1-{dataset}" for dataset in DATASETS} <= there:
        add("table1", table1_of(part), f"table1:{DATASETS[0]}")
    for name in ("figure2", "figure6", "epsilon-learning-rate", "step-profile"):
        if name in there:
            result = part(name)
            result["command"] = result["command"].replace(str(folder / "table1-assembled.json"), "results/table1.json")
            add(name, result, name)
    numbers = range(len(figure3.ROWS))
    if {f"figure3-{word}" for word in ("steps", "trials", *numbers)} <= there:
        settings = figure3.Figure3()
        rows = [row for number in numbers for row in part(f"figure3:{number}")]
        steps, command = [part("figure3:steps")], command_line("argrad reproduce figure3", settings)
        add("figure3", figure3.assemble(part("figure3:trials"), rows, steps, settings, command), "figure3:trials")
    return found


def main(words: list[str]) -> int:
    """Read the command."""
    if words[:1] == ["pack"] and len(words) == 2:
        pack(Path(words[1]))
    elif words[:1] == ["run"] and len(words) > 3 and all(word.partition(":")[0] in RUN for word in words[3:]):
        Path(words[2]).mkdir(parents=True, exist_ok=True)
        run(Path(words[1]), Path(words[2]), words[3:])
    elif words[:1] == ["assemble"] and len(words) == 2:
        assemble(Path(words[1]))
    else:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
