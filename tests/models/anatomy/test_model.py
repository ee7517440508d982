"""Stage 2 on toy anatomy: the bound, what refinement does to it, sampled segmentations, and labels that are right."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from argrad import Direct, GumbelSoftmax
from argrad.models.anatomy.intensities import Classes, Intensities, image_log_likelihood
from argrad.models.anatomy.model import AnatomyModel, Reading, ScanTask, sampled_log_likelihood
from argrad.models.anatomy.overlap import dice
from argrad.models.anatomy.prior import AnatomyPrior
from argrad.models.anatomy.run import FitSettings, PriorSettings, build_model, grid_labels, grid_scans, train_prior
from argrad.training import LoopSettings, World, train
from ellipses import SIDE, cases
from problems import assert_mean

IDS = (0, 5, 9)
MAPS, _ = cases(60, 1)
REFERENCE, SCANS = cases(30, 2)


def indices(label_map: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.searchsorted(IDS, label_map))


@pytest.fixture(scope="module")
def prior() -> AnatomyPrior:
    settings = PriorSettings(grid=(SIDE, SIDE), latent=6, width=4, epochs=25, learning_rate=5e-3)
    gridded, settings = grid_labels([indices(one) for one in MAPS], settings)
    return train_prior(gridded, 3, settings)[0]


def model_of(prior: AnatomyPrior, scans: list[np.ndarray] = SCANS, **options) -> AnatomyModel:
    usual = {"shared": ("5+9",), "background_classes": 2, "width": 4, "shape_weight": 0.3}
    model = build_model(prior, IDS, FitSettings(**{**usual, **options}), "fit")
    model.learn_intensities(gridded_scans(scans))
    return model


def gridded_scans(scans: list[np.ndarray] = SCANS) -> torch.Tensor:
    return grid_scans([torch.from_numpy(one).float() for one in scans], (SIDE, SIDE), "fit")


def mean_dice(found: list[torch.Tensor], reference: list[np.ndarray]) -> torch.Tensor:
    return torch.stack([dice(a, indices(b), 3) for a, b in zip(found, reference, strict=True)]).mean(0)


def test_scans_are_labelled_better_than_by_location(prior):
    model = model_of(prior)
    found = [model.segment(torch.from_numpy(one).float()) for one in SCANS[:6]]
    score = mean_dice([one.labels for one in found], REFERENCE[:6])
    location = mean_dice([prior.location.argmax(0)] * 6, REFERENCE[:6])
    assert bool((score > 0.88).all()), score
    assert bool((score > location + 0.1).all()), (score, location)
    torch.testing.assert_close(found[0].probabilities.sum(0), torch.ones(SIDE, SIDE))
    assert found[0].z.shape == (6,)


@pytest.mark.parametrize(
    "change",
    [lambda scan: -scan, lambda scan: scan.clip(0) ** 0.6, lambda scan: scan.clip(0) ** 1.6],
    ids=["inverted", "gamma 0.6", "gamma 1.6"],
)
def test_another_contrast_is_labelled_as_well(prior, change):
    changed = [change(one) for one in SCANS]
    other = model_of(prior, scans=changed)
    plain = model_of(prior)
    scores = [
        mean_dice([model.segment(torch.from_numpy(one).float()).labels for one in scans[:3]], REFERENCE[:3])
        for model, scans in ((other, changed), (plain, SCANS))
    ]
    assert bool((scores[0] > scores[1] - 0.03).all()), scores


def test_without_the_log_sigma_term_segmentation_breaks(prior, monkeypatch):
    """The term that the source drops is no constant: without it the wide background takes all, and Dice collapses."""
    noise = np.random.default_rng(3)
    scans = [0.5 + np.where(one > 0, 0.03, 0.3) * noise.normal(size=one.shape) for one in REFERENCE]

    def score() -> torch.Tensor:
        model = model_of(prior, scans, background_classes=1, maps=False, label_weight=1.0)
        found = [model.segment(torch.from_numpy(one).float()).labels for one in scans[:4]]
        return mean_dice(found, REFERENCE[:4])

    right = score()
    density = Intensities.class_log_density
    monkeypatch.setattr(
        Intensities, "class_log_density", lambda self, x: density(self, x) + self.std.log().unsqueeze(-1)
    )
    dropped = score()
    assert bool((right > 0.85).all()), right
    assert bool((dropped < right - 0.3).all()), (right, dropped)


def test_maps_say_which_tissue_is_where(prior):
    model = model_of(prior)
    bright = int(model.intensities_of(model.inside(gridded_scans())).mean[0, :2].argmax())
    weight = model.log_weight[bright].exp()
    column = model.voxels % SIDE
    background = model.inside(prior.location)[0].exp() > 0.9
    assert weight[background & (column > SIDE // 2 + 1)].mean() > 0.8
    assert weight[background & (column < SIDE // 2 - 1)].mean() < 0.2


def test_refinement_climbs(prior):
    model = model_of(prior)
    scans = gridded_scans()[:4]
    x = model.inside(scans)
    density = model.intensities_of(x).log_density(x)

    def objective(z: torch.Tensor) -> torch.Tensor:
        return (model.reading.shape_weight * model.log_likelihood(z, density) - 0.5 * z.square().sum(1)).detach()

    start = torch.zeros(4, 6)
    values = [objective(start), *(objective(model.refine(start, density, steps)) for steps in (5, 30))]
    assert bool((values[1] > values[0]).all())
    assert bool((values[2] > values[1]).all())
    assert torch.equal(model.refine(start, density, 0), start)
    assert all(not parameter.requires_grad for parameter in prior.parameters())


def test_training_raises_the_bound_and_leaves_the_prior_alone(prior):
    model = model_of(prior)
    before_weights = {name: tensor.clone() for name, tensor in prior.state_dict().items()}
    task = ScanTask(model, gridded_scans(), gridded_scans()[:0], pretraining=3)
    with torch.no_grad():
        before = task.validate(torch.Generator())["loss"]
    trained = train(task, LoopSettings(epochs=8, batch_size=10, learning_rate=3e-3))
    assert trained.best_loss < before - 1
    for name, tensor in prior.state_dict().items():
        assert torch.equal(tensor, before_weights[name]), name


def test_training_starts_as_an_image_auto_encoder(prior):
    model = model_of(prior)
    task = ScanTask(model, gridded_scans(), gridded_scans()[:0], pretraining=1)
    batch = torch.tensor([3, 0])
    generator = torch.Generator()
    task.set_step(0)
    first = task.losses(batch, generator.manual_seed(1), World())
    torch.testing.assert_close(first, -model.image_bound(gridded_scans()[batch], generator=generator.manual_seed(1)))
    first.sum().backward()
    assert model.image_decoder.last.weight.grad is not None
    assert model.encoder.linear.weight.grad is not None
    task.set_step(1)
    second = task.losses(batch, generator.manual_seed(1), World())
    assert not torch.allclose(first, second)


def test_sampled_segmentations_have_the_mean_of_jensens_bound(generator):
    log_f = torch.randn(1, 3, 4, generator=generator, dtype=torch.float64).log_softmax(1)
    density = torch.randn(1, 3, 4, generator=generator, dtype=torch.float64)
    many = log_f.expand(50_000, -1, -1), density.expand(50_000, -1, -1)
    estimator = GumbelSoftmax(0.5, straight_through=True)
    values = sampled_log_likelihood(*many, estimator, generator=generator)
    assert_mean(values, image_log_likelihood(log_f, density, "jensen")[0])


@pytest.mark.parametrize("epsilon", [0.05, -0.05])
def test_direct_gradient_through_sampled_segmentations(epsilon, generator):
    """One voxel at a time the cost is linear, so the closed form (softmax(h + ε c) − softmax(h)) / ε is the mean."""
    scores = torch.randn(1, 3, 4, generator=generator, dtype=torch.float64)
    density = torch.randn(1, 3, 4, generator=generator, dtype=torch.float64)
    many = scores.expand(100_000, -1, -1).clone().requires_grad_()
    estimator = Direct(epsilon, changes="gradient")
    sampled_log_likelihood(many, density.expand_as(many), estimator, generator=generator).sum().backward()
    assert many.grad is not None
    expected = ((scores + epsilon * density).softmax(1) - scores.softmax(1)) / epsilon
    assert_mean(many.grad, expected[0])


@pytest.mark.parametrize(
    "estimator", [GumbelSoftmax(0.5, straight_through=True), Direct(0.1, changes="gradient")], ids=["st", "direct"]
)
def test_shapes_are_found_through_sampled_segmentations(prior, estimator, generator):
    """Climbing by one sampled segmentation per step raises what the samples are of: Jensen's bound."""
    model = model_of(prior, likelihood="jensen")
    x = model.inside(gridded_scans()[:4])
    density = model.intensities_of(x).log_density(x)

    def objective(z: torch.Tensor) -> torch.Tensor:
        return (model.reading.shape_weight * model.log_likelihood(z, density) - 0.5 * z.square().sum(1)).detach()

    start = torch.zeros(4, 6)
    found = model.climb(
        start, lambda z: sampled_log_likelihood(model.log_f(z), density, estimator, generator=generator), 40
    )
    exact = model.refine(start, density, 40)
    assert bool((objective(found) - objective(start) > 0.5 * (objective(exact) - objective(start))).all())


