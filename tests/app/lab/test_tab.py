"""The estimator lab: its problems, its numbers, its pictures, and the tab in a browser."""

import io
import math
import os
import re
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from argrad.app.lab.curves import (
    HIGHEST,
    LOWEST,
    Point,
    best_epsilon,
    draw_trade_off,
    live_points,
    points_of,
    value_at,
)
from argrad.app.lab.estimators import CHOSEN_FIRST, OFFERED, SWEEP, chosen_estimators, offered
from argrad.app.lab.measure import describe, measure_all
from argrad.app.lab.play import draw_play, picture_of, play
from argrad.app.lab.problems import (
    FROM_FILE,
    FROM_RUN,
    RANDOM,
    RANDOM_BITS,
    TRAINED,
    Choice,
    Problems,
    Studied,
    read_upload,
    study,
)
from argrad.app.lab.slider import read_factor
from argrad.app.lab.svg import Axis, Chart
from argrad.app.lab.tab import choice_of
from argrad.app.library import Library
from argrad.diagnostics.candidates import name_of
from argrad.experiments.direct_law import direct_moments
from argrad.experiments.problems import toy_problem


@pytest.fixture(scope="module")
def codes() -> Studied:
    """One of five codes with random costs, four examples."""
    return study(toy_problem(5, examples=4, seed=3))


@pytest.fixture(scope="module")
def few_bits() -> Studied:
    return study(toy_problem(bits=4, examples=4, seed=3))


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


