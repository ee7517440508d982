"""Run the long experiments in parts, on machines that have the source, torch and numpy, and nothing else of argrad's.

python benchmarks/parts.py pack IMAGES                           # here: the images, compressed to a third
python benchmarks/parts.py try IMAGES OUT table1:mnist figure6   # there: a minute of everything, to see that it works
python benchmarks/parts.py run IMAGES OUT table1:mnist figure6   # there: each part writes OUT/PART.json
python benchmarks/parts.py assemble OUT                          # here: results/NAME.json of what has all its parts

`try` runs parts with very small settings and few images into OUT/try, says how long each took, and goes on after one
that fails. A part that was written is not run again. A part that builds on another (figures 2 and 6 on the curves of
table1, the row figure3:0 of figure3 on figure3:trials:0) reads it from OUT. Results name the machine and the
commit that ran the parts; where there is no git, `run` takes the commit from the file COMMIT beside the sources. A
`note` put beside the commit in a part's file goes into the result. side_by_side.py runs many parts at a time. Parts of
results that are not whole yet wait in results/parts, which may be OUT.

Parts: table1:DATA, figure2, figure6, figure3:steps, figure3:trials:NUMBER, figure3:NUMBER, epsilon-learning-rate,
step-profile, table2:DATA, figure4, tokenizer:DATA, hashing:DATA:LOSS, hippocampus, whole-brain, completion:SEED (of
Fashion-MNIST: it is added to the faces in results/completion.json). Smaller parts of the same are table1:DATA:GROUP,
table2:DATA:METHOD, table2:DATA:METHOD:LABELS, tokenizer:DATA:METHOD and hashing:DATA:LOSS:METHOD. figure3:1,2,9 and
figure3:trials:1,2,9 are several parts that train side by side in one process. Hippocampus and whole brain read their
scans from $ARGRAD_DATA.
"""

from __future__ import annotations

import io
import json
import lzma
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import argrad.data  # noqa: E402
from argrad.data import Images  # noqa: E402
from argrad.experiments import completion, figure2, figure3, hashing, table1, table2, tokenizer  # noqa: E402
from argrad.experiments.paper_model import load_bits  # noqa: E402
from argrad.experiments.provenance import command_line, provenance  # noqa: E402
from argrad.training.files import write_json  # noqa: E402

DATASETS = ("mnist", "fashion-mnist", "omniglot")
GREY = ("fashion-mnist", "omniglot")
"""Packed in shades of grey; others are rounded to bits, which is all that is asked of them."""
MOST_IMAGES: int | None = None
"""Images that are loaded of each split; `try` takes few."""
ALONE = {
    "epsilon-learning-rate": ("epsilon_learning_rate", "EpsilonLearningRate"),
    "step-profile": ("step_profile", "StepProfile"),
    "figure4": ("figure4", "Figure4"),
    "hippocampus": ("hippocampus", "Hippocampus"),
    "whole-brain": ("whole_brain", "WholeBrain"),
}
"""Experiments of one part: module and settings."""
ARRAYS = [field.name for field in fields(Images) if field.name.startswith(("train", "validation", "test"))]

Part = Callable[[str], Any]
"""From the name of a part to what it wrote."""


def device() -> torch.device:
    """Where to run."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def here(command: str) -> dict[str, Any]:
    """Where a part comes from; without git, the commit is in a file."""
    known = provenance(command)
    return {**known, "commit": (ROOT / "COMMIT").read_text().strip()} if (ROOT / "COMMIT").exists() else known


def load_packed(folder: Path, name: str, *, binarize: Literal["round", "none"] = "round") -> Images:
    """What `argrad.data.load` gives, from packed arrays."""
    packed = np.load(io.BytesIO(lzma.decompress((folder / f"{name}.npz.xz").read_bytes())))
    arrays = {key: torch.from_numpy(packed[key])[:MOST_IMAGES] for key in packed.files if key != "full_scale"}
    scale = int(packed["full_scale"])
    if binarize == "none" and name not in GREY:
        raise ValueError(f"{name} was packed as bits; add it to GREY")
    if binarize == "round":
        for part in ("train", "validation", "test"):
            arrays[part] = (arrays[part] > scale / 2).to(torch.uint8)
        scale = 1
    return Images(name, **arrays, binarization=binarize, full_scale=scale)


def pack(folder: Path) -> None:
    """Write the images of all data sets."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in DATASETS:
        images = argrad.data.load(name, binarize="none" if name in GREY else "round")
        arrays = {key: getattr(images, key).numpy() for key in ARRAYS if getattr(images, key) is not None}
        plain = io.BytesIO()
        np.savez(plain, **arrays, full_scale=images.full_scale)
        (folder / f"{name}.npz.xz").write_bytes(lzma.compress(plain.getvalue()))


