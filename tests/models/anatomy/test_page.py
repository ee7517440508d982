"""What a person reads of a segmentation: volumes, slices with outlines, uncertainty."""

import csv

import numpy as np
import pytest

from argrad.models.anatomy.page import COLOURS, draw_slices, legend_of, outline, quality_page, volumes_csv

NAMES = {0: "background", 5: 'left, "lower"', 9: "right"}


def box() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A scan of a box of two halves, its labels, and probabilities that are sure of all but one voxel."""
    labels = np.zeros((8, 10, 12), int)
    labels[2:4, 3:7, 3:9], labels[4:6, 3:7, 3:9] = 1, 2
    probabilities = np.eye(3, dtype=np.float32)[labels].transpose(3, 0, 1, 2).copy()
    probabilities[:, 3, 4, 5] = 1 / 3
    return labels * 100.0, labels, probabilities


def test_volumes_are_counted_and_expected():
    _, labels, probabilities = box()
    text = volumes_csv(NAMES, np.array([0, 5, 9])[labels], probabilities, 2.0)
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["name"] for row in rows] == ['left, "lower"', "right"]
    assert [row["id"] for row in rows] == ["5", "9"]
    assert int(rows[0]["voxels"]) == 48
    assert float(rows[0]["volume_ml"]) == pytest.approx(0.096)
    assert float(rows[0]["expected_volume_ml"]) == pytest.approx((48 - 2 / 3) * 2 / 1000, abs=1e-4)
    assert float(rows[1]["expected_volume_ml"]) == pytest.approx((48 + 1 / 3) * 2 / 1000, abs=1e-4)


def test_outlines_are_pixels_beside_another_label():
    labels = np.zeros((5, 6), int)
    labels[1:4, 1:5] = 1
    expected = labels.astype(bool)
    expected[2, 2:4] = False
    np.testing.assert_array_equal(outline(labels), expected)


def test_slices_have_square_pixels_and_coloured_outlines():
    scan, labels, _ = box()
    pictures = draw_slices(scan, labels, np.zeros(labels.shape), 0, (1.0, 2.0, 1.0))
    # Across the first axis: 10 voxels of 2 mm wide, 12 of 1 mm high.
    assert pictures.shape == (12, 3, 90, 150)
    assert set(np.unique(pictures[6:])) == {0}
    pixels = pictures[:6].transpose(0, 2, 3, 1).reshape(-1, 3)
    colours = {tuple(pixel) for pixel in np.unique(pixels.astype(float).round(2), axis=0).tolist()}
    assert {COLOURS["orange"], COLOURS["blue"]} <= colours
    assert COLOURS["green"] not in colours


def test_the_page_names_structures_and_is_one_file():
    scan, labels, probabilities = box()
    text = quality_page("A & B", scan, labels, probabilities, NAMES, (1.0, 1.0, 1.0), 1.0, {"run": "model"})
    assert "A &amp; B" in text
    assert text.count("<img") == text.count("data:image/png;base64") == 3
    assert "orange: left, &quot;lower&quot;; blue: right" in text
    assert "0.05 ml" in text
    assert "Nothing was found" not in text


def test_a_sheared_voxel_has_the_volume_of_its_determinant():
    scan, labels, probabilities = box()
    affine = np.array([[10.0, 10.0, 0.0], [0.0, 10.0, 0.0], [0.0, 0.0, 10.0]])
    sizes = tuple(np.linalg.norm(affine, axis=0).tolist())
    text = quality_page("Sheared", scan, labels, probabilities, NAMES, sizes, abs(np.linalg.det(affine)), {})
    assert "48.00 ml" in text
    assert f"{48 * np.prod(sizes) / 1000:.2f} ml" not in text


def test_a_page_of_nothing_says_so():
    scan, labels, probabilities = box()
    text = quality_page("Empty", scan, 0 * labels, probabilities, NAMES, (1.0, 1.0, 1.0), 1.0, {})
    assert "Nothing was found" in text


def test_colours_go_round():
    legend = legend_of([str(number) for number in range(1, 9)])
    assert legend.startswith("orange: 1, 7; blue: 2, 8; green: 3")