class TestProblems:
    def test_each_is_made_once_and_shared(self, library: Library) -> None:
        problems = Problems(library)
        assert problems.find(Choice(RANDOM, seed=1)) is problems.find(Choice(RANDOM, seed=1, bits=9, run="codes"))
        assert problems.find(Choice(RANDOM, seed=1)) is not problems.find(Choice(RANDOM, seed=2))

    def test_visitors_who_want_the_same_digits_train_them_once(
        self, library: Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import argrad.app.lab.problems as module

        trained: list[Choice] = []

        def pretend(choice: Choice) -> Studied:
            trained.append(choice)
            return study(toy_problem(3, examples=2))

        monkeypatch.setattr(module, "study_digits", pretend)
        problems = Problems(library)
        threads = [threading.Thread(target=problems.find, args=(Choice(TRAINED),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(trained) == 1

    def test_a_run_is_a_problem_at_its_trained_weights(self, library: Library) -> None:
        problems = Problems(library)
        codes = problems.find(Choice(FROM_RUN, run="codes"))
        assert codes.closed_form is not None
        assert codes.costs is not None
        assert codes.costs.shape == (16, 10)
        assert codes.images is not None
        assert "16 test images" in codes.problem.description
        bits = problems.find(Choice(FROM_RUN, run="bits"))
        assert bits.closed_form is None
        assert bits.costs is not None
        assert bits.costs.shape == (16, 64)
        assert 'alt="Example 2' in picture_of(bits, 1)

    @pytest.mark.parametrize(
        ("choice", "message"),
        [
            (Choice(FROM_RUN), "choose a run"),
            (Choice(FROM_RUN, run="gone"), "no run 'gone'"),
            (Choice(FROM_FILE), "choose an .npz file"),
            (Choice("nonsense"), "no problem 'nonsense'"),
        ],
    )
    def test_what_cannot_be_made_is_explained(self, library: Library, choice: Choice, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Problems(library).find(choice)

    def test_a_seed_that_is_none_is_explained(self) -> None:
        for seed in (None, -1, 2**40):
            with pytest.raises(ValueError, match="seed must be"):
                choice_of([RANDOM, 10, 6, seed, None, None])

    def test_numbers_that_are_impossible_stay_finite(self) -> None:
        """−inf marks impossible codes; nothing may become nan from it."""
        problem = toy_problem(4, examples=2)
        problem.latent.scores[0, 1] = -torch.inf
        studied = study(problem)
        assert studied.closed_form is not None
        assert all(map(math.isfinite, (*studied.closed_form.bias, *studied.closed_form.standard_deviation)))
        assert "nan" not in draw_play(play(studied, 0, 0.3, 50, 0), 0.3)
        assert "nan" not in draw_trade_off(studied, 0.3, 10, live_points(studied, 0.3, 0.5, 0))


class TestUpload:
    def test_a_good_file(self, tmp_path: Path) -> None:
        path = save(tmp_path / "mine.npz", logits=np.zeros((3, 4)), costs=np.arange(12.0).reshape(3, 4))
        problem = read_upload(path)
        assert problem.description == "mine.npz, one of 4 codes; 3 examples"
        assert problem.latent.scores.shape == (3, 4)

    def test_only_some_of_many_examples_are_taken(self, tmp_path: Path) -> None:
        path = save(tmp_path / "mine.npz", logits=np.zeros((40, 200)), costs=np.zeros((40, 200)))
        problem = read_upload(path)
        assert problem.latent.scores.shape == (10, 200)
        assert "first 10 of 40 examples" in problem.description

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"logits": np.zeros((2, 3))}, "expected logits and costs"),
            ({"logits": np.zeros((2, 3)), "costs": np.zeros((3, 2))}, "both must be"),
            ({"logits": np.zeros((2, 3)), "costs": np.full((2, 3), np.nan)}, "must be finite"),
            ({"logits": np.zeros((2, 3)), "costs": np.array([["a"] * 3] * 2)}, "expected numbers"),
            ({"logits": np.zeros((2, 1001)), "costs": np.zeros((2, 1001))}, "1,001 codes"),
            ({"logits": np.array([{}]), "costs": np.zeros((2, 3))}, "plain numbers"),
            ({"logits": np.zeros((4000, 300)), "costs": np.zeros((4000, 300))}, "18 MiB; the lab takes"),
        ],
    )
    def test_a_bad_file_is_explained_by_its_name_alone(
        self, tmp_path: Path, arrays: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message) as caught:
            read_upload(save(tmp_path / "mine.npz", **arrays))
        assert str(caught.value).startswith("mine.npz")
        assert str(tmp_path) not in str(caught.value)

    def test_a_file_that_is_none(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.npz"
        for content in (b"", b"hello", b"PK\x03\x04 and nothing else"):
            path.write_bytes(content)
            with pytest.raises(ValueError, match=r"^mine.npz is not an .npz file"):
                read_upload(path)

    def test_a_small_file_that_unpacks_to_a_large_one(self, tmp_path: Path) -> None:
        path = tmp_path / "bomb.npz"
        np.savez_compressed(path, logits=np.zeros((3000, 1000)), costs=np.zeros((2, 3)))
        assert path.stat().st_size < 2**20
        with pytest.raises(ValueError, match="23 MiB once unpacked"):
            read_upload(path)

    def test_a_head_that_lies_about_the_size(self, tmp_path: Path) -> None:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            head,
            {"descr": "<f8", "fortran_order": False, "shape": (10**7, 10**6)},  # type: ignore[arg-type]
        )
        path = tmp_path / "liar.npz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("logits.npy", head.getvalue())
        with pytest.raises(ValueError, match=r"says that logits.npy has"):
            read_upload(path)

    def test_a_damaged_file(self, tmp_path: Path) -> None:
        whole = tmp_path / "whole.npz"
        np.savez_compressed(whole, logits=np.random.default_rng(0).normal(size=(50, 50)), costs=np.zeros((50, 50)))
        content = whole.read_bytes()
        path = tmp_path / "mine.npz"
        path.write_bytes(content[:200] + bytes(1800) + content[2000:])
        with pytest.raises(ValueError, match=r"^mine.npz"):
            read_upload(path)

    def test_any_byte_may_be_wrong(self, tmp_path: Path) -> None:
        """Whatever a damaged file makes the readers below raise, a visitor gets one message about the file."""
        whole = save(tmp_path / "whole.npz", logits=np.zeros((2, 3)), costs=np.ones((2, 3))).read_bytes()
        path, said = tmp_path / "mine.npz", []
        random = np.random.default_rng(0)
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= int(random.integers(1, 256))
            path.write_bytes(damaged)
            try:
                read_upload(path)
            except ValueError as error:
                said.append(str(error))
        assert [words for words in said if not words.startswith("mine.npz")] == []
        assert len(said) > len(whole) / 2


class TestEstimators:
    def test_only_those_that_work_are_offered(self, codes: Studied, few_bits: Studied) -> None:
        assert set(OFFERED) - set(offered(codes)) == {"ARM", "DisARM"}
        assert offered(few_bits) == list(OFFERED)
        assert set(CHOSEN_FIRST) <= set(offered(codes))

    def test_names_with_a_letter_look_at_it(self) -> None:
        for name, make in OFFERED.items():
            plain = name_of(make(0.1, 0.5))
            assert (name_of(make(0.2, 0.5)) != plain) == name.endswith("(ε)"), name
            assert (name_of(make(0.1, 0.7)) != plain) == name.endswith("(τ)"), name

    def test_a_sweep_has_every_setting_once(self) -> None:
        names = [name_of(e) for e in chosen_estimators(["Exact", "Direct (ε)"], SWEEP[1], 0.5, sweep=True)]
        assert names[:2] == ["Exact", "Direct(0.1)"]
        assert len(names) == len(set(names)) == 1 + len(SWEEP)

    def test_none_and_unknown_ones_are_explained(self) -> None:
        with pytest.raises(ValueError, match="tick at least one"):
            chosen_estimators([], 0.1, 0.5, sweep=False)
        with pytest.raises(ValueError, match="no estimator 'Best'"):
            chosen_estimators(["Best"], 0.1, 0.5, sweep=False)


class TestCurves:
    @pytest.mark.parametrize("epsilon", [0.01, 0.123, 1.0, 10.0])
    def test_between_its_points_the_closed_form_is_that_of_the_law(self, codes: Studied, epsilon: float) -> None:
        assert codes.closed_form is not None
        assert codes.costs is not None
        assert codes.gradient is not None
        mean, covariance = direct_moments(codes.problem.latent.scores, codes.costs, epsilon)
        known = codes.closed_form
        bias = (mean - codes.gradient).norm().item()
        deviation = covariance.diagonal(dim1=-2, dim2=-1).sum().sqrt().item()
        assert value_at(known.epsilons, known.bias, epsilon) == pytest.approx(bias, rel=2e-3)
        assert value_at(known.epsilons, known.standard_deviation, epsilon) == pytest.approx(deviation, rel=2e-3)

    def test_more_draws_want_a_smaller_epsilon(self, codes: Studied) -> None:
        assert codes.closed_form is not None
        found = [best_epsilon(codes.closed_form, averaged) for averaged in (1, 100, 10_000)]
        assert found[0][0] > found[1][0] > found[2][0]
        assert found[0][1] > found[1][1] > found[2][1]

    def test_live_points_lie_on_the_curve(self, codes: Studied) -> None:
        """A point is within its errors of the closed form: 4 standard errors for the bias, 20% for the deviation."""
        known = codes.closed_form
        assert known is not None
        for epsilon in (0.1, 1.0):
            point = live_points(codes, epsilon, 0.5, seed=0)[0]
            assert abs(point.bias - value_at(known.epsilons, known.bias, epsilon)) < 4 * point.bias_error
            assert point.deviation == pytest.approx(
                value_at(known.epsilons, known.standard_deviation, epsilon), rel=0.2
            )

    def test_the_charts_follow_epsilon(self, codes: Studied) -> None:
        pages = [draw_trade_off(codes, epsilon, 100, live_points(codes, epsilon, 0.5, 0)) for epsilon in (0.1, 3.0)]
        assert pages[0] != pages[1]
        assert "At ε = 0.1 " in pages[0]
        assert "At ε = 3 " in pages[1]
        for page in pages:
            assert page.count("<svg viewBox") == page.count('role="img"') == 3
            assert "nan" not in page

    def test_measured_points_are_drawn_as_well(self, codes: Studied) -> None:
        live = live_points(codes, 0.3, 0.5, 0)
        measured = [Point("Gumbel-Rao", 2.0, 0.1, 0.01, 0.5)]
        with_points = draw_trade_off(codes, 0.3, 100, live, measured)
        assert with_points.count("<polygon") == draw_trade_off(codes, 0.3, 100, live).count("<polygon") + 3
        assert "Gumbel-Rao at 2" in with_points

    def test_bits_have_points_and_no_lines(self, few_bits: Studied) -> None:
        page = draw_trade_off(few_bits, 0.3, 100, live_points(few_bits, 0.3, 0.5, 0))
        assert "<polyline" not in page
        assert "no closed form" in page

    def test_a_problem_that_cannot_be_enumerated(self) -> None:
        studied = study(toy_problem(bits=40, examples=2))
        assert studied.gradient is None
        assert live_points(studied, 0.3, 0.5, 0) == []
        assert "Measure below" in draw_trade_off(studied, 0.3, 100, [])
        assert "choose such a problem" in draw_play(play(studied, 0, 0.3, 1, 0), 0.3)


class TestPlay:
    @pytest.mark.parametrize("kind", ["codes", "few_bits"])
    def test_what_is_shown_is_what_the_estimator_does(self, kind: str, request: pytest.FixtureRequest) -> None:
        studied = request.getfixturevalue(kind)
        moved = 0
        for draw in range(1, 30):
            played = play(studied, 1, 0.7, draw, seed=5)
            assert played is not None
            torch.testing.assert_close(played.estimate, (played.before - played.after) / 0.7)
            moved += bool(played.estimate.any())
            assert played.draws == draw
            assert played.moves == moved
        assert 0 < moved < 29

    def test_the_mean_goes_to_the_expectation(self, codes: Studied) -> None:
        played = play(codes, 2, 0.5, 10_000, seed=0)
        assert played is not None
        assert codes.costs is not None
        mean, covariance = direct_moments(codes.problem.latent.scores[2], codes.costs[2], 0.5)
        torch.testing.assert_close(played.expected, mean)
        z = (played.mean - mean) / (covariance.diagonal() / played.draws).sqrt()
        assert z.abs().max() < 4.5

    def test_the_noise_of_a_draw_does_not_depend_on_epsilon_or_on_later_draws(self, codes: Studied) -> None:
        one, other = play(codes, 0, 0.1, 7, seed=1), play(codes, 0, 2.0, 7, seed=1)
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one.perturbed, other.perturbed)
        later = play(codes, 0, 0.1, 8, seed=1)
        assert later is not None
        assert not torch.equal(one.perturbed, later.perturbed)
        torch.testing.assert_close(later.mean * 8 - later.estimate, one.mean * 7)

    def test_bits_mean_goes_near_the_exact_gradient(self, few_bits: Studied) -> None:
        played = play(few_bits, 0, 0.05, 10_000, seed=0)
        assert played is not None
        assert (played.mean - played.exact).norm() < 0.5 * played.exact.norm()

    def test_words_and_pictures(self, codes: Studied) -> None:
        pages = [draw_play(play(codes, 1, 0.7, draw, seed=5), 0.7) for draw in range(1, 20)]
        assert any("The arg max moved from code" in page for page in pages)
        assert any("this draw says nothing" in page for page in pages)
        assert all(page.count('role="img"') == 3 and "nan" not in page for page in pages)

    def test_an_example_that_there_is_not(self, codes: Studied) -> None:
        with pytest.raises(ValueError, match="4 examples; there is no number 5"):
            play(codes, 4, 0.1, 1, 0)


