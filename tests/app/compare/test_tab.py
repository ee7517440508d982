"""The tab Compare: tables, curves and pictures of several runs, and the page as a visitor uses it."""

import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from argrad.app.compare.curves import apart, curves, in_words, short_name
from argrad.app.compare.pictures import cards_html, samples, usage_bars
from argrad.app.compare.records import (
    Record,
    differences_html,
    facts,
    latent_of,
    read_record,
    report_link,
    table_html,
    warning_html,
)
from argrad.app.compare.tab import MOST, curves_html, records_of
from argrad.app.explorable.runs import open_explorable
from argrad.app.library import Kind, Library, Run


@pytest.fixture
def records(library: Library) -> list[Record]:
    return records_of(library, ["codes", "bits"])


def record(name: str = "run", kind: Kind = "vae", losses: tuple[float, ...] = (3.0, 2.0, 2.5), **config: Any) -> Record:
    rows = [{"epoch": n + 1, "loss": loss, "seconds": 2.0 * (n + 1)} for n, loss in enumerate(losses)]
    return Record(Run(name, Path("/nowhere"), kind, config), rows)


def test_facts_of_a_run(records: list[Record]) -> None:
    found = facts(records[0])
    assert found["Kind"] == "discrete VAE"
    assert (found["Data"], found["Latent"], found["Estimator"]) == ("digits", "one of 10", "direct")
    assert found["Epochs"] == "8"
    best = min(records[0].history, key=lambda row: float(row["loss"]))
    assert found["Best validation loss"] == f"{best['loss']:.2f} (epoch {best['epoch']})"
    assert found["Codes used"] == f"{best['used_codes']:.0%}"
    assert facts(records[1])["Latent"] == "6 bits"


@pytest.mark.parametrize(
    ("kind", "config", "words"),
    [
        ("vae", {"latent": "categorical", "variables": 3, "values": 4}, "3 times one of 4"),
        ("classify", {"recipe": {"latent": 10}}, "a class and 10 numbers"),
        ("attributes", {"attribute_names": ["a", "b"], "settings": {"remainder": 5}}, "2 attributes and 5 numbers"),
        ("tokenize", {"codes": 512}, "cells, each one of 512"),
        ("complete", {"components": 8, "dimension": 16}, "one of 8 Gaussians of 16 numbers"),
        ("write", {"sequence": 30}, "up to 30 symbols"),
        ("segment", {}, "a label for each voxel"),
        ("tokenize", {}, "cells, each one of ?"),
    ],
)
def test_latents_in_words(kind: Kind, config: dict[str, Any], words: str) -> None:
    assert latent_of(kind, config) == words


def test_the_table_links_to_each_report_and_escapes_names(records: list[Record]) -> None:
    page = table_html(records)
    assert re.findall(r'href="([^"]*)"', page) == ["/report/codes", "/report/bits"]
    assert "Accuracy" not in page
    odd = Run("a b/<i>?", records[0].run.path, "vae", {})
    assert 'href="/report/a%20b/%3Ci%3E%3F"' in report_link(odd)
    assert "&lt;i&gt;" in report_link(odd)
    assert "<b>" not in table_html([record("<b>", data="<b>")])


def test_only_settings_that_differ_are_shown(records: list[Record]) -> None:
    names = re.findall(r"<code>([^<]*)</code>", differences_html(records))
    assert sorted(names) == ["estimator", "latent", "variables"]
    assert "the same" in differences_html([records[0], records[0]])
    assert "another run" in differences_html(records[:1])
    nested = [record(a={"b": 1}), record(a={"b": 2})]
    assert "<code>a.b</code>" in differences_html(nested)
    mixed = [record(epochs=1, codes=5), record(kind="classify", epochs=2, labels=5)]
    assert re.findall(r"<code>([^<]*)</code>", differences_html(mixed)) == ["epochs"]


def test_losses_that_do_not_mean_the_same_are_marked() -> None:
    assert warning_html([record(data="a"), record(data="a")]) == ""
    assert "different data" in warning_html([record(data="a"), record(data="b")])
    assert "different kinds" in warning_html([record(), record(kind="classify")])


