"""The tab Explore: what its parts make of a model, and the page as a visitor uses it."""

import io
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

from argrad.app.explorable.base import Coordinate, Explorable, Point, Posterior, Variable
from argrad.app.explorable.runs import open_explorable
from argrad.app.explore.grid import NOTHING, axes, grid_html, spaced, usual_axes
from argrad.app.explore.pictures import image_html
from argrad.app.explore.posterior import posterior_html
from argrad.app.explore.tab import Explore, about_html, check_seed, gallery_of, in_words
from argrad.app.library import Library, Run
from argrad.app.uploaded_picture import MOST_PIXELS, check_picture, fit_picture


class Made:
    """A model whose image shows its point: pixel n is choice n, then the coordinates follow."""

    shape: tuple[int, ...] = (2, 4)
    columns: int | None = None
    binarization = "none"

    def __init__(self, sizes: list[int], coordinates: int = 0) -> None:
        self.variables = tuple(
            Variable(f"part <{n}>", tuple(f"v{v}" for v in range(size))) for n, size in enumerate(sizes)
        )
        self.coordinates = tuple(Coordinate(f"style {n}") for n in range(coordinates))

    def generate(self, points: list[Point]) -> torch.Tensor:
        rows = torch.zeros(len(points), 8)
        for row, point in zip(rows, points, strict=True):
            numbers = torch.tensor([*point.choices, *point.coordinates], dtype=torch.float32)[:8]
            row[: len(numbers)] = numbers / 10
        return rows.reshape(-1, 2, 4)

    def posterior(self, image: torch.Tensor) -> Posterior:
        even = tuple(torch.full((len(one.values),), 1 / len(one.values)) for one in self.variables)
        point = Point((0,) * len(self.variables), (0.0,) * len(self.coordinates))
        return Posterior(even, point, (0.5,) * len(self.coordinates), image)


def made(sizes: list[int], coordinates: int = 0) -> Explorable:
    return Made(sizes, coordinates)  # type: ignore[return-value]


@pytest.fixture
def tab(library: Library) -> Explore:
    return Explore(library)


def test_a_code_and_its_image(tab: Explore) -> None:
    codes = tab.open("codes")
    assert tab.draw(codes, 3) == tab.draw(codes, 3)
    images = [image_html(codes.generate([Point((code,))])[0], "") for code in range(10)]
    assert len(set(images)) == 10


def test_a_run_that_is_gone_is_explained(tab: Explore) -> None:
    with pytest.raises(ValueError, match="there is no run 'gone' any more"):
        tab.open("gone")
    with pytest.raises(ValueError, match="choose a run first"):
        tab.open(None)


@pytest.mark.parametrize("seed", [None, -1, 2**31, 0.5])
def test_wrong_seeds_are_explained(seed: float | None) -> None:
    with pytest.raises(ValueError, match="a seed is a whole number from 0 to"):
        check_seed(seed)


def test_test_images_are_looked_at_by_their_place_in_the_gallery(tab: Explore) -> None:
    images = tab.open("codes").examples(12, seed=0)
    assert images is not None
    assert torch.equal(tab.example("codes", 4).image, images[4])
    assert len(gallery_of(images)) == 12
    assert gallery_of(None) == []
    with pytest.raises(ValueError, match="no such test image"):
        tab.example("codes", 12)


def test_light_and_dark_are_exchanged_and_back(tab: Explore) -> None:
    first = tab.example("codes", 0)
    there = tab.exchange(first)
    assert torch.equal(there.image, 1 - first.image)
    assert there.words.endswith("exchanged.")
    back = tab.exchange(there)
    assert back.words == first.words
    assert torch.equal(back.image, first.image)
    with pytest.raises(ValueError, match="first"):
        tab.exchange(None)


def test_a_run_is_described_with_a_link_to_its_report(library: Library) -> None:
    run = library.find("codes")
    words = about_html(run, open_explorable(library, run))
    assert 'href="/report/codes"' in words
    assert "on digits" in words
    odd = Run("a b/<i>", run.path, run.kind, {**run.config, "data": "<b>"})
    words = about_html(odd, open_explorable(library, run))
    assert 'href="/report/a%20b/%3Ci%3E"' in words
    assert "<b>" not in words


