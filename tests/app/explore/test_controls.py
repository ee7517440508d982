"""The controls: what they show is the point, and what they are set to is read back as the same point."""

from contextlib import nullcontext
from typing import Any

import pytest

from argrad.app.explorable.base import Coordinate, Explorable, Point, Variable
from argrad.app.explore.controls import Controls, form_of


class Shape:
    """What the controls look at in a model."""

    def __init__(self, sizes: list[int], coordinates: int = 0, columns: int | None = None) -> None:
        self.variables = tuple(Variable(f"z{n}", tuple(map(str, range(size)))) for n, size in enumerate(sizes))
        self.coordinates = tuple(Coordinate(f"style {n}") for n in range(coordinates))
        self.columns = columns


def shape(sizes: list[int], coordinates: int = 0, columns: int | None = None) -> Explorable:
    return Shape(sizes, coordinates, columns)  # type: ignore[return-value]


@pytest.fixture
def controls(monkeypatch: pytest.MonkeyPatch) -> Controls:
    """Outside of a page, where there is nothing to lay out."""
    monkeypatch.setattr("argrad.app.explore.controls.gr.Row", nullcontext)
    return Controls()


def values_after(controls: Controls, model: Explorable, point: Point, cell: int | None = None) -> list[Any]:
    """What the components hold once they were shown a point."""
    return [update.get("value") for update in controls.show(model, point, cell)]


@pytest.mark.parametrize(
    ("model", "form"),
    [
        (shape([10]), "buttons"),
        (shape([2]), "buttons"),
        (shape([2, 2, 2]), "switches"),
        (shape([2, 3]), "buttons"),
        (shape([5] * 7), "cells"),
        (shape([51]), "cells"),
        (shape([2] * 65), "cells"),
        (shape([512] * 49, columns=7), "cells"),
        (shape([2] * 4, columns=2), "cells"),
    ],
)
def test_the_form_suits_the_variables(model: Explorable, form: str) -> None:
    assert form_of(model) == form


@pytest.mark.parametrize(
    ("model", "point"),
    [
        (shape([10]), Point((7,))),
        (shape([2, 2, 2]), Point((1, 0, 1))),
        (shape([3, 4, 5]), Point((2, 0, 4))),
        (shape([512] * 4, columns=2), Point((500, 1, 2, 3))),
        (shape([10], coordinates=12), Point((3,), tuple(n / 10 for n in range(12)))),
        (shape([2, 2], coordinates=2), Point((0, 0), (-4.0, 4.0))),
    ],
)
def test_a_point_that_is_shown_is_read_back(controls: Controls, model: Explorable, point: Point) -> None:
    shown = controls.show(model, point)
    assert len(shown) == len(controls.all)
    assert controls.read(model, point, values_after(controls, model, point)) == point


def test_what_a_visitor_moves_is_read(controls: Controls) -> None:
    model, point = shape([3, 4], coordinates=10), Point((0, 0), (0.5,) * 10)
    values = values_after(controls, model, point)
    values[controls.all.index(controls.buttons[1])] = 3
    values[controls.all.index(controls.sliders[7])] = -2.345
    assert controls.read(model, point, values) == Point((0, 3), (*(0.5,) * 7, -2.35, 0.5, 0.5))


def test_one_cell_of_many_is_changed(controls: Controls) -> None:
    model, point = shape([70] * 9, columns=3), Point(tuple(range(9)))
    values = values_after(controls, model, point, cell=5)
    assert values[controls.all.index(controls.cell)] == 5
    assert values[controls.all.index(controls.value)] == 5
    values[controls.all.index(controls.value)] = 69
    assert controls.read(model, point, values).choices == (0, 1, 2, 3, 4, 69, 6, 7, 8)


def test_the_cells_show_their_codes_in_rows(controls: Controls) -> None:
    model = shape([70] * 6, columns=3)
    shown = controls.show(model, Point((9, 8, 7, 6, 5, 4)))
    cells = shown[controls.all.index(controls.cell)]
    assert [name for name, _ in cells["choices"]] == ["9", "8", "7", "6", "5", "4"]
    assert cells["value"] == 4  # the middle: row 2, column 2
    assert "repeat(3," in shown[controls.all.index(controls.note)]["value"]
    many = controls.show(shape([5] * 7), Point((1,) * 7))[controls.all.index(controls.cell)]
    assert many["choices"][6] == ("z6: 1", 6)


def test_only_what_a_run_needs_is_shown(controls: Controls) -> None:
    visible = [update["visible"] for update in controls.show(shape([10], coordinates=3), Point((0,), (0.0,) * 3))]
    names = [component.label for component, seen in zip(controls.all, visible, strict=True) if seen]
    assert names == ["Variable 1", "Number 1", "Number 2", "Number 3"]


def test_controls_of_another_run_are_not_read(controls: Controls) -> None:
    old, new = shape([10]), shape([2, 2, 2])
    values = values_after(controls, old, Point((3,)))
    with pytest.raises(ValueError, match="still belong to another run"):
        controls.read(new, Point((3,)), values)
    with pytest.raises(ValueError, match="z0 has 3 values"):
        controls.read(shape([3]), Point((3,)), values)