class TestMeasure:
    def test_table_and_recommendation(self, codes: Studied) -> None:
        told: list[float] = []
        estimators = chosen_estimators(["Exact", "Direct (ε)", "Gumbel-softmax (τ)"], 0.3, 0.5, sweep=True)
        diagnosis = measure_all(codes, estimators, 200, 0, lambda share, line: told.append(share))
        assert told == sorted(told)
        assert 0 < told[0] <= told[-1] <= 1
        page = describe(diagnosis)
        assert f"Recommended: <code>{diagnosis.recommendation}</code>" in page
        assert "✓ recommended" in page
        assert all(f"<code>{row.name}</code>" in page for row in diagnosis.rows)
        assert "All 12 settings" in page
        points = points_of(diagnosis.rows)
        assert {point.family for point in points} == {"Direct", "Gumbel-softmax"}
        assert sorted(point.at for point in points if point.family == "Direct") == [0.03, 0.1, 0.3, 1.0, 3.0]

    def test_it_gives_up_after_a_while(self, codes: Studied) -> None:
        with pytest.raises(ValueError, match="tick fewer estimators"):
            measure_all(codes, chosen_estimators(["Exact"], 0.3, 0.5, sweep=False), 200, 0, seconds=0.0)


class TestParts:
    @pytest.mark.parametrize("given", [None, "", "a", "nan", "inf", -1, 0, 11, [1], {"a": 1}])
    def test_a_browser_may_send_anything(self, given: Any) -> None:
        with pytest.raises(ValueError, match=r"ε must lie between 0\.01 and 10, got"):
            read_factor(given, "ε", LOWEST, HIGHEST)
        assert read_factor("0.3", "ε", LOWEST, HIGHEST) == 0.3

    def test_ticks_are_round_and_inside(self) -> None:
        assert [words for _, words in Axis(0.01, 10, logarithmic=True).ticks()] == ["0.01", "0.1", "1", "10"]
        assert [value for value, _ in Axis(-1.3, 2.2).ticks()] == [-1, 0, 1, 2]
        for axis in (Axis(3.1, 3.2), Axis(0.2, 0.9, logarithmic=True), Axis(-1e-6, 1e-6), Axis(1e-4, 1e6, "", True)):
            assert 2 <= len(axis.ticks()) <= 12

    def test_words_in_a_chart_are_escaped(self) -> None:
        chart = Chart(Axis(0, 1, "<b>"), Axis(0, 1))
        chart.word(0.5, 0.5, "<script>")
        drawing = chart.svg('"><img>', "<i>")
        assert not re.search(r"<(b|i|img|script)>", drawing)


