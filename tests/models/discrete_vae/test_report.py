"""What the report of a discrete VAE advises."""

import pytest

from argrad.models.discrete_vae.report import advice
from argrad.models.discrete_vae.run import TrainSettings


def test_few_images_get_smaller_batches_and_more_epochs():
    (words,) = advice(TrainSettings(), 38, {"used_codes": 1.0})
    assert "100 updates" in words
    assert "--batch-size 8 --epochs 400" in words


def test_following_the_advice_ends_it():
    followed = TrainSettings(batch_size=8, epochs=400, revive_until=200)
    assert advice(followed, 38, {"used_codes": 0.1}) == []


def test_unused_codes_are_told_of():
    (words,) = advice(TrainSettings(), 2000, {"used_codes": 0.3})
    assert "30% of the codes" in words
    assert "--revive-until 50" in words


@pytest.mark.parametrize(
    "settings", [TrainSettings(), TrainSettings(latent="bits", variables=8)], ids=["codes", "bits"]
)
def test_nothing_is_said_where_nothing_is_wrong(settings):
    scores = {"used_codes": 0.4 if settings.latent == "bits" else 1.0}  # bits cannot be revived
    assert advice(settings, 1437, scores) == []
