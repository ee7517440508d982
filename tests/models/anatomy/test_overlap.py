"""Dice and HD95 against brute force, and the policy for empty labels."""

import math

import pytest
import torch

from argrad.models.anatomy.overlap import dice, hausdorff95


def test_dice_of_shifted_boxes():
    a, b = torch.zeros(10, 10, 10, dtype=torch.long), torch.zeros(10, 10, 10, dtype=torch.long)
    a[2:6, 2:6, 2:6], b[3:7, 2:6, 2:6] = 1, 1
    assert dice(a, b, 2).item() == pytest.approx(0.75)
    assert dice(a, a, 2).item() == 1


def test_empty_labels_follow_the_policy():
    a, b = torch.zeros(3, 4, 5, dtype=torch.long), torch.zeros(3, 4, 5, dtype=torch.long)
    a[0, 0, 0] = 1
    overlap, distance = dice(a, b, 3), hausdorff95(a, b, 3)
    assert overlap[0] == 0
    assert distance[0].item() == pytest.approx(math.sqrt(9 + 16 + 25))
    assert math.isnan(overlap[1])
    assert math.isnan(distance[1])


@pytest.mark.parametrize("shape", [(9, 11), (7, 8, 9)])
def test_distance_by_brute_force(shape, generator):
    a, b = (torch.rand(shape, generator=generator) > 0.6 for _ in range(2))
    sizes = (0.5, 1.0, 2.0)[: len(shape)]

    def rim(mask):
        points = []
        for point in mask.nonzero().tolist():
            for axis in range(len(shape)):
                for step in (-1, 1):
                    other = list(point)
                    other[axis] += step
                    beyond = not 0 <= other[axis] < shape[axis]
                    if beyond or not bool(mask[tuple(other)]):
                        points.append(point)
        return torch.tensor(sorted({tuple(point) for point in points})).double() * torch.tensor(sizes).double()

    one, other = rim(a), rim(b)
    distances = torch.cdist(one, other)
    expected = max(distances.amin(1).quantile(0.95), distances.amin(0).quantile(0.95))
    assert hausdorff95(a.long(), b.long(), 2, sizes).item() == pytest.approx(expected.item(), rel=1e-4)


def test_different_shapes_are_refused():
    with pytest.raises(ValueError, match="same grid"):
        dice(torch.zeros(3, 4), torch.zeros(4, 3), 2)
    with pytest.raises(ValueError, match="2 positive numbers"):
        hausdorff95(torch.zeros(3, 4), torch.zeros(3, 4), 2, (1.0, 1.0, 1.0))
