"""An attribute model in a run folder: what config.json says of it, and the way back from there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from argrad.models.attributes.module import AttributeModule
from argrad.training import BrokenFile, RunFolder

__all__ = ["as_config", "fill", "open_run"]

TASK = "attributes"
OF_THIS_MACHINE = ("device", "verbose", "attribute_names")
"""Arguments that are not kept among the settings."""


def as_config(parameters: Mapping[str, Any], shape: tuple[int, ...], names: tuple[str, ...]) -> dict[str, Any]:
    """What config.json holds: the arguments of an ``AttributeVAE``, the shape of an image, the attributes' names.

    Args:
        parameters: by name; a random state that is no number is left out.
        shape: of one image.
        names: of the attributes.
    """
    settings = {name: value for name, value in parameters.items() if name not in OF_THIS_MACHINE}
    assert not any(isinstance(value, nn.Module) for value in settings.values())
    if not isinstance(settings["random_state"], int):
        settings["random_state"] = None
    return {"task": TASK, "shape": list(shape), "attribute_names": list(names), "settings": settings}


def open_run(path: Path | str, known: set[str]) -> RunFolder:
    """The folder of a saved attribute model, its settings checked.

    Args:
        path: of the folder.
        known: the names that settings may have.
    """
    folder = RunFolder.open(Path(path).expanduser())
    if folder.config.get("task") != TASK:
        raise ValueError(f"{folder.path} holds a run of another model; give a folder that AttributeVAE.save wrote")
    where = folder.path / "config.json"
    missing = {"shape", "attribute_names", "settings"} - folder.config.keys()
    if missing:
        raise BrokenFile(f"{where} has no {min(missing)}; restore it from a copy")
    unknown = folder.config["settings"].keys() - known
    if unknown:
        raise BrokenFile(f"{where} has a setting that this version does not know: {min(unknown)}")
    if not folder.read_metrics():
        raise BrokenFile(f"{folder.path / 'metrics.jsonl'} is missing or empty; restore it from a copy")
    return folder


def fill(module: AttributeModule, folder: RunFolder) -> None:
    """Put the saved weights into a module."""
    if not (folder.path / "model.safetensors").exists():
        raise BrokenFile(f"{folder.path} has no model.safetensors; restore it from a copy")
    folder.fill(module)
