"""The tab Complete: the same completions as the command line, any picture or hole, and a visit in a browser."""

import os
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from argrad import cli
from argrad.app.complete.picture import (
    Completer,
    drawn_mask,
    load_completer,
    painted_mask,
    read_upload,
)
from argrad.app.complete.result import complete, show_hole
from argrad.app.complete.tab import enlarged, whole
from argrad.app.complete.training import SMALL, train_on_digits
from argrad.app.library import Library


@pytest.fixture(scope="module")
def completer(model_runs: Path) -> Completer:
    return load_completer(model_runs / "digits")


def save(path: Path, pixels: np.ndarray) -> Path:
    Image.fromarray(pixels).save(path)
    return path


def test_samples_are_test_pictures_of_the_runs_data(completer: Completer) -> None:
    from argrad.models.completion.run import load_pictures

    digits = load_pictures("digits")
    assert completer.size == (8, 8)
    assert torch.equal(completer.sample(3), digits.values(digits.test[2]))
    for number in (0, 101):
        with pytest.raises(ValueError, match=f"there are pictures 1 to 100, not {number}"):
            completer.sample(number)


def test_a_run_can_be_used_without_its_data(model_runs: Path, tmp_path: Path) -> None:
    import json
    import shutil

    shutil.copytree(model_runs / "digits", tmp_path / "run")
    config = json.loads((tmp_path / "run/config.json").read_text())
    (tmp_path / "run/config.json").write_text(json.dumps(config | {"data": str(tmp_path / "gone.npy")}))
    completer = load_completer(tmp_path / "run")
    with pytest.raises(ValueError, match=r"cannot be read here .*upload one instead"):
        completer.sample(1)
    found = complete(completer.module, torch.rand(8, 8), drawn_mask("centre", (8, 8), 0), 2, 0)
    assert found.completed.shape == (2, 8, 8)


def test_completions_are_those_of_the_command_line(completer: Completer, model_runs: Path, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8)).astype(np.uint8)
    path = save(tmp_path / "picture.png", pixels)
    command = ["complete", str(path), "--mask", "irregular", "--run", str(model_runs / "digits"), "--seed", "5"]
    for name in ("out.png", "out.npz"):
        assert cli.main([*command, "-n", "6", "--device", "cpu", "-o", str(tmp_path / name)]) == 0
    x, changed = read_upload(path, (8, 8))
    assert not changed
    mask = drawn_mask("irregular", (8, 8), 5)
    found = complete(completer.module, x, mask, 6, 5)
    picture, numbers = found.write(tmp_path)
    assert picture.read_bytes() == (tmp_path / "out.png").read_bytes()
    with np.load(numbers) as ours, np.load(tmp_path / "out.npz") as theirs:
        np.testing.assert_array_equal(ours["completions"], theirs["completions"])
        np.testing.assert_array_equal(ours["components"], theirs["components"])
    visible = ~mask
    assert torch.equal(found.completed[:, visible], x[visible].expand(6, -1))
    assert float(found.completed[:, mask].std(0).mean()) > 0


