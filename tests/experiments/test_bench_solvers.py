"""The peers of the solver benchmark solve the same problems, and the result says so."""

import json

import pytest
import torch

from argrad import cli
from argrad.experiments.bench_solvers import (
    BenchSolvers,
    by_highs,
    by_pymaxflow,
    format_table,
    make_problems,
    markdown,
    run,
)
from argrad.solvers import pairwise_by_enumeration, pairwise_by_max_flow, pairwise_score

pytestmark = pytest.mark.xdist_group("compiled pairwise solvers")

TINY = BenchSolvers(batch=2, rounds=2, highs_problems=1)


@pytest.fixture(scope="module")
def result() -> dict:
    return run(TINY, progress=lambda line: None)


@pytest.mark.parametrize("n", [1, 2, 6])
@pytest.mark.parametrize("kind", ["general", "attractive"])
def test_highs_finds_the_optimum(kind, n):
    unary, pairwise = make_problems(kind, 5, n, torch.Generator().manual_seed(0))
    expected = pairwise_by_enumeration(unary, pairwise)
    torch.testing.assert_close(
        pairwise_score(unary, pairwise, by_highs(unary, pairwise)), pairwise_score(unary, pairwise, expected)
    )


@pytest.mark.parametrize("n", [1, 2, 15])
def test_pymaxflow_finds_the_optimum(n):
    pytest.importorskip("maxflow")
    unary, pairwise = make_problems("attractive", 5, n, torch.Generator().manual_seed(0))
    expected = pairwise_by_enumeration(unary, pairwise)
    torch.testing.assert_close(
        pairwise_score(unary, pairwise, by_pymaxflow(unary, pairwise)), pairwise_score(unary, pairwise, expected)
    )


@pytest.mark.parametrize("n", [15, 50])
def test_attractive_problems_are_not_easy(n):
    """Neither all zeros nor all ones, which would be found without any flow."""
    share = pairwise_by_max_flow(*make_problems("attractive", 100, n, torch.Generator().manual_seed(0))).mean(-1)
    assert ((share > 0) & (share < 1)).float().mean() > 0.7


def test_result_is_json_and_every_answer_is_the_optimum(result):
    result = json.loads(json.dumps(result))
    assert {"command", "commit", "date", "hardware", "software", "settings", "threads", "packages"} <= result.keys()
    assert len({row["contest"] for row in result["rows"]}) == 4
    for row in result["rows"]:
        assert row["below_optimum"] < 1e-4
        # What was proven was proven by prove_pairwise, and says nothing of the peers.
        assert row.get("optima_proven") == (None if "loop" in row["name"] else "4 of 4")
        low, high = row["milliseconds"]["quartiles"]
        assert 0 < low <= row["milliseconds"]["median"] <= high
    compared = [row for row in result["rows"] if row.get("peer") == "HiGHS, loop"]
    assert len(compared) == 3
    assert all(row["times_faster"]["median"] > 1 for row in compared)


def test_tables_show_every_row(result):
    assert all(row["name"] in text for row in result["rows"] for text in (format_table(result), markdown(result)))
    table = markdown(result).partition("\n\n")[0]
    assert table.count("\n") == len(result["rows"]) + 1


def test_tables_say_how_much_of_a_batch_the_peers_solve(result):
    words = "HiGHS solves 1 of the 2 problems of a batch, one after the other; its time is that, times 2."
    assert words in markdown(result)
    assert words in format_table(result)
    whole = result | {"settings": result["settings"] | {"highs_problems": 7}}
    assert "HiGHS solves all 2 problems of a batch, one after the other." in markdown(whole)
    assert ("PyMaxflow solves all" in markdown(result)) == ("PyMaxflow" not in result["skipped"])


def test_settings_are_checked():
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        BenchSolvers(rounds=0)


def test_command(capsys):
    assert cli.main(["bench", "solvers", "--help"]) == 0
    assert "--highs-problems" in capsys.readouterr().out