def test_points_in_words() -> None:
    assert in_words(made([2, 2]), Point((0, 1))).endswith("part <1> on")
    assert in_words(made([2, 2]), Point((0, 0))).endswith("everything off")
    assert in_words(made([3]), Point((2,))).endswith("part <0> v2")
    assert in_words(made([99]), Point((2,))).endswith("the chosen codes")


def test_images_have_words_that_are_escaped() -> None:
    assert 'alt="&quot;&gt;&lt;script&gt;"' in image_html(torch.zeros(2, 2), '"><script>')


# The grid


def test_grid_over_two_latents_shows_each_pair_at_its_place() -> None:
    model = made([3, 2], coordinates=1)
    page = grid_html(model, Point((0, 0), (0.0,)), "variable 0", "variable 1")
    sources = re.findall(r'alt="([^"]*)"[^>]*src="([^"]*)"', page)
    assert len(sources) == 6
    for alt, source in sources:
        first, second = (int(value) for value in re.findall(r" v(\d)", alt))
        alone = image_html(model.generate([Point((first, second), (0.0,))])[0], "")
        assert f'src="{source}"' in alone
    assert page.count("<tr>") == 3
    assert "<0>" not in page


def test_grid_over_a_coordinate_goes_from_low_to_high() -> None:
    page = grid_html(made([3], coordinates=1), Point((0,), (0.0,)), "variable 0", "coordinate 0")
    assert re.findall(r'<th scope="row">([^<]*)</th>', page) == ["−4", "−3", "−2", "−1", "0", "1", "2", "3", "4"]


def test_grid_over_one_latent_shows_every_value() -> None:
    for pair in (("variable 0", NOTHING), (NOTHING, "variable 0")):
        page = grid_html(made([50, 2]), Point((0, 0)), *pair)
        assert page.count("<img") == 50
        assert "every value" in page
    assert "60 of its 512 values" in grid_html(made([512]), Point((0,)), "variable 0", NOTHING)


def test_wrong_axes_are_explained() -> None:
    with pytest.raises(ValueError, match="must differ"):
        grid_html(made([3]), Point((0,)), "variable 0", "variable 0")
    with pytest.raises(ValueError, match="another run"):
        grid_html(made([3]), Point((0,)), "variable 7", NOTHING)


def test_usual_axes_are_latents_of_the_model() -> None:
    tokens = Made([9] * 8)
    tokens.columns = 4
    for model in (made([10]), made([2, 2]), made([10], 3), tokens):
        words = {word for _, word in axes(model)} | {NOTHING}  # type: ignore[arg-type]
        assert set(usual_axes(model)) <= words  # type: ignore[arg-type]
    assert usual_axes(tokens)[0] == "variable 6"  # type: ignore[arg-type]


@pytest.mark.parametrize("chosen", [0, 1, 250, 511])
def test_some_values_of_many_rise_and_hold_the_chosen_one(chosen: int) -> None:
    values = spaced(512, 10, chosen)
    assert chosen in values
    assert values == sorted(set(values))
    assert len(values) == 10


# The posterior


def test_probabilities_are_said_for_every_kind_of_variable() -> None:
    image = torch.zeros(2, 4)
    for sizes, words in (
        ([10], ["Probability of each part &lt;0&gt;", "10.0 %"]),
        ([2, 2], ["Probability of v1", "50.0 %"]),
        ([100], ["the 8 most probable of 100 values", "1.0 %"]),
        ([4] * 13, ["most probable value of each variable", "= v0", "25.0 %"]),
    ):
        model = made(sizes, coordinates=2)
        page = posterior_html(model, image, model.posterior(image), "<words>")
        for word in words:
            assert word in page
        assert "&lt;words&gt;" in page
        assert "± 0.50" in page


def test_cells_of_a_tokenizer_lie_where_they_are() -> None:
    model = Made([70] * 8)
    model.columns = 4
    page = posterior_html(model, torch.zeros(2, 4), model.posterior(torch.zeros(2, 4)), "")  # type: ignore[arg-type]
    assert page.count("<tr>") == 2
    assert page.count("<td") == 8


