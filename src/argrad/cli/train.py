"""`argrad train`, `argrad evaluate`, `argrad sample`: a discrete or a semi-supervised VAE from data to pictures."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Positional

from argrad.cli.out import Out, use_threads
from argrad.cli.training import (
    OptionalNumber,
    OptionalPath,
    default_folder,
    default_settings,
    outcome,
    reopen,
    value_of,
    watched,
    with_types,
)

if TYPE_CHECKING:
    from argrad.models.semi_supervised.run import FewLabels
    from argrad.training import RunFolder, Trained, World

__all__ = ["Evaluate", "Sample", "train_command"]

TaskName = Literal["vae", "classify"]
SMALL = 256
"""Images of no more pixels gain nothing from threads, and lose much on a busy machine."""


def train_command(arguments: Sequence[str] = ()) -> type[Any]:
    """The command `train`; its settings live with the model that the arguments name, and take a while to import."""
    return classify_command(arguments) if task_of(arguments) == "classify" else vae_command(arguments)


def task_of(arguments: Sequence[str]) -> TaskName:
    """What `--task` says, or, where a run is resumed, what the run is."""
    task, run = value_of("--task", arguments), value_of("--resume", arguments)
    if task is not None:
        return "classify" if task == "classify" else "vae"
    return "classify" if run is not None and is_classifier(Path(run)) else "vae"


def is_classifier(run: Path) -> bool:
    """Whether a run folder holds a semi-supervised VAE; what is no run folder is told so later."""
    try:
        config = json.loads((run.expanduser() / "config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("task") == "classify"


def vae_command(arguments: Sequence[str]) -> type[Any]:
    """The command that trains a discrete VAE."""
    from argrad.models.discrete_vae.run import TrainSettings

    usual = default_settings(TrainSettings, TrainSettings.from_config, arguments)

    @dataclass
    class Train:
        """Train a discrete VAE on images and write a report; with --task classify, a classifier from a few labels.

        For example,
          argrad train                                         digits, one of 10 codes
          argrad train --data mnist --values 50                MNIST, one of 50 codes
          argrad train --data my-pictures/ --latent bits --variables 16
          argrad train --resume runs/digits-20190526-101500    go on after an interruption
          argrad train --task classify --labels 50             a classifier of digits from 50 labels
          torchrun --nproc-per-node 2 -m argrad train --data mnist

        Everything is written into a new folder, which `evaluate`, `sample` and `--resume` take. `argrad train --task
        classify --help` lists the settings of the classifier.
        """

        task: TaskName = "vae"
        """vae: a discrete VAE, without labels; classify: a semi-supervised VAE, from a few labels."""
        settings: TrainSettings = field(default_factory=lambda: usual)
        run_folder: OptionalPath = None
        """Folder to write to; runs/DATA-DATE-TIME unless given."""
        resume: OptionalPath = None
        """Go on with this run; of the other settings only --epochs may change."""
        device: str = "auto"
        """cpu, cuda, cuda:1 …; auto takes a GPU where there is one."""
        threads: OptionalNumber = None
        """Threads that PyTorch may use."""
        tensorboard: bool = False
        """Also write the metrics for TensorBoard (needs argrad[log])."""
        json: bool = False
        """Print one line of JSON at the end, and all else to standard error."""

        def run(self, out: Out) -> int:
            return run_training(self, out)

    return with_types(Train, task=TaskName, settings=TrainSettings, tensorboard=bool)


def classify_command(arguments: Sequence[str]) -> type[Any]:
    """The command that trains a semi-supervised VAE."""
    from argrad.models.semi_supervised.run import ClassifySettings

    usual = default_settings(ClassifySettings, ClassifySettings.from_config, arguments)

    @dataclass
    class Classify:
        """Train a classifier and generator from a few labels and many images (a semi-supervised VAE), with a report.

        For example,
          argrad train --task classify --data digits --labels 50
          argrad train --task classify --data mnist --binarize round --labels 100 --latent 20 --epochs 60
          argrad train --task classify --data mine.npz --labels 0    images and labels; -1 means not labelled
          argrad train --resume runs/digits-20190526-101500          go on after an interruption

        At the end the accuracy on test images is printed beside that of scikit-learn's logistic regression and label
        spreading with the same labels. `evaluate`, `sample --label` and `--resume` take the folder that is written.
        """

        task: TaskName = "classify"
        """vae: a discrete VAE, without labels; classify: a semi-supervised VAE, from a few labels."""
        settings: ClassifySettings = field(default_factory=lambda: usual)
        run_folder: OptionalPath = None
        """Folder to write to; runs/DATA-DATE-TIME unless given."""
        resume: OptionalPath = None
        """Go on with this run; of the other settings only --epochs may change."""
        device: str = "auto"
        """cpu, cuda, cuda:1 …; auto takes a GPU where there is one."""
        threads: OptionalNumber = None
        """Threads that PyTorch may use."""
        tensorboard: bool = False
        """Also write the metrics for TensorBoard (needs argrad[log])."""
        json: bool = False
        """Print one line of JSON at the end, and all else to standard error."""

        def run(self, out: Out) -> int:
            return run_classification(self, out)

    return with_types(Classify, task=TaskName, settings=ClassifySettings, tensorboard=bool)


def run_training(command: Any, out: Out) -> int:
    """Train or resume; the leading process writes and speaks."""
    if command.threads is not None:
        use_threads(command.threads)
    from argrad.models.discrete_vae.run import choose_device
    from argrad.training import World

    device = choose_device(command.device)
    world = World.join(device)
    code = train_in(command, out, world, device)
    world.leave()  # after an error there is nobody to wait for: the process ends, and torchrun ends the others
    return code


def train_in(command: Any, out: Out, world: World, device: Any) -> int:
    """Train among the given processes."""
    from argrad.cli.progress import tensorboard_writer
    from argrad.data.errors import WrongImages
    from argrad.models.dead_codes import check_revivable
    from argrad.models.discrete_vae.run import TrainSettings, build, load_images, train_run
    from argrad.training import RunFolder

    settings: TrainSettings = command.settings
    if command.resume is not None:
        folder, settings = reopen(command, world)
    # Settings, data and model are looked at before the folder is made, so that a mistake in them leaves nothing behind.
    settings.loop(), settings.schedules()
    try:
        images = load_images(settings)
    except WrongImages as error:  # which speaks of arguments in Python
        words = str(error).replace("size=(28, 28)", "--image-size 28")
        raise ValueError(words.replace('colour="grey" or colour="rgb"', "--colour grey or --colour rgb")) from None
    module = build(settings, images.shape)
    if settings.revive_until > 0:
        check_revivable(module)
    if command.tensorboard:
        tensorboard_writer(None)
    if command.resume is None:
        where = command.run_folder or default_folder(settings.data)
        folder = RunFolder.create(where, asdict(settings)) if world.leads else RunFolder(Path(where), asdict(settings))
    world.wait()
    if world.leads:
        out.say(f"{images!r} → {folder.path}")
    found = watched(
        out,
        folder,
        settings.epochs,
        "argrad train",
        lambda bar: train_run(settings, folder, images=images, device=device, world=world, progress=bar),
        tensorboard=command.tensorboard,
        leads=world.leads,
    )
    if found is None:
        return 130
    module, trained = found
    if world.leads:
        finish(out, folder, module, images, settings, trained)
    return 0


def finish(out: Out, folder: RunFolder, module: Any, images: Any, settings: Any, trained: Trained) -> None:
    """Score the best epoch, write the report, and say where it is."""
    from argrad.models.discrete_vae.report import advice, evaluate, write_report

    scores = evaluate(module.eval(), images)
    report = write_report(folder.path, module, images, settings, trained.history, scores)
    out.result(
        f"Best epoch {trained.best_epoch} of {trained.epoch}: validation {trained.best_loss:.2f}, "
        f"test {scores['negative_elbo']:.2f} nats per image ({scores['negative_elbo_by']} negative ELBO)\n"
        f"Report: {report}"
    )
    for hint in advice(settings, len(images.train), scores):
        out.say(hint)
    out.machine({"run": str(folder.path), "report": str(report), **outcome(trained), "test": scores})


def run_classification(command: Any, out: Out) -> int:
    """Train or resume a semi-supervised VAE, and print its accuracy beside that of simpler ways."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("a semi-supervised VAE is trained by one process; leave out torchrun")
    if command.threads is not None:
        use_threads(command.threads)
    from argrad.cli.progress import tensorboard_writer
    from argrad.models.discrete_vae.run import choose_device
    from argrad.models.semi_supervised.run import build, few_labels, train_classifier
    from argrad.training import RunFolder, World

    device = choose_device(command.device)
    settings, world = command.settings, World()
    if command.resume is not None:
        folder, settings = reopen(command, world)
    # Settings, data and model are looked at before the folder is made, so that a mistake in them leaves nothing behind.
    settings.loop()
    data = few_labels(settings)
    build(settings, data)
    check_measurable(data)
    if command.threads is None and data.images.train[0].numel() <= SMALL:
        use_threads(1)
    if command.tensorboard:
        tensorboard_writer(None)
    if command.resume is None:
        folder = RunFolder.create(command.run_folder or default_folder(settings.data), settings.config())
    out.say(f"{data.images!r}, {int((data.labels >= 0).sum())} labels used → {folder.path}")
    found = watched(
        out,
        folder,
        settings.epochs,
        "argrad train",
        lambda bar: train_classifier(settings, folder, data=data, device=device, progress=bar),
        tensorboard=command.tensorboard,
    )
    if found is None:
        return 130
    module, trained = found
    finish_classification(out, folder, module.eval(), data, settings, trained)
    return 0