def test_seeds_decide_and_nothing_else_is_touched(completer: Completer) -> None:
    mask = drawn_mask("centre", (8, 8), 0)
    before = torch.random.get_rng_state()
    first, again, other = (complete(completer.module, completer.sample(1), mask, 4, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.completed, again.completed)
    assert not torch.equal(first.completed, other.completed)
    assert torch.equal(drawn_mask("rectangle", (8, 8), 3), drawn_mask("rectangle", (8, 8), 3))
    assert len({tuple(drawn_mask("irregular", (8, 8), seed).flatten().tolist()) for seed in range(5)}) == 5


def test_what_is_shown_says_what_it_is(completer: Completer) -> None:
    mask = drawn_mask("centre", (8, 8), 0)
    found = complete(completer.module, completer.sample(1), mask, 16, 0)
    shown = found.show()
    assert shown.count("<img") == 16
    assert float(found.weights.sum()) == pytest.approx(1)
    for number, component in enumerate(found.components.tolist(), start=1):
        assert f'alt="Completion {number} of 16, from component {component}"' in shown
    assert f"from {len(set(found.components.tolist()))} of 8 components" in found.summary()
    hole = show_hole(completer.sample(1), mask)
    assert hole.count("<img") == 2
    assert "25% of its pixels are hidden" in hole
    for number in (0, 17):
        with pytest.raises(ValueError, match=f"1 to 16 completions can be asked for, not {number}"):
            complete(completer.module, completer.sample(1), mask, number, 0)


def test_a_picture_of_another_size_is_cut_to_its_middle(tmp_path: Path) -> None:
    pixels = np.zeros((40, 100), np.uint8)
    pixels[:, 30:70] = 200  # the square in the middle
    for name in ("picture.png", "a picture without an ending"):
        pixels_file = tmp_path / "whole.png"
        save(pixels_file, pixels).rename(tmp_path / name)
        x, changed = read_upload(tmp_path / name, (8, 8))
        assert changed
        torch.testing.assert_close(x, torch.full((8, 8), 200 / 255))
    assert read_upload(tmp_path / "picture.png", (1, 8, 4))[0].shape == (1, 8, 4)


def test_colours_become_what_the_model_wants(tmp_path: Path) -> None:
    colours = np.zeros((8, 8, 3), np.uint8)
    colours[..., 0] = 255
    path = save(tmp_path / "red.png", colours)
    assert read_upload(path, (3, 8, 8))[0].mean((1, 2)).tolist() == [1, 0, 0]
    assert read_upload(path, (3, 4, 4))[0].mean((1, 2)).tolist() == [1, 0, 0]
    assert read_upload(path, (8, 8))[0].mean().item() == pytest.approx(76 / 255)
    deep = save(tmp_path / "deep.png", np.full((16, 16), 32768, np.uint16))
    assert read_upload(deep, (8, 8))[0].mean().item() == pytest.approx(0.5, abs=1e-3)


def huge_png(side: int) -> bytes:
    """A file of a few bytes that says that it is a picture with so many pixels on each side."""
    header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    data = b"IDAT" + zlib.compress(b"")
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (b"", "is empty"),
        (b"not a picture at all", "no picture that can be read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no picture that can be read"),
        (huge_png(6000), "6000 × 6000 pixels, more than 25 million"),
        (huge_png(20000), "pixels, more than 25 million"),
        (huge_png(8), "cannot be read as an image"),
    ],
)
def test_what_is_no_picture_is_refused_in_one_line(tmp_path: Path, contents: bytes, words: str) -> None:
    (tmp_path / "picture.png").write_bytes(contents)
    with pytest.raises(ValueError, match=words) as caught:
        read_upload(tmp_path / "picture.png", (8, 8))
    assert str(tmp_path) not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_painted_hole_is_where_the_brush_was() -> None:
    layer = np.zeros((448, 448, 4), np.uint8)
    layer[56:168, 112:224] = (224, 36, 94, 255)  # rows 1 and 2, columns 2 and 3
    layer[400:420, :20] = (224, 36, 94, 255)  # an eighth of a pixel: a slip
    hidden = painted_mask([layer], (8, 8))
    expected = torch.zeros(8, 8, dtype=torch.bool)
    expected[1:3, 2:4] = True
    assert torch.equal(hidden, expected)
    other = np.zeros((100, 100, 4), np.uint8)
    other[90:, 90:, 3] = 255
    expected[7, 7] = True
    assert torch.equal(painted_mask([layer, other], (8, 8)), expected)
    for nothing in ([], [0 * layer]):
        with pytest.raises(ValueError, match="nothing is painted yet"):
            painted_mask(nothing, (8, 8))


def test_pictures_are_enlarged_to_paint_on() -> None:
    assert enlarged(torch.rand(8, 8)).shape == (448, 448, 3)
    assert enlarged(torch.rand(1, 28, 20)).shape == (448, 320, 3)
    assert enlarged(torch.rand(3, 600, 500)).shape == (600, 500, 3)


@pytest.mark.parametrize("seed", [None, -1, 2**31])
def test_a_seed_that_is_none_is_explained(seed: float | None) -> None:
    with pytest.raises(ValueError, match="whole number from 0"):
        whole(seed)


def test_a_small_model_can_be_trained(tmp_path: Path) -> None:
    from dataclasses import replace

    library, told = Library([tmp_path]), []
    path = train_on_digits(library, lambda share, words: told.append(share), replace(SMALL, epochs=1, hidden=8))
    assert [run.path for run in library.runs("complete")] == [path]
    assert (path / "report.html").is_file()
    assert told == sorted(told)
    assert told[-1] == 1
    assert load_completer(path).sample(1).shape == (8, 8)
    with pytest.raises(ValueError, match="started with single runs"):
        Library([path]).place_for_new_run()


def completions(page: Any) -> list[str]:
    """The pictures."""
    return [str(one.get_attribute("src")) for one in page.locator("img[alt^='Completion ']").all()]


def press_complete(page: Any) -> list[str]:
    """Ask for completions, and wait for those that were not there before."""
    before = completions(page)
    page.get_by_role("button", name="Complete", exact=True).click()
    page.wait_for_function(
        "before => { const now = [...document.querySelectorAll(\"img[alt^='Completion ']\")].map(one => one.src);"
        " return now.length && now.join() !== before.join() }",
        arg=before,
    )
    return completions(page)


