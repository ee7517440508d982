"""Draw the pictures of the primer: run the Python of its pages, keep the PNG files that it writes.

python benchmarks/primer_figures.py                   # every page, into docs/images/primer
python benchmarks/primer_figures.py 1-gumbel-max      # one page
"""

import contextlib
import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "primer"
PICTURES = ROOT / "docs" / "images" / "primer"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def pages() -> list[Path]:
    """The numbered pages, in order; the index has no pictures."""
    return sorted(PAGES.glob("[0-9]*.md"))


def blocks(page: Path) -> list[str]:
    """The Python of a page on the lines where it stands; not the ``>>>`` sessions, which only show what there is."""
    text = page.read_text(encoding="utf-8")
    found = [(text.count("\n", 0, block.start(1)), block[1]) for block in BLOCK.finditer(text)]
    return ["\n" * lines_before + body for lines_before, body in found if not body.startswith(">>>")]


def draw(page: Path, folder: Path) -> list[Path]:
    """Run a page in an empty folder; the pictures that it wrote there."""
    names = {"__name__": page.stem}
    with contextlib.chdir(folder):
        for block in blocks(page):
            exec(compile(block, str(page), "exec", dont_inherit=True), names)
    return sorted(folder.glob("*.png"))


def main(chosen: list[str]) -> int:
    """Draw the chosen pages, or all."""
    known = {page.stem: page for page in pages()}
    unknown = [name for name in chosen if name not in known]
    if unknown:
        print(f"no such page: {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 1
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in chosen or known:
        with tempfile.TemporaryDirectory() as folder:
            for picture in draw(known[name], Path(folder)):
                shutil.copy(picture, PICTURES)
                print(f"{name}: {(PICTURES / picture.name).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