# --------------------------------------------------------------------------------------------------------- experiments


def with_method(settings: Any, method: str) -> Any:
    """Settings with one method only, if one is named."""
    return replace(settings, methods=(method,)) if method else settings


def whole_or_pieces(part: Part, name: str, pieces: Iterable[str]) -> list[Any]:
    """A part that was run whole, or its pieces."""
    try:
        return [part(name)]
    except FileNotFoundError:
        return [part(f"{name}:{piece}") for piece in pieces]


def run_table1(part: Part, what: str) -> Any:
    """The rows of a data set, or of one of its groups."""
    dataset, _, group = what.partition(":")
    images, settings = load_bits(dataset, device()), table1.Table1()
    return (
        table1.run_group(group, dataset, *images, settings) if group else table1.run_dataset(dataset, *images, settings)
    )


def table1_of(part: Part) -> dict[str, Any]:
    """The table."""
    settings = table1.Table1()
    found = {
        dataset: table1.join_groups(whole_or_pieces(part, f"table1:{dataset}", table1.GROUPS))
        for dataset in settings.datasets
    }
    return table1.assemble(found, settings, command_line("argrad reproduce table1", settings))


def run_figure2(part: Part, k: tuple[int, ...]) -> Any:
    """Step costs, and the curves of table1."""
    whole = table1_of(part)
    names = ("mnist",) if k == (10,) else tuple(whole["settings"]["datasets"])
    with TemporaryDirectory() as folder:
        table = Path(folder) / "table1.json"
        table.write_text(json.dumps(whole))
        settings = figure2.Figure2(k=k, datasets=() if k == (10,) else names, table1=str(table))
        result = figure2.run_figure2({name: load_bits(name, device()) for name in names}, settings)
    result["command"] = result["command"].replace(str(table), "results/table1.json")
    result["settings"]["table1"] = "results/table1.json"
    return result


def run_figure3(part: Part, what: str) -> Any:
    """`steps`, or the trials or the training of the rows with the numbers given: a list where there are several."""
    images, settings = load_bits("fashion-mnist", device()), figure3.Figure3()
    if what == "steps":
        return figure3.run_steps(images, settings)
    kind, _, numbers = what.rpartition(":")
    rows = [figure3.ROWS[int(number)] for number in numbers.split(",")]
    if kind == "trials":
        found: list[Any] = figure3.run_tuning(rows, images, settings)
    else:
        tuned = [part(f"figure3:trials:{number}") for number in numbers.split(",")]
        found = figure3.run_rows(rows, tuned, images, settings)
    return found if len(rows) > 1 else found[0]


def figure3_of(part: Part) -> dict[str, Any]:
    """The figure."""
    settings = figure3.Figure3()
    numbers = range(len(figure3.ROWS))
    tuning = [part(f"figure3:trials:{number}") for number in numbers]
    rows = [row for number in numbers for row in part(f"figure3:{number}")]
    command = command_line("argrad reproduce figure3", settings)
    return figure3.assemble(tuning, rows, [part("figure3:steps")], settings, command)


def run_table2(part: Part, what: str) -> Any:
    """The rows of a data set, of one of its methods, or of one number of labels."""
    dataset, method, labels = (*what.split(":"), "", "")[:3]
    settings = with_method(table2.Table2(), method)
    if labels:
        settings = replace(settings, labels=(int(labels),))
    return table2.run_dataset(dataset, table2.load_labelled_bits(dataset, device()), settings)


def table2_of(part: Part) -> dict[str, Any]:
    """The table."""
    settings = table2.Table2()
    found: dict[str, dict[str, Any]] = {}
    for dataset in settings.datasets:
        name = f"table2:{dataset}"
        try:
            pieces = [part(name)]
        except FileNotFoundError:
            pieces = [
                piece
                for method in settings.methods
                for piece in whole_or_pieces(part, f"{name}:{method}", map(str, settings.labels))
            ]
        found[dataset] = {"rows": [row for piece in pieces for row in piece["rows"]]}
        found[dataset]["recipes"] = {key: recipe for piece in pieces for key, recipe in piece["recipes"].items()}
        found[dataset]["timing"] = {
            method: table2.join_timings([piece["timing"][method] for piece in pieces if method in piece["timing"]])
            for method in settings.methods
        }
    return table2.assemble(found, settings, command_line("argrad reproduce table2", settings))


def run_tokenizer(part: Part, what: str) -> Any:
    """The rows of a data set, or one of them."""
    dataset, _, method = what.partition(":")
    images = argrad.data.load(dataset, binarize="none").to(device())
    settings = with_method(tokenizer.TokenizerComparison(), method)
    return tokenizer.run_dataset(dataset, (images.train, images.validation, images.test), settings)


