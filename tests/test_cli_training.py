"""What training commands share: the folder is locked while they work, an interruption tells how to go on."""

import pytest

from argrad.cli.out import Out
from argrad.cli.training import watched
from argrad.training import Diverged, Interrupted, RunFolder


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {"epochs": 3})


@pytest.fixture
def out() -> Out:
    return Out(json_only=False)


def is_free(folder: RunFolder) -> bool:
    other = RunFolder.open(folder.path)
    try:
        other.lock()
    except ValueError:
        return False
    other.unlock()
    return True


def test_the_folder_is_locked_while_work_goes_on(folder, out):
    found = watched(out, folder, 3, "argrad train", lambda bar: (is_free(folder), bar is not None))
    assert found == (False, True)
    assert is_free(folder)


def test_a_folder_that_another_process_works_in_is_refused(folder, out):
    other = RunFolder.open(folder.path)
    with other.locked(), pytest.raises(ValueError, match="another process is training"):
        watched(out, folder, 3, "argrad train", lambda bar: pytest.fail("the work began"))
    assert is_free(folder)


@pytest.mark.parametrize("leads", [True, False])
def test_an_interruption_tells_how_to_go_on_and_frees_the_folder(folder, out, capsys, leads):
    def work(bar):
        raise Interrupted("interrupted in epoch 2")

    assert watched(out, folder, 3, "argrad segment fit", work, leads=leads) is None
    told = f"Interrupted in epoch 2; all is saved. Go on with: argrad segment fit --resume {folder.path}\n"
    assert capsys.readouterr().err == (told if leads else "")
    assert is_free(folder)


def test_divergence_is_an_error_of_one_line(folder, out):
    def work(bar):
        raise Diverged("the loss is no number")

    with pytest.raises(ValueError, match="the loss is no number"):
        watched(out, folder, 3, "argrad train", work)
    assert is_free(folder)


def test_other_processes_of_a_run_neither_lock_nor_show_a_bar(folder, out):
    assert watched(out, folder, 3, "argrad train", lambda bar: (is_free(folder), bar), leads=False) == (True, None)
