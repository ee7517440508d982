"""The tab Segment: the same labels as the command line, pictures that say what they show, and a visit in a browser."""

import csv
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from argrad import cli
from argrad.app.library import Library
from argrad.app.scratch import Scratch
from argrad.app.segment.result import ALONE, FILES, OUTLINES, UNSURE, Segmented, Structure
from argrad.app.segment.tab import md, missing_package, segmented
from ellipses import cases

nibabel = pytest.importorskip("nibabel")

TURNED = np.diag([-1.0, 1.0, -1.5, 1.0])


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scan that is larger than those that the model has seen, in another orientation."""
    path = tmp_path_factory.mktemp("scans") / "case_7_0000.nii.gz"
    _, scans = cases(1, 7, (24, 28, 22))
    turned = scans[0][::-1, :, ::-1]  # as TURNED says: what is up in the model's scans is up here too
    nibabel.Nifti1Image(turned.astype(np.float32), TURNED).to_filename(path)
    return path


@pytest.fixture(scope="module")
def scratch() -> Scratch:
    return Scratch()


def silent(share: float, desc: str) -> None:
    """Progress that nobody watches."""
    assert 0 <= share <= 1
    assert desc


@pytest.fixture(scope="module")
def result(model_library: Library, scratch: Scratch, scan: Path) -> Segmented:
    return segmented(model_library, scratch, "ellipses", str(scan), silent)


def test_files_are_those_of_the_command_line(
    result: Segmented, model_runs: Path, scan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "found.nii.gz"
    assert cli.main(["segment", "apply", str(scan), "--run", str(model_runs / "ellipses"), "-o", str(output)]) == 0
    assert {result.file(what).name for what in FILES} == {
        "case_7-labels.nii.gz",
        "case_7-volumes.csv",
        "case_7-segmentation.html",
    }
    assert result.file("labels").read_bytes() == output.read_bytes()
    assert result.file("volumes").read_text() == (tmp_path / "found-volumes.csv").read_text()
    np.testing.assert_allclose(nibabel.load(result.file("labels")).affine, TURNED)
    page = result.file("page").read_text()
    assert "left part" in page
    assert str(model_runs) not in page
    rows = list(csv.DictReader(result.file("volumes").read_text().splitlines()))
    for row, structure in zip(rows, result.structures, strict=True):
        assert row["name"] == structure.name
        assert int(row["voxels"]) == structure.voxels > 0
        assert structure.millilitres == pytest.approx(structure.voxels * 1.5 / 1000)
        assert structure.expected == pytest.approx(float(row["expected_volume_ml"]), abs=1e-4)


def test_pictures_differ_by_slice_direction_and_view(result: Segmented) -> None:
    assert result.shape == (24, 28, 22)
    shown = {
        (axis, place, view): result.draw(axis, place, view)
        for axis in range(3)
        for place in (1, result.middle[axis])
        for view in (OUTLINES, UNSURE, ALONE)
    }
    sources = [re.search('src="([^"]+)"', one)[1] for one in shown.values()]  # type: ignore[index]
    # Outlines and the scan alone are one where nothing was found: at the edge.
    assert len(set(sources)) >= len(sources) - 3
    words = shown[2, result.middle[2], OUTLINES]
    assert f'alt="Slice {result.middle[2]} of 22, bottom to top: the scan with outlines. In it: left part' in words
    assert "left is on the left" in words


def test_what_was_not_asked_for_properly_is_explained(
    model_library: Library, scratch: Scratch, scan: Path, result: Segmented
) -> None:
    for place in (0, 25):
        with pytest.raises(ValueError, match="there is no slice"):
            result.draw(0, place, OUTLINES)
    with pytest.raises(ValueError, match="drop a scan first"):
        segmented(model_library, scratch, "ellipses", None, silent)
    with pytest.raises(ValueError, match="choose a run first"):
        segmented(model_library, scratch, None, str(scan), silent)
    with pytest.raises(ValueError, match="no run 'digits'"):
        segmented(model_library, scratch, "digits", str(scan), silent)


def test_a_scan_that_cannot_be_read_leaves_no_files(model_library: Library, tmp_path: Path) -> None:
    scratch = Scratch()
    (tmp_path / "scan.nii").write_text("nothing")
    with pytest.raises(ValueError, match=r"^scan.nii is not a NIfTI file"):
        segmented(model_library, scratch, "ellipses", str(tmp_path / "scan.nii"), silent)
    assert list(scratch.place.iterdir()) == []


def test_a_result_that_was_removed_is_explained(model_library: Library, scratch: Scratch, scan: Path) -> None:
    again = segmented(model_library, scratch, "ellipses", str(scan), silent)
    Scratch.remove(again.folder)
    with pytest.raises(ValueError, match="make it again"):
        again.draw(0, 1, OUTLINES)


def test_several_at_once_get_the_same_labels(
    model_library: Library, scratch: Scratch, result: Segmented, scan: Path
) -> None:
    with ThreadPoolExecutor(3) as pool:
        work = [pool.submit(segmented, model_library, scratch, "ellipses", str(scan), silent) for _ in range(3)]
        found = [one.result() for one in work]
    assert len({one.folder for one in found}) == 3
    for one in found:
        assert one.file("labels").read_bytes() == result.file("labels").read_bytes()


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    structures = (Structure("<b>bold</b>", "orange", 0, 0.0, 0.0),)
    table = Segmented(tmp_path, "x", (1, 1, 1), (1.0, 1.0, 1.0), structures, (1, 1, 1), 0.0).table()
    assert "&lt;b&gt;bold" in table
    assert "Nothing was found" in table
    assert md("a_b*<i>") == r"a\_b\*\<i\>"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_package() is None
    monkeypatch.setitem(sys.modules, "nibabel", None)
    assert "pip install 'argrad[medical]'" in str(missing_package())


def upload(page: Any, path: Path) -> None:
    page.locator("[role=tabpanel]:visible input[type=file]").first.set_input_files(path)
    page.get_by_text(path.name.split("_0000")[0]).first.wait_for()


def source(page: Any, direction: str) -> str:
    """The picture in a direction."""
    return str(page.locator(f'img[alt*="{direction}"]').get_attribute("src"))


@pytest.mark.slow
def test_a_visit(visit: Any, model_address: str, scan: Path, tmp_path: Path) -> None:
    visitor = visit(model_address)
    page = visitor.open("Segment")
    upload(page, scan)
    page.get_by_role("button", name="Segment", exact=True).click()
    page.get_by_text("Found in case_7").wait_for()
    page.locator('img[alt*="left to right"]').wait_for()
    for name in ("left part", "right part"):
        page.get_by_role("cell", name=name).or_(page.get_by_role("rowheader", name=name)).first.wait_for()
    before, others = source(page, "left to right"), source(page, "back to front")
    words = str(page.locator('img[alt*="left to right"]').get_attribute("alt"))
    place = int(words.split()[1])
    if "ARGRAD_SCREENSHOTS" in os.environ:
        page.screenshot(path=Path(os.environ["ARGRAD_SCREENSHOTS"], "segment.png"), full_page=True)

    slider = page.get_by_label("range slider for Slice, left to right")
    slider.focus()
    page.keyboard.press("ArrowRight")  # by keyboard alone
    page.locator(f'img[alt^="Slice {place + 1} of 24, left to right"]').wait_for()
    assert source(page, "left to right") != before
    assert source(page, "back to front") == others
    page.get_by_label("Uncertainty").check()
    page.locator('img[alt*="back to front: where the model was not sure"]').wait_for()
    assert source(page, "back to front") != others

    with page.expect_download() as waiting:
        page.get_by_role("button", name="Label map").or_(page.get_by_role("link", name="Label map")).first.click()
    waiting.value.save_as(tmp_path / "labels.nii.gz")
    labels = nibabel.load(tmp_path / "labels.nii.gz")
    assert labels.shape == (24, 28, 22)
    assert set(np.unique(np.asarray(labels.dataobj))) == {0, 5, 9}
    visitor.check()


@pytest.mark.slow
def test_a_bad_scan_is_explained_and_visitors_do_not_meet(
    visit: Any, model_address: str, scan: Path, tmp_path: Path
) -> None:
    visitor, other = visit(model_address), visit(model_address)
    page = visitor.open("Segment")
    upload(page, scan)
    page.get_by_role("button", name="Segment", exact=True).click()
    page.get_by_text("Found in case_7").wait_for()
    shown = source(page, "left to right")

    elsewhere = other.open("Segment", width=390)
    (tmp_path / "broken.nii.gz").write_bytes(scan.read_bytes()[:3000])
    upload(elsewhere, tmp_path / "broken.nii.gz")
    elsewhere.get_by_role("button", name="Segment", exact=True).click()
    elsewhere.get_by_text("cut short or damaged").first.wait_for()
    assert elsewhere.locator("img[alt^=Slice]").count() == 0
    assert elsewhere.evaluate("document.documentElement.scrollWidth") <= 390

    assert source(page, "left to right") == shown
    page.get_by_label("Scan alone").check()  # the first visitor's result is still there
    page.locator('img[alt*="left to right: the scan."]').wait_for()
    page.set_viewport_size({"width": 390, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    visitor.check()
    other.check()


@pytest.mark.slow
def test_without_a_model_the_commands_are_named(visitor: Any) -> None:
    page = visitor.open("Segment")
    page.get_by_text("argrad segment prior --labels").wait_for()
    assert page.get_by_role("button", name="Segment", exact=True).count() == 0
    visitor.check()