# Uploads


def picture(path: Path, size: tuple[int, int], mode: str = "RGB", colour: Any = "white", kind: str = "png") -> Path:
    Image.new(mode, size, colour).save(path, kind)
    return path


@pytest.mark.parametrize("shape", [(8, 8), (1, 8, 8), (3, 12, 8)])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "I;16", "LA"])
def test_pictures_of_every_mode_become_images_of_the_model(tmp_path: Path, shape: tuple[int, ...], mode: str) -> None:
    path = picture(tmp_path / "p", (30, 20), mode, 1 if mode in ("P", "1") else None or 0)
    image, words = fit_picture(path, shape, "none")
    assert image.shape == shape
    assert torch.equal(image, image.clamp(0, 1))
    assert f"resized from 30 × 20 to {shape[-1]} × {shape[-2]}" in words
    assert "the middle cut out" in words


def test_the_middle_of_a_picture_is_kept(tmp_path: Path) -> None:
    pixels = np.zeros((20, 60), np.uint8)
    pixels[:, 20:40] = 255
    Image.fromarray(pixels).save(tmp_path / "stripe.png")
    image, _ = fit_picture(tmp_path / "stripe.png", (8, 8), "none")
    assert torch.equal(image, torch.ones(8, 8))


def test_pictures_are_rounded_where_the_data_was(tmp_path: Path) -> None:
    image, words = fit_picture(picture(tmp_path / "p", (9, 9), "L", 200), (8, 8), "round")
    assert torch.equal(image, torch.ones(8, 8))
    assert "rounded to black or white" in words


