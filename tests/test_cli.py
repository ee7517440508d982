"""The command line: help, JSON, pictures, and errors that are one line."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from argrad import __version__, cli
from argrad.experiments.digits_problem import DigitsProblem, make_problem
from argrad.experiments.problems import toy_problem

QUICK = ["--samples", "100", "--train-steps", "2"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def problem_file(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    path = tmp_path / "mine.npz"
    np.savez(path, logits=generator.normal(size=(3, 4)), costs=generator.normal(size=(3, 4)))
    return path


def one_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail: exit code 2, nothing on stdout, one line on stderr."""
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("argrad: ")
    assert len(err.splitlines()) == 1, err
    return err


class TestHelp:
    def test_lists_the_commands_with_examples(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["--help"]) == 0
        text = capsys.readouterr().out
        for word in ("demo", "diagnose", "bench", "data", "argrad diagnose --problem mine.npz"):
            assert word in text

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["diagnose"], ["--problem", "--bits", "--json", "argrad diagnose --values 50"]),
            (["demo"], ["--output", "less than a minute"]),
            (["bench"], ["estimators"]),
            (["bench", "estimators"], ["--rounds", "--json"]),
            (["train"], ["--data", "--resume", "--estimator", "torchrun"]),
            (["data"], ["list", "get", "check"]),
            (["data", "get"], ["--mirror", "--replace"]),
        ],
    )
    def test_of_a_command(self, arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main([*arguments, "--help"]) == 0
        text = capsys.readouterr().out
        for word in words:
            assert word in text

    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["--version"]) == 0
        assert capsys.readouterr().out == f"argrad {__version__}\n"

    def test_the_command_is_installed(self) -> None:
        (script,) = importlib.metadata.entry_points(group="console_scripts", name="argrad")
        assert script.load() is cli.main

    def test_starting_imports_little(self) -> None:
        code = (
            "import sys; from argrad.cli import main; main(['--version']); "
            "print([m for m in ('matplotlib', 'sklearn', 'rich', 'pooch') if m in sys.modules])"
        )
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        assert child.stdout.splitlines() == [f"argrad {__version__}", "[]"]


