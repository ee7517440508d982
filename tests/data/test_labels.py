"""Hiding labels: how many stay, of which classes, and always the same ones."""

import pytest
import torch

from argrad.data.errors import WrongImages, WrongOption
from argrad.data.labels import hide_labels

LABELS = torch.arange(300) % 3


def test_as_many_of_each_class():
    hidden = hide_labels(LABELS, 30)
    kept = hidden >= 0
    assert torch.equal(hidden[kept], LABELS[kept])
    assert torch.bincount(hidden[kept]).tolist() == [10, 10, 10]
    assert torch.bincount(hide_labels(LABELS, 32)[hide_labels(LABELS, 32) >= 0]).tolist() == [11, 11, 10]


def test_a_small_class_gives_what_it_has():
    labels = torch.tensor([0] * 50 + [1] * 2)
    kept = hide_labels(labels, 10)
    assert torch.bincount(kept[kept >= 0]).tolist() == [8, 2]


def test_the_seed_chooses_and_zero_keeps_all():
    assert torch.equal(hide_labels(LABELS, 30, 1), hide_labels(LABELS, 30, 1))
    assert not torch.equal(hide_labels(LABELS, 30, 1), hide_labels(LABELS, 30, 2))
    assert torch.equal(hide_labels(LABELS, 0), LABELS)


def test_what_is_hidden_already_stays_so():
    labels = LABELS.clone()
    labels[100:] = -1
    kept = hide_labels(labels, 30) >= 0
    assert kept.sum() == 30
    assert not kept[100:].any()


def test_labels_that_cannot_be_had():
    with pytest.raises(WrongOption, match="labels=2 cannot be had: there are 3 classes"):
        hide_labels(LABELS, 2)
    with pytest.raises(WrongOption, match="300 labels in all"):
        hide_labels(LABELS, 301)
    with pytest.raises(WrongImages, match="too few to learn from"):
        hide_labels(torch.full((5,), -1), 0)
