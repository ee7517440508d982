"""Training from the page: a new folder for everybody who asks, and a message where it cannot be."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from argrad.app.library import Library
from argrad.app.train_digits import new_folder, train_digits


def test_who_asks_at_once_gets_a_folder_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: new_folder(tmp_path / "runs", "digits"), range(24)))
    assert len(set(folders)) == 24
    assert tmp_path / "runs" / "digits-24" in folders


def test_a_place_for_new_runs_is_no_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    assert Library([run, tmp_path / "runs"]).place_for_new_run() == tmp_path / "runs"
    with pytest.raises(ValueError, match="started with single runs"):
        Library([run]).place_for_new_run()


def test_a_process_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "false")
    with pytest.raises(ValueError, match="training stopped: it ended without a word"):
        train_digits(tmp_path)


def test_a_place_that_cannot_be_written_is_an_error_to_show(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        train_digits(tmp_path / "file")


@pytest.mark.slow
def test_two_trainings_at_once_give_two_runs_with_reports(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    with ThreadPoolExecutor(2) as pool:
        folders = list(
            pool.map(lambda _: train_digits(tmp_path, epochs=3, told=lambda *done: told.append(done)), range(2))
        )
    runs = Library([tmp_path]).runs("vae")
    assert sorted(run.path for run in runs) == sorted(folders)
    assert all(run.report is not None for run in runs)
    assert told
    assert {of for _, of in told} == {3}


@pytest.mark.slow
def test_a_first_model_is_trained_from_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Any, visit: Any
) -> None:
    monkeypatch.chdir(tmp_path)  # where there is no folder runs/ yet
    with serve() as address:
        visitor = visit(address)
        page = visitor.open("Explore")
        page.set_default_timeout(240_000)
        page.get_by_role("button", name="Train the digits model").click()
        page.locator(".explore-picture img").wait_for()
        assert not page.get_by_role("button", name="Train the digits model").is_visible()
        assert page.get_by_label("Run", exact=True).input_value().startswith("digits-")
        visitor.check()
