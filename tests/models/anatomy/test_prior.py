"""Stage 1: location prior, auto-encoder, its bound, and that it learns shapes."""

import math

import numpy as np
import pytest
import torch

from argrad.models.anatomy.prior import AnatomyPrior, PriorTask, blur, deform, location_prior, region_of_interest
from argrad.training import LoopSettings, World, train
from ellipses import label_map


def maps_of(number: int, seed: int) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    return torch.stack([torch.from_numpy(np.searchsorted([0, 5, 9], label_map(generator))) for _ in range(number)])


def test_location_prior_is_the_frequency_renormalised():
    maps = torch.tensor([[[0, 1, 2]], [[0, 1, 1]], [[0, 0, 1]]])
    frequency = torch.tensor([[[1, 1 / 3, 0]], [[0, 2 / 3, 2 / 3]], [[0, 0, 1 / 3]]])
    found = location_prior(maps, 3, sigma=0, floor=0.01)
    torch.testing.assert_close(found.exp(), (frequency + 0.01) / 1.03)
    assert bool(found.isfinite().all())
    torch.testing.assert_close(location_prior(maps, 3).exp().sum(0), torch.ones(1, 3))


@pytest.mark.parametrize("shape", [(9, 12), (7, 8, 9)])
def test_blur_keeps_constants_and_spreads_evenly(shape):
    torch.testing.assert_close(blur(torch.full((2, *shape), 3.0), 1.5), torch.full((2, *shape), 3.0))
    point = torch.zeros(1, *(side + 10 for side in shape))
    middle = tuple(side // 2 + 5 for side in shape)
    point[(0, *middle)] = 1
    spread = blur(point, 0.8)
    assert spread.sum().item() == pytest.approx(1, abs=1e-5)
    for axis in range(len(shape)):
        torch.testing.assert_close(spread.select(axis + 1, middle[axis] - 1), spread.select(axis + 1, middle[axis] + 1))
    assert blur(point, 0) is point


def test_probabilities_multiply_by_the_location_prior_and_sum_to_one(generator):
    location = torch.randn(3, 8, 16, generator=generator).log_softmax(0)
    torch.manual_seed(0)
    prior = AnatomyPrior(location, latent=4, width=4)
    z = torch.randn(5, 4, generator=generator)
    found = prior.log_probabilities(z)
    product = prior.decoder(z).softmax(1) * location.exp()
    torch.testing.assert_close(found.exp(), product / product.sum(1, keepdim=True))
    torch.testing.assert_close(found.exp().sum(1), torch.ones(5, 8, 16))


def test_log_likelihood_is_the_sum_over_voxels():
    torch.manual_seed(0)
    maps = maps_of(4, 0)
    prior = AnatomyPrior.from_label_maps(maps, 3, latent=4, width=4)
    z = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    expected = prior.log_probabilities(z).gather(1, maps.unsqueeze(1)).flatten(1).sum(1)
    torch.testing.assert_close(prior.log_likelihood(prior.one_hot(maps), z), expected)


def test_region_covers_all_labels_and_a_margin():
    maps = torch.zeros(2, 12, 12, dtype=torch.long)
    maps[0, 5, 5], maps[1, 6, 5] = 1, 2
    region = region_of_interest(maps)
    assert int(region.sum()) == 6 * 5
    assert bool(region[3:9, 3:8].all())


@pytest.mark.parametrize("shape", [(16, 16), (8, 16, 8)])
def test_deformed_maps_are_probabilities_and_close_to_the_old_ones(shape, generator):
    maps = torch.nn.functional.one_hot(torch.randint(0, 3, (4, *shape), generator=generator), 3).movedim(-1, 1).float()
    moved = deform(maps, generator, rotate=0.05, scale=0.05, shift=0.05)
    torch.testing.assert_close(moved.sum(1), torch.ones(4, *shape))
    assert not torch.equal(moved, maps)
    torch.testing.assert_close(deform(maps, generator, rotate=0, scale=0, shift=0), maps, atol=1e-4, rtol=0)


def test_training_learns_shapes_it_has_not_seen():
    maps, other = maps_of(60, 1), maps_of(12, 2)
    torch.manual_seed(0)
    prior = AnatomyPrior.from_label_maps(maps, 3, latent=6, width=4)
    task = PriorTask(prior, maps, other)
    with torch.no_grad():
        before = task.validate(torch.Generator())["loss"]
    trained = train(task, LoopSettings(epochs=25, batch_size=10, learning_rate=5e-3))
    assert trained.best_loss < 0.75 * before
    with torch.no_grad():
        again = prior.log_probabilities(prior.posterior(prior.one_hot(other)).mean).argmax(1)
    mean_shape = prior.location.argmax(0).expand_as(other)
    assert (again != other).float().mean() < 0.75 * (mean_shape != other).float().mean()


def test_losses_are_negative_bounds_of_the_batch():
    maps = maps_of(6, 3)
    torch.manual_seed(0)
    prior = AnatomyPrior.from_label_maps(maps, 3, latent=4, width=4)
    task = PriorTask(prior, maps, maps[:0], augment=0)
    batch = torch.tensor([4, 1])
    losses = task.losses(batch, torch.Generator().manual_seed(5), World())
    expected = -prior.bound(prior.one_hot(maps[batch]), generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(losses, expected)
    assert losses.shape == (2,)
    with torch.no_grad():
        assert math.isfinite(task.validate(torch.Generator())["loss"])


@pytest.mark.parametrize(
    ("shape", "options", "words"),
    [
        ((3, 12, 16), {}, "multiple of 8"),
        ((3, 8), {}, "2 or 3 sides"),
        ((3, 8, 8), {"width": 6}, "multiple of 4"),
        ((3, 8, 8), {"latent": 0}, "at least 1"),
    ],
)
def test_impossible_priors_are_refused(shape, options, words):
    with pytest.raises(ValueError, match=words):
        AnatomyPrior(torch.zeros(shape), **options)
