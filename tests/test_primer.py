"""The primer: its pages name what they must, are in order, and draw the pictures that they show.

That the code of the pages runs is tested in `test_readme.py`, block by block; here whole pages are run to compare
pictures.
"""

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
INDEX = ROOT / "docs" / "primer" / "README.md"
SOMEWHERE_ELSE = re.compile(r"/work/|/tmp/|/home/|localhost|TODO|FIXME")


def load_primer_figures() -> Any:
    specification = importlib.util.spec_from_file_location("primer_figures", ROOT / "benchmarks" / "primer_figures.py")
    assert specification is not None
    assert specification.loader is not None
    primer_figures = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(primer_figures)
    return primer_figures


primer_figures = load_primer_figures()
PAGES = primer_figures.pages()


def pictures_shown(page: Path) -> list[str]:
    return re.findall(r"!\[[^\]]{40,}\]\(\.\./images/primer/([\w-]+\.png)\)", page.read_text(encoding="utf-8"))


def difference(first: Path, second: Path) -> float:
    """Mean absolute difference of two pictures, 0 to 1; 1 where even their sizes differ."""
    one, other = (np.asarray(Image.open(path).convert("L"), dtype=float) / 255 for path in (first, second))
    return float(np.abs(one - other).mean()) if one.shape == other.shape else 1.0


def test_there_are_seven_pages_and_the_index_has_them_in_order() -> None:
    listed = re.findall(r"^\| \[[^]]+\]\(([\w-]+\.md)\)", INDEX.read_text(encoding="utf-8"), re.M)
    assert listed == [page.name for page in PAGES]
    assert [page.name[0] for page in PAGES] == list("1234567")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_all_its_parts(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {page.name[0]}. ")
    assert re.search(r"^## (The slip|Slips) in the sources?$", text, re.M), "says which slip it corrects"
    assert "(../errata.md)" in text
    assert "python benchmarks/primer_figures.py" in text, "names the command that draws"
    assert pictures_shown(page), "shows a picture, described in words"
    code = "".join(primer_figures.blocks(page))
    assert "assert" in code
    for picture in pictures_shown(page):
        assert f'savefig("{picture}"' in code, "draws it itself"
    assert not SOMEWHERE_ELSE.search(text)
    assert all(len(line) <= 120 for line in code.splitlines())


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem[0] != "7"], ids=lambda page: page.stem)
def test_a_page_with_a_claim_has_its_proof(page: Path) -> None:
    assert "∎" in page.read_text(encoding="utf-8")


def test_pages_lead_to_one_another() -> None:
    for page, following in zip(PAGES, [*PAGES[1:], INDEX], strict=True):
        last_line = page.read_text(encoding="utf-8").splitlines()[-1]
        assert f"]({following.name})" in last_line


def test_every_picture_is_shown_and_is_small() -> None:
    shown = {picture for page in PAGES for picture in pictures_shown(page)}
    kept = {path.name: path.stat().st_size for path in primer_figures.PICTURES.glob("*")}
    assert set(kept) == shown
    assert max(kept.values()) < 200_000


def test_a_page_draws_the_picture_that_it_shows(tmp_path: Path) -> None:
    (drawn,) = primer_figures.draw(PAGES[1], tmp_path)
    assert difference(drawn, primer_figures.PICTURES / drawn.name) < 0.01
    assert difference(drawn, primer_figures.PICTURES / "gumbel-max.png") > 0.01  # the comparison can fail


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_draws_the_picture_that_it_shows(page: Path, tmp_path: Path) -> None:
    (drawn,) = primer_figures.draw(page, tmp_path)
    allowed = 0.03 if page.stem[0] == "5" else 0.01  # 400 steps of training end a little elsewhere on another machine
    assert difference(drawn, primer_figures.PICTURES / drawn.name) < allowed


def test_the_command_draws_one_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "1-tiny.md"
    page.write_text('```python\nopen("tiny.png", "w").close()\nn = 2\n```\n\n```python\n>>> n\n2\n```\n')
    monkeypatch.setattr(primer_figures, "ROOT", tmp_path)
    monkeypatch.setattr(primer_figures, "PAGES", tmp_path)
    monkeypatch.setattr(primer_figures, "PICTURES", tmp_path / "images")
    assert primer_figures.main(["1-tiny"]) == 0
    assert (tmp_path / "images" / "tiny.png").exists()
    assert capsys.readouterr().out == "1-tiny: images/tiny.png\n"


def test_a_page_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert primer_figures.main(["8-nothing"]) == 1
    assert "no such page: 8-nothing; there are 1-gumbel-max, " in capsys.readouterr().err