def test_curves_show_every_run_with_a_label() -> None:
    several = [record(f"run {number}", losses=(3.0 + number, 2.0, 1.0)) for number in range(MOST)]
    for by, last in (("epoch", 3.0), ("seconds", 6.0)):
        axes = curves(several, by).axes[0]  # type: ignore[arg-type]
        assert len(axes.lines) == MOST
        assert axes.lines[2].get_xydata().tolist()[-1] == [last, 1.0]  # type: ignore[union-attr]
        heights = sorted(text.get_position()[1] for text in axes.texts)
        assert len(heights) == MOST
        assert min(b - a for a, b in itertools.pairwise(heights)) > 0.05
        assert len({line.get_color() for line in axes.lines}) == MOST
        assert "run 5 goes from 8.00 to 1.00" in in_words(several, by)  # type: ignore[arg-type]


def test_runs_without_metrics_can_be_compared(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1, "los')
    broken = read_record(Run("broken", tmp_path, "segment", {}))
    assert broken.history == []
    assert broken.best is None
    assert "broken" in table_html([broken, record()])
    assert "nothing was recorded" in curves_html([broken])
    rows = [{"epoch": 1, "loss": float("nan")}, {"epoch": 2, "loss": 1.0}, {"loss": 3.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [row["epoch"] for row in read_record(broken.run).history] == [2]


def test_labels_stand_apart_in_their_order() -> None:
    heights = apart([0.0, 0.0, 0.01, 0.5, 0.5], 0.07)
    assert heights == sorted(heights)
    assert min(heights) >= 0
    assert min(b - a for a, b in itertools.pairwise(heights)) > 0.0699
    assert apart([0.2, 0.8], 0.07) == [0.2, 0.8]
    assert short_name("short") == "short"


def test_samples_and_usage_of_a_run(library: Library) -> None:
    codes = open_explorable(library, library.find("codes"))
    words, images = samples(codes)
    assert (words, len(images)) == ("The image of every code", 10)
    bits = open_explorable(library, library.find("bits"))
    words, images = samples(bits)
    assert (words, len(images)) == ("Images drawn from the prior", 24)
    shares = bits.usage()
    assert shares is not None
    drawing, said = usage_bars(bits, shares)
    assert [bar.get_height() for bar in drawing.axes[0].patches] == pytest.approx(shares[:, 1].tolist())  # type: ignore[attr-defined]
    assert "Use of 6 bits" in said


def test_a_run_that_cannot_be_loaded_does_not_hide_the_others(library: Library, tmp_path: Path) -> None:
    codes = library.find("codes")
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text(json.dumps({**codes.config, "data": "/no/<such>/data"}))
    lost = Run("lost", tmp_path, "vae", {})
    page = cards_html(library, [lost, codes, Run("scan", tmp_path, "segment", {})])
    assert page.count("<section>") == 3
    assert "<such>" not in page
    assert "The image of every code of codes" in page
    assert "has a tab of its own" in page


def test_one_to_six_runs(library: Library) -> None:
    with pytest.raises(ValueError, match="choose at least one run"):
        records_of(library, [])
    with pytest.raises(ValueError, match="at most 6 runs"):
        records_of(library, ["codes"] * 7)


# In a browser


def opened(visitor: Any, **size: int) -> Any:
    page = visitor.open("Compare", **size)
    page.set_default_timeout(60_000)
    page.locator(".compare-cards section").nth(1).wait_for()
    return page


@pytest.mark.slow
def test_runs_are_chosen_and_their_reports_opened(visitor: Any) -> None:
    page = opened(visitor)
    assert page.locator(".compare-curves img").count() == 2
    assert page.locator(".compare-table").first.locator("tbody tr").count() == 2
    with page.context.expect_page() as report:
        page.locator(".compare-table a").first.click()
    report.value.get_by_role("heading", level=1).wait_for()
    report.value.close()
    page.get_by_label("Runs to compare").focus()
    page.keyboard.press("Backspace")
    page.wait_for_function("document.querySelectorAll('.compare-cards section').length == 1")
    if folder := os.environ.get("ARGRAD_SCREENSHOTS"):
        page = opened(visitor)
        page.screenshot(path=str(Path(folder) / "compare.png"), full_page=True)
    visitor.check()


@pytest.mark.slow
def test_on_a_phone_wide_tables_scroll_in_their_box(visitor: Any) -> None:
    page = opened(visitor, width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("(box => box.scrollWidth > box.clientWidth)(document.querySelector('.compare-wide'))")
    visitor.check()
