"""`argrad tokenize`: train, encode, decode and sample; what they write, what they refuse, how training goes on."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from argrad import cli
from argrad.cli.tokenize import tokenize_command
from argrad.models.tokenizer.run import TokenizerSettings, load_tokenizer, prior_path
from argrad.training import Interrupted, read_tensors

QUICK = ["--codes", "8", "--width", "4", "--dimension", "3", "--prior-width", "4", "--device", "cpu"]
QUICK += ["--epochs", "1", "--prior-epochs", "1", "--batch-size", "200", "--continuous-steps", "2"]


def train(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert cli.main(["tokenize", "train", *QUICK, "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "tokens"
    assert cli.main(["tokenize", "train", *QUICK, "--run-folder", str(path)]) == 0
    return path


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def one_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert cli.main(["tokenize", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    return lines[0]


def test_a_run_has_a_report_a_vocabulary_and_a_prior(run):
    names = {path.name for path in run.iterdir()}
    wanted = {"config.json", "state.pt", "metrics.jsonl", "model.safetensors", "vocabulary.safetensors", "report.html"}
    assert wanted | {prior_path(run).name} <= names
    assert "Samples" in (run / "report.html").read_text()
    assert read_tensors(run / "vocabulary.safetensors")[0]["codebook"].shape == (8, 3)


def test_more_epochs_later_equal_more_epochs_at_once(capsys):
    np.save("few.npy", np.random.default_rng(0).random((40, 8, 8)).astype(np.float32))
    settings = ["--data", "few.npy", "--estimator", "gumbel-softmax", "--prior-epochs", "0", "--batch-size", "10"]
    once = train(capsys, "--run-folder", "once", "--epochs", "2", *settings)
    train(capsys, "--run-folder", "twice", *settings)
    assert cli.main(["tokenize", "train", "--resume", "twice", "--epochs", "2", "--json"]) == 0
    twice = json.loads(capsys.readouterr().out)
    weights = [torch.load(f"{name}/state.pt", weights_only=True)["module"] for name in ("once", "twice")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert once["test"] == twice["test"]
    assert Path("once/report.html").read_text().count("data:image/png;base64") == 3  # no samples without a prior


def test_a_training_that_was_too_short_for_codes_says_so(capsys):
    for steps, is_short in (("2", False), ("50", True)):
        arguments = ["--run-folder", steps, "--prior-epochs", "0", "--continuous-steps", steps]
        assert cli.main(["tokenize", "train", *QUICK, *arguments]) == 0
        said = "Codes were placed, but not trained: that begins after --continuous-steps"
        assert (said in capsys.readouterr().err) == (said in Path(steps, "report.html").read_text()) == is_short


def test_a_wrong_number_of_epochs_leaves_the_run_as_it_was(run, capsys):
    before = (run / "config.json").read_text()
    assert "epochs must be at least 1" in one_error(capsys, "train", "--resume", str(run), "--epochs", "0")
    assert (run / "config.json").read_text() == before


def test_the_defaults_at_resume_are_those_of_the_run(run):
    assert tokenize_command("train", ["--resume", str(run)])().settings == load_tokenizer(run)[1]
    assert tokenize_command("train", ["--resume", "nowhere"])().settings == TokenizerSettings()


def test_own_images_to_codes_and_back(run, capsys):
    images = np.random.default_rng(0).random((7, 8, 8)).astype(np.float32)
    np.save("mine.npy", images)
    assert cli.main(["tokenize", "encode", str(run), "--images", "mine.npy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 7
    module, _ = load_tokenizer(run)
    with np.load("codes.npz") as found:
        assert np.array_equal(found["codes"], module.encode(torch.as_tensor(images)).numpy())
    assert cli.main(["tokenize", "decode", str(run), "codes.npz"]) == 0
    with np.load("decoded.npz") as found:
        expected = module.decode(module.encode(torch.as_tensor(images))).numpy()
        np.testing.assert_allclose(found["images"], expected, atol=1e-6)
    with np.load("codes.npz") as found:
        np.savez("codes.npz", train=found["codes"][:2].astype(np.uint16), test=found["codes"][2:].astype(">i8"))
    assert cli.main(["tokenize", "decode", str(run), "codes.npz"]) == 0
    with np.load("decoded.npz") as found:
        np.testing.assert_allclose(found["images"], expected, atol=1e-6)
    assert cli.main(["tokenize", "decode", str(run), "codes.npz", "--output", "back.png", "--number", "4"]) == 0
    with Image.open("back.png") as picture:
        assert picture.size == (68, 68)  # two by two, four screen pixels for one of 8 × 8, gaps of four


def test_the_runs_own_data(run, capsys):
    assert cli.main(["tokenize", "encode", str(run), "--output", "own.npz"]) == 0
    with np.load("own.npz") as found:
        assert [len(found[name]) for name in ("train", "validation", "test")] == [1437, 180, 180]
    assert cli.main(["tokenize", "decode", str(run), "own.npz", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["images"] == 1797


def test_samples(run):
    assert cli.main(["tokenize", "sample", str(run), "--number", "5", "--output", "drawn.npz"]) == 0
    with np.load("drawn.npz") as drawn:
        assert drawn["images"].shape == (5, 8, 8)
        assert drawn["codes"].shape == (5, 2, 2)
    assert cli.main(["tokenize", "sample", str(run), "--number", "5"]) == 0
    assert Path("samples.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("interrupted", ["train_tokenizer", "train_prior"])
def test_an_interruption_says_how_to_go_on(interrupted, capsys, monkeypatch):
    def stop(*_: object, **__: object) -> None:
        raise Interrupted("interrupted after 3 steps")

    np.save("few.npy", np.random.default_rng(0).random((40, 8, 8)).astype(np.float32))
    monkeypatch.setattr(f"argrad.models.tokenizer.run.{interrupted}", stop)
    assert cli.main(["tokenize", "train", *QUICK, "--data", "few.npy", "--run-folder", "parts"]) == 130
    assert "argrad tokenize train --resume parts" in capsys.readouterr().err


class TestRefusals:
    def test_a_loss_that_is_no_number(self, capsys):
        np.save("few.npy", np.random.default_rng(0).random((40, 8, 8)).astype(np.float32))
        arguments = ["--data", "few.npy", "--batch-size", "5", "--learning-rate", "1e30", "--run-folder", "new"]
        assert cli.main(["tokenize", "train", *QUICK, *arguments]) == 2
        assert "lower the learning rate" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--codes", "1"], "codes must be at least 2"),
            (["--estimator", "magic"], "--estimator"),
            (["--epochs", "0"], "epochs must be at least 1"),
            (["--data", "mnits"], "mnist"),
            (["--temperature-minimum", "3"], "temperature_minimum"),
        ],
    )
    def test_wrong_settings_leave_nothing_behind(self, arguments, words, capsys):
        assert words in one_error(capsys, "train", "--run-folder", "new", *arguments)
        assert not Path("new").exists()

    def test_images_that_do_not_divide(self, capsys):
        np.save("odd.npy", np.random.default_rng(0).random((40, 9, 8)))
        line = one_error(capsys, "train", "--data", "odd.npy", "--run-folder", "new")
        assert "divisible by 4" in line
        assert "(9, 8)" in line
        assert not Path("new").exists()

    def test_other_settings_on_resume(self, run, capsys):
        assert "--codes" in one_error(capsys, "train", "--resume", str(run), "--codes", "9")

    def test_images_of_another_size(self, run, capsys):
        np.save("big.npy", np.random.default_rng(0).random((4, 28, 28)))
        line = one_error(capsys, "encode", str(run), "--images", "big.npy")
        assert "(8, 8)" in line
        assert "(4, 28, 28)" in line

    def test_codes_outside_the_vocabulary(self, run, capsys):
        np.save("codes.npy", np.full((3, 2, 2), 8))
        line = one_error(capsys, "decode", str(run), "codes.npy")
        assert "0 to 7, the vocabulary of this tokenizer, got 8" in line

    def test_codes_that_are_none(self, run, capsys):
        np.save("codes.npy", np.zeros((3, 2, 2)))
        assert "whole numbers" in one_error(capsys, "decode", str(run), "codes.npy")
        for kind in ("complex64", "U3", "datetime64[s]"):
            np.save("codes.npy", np.zeros((3, 2, 2), dtype=kind))
            assert "whole numbers" in one_error(capsys, "decode", str(run), "codes.npy")
        np.save("codes.npy", np.full((3, 2, 2), 2**64 - 1, dtype=np.uint64))
        assert "got 18446744073709551615" in one_error(capsys, "decode", str(run), "codes.npy")
        np.save("codes.npy", np.int64(3))
        assert "[N, 2, 2]" in one_error(capsys, "decode", str(run), "codes.npy", "--output", "x.png")
        np.savez("other.npz", something=np.zeros(3))
        assert "name the array of codes `codes`" in one_error(capsys, "decode", str(run), "other.npz")
        Path("broken.npz").write_bytes(b"nothing like it")
        assert "broken.npz" in one_error(capsys, "decode", str(run), "broken.npz")
        assert "missing.npz" in one_error(capsys, "decode", str(run), "missing.npz")
        assert ".npy or .npz" in one_error(capsys, "decode", str(run), "codes.txt")

    def test_no_codes_and_a_picture(self, run, capsys):
        np.save("codes.npy", np.zeros((0, 2, 2), dtype=np.int64))
        assert "no image to draw" in one_error(capsys, "decode", str(run), "codes.npy", "--output", "x.png")
        assert cli.main(["tokenize", "decode", str(run), "codes.npy"]) == 0

    @pytest.mark.parametrize("test", [np.zeros((3, 2, 3), np.int64), np.int64(1), np.full((3, 2, 2), "1")])
    def test_parts_that_do_not_go_together(self, test, run, capsys):
        np.savez("parts.npz", train=np.zeros((5, 2, 2), np.int64), test=test)
        line = one_error(capsys, "decode", str(run), "parts.npz")
        assert "parts.npz do not go together: train (5, 2, 2), test (" in line or "whole numbers" in line

    @pytest.mark.parametrize("action", [["encode"], ["sample", "--number", "0"], ["sample", "--output", "x.gif"]])
    def test_outputs_and_numbers(self, action, run, capsys):
        output = ["--output", "codes.png"] if action == ["encode"] else []
        line = one_error(capsys, action[0], str(run), *action[1:], *output)
        assert "--output must end in" in line or "--number must be at least 1" in line

    def test_what_is_no_tokenizer(self, capsys):
        Path("empty").mkdir()
        assert "not a run folder" in one_error(capsys, "encode", "empty")
        assert "choose one of train, encode, decode, sample" in one_error(capsys, "dance")

    def test_a_run_without_a_prior(self, run, capsys):
        shutil.copytree(run, "bare")
        shutil.rmtree(prior_path(Path("bare")))
        assert "no prior" in one_error(capsys, "sample", "bare")
