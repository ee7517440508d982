"""`argrad reproduce` from end to end on small settings: files, JSON, pictures, and errors in one line."""

import json
from pathlib import Path

import pytest
import torch

from argrad import cli
from argrad.cli.reproduce import EXPERIMENTS
from argrad.experiments import table1

FIGURE1 = ["reproduce", "figure1", "--quick", "--epochs", "1", "--draws", "100", "--examples", "5"]
FIGURE1 += ["--epsilons", "0.1", "--temperatures", "0.5", "--device", "cpu"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def one_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["reproduce", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("argrad: ")
    assert len(err.splitlines()) == 1, err
    return err


def test_quick_writes_under_a_name_of_its_own(capsys):
    Path("results").mkdir()
    Path("results/figure1.json").write_text("the full result")
    assert cli.main([*FIGURE1, "--json"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert json.loads(out) == json.loads(Path("results/figure1-quick.json").read_text())
    assert Path("results/figure1-quick.png").read_bytes().startswith(b"\x89PNG")
    assert Path("results/figure1.json").read_text() == "the full result"
    assert "not the paper's protocol" in err
    assert "QUICK" in err


def test_draws_a_result_again(capsys):
    assert cli.main([*FIGURE1, "--output", "here"]) == 0
    first = capsys.readouterr().out
    assert cli.main(["reproduce", "figure1", "--from", "here/figure1-quick.json", "--output", "there/deep"]) == 0
    second = capsys.readouterr().out
    assert first.split("\n\nWritten")[0] == second.split("\n\nWritten")[0]
    assert [path.name for path in Path("there/deep").iterdir()] == ["figure1-quick.png"]


def test_figure2_and_figure6_have_their_own_files(capsys):
    small = ["--quick", "--epochs", "1", "--rounds", "1", "--device", "cpu"]
    assert cli.main(["reproduce", "figure6", *small, "--k", "3"]) == 0
    assert cli.main(["reproduce", "figure2", *small]) == 0
    names = sorted(path.name for path in Path("results").iterdir())
    assert names == ["figure2-quick.json", "figure2-quick.png", "figure6-quick.json", "figure6-quick.png"]
    assert json.loads(Path("results/figure6-quick.json").read_text())["settings"]["k"] == [3]


def test_figure6_has_the_papers_k(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "argrad.experiments.figure2.run", lambda settings, progress: seen.append(settings.k) or {}["stop"]
    )
    with pytest.raises(KeyError):
        cli.main(["reproduce", "figure6"])
    assert seen == [(20, 30, 40, 50)]


def test_table1_without_a_picture(monkeypatch, capsys):
    bits = {"mnist": torch.zeros(1)}
    row = {"dataset": "mnist", "k": 10, "test_loss": [1.0], "nll": [1.0]}
    methods = ("exact", "direct", "straight-through", "gumbel-softmax", "as-published", "best", "em")
    result = {
        "quick": True,
        "settings": {"datasets": list(bits), "values": [10]},
        "rows": [{**row, "method": method} for method in methods],
    }
    monkeypatch.setattr(table1, "run", lambda settings, progress: result)
    assert cli.main(["reproduce", "table1", "--quick"]) == 0
    assert "QUICK" in capsys.readouterr().out
    assert [path.name for path in Path("results").iterdir()] == ["table1-quick.json"]


ON_THE_CPU = ("structures", "sequence-gan", "trajectory")


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_help_of_each(name, capsys):
    assert cli.main(["reproduce", name, "--help"]) == 0
    text = capsys.readouterr().out
    for word in ("--quick", "--output", "--from", "--json"):
        assert word in text
    assert ("--device" in text) == (name not in ON_THE_CPU)
    assert "type: ignore" not in text


def test_help_lists_them(capsys):
    assert cli.main(["reproduce", "--help"]) == 0
    text = capsys.readouterr().out
    for word in ("table1 ", "figure1 ", "epsilon-learning-rate ", "step-profile ", "argrad reproduce figure1 --quick"):
        assert word in text
    assert cli.main(["--help"]) == 0
    assert "argrad reproduce figure1 --quick" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["figure9"], "figure9"),
        ([], "figure1"),
        (["figure1", "--epochs", "0"], "epochs must be at least 1, got 0"),
        (["figure1", "--quick", "--device", "abacus"], "there is no device 'abacus'"),
        (["figure1", "--quick", "--dataset", "nothing-like-it"], "nothing-like-it"),
        (["figure2", "--k", "1"], "at least 2"),
        (["figure2", "--from", "missing.json"], "missing.json"),
    ],
)
def test_errors_are_one_line(arguments, words, capsys):
    err = one_error(capsys, *arguments)
    assert words in err.splitlines()[-1]


def test_a_file_that_is_no_result(capsys):
    Path("text.json").write_text("some text")
    Path("other.json").write_text('{"rows": []}')
    assert "is not JSON" in one_error(capsys, "figure1", "--from", "text.json")
    assert "is not a result of this experiment" in one_error(capsys, "figure2", "--from", "other.json")
