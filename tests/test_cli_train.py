"""The commands train, evaluate and sample: what they write, what they refuse, how they go on."""

import gzip
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from argrad import cli
from argrad.models.discrete_vae.run import TrainSettings
from argrad.training import read_tensors

QUICK = ["--epochs", "2", "--hidden", "16", "--device", "cpu"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert cli.main(["train", *QUICK, "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


class TestTrain:
    def test_writes_a_run(self, capsys):
        record = train(capsys, "--run-folder", "here")
        assert record["run"] == "here"
        names = {path.name for path in Path("here").iterdir()}
        assert names == {"config.json", "state.pt", "metrics.jsonl", "model.safetensors", "report.html", ".lock"}
        metrics = [json.loads(line) for line in Path("here/metrics.jsonl").read_text().splitlines()]
        assert [row["epoch"] for row in metrics] == [1, 2]
        assert metrics[1]["loss"] < metrics[0]["loss"]
        report = Path("here/report.html").read_text()
        assert "http" not in report.replace("http-equiv", "")  # self-contained
        assert report.count("data:image/png;base64") >= 4
        assert f"{record['test']['negative_elbo']:.2f}" in report

    def test_pictures_of_many_sizes_and_kinds(self, capsys):
        Path("mine").mkdir()
        for number in range(12):
            shape = (20 + number, 16, 3) if number % 2 else (20 + number, 16)
            Image.fromarray(np.full(shape, 20 * number, np.uint8)).save(f"mine/{number}.png")
        assert cli.main(["train", *QUICK, "--data", "mine"]) == 2
        told = capsys.readouterr().err
        assert "--image-size 28 and --colour grey or --colour rgb" in told
        record = train(capsys, "--data", "mine", "--image-size", "8", "--colour", "grey", "--run-folder", "here")
        assert record["test"]["images"] == 1
        assert "What to try" in Path("here/report.html").read_text()  # two updates are few
        assert cli.main(["evaluate", "here"]) == 0
        assert cli.main(["train", *QUICK, "--image-size", "-1"]) == 2
        assert "image_size must be at least 0" in capsys.readouterr().err

    def test_names_a_new_folder_each_time(self, capsys):
        first, second = (train(capsys, "--epochs", "1")["run"] for _ in range(2))
        assert first != second
        assert Path(first).parent == Path("runs")

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--latent", "bits", "--variables", "6", "--estimator", "disarm"],
            ["--variables", "3", "--values", "4", "--estimator", "gumbel-softmax", "--temperature-decay", "0.001"],
            ["--estimator", "relax", "--prior", "learnt", "--kl-warmup", "10"],
            ["--binarize", "stochastic", "--epsilon", "1.0", "--epsilon-decay", "0.01", "--decay-every", "5"],
            ["--binarize", "none", "--likelihood", "gaussian", "--revive-until", "2"],
        ],
    )
    def test_every_kind_of_model(self, arguments, capsys):
        record = train(capsys, *arguments)
        assert np.isfinite(record["test"]["negative_elbo"])
        assert record["test"]["nll"] <= record["test"]["negative_elbo"] + 1e-4
        assert cli.main(["evaluate", record["run"], "--json", "--split", "validation"]) == 0
        assert json.loads(capsys.readouterr().out)["split"] == "validation"
        assert cli.main(["sample", record["run"], "--number", "5", "--output", "drawn.png"]) == 0
        with Image.open("drawn.png") as picture:
            assert picture.size[0] > 8

    def test_more_epochs_later_equal_more_epochs_at_once(self, capsys):
        train(capsys, "--run-folder", "once", "--epochs", "3")
        train(capsys, "--run-folder", "twice")
        assert cli.main(["train", "--resume", "twice", "--epochs", "3"]) == 0
        once, twice = (torch.load(f"{name}/state.pt", weights_only=True)["module"] for name in ("once", "twice"))
        assert all(torch.equal(once[name], twice[name]) for name in once)
        capsys.readouterr()

    def test_the_usual_number_of_epochs_can_be_asked_for_at_resume(self, capsys):
        np.save("few.npy", np.random.default_rng(0).integers(0, 256, (30, 4, 4), np.uint8))
        train(capsys, "--data", "few.npy", "--run-folder", "mine")
        usual = TrainSettings().epochs
        assert cli.main(["train", "--resume", "mine", "--epochs", str(usual), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["epochs"] == usual

    def test_samples_as_an_array(self, capsys):
        run = train(capsys)["run"]
        assert cli.main(["sample", run, "--number", "7", "--output", "drawn.npz"]) == 0
        with np.load("drawn.npz") as drawn:
            assert drawn["images"].shape == (7, 8, 8)
            assert (drawn["codes"].sum(-1) == 1).all()

    def test_the_saved_model_is_the_one_that_was_scored(self, capsys):
        record = train(capsys)
        assert cli.main(["evaluate", record["run"], "--json"]) == 0
        scores = json.loads(capsys.readouterr().out)
        assert scores["negative_elbo"] == pytest.approx(record["test"]["negative_elbo"], rel=1e-6)


def one_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    return lines[0]


class TestRefusals:
    def test_a_folder_that_holds_something(self, capsys):
        train(capsys, "--run-folder", "mine")
        before = {path.name: path.read_bytes() for path in Path("mine").iterdir()}
        assert "--resume mine" in one_error(capsys, "train", *QUICK, "--run-folder", "mine")
        Path("other").mkdir()
        Path("other/thesis.txt").write_text("years of work")
        assert "not empty" in one_error(capsys, "train", *QUICK, "--run-folder", "other")
        assert {path.name: path.read_bytes() for path in Path("mine").iterdir()} == before

    def test_other_settings_on_resume(self, capsys):
        train(capsys, "--run-folder", "mine")
        assert "--learning-rate" in one_error(capsys, "train", "--resume", "mine", "--learning-rate", "0.5")

    def test_the_usual_settings_on_resume_where_the_run_has_others(self, capsys):
        train(capsys, "--run-folder", "mine")
        hidden = str(TrainSettings().hidden)
        assert "--hidden differ" in one_error(capsys, "train", "--resume=mine", "--hidden", hidden)

    def test_a_wrong_number_of_epochs_leaves_the_run_as_it_was(self, capsys):
        train(capsys, "--run-folder", "mine")
        before = Path("mine/config.json").read_text()
        assert "epochs must be at least 1" in one_error(capsys, "train", "--resume", "mine", "--epochs", "0")
        assert Path("mine/config.json").read_text() == before
        assert cli.main(["train", "--resume", "mine", "--epochs", "3"]) == 0

    def test_what_is_no_run(self, capsys):
        Path("empty").mkdir()
        for command in (["train", "--resume", "empty"], ["evaluate", "empty"], ["sample", "empty"]):
            assert "not a run folder" in one_error(capsys, *command)

    def test_broken_files(self, capsys):
        train(capsys, "--run-folder", "mine")
        state = Path("mine/state.pt").read_bytes()
        Path("mine/state.pt").write_bytes(state[: len(state) // 2])
        assert "mine/state.pt is cut short or altered" in one_error(
            capsys, "train", "--resume", "mine", "--epochs", "9"
        )
        weights = bytearray(Path("mine/model.safetensors").read_bytes())
        weights[-100] ^= 1
        Path("mine/model.safetensors").write_bytes(bytes(weights))
        assert "mine/model.safetensors is cut short or altered" in one_error(capsys, "evaluate", "mine")
        Path("mine/config.json").write_text("{")
        assert "mine/config.json is cut short" in one_error(capsys, "evaluate", "mine")

    def test_a_loss_that_is_no_number(self, capsys):
        assert cli.main(["train", *QUICK, "--learning-rate", "1e30", "--run-folder", "mine"]) == 2
        assert "lower the learning rate" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--estimator", "arm"], "Arm does not support Categorical"),
            (["--estimator", "magic"], "--estimator"),
            (["--epsilon", "0"], "epsilon must be finite and not 0"),
            (["--values", "1"], "values >= 2"),
            (["--epochs", "0"], "epochs must be at least 1"),
            (["--data", "mnits"], "mnist"),
            (["--data", "nowhere/"], "nowhere"),
        ],
    )
    def test_wrong_settings_leave_nothing_behind(self, arguments, words, capsys):
        assert words in one_error(capsys, "train", "--run-folder", "new", *arguments)
        assert not Path("new").exists()


def idx(magic: int, *sizes: int, values: bytes) -> bytes:
    return gzip.compress(struct.pack(f">{1 + len(sizes)}I", magic, *sizes) + values)


class TestWrongData:
    """One clear line, exit code 2, nothing written."""

    def check(self, capsys, path: str, *words: str) -> None:
        line = one_error(capsys, "train", "--run-folder", "new", "--data", path)
        for word in words:
            assert word in line, line
        assert not Path("new").exists()

    def test_images_of_different_sizes(self, capsys):
        Path("pictures").mkdir()
        for number, size in enumerate([(8, 8), (8, 9)]):
            Image.new("L", size).save(f"pictures/{number}.png")
        self.check(capsys, "pictures", "8", "9")

    def test_an_empty_folder(self, capsys):
        Path("pictures").mkdir()
        self.check(capsys, "pictures", "pictures")

    def test_labels_where_images_belong(self, capsys):
        np.save("labels.npy", np.arange(100))
        self.check(capsys, "labels.npy", "label")

    def test_nan_and_values_out_of_range(self, capsys):
        images = np.random.default_rng(0).random((20, 4, 4)).astype(np.float32)
        np.save("large.npy", images * 300)
        self.check(capsys, "large.npy", "expected floats from 0 to 1")
        images[3, 2, 1] = np.nan
        np.save("nan.npy", images)
        self.check(capsys, "nan.npy", "NaN")

    def test_a_truncated_gz(self, capsys, tmp_path, monkeypatch):
        folder = tmp_path / "data" / "mnist"
        folder.mkdir(parents=True)
        whole = idx(2051, 10, 28, 28, values=bytes(np.random.default_rng(0).integers(0, 255, 7840, np.uint8)))
        for name in ("train-images-idx3", "t10k-images-idx3"):
            (folder / f"{name}-ubyte.gz").write_bytes(whole[: len(whole) // 2])
        for name in ("train-labels-idx1", "t10k-labels-idx1"):
            (folder / f"{name}-ubyte.gz").write_bytes(idx(2049, 10, values=bytes(10)))
        monkeypatch.setenv("ARGRAD_DATA", str(tmp_path / "data"))
        self.check(capsys, "mnist", "ubyte.gz")

    def test_a_path_that_does_not_exist(self, capsys):
        self.check(capsys, "no/such/place", "no/such/place")


def start(*arguments: str) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "argrad", "train", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """As many as the processes that :func:`start` makes: the last digit of a product may depend on it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interruption_saves_and_says_how_to_go_on(number, capsys):
    arguments = ["--hidden", "16", "--epochs", "4", "--seed", "5", "--batch-size", "10"]
    assert cli.main(["train", *arguments, "--run-folder", "whole"]) == 0
    process = start(*arguments, "--run-folder", "parts")
    deadline = time.monotonic() + 60
    while not Path("parts/state.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    if process.returncode != 0:  # it may have been faster than the signal
        assert process.returncode == 130
        assert "argrad train --resume parts" in err
    assert cli.main(["train", "--resume", "parts"]) == 0
    whole, parts = (read_tensors(Path(name) / "model.safetensors")[0] for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    capsys.readouterr()
