"""An extension of griffe: docstrings, written for ``help()`` with Sphinx's roles, as Markdown for mkdocstrings.

Formulas (``.. math::``, ``:math:``) become MathML, which browsers draw by themselves, without a script. Roles become
links where the site has the object, and code where it has not. Examples become code blocks.
"""

import importlib
import re
from pathlib import Path

import griffe
from latex2mathml.converter import convert

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
DOCUMENTED = {
    name
    for page in REFERENCE.glob("*.md")
    for name in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.M)
}
"""The modules that have a place in the reference."""

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.M)
DISPLAY = re.compile(
    r"^(?P<indent> *)\.\. math::(?P<first>.*)(?P<more>(?:\n(?:(?P=indent) +\S.*| *(?=\n(?P=indent) +\S)))*)", re.M
)
INLINE = re.compile(r":math:`([^`]+)`", re.S)
ROLE = re.compile(r":(?:class|meth|func|mod|attr|data|exc):`~?([^`]+)`")
CODE = re.compile(r"(```.*?```|``.+?``|`[^`]+`)", re.S)
TAG = re.compile(r"<(?=[A-Za-z/!?])")


class Docstrings(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Called by griffe for every module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """One docstring."""
    kept: list[str] = []

    def keep(markdown: str) -> str:
        """A placeholder, so that what is finished is not read again."""
        kept.append(markdown)
        return f"\x02{len(kept) - 1}\x03"

    def example(found: re.Match[str]) -> str:
        indent = found[1]
        return keep(f"{indent}```pycon\n{found[0]}\n{indent}```")

    def display(found: re.Match[str]) -> str:
        return found["indent"] + keep(mathml(found["first"] + found["more"], "block"))

    text = EXAMPLE.sub(example, text)
    text = DISPLAY.sub(display, text)
    text = INLINE.sub(lambda found: keep(mathml(found[1], "inline")), text)
    text = ROLE.sub(lambda found: keep(reference(found[1])), text)
    text = CODE.sub(lambda found: keep(found[0]), text)
    text = TAG.sub("&lt;", text)  # <w, z> is an inner product, not a tag
    while "\x02" in text:
        text = re.sub(r"\x02(\d+)\x03", lambda found: kept[int(found[1])], text)
    return text


def mathml(latex: str, display: str) -> str:
    """A formula on one line, so that Markdown takes it as it is."""
    return convert(" ".join(latex.split()), display=display)


def reference(name: str) -> str:
    """A link to the object if the site has it, else its name as code."""
    target = canonical(name)
    return f"[`{name}`][{target}]" if target else f"`{name}`"


def canonical(name: str) -> str | None:
    """Where the reference has an object: argrad.Direct is argrad.estimators.direct.Direct; None if it has not."""
    if name in DOCUMENTED:
        return name
    if not name.startswith("argrad."):
        return None
    found: object = importlib.import_module("argrad")
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    module = getattr(found, "__module__", None)
    qualified = getattr(found, "__qualname__", None)
    return f"{module}.{qualified}" if module in DOCUMENTED and qualified else None
