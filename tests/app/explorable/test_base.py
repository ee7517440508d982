"""Every kind of run as something to explore: the same questions, the model's own answers."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from argrad.app.explorable.attributes import open_attributes
from argrad.app.explorable.base import Coordinate, Explorable, Point, require_images
from argrad.app.explorable.classifier import open_classifier
from argrad.app.explorable.runs import EXPLORABLE, open_explorable
from argrad.app.explorable.tokenizer import open_tokenizer
from argrad.app.explorable.vae import open_vae
from argrad.app.library import Library
from argrad.data import Images, load
from argrad.training import RunFolder


@pytest.fixture(scope="module")
def kinds(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Explorable]:
    """One of each kind, trained for a moment."""
    from argrad.models.attributes.scikit_learn import AttributeVAE
    from argrad.models.discrete_vae.run import TrainSettings, train_run
    from argrad.models.semi_supervised.recipe import DEFAULT
    from argrad.models.semi_supervised.run import ClassifySettings, train_classifier
    from argrad.models.tokenizer.run import TokenizerSettings, tokenizer_config, train_prior, train_tokenizer

    root = tmp_path_factory.mktemp("kinds")
    digits = load("digits", binarize="none")
    few = Images("digits", digits.train[:100], digits.validation[:50], digits.test[:50], binarization="none")
    classify = ClassifySettings(epochs=2, recipe=replace(DEFAULT, label_first=1, hidden=32, latent=9))
    train_classifier(classify, RunFolder.create(root / "classify", classify.config()))
    tokens = TokenizerSettings(codes=70, width=8, dimension=8, epochs=1, prior_epochs=1, prior_width=8)
    for name in ("tokens", "tokens without a prior"):
        folder = RunFolder.create(root / name, tokenizer_config(tokens, few.shape))
        module, _ = train_tokenizer(tokens, folder, few)
        if name == "tokens":
            train_prior(tokens, folder, module, few)
    several = TrainSettings(epochs=1, hidden=16, variables=3, values=5, estimator="gumbel-softmax")
    train_run(several, RunFolder.create(root / "several", asdict(several)))
    rng = np.random.default_rng(0)
    attributes = AttributeVAE(attribute_names=["round", "tall"], epochs=1, remainder=3, channels=8, random_state=0)
    X, Y = digits.values(digits.train[:64]).numpy(), rng.integers(0, 2, (64, 2))
    attributes.set_params(device="cpu").fit(X, Y).save(root / "attributes")
    return {
        "codes": open_vae(runs / "codes"),
        "bits": open_vae(runs / "bits"),
        "several": open_vae(root / "several"),
        "classify": open_classifier(root / "classify"),
        "attributes": open_attributes(root / "attributes"),
        "tokens": open_tokenizer(root / "tokens"),
        "tokens without a prior": open_tokenizer(root / "tokens without a prior"),
    }


NAMES = ["codes", "bits", "several", "classify", "attributes", "tokens", "tokens without a prior"]


@pytest.fixture(params=NAMES)
def explorable(kinds: dict[str, Explorable], request: pytest.FixtureRequest) -> Explorable:
    return kinds[request.param]


def drawn(explorable: Explorable, seed: int = 0) -> Point:
    return explorable.draw(torch.Generator().manual_seed(seed))


def test_draws_are_points_of_the_model_and_follow_the_seed(explorable: Explorable) -> None:
    points = [drawn(explorable, seed) for seed in range(5)]
    for point in points:
        assert len(point.choices) == len(explorable.variables)
        assert len(point.coordinates) == len(explorable.coordinates)
        for variable, choice in zip(explorable.variables, point.choices, strict=True):
            assert 0 <= choice < len(variable.values)
        for one, number in zip(explorable.coordinates, point.coordinates, strict=True):
            assert one.low <= number <= one.high
    assert points == [drawn(explorable, seed) for seed in range(5)]
    assert len(set(points)) > 1


def test_generated_images_have_the_shape_and_depend_on_the_point_alone(explorable: Explorable) -> None:
    points = [drawn(explorable, seed) for seed in range(4)]
    images = explorable.generate(points)
    assert images.shape == (4, *explorable.shape)
    assert not images.requires_grad
    torch.testing.assert_close(explorable.generate(points[2:3])[0], images[2])


def test_changing_one_variable_changes_the_image(explorable: Explorable) -> None:
    point = drawn(explorable)
    values = range(len(explorable.variables[0].values))
    images = explorable.generate([point.with_choice(0, value) for value in values])
    assert len(images.flatten(1).unique(dim=0)) > 1


def test_posterior_is_a_distribution_and_its_point_gives_the_reconstruction(explorable: Explorable) -> None:
    image = load("digits", binarize=explorable.binarization).test[0].float().reshape(explorable.shape)
    if explorable.binarization == "none":
        image = image / image.max()
    found = explorable.posterior(image)
    assert len(found.probabilities) == len(explorable.variables)
    for variable, probabilities, choice in zip(
        explorable.variables, found.probabilities, found.point.choices, strict=True
    ):
        assert probabilities.shape == (len(variable.values),)
        assert probabilities.sum() == pytest.approx(1, abs=1e-5)
        assert probabilities[choice] == probabilities.max()
    assert len(found.spreads) == len(found.point.coordinates) == len(explorable.coordinates)
    torch.testing.assert_close(found.reconstruction, explorable.generate([found.point])[0])


def test_posterior_of_a_vae_is_the_modules_own(kinds: dict[str, Explorable]) -> None:
    vae = kinds["bits"]
    image = vae.examples(1, 0)[0]  # type: ignore[index]
    on = torch.stack([p[1] for p in vae.posterior(image).probabilities])
    torch.testing.assert_close(on, vae.module.posterior(image[None]).mean()[0])  # type: ignore[attr-defined]


def test_examples_are_images_of_the_data_and_follow_the_seed(explorable: Explorable) -> None:
    images = explorable.examples(7, seed=3)
    if images is None:
        assert type(explorable).__name__ == "ExplorableAttributes"
        return
    assert images.shape == (7, *explorable.shape)
    again = explorable.examples(7, seed=3)
    assert again is not None
    assert torch.equal(images, again)
    assert torch.equal(images, images.clamp(0, 1))
    if explorable.binarization == "round":
        assert set(images.unique().tolist()) <= {0.0, 1.0}


def test_usage_adds_up(explorable: Explorable) -> None:
    usage = explorable.usage()
    if usage is not None:
        assert usage.shape[0] in (1, len(explorable.variables))
        torch.testing.assert_close(usage.sum(-1), torch.ones(len(usage)), atol=1e-4, rtol=0)


def test_a_tokenizer_draws_from_its_prior_where_it_has_one(kinds: dict[str, Explorable]) -> None:
    from argrad.app.explorable.tokenizer import ExplorableTokenizer

    tokens, without = kinds["tokens"], kinds["tokens without a prior"]
    assert isinstance(tokens, ExplorableTokenizer)
    assert isinstance(without, ExplorableTokenizer)
    assert tokens.prior is not None
    assert without.prior is None
    assert without.shares is not None
    unused = {code for code, share in enumerate(without.shares.tolist()) if share == 0}
    assert unused
    assert unused.isdisjoint({code for seed in range(20) for code in drawn(without, seed).choices})


def test_a_model_is_loaded_once_for_all(library: Library) -> None:
    run = library.find("codes", *EXPLORABLE)
    assert open_explorable(library, run) is open_explorable(library, run)


def test_points_change_one_latent_at_a_time() -> None:
    point = Point((1, 2), (0.5,))
    assert point.with_choice(1, 0) == Point((1, 0), (0.5,))
    assert point.with_coordinate(0, -1.0) == Point((1, 2), (-1.0,))
    assert Coordinate("style").inside(9.0) == 4.0


@pytest.mark.parametrize("shape", [(64,), (4, 8, 8)])
def test_examples_that_are_no_images_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="no images; choose a run on images"):
        require_images(shape)
