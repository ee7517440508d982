"""What a model makes of an image, as HTML: probabilities as bars, the continuous part as numbers."""

from __future__ import annotations

import html

from torch import Tensor

from argrad.app.explorable.base import Explorable, Posterior, Variable
from argrad.app.explore.pictures import image_html

__all__ = ["posterior_html"]

VALUES = 20
"""A variable with more values shows its most probable ones."""
MOST_PROBABLE = 8
"""So many of them."""
VARIABLES = 12
"""With more categorical variables each shows its most probable value only."""


def posterior_html(explorable: Explorable, image: Tensor, found: Posterior, words: str) -> str:
    """The image, its reconstruction, and the posterior.

    Args:
        explorable: the model.
        image: what it was shown.
        found: what it made of it.
        words: where the image is from and what was done to it.
    """
    pair = (
        f'<div class="explore-pair"><figure>{image_html(image, words)}<figcaption>the image</figcaption></figure>'
        f"<figure>{image_html(found.reconstruction, 'The reconstruction from the most probable code')}"
        "<figcaption>its reconstruction</figcaption></figure></div>"
    )
    return f'<p class="soft">{html.escape(words)}</p>{pair}{discrete(explorable, found)}{continuous(explorable, found)}'


def discrete(explorable: Explorable, found: Posterior) -> str:
    """The variables in the form that suits how many there are."""
    variables = explorable.variables
    if explorable.columns is not None:
        return cells(explorable.columns, variables, found)
    if all(len(variable.values) == 2 for variable in variables):
        rows = [(one.name, float(p[1])) for one, p in zip(variables, found.probabilities, strict=True)]
        return bars(f"Probability of {variables[0].values[1]}", rows)
    if len(variables) > VARIABLES:
        rows = [
            (f"{one.name} = {one.values[value]}", float(p[value]))
            for one, p, value in zip(variables, found.probabilities, found.point.choices, strict=True)
        ]
        return bars("The most probable value of each variable", rows)
    return "".join(values_of(one, p) for one, p in zip(variables, found.probabilities, strict=True))


def values_of(variable: Variable, probabilities: Tensor) -> str:
    """The values of one variable, or the most probable ones of many."""
    if len(variable.values) <= VALUES:
        return bars(
            f"Probability of each {variable.name}", list(zip(variable.values, probabilities.tolist(), strict=True))
        )
    top = probabilities.topk(MOST_PROBABLE)
    rows = [
        (variable.values[value], share) for share, value in zip(top.values.tolist(), top.indices.tolist(), strict=True)
    ]
    return bars(f"{variable.name}: the {MOST_PROBABLE} most probable of {len(variable.values)} values", rows)


def bars(title: str, rows: list[tuple[str, float]]) -> str:
    """A table of probabilities, each with a bar as long as it."""
    inside = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td class="explore-bar"><span style="width:{100 * share:.1f}%">'
        f"</span></td><td>{percent(share)}</td></tr>"
        for name, share in rows
    )
    return f'<table class="explore-bars"><caption>{html.escape(title)}</caption><tbody>{inside}</tbody></table>'


def percent(share: float) -> str:
    """A probability for people; certainty is said only where it is one.

    >>> percent(0.123), percent(0.9999), percent(0.00001), percent(0.0), percent(1.0)
    ('12.3 %', '> 99.9 %', '< 0.1 %', '0 %', '100 %')
    """
    if share in (0.0, 1.0):
        return f"{share:.0%}".replace("%", " %")
    if share < 0.001:
        return "< 0.1 %"
    return "> 99.9 %" if share > 0.999 else f"{100 * share:.1f} %"


def cells(columns: int, variables: tuple[Variable, ...], found: Posterior) -> str:
    """The most probable code of every cell and its probability, where the cell is."""
    body = ""
    for start in range(0, len(variables), columns):
        row = "".join(
            f'<td style="--share:{float(found.probabilities[cell][code]):.2f}">{variables[cell].values[code]}<br>'
            f"<small>{100 * float(found.probabilities[cell][code]):.0f}&nbsp;%</small></td>"
            for cell in range(start, start + columns)
            for code in (found.point.choices[cell],)
        )
        body += f"<tr>{row}</tr>"
    title = "The most probable code of each cell, and its probability"
    return (
        f'<div class="explore-wide"><table class="explore-cells"><caption>{title}</caption><tbody>{body}</tbody>'
        "</table></div>"
    )


def continuous(explorable: Explorable, found: Posterior) -> str:
    """Mean and spread of the coordinates."""
    if not explorable.coordinates:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{html.escape(one.name)}</th><td>{signed(mean)}</td><td>± {spread:.2f}</td></tr>'
        for one, mean, spread in zip(explorable.coordinates, found.point.coordinates, found.spreads, strict=True)
    )
    return (
        '<details><summary>The continuous part: mean and standard deviation</summary><table class="explore-numbers">'
        f"<tbody>{rows}</tbody></table></details>"
    )


def signed(number: float) -> str:
    """A number with its sign, a true minus.

    >>> signed(-0.5), signed(1.25)
    ('−0.50', '+1.25')
    """
    return f"{number:+.2f}".replace("-", "−")
