"""The controls of a point: switches for bits, buttons for few variables, a grid of cells for many, and sliders.

How many a run needs is known only when it is chosen, and a page's components are made before: so there is a fixed
set, of which each run shows what it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, final

import gradio as gr

from argrad.app.explorable.base import Explorable, Point

__all__ = ["Controls", "form_of"]

BUTTONS = 6
"""The most variables with buttons of their own."""
BUTTON_VALUES = 50
"""The most values that are buttons."""
SWITCHES = 64
"""The most bits that are switches."""
SLIDERS = 8
"""The most coordinates with a slider; the others stay as they were drawn."""

Form = Literal["switches", "buttons", "cells"]


def form_of(explorable: Explorable) -> Form:
    """What suits the variables."""
    sizes = [len(variable.values) for variable in explorable.variables]
    if explorable.columns is None and 1 < len(sizes) <= SWITCHES and max(sizes) == 2:
        return "switches"
    if explorable.columns is None and len(sizes) <= BUTTONS and max(sizes) <= BUTTON_VALUES:
        return "buttons"
    return "cells"


@final
class Controls:
    """The components, made where it is called; what they say is read and set as a point."""

    def __init__(self) -> None:
        self.switches = gr.CheckboxGroup(label="Switched on", visible=False)
        self.buttons = [gr.Radio(label=f"Variable {number + 1}", visible=False) for number in range(BUTTONS)]
        self.cell = gr.Radio(label="Which one to change", visible=False, elem_classes=["explore-picker"])
        self.value = gr.Slider(0, 1, step=1, label="Its value", visible=False)
        with gr.Row():
            self.sliders = [
                gr.Slider(-4, 4, step=0.01, label=f"Number {number + 1}", visible=False, min_width=220)
                for number in range(SLIDERS)
            ]
        self.note = gr.HTML(visible=False, elem_classes=["explore-flat"])

    @property
    def all(self) -> list[Any]:
        """Every component, in the order in which values are read and set."""
        return [self.switches, *self.buttons, self.cell, self.value, *self.sliders, self.note]

    @property
    def moved(self) -> list[Any]:
        """What happens when a visitor moves a control, the choice of a cell aside."""
        moving = [self.switches, *self.buttons, self.value, *self.sliders]
        return [component.input for component in moving]

    def read(self, explorable: Explorable, rest: Point, values: Sequence[Any]) -> Point:
        """The point that the controls say.

        Args:
            explorable: the model.
            rest: the point at which the controls were set, for what has no control.
            values: of :attr:`all`.
        """
        switched, buttons = values[0] or [], values[1 : 1 + BUTTONS]
        cell, value = values[1 + BUTTONS], values[2 + BUTTONS]
        sliders = values[3 + BUTTONS : 3 + BUTTONS + SLIDERS]
        count = len(explorable.variables)
        require_same_run(explorable, rest)
        match form_of(explorable):
            case "switches":
                choices = tuple(int(number in switched) for number in range(count))
            case "buttons":
                choices = tuple(
                    old if new is None else int(new) for old, new in zip(rest.choices, buttons, strict=False)
                )
            case "cells":
                choices = rest.with_choice(int(cell or 0), int(value)).choices
        for variable, choice in zip(explorable.variables, choices, strict=True):
            if not 0 <= choice < len(variable.values):
                raise ValueError(f"{variable.name} has {len(variable.values)} values; choose one of them")
        moved = zip(explorable.coordinates, sliders, strict=False)
        numbers = tuple(one.inside(float(number)) for one, number in moved)
        return Point(choices, (*numbers, *rest.coordinates[len(numbers) :]))

    def show(self, explorable: Explorable, point: Point, cell: int | None = None) -> list[Any]:
        """What to set the components :attr:`all` to, so that they say the point.

        Args:
            explorable: the model.
            point: what to say.
            cell: which one can be changed, where there are too many for controls of their own; the middle one at first.
        """
        form, variables = form_of(explorable), explorable.variables
        switches = gr.update(visible=False, choices=[], value=[])
        if form == "switches":
            switches = gr.update(
                choices=[(variable.name, number) for number, variable in enumerate(variables)],
                value=[number for number, choice in enumerate(point.choices) if choice],
                visible=True,
            )
        buttons: list[Any] = [gr.update(visible=False, choices=[], value=None) for _ in range(BUTTONS)]
        if form == "buttons":
            for number, variable in enumerate(variables):
                named = [(name, value) for value, name in enumerate(variable.values)]
                label = variable.name.capitalize()
                buttons[number] = gr.update(choices=named, value=point.choices[number], label=label, visible=True)
        chosen = middle(explorable) if cell is None else cell
        cells = self.show_cells(explorable, point, chosen) if form == "cells" else hidden_cells()
        sliders: list[Any] = [gr.update(visible=False, value=0) for _ in range(SLIDERS)]
        for number, one in enumerate(explorable.coordinates[:SLIDERS]):
            value = point.coordinates[number]
            label = one.name.capitalize()
            sliders[number] = gr.update(minimum=one.low, maximum=one.high, value=value, label=label, visible=True)
        return [
            switches,
            *buttons,
            *cells,
            *sliders,
            gr.update(value=self.words(explorable), visible=bool(self.words(explorable))),
        ]

    def show_cells(self, explorable: Explorable, point: Point, cell: int) -> list[Any]:
        """What to set the choice of a cell and its value to."""
        variable = explorable.variables[cell]
        value = gr.update(
            minimum=0,
            maximum=len(variable.values) - 1,
            value=point.choices[cell],
            label=f"Code of {variable.name}" if explorable.columns else f"Value of {variable.name}",
            visible=True,
        )
        label = "The code of each cell; choose one to change it" if explorable.columns else "Choose one to change it"
        choices = cell_choices(explorable, point)
        return [gr.update(choices=choices, value=cell, label=label, visible=True), value]

    def words(self, explorable: Explorable) -> str:
        """The layout of the cells, and what has no control."""
        style = ""
        if form_of(explorable) == "cells" and explorable.columns is not None:
            across = f"repeat({explorable.columns}, minmax(0, 1fr))"
            style = f"<style>.explore-picker .wrap {{ display: grid; grid-template-columns: {across}; }}</style>"
        more = len(explorable.coordinates) - SLIDERS
        if more > 0:
            return f'{style}<p class="soft">The other {more} numbers stay as they were drawn.</p>'
        return style


def middle(explorable: Explorable) -> int:
    """The cell that can be changed at first: one in the middle of the image, where something is to be seen."""
    if explorable.columns is None:
        return 0
    rows = len(explorable.variables) // explorable.columns
    return rows // 2 * explorable.columns + explorable.columns // 2


def cell_choices(explorable: Explorable, point: Point) -> list[tuple[str, int]]:
    """What each cell holds, and its number."""
    pairs = zip(explorable.variables, point.choices, strict=True)
    held = [(variable.name, variable.values[choice]) for variable, choice in pairs]
    if explorable.columns is not None:
        return [(value, number) for number, (_, value) in enumerate(held)]
    return [(f"{name}: {value}", number) for number, (name, value) in enumerate(held)]


def hidden_cells() -> list[Any]:
    """Neither cells nor their value."""
    return [gr.update(visible=False, choices=[], value=None), gr.update(visible=False, value=0)]


def require_same_run(explorable: Explorable, point: Point) -> None:
    """Raise a ValueError where a point belongs to another model: the page was still loading the new one."""
    same = len(point.choices) == len(explorable.variables) and len(point.coordinates) == len(explorable.coordinates)
    if not same:
        raise ValueError("the controls still belong to another run; choose the run again")