def png_that_claims(width: int, height: int) -> bytes:
    """A small file that would unpack to any size."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 9)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "this file is empty"),
        (b"no picture at all", "no picture that can be read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no picture that can be read"),
        (png_that_claims(6000, 6000), "6000 × 6000 pixels, more than 25 million"),
        (png_that_claims(40_000, 40_000), "far more pixels"),
        (png_that_claims(100, 100), "cannot be read as an image"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "upload.png"
    path.write_bytes(content)
    with pytest.raises((ValueError, OSError)) as caught:
        fit_picture(path, (8, 8), "none")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_limit_of_pixels_is_met_by_a_camera(tmp_path: Path) -> None:
    path = tmp_path / "upload.png"
    path.write_bytes(png_that_claims(6000, 4000))
    check_picture(path)
    assert MOST_PIXELS >= 6000 * 4000


# In a browser

SLOW = 60_000
"""Milliseconds: other things may run on this machine."""


def opened(visitor: Any, run: str = "codes", **size: int) -> Any:
    page = visitor.open("Explore", **size)
    page.set_default_timeout(SLOW)
    page.locator(".explore-picture img").wait_for()
    page.get_by_label("Run", exact=True).click()
    page.get_by_role("option", name=run, exact=True).click()
    word = "code" if run == "codes" else "bit"
    page.wait_for_function(
        "word => document.querySelector('.explore-picture img').alt.includes(word) "
        "&& document.querySelectorAll('.explore-examples img').length == 12",
        arg=word,
    )
    return page


def source(page: Any, selector: str = ".explore-picture img") -> str:
    found: str = page.locator(selector).first.get_attribute("src")
    return found


def wait_for_change(page: Any, before: str, selector: str = ".explore-picture img") -> str:
    page.wait_for_function(
        "([selector, before]) => document.querySelector(selector)?.src != before", arg=[selector, before]
    )
    return source(page, selector)


@pytest.mark.slow
def test_a_click_changes_the_image(visitor: Any) -> None:
    page = opened(visitor)
    seen = {source(page)}
    chosen = page.get_by_role("radio", checked=True).get_attribute("value")
    for code in [code for code in ("1", "2", "3") if code != chosen]:
        page.get_by_role("radio", name=code, exact=True).check()
        page.wait_for_function(f"document.querySelector('.explore-picture img').alt.endsWith('code {code}')")
        seen.add(source(page))
    assert len(seen) >= 3
    page.locator(".explore-flow img").nth(9).wait_for()
    visitor.check()


@pytest.mark.slow
def test_bits_are_switched_by_keyboard_and_the_grid_follows(visitor: Any) -> None:
    page = opened(visitor, "bits")
    page.locator(".explore-grid img").nth(3).wait_for()
    picture_before, grid_before = source(page), source(page, ".explore-grid img")
    page.get_by_role("checkbox", name="bit 3").focus()
    page.keyboard.press("Space")
    wait_for_change(page, picture_before)
    wait_for_change(page, grid_before, ".explore-grid img")
    before = source(page)
    page.get_by_role("button", name="Draw anew").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('input[aria-label=\"Seed of the draw\"]').value == '1'")
    wait_for_change(page, before)
    visitor.check()


@pytest.mark.slow
def test_a_test_image_gives_a_code_that_can_be_used(visitor: Any) -> None:
    page = opened(visitor)
    page.locator(".explore-examples button.thumbnail-item").nth(2).click()
    page.locator(".explore-bars").wait_for()
    rows = page.locator(".explore-bars tr").all_inner_texts()
    assert len(rows) == 10
    widths = page.locator(".explore-bar span").evaluate_all("bars => bars.map(bar => parseFloat(bar.style.width))")
    best = widths.index(max(widths))
    page.get_by_role("button", name="Use this code").click()
    page.wait_for_function(f"document.querySelector('.explore-picture img').alt.endsWith('code {best}')")
    assert page.get_by_role("radio", name=str(best), exact=True).is_checked()
    assert source(page) == source(page, ".explore-pair figure:nth-child(2) img")
    visitor.check()


@pytest.mark.slow
def test_uploads_good_and_bad(visitor: Any) -> None:
    page = opened(visitor)
    stripe = np.zeros((64, 64), np.uint8)
    stripe[:, 24:40] = 255
    buffer = io.BytesIO()
    Image.fromarray(stripe).save(buffer, "png")
    give = page.locator("input[type=file]").locator("visible=true").or_(page.locator("input[type=file]")).first
    give.set_input_files({"name": "stripe.png", "mimeType": "image/png", "buffer": buffer.getvalue()})
    page.get_by_text("resized from 64 × 64 to 8 × 8 pixels").wait_for()
    page.locator(".explore-bars").wait_for()
    give.set_input_files({"name": "<b>.png", "mimeType": "image/png", "buffer": b"no picture"})
    page.get_by_text("This file is no picture that can be read").wait_for()
    assert page.locator(".explore-bars").count() == 1
    visitor.check()


@pytest.mark.slow
def test_two_visitors_do_not_mix(visitor: Any, another_visitor: Any) -> None:
    first, second = opened(visitor), opened(another_visitor)
    first.get_by_role("radio", name="1", exact=True).check()
    second.get_by_role("radio", name="2", exact=True).check()
    first.wait_for_function("document.querySelector('.explore-picture img').alt.endsWith('code 1')")
    second.wait_for_function("document.querySelector('.explore-picture img').alt.endsWith('code 2')")
    assert first.get_by_role("radio", name="1", exact=True).is_checked()
    assert source(first) != source(second)
    visitor.check()
    another_visitor.check()


@pytest.mark.slow
@pytest.mark.parametrize("run", ["codes", "bits"])
def test_on_a_phone_nothing_is_wider_than_the_screen(visitor: Any, run: str) -> None:
    page = opened(visitor, run, width=390)
    page.locator(".explore-examples button.thumbnail-item").first.click()
    page.locator(".explore-bars").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    visitor.check()


@pytest.mark.slow
def test_screenshot_for_the_documentation(visitor: Any) -> None:
    page = opened(visitor)
    page.locator(".explore-examples button.thumbnail-item").nth(6).click()
    page.locator(".explore-bars").wait_for()
    page.locator(".explore-flow img").nth(9).wait_for()
    if folder := os.environ.get("ARGRAD_SCREENSHOTS"):
        page.screenshot(path=str(Path(folder) / "explore.png"), full_page=True)
    visitor.check()