def check_measurable(data: FewLabels) -> None:
    """Raise a ValueError if no test image can tell how good a classifier is."""
    known = data.images.test_labels
    if known is None or not bool((data.numbered(known) >= 0).any()):
        raise ValueError(
            f"none of the {len(data.images.test)} test images has a label of the classes trained on, so there is no "
            "accuracy to report; label more images, or choose another --split-seed"
        )


def finish_classification(out: Out, folder: RunFolder, module: Any, data: Any, settings: Any, trained: Trained) -> None:
    """Score the best epoch and the simpler ways, write the report, and say where it is."""
    from argrad.models.semi_supervised.report import baselines, evaluate_classifier, write_classifier_report

    scores, others = evaluate_classifier(module, data), baselines(data)
    report = write_classifier_report(folder.path, module, data, settings, trained.history, scores, others)
    used = int((data.labels >= 0).sum())
    rows = {"this model": scores["accuracy"], **others}
    out.result(
        f"Accuracy on {scores['images']} test images, from {used} labels and {len(data.labels)} images:\n"
        + "".join(f"  {name:<20}{'left out' if value is None else f'{value:.1%}'}\n" for name, value in rows.items())
        + f"Negative ELBO {scores['negative_elbo']:.2f} nats per image; best epoch {trained.best_epoch} of "
        f"{trained.epoch}, {trained.seconds:.0f} s\nReport: {report}"
    )
    record = {"run": str(folder.path), "report": str(report), **outcome(trained), "labels": used}
    out.machine({**record, "test": scores, "others": others})


