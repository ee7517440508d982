"""The comparison of games and likelihood: what it records, shows and refuses."""

import json
import math
import statistics
from dataclasses import replace

import pytest

from argrad.data.grammar import EXPRESSIONS
from argrad.experiments.sequence_gan import (
    LONGER,
    METHODS,
    PROTOCOLS,
    START,
    SequenceGANStudy,
    cells,
    format_table,
    grammar_entropy,
    markdown,
    plot,
    run,
    train_one,
)

TINY = SequenceGANStudy(quick=True, hidden=4)


def silent(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def result() -> dict:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("argrad.data.text.SENTENCES", {"train": 200, "validation": 60, "test": 60})
        return json.loads(json.dumps(run(TINY, silent)))


def test_every_method_is_there(result):
    assert [row["method"] for row in result["rows"]] == [START, LONGER, *METHODS]
    for row in result["rows"]:
        assert len(row["scores"]) == 1
        assert all(math.isfinite(value) for value in row["scores"][0].values())
        assert ("curves" in row) == ("best_epoch" in row) == (row["method"] in METHODS)
    assert {"command", "commit", "hardware", "software", "date", "protocols"} <= set(result)
    assert result["figure"] == "sequence_gan"
    assert result["protocols"]["expressions"]["split_seed"] == 1  # trials had split 0 …
    assert result["protocols"]["expressions"]["seed"] == 100  # … and smaller seeds
    assert result["command"] == "argrad reproduce sequence-gan --hidden 4 --quick --json"


def test_what_a_person_sees(result, tmp_path):
    assert format_table(result).startswith("QUICK")
    page = markdown(result)
    assert f"| {START} |" in page
    assert "The grammar has 9 rules" in page
    plot(result, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_games_start_where_likelihood_ended(monkeypatch):
    """A game without any move leaves what the likelihood row shows, whatever the estimator."""
    monkeypatch.setattr("argrad.data.text.SENTENCES", {"train": 200, "validation": 60, "test": 60})
    monkeypatch.setitem(PROTOCOLS, "expressions", replace(PROTOCOLS["expressions"], likelihood_epochs=2, epochs=1))
    study = SequenceGANStudy(("expressions",), seeds=1, hidden=4)  # one epoch is all warm-up
    start, *games = (train_one((study, "expressions", 3, method)) for method in (START, *METHODS))
    assert all(game["scores"] == start["scores"] for game in games)
    assert train_one((study, "expressions", 3, LONGER))["scores"]["nll"] < start["scores"]["nll"]


def test_means_over_seeds():
    row = {"scores": [{"divergence": 0.1, "distinct": 0.5}, {"divergence": 0.3, "distinct": 0.7}]}
    assert cells(row) == ["0.2000 ± 0.1414", "60.0 ± 14.1"]


def test_the_grammars_entropy():
    """Against sentences of another seed, within four standard errors of the difference."""
    surprise = [-EXPRESSIONS.log_prob(sentence) for sentence in EXPRESSIONS.sample(1000, seed=5)]
    standard_error = statistics.stdev(surprise) * (2 / 1000) ** 0.5
    assert abs(grammar_entropy(1000) - statistics.fmean(surprise)) < 4 * standard_error


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"seeds": 0}, "seeds must be at least 1"), ({"texts": ("novels",)}, "among expressions, names, got")],
)
def test_bad_settings(wrong, words):
    with pytest.raises(ValueError, match=words):
        SequenceGANStudy(**wrong)
