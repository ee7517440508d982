"""From a run to something to explore."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from argrad.app.explorable.base import Explorable
from argrad.app.library import Kind, Library, Run

__all__ = ["EXPLORABLE", "open_explorable"]

OPENERS: dict[Kind, tuple[str, str]] = {
    "vae": ("argrad.app.explorable.vae", "open_vae"),
    "classify": ("argrad.app.explorable.classifier", "open_classifier"),
    "attributes": ("argrad.app.explorable.attributes", "open_attributes"),
    "tokenize": ("argrad.app.explorable.tokenizer", "open_tokenizer"),
}
"""Module and function; some take seconds to import, so it is done for the first run of that kind."""
EXPLORABLE: tuple[Kind, ...] = tuple(OPENERS)
"""The kinds of runs that have images to generate and to read."""


def open_explorable(library: Library, run: Run) -> Explorable:
    """The model of a run, loaded once for all visitors."""
    module, function = OPENERS[run.kind]
    opener: Callable[[Path], Explorable] = getattr(import_module(module), function)
    return library.load(run, opener)
