"""`argrad complete`: train, fill a hole in a picture, and one line for each mistake."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from argrad import cli
from argrad.cli.complete import complete_command
from argrad.models.completion.run import load_completion
from argrad.training import RunFolder

SMALL = ["--components", "3", "--dimension", "3", "--features", "8", "--hidden", "16", "--device", "cpu"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run on digits."""
    path = tmp_path_factory.mktemp("complete") / "run"
    arguments = ["complete", "train", "--run-folder", str(path), "--epochs", "2", "--kl-warmup-epochs", "1", *SMALL]
    assert cli.main(arguments) == 0
    return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """An image, and masks of its size, of another size, that hide all and that hide nothing."""
    folder = tmp_path_factory.mktemp("pictures")
    image = np.random.RandomState(0).randint(0, 256, (8, 8)).astype(np.uint8)
    hole = np.zeros((8, 8), np.uint8)
    hole[2:5, 3:7] = 255
    for name, array in (
        ("image", image),
        ("wide", np.zeros((8, 9), np.uint8)),
        ("hole", hole),
        ("other", np.full((9, 8), 255, np.uint8)),
        ("nothing", hole * 0),
        ("everything", hole * 0 + 255),
    ):
        Image.fromarray(array).save(folder / f"{name}.png")
    return folder


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("L"))


def complete(run: Path, pictures: Path, output: Path, *more: str, image: str = "image", mask: str = "hole") -> int:
    mask = mask if mask in ("centre", "rectangle", "irregular") else str(pictures / f"{mask}.png")
    arguments = [str(pictures / f"{image}.png"), "--mask", mask, "--run", str(run), "--output", str(output)]
    return cli.main(["complete", *arguments, "--device", "cpu", *more])


def one_error(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("argrad: ")
    return lines[0]


def test_training_writes_a_run_with_a_report(run):
    assert {"config.json", "model.safetensors", "state.pt", "metrics.jsonl", "report.html"} <= set(os.listdir(run))
    assert json.loads((run / "config.json").read_text())["task"] == "complete"
    assert "Image completion" in (run / "report.html").read_text()


def test_completions_as_arrays_keep_visible_pixels(run, pictures, tmp_path, capsys):
    capsys.readouterr()
    assert complete(run, pictures, tmp_path / "out.npz", "-n", "5", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["components"]) == 5
    with np.load(tmp_path / "out.npz") as found:
        completions, components = found["completions"], found["components"]
    assert completions.shape == (5, 8, 8)
    assert components.tolist() == said["components"]
    image = pixels(pictures / "image.png")
    hidden = pixels(pictures / "hole.png") > 127
    assert np.array_equal(completions[:, ~hidden], np.repeat((image[~hidden].astype(np.float32) / 255)[None], 5, 0))
    assert (completions[:, hidden].std(0) > 0).mean() > 0.5


def test_completions_as_pictures(run, pictures, tmp_path, capsys):
    assert complete(run, pictures, tmp_path / "folder", "-n", "3") == 0
    assert "3 completions from" in capsys.readouterr().out
    image = pixels(pictures / "image.png")
    hidden = pixels(pictures / "hole.png") > 127
    for number in (1, 2, 3):
        found = pixels(tmp_path / "folder" / f"{number}.png")
        assert np.array_equal(found[~hidden], image[~hidden])
    assert complete(run, pictures, tmp_path / "all.png", mask="irregular") == 0
    assert pixels(tmp_path / "all.png").shape == (112, 9 * 112 + 8 * 4)


def test_the_seed_decides(run, pictures, tmp_path):
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert complete(run, pictures, tmp_path / f"{name}.npz", "--seed", seed, mask="rectangle") == 0
    first, again, other = (np.load(tmp_path / f"{name}.npz")["completions"] for name in "abc")
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_an_image_of_numbers_will_do(run, pictures, tmp_path):
    np.save(tmp_path / "image.npy", np.full((8, 8), 0.25))
    arguments = [str(tmp_path / "image.npy"), "--mask", "centre", "--run", str(run), "-o", str(tmp_path / "out.npz")]
    assert cli.main(["complete", *arguments]) == 0
    assert (np.load(tmp_path / "out.npz")["completions"][:, 0] == 0.25).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mask": "nothing"}, "the mask hides nothing"),
        ({"mask": "everything"}, "the mask hides everything"),
        ({"mask": "other"}, "the mask has 9 x 8 pixels and the images 8 x 8"),
        ({"mask": "missing"}, "missing.png' is no file: give a mask"),
        ({"image": "missing"}, "missing.png' is no file; give a picture"),
        ({"image": "wide", "mask": "centre"}, "completes images of shape (8, 8)"),
    ],
)
def test_mistakes_in_files_are_one_line(run, pictures, tmp_path, capsys, changes, words):
    capsys.readouterr()
    assert complete(run, pictures, tmp_path / "out.png", **changes) == 2
    assert words in one_error(capsys)
    assert not (tmp_path / "out.png").exists()


