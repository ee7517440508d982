"""`argrad write`: train a generator of lines of text against a discriminator, and let it write new ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from argrad.cli.out import Out, use_threads
from argrad.cli.training import (
    OptionalFile,
    OptionalPath,
    default_folder,
    default_settings,
    outcome,
    reopen,
    watched,
    with_types,
)

__all__ = ["WRITING", "Write", "write_command"]

TRAIN = "argrad write train"
WRITING = ("train", "sample")


@dataclass
class Write:
    """Learn to write lines such as those of a text file: an LSTM and a discriminator, through sampled symbols.

    For example,
      argrad write train --data my-lines.txt --run-folder mine    learn from lines, with a report
      argrad write train --data expressions                       sentences of a small grammar, nothing to be found
      argrad write sample mine --number 100                       new lines

    `argrad write train --help` lists the settings.
    """

    what: Positional[str]
    """train or sample."""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """Reached only with a word that is neither: main() reads their settings on its own."""
        raise ValueError(f"argrad write {self.what}: choose one of {', '.join(WRITING)}")


def write_command(name: str, arguments: Sequence[str] = ()) -> type[Any]:
    """The command `write NAME`; the settings of training live with the model, which takes a while to import."""
    if name == "sample":
        return SampleLines
    from argrad.models.sequence_gan.run import SequenceGANSettings

    usual = default_settings(SequenceGANSettings, SequenceGANSettings.from_config, arguments)

    @dataclass
    class TrainWriter:
        """Train a generator of lines by maximum likelihood and then against a discriminator, and write a report.

        For example,
          argrad write train --data my-lines.txt
          argrad write train --data captions --level words --estimator straight-through
          argrad write train --resume runs/expressions-20190526-101500    go on after an interruption

        A text file holds one sequence per line, in UTF-8. Equal lines count once.
        """

        settings: SequenceGANSettings = field(default_factory=lambda: usual)
        run_folder: OptionalPath = None
        """Folder to write to; runs/DATA-DATE-TIME unless given."""
        resume: OptionalPath = None
        """Go on with this run; of the other settings only --epochs may change."""
        device: str = "auto"
        """cpu, cuda, cuda:1 …; auto takes a GPU where there is one."""
        threads: int = 1
        """Threads that PyTorch may use; models this small gain little from more."""
        json: bool = False
        """Print one line of JSON at the end, and all else to standard error."""

        def run(self, out: Out) -> int:
            return run_training(self, out)

    return with_types(TrainWriter, settings=SequenceGANSettings, threads=int)


def run_training(command: Any, out: Out) -> int:
    """Both stages, or what is left of them."""
    use_threads(command.threads)
    from argrad.models.discrete_vae.run import choose_device
    from argrad.models.sequence_gan.report import evaluate_sequence_gan, write_sequence_gan_report
    from argrad.models.sequence_gan.run import (
        build_sequence_gan,
        load_lines,
        require_same_text,
        sequence_gan_config,
        train_adversarially,
        train_likelihood,
    )
    from argrad.training import RunFolder, World

    device = choose_device(command.device)
    settings = command.settings
    if command.resume is not None:
        folder, settings = reopen(command, World())
    # Settings, data and model are looked at before the folder is made, so that a mistake in them leaves nothing behind.
    settings.loop()
    text = load_lines(settings).to(device)
    module = build_sequence_gan(settings, len(text.vocabulary), text.length).to(device)
    if command.resume is None:
        where = command.run_folder or default_folder(settings.data)
        folder = RunFolder.create(where, sequence_gan_config(settings, text))
    require_same_text(folder, text)
    out.say(f"{text!r} → {folder.path}")
    likelihood_history: list[dict[str, Any]] = []
    if settings.likelihood_epochs:
        out.say("Maximum likelihood:")
        found = watched(
            out,
            folder,
            settings.likelihood_epochs,
            TRAIN,
            lambda bar: train_likelihood(settings, folder, module, text, progress=bar),
        )
        if found is None:
            return 130
        likelihood_history = found.history
    out.say("The game of generator and discriminator:")
    trained = watched(
        out,
        folder,
        settings.epochs,
        TRAIN,
        lambda bar: train_adversarially(settings, folder, module, text, progress=bar),
    )
    if trained is None:
        return 130
    scores = evaluate_sequence_gan(module.writer, text)
    report = write_sequence_gan_report(
        folder.path, module.writer, text, settings, trained.history, likelihood_history, scores
    )
    valid = f", valid {scores['valid']:.1%}" if "valid" in scores else ""
    out.result(
        f"Best epoch {trained.best_epoch} of {trained.epoch}: n-gram divergence to test lines "
        f"{scores['divergence']:.4f} ({scores['floor']:.4f} for as many training lines), "
        f"novel {scores['novel']:.1%}, distinct {scores['distinct']:.1%}{valid}\nReport: {report}"
    )
    out.machine({"run": str(folder.path), "report": str(report), **outcome(trained), "test": scores})
    return 0


@dataclass
class SampleLines:
    """Let a trained generator write new lines.

    For example, argrad write sample runs/expressions-20190526-101500 --number 100 --output new.txt
    """

    run_folder: Positional[Path]
    """The folder of a run."""
    number: int = 20
    """How many."""
    output: OptionalFile = None
    """A text file to write them to; they are printed unless given."""
    seed: int = 0
    """Of the samples."""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """Load, draw, print or write."""
        from argrad.models.sequence_gan.model import SequenceGAN
        from argrad.training.files import write_atomically

        lines = SequenceGAN.from_run(self.run_folder, device="cpu").sample(self.number, seed=self.seed)
        if self.output is None:
            out.result("\n".join(lines))
        else:
            write_atomically(self.output.expanduser(), "".join(f"{line}\n" for line in lines).encode())
            out.result(f"{self.number} lines: {self.output}")
        out.machine({"run": str(self.run_folder), "number": self.number, "lines": lines})
        return 0
