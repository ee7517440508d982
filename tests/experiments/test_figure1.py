"""Figure 1: gradients for the encoder from those for the scores, moments, and the figure on tiny images."""

import json

import pytest
import torch

from argrad import Categorical, Direct, GumbelSoftmax
from argrad.costs import Reconstruction, TableCost
from argrad.diagnostics.measure import draw
from argrad.experiments import figure1
from argrad.experiments.direct_law import direct_moments
from argrad.experiments.figure1 import (
    CLOSED_FORM,
    Encoder,
    Figure1,
    curve,
    format_table,
    markdown,
    plot,
    run_figure1,
    sample,
)
from argrad.experiments.paper_model import networks
from problems import assert_mean
from tiny_images import silent, tiny_images

TINY = Figure1(k=3, epochs=8, draws=400, examples=10, epsilons=(0.1, 1.0, 5.0), temperatures=(0.5, 2.0), quick=True)


@pytest.fixture(scope="module")
def result() -> dict:
    return run_figure1(*tiny_images(), TINY, progress=silent)


def small_encoder() -> tuple[torch.nn.Module, torch.Tensor]:
    return networks(12)(4, 0)[0].double(), tiny_images()[0][:5].double()


def test_pull_back_is_what_autograd_does(generator):
    encoder, x = small_encoder()
    gradients = torch.randn(2, 5, 4, generator=generator, dtype=torch.float64)
    pulled = Encoder(encoder, x).pull_back(gradients)
    for one, own in zip(gradients, pulled, strict=True):
        loss = (encoder(x) * one).sum() / 5
        expected = torch.autograd.grad(loss, list(encoder.parameters()))
        torch.testing.assert_close(own, torch.cat([part.flatten() for part in expected]))


def test_variances_are_those_of_pulled_back_gradients(generator):
    """With the Jacobian written out, the covariance of the mean over the batch."""
    encoder, x = small_encoder()
    factor = torch.randn(5, 4, 4, generator=generator, dtype=torch.float64)
    covariance = factor @ factor.mT
    geometry = Encoder(encoder, x)
    basis = torch.eye(20, dtype=torch.float64).reshape(20, 5, 4)
    jacobian = geometry.pull_back(basis).reshape(5, 4, -1)
    expected = torch.einsum("bip,bij,bjp->p", jacobian, covariance, jacobian)
    torch.testing.assert_close(geometry.variances(covariance), expected)


def test_sampled_moments_are_those_of_plain_draws(generator):
    latent, cost = Categorical(torch.randn(3, 4, generator=generator)), TableCost(torch.arange(4.0).expand(3, 4))
    total, groups, covariance = sample(Direct(0.5), latent, cost, 200, torch.Generator().manual_seed(1))
    state = torch.Generator().manual_seed(1)
    figure1.bytes_of_a_draw(Direct(0.5), latent, cost, state)  # draws once
    plain = torch.cat([draw(Direct(0.5), latent, cost, 10, state) for _ in range(20)]).reshape(200, 3, 4)
    assert total == 200
    torch.testing.assert_close(groups, plain.reshape(20, 10, 3, 4).mean(1))
    for b in range(3):
        torch.testing.assert_close(covariance[b], plain[:, b].T.cov())


@pytest.mark.parametrize("epsilon", [0.1, 2.0])
def test_closed_form_for_the_encoder_is_the_mean_of_draws(epsilon, generator):
    encoder, decoder = networks(12)(4, 0)
    x = tiny_images()[0][:5].float()
    with torch.no_grad():
        latent = Categorical(3 * encoder(x))
        costs = Reconstruction(x, decoder).table(latent)
    geometry = Encoder(encoder, x)
    gradients = draw(Direct(epsilon), latent, TableCost(costs), 2000, generator).reshape(2000, 5, 4)
    mean, covariance = direct_moments(latent.scores, costs, epsilon)
    some = torch.arange(0, geometry.pull_back(mean).numel(), 97)
    assert_mean(geometry.pull_back(gradients)[:, some], geometry.pull_back(mean)[some], 2)
    squares = (geometry.pull_back(gradients) - geometry.pull_back(mean)).square()
    assert_mean(squares.sum(-1, keepdim=True), geometry.variances(covariance).sum()[None], 2)


def test_result_is_json_with_every_curve(result):
    result = json.loads(json.dumps(result, allow_nan=False))
    assert {"command", "commit", "hardware", "date", "settings", "quick", "curves"} <= result.keys()
    names = {(found["name"], found["for"]) for found in result["curves"]}
    assert names == {
        (name, kind)
        for name in ("direct", "gumbel-softmax", "straight-through", CLOSED_FORM)
        for kind in ("encoder", "scores")
    }
    for found in result["curves"]:
        assert len(found["at"]) == len(found["bias"]) == len(found["average_standard_deviation"])
    assert result["settings"]["dataset"] == "digits"
    assert result["command"].startswith("argrad reproduce figure1 --k 3")


@pytest.mark.parametrize("kind", ["encoder", "scores"])
def test_draws_lie_on_the_closed_form(result, kind):
    known, drawn = curve(result, CLOSED_FORM, kind), curve(result, "direct", kind)
    for number, at in enumerate(drawn["at"]):
        place = known["at"].index(at)
        assert abs(drawn["bias"][number] - known["bias"][place]) < 4 * drawn["bias_error"][number] + 1e-9
        assert drawn["standard_deviation"][number] == pytest.approx(known["standard_deviation"][place], rel=0.2)
    assert known["bias"] == sorted(known["bias"])
    assert known["standard_deviation"] == sorted(known["standard_deviation"], reverse=True)


def test_the_model_has_learnt(result):
    assert result["model"]["test_loss"] < 12 * 0.69
    assert result["gradient_norms"]["encoder"] > 0


def test_words_and_picture(result, tmp_path):
    assert format_table(result).startswith("QUICK")
    assert "straight-through" in format_table(result)
    rows = [line for line in markdown(result).splitlines() if line.startswith("| ") and "ε or τ" not in line]
    assert len(rows) == 3 + 2 + 2
    plot(result, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_quick_leaves_what_was_set_and_full_is_the_paper():
    assert (TINY.effective().epochs, TINY.effective().dataset) == (8, "digits")
    full = Figure1().effective()
    assert (full.dataset, full.k, full.draws) == ("mnist", 10, 10_000)
    assert Figure1(quick=True, dataset="mnist").effective().dataset == "mnist"


@pytest.mark.parametrize("wrong", [{"k": 1}, {"draws": 3}, {"epsilons": ()}, {"temperatures": (0.5, -1.0)}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="at least"):
        Figure1(**wrong)


def test_soft_relaxation_needs_the_gradient_of_the_decoder(generator):
    """Soft and straight-through see the cost between the codes; a table would not have it."""
    encoder, decoder = networks(12)(4, 0)
    x = tiny_images()[0][:5].float()
    with torch.no_grad():
        latent = Categorical(encoder(x))
    gradients = draw(GumbelSoftmax(0.5), latent, Reconstruction(x, decoder), 3, generator)
    assert gradients.abs().sum() > 0
