"""What the documentation says about the estimators is what the estimators say about themselves."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import argrad
from argrad import Bits, Categorical
from argrad.estimators import ESTIMATORS
from argrad.experiments.published import GENERAL_OVERTAKES_SUPERMODULAR

ROOT = Path(__file__).resolve().parent.parent
YES_OR_NO = {True: "yes", False: "no"}


def table() -> dict[str, dict[str, str]]:
    """The rows of the table of estimators by name, each by column heading."""
    page = (ROOT / "docs/estimators.md").read_text(encoding="utf-8")
    section = page.partition("## The estimators")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert header[0] == "Estimator"
    return {row[0].strip("`"): dict(zip(header, row, strict=True)) for row in rows}


def formula(text: str, **numbers: int) -> int:
    """The value of a formula as the table writes it."""
    written = text.replace("kⁿ", "k**n").replace("n(", "n*(").replace("−", "-")
    assert re.fullmatch(r"[nkS\d\s()*+-]+", written), f"not a formula: {text}"
    return eval(written, {"__builtins__": {}}, numbers)


def test_the_table_lists_every_estimator_in_order():
    assert tuple(table()) == ESTIMATORS


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_table_says_what_the_estimator_declares(name):
    row, estimator = table()[name], getattr(argrad, name)()
    assert row["Unbiased"] == YES_OR_NO[estimator.unbiased]
    assert row["Needs the cost's gradient"] == YES_OR_NO[estimator.needs_cost_gradient]
    one, several, bits = (
        Categorical(torch.zeros(2, 5)),
        Categorical(torch.zeros(2, 3, 4), event_dims=2),
        Bits(torch.zeros(2, 6)),
    )
    assert row["Latents"] == (
        "any" if estimator.supports(one) else "bits" if estimator.supports(bits) else "permutations"
    )
    for latent in (one, several, bits):
        if estimator.supports(latent):
            expected = formula(row["Evaluations per example"], n=latent.variables, k=latent.values, S=1)
            assert estimator.cost_evaluations(latent) == expected


def test_the_table_counts_samples():
    row = table()["Reinforce"]["Evaluations per example"]
    assert argrad.Reinforce(samples=7).cost_evaluations(Bits(torch.zeros(2))) == formula(row, S=7)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_has_a_section(name):
    page = (ROOT / "docs/estimators.md").read_text(encoding="utf-8")
    assert re.search(rf"^### {name}$", page, re.M)


def test_named_tests_exist():
    """The errata name the test that shows each of them."""
    text = (ROOT / "docs/errata.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) >= 10
    for path, test in named:
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no {test}"


def test_the_page_of_results_has_the_epoch_that_the_paper_prints():
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    assert f"in the paper's text, in epoch {GENERAL_OVERTAKES_SUPERMODULAR}." in text


def load_fill_docs() -> Any:
    specification = importlib.util.spec_from_file_location("fill_docs", ROOT / "benchmarks" / "fill_docs.py")
    assert specification is not None
    assert specification.loader is not None
    fill_docs = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(fill_docs)
    return fill_docs


@pytest.mark.parametrize("marker", load_fill_docs().TABLES)
def test_measured_tables_are_those_of_the_results(marker: str) -> None:
    """`python benchmarks/fill_docs.py` writes them; nobody types them."""
    page, text = load_fill_docs().filled(marker)
    assert page.read_text() == text


def test_a_result_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    fill_docs = load_fill_docs()
    said = fill_docs.contents("figure1", tmp_path / "figure1.json", "argrad.experiments.figure1")
    assert "has not been made" in said
    (tmp_path / "figure1.json").write_text('{"quick": true}')
    with pytest.raises(ValueError, match="quick"):
        fill_docs.contents("figure1", tmp_path / "figure1.json", "argrad.experiments.figure1")


def test_a_result_that_is_there_is_shown_with_its_picture(tmp_path: Path) -> None:
    fill_docs = load_fill_docs()
    fields = {"command": "argrad reproduce table1", "hardware": "abacus", "software": "beads", "date": "today"}
    (tmp_path / "table1.json").write_text(json.dumps({**fields, "quick": False, "rows": []}))
    (tmp_path / "table1.png").write_bytes(b"")
    said = fill_docs.contents("table1", tmp_path / "table1.json", "argrad.experiments.table1_page")
    assert f"](../{tmp_path.name}/table1.png)" in said
    assert "Measured by `argrad reproduce table1` on abacus" in said