def test_an_array_that_is_no_image_is_one_line(run, tmp_path, capsys):
    capsys.readouterr()
    for array, words in (
        (np.zeros(64), "has shape (64,); give one image"),
        (np.zeros((9, 9)), "completes images of shape (8, 8)"),
        (np.zeros((3, 8, 8)), "completes images of shape (8, 8)"),
        (np.array([["a"]]), "cannot be read as an .npy file of numbers"),
    ):
        np.save(tmp_path / "image.npy", array)
        arguments = [str(tmp_path / "image.npy"), "--mask", "centre", "--run", str(run), "-o", str(tmp_path / "o.png")]
        assert cli.main(["complete", *arguments]) == 2
        assert words in one_error(capsys)


def test_mistakes_in_options_are_one_line(run, pictures, tmp_path, capsys):
    capsys.readouterr()
    assert complete(run, pictures, tmp_path / "out.jpg") == 2
    assert "--output must end in .png or .npz, or be a folder" in one_error(capsys)
    assert complete(run, pictures, tmp_path / "out.png", "-n", "0") == 2
    assert "--number must be at least 1, got 0" in one_error(capsys)
    assert complete(tmp_path, pictures, tmp_path / "out.png") == 2
    assert "is not a run folder" in one_error(capsys)
    assert cli.main(["complete", "train", "--run-folder", str(tmp_path / "new"), "--components", "0"]) == 2
    assert "components must be at least 1" in one_error(capsys)
    assert not (tmp_path / "new").exists()
    assert cli.main(["complete", "train", "--resume", str(run), "--components", "5"]) == 2
    assert "--components differ" in one_error(capsys)
    assert cli.main(["complete", str(pictures / "image.png"), "--run", str(run)]) == 2
    assert "--mask" in one_error(capsys)


def test_a_wrong_number_of_epochs_leaves_the_run_as_it_was(run, capsys):
    before = (run / "config.json").read_text()
    assert cli.main(["complete", "train", "--resume", str(run), "--epochs", "0"]) == 2
    assert "epochs must be at least 1" in one_error(capsys)
    assert (run / "config.json").read_text() == before


def test_the_defaults_at_resume_are_those_of_the_run(run):
    assert complete_command("train", ["--resume", str(run)])().settings == load_completion(run)[1]


def test_an_interrupted_training_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    path = tmp_path / "run"
    write = RunFolder.write

    def interrupt(self, *arguments):
        write(self, *arguments)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(RunFolder, "write", interrupt)
    train = ["complete", "train", "--epochs", "3", *SMALL]
    assert cli.main([*train, "--run-folder", str(path)]) == 130
    assert f"Go on with: argrad complete train --resume {path}" in capsys.readouterr().err
    monkeypatch.undo()
    assert cli.main(["complete", "train", "--resume", str(path), "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epochs"] == 3
