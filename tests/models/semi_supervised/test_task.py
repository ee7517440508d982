"""What a semi-supervised VAE is measured by while it is trained."""

import pytest
import torch

from argrad.models import Objective, SemiSupervisedModule
from argrad.models.semi_supervised.task import SemiSupervisedTask, Trainee


def metrics(validation_labels: torch.Tensor | None) -> dict[str, float]:
    """Of a model that gives each of ten validation images the class of its first number that is 1."""
    module = SemiSupervisedModule(3, 3, 2, hidden=(8, 8, 8, 8))
    module.class_scores = lambda trunk: trunk  # type: ignore[method-assign]
    module.trunk = lambda x: x  # type: ignore[method-assign]
    module.negative_elbo = lambda x, generator: x.sum(-1)  # type: ignore[method-assign]
    x = torch.eye(3)
    task = SemiSupervisedTask(
        Trainee(module, Objective()),
        x,
        torch.arange(3),
        x[torch.arange(10) % 3],
        lambda stored, generator: stored,
        validation_labels=validation_labels,
    )
    return task.validate(torch.Generator())


def test_the_accuracy_is_that_of_the_labelled_images():
    labels = torch.arange(10) % 3
    assert metrics(labels)["accuracy"] == 1
    labels[4:] = -1
    assert metrics(labels)["accuracy"] == 1
    labels[0] = 2
    assert metrics(labels)["accuracy"] == pytest.approx(3 / 4)


def test_without_labels_there_is_no_accuracy():
    assert "accuracy" not in metrics(None)
    assert "accuracy" not in metrics(torch.full((10,), -1))


def test_labels_that_are_no_class_are_refused():
    module = SemiSupervisedModule(3, 3, 2, hidden=(8, 8, 8, 8))
    with pytest.raises(ValueError, match="labels must be class numbers 0 … 2, got 3 in 1 of 2 places"):
        SemiSupervisedTask(
            Trainee(module, Objective()),
            torch.eye(3),
            torch.tensor([0, -1, 3]),
            torch.eye(3),
            lambda stored, generator: stored,
        )