@dataclass
class Evaluate:
    """Score a trained model: negative ELBO and −log p(x), exactly where all codes can be summed; of a classifier, its
    accuracy and bound.

    For example, argrad evaluate runs/digits-20190526-101500 --split validation
    """

    run_folder: Positional[Path]
    """The folder of a run."""
    split: Literal["test", "validation", "train"] = "test"
    """Which images."""
    samples: int = 1000
    """Importance samples per image where there are too many codes to sum."""
    seed: int = 0
    """Of those samples."""
    device: str = "auto"
    """cpu, cuda …"""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """Load, score, show."""
        if self.samples < 1:
            raise ValueError(f"--samples must be at least 1, got {self.samples}")
        from argrad.models.discrete_vae.report import evaluate
        from argrad.models.discrete_vae.run import choose_device, load_run

        if is_classifier(self.run_folder):
            return self.run_on_classifier(out, choose_device(self.device))
        module, _, images = load_run(self.run_folder.expanduser(), device=choose_device(self.device))
        scores = evaluate(module, images, self.split, samples=self.samples, seed=self.seed)
        out.result(
            f"{self.split}, {scores['images']} images, nats per image:\n"
            f"  negative ELBO  {scores['negative_elbo']:.3f}  ({scores['negative_elbo_by']})\n"
            f"  −log p(x)      {scores['nll']:.3f}  ({scores['nll_by']})\n"
            f"  codes: perplexity {scores['perplexity']:.2f} of {module.values}, {scores['used_codes']:.0%} in use"
        )
        out.machine({"run": str(self.run_folder), **scores})
        return 0

    def run_on_classifier(self, out: Out, device: Any) -> int:
        """The same for a semi-supervised VAE."""
        from argrad.models.semi_supervised.report import evaluate_classifier
        from argrad.models.semi_supervised.run import load_classifier

        module, _, data = load_classifier(self.run_folder.expanduser(), device=device)
        scores = evaluate_classifier(module, data, self.split, seed=self.seed)
        out.result(
            f"{self.split}, {scores['images']} images:\n"
            f"  accuracy       {scores['accuracy']:.1%}\n"
            f"  negative ELBO  {scores['negative_elbo']:.3f} nats per image  (one draw of the continuous part)"
        )
        out.machine({"run": str(self.run_folder), **scores})
        return 0