@pytest.mark.parametrize("mode", ["global", "fixed"])
def test_intensities_that_all_scans_share(prior, mode):
    settings = FitSettings(
        shared=("5+9",), background_classes=2, width=4, shape_weight=0.3, intensities=mode, label_weight=1.0
    )
    model = build_model(prior, IDS, settings, "fit")
    with pytest.raises(ValueError, match="fit it first"):
        model.segment(torch.rand(SIDE, SIDE))
    if mode == "fixed":
        with pytest.raises(ValueError, match="set_intensities"):
            model.learn_intensities(gridded_scans())
        model.set_intensities(torch.tensor([0.05, 0.95, 0.5]), torch.full((3,), 0.12))
        with pytest.raises(ValueError, match="one for each class"):
            model.set_intensities(torch.zeros(2), torch.ones(2))
    model.learn_intensities(gridded_scans())
    found = [model.segment(torch.from_numpy(one).float()) for one in SCANS[:5]]
    assert torch.equal(found[0].mean, found[1].mean)
    assert bool((mean_dice([one.labels for one in found], REFERENCE[:5]) > 0.85).all())


def test_scans_of_other_sizes_are_labelled_in_their_own_voxels(prior):
    model = model_of(prior)
    maps, scans = cases(2, 5, (37, 29))
    for label_map, one in zip(maps, scans, strict=True):
        found = model.segment(torch.from_numpy(one).float())
        assert found.labels.shape == (37, 29)
        assert bool((dice(found.labels, indices(label_map), 3) > 0.8).all())
    with pytest.raises(ValueError, match="2 dimensions"):
        model.segment(torch.rand(4, 4, 4))


