"""`argrad train --task classify`: what it prints and writes, how it goes on, what it refuses."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from argrad.cli import main
from argrad.cli.train import task_of, train_command
from argrad.models.semi_supervised.report import baselines
from argrad.models.semi_supervised.run import ClassifySettings, few_labels

QUICK = ["--epochs", "4", "--label-first", "2", "--hidden", "24", "--latent", "2", "--device", "cpu"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train(capsys, *arguments: str) -> dict:
    assert main(["train", "--task", "classify", *QUICK, "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_from_labels_to_a_report(capsys):
    record = train(capsys, "--run-folder", "here", "--labels", "50")
    assert record["labels"] == 50
    assert 0.1 < record["test"]["accuracy"] <= 1
    assert record["others"]["logistic regression"] > 0.7
    assert record["others"]["label spreading"] > 0.7
    names = {path.name for path in Path("here").iterdir()}
    assert names == {"config.json", "state.pt", "metrics.jsonl", "model.safetensors", "report.html", ".lock"}
    metrics = [json.loads(line) for line in Path("here/metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in metrics] == [1, 2, 3, 4]
    report = Path("here/report.html").read_text()
    assert "http" not in report
    assert report.count("data:image/png;base64") == 4
    assert f"{record['test']['accuracy']:.1%}" in report

    assert main(["evaluate", "here", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["accuracy"] == record["test"]["accuracy"]
    assert scores["negative_elbo"] == pytest.approx(record["test"]["negative_elbo"], rel=1e-6)
    assert sum(map(sum, scores["confusion"])) == 180
    assert main(["sample", "here", "--label", "3", "--number", "5", "--output", "drawn.npz"]) == 0
    with np.load("drawn.npz") as drawn:
        assert drawn["images"].shape == (5, 8, 8)
        assert drawn["codes"].tolist() == [3] * 5
    assert main(["sample", "here", "--number", "20", "--output", "drawn.png"]) == 0
    with Image.open("drawn.png") as picture:
        assert picture.size[0] > 8
    capsys.readouterr()
    assert main(["sample", "here", "--label", "11"]) == 2
    assert "--label must be one of 0, 1" in capsys.readouterr().err


def write_images(path: str, *, labelled: int = 100) -> None:
    """200 images of dots, few in one class and many in the other; the classes are called 3 and 4."""
    random = np.random.default_rng(0)
    kinds = np.arange(200) % 2
    images = (random.random((200, 5, 5)) < np.where(kinds, 0.8, 0.2)[:, None, None]).astype(np.float32)
    labels = {"labels": np.where(np.arange(200) < labelled, 3 + kinds, -1)} if labelled else {}
    np.savez(path, images=images, **labels)


def test_it_prints_itself_beside_simpler_ways(capsys):
    write_images("mine.npz")
    assert main(["train", "--task", "classify", *QUICK, "--data", "mine.npz", "--labels", "10"]) == 0
    out = capsys.readouterr().out
    assert "from 10 labels and 160 images" in out
    for name in ("this model", "logistic regression", "label spreading", "Report: runs/mine-"):
        assert name in out


def test_more_epochs_later_equal_more_epochs_at_once(capsys):
    write_images("mine.npz")
    data = ["--data", "mine.npz", "--labels", "10"]
    train(capsys, *data, "--run-folder", "once", "--epochs", "5")
    train(capsys, *data, "--run-folder", "twice")
    assert main(["train", "--resume", "twice", "--epochs", "5"]) == 0
    once, twice = (torch.load(f"{name}/state.pt", weights_only=True)["module"] for name in ("once", "twice"))
    assert all(torch.equal(once[name], twice[name]) for name in once)
    capsys.readouterr()
    assert main(["train", "--resume", "twice", "--confidence", "0.5"]) == 2
    assert "--confidence differ" in capsys.readouterr().err


def test_the_usual_number_of_epochs_can_be_asked_for_at_resume(capsys):
    write_images("mine.npz")
    train(capsys, "--data", "mine.npz", "--labels", "10", "--run-folder", "run")
    usual = str(ClassifySettings().epochs)
    assert main(["train", "--resume", "run", "--epochs", usual, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epochs"] == int(usual)
    assert json.loads(Path("run/config.json").read_text())["epochs"] == int(usual)


def test_other_settings_are_refused_at_resume_even_the_usual_ones(capsys):
    write_images("mine.npz")
    train(capsys, "--data", "mine.npz", "--labels", "10", "--run-folder", "run")
    assert main(["train", "--resume", "run", "--hidden", str(ClassifySettings().recipe.hidden)]) == 2
    assert "--hidden differ" in capsys.readouterr().err
    assert main(["train", "--resume", "run", "--hidden", "24"]) == 0  # its own


@pytest.mark.parametrize("epochs", ["0", "2"])
def test_a_wrong_number_of_epochs_leaves_the_run_as_it_was(epochs, capsys):
    write_images("mine.npz")
    train(capsys, "--data", "mine.npz", "--labels", "10", "--run-folder", "run")
    before = Path("run/config.json").read_text()
    assert main(["train", "--resume", "run", "--epochs", epochs]) == 2
    assert f"below epochs={epochs}" in capsys.readouterr().err
    assert Path("run/config.json").read_text() == before
    assert main(["train", "--resume", "run", "--epochs", "5"]) == 0


def test_one_process(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", "--task", "classify", *QUICK, "--run-folder", "new"]) == 2
    assert "a semi-supervised VAE is trained by one process; leave out torchrun" in capsys.readouterr().err
    assert not Path("new").exists()


def test_no_labelled_test_image_is_told_before_training(capsys):
    write_images("mine.npz", labelled=4)
    arguments = ["train", "--task", "classify", *QUICK, "--data", "mine.npz", "--labels", "0", "--run-folder", "new"]
    assert main(arguments) == 2
    assert "none of the 20 test images has a label of the classes trained on" in capsys.readouterr().err
    assert not Path("new").exists()


def test_simpler_ways_are_left_out_where_nothing_can_be_measured():
    write_images("mine.npz", labelled=4)
    data = few_labels(ClassifySettings(data="mine.npz", labels=0))
    assert baselines(data) == {"logistic regression": None, "label spreading": None}


def test_own_arrays_with_some_labels(capsys):
    write_images("mine.npz")
    record = train(capsys, "--data", "mine.npz", "--labels", "0")
    assert 50 < record["labels"] < 100
    assert record["test"]["images"] < 20
    write_images("bare.npz", labelled=0)
    assert main(["train", "--task", "classify", *QUICK, "--data", "bare.npz"]) == 2
    assert "has no labels to learn classes from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--labels", "7"], "labels=7 cannot be had: there are 10 classes"),
        (["--labels", "5000"], "labels in all"),
        (["--labels", "-3"], "labels must be at least 0"),
        (["--label-first", "4"], "label_first must be at least 0 and below epochs=4"),
        (["--estimator", "magic"], "--estimator"),
        (["--entropy", "-1"], "entropy must be a number that is not negative"),
        (["--data", "mnits"], "mnist"),
    ],
)
def test_wrong_settings_leave_nothing_behind(arguments, words, capsys):
    command = ["train", "--task", "classify", *QUICK, "--run-folder", "new", *arguments]
    assert main(command) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert not Path("new").exists()


def test_the_task_is_read_from_the_arguments_or_the_run():
    assert task_of([]) == task_of(["--task", "vae"]) == task_of(["--values", "10", "--resume", "nowhere"]) == "vae"
    assert task_of(["--task", "classify"]) == task_of(["--seed", "1", "--task=classify"]) == "classify"
    Path("run").mkdir()
    Path("run/config.json").write_text('{"task": "classify"}')
    assert task_of(["--resume", "run"]) == task_of(["--resume=run"]) == "classify"
    assert train_command(["--task", "classify"]).__name__ == "Classify"
    assert train_command().__name__ == "Train"


def test_help_of_both(capsys):
    assert main(["train", "--task", "classify", "--help"]) == 0
    text = capsys.readouterr().out
    for word in ("--labels", "--consistency", "--label-first", "--augmentation", "--resume"):
        assert word in text
    assert main(["train", "--help"]) == 0
    assert "--task" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_goes_on_bit_for_bit(number, capsys):
    arguments = ["--task", "classify", *QUICK, "--epochs", "8", "--seed", "5", "--threads", "1"]
    assert main(["train", *arguments, "--run-folder", "whole"]) == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "argrad", "train", *arguments, "--run-folder", "parts"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while not Path("parts/state.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    if number == signal.SIGINT and process.returncode != 0:  # it may have been faster than the signal
        assert process.returncode == 130
        assert "argrad train --resume parts" in err
    assert main(["train", "--resume", "parts"]) == 0
    whole, parts = (torch.load(f"{name}/state.pt", weights_only=True)["module"] for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    capsys.readouterr()
