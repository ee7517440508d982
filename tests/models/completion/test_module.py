"""The completion module: who looks at what, what a loss is made of, where gradients go, and that training helps."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from argrad.data.masks import draw_masks
from argrad.models.completion.mixture import back_propagate_max
from argrad.models.completion.module import CompletionModule, beside_mask, smooth_fill

SHAPES = [(8, 8), (1, 8, 8), (3, 8, 12)]
SMALL = {"components": 4, "dimension": 3, "features": 6, "hidden": 16}


def make(shape: tuple[int, ...] = (8, 8), **changes: object) -> CompletionModule:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return CompletionModule(shape, **{**SMALL, **changes})


def problem(shape: tuple[int, ...], generator: torch.Generator, number: int = 6) -> tuple[Tensor, Tensor]:
    return torch.rand(number, *shape, generator=generator), draw_masks("mixed", number, shape[-2:], generator=generator)


def everywhere(mask: Tensor, x: Tensor) -> Tensor:
    return mask if x.dim() == 3 else mask[:, None].expand(x.shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_visible_pixels_are_untouched_and_completions_differ(shape, generator):
    module = make(shape)
    x, mask = problem(shape, generator)
    completed, which = module.complete(x, mask, 5, generator=generator)
    assert completed.shape == (6, 5, *shape)
    assert which.shape == (6, 5)
    hidden = everywhere(mask, x)[:, None].expand(completed.shape)
    assert torch.equal(completed[~hidden], x[:, None].expand(completed.shape)[~hidden])
    for one in range(5):
        for other in range(one):
            apart = (completed[:, one] - completed[:, other]).abs()[everywhere(mask, x)]
            assert (apart > 0).double().mean() > 0.9  # the rest is cut off at 0 or 1 in both


@pytest.mark.parametrize("shape", SHAPES)
def test_each_encoder_looks_at_its_own_part(shape, generator):
    module = make(shape)
    x, mask = problem(shape, generator)
    hidden = everywhere(mask, x)
    elsewhere = torch.rand(x.shape, generator=generator)
    visible = module.look(x, mask)
    without = module.look(torch.where(hidden, torch.nan, x), mask)
    assert torch.equal(visible.features, without.features)
    assert torch.equal(visible.fill, without.fill)
    assert not torch.equal(visible.features, module.look(torch.where(hidden, x, elsewhere), mask).features)
    mean = module.posterior(x, mask, visible).mean
    assert not torch.equal(mean, module.posterior(torch.where(hidden, elsewhere, x), mask, visible).mean)
    smooth = module.posterior(visible.fill, mask, visible).mean  # a hole that is as smooth as its border has nothing
    assert torch.equal(smooth, module.missing_encoder(beside_mask(torch.zeros_like(x), mask)).chunk(2, 1)[0])


@pytest.mark.parametrize("shape", [(8, 8), (7, 9), (3, 12, 5)])
def test_the_smooth_fill_keeps_what_is_visible_and_stays_between(shape, generator):
    x, mask = problem(shape, generator, number=50)
    hidden = everywhere(mask, x)
    fill = smooth_fill(x.masked_fill(hidden, torch.nan), mask)
    assert torch.equal(fill[~hidden], x[~hidden])
    visible = x.masked_fill(hidden, torch.nan).flatten(-2)
    for channel in range(1 if len(shape) == 2 else shape[0]):
        own, filled = (part.reshape(50, -1, part.shape[-1])[:, channel] for part in (visible, fill.flatten(-2)))
        low, high = own.nan_to_num(nan=2.0).amin(1), own.nan_to_num(nan=-1.0).amax(1)
        assert (filled.amin(1) >= low - 1e-6).all()
        assert (filled.amax(1) <= high + 1e-6).all()


def test_the_smooth_fill_continues_light_and_shade():
    slope = torch.linspace(0, 1, 16).expand(1, 16, 16)
    mask = draw_masks("centre", 1, (16, 16))
    assert (smooth_fill(slope, mask) - slope).abs().max() < 0.02
    one = torch.ones(1, 7, 9, dtype=torch.bool)
    one[0, 6, 8] = False  # the last pixel alone
    torch.testing.assert_close(smooth_fill(torch.full((1, 7, 9), 0.3), one), torch.full((1, 7, 9), 0.3))


def test_the_likelihood_is_of_hidden_pixels_alone(generator):
    module = make(scale=0.3)
    x, mask = problem((8, 8), generator)
    means = torch.rand(x.shape, generator=generator)
    expected = (Normal(means, 0.3).log_prob(x) * mask).sum((1, 2))
    torch.testing.assert_close(module.log_likelihood(x, mask, means), expected)
    torch.testing.assert_close(module.log_likelihood(x, mask, means.expand(2, *x.shape))[1], expected)


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_a_loss_is_reconstruction_and_weighted_mixture_loss(weight, generator):
    module = make()
    x, mask = problem((8, 8), generator)
    loss = module.losses(x, mask, kl_weight=weight, generator=torch.Generator().manual_seed(3))
    visible = module.look(x, mask)
    posterior = module.posterior(x, mask, visible)
    z = posterior.rsample(generator=torch.Generator().manual_seed(3))
    fit = back_propagate_max(module.mixture(visible), posterior, z)
    torch.testing.assert_close(loss, weight * fit - module.log_likelihood(x, mask, module.decode(visible, z)))


@pytest.mark.parametrize("form", ["kl", "evidence"])
def test_gradients_reach_every_parameter_and_all_that_makes_the_mixture(form, generator):
    module = make(loss=form)
    x, mask = problem((8, 8), generator, number=40)
    module.losses(x, mask, generator=generator).mean().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad.abs().max() > 0, name
    size = module.components * module.dimension
    for part in module.mixture_head[-1].weight.grad.split([module.components, size, size]):
        assert part.norm() > 1e-4


def test_components_start_apart_so_that_several_are_picked(generator):
    module = make(components=8, dimension=16, features=32)
    x, mask = problem((8, 8), generator, number=200)
    visible = module.look(x, mask)
    z = module.posterior(x, mask, visible).sample(generator=generator)
    assert module.mixture(visible).pick(z).unique().numel() > 3


def test_the_bound_rises_with_samples_towards_the_likelihood(generator):
    """In one dimension log p(x_c|x_v) is an integral that a grid does."""
    module = make(dimension=1, scale=0.5)
    x, mask = problem((8, 8), generator, number=3)
    grid = torch.linspace(-12, 12, 4001)
    with torch.no_grad():
        visible = module.look(x, mask)
        z = grid[:, None, None].expand(-1, 3, 1)
        inside = module.log_likelihood(x, mask, module.decode(visible, z)) + module.mixture(visible).log_prob(z)
    exact = inside.logsumexp(0) + math.log(24 / 4000)
    bounds = [module.log_likelihood_bound(x, mask, samples=s, generator=generator) for s in (1, 20_000)]
    torch.testing.assert_close(bounds[1], exact, rtol=0, atol=0.05)
    many = torch.stack([module.log_likelihood_bound(x, mask, samples=1, generator=generator) for _ in range(200)])
    assert (many.mean(0) < exact + 4 * many.std(0) / 200**0.5).all()


def two_ways(number: int, generator: torch.Generator) -> Tensor:
    """Frames whose middle is black or white, whatever the frame says."""
    x = torch.rand(number, 1, 1, generator=generator).expand(number, 8, 8).clone()
    x[:, 2:6, 2:6] = (torch.rand(number, 1, 1, generator=generator) < 0.5).float()
    return x


def fit(module: CompletionModule, steps: int) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    optimiser = torch.optim.Adam(module.parameters(), 1e-2)
    losses = []
    for _ in range(steps):
        x = two_ways(64, generator)
        loss = module.losses(x, draw_masks("centre", 64, (8, 8)), generator=generator).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def test_both_ways_are_found(generator):
    """Where the hole is black or white with equal probability, completions are black or white, not grey."""
    module = make(components=4, dimension=2, features=8, hidden=32)
    fit(module, 200)
    x, mask = two_ways(50, generator), draw_masks("centre", 50, (8, 8))
    completed, _ = module.complete(x, mask, 8, generator=generator)
    middle = completed[:, :, 2:6, 2:6].mean((2, 3))
    assert ((middle < 0.2) | (middle > 0.8)).double().mean() > 0.9
    white = (middle > 0.5).double().mean(1)
    assert ((white > 0) & (white < 1)).double().mean() > 0.8


def test_training_with_the_published_sign_diverges():
    """The same training: the right form ends in small positive numbers, the published one falls without end."""
    right = fit(make(components=4, dimension=2, features=8, hidden=32), 60)
    published = fit(make(components=4, dimension=2, features=8, hidden=32, loss="as-published"), 60)
    assert abs(right[-1]) < 200
    assert published[-1] < -1e4
    assert published[-1] < 2 * published[40] < 4 * published[20]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"components": 0}, "components must be at least 1, got 0"),
        ({"dimension": 0}, "dimension must be at least 1"),
        ({"loss": "right"}, "loss must be one of kl, evidence, as-published, got 'right'"),
        ({"scale": 0.0}, "standard deviation of a pixel, above 0, got 0.0"),
    ],
)
def test_wrong_settings_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        make(**changes)


@pytest.mark.parametrize("shape", [(64,), (2, 8, 8), (3, 8), (1, 1, 8, 8)])
def test_what_is_no_image_is_refused(shape):
    with pytest.raises(ValueError, match=r"images to complete are \[H, W\]"):
        make(shape)


def test_mistakes_in_images_and_masks_are_one_line(generator):
    module = make()
    x, mask = problem((8, 8), generator)
    module.check(x, mask)
    module.check(x.masked_fill(mask, torch.nan), mask)
    for images, masks, words in (
        (x, torch.zeros_like(mask), "hides nothing"),
        (x, torch.ones_like(mask), "hides everything"),
        (x, mask[:, :, :7], "mask has 8 x 7 pixels and the images 8 x 8"),
        (x, mask[:2], "there are 2 masks for 6 images"),
        (x, mask.float(), "a mask holds booleans"),
        (torch.rand(6, 9, 9), mask, r"completes images of shape \(8, 8\), got an array of shape \(6, 9, 9\)"),
        (x * 255, mask, "visible pixels must be numbers from 0 to 1"),
        (x.masked_fill(~mask, torch.nan), mask, "visible pixels must be numbers from 0 to 1"),
        ((x * 9).int(), mask, "images must be floating-point"),
    ):
        with pytest.raises(ValueError, match=words):
            module.check(images, masks)
