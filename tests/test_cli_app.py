"""`argrad app` before it serves: what it refuses."""

from pathlib import Path

import pytest

from argrad.cli import main


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["app", str(tmp_path / "gone")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_without_gradio_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["app"]) == 2
    assert "pip install 'argrad[app]'" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["app", "--help"]) == 0
    assert "Nothing leaves this machine" in capsys.readouterr().out