class TestDiagnose:
    def test_json_is_one_line(self, problem_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["diagnose", "--problem", str(problem_file), "--output", str(tmp_path / "out"), "--json", *QUICK]
        assert cli.main(arguments) == 0
        out, err = capsys.readouterr()
        assert out.endswith("\n")
        assert len(out.splitlines()) == 1
        record = json.loads(out)
        assert record["recommendation"] == "Exact"
        assert record["settings"]["samples"] == 100
        assert {row["estimator"] for row in record["rows"]} >= {"Exact", "Direct", "GumbelSoftmax", "Rebar"}
        assert "Recommended: Exact" in err
        assert json.loads((tmp_path / "out" / "diagnosis.json").read_text()) == record
        assert (tmp_path / "out" / "diagnosis.png").read_bytes().startswith(b"\x89PNG")

    def test_prints_a_table(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["diagnose", "--problem", "toy", "--bits", "4", *QUICK]) == 0
        out, _ = capsys.readouterr()
        assert "DisArm" in out
        assert "Recommended:" in out
        assert Path("runs/diagnosis/diagnosis.png").exists()

    @pytest.mark.parametrize(("bits", "what"), [(None, "one of 10 codes"), (3, "3 bits"), (13, "13 bits")])
    def test_digits(self, bits: int | None, what: str) -> None:
        problem, trained = make_problem(DigitsProblem(bits=bits, steps=3, examples=5))
        assert problem.description.startswith(f"digits, {what}, after 3 training steps")
        assert problem.latent.batch_shape == (5,)
        assert not problem.latent.scores.requires_grad
        assert 20 < trained.negative_elbo < 60

    def test_same_seed_same_toy(self) -> None:
        first, second, other = (toy_problem(bits=4, seed=seed) for seed in (3, 3, 4))
        assert torch.equal(first.latent.scores, second.latent.scores)
        assert not torch.equal(first.latent.scores, other.latent.scores)
        z = first.latent.mode()
        assert torch.equal(first.cost(z), second.cost(z))


class TestDemo:
    def test_shows_training_a_table_and_a_picture(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["demo", "--epochs", "2", "--samples", "100", "--output", "shown"]) == 0
        out, _ = capsys.readouterr()
        assert "negative ELBO" in out
        assert "Recommended:" in out
        report, picture = (Path(line.split()[-1]) for line in out.strip().splitlines()[-2:])
        assert report == Path("shown/direct/report.html")
        assert "data:image/png" in report.read_text()
        assert picture.read_bytes().startswith(b"\x89PNG")
        for estimator in ("direct", "gumbel-softmax", "exact"):
            assert f"  {estimator} " in out


class TestData:
    def test_list(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["data", "list", "--json"]) == 0
        names = [listing["name"] for listing in json.loads(capsys.readouterr().out)]
        assert "digits" in names

    def test_check_of_what_a_package_ships(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["data", "check", "digits"]) == 0
        assert "digits" in capsys.readouterr().out

    def test_check_of_what_is_missing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("ARGRAD_DATA", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cli.main(["data", "check", "mnist", "--json"]) == 1
        reports = json.loads(capsys.readouterr().out)
        assert not any(report["ok"] for report in reports)

    def test_unknown_name(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "nope" in one_error(capsys, "data", "get", "nope")


SEEDED = [
    [*command.split(), "--seed", str(2**70)]
    for command in (
        "train",
        "evaluate somewhere",
        "sample somewhere",
        "diagnose",
        "tokenize train",
        "tokenize sample somewhere",
        "write train",
        "write sample somewhere",
        "complete train",
    )
]
"""Commands that draw, with a seed that no generator takes."""


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ([], "demo, train, evaluate, sample, diagnose, reproduce, segment, "),
            (["nonsense"], "nonsense"),
            (["diagnose", "--wrong", "3"], "--wrong"),
            (["diagnose", "--samples", "many"], "--samples"),
            (["diagnose", "--values", "x"], "--values"),
            (["bench"], "bench"),
            (["bench", "nonsense"], "nonsense"),
            (["bench", "estimators", "--rounds", "x"], "--rounds"),
            (["data"], "list, get, check"),
            (["data", "get"], "data get"),
            (["diagnose", "--values", "3", "--bits", "4"], "not both"),
            (["diagnose", "--values", "1"], "values must be at least 2"),
            (["diagnose", "--problem", "toy", "--bits", "0"], "bits must be at least 1"),
            (["diagnose", "--problem", "toy", "--samples", "3"], "samples must be at least 100"),
            (["diagnose", "--problem", "toy", "--threads", "0"], "threads must be at least 1"),
            (["diagnose", "--problem", "missing.npz"], "missing.npz does not exist"),
            (["diagnose", "--problem", "."], "directory"),
            *((command, "--seed must be a whole number from 0 to 18446744073709551615, got") for command in SEEDED),
            (["train", "--task", "classify", "--label-seed", str(2**70)], "--label-seed must be a whole number"),
            (["write", "train", "--split-seed", str(2**64 - 1)], "split_seed=18446744073709551615 is out of range"),
            (["write", "train", "--split-seed", str(2**70)], "is out of range: choose a whole number from 0 to"),
        ],
    )
    def test_one_line(self, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert words in one_error(capsys, *arguments)

    @pytest.mark.parametrize(
        ("arrays", "words"),
        [
            ({"scores": np.zeros((2, 3))}, "holds scores; expected logits and costs"),
            ({}, "holds nothing"),
            ({"logits": np.zeros((2, 3)), "costs": np.zeros((2, 4))}, "(2, 3) and costs of shape (2, 4)"),
            ({"logits": np.zeros(3), "costs": np.zeros(3)}, "[examples, k]"),
            ({"logits": np.full((2, 3), np.nan), "costs": np.zeros((2, 3))}, "NaN"),
            ({"logits": np.zeros((2, 3)), "costs": np.full((2, 3), np.nan)}, "NaN or infinite"),
            ({"logits": np.full((2, 3), -np.inf), "costs": np.zeros((2, 3))}, "-inf"),
            ({"logits": np.array([["a", "b"]]), "costs": np.zeros((1, 2))}, "expected numbers"),
            ({"logits": np.array([[{}, {}]]), "costs": np.zeros((1, 2))}, "plain numbers"),
        ],
    )
    def test_bad_problem_files(
        self, arrays: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "bad.npz"
        np.savez(path, **arrays)
        assert words in one_error(capsys, "diagnose", "--problem", str(path))

    def test_a_file_of_another_kind(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "notes.npz"
        for content in (b"", b"some text", b"PK\x03\x04 cut off"):
            path.write_bytes(content)
            assert "is not an .npz file" in one_error(capsys, "diagnose", "--problem", str(path))
        np.save(tmp_path / "array.npy", np.zeros(3))
        assert "is not an .npz file" in one_error(capsys, "diagnose", "--problem", str(tmp_path / "array.npy"))

    def test_options_that_a_file_already_answers(self, problem_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert "--values is for" in one_error(capsys, "diagnose", "--problem", str(problem_file), "--values", "3")

    def test_an_output_folder_that_is_a_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "taken").write_text("")
        arguments = ["diagnose", "--problem", "toy", "--values", "2", "--output", str(tmp_path / "taken"), *QUICK]
        assert cli.main(arguments) == 2
        assert "taken" in capsys.readouterr().err

    def test_a_bug_shows_its_traceback(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def bug(*arguments: object, **options: object) -> None:
            raise AssertionError("a bug")

        monkeypatch.setattr("argrad.experiments.problems.toy_problem", bug)
        with pytest.raises(AssertionError, match="a bug"):
            cli.main(["diagnose", "--problem", "toy"])

    def test_control_c_ends_with_a_line(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def interrupt(*arguments: object, **options: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("argrad.experiments.problems.toy_problem", interrupt)
        assert cli.main(["diagnose", "--problem", "toy"]) == 130
        out, err = capsys.readouterr()
        assert out == ""
        assert err.strip().startswith("argrad: interrupted")