def tokenizer_of(part: Part) -> dict[str, Any]:
    """The comparison, from data sets or from their methods."""
    settings, rows = tokenizer.TokenizerComparison(), []
    for dataset in settings.datasets:
        for piece in whole_or_pieces(part, f"tokenizer:{dataset}", settings.methods):
            rows += piece
    return tokenizer.assemble(rows, settings, command_line("argrad reproduce tokenizer", settings))


def run_hashing(part: Part, what: str) -> Any:
    """One loss of a data set, or of one of its methods."""
    dataset, loss, method = (*what.split(":"), "")[:3]
    settings = with_method(replace(hashing.Hashing(), losses=(loss,)), method)
    return hashing.run_collection(hashing.load_collection(dataset).to(device()), settings)


def hashing_of(part: Part) -> dict[str, Any]:
    """The table; the search is timed here, where numba is."""
    settings = hashing.Hashing()
    found = [
        piece
        for dataset in settings.datasets
        for loss in settings.losses
        for piece in whole_or_pieces(part, f"hashing:{dataset}:{loss}", settings.methods)
    ]
    command = command_line("argrad reproduce hashing", settings)
    return hashing.assemble(found, settings, command, hashing.time_search(settings.rounds))


def run_completion(part: Part, seed: str) -> Any:
    """One seed on Fashion-MNIST; the faces are too few to need a GPU."""
    images = argrad.data.load("fashion-mnist", binarize="none")
    settings = completion.Completion(datasets=("fashion-mnist",))
    command = command_line("argrad reproduce completion", settings)
    own = replace(settings.effective(), seeds=(int(seed),))
    return {**here(command), **completion.run_dataset(images, own, progress=print)}


def completion_of(part: Part) -> dict[str, Any]:
    """The faces that were measured before, and this."""
    settings = completion.Completion(datasets=("fashion-mnist",), add_to=str(ROOT / "results" / "completion.json"))
    command = command_line("argrad reproduce completion", settings).replace(f"{ROOT}/", "")
    pieces = [part(f"completion:{seed}") for seed in settings.seeds]
    rows = [row for piece in pieces for row in piece["rows"]]
    commits, dates = (", ".join(sorted({piece[name] for piece in pieces})) for name in ("commit", "date"))
    measured = {**pieces[0], "commit": commits, "date": dates, "rows": rows, "shown": completion.shown(rows)}
    result = completion.put_together({"fashion-mnist": measured}, settings, command)
    result["settings"]["add_to"] = "results/completion.json"  # no path of this machine
    return result


def run_alone(name: str, part: Part, _: str) -> Any:
    """An experiment of one part."""
    module, settings = ALONE[name]
    body = import_module(f"argrad.experiments.{module}")
    return body.run(getattr(body, settings)(), progress=print)


RUN: dict[str, Callable[[Part, str], Any]] = {
    "table1": run_table1,
    "figure2": lambda part, _: run_figure2(part, (10,)),
    "figure6": lambda part, _: run_figure2(part, (20, 30, 40, 50)),
    "figure3": run_figure3,
    "table2": run_table2,
    "tokenizer": run_tokenizer,
    "hashing": run_hashing,
    "completion": run_completion,
    **{name: partial(run_alone, name) for name in ALONE},
}
"""How a part is run, from the parts before it and what stands behind its colon."""

RESULTS: dict[str, tuple[Callable[[Part], dict[str, Any]], str]] = {
    "table1": (table1_of, "table1:"),
    "figure3": (figure3_of, "figure3:"),
    "table2": (table2_of, "table2:"),
    "tokenizer": (tokenizer_of, "tokenizer:"),
    "hashing": (hashing_of, "hashing:"),
    "completion": (completion_of, "completion:"),
    **{name: (lambda part, name=name: part(name), name) for name in ("figure2", "figure6", *ALONE)},
}
"""How a result is put together, and the (beginning of the) part whose machine it names."""


SETTINGS = [("table1", "Table1"), ("figure2", "Figure2"), ("figure3", "Figure3"), ("table2", "Table2")]
SETTINGS += [
    ("tokenizer", "TokenizerComparison"),
    ("hashing", "Hashing"),
    ("completion", "Completion"),
    *ALONE.values(),
]
SMALL = {
    "epochs": 1,
    "restarts": 2,
    "restart_epochs": 1,
    "em_restarts": 2,
    "em_iterations": 3,
    "rounds": 2,
    "draws": (0,),
}
SMALL |= {"tuning_epochs": 1, "steps": 30, "looks": 2, "prior_steps": 20, "cases": 6, "held_out": 2, "prior_epochs": 2}
SMALL |= {"unet_epochs": 1, "refine": 2, "shapes": 4, "scans": 2}
"""What `try` sets, in whatever settings have it."""
ENOUGH = {"Table2": {"epochs": 11}, "Figure4": {"epochs": 11}}
"""What it sets in some: more epochs than those on labelled images alone."""