def test_labels_are_read_out_with_the_intensity_or_without(prior):
    """argmax f_jm N(x_j; μ_m, σ_m²) with weight 1, argmax f_jm with weight 0."""
    model, scan = model_of(prior, label_weight=1.0), gridded_scans()[0]
    x, z = model.inside(scan[None]), torch.full((1, 6), 0.3)
    intensities = model.intensities_of(x)
    log_f = prior.log_probabilities(z)[0].flatten(1).detach()
    both = log_f.clone()
    both[:, model.voxels] += intensities.log_density(x)[0]
    with torch.no_grad():
        found = model.label(scan, z, intensities)
        model.reading = replace(model.reading, label_weight=0.0)
        alone = model.label(scan, z, intensities)
    torch.testing.assert_close(found.probabilities.flatten(1), both.softmax(0), atol=1e-4, rtol=0)
    torch.testing.assert_close(alone.probabilities.flatten(1), log_f.exp())
    assert not torch.equal(found.labels, alone.labels)


def test_beyond_a_centred_grid_all_is_background(prior):
    model = AnatomyModel(prior, Classes.of(3, background=2), Reading(maps=False, refine=2), width=4, align="centre")
    found = model.segment(torch.rand(SIDE + 10, SIDE - 6, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(found.probabilities[:, :5].sum((1, 2)), torch.tensor([5.0 * (SIDE - 6), 0, 0]))
    torch.testing.assert_close(found.probabilities.sum(0), torch.ones(SIDE + 10, SIDE - 6))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"likelihood": "loose"}, "exact"),
        ({"intensities": "local"}, "image"),
        ({"shape_weight": -1.0}, "shape_weight must not be negative"),
    ],
)
def test_wrong_settings_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Reading(**options)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (FitSettings, {"epochs": 4}, "less than epochs, got 5 of 4"),
        (FitSettings, {"width": 6}, "multiple of 4, got 6"),
        (FitSettings, {"learning_rate": 0.0}, "learning_rate must be a positive number"),
        (PriorSettings, {"epochs": 0}, "epochs must be at least 1"),
        (PriorSettings, {"grid": (12, 16)}, "multiple of 8"),
        (PriorSettings, {"latent": 0}, "latent must be at least 1"),
        (PriorSettings, {"align": "corner"}, "fit"),
    ],
)
def test_wrong_settings_of_a_run_are_refused(kind, options, words):
    with pytest.raises(ValueError, match=words):
        kind(**options)
