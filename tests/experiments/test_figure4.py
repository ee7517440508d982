"""Figure 4: every variant is trained, drawn, and told apart by what it is trained on."""

from dataclasses import replace

import pytest
import torch

from argrad.experiments import figure4
from argrad.experiments.figure4 import (
    Figure4,
    accuracy_by_majority,
    format_table,
    markdown,
    plot,
    run,
    variants,
)
from argrad.experiments.pictures import unpacked
from argrad.experiments.table2 import BEST, LabelledBits
from argrad.models import SemiSupervisedModule, Terms

NAMES = [
    "Eq. (9), no labels",
    "Eq. (9)",
    "Eq. (9), labels only",
    "Eq. (9), no regulariser",
    "Eq. (9), no reconstruction",
    "recipe",
    "recipe, labels only",
]


@pytest.fixture(scope="module")
def result():
    with torch.random.fork_rng(devices=[]):
        return run(Figure4(quick=True, epochs=3, columns=4, batch_size=400, device="cpu"), progress=lambda line: None)


def test_a_picture_of_every_variant(result, tmp_path):
    assert [panel["name"] for panel in result["panels"]] == NAMES
    for panel in result["panels"]:
        images = unpacked(panel["images"])
        assert images.shape == (10, 4, 8, 8)
        assert images.std() > 0
    plot(result, tmp_path / "figure4.png")
    assert (tmp_path / "figure4.png").read_bytes().startswith(b"\x89PNG")
    assert format_table(result).startswith("QUICK")
    for name in NAMES:
        assert f"| {name} |" in markdown(result)
        assert name in format_table(result)
    assert "One draw of 50 labels and one seed." in markdown(result)


def test_what_each_is_trained_on():
    recipes = variants(Figure4().effective())
    assert list(recipes) == NAMES
    missing = {
        "Eq. (9), no labels": {"labelled": 0, "prediction": 0},
        "Eq. (9)": {},
        "Eq. (9), labels only": {"unlabelled": 0},
        "Eq. (9), no regulariser": {"gaussian_kl": 0, "class_kl": 0},
        "Eq. (9), no reconstruction": {"reconstruction": 0},
    }
    whole = recipes["Eq. (9)"]
    for name, terms in missing.items():
        label_first = 0 if name == "Eq. (9), no labels" else 10
        assert recipes[name] == replace(whole, terms=Terms(**terms), label_first=label_first)
    assert (whole.augmentation, whole.label_loss, whole.label_epsilon) == ("none", "direct", 0.05)
    recipe, alone = recipes["recipe"], recipes["recipe, labels only"]
    assert recipe == BEST["fashion-mnist"]
    labelled = {"unlabelled": 0, "consistency": 0, "entropy": 0, "balance": 0}
    assert alone == replace(recipe, terms=replace(recipe.terms, **labelled))


def test_codes_are_called_by_their_majority():
    """Codes that are a permutation of the classes are all right."""
    module = SemiSupervisedModule(3, 3, 2, hidden=(8, 8, 8, 8))
    order = torch.tensor([2, 0, 1])
    module.class_scores = lambda trunk: trunk  # type: ignore[method-assign]
    module.trunk = lambda x: x[:, order]  # type: ignore[method-assign]
    x, labels = torch.eye(3).repeat(10, 1), torch.arange(3).repeat(10)
    data = LabelledBits(x, labels, x, labels, x, labels, (1, 3))
    assert accuracy_by_majority(module, data) == 100


def test_settings():
    assert Figure4().effective().dataset == "fashion-mnist"
    assert Figure4(quick=True).effective().dataset == "digits"
    with pytest.raises(ValueError, match="epochs must be at least 1, got 0"):
        Figure4(epochs=0)
    with pytest.raises(ValueError, match="5 epochs are too few"):
        figure4.run(Figure4(dataset="digits", labels=50, epochs=5, device="cpu"), progress=lambda line: None)