# ------------------------------------------------------------------------------------------------------ in a browser

TAB = "Estimator lab"


def choose(page: Any, problem: str, words: str) -> None:
    """Take another problem, and wait until it is described."""
    page.get_by_label("Problem", exact=True).click()
    page.get_by_role("option", name=problem, exact=True).click()
    page.locator("#lab-about p", has_text=words).wait_for()


def open_lab(visitor: Any, **size: int) -> Any:
    page = visitor.open(TAB, **size)
    page.set_default_timeout(120_000)
    page.locator("#lab-curves svg").first.wait_for()
    return page


def shown(page: Any, part: str) -> str:
    return str(page.locator(f"#lab-{part} .prose").inner_html())


@pytest.mark.slow
def test_a_slider_moves_the_curves_and_the_picture_by_keyboard(visitor: Any) -> None:
    page = open_lab(visitor)
    before = shown(page, "play")
    slider = page.get_by_role("slider", name="ε of Direct")
    slider.focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.get_by_text("At ε = 0.5 Direct").wait_for()
    assert slider.get_attribute("aria-valuetext") == "0.5"
    page.wait_for_function("before => document.querySelector('#lab-play .prose').innerHTML != before", arg=before)
    page.get_by_role("slider", name="Draws in a mean").press("Home")
    page.get_by_text("Error of the mean of 1 draw").first.wait_for()
    visitor.check()