# -------------------------------------------------------------------------------------------------------- the commands


def file_of(folder: Path, name: str) -> Path:
    """Where a part is written."""
    return folder / f"{name.replace(':', '+')}.json"


def builds_on(name: str, other: str) -> bool:
    """Whether a part reads what another wrote."""
    kind, _, what = name.partition(":")
    if kind in ("figure2", "figure6"):
        return other.startswith("table1:")
    rows, trials = what.split(","), other.removeprefix("figure3:trials:")
    return kind == "figure3" and rows[0].isdigit() and trials != other and not {*rows}.isdisjoint(trials.split(","))


def parts_of(word: str) -> list[str]:
    """The parts that a word names: figure3:trials:1,2 is figure3:trials:1 and figure3:trials:2."""
    lead, _, last = word.rpartition(":")
    return [f"{lead}:{one}" for one in last.split(",")] if word.startswith("figure3:") and "," in last else [word]


def read(folder: Path, name: str) -> Any:
    """What a part wrote."""
    return json.loads(file_of(folder, name).read_text())["part"]


def run(images: Path, folder: Path, names: list[str]) -> None:
    """Run the parts that are not there yet."""
    for module in (argrad.data, table2, import_module("argrad.experiments.hashing_training")):
        module.load = partial(load_packed, images)  # type: ignore[attr-defined]
    for word in names:
        missing = [name for name in parts_of(word) if not file_of(folder, name).exists()]
        if not missing:
            continue
        kind, _, what = missing[0].partition(":")
        what = ",".join([what, *(name.rpartition(":")[2] for name in missing[1:])])
        where = here("")
        found = RUN[kind](partial(read, folder), what)
        for name, part in zip(missing, found if len(missing) > 1 else [found], strict=True):
            write_json(file_of(folder, name), {"where": where, "part": part})
        print(f"{', '.join(missing)}: done", flush=True)


def try_out(images: Path, folder: Path, names: list[str]) -> int:
    """Run parts with very small settings; returns how many failed."""
    for module, name in SETTINGS:
        body = import_module(f"argrad.experiments.{module}")
        kind = getattr(body, name)
        own = {field.name for field in fields(kind)}
        small = {**SMALL, **ENOUGH.get(name, {})}
        setattr(body, name, partial(kind, **{key: value for key, value in small.items() if key in own}))
    global MOST_IMAGES
    MOST_IMAGES = 2000
    folder, failed = folder / "try", 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        began = time.perf_counter()
        try:
            run(images, folder, [name])
            print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"{name}: FAILED", flush=True)
    return failed


def assemble(folder: Path) -> None:
    """Every result whose parts are all there, into results/, with the machine that ran it."""
    for name, (put_together, source) in RESULTS.items():
        try:
            result = put_together(partial(read, folder))
        except FileNotFoundError:
            continue
        own = [path for path in sorted(folder.glob("*.json")) if path.name.startswith(source.replace(":", "+"))]
        places = {path.stem.replace("+", ":"): json.loads(path.read_text())["where"] for path in own}
        notes = {part: where.pop("note") for part, where in places.items() if "note" in where}
        newest = max(places.values(), key=lambda where: str(where.get("date")))
        result = {**result, **newest, "command": result["command"]}
        for what in ("commit", "hardware"):
            if len({where.get(what) for where in places.values()}) > 1:
                result[f"{what}_of_part"] = {part: where.get(what) for part, where in places.items()}
        if notes:
            result["notes"] = notes
        write_json(ROOT / "results" / f"{name}.json", result)
        print(f"results/{name}.json")


def main(words: list[str]) -> int:
    """Read the command."""
    if words[:1] == ["pack"] and len(words) == 2:
        pack(Path(words[1]))
    elif words[:1] == ["run"] and len(words) > 3 and all(word.partition(":")[0] in RUN for word in words[3:]):
        Path(words[2]).mkdir(parents=True, exist_ok=True)
        run(Path(words[1]), Path(words[2]), words[3:])
    elif words[:1] == ["try"] and len(words) > 3 and all(word.partition(":")[0] in RUN for word in words[3:]):
        return min(1, try_out(Path(words[1]), Path(words[2]), words[3:]))
    elif words[:1] == ["assemble"] and len(words) == 2:
        assemble(Path(words[1]))
    else:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
