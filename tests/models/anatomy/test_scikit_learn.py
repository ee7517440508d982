"""The scikit-learn face of segmentation: label ids outside, two and three dimensions, and what it refuses."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

from argrad.models.anatomy.overlap import dice
from argrad.models.anatomy.scikit_learn import AnatomicalSegmenter
from ellipses import SIDE, cases

IDS = (0, 5, 9)
MAPS, _ = cases(40, 1)
REFERENCE, SCANS = cases(15, 2)


def mean_dice(found: list[np.ndarray], reference: list[np.ndarray]) -> torch.Tensor:
    maps = [[torch.from_numpy(np.searchsorted(IDS, one)) for one in many] for many in (found, reference)]
    return torch.stack([dice(a, b, 3) for a, b in zip(*maps, strict=True)]).mean(0)


def test_the_segmenter_speaks_label_ids():
    model = AnatomicalSegmenter(
        latent=4,
        width=4,
        prior_epochs=15,
        epochs=2,
        pretrain_epochs=1,
        refine=20,
        shape_weight=0.3,
        background_classes=2,
        shared=((5, 9),),
        device="cpu",
    )
    model.fit_prior(MAPS).fit(SCANS)
    assert model.classes_.tolist() == [0, 5, 9]
    found = model.predict(SCANS[:3])
    assert set(np.unique(found[0])) == {0, 5, 9}
    probabilities = model.predict_proba(SCANS[:3])
    assert probabilities[0].shape == (3, SIDE, SIDE)
    np.testing.assert_array_equal(model.classes_[probabilities[1].argmax(0)], found[1])
    assert mean_dice(found, REFERENCE[:3]).min() > 0.75
    np.testing.assert_array_equal(model.predict(SCANS[:1])[0], found[0])


def test_the_segmenter_refuses_what_it_cannot_use():
    model = AnatomicalSegmenter(latent=2, width=4, prior_epochs=1, epochs=1, pretrain_epochs=0, device="cpu")
    with pytest.raises(ValueError, match="not fitted"):
        model.fit(SCANS[:2])
    with pytest.raises(ValueError, match="whole numbers"):
        model.fit_prior([MAPS[0] + 0.5])
    with pytest.raises(ValueError, match="whole numbers"):
        model.fit_prior([np.where(MAPS[0] > 0, np.nan, 0.0)])
    with pytest.raises(ValueError, match="maps of one kind"):
        model.fit_prior([MAPS[0], np.ones((4, 4, 4), int)])
    with pytest.raises(ValueError, match="label map 1 is empty"):
        model.fit_prior([MAPS[0], 0 * MAPS[0]])
    model.fit_prior(MAPS[:3])
    with pytest.raises(ValueError, match="scan 0 has voxels that are NaN"):
        model.fit([np.full((SIDE, SIDE), np.nan)])
    with pytest.raises(ValueError, match="scan 1 must have 2 dimensions"):
        model.fit([SCANS[0], np.zeros((4, 4, 4))])
    model.set_params(shared=((5, 7),))
    with pytest.raises(ValueError, match=r"5, 9.*got '5\+7'"):
        model.fit(SCANS[:3])


def test_an_organ_in_three_dimensions():
    maps, _ = cases(12, 3, (16, 16, 16))
    reference, scans = cases(8, 4, (18, 16, 15))
    model = AnatomicalSegmenter(
        grid=(16, 16, 16),
        latent=4,
        width=4,
        prior_epochs=12,
        epochs=1,
        pretrain_epochs=0,
        refine=15,
        background_classes=2,
        shared=((5, 9),),
        device="cpu",
    )
    found = model.fit_prior(maps).fit(scans).predict(scans[:3])
    assert found[0].shape == (18, 16, 15)
    assert mean_dice(found, reference[:3]).min() > 0.7


def test_settings_are_scikit_learns():
    model = AnatomicalSegmenter(latent=7, shared=((1, 2),))
    again = clone(model)
    assert again.get_params() == model.get_params()
    assert again.set_params(refine=3).refine == 3


def test_fixed_intensities_need_numbers():
    small = {"latent": 2, "width": 4, "prior_epochs": 1, "epochs": 1, "pretrain_epochs": 0, "device": "cpu"}
    model = AnatomicalSegmenter(intensities="fixed", background_classes=2, shared=((5, 9),), refine=2, **small)
    model.fit_prior(MAPS[:3])
    with pytest.raises(ValueError, match="needs means and standard deviations"):
        model.fit(SCANS[:2])
    model.set_params(fixed=([0.05, 0.95, 0.5], [0.1, 0.1, 0.1]))
    assert model.fit(SCANS[:2]).segment(SCANS[0]).mean.tolist() == pytest.approx([0.05, 0.95, 0.5])