@pytest.mark.slow
def test_drawing_again_changes_the_picture_and_starting_over_brings_it_back(visitor: Any) -> None:
    page = open_lab(visitor)
    first = shown(page, "play")
    page.get_by_role("button", name="Draw again").click()
    page.get_by_text("of 2 draws").first.wait_for()
    page.get_by_role("button", name="100 more").click()
    page.get_by_text("3. Gradient: the mean of 102 draws").wait_for()
    page.get_by_role("button", name="Start over").click()
    page.get_by_text("3. Gradient: this draw").wait_for()
    assert shown(page, "play") == first
    visitor.check()


@pytest.mark.slow
def test_measuring_fills_the_table_and_recommends(visitor: Any) -> None:
    page = open_lab(visitor)
    page.get_by_label("Sweep ε and τ").check()
    marks = page.locator("#lab-curves polygon").count()
    page.get_by_role("button", name="Measure", exact=True).click()
    page.locator("#lab-table").get_by_text("Recommended: Exact").wait_for()
    assert page.locator("#lab-table table").first.locator("tbody tr").count() == len(CHOSEN_FIRST)
    page.wait_for_function("n => document.querySelectorAll('#lab-curves polygon').length > n", arg=marks)
    choose(page, RANDOM_BITS, "quadratic")
    page.get_by_text("Nothing measured yet").wait_for()
    folder = os.environ.get("ARGRAD_SCREENSHOTS")
    if folder:
        choose(page, TRAINED, "digits")
        page.get_by_role("button", name="100 more").click()
        page.get_by_text("the mean of 101 draws").wait_for()
        page.get_by_role("button", name="Measure", exact=True).click()
        page.locator("#lab-table").get_by_text("Recommended:").wait_for()
        page.wait_for_timeout(500)
        page.screenshot(path=Path(folder) / "lab.png", full_page=True)
    visitor.check()