@dataclass
class Sample:
    """Draw images from a trained model and write them as one picture, or as an array.

    For example, argrad sample runs/digits-20190526-101500 --number 64 --output samples.png
    """

    run_folder: Positional[Path]
    """The folder of a run."""
    number: int = 64
    """How many."""
    output: Path = Path("samples.png")
    """A .png picture, or an .npz file with images and codes."""
    seed: int = 0
    """Of the samples."""
    label: OptionalNumber = None
    """Of a classifier: the class to draw; all classes unless given."""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """Load, draw, write."""
        if self.number < 1 or self.output.suffix not in (".png", ".npz"):
            raise ValueError(
                f"give --number >= 1 and an --output that ends in .png or .npz, got {self.number}, {self.output}"
            )
        import numpy as np

        from argrad.training.files import write_atomically
        from argrad.training.page import mosaic_png

        images, codes, drawn = self.draw()
        output = self.output.expanduser()
        if output.suffix == ".npz":
            import io

            buffer = io.BytesIO()
            np.savez_compressed(buffer, images=drawn.numpy(), codes=codes.numpy())
            write_atomically(output, buffer.getvalue())
        else:
            if len(images.shape) not in (2, 3):
                raise ValueError(f"examples of shape {images.shape} are no images; write them to an .npz file")
            write_atomically(
                output, mosaic_png(drawn.numpy(), columns=min(16, round(self.number**0.5 + 0.499)), zoom=4)[0]
            )
        out.result(f"{self.number} samples: {output}")
        out.machine({"run": str(self.run_folder), "output": str(output), "number": self.number})
        return 0

    def draw(self) -> tuple[Any, Any, Any]:
        """The run's data, and codes (or classes) and images drawn from its model."""
        import torch

        from argrad.models.discrete_vae.run import load_run

        generator = torch.Generator().manual_seed(self.seed)
        if not is_classifier(self.run_folder):
            module, _, images = load_run(self.run_folder.expanduser())
            if self.label is not None:
                raise ValueError(f"{self.run_folder} is no classifier, so its samples have no label; leave out --label")
            return images, *module.sample(self.number, generator=generator)
        from argrad.models.semi_supervised.run import load_classifier

        classifier, _, data = load_classifier(self.run_folder.expanduser())
        if self.label is not None and self.label not in data.classes:
            raise ValueError(f"--label must be one of {', '.join(map(str, data.classes))}, got {self.label}")
        names = torch.tensor(data.classes)
        chosen = torch.arange(self.number) % len(names)
        if self.label is not None:
            chosen = torch.full_like(chosen, data.classes.index(self.label))
        means = classifier.sample(chosen, generator=generator)
        return data.images, names[chosen], means.reshape(-1, *data.images.shape)