@pytest.mark.slow
def test_a_visit(visit: Any, model_address: str, tmp_path: Path) -> None:
    visitor = visit(model_address)
    page = visitor.open("Complete")
    page.get_by_alt_text("The picture with a hole: 25%").wait_for()
    first = press_complete(page)
    assert len(first) == 8
    if "ARGRAD_SCREENSHOTS" in os.environ:
        page.screenshot(path=Path(os.environ["ARGRAD_SCREENSHOTS"], "complete.png"), full_page=True)

    with page.expect_download() as waiting:
        page.get_by_role("button", name="Numbers").or_(page.get_by_role("link", name="Numbers")).first.click()
    waiting.value.save_as(tmp_path / "numbers.npz")
    with np.load(tmp_path / "numbers.npz") as numbers:
        assert numbers["completions"].shape == (8, 8, 8)

    hole = page.locator("img[alt^='The picture with a hole']")
    before = hole.get_attribute("src")
    page.get_by_label("Irregular").focus()
    page.keyboard.press("Space")  # by keyboard alone
    page.get_by_label("Seed of the hole").wait_for()
    page.wait_for_function(
        "before => document.querySelector(\"img[alt^='The picture with']\").src != before", arg=before
    )
    assert press_complete(page) != first

    save(tmp_path / "mine.png", np.random.default_rng(0).integers(0, 256, (30, 50)).astype(np.uint8))
    page.get_by_label("My own picture").check()
    page.get_by_text("Upload a picture first").wait_for()
    page.locator("[role=tabpanel]:visible input[type=file]").first.set_input_files(tmp_path / "mine.png")
    page.get_by_text("made 8 × 8 pixels").wait_for()
    press_complete(page)
    visitor.check()


@pytest.mark.slow
def test_a_hole_is_painted(visit: Any, model_address: str) -> None:
    visitor = visit(model_address)
    page = visitor.open("Complete")
    page.get_by_alt_text("The picture with a hole").wait_for()
    page.get_by_label("I paint it").check()
    canvas = page.locator("[role=tabpanel]:visible canvas").first
    canvas.wait_for()
    page.get_by_role("button", name="Complete", exact=True).click()
    page.get_by_text("Nothing is painted yet").first.wait_for()
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    across, down = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(across - 40, down)
    page.mouse.down()
    page.mouse.move(across + 40, down, steps=8)
    page.mouse.up()
    page.wait_for_timeout(1000)  # the editor sends the stroke after a moment
    assert len(press_complete(page)) == 8
    words = page.locator("img[alt^='The picture with a hole']").get_attribute("alt")
    assert 0 < int(re.search(r"(\d+)%", words)[1]) < 60  # type: ignore[index]
    visitor.check()


@pytest.mark.slow
def test_a_bad_picture_is_explained_and_visitors_do_not_meet(visit: Any, model_address: str, tmp_path: Path) -> None:
    visitor, other = visit(model_address), visit(model_address)
    page, elsewhere = visitor.open("Complete"), other.open("Complete", width=390)
    page.get_by_alt_text("The picture with a hole").wait_for()
    shown = press_complete(page)
    (tmp_path / "bad.png").write_bytes(b"nothing")
    elsewhere.get_by_label("My own picture").check()
    elsewhere.get_by_text("Upload a picture first").wait_for()
    elsewhere.locator("[role=tabpanel]:visible input[type=file]").first.set_input_files(tmp_path / "bad.png")
    elsewhere.get_by_text("no picture that can be read").first.wait_for()
    assert completions(elsewhere) == []
    assert completions(page) == shown
    for one in (page, elsewhere):
        one.set_viewport_size({"width": 390, "height": 900})
        assert one.evaluate("document.documentElement.scrollWidth") <= 390
    visitor.check()
    other.check()


@pytest.mark.slow
def test_who_chooses_before_the_model_is_there_gets_what_was_chosen(visit: Any, serve: Any, model_runs: Path) -> None:
    with serve(model_runs) as address:  # an app in which nobody has asked for the model yet
        visitor = visit(address)
        page = visitor.open("Complete")
        page.get_by_label("My own picture").check()
        page.get_by_text("Upload a picture first").wait_for()
        page.wait_for_timeout(1000)  # the test picture must not come after it
        assert page.get_by_text("Upload a picture first").is_visible()
        assert page.get_by_label("Which test picture").count() == 0
        visitor.check()
        page.context.close()  # before the app ends


@pytest.mark.slow
def test_without_a_model_one_can_be_trained(visit: Any, serve: Any, runs: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(runs / "codes", tmp_path / "codes")
    with serve(tmp_path) as address:
        visitor = visit(address)
        page = visitor.open("Complete")
        page.get_by_text("argrad complete train --data fashion-mnist").wait_for()
        page.get_by_role("button", name="Train on digits").click()
        page.get_by_alt_text("The picture with a hole").wait_for(timeout=180_000)
        assert len(press_complete(page)) == 8
        visitor.check()
        page.context.close()  # before the app ends
    assert len(Library([tmp_path]).runs("complete")) == 1