@pytest.mark.slow
def test_measuring_nothing_is_explained(visitor: Any) -> None:
    page = open_lab(visitor)
    for name in CHOSEN_FIRST:
        page.get_by_label(name, exact=True).uncheck()
    page.get_by_role("button", name="Measure", exact=True).click()
    page.get_by_text("Tick at least one estimator").wait_for()
    visitor.check()


@pytest.mark.slow
def test_a_run_of_the_library_can_be_measured(visitor: Any) -> None:
    page = open_lab(visitor)
    choose(page, FROM_RUN, "test images")
    assert page.get_by_alt_text("Example 1, the image to be put into a code").is_visible()
    page.get_by_role("button", name="Measure", exact=True).click()
    page.locator("#lab-table").get_by_text("Recommended:").wait_for()
    visitor.check()


@pytest.mark.slow
def test_uploads_good_and_bad(visitor: Any, tmp_path: Path) -> None:
    page = open_lab(visitor)
    page.get_by_label("Problem", exact=True).click()
    page.get_by_role("option", name=FROM_FILE).click()
    page.locator("#lab-about").get_by_text("Choose a file").wait_for()
    chooser = page.locator("#lab-file input[type=file]")
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"this is not a file of numbers")
    chooser.set_input_files(bad)
    page.get_by_text("Bad.npz is not an .npz file of plain numbers").wait_for()
    page.get_by_label("Remove this file").or_(page.get_by_label("Clear")).first.click()
    good = save(tmp_path / "mine.npz", logits=np.zeros((3, 4)), costs=np.arange(12.0).reshape(3, 4))
    chooser.set_input_files(good)
    page.locator("#lab-about").get_by_text("mine.npz, one of 4 codes; 3 examples").wait_for()
    assert "At ε = 0.3 Direct" in shown(page, "curves")
    visitor.check()


@pytest.mark.slow
def test_two_visitors_do_not_mix(visitor: Any, another_visitor: Any) -> None:
    one, other = open_lab(visitor), open_lab(another_visitor)
    start = shown(other, "play")
    one.get_by_role("button", name="100 more").click()
    choose(one, RANDOM_BITS, "quadratic")
    other.get_by_role("button", name="Draw again").click()
    other.get_by_text("the mean of 2 draws").wait_for()
    other.get_by_role("button", name="Start over").click()
    other.get_by_text("3. Gradient: this draw").wait_for()
    assert shown(other, "play") == start
    assert "random costs" in shown(other, "about")
    visitor.check()
    another_visitor.check()


@pytest.mark.slow
def test_it_fits_a_telephone(visitor: Any) -> None:
    page = open_lab(visitor, width=390, height=800)
    page.get_by_role("button", name="Measure", exact=True).click()
    page.locator("#lab-table").get_by_text("Recommended:").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#lab-table [role=region]").first.evaluate("box => box.scrollWidth > 0")
    visitor.check()
