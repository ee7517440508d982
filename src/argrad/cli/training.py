"""What the commands that train have in common: the run they write or go on with, and the bar that they show."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from tyro.conf import arg

if TYPE_CHECKING:
    from argrad.cli.out import Out
    from argrad.cli.progress import Bar
    from argrad.training import RunFolder, Trained, World

__all__ = [
    "OptionalFile",
    "OptionalNumber",
    "OptionalPath",
    "asked_for",
    "default_folder",
    "default_settings",
    "outcome",
    "refuse_others",
    "reopen",
    "value_of",
    "watched",
    "with_types",
]

OptionalPath = Annotated[Path | None, arg(metavar="RUN", help_behavior_hint="(optional)")]
OptionalFile = Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="(optional)")]
OptionalNumber = Annotated[int | None, arg(metavar="INT", help_behavior_hint="(optional)")]
Found = TypeVar("Found")


def value_of(flag: str, arguments: Sequence[str]) -> str | None:
    """What follows a flag, before the arguments are parsed; None where the flag is not given."""
    found = None
    for word, following in zip(arguments, [*arguments, ""][1:], strict=True):
        name, _, value = word.partition("=")
        if name == flag:
            found = value or following
    return found


def default_settings(
    kind: Callable[[], Any], read: Callable[[dict[str, Any], Path], Any], arguments: Sequence[str]
) -> Any:
    """The settings of the run that is resumed, so that whatever differs from them was asked for; else the usual ones.

    Args:
        kind: makes the usual settings.
        read: makes settings of a run's config.json and its path. What is wrong with a run is told when it is opened.
        arguments: of the command line.
    """
    from argrad.training import RunFolder

    run = value_of("--resume", arguments)
    if run is None:
        return kind()
    try:
        folder = RunFolder.open(Path(run).expanduser())
        return read(folder.config, folder.path / "config.json")
    except (OSError, TypeError, ValueError):
        return kind()


def with_types(command: type[Any], **types: Any) -> type[Any]:
    """The command with its annotations as types, which a class inside a function cannot have by name.

    Args:
        command: with the fields that all commands have which train: run_folder, resume, device, threads, json.
        types: of its other fields, or of those that differ.
    """
    command.__annotations__.update(run_folder=OptionalPath, resume=OptionalPath, device=str, threads=OptionalNumber)
    command.__annotations__.update(json=bool, **types)
    return command


def default_folder(data: str) -> Path:
    """runs/NAME-DATE-TIME, with a number behind it where that is taken."""
    name = f"{Path(data).stem or 'data'}-{datetime.datetime.now().strftime('%Y%m%d-%H%M%S')}"
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        if not (Path("runs") / (name + suffix)).exists():
            return Path("runs") / (name + suffix)
    raise ValueError("give the run a folder of its own with --run-folder")


def reopen(command: Any, world: World) -> tuple[RunFolder, Any]:
    """The run that a command resumes, and its settings; more epochs may be asked for, other changes are refused."""
    from argrad.training import RunFolder

    folder = RunFolder.open(command.resume.expanduser())
    settings = type(command.settings).from_config(folder.config, folder.path / "config.json")
    before, changed = flat(asdict(settings)), asked_for(command)
    refuse_others([name for name, value in changed.items() if name != "epochs" and value != before[name]])
    if "epochs" in changed:
        settings = replace(settings, epochs=changed["epochs"])
    settings.loop()  # a mistake is told before it is written down
    if world.leads:
        with folder.locked():
            folder.change(epochs=settings.epochs)
    return folder, settings


def asked_for(command: Any) -> dict[str, Any]:
    """The settings of a command that differ from its defaults."""
    default = flat(asdict(type(command)().settings))
    return {name: value for name, value in flat(asdict(command.settings)).items() if value != default[name]}


def refuse_others(names: Sequence[str]) -> None:
    """Raise a ValueError that names the settings which a resumed run would have to change, if there are any."""
    if names:
        raise ValueError(
            f"a resumed run keeps its settings, but {', '.join('--' + name.replace('_', '-') for name in names)} "
            "differ from them; leave them out, or train into a new folder"
        )


def flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by their flags, which carry no prefix."""
    parts = [flat(value) if isinstance(value, dict) else {name: value} for name, value in settings.items()]
    return {name: value for part in parts for name, value in part.items()}


def watched(
    out: Out,
    folder: RunFolder,
    epochs: int,
    command: str,
    work: Callable[[Bar | None], Found],
    *,
    tensorboard: bool = False,
    leads: bool = True,
) -> Found | None:
    """Train under a progress bar, with the folder locked; None after an interruption, which has been told.

    Args:
        out: where words go.
        folder: of the run.
        epochs: that the bar counts up to.
        command: that goes on with the run, such as "argrad train".
        work: trains, and tells the bar.
        tensorboard: whether the metrics are written for TensorBoard, too.
        leads: False for the other processes of a run, which neither speak nor write nor lock.
    """
    from argrad.cli.progress import Bar
    from argrad.training import Diverged, Interrupted

    try:
        if not leads:
            return work(None)
        with folder.locked(), Bar(out, epochs, folder.path if tensorboard else None) as bar:
            return work(bar)
    except Interrupted as stopped:
        if leads:
            out.say(f"{str(stopped).capitalize()}; all is saved. Go on with: {command} --resume {folder.path}")
        return None
    except Diverged as diverged:
        raise ValueError(str(diverged)) from diverged


def outcome(trained: Trained) -> dict[str, Any]:
    """What came of a training, for machines."""
    summary = {"best_epoch": trained.best_epoch, "epochs": trained.epoch}
    return {**summary, "validation": trained.best_loss, "seconds": trained.seconds}
