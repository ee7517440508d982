"""`argrad reproduce`: the papers' tables and figures, whose settings live with them and take a while to import."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from argrad.cli.out import Out

__all__ = ["EXPERIMENTS", "Reproduce", "experiment"]

EXPERIMENTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "table1": ("argrad.experiments.table1", "Table1", {}),
    "table2": ("argrad.experiments.table2", "Table2", {}),
    "figure1": ("argrad.experiments.figure1", "Figure1", {}),
    "figure2": ("argrad.experiments.figure2", "Figure2", {}),
    "figure6": ("argrad.experiments.figure2", "Figure2", {"k": (20, 30, 40, 50)}),
    "figure3": ("argrad.experiments.figure3", "Figure3", {}),
    "figure4": ("argrad.experiments.figure4", "Figure4", {}),
    "figure5": ("argrad.experiments.figure5", "Figure5", {}),
    "epsilon-learning-rate": ("argrad.experiments.epsilon_learning_rate", "EpsilonLearningRate", {}),
    "step-profile": ("argrad.experiments.step_profile", "StepProfile", {}),
    "structures": ("argrad.experiments.structures", "Structures", {}),
    "hippocampus": ("argrad.experiments.hippocampus", "Hippocampus", {}),
    "whole-brain": ("argrad.experiments.whole_brain", "WholeBrain", {}),
    "completion": ("argrad.experiments.completion", "Completion", {}),
    "hashing": ("argrad.experiments.hashing", "Hashing", {}),
    "trajectory": ("argrad.experiments.trajectory", "Trajectory", {}),
    "sequence-gan": ("argrad.experiments.sequence_gan", "SequenceGANStudy", {}),
    "tokenizer": ("argrad.experiments.tokenizer", "TokenizerComparison", {}),
}
"""Each is a module with a dataclass of settings (and what differs from its defaults), ``run(settings, progress)``,
``format_table(result)``, and where there is a picture ``plot(result, path)``."""

ResultFile = Annotated[Path | None, arg(name="from", metavar="FILE", help_behavior_hint="(optional)")]


@dataclass
class Reproduce:
    """Run the experiments of the direct optimisation paper again: its Table 1 and Figures 1, 2, 3 and 6.

    For example,
      argrad reproduce figure1 --quick               bias and variance at trained parameters, in seconds, on digits
      argrad reproduce figure2 --quick               test loss by epoch and by wall clock
      argrad reproduce table1                        the full protocol; wants a GPU, and MNIST and others on disk
      argrad reproduce figure2 --from FILE           draw a result again

    There are
      table1                   test loss by data set, k and estimator, beside the paper's and the EM optimum
      table2                   accuracy and bound from a few labels, beside the paper's
      figure1                  bias and standard deviation against ε and τ, with the closed form
      figure2                  test loss by epoch and by wall clock, k = 10; what a step costs with each estimator
      figure6                  the same with k = 20, 30, 40, 50
      figure3                  15 bits, independent and in pairs, with every estimator and the exact gradient
      figure4                  samples without labels and with a few, and with parts of the objective left out
      figure5                  faces with attributes switched on and off, people held out, before an independent judge
      epsilon-learning-rate    the paper's closing question, as a heat map
      step-profile             where the time of a training step goes, and how far it is from the operation count
      structures               learning to sort, and finding a tree: direct beside its usual rivals, on the CPU
      hippocampus              segmentation without a labelled scan, beside EM and a supervised U-Net
      whole-brain              30 structures in 3-D, shapes from deformations of one brain
      completion               several ways to fill a hole: a mixture of Gaussians against a single one
      hashing                  codes of 16 to 64 bits by contrast: recall and precision, beside floats and PCA
      trajectory               a small decision problem with a known optimum, every estimator, on the CPU
      sequence-gan             a generator of symbols against a discriminator, beside maximum likelihood, on the CPU
      tokenizer                images to 7 × 7 codes by every estimator, beside vector quantisation

    Each writes NAME.json and NAME.png into the output folder; with --quick, NAME-quick.json and NAME-quick.png, and it
    says that these are not the paper's protocol. `argrad reproduce NAME --help` lists the settings.
    """

    what: Positional[
        Literal[
            "table1",
            "table2",
            "figure1",
            "figure2",
            "figure6",
            "figure3",
            "figure4",
            "figure5",
            "epsilon-learning-rate",
            "step-profile",
            "structures",
            "hippocampus",
            "whole-brain",
            "completion",
            "hashing",
            "trajectory",
            "sequence-gan",
            "tokenizer",
        ]
    ]
    """Which."""

    def run(self, out: Out) -> int:
        """Never reached: main() reads the settings of an experiment with the experiment's own dataclass."""
        raise NotImplementedError


def experiment(name: str) -> type[Any]:
    """The command `reproduce NAME`."""
    module, settings_name, changed = EXPERIMENTS[name]
    body = import_module(module)
    kind = getattr(body, settings_name)

    @dataclass
    class Experiment:
        settings: Any = field(default_factory=partial(kind, **changed))
        from_file: ResultFile = None
        """Run nothing: show and draw this results file again."""
        output: Path = Path("results")
        """Folder for the JSON and the picture; it is made if need be."""
        json: bool = False
        """Print one line of JSON at the end, and all else to standard error."""

        def run(self, out: Out) -> int:
            folder = self.output.expanduser()
            folder.mkdir(parents=True, exist_ok=True)
            if self.from_file is not None:
                result, written = read_result(self.from_file.expanduser(), body), []
            else:
                result = run_experiment(body, self.settings, out)
                path = folder / f"{file_name(name, result)}.json"
                written = [write_result(path, result)]
            out.result(body.format_table(result))
            if hasattr(body, "plot"):
                picture = folder / f"{file_name(name, result)}.png"
                body.plot(result, picture)
                written.append(picture)
            if written:
                out.result(f"\nWritten: {', '.join(map(str, written))}")
            out.machine(result)
            return 0

    Experiment.__annotations__.update(settings=kind, from_file=ResultFile, output=Path, json=bool)
    Experiment.__doc__ = re.sub(r":\w+:`([^`]+)`", r"\1", (body.__doc__ or "").strip())
    return Experiment


def run_experiment(body: Any, settings: Any, out: Out) -> dict[str, Any]:
    """Run, and say how far it is: on a terminal in one passing line, elsewhere a line at a time."""
    warned = not settings.quick

    def progress(line: str) -> None:
        nonlocal warned
        if not warned:  # not before there is progress: an error is a line of its own
            out.say("A quick run, not the paper's protocol; leave out --quick for that.")
            warned = True
        (out.progress if out.live else out.say)(line)

    result: dict[str, Any] = body.run(settings, progress=progress)
    return result


def file_name(name: str, result: dict[str, Any]) -> str:
    """What the files of a result are called: a quick one never takes the place of a full one."""
    return str(result.get("figure", name)) + ("-quick" if result["quick"] else "")


def write_result(path: Path, result: dict[str, Any]) -> Path:
    """Write the JSON, whole or not at all."""
    from argrad.training.files import write_json

    write_json(path, result)
    return path


def read_result(path: Path, body: Any) -> dict[str, Any]:
    """A results file, if it is one of this experiment."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        body.format_table(result)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON; give a file that `argrad reproduce` wrote") from error
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is not a result of this experiment; give a file that it wrote") from error
    assert isinstance(result, dict)
    return result
