"""Label ids and their names: as given in files, contiguous from 0 in models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from argrad.data.errors import BrokenFile, DataError

__all__ = ["LabelTable", "WrongLabels", "read_label_table"]

SHOWN = 5
"""How many ids an error message lists."""


class WrongLabels(DataError):
    """A label map holds ids that its table does not know, or nothing but background."""


@final
@dataclass(frozen=True)
class LabelTable:
    """Ids in the order of the model's labels, background (0) first, and the name of each.

    >>> table = LabelTable.of({0: "background", 17: "left hippocampus", 4: "left ventricle"})
    >>> table.ids, table.to_ids(np.array([0, 2]))
    ((0, 4, 17), array([ 0, 17]))
    """

    ids: tuple[int, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, names: Mapping[int, str]) -> LabelTable:
        """From names by id; background is added where it is missing."""
        if any(number < 0 for number in names):
            raise WrongLabels(f"label ids must not be negative, got {min(names)}")
        ids = sorted({0, *names})
        if len(ids) < 2:
            raise WrongLabels("the table has no label but background; it needs at least one more")
        return cls(tuple(ids), tuple(names.get(number, "background" if not number else str(number)) for number in ids))

    @classmethod
    def from_maps(cls, maps: Iterable[NDArray[np.integer[Any]]]) -> LabelTable:
        """All ids that occur, named by their numbers."""
        return cls.of({int(number): str(number) for one in maps for number in np.unique(one) if number})

    def __len__(self) -> int:
        """How many labels there are, background included."""
        return len(self.ids)

    def to_indices(self, label_map: NDArray[np.integer[Any]], where: str, *, empty: bool = False) -> NDArray[np.int16]:
        """Ids as given to numbers from 0.

        Args:
            label_map: ids.
            where: what an error calls the map.
            empty: whether a map without any structure will do.
        """
        known = np.asarray(self.ids)
        found = np.searchsorted(known, label_map).clip(0, len(known) - 1)
        wrong = np.unique(label_map[known[found] != label_map])
        if len(wrong):
            some = ", ".join(map(str, wrong[:SHOWN])) + (" …" if len(wrong) > SHOWN else "")
            raise WrongLabels(
                f"{where} has label ids that the table does not know: {some}; known are "
                f"{', '.join(map(str, self.ids[:20]))}{' …' if len(self.ids) > 20 else ''}"
            )
        if not empty and not np.any(found):
            raise WrongLabels(f"{where} is empty: no voxel has a label other than background")
        return found.astype(np.int16)

    def to_ids(self, indices: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Numbers from 0 to ids as given."""
        ids: NDArray[np.int64] = np.asarray(self.ids, np.int64)[indices]
        return ids

    def as_json(self) -> dict[str, str]:
        """Names by id, as JSON has it."""
        return {str(number): name for number, name in zip(self.ids, self.names, strict=True)}


def read_label_table(path: Path) -> LabelTable:
    """Names from a ``dataset.json`` as nnU-Net has it, a JSON object of names by id, or a FreeSurfer colour table."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        try:
            value = json.loads(text)
            return label_table_from_json(value.get("labels", value))
        except (ValueError, AttributeError, TypeError) as error:
            raise BrokenFile(f"{path} has no table of labels ({error}); expected names by id") from error
    names = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 2 or not words[0].isdigit():
            raise BrokenFile(f"{path}, line {number}: expected an id and a name, got {line.strip()[:60]!r}")
        names[int(words[0])] = words[1]
    return LabelTable.of(names)


def label_table_from_json(labels: Mapping[str, Any]) -> LabelTable:
    """Names by id, or ids by name as newer nnU-Net folders have them."""
    if all(str(key).isdigit() for key in labels):
        return LabelTable.of({int(key): str(value) for key, value in labels.items()})
    for name, value in labels.items():
        if not isinstance(value, int):
            raise BrokenFile(f"label {name!r} is {value!r}; overlapping regions are not supported, give one id each")
    return LabelTable.of({int(value): str(key) for key, value in labels.items()})
