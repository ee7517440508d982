"""Intensities given labels: the exact likelihood against enumeration, Jensen's bound below it, EM that climbs."""

import itertools
import math

import pytest
import torch

from argrad.models.anatomy.intensities import Classes, Intensities, fit_intensities, image_log_likelihood

TWO = Classes.of(2, background=1)


def problem(voxels: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    log_f = torch.randn(1, 3, voxels, generator=generator, dtype=torch.float64).log_softmax(1)
    log_density = 2 * torch.randn(1, 3, voxels, generator=generator, dtype=torch.float64)
    return log_f, log_density


def test_exact_likelihood_is_the_sum_over_all_segmentations():
    log_f, density = problem()
    total = [
        sum(log_f[0, label, j] + density[0, label, j] for j, label in enumerate(labels))
        for labels in itertools.product(range(3), repeat=5)
    ]
    torch.testing.assert_close(image_log_likelihood(log_f, density)[0], torch.stack(total).logsumexp(0))


def test_jensens_bound_is_the_mean_over_segmentations_and_never_above():
    log_f, density = problem()
    mean = sum(
        math.prod(log_f[0, label, j].exp() for j, label in enumerate(labels))
        * sum(density[0, label, j] for j, label in enumerate(labels))
        for labels in itertools.product(range(3), repeat=5)
    )
    torch.testing.assert_close(image_log_likelihood(log_f, density, "jensen")[0], mean)
    for seed in range(20):
        log_f, density = problem(seed=seed)
        assert image_log_likelihood(log_f, density, "jensen") <= image_log_likelihood(log_f, density)


def test_one_voxel_far_from_one_label():
    """At one label's mean and 14 standard deviations from the other's, both equally probable: −1.6, and −49.9."""
    given = Intensities(TWO, torch.tensor([[0.0, 14.0]]), torch.ones(1, 2), torch.zeros(1, 2, 1))
    density = given.log_density(torch.zeros(1, 1))
    log_f = torch.full((1, 2, 1), 0.5).log()
    exact, jensen = (image_log_likelihood(log_f, density, kind).item() for kind in ("exact", "jensen"))
    assert exact == pytest.approx(-0.919 - math.log(2), abs=1e-3)
    assert jensen == pytest.approx(-0.919 - 49, abs=1e-3)
    with pytest.raises(ValueError, match="exact"):
        image_log_likelihood(log_f, density, "loose")  # type: ignore[arg-type]


def test_without_the_log_sigma_term_labels_change_and_sigma_diverges():
    """The term is weighted by f, so it is no constant: dropping it makes the widest label win everywhere."""
    x = torch.tensor([[0.0, 0.1, -0.1]])
    given = Intensities(TWO, torch.zeros(1, 2), torch.tensor([[0.1, 5.0]]), torch.zeros(1, 2, 1))
    kept = given.log_density(x)
    dropped = kept + given.std.log().unsqueeze(-1)
    assert kept.argmax(1).tolist() == [[0, 0, 0]]
    assert dropped.argmax(1).tolist()[0][1:] == [1, 1]
    best = x.square().mean().sqrt().item()
    assert climb_in_sigma(x, with_term=True)[-1] == pytest.approx(best, rel=1e-3)
    stds = climb_in_sigma(x, with_term=False)
    assert all(after > before for before, after in itertools.pairwise(stds))
    assert stds[-1] > 3 * best


def climb_in_sigma(x: torch.Tensor, *, with_term: bool) -> list[float]:
    """σ of both labels, step by step, when the mean log-density rises by its gradient."""
    log_std = torch.tensor(0.1).log().requires_grad_()
    optimiser = torch.optim.SGD([log_std], 0.1, maximize=True)
    stds = []
    for _ in range(100):
        std = log_std.exp().expand(1, 2)
        density = Intensities(TWO, torch.zeros(1, 2), std, torch.zeros(1, 2, 1)).log_density(x)
        optimiser.zero_grad()
        (density if with_term else density + std.log().unsqueeze(-1)).mean().backward()
        optimiser.step()
        stds.append(log_std.exp().item())
    return stds


def test_labels_that_share_have_the_same_density():
    classes = Classes.of(4, shared=((1, 3),), background=2)
    assert classes == Classes((0, 1, 2, 1), (2, 1, 1))
    given = Intensities(classes, torch.tensor([[0.0, 1.0, 2.0, 3.0]]), torch.ones(1, 4), torch.zeros(1, 4, 1) - 0.7)
    density = given.log_density(torch.rand(1, 6, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(density[:, 1], density[:, 3])
    assert not torch.equal(density[:, 1], density[:, 2])
    for overlapping in (((1, 2), (3, 2)), ((2, 3), (1, 2)), ((1, 3), (2, 3))):
        assert Classes.of(5, shared=overlapping) == Classes((0, 1, 1, 1, 2), (4, 1, 1))
    for wrong in ((0, 1), (1, 4)):
        with pytest.raises(ValueError, match="from 1 to 3"):
            Classes.of(4, shared=(wrong,))
    with pytest.raises(ValueError, match="at least one"):
        Classes((0, 1), (0, 1))
    with pytest.raises(ValueError, match="groups"):
        Classes((0, 2), (1, 1))


def mixture(scans: int, voxels: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scans of three label types, background of two tissues; f knows the label with 90 %."""
    labels = torch.randint(0, 2, (scans, voxels), generator=generator)
    tissue = torch.randint(0, 2, (scans, voxels), generator=generator)
    mean = torch.where(labels == 1, torch.tensor(0.5), torch.where(tissue == 1, torch.tensor(0.9), torch.tensor(0.1)))
    x = mean + 0.05 * torch.randn(scans, voxels, generator=generator)
    log_f = torch.stack([torch.where(labels == label, 0.9, 0.1) for label in range(2)], 1).log()
    return x, log_f, labels


@pytest.mark.parametrize("mode", ["image", "global"])
def test_em_finds_the_intensities_and_never_goes_down(mode, generator):
    x, log_f, _ = mixture(3, 2000, generator)
    classes = Classes.of(2, background=2)
    values = [
        image_log_likelihood(log_f, fit_intensities(x, log_f, classes, mode=mode, iterations=n).log_density(x)).sum()
        for n in (0, 1, 3, 10, 30)
    ]
    # The pseudo-voxels pull a little away from the maximum, by far less than a nat per scan.
    assert all(after > before - 1 for before, after in itertools.pairwise(values))
    found = fit_intensities(x, log_f, classes, mode=mode, iterations=30)
    assert len(found.mean) == (3 if mode == "image" else 1)
    torch.testing.assert_close(found.mean, torch.tensor([[0.1, 0.9, 0.5]]).expand_as(found.mean), atol=0.02, rtol=0)
    torch.testing.assert_close(found.std, torch.full_like(found.std, 0.05), atol=0.01, rtol=0)


def test_fixed_intensities_stay(generator):
    x, log_f, _ = mixture(2, 500, generator)
    given = Intensities(
        Classes.of(2, background=2), torch.tensor([[0.0, 1.0, 0.4]]), torch.ones(1, 3), torch.zeros(1, 3, 1)
    )
    found = fit_intensities(x, log_f, given.classes, mode="fixed", given=given)
    assert torch.equal(found.mean, given.mean)
    assert torch.equal(found.std, given.std)
    assert not torch.equal(found.log_weight, given.log_weight)
    with pytest.raises(ValueError, match="fixed"):
        fit_intensities(x, log_f, given.classes, mode="fixed")


def test_maps_learn_which_tissue_is_where(generator):
    labels = torch.zeros(1, 2, 400).log_softmax(1)
    tissue = (torch.arange(400) < 200).float()
    x = 0.1 + 0.8 * tissue + 0.05 * torch.randn(6, 400, generator=generator)
    labels[:, 1] = -8.0
    labels = labels.log_softmax(1)
    found = fit_intensities(x, labels, Classes.of(2, background=2), maps=lambda total: total + 0.1)
    weight = found.log_weight.exp()
    assert weight.shape == (1, 3, 400)
    assert bool((weight[0, 1, :200] > 0.9).all())
    assert bool((weight[0, 0, 200:] > 0.9).all())
    kept = fit_intensities(x[:1], labels, found.classes, given=found.rows(slice(0, 1)))
    assert torch.equal(kept.log_weight, found.log_weight)


def test_a_class_without_voxels_stays_put():
    x = torch.full((1, 50), 0.3)
    log_f = torch.tensor([[[-1e-6], [-14.0]]]).expand(1, 2, 50)
    found = fit_intensities(x, log_f, TWO, iterations=50)
    assert bool(found.mean.isfinite().all())
    assert bool((found.std > 0).all())
