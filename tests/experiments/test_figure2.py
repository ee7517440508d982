"""Figure 2: every method, k and seed has its curve, seconds are steps times their cost, Table 1 can lend its own."""

import json

import pytest

from argrad.experiments.figure2 import Figure2, format_table, markdown, name_of, plot, run_figure2
from argrad.experiments.step_cost import METHODS
from tiny_images import silent, tiny_images

TINY = Figure2(k=(3, 5), epochs=8, seeds=(0, 1), batch_size=10, rounds=2, quick=True)


@pytest.fixture(scope="module")
def result() -> dict:
    return run_figure2({"tiny": tiny_images()}, TINY, progress=silent)


def test_result_is_json_with_every_curve(result):
    result = json.loads(json.dumps(result, allow_nan=False))
    assert {"command", "commit", "hardware", "date", "settings", "quick", "curves", "step_cost"} <= result.keys()
    assert [(curve["k"], curve["method"]) for curve in result["curves"]] == [(k, m) for k in (3, 5) for m in METHODS]
    for curve in result["curves"]:
        assert [len(row) for row in curve["test_loss"]] == [8, 8]
        assert curve["test_loss"][0] != curve["test_loss"][1]
        assert curve["steps_per_epoch"] == 6
    assert result["figure"] == "figure6"


def test_every_method_learns(result):
    for curve in result["curves"]:
        for row, best in zip(curve["test_loss"], curve["test_loss_at_best_validation"], strict=True):
            assert row[-1] < row[0] - 0.5
            assert min(row) - 1e-3 <= best <= row[0]


def test_seconds_are_steps_times_their_cost(result):
    cost = next(cost for cost in result["step_cost"] if cost["k"] == 5)
    assert [cost["k"] for cost in result["step_cost"]] == [3, 5]  # one device here: the CPU, once
    for curve in result["curves"]:
        if curve["k"] == 5:
            step = cost["milliseconds"][curve["method"]]["median"]
            assert curve["seconds_per_epoch"] == pytest.approx(6 * step / 1000, rel=1e-3)


def test_words_and_picture(result, tmp_path):
    assert format_table(result).startswith("QUICK")
    assert "the paper says 1.5" in format_table(result)
    assert markdown(result).count("| tiny |") == 8
    plot(result, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_names_of_the_figures():
    assert name_of(Figure2()) == "figure2"
    assert name_of(Figure2(k=(20, 30, 40, 50))) == "figure6"
    full = Figure2().effective()
    assert (full.datasets, full.epochs, full.seeds) == (("mnist",), 300, (0, 1, 2))


def test_curves_of_table1(tmp_path):
    table = {
        "rows": [
            {"dataset": "tiny", "k": 3, "method": method, "test_loss": [5.0, 6.0]}
            | ({"is": "direct ε=0.1"} if method == "direct" else {})
            for method in METHODS
        ],
        "curves": {
            "tiny": {
                f"{name} k=3": [9.0, 5.0 + number]
                for number, name in enumerate(("exact", "direct ε=0.1", "gumbel-softmax", "straight-through"))
            }
        },
    }
    path = tmp_path / "table1.json"
    path.write_text(json.dumps(table))
    settings = Figure2(k=(3,), rounds=1, batch_size=10, table1=str(path))
    found = run_figure2({"tiny": tiny_images()}, settings, progress=silent)["curves"]
    assert [curve["test_loss"] for curve in found] == [[[9.0, 5.0 + number]] for number in range(4)]
    assert found[1]["is"] == "direct ε=0.1"
    with pytest.raises(ValueError, match="no curve of exact on tiny with k = 4"):
        run_figure2({"tiny": tiny_images()}, Figure2(k=(4,), rounds=1, table1=str(path)), progress=silent)


@pytest.mark.parametrize("wrong", [{"k": ()}, {"k": (1,)}, {"epochs": 0}, {"epsilon": 0.0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=r"at least|positive"):
        Figure2(**wrong)
