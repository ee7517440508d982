"""What training does to images before the model sees them, and to the step size."""

import pytest
import torch

from argrad import Exact
from argrad.models import AttributeModule, convolutional_networks
from argrad.models.attributes.task import AttributeTask, blurred, brightened, shifted


def test_shift_moves_and_brightness_scales(generator):
    images = torch.zeros(50, 3, 9, 9)
    images[:, :, 4, 4] = 1
    moved = shifted(images, 2, generator)
    places = moved[:, 0].flatten(1).argmax(1)
    assert (moved.sum((2, 3)) == 1).all()
    assert torch.equal(moved[:, 0], moved[:, 2])
    assert set((places // 9).tolist()) == set((places % 9).tolist()) == {2, 3, 4, 5, 6}
    assert shifted(images, 0) is images
    light = brightened(torch.full((200, 4, 4), 0.5), 0.2, generator)[:, 0, 0]
    assert 0.39 < light.min() < 0.43 < 0.57 < light.max() < 0.61


def test_blur_keeps_the_mean_and_spreads_a_point_as_wide_as_said(generator):
    points = torch.zeros(400, 25, 25)
    points[:, 12, 12] = 1
    soft = blurred(points, 2.5, generator)
    torch.testing.assert_close(soft.sum((1, 2)), torch.ones(400))
    steps = (torch.arange(25) - 12.0).square()
    width = (soft.sum(2) @ steps).sqrt()
    torch.testing.assert_close(width, (soft.sum(1) @ steps).sqrt())
    assert width.min() < 0.1
    assert 2.0 < width.max() < 2.5  # the tails are cut off
    torch.testing.assert_close(blurred(torch.ones(3, 9, 9), 2.5, generator), torch.ones(3, 9, 9))
    colour = torch.rand(5, 3, 9, 9, generator=generator)
    deep, flat = (blurred(some, 2.0, torch.Generator().manual_seed(0)) for some in (colour, colour[:, 1]))
    torch.testing.assert_close(deep[:, 1], flat)  # one width for all colours
    assert blurred(colour, 0.0) is colour


def task(known: torch.Tensor, held_out: int = 2) -> AttributeTask:
    torch.manual_seed(0)
    module = AttributeModule(*convolutional_networks((8, 8), 2, 2, channels=8), Exact(), attributes=2, remainder=2)
    weights = {"kl_weight": 1.0, "switch_weight": 0.0, "switch_mixed": False, "independence_weight": 0.0}
    settings = {"label_first": 1, "shift": 0, "brightness": 0.0, "blur": 0.0, "epochs": 4}
    return AttributeTask(module.eval(), torch.rand(len(known), 8, 8), known, held_out, **weights, **settings)


def test_accuracy_counts_what_is_known():
    known = torch.tensor([[1, -1], [0, 1], [1, 1], [0, 0], [-1, -1]])
    held = task(known)
    read = held.module.posterior(held.validation)[0].mode()
    right = (read[0, 0] == 1).int() + (read[1] == torch.tensor([0, 1])).sum()
    assert held.validate(torch.Generator())["accuracy"] == pytest.approx(right.item() / 3)
    assert held.train_size == 3
    assert len(task(known, held_out=0).validation) == 5
    assert "accuracy" not in task(torch.full((4, 2), -1)).validate(torch.Generator())


def test_step_size_falls_to_a_hundredth():
    trained = task(torch.zeros(5, 2, dtype=torch.int64))
    optimiser = torch.optim.Adam(trained.module.parameters(), lr=0.1)
    rates = []
    for epoch in range(1, 5):
        trained.after_epoch(epoch, optimiser, torch.Generator())
        rates.append(optimiser.param_groups[0]["lr"])
    assert rates == sorted(rates, reverse=True)
    assert rates[1] == pytest.approx(0.0505)
    assert rates[-1] == pytest.approx(0.001)
