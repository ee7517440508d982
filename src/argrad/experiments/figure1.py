"""Figure 1 of the paper: bias and standard deviation of direct against ε, of Gumbel-softmax against τ, once trained.

A 784-300-k VAE is trained by the exact gradient (so that no estimator is at home), and its best validation epoch is
taken. There the gradient of the reconstruction cost, the mean over a batch of training images, is drawn many times with
each estimator and each ε or τ, and compared with the exact one, found by enumeration. The paper writes ∇_φ, so the
gradient is that for all parameters of the encoder; the same is reported for the scores alone. The paper does not say
which images and which norm. Here: the first images of the training set; bias is ‖E g − ∇‖, corrected for what sampling
adds to it, with its standard error; standard deviation is that of the whole vector, √tr Σ, and beside it the average
over coordinates, as the paper words it.

The gradient for the encoder is linear in those for the scores: with J_b the derivative of the scores of image b and g_b
a draw of its gradient, it is (1/B) Σ_b J_bᵀ g_b, and images are independent. So mean and covariance of the g_b, [B, k]
and [B, k, k], are all that has to be sampled, and for direct they are known in closed form at every ε
(:mod:`argrad.experiments.direct_law`): its line in the figure is exact, its points are draws.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from argrad.costs import Cost, Reconstruction, TableCost, table
from argrad.diagnostics.measure import Moments, bias_with_error, bytes_of_a_draw, draw, exactly
from argrad.estimators import Direct, Estimator, Exact, GumbelSoftmax
from argrad.experiments.direct_law import direct_moments
from argrad.experiments.drawing import COLOURS, new_figure, prepare, save
from argrad.experiments.paper_model import load_bits, networks, networks_of, quickly
from argrad.experiments.provenance import command_line, provenance
from argrad.latents import Categorical
from argrad.training.population import Member, Population, stack_networks
from argrad.training.population_loop import train_population

__all__ = ["Encoder", "Figure1", "format_table", "markdown", "plot", "run", "run_figure1"]

GROUPS = 20
"""Draws are averaged in this many groups; how the groups differ tells the error of the mean."""
POINTS = 61
"""Of the closed form's curve."""
SWEEP = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
CLOSED_FORM = "direct, closed form"


@final
@dataclass(frozen=True)
class Figure1:
    """Settings of the experiment."""

    dataset: str | None = None
    """Images to train on; mnist unless given, and digits (which need no download) with --quick."""
    k: int = 10
    """Values of the categorical variable."""
    epochs: int = 100
    """Passes over the training images, with the exact gradient."""
    draws: int = 10_000
    """Of the gradient, with each estimator and each ε or τ."""
    examples: int = 100
    """Images whose mean cost has the gradient that is drawn."""
    epsilons: tuple[float, ...] = SWEEP
    """ε of direct."""
    temperatures: tuple[float, ...] = SWEEP
    """τ of Gumbel-softmax."""
    seed: int = 0
    """First weights, orders and noise."""
    device: str = "auto"
    """cpu, cuda …"""
    quick: bool = False
    """8×8 digits, 1,000 draws: seconds on a laptop, and not the paper's model."""

    def __post_init__(self) -> None:
        for name, least in (("k", 2), ("epochs", 1), ("draws", 100), ("examples", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if min((*self.epsilons, *self.temperatures), default=0) <= 0 or not self.epsilons or not self.temperatures:
            raise ValueError("give at least one ε and one τ, all of them positive")

    def effective(self) -> Figure1:
        """The settings with ``quick`` and the data set spelt out."""
        if not self.quick:
            return quickly(self, dataset="mnist")
        return quickly(self, dataset="digits", epochs=20, draws=1000, examples=50)


@final
class Encoder:
    """What turns gradients for the scores of a batch into gradients for the parameters of a two-layer encoder.

    Args:
        encoder: linear, ReLU, linear.
        x: images ``[B, D]``.
    """

    def __init__(self, encoder: nn.Module, x: Tensor) -> None:
        enter, leave = (layer for layer in encoder.modules() if isinstance(layer, nn.Linear))
        self.x = x.double()
        before = self.x @ enter.weight.detach().double().T + enter.bias.detach().double()
        self.hidden, self.alive = before.relu(), (before > 0).double()
        self.leave = leave.weight.detach().double()  # [k, H]

    def pull_back(self, gradients: Tensor) -> Tensor:
        """The gradient of the mean over the batch from each image's ``[*draws, B, k]``: ``[*draws, parameters]``."""
        below = (gradients @ self.leave) * self.alive
        parts = (below.mT @ self.x, below.sum(-2), gradients.mT @ self.hidden, gradients.sum(-2))
        ends = gradients.dim() - 2
        return torch.cat([part.flatten(ends) for part in parts], -1) / len(self.x)

    def variances(self, covariance: Tensor) -> Tensor:
        """The variance of every parameter's gradient from each image's covariance ``[B, k, k]``: ``[parameters]``."""
        own = covariance.diagonal(dim1=-2, dim2=-1)
        below = ((covariance @ self.leave) * self.leave).sum(-2) * self.alive
        parts = (below.T @ self.x.square(), below.sum(0), own.T @ self.hidden.square(), own.sum(0))
        return torch.cat([part.flatten() for part in parts]).clamp_min(0) / len(self.x) ** 2


@final
class Scores:
    """The same, for the scores themselves."""

    def pull_back(self, gradients: Tensor) -> Tensor:
        """``[*draws, B, k]`` to ``[*draws, B · k]``."""
        return gradients.flatten(gradients.dim() - 2) / gradients.shape[-2]

    def variances(self, covariance: Tensor) -> Tensor:
        """``[B, k, k]`` to ``[B · k]``."""
        return covariance.diagonal(dim1=-2, dim2=-1).flatten().clamp_min(0) / len(covariance) ** 2


def sample(
    estimator: Estimator, latent: Categorical, cost: Cost, draws: int, generator: torch.Generator
) -> tuple[int, Tensor, Tensor]:
    """Draw the gradients for the scores: how often, means of groups ``[GROUPS, B, k]``, covariances ``[B, k, k]``."""
    shape = latent.scores.shape
    per_group = -(-draws // GROUPS)
    memory = 2**31 if latent.scores.is_cuda else 2**28
    at_once = max(1, memory // max(1, bytes_of_a_draw(estimator, latent, cost, generator)))
    sums = torch.zeros(GROUPS, *shape, dtype=torch.float64, device=latent.scores.device)
    second = torch.zeros(*shape, shape[-1], dtype=torch.float64, device=latent.scores.device)
    for group in range(GROUPS):
        for start in range(0, per_group, at_once):
            gradients = draw(estimator, latent, cost, min(at_once, per_group - start), generator).unflatten(1, shape)
            sums[group] += gradients.sum(0)
            by_image = gradients.transpose(0, 1)
            second += by_image.mT @ by_image
    total = GROUPS * per_group
    mean = sums.sum(0) / total
    covariance = (second / total - mean.unsqueeze(-1) * mean.unsqueeze(-2)) * (total / (total - 1))
    return total, sums / per_group, covariance


def train_model(
    train: Tensor, validation: Tensor, test: Tensor, settings: Figure1, progress: Callable[[str], object]
) -> tuple[nn.Module, nn.Module, dict[str, Any]]:
    """The paper's model, trained by the exact gradient: encoder, decoder, and how it went."""
    members = [Member(settings.k, "exact")]
    stacked = stack_networks(networks(train.shape[1]), members, [settings.seed])
    population = Population({name: tensor.to(train.device) for name, tensor in stacked.items()}, members)
    history = train_population(
        population,
        train,
        validation,
        test,
        epochs=settings.epochs,
        seed=settings.seed,
        progress=lambda line: progress(f"training: {line}"),
    )
    best = int(history.best_epoch)
    encoder, decoder = networks_of(history.best, settings.k)
    loss = float(population.evaluate(test, history.best)[0])
    return encoder, decoder, {"epochs": settings.epochs, "best_epoch": best, "test_loss": round(loss, 3)}


def run_figure1(
    train: Tensor, validation: Tensor, test: Tensor, settings: Figure1, progress: Callable[[str], object] = print
) -> dict[str, Any]:
    """The whole figure from tensors.

    Args:
        train: bits ``[N, D]``, uint8, on the device to work on; the gradients are those of its first images.
        validation: bits.
        test: bits.
        settings: of the experiment.
        progress: is told how far it is.

    Returns:
        A result ready for JSON. Each of its ``curves`` has a ``name``, what it is a gradient ``for`` (encoder or
        scores), the ``parameter`` that is swept (epsilon or temperature) and its values ``at``, ``bias``,
        ``bias_error``, ``standard_deviation`` and ``average_standard_deviation``; ``gradient_norms`` has the norm of
        the exact gradient.
    """
    record = provenance(command_line("argrad reproduce figure1", settings))
    settings = settings.effective()
    with torch.random.fork_rng(devices=[]):
        encoder, decoder, model = train_model(train, validation, test, settings, progress)
    x = train[: settings.examples].float()
    with torch.no_grad():
        latent = Categorical(encoder(x))
    decoder.requires_grad_(False)
    cost = Reconstruction(x, decoder)
    curves, norms = measure_curves(encoder, x, latent, cost, settings, progress)
    return {
        **record,
        "settings": asdict(settings),
        "quick": settings.quick,
        "model": model,
        "gradient_norms": norms,
        "curves": curves,
    }


def measure_curves(
    encoder: nn.Module,
    x: Tensor,
    latent: Categorical,
    cost: Cost,
    settings: Figure1,
    progress: Callable[[str], object],
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """All curves at fixed parameters, and the norms of the exact gradients."""
    generator = torch.Generator(x.device).manual_seed(settings.seed)
    views: dict[str, Encoder | Scores] = {"encoder": Encoder(encoder, x), "scores": Scores()}
    with torch.no_grad():
        costs = table(cost, latent)
    exact = draw(Exact(), latent, cost, 1, generator).reshape(latent.scores.shape)
    references = {name: exactly(view.pull_back(exact)) for name, view in views.items()}
    sweeps: list[tuple[str, str, tuple[float, ...], Callable[[float], Estimator], Cost]] = [
        ("direct", "epsilon", settings.epsilons, lambda at: Direct(at), TableCost(costs)),
        ("gumbel-softmax", "temperature", settings.temperatures, lambda at: GumbelSoftmax(at), cost),
        (
            "straight-through",
            "temperature",
            settings.temperatures,
            lambda at: GumbelSoftmax(at, straight_through=True),
            cost,
        ),
    ]
    curves = []
    for name, parameter, values, make, own_cost in sweeps:
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in views}
        for at in values:
            progress(f"{name}, {parameter} {at:g}: {settings.draws} draws")
            estimator = make(at).to(x.device)
            drawn = sample(estimator, latent, own_cost, settings.draws, generator)
            for kind, view in views.items():
                found[kind].append(summarise(*drawn, view, references[kind]))
        curves += [as_curve(name, kind, parameter, values, rows) for kind, rows in found.items()]
    curves += closed_form(latent.scores, costs, views, references, settings)
    norms = {kind: float(reference.mean.norm()) for kind, reference in references.items()}
    return curves, norms


def summarise(
    draws: int, groups: Tensor, covariance: Tensor, view: Encoder | Scores, reference: Moments
) -> dict[str, float]:
    """Bias with its error and standard deviations from what :func:`sample` drew."""
    mean, variances = groups.mean(0), view.variances(covariance)
    deviations = view.pull_back(groups - mean)
    moments = Moments(draws, view.pull_back(mean), float(variances.sum()), deviations, math.nan)
    bias, error = bias_with_error(moments, reference)
    return {"bias": bias, "bias_error": error, **spread(variances)}


def spread(variances: Tensor) -> dict[str, float]:
    """√tr Σ, and the average over coordinates."""
    return {
        "standard_deviation": float(variances.sum().sqrt()),
        "average_standard_deviation": float(variances.sqrt().mean()),
    }


def closed_form(
    scores: Tensor,
    costs: Tensor,
    views: dict[str, Encoder | Scores],
    references: dict[str, Moments],
    settings: Figure1,
) -> list[dict[str, Any]]:
    """Direct's exact curves, one and a half times beyond the smallest and the largest ε."""
    low, high = min(settings.epsilons) / 1.5, max(settings.epsilons) * 1.5
    grid = torch.logspace(math.log10(low), math.log10(high), POINTS, dtype=torch.float64).tolist()
    at = sorted({*grid, *settings.epsilons})
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in views}
    for epsilon in at:
        mean, covariance = direct_moments(scores, costs, epsilon)
        for kind, view in views.items():
            bias = float((view.pull_back(mean) - references[kind].mean).norm())
            found[kind].append({"bias": bias, "bias_error": 0.0, **spread(view.variances(covariance))})
    return [as_curve(CLOSED_FORM, kind, "epsilon", at, rows) for kind, rows in found.items()]


def as_curve(name: str, kind: str, parameter: str, at: Any, rows: list[dict[str, float]]) -> dict[str, Any]:
    """Rows as lists by name, to six digits."""
    columns = {key: [float(f"{row[key]:.6g}") for row in rows] for key in rows[0]}
    return {"name": name, "for": kind, "parameter": parameter, "at": [float(f"{value:.6g}") for value in at], **columns}


def run(settings: Figure1, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """The figure from the catalogue's images."""
    from argrad.models.discrete_vae.run import choose_device

    dataset = settings.effective().dataset
    assert dataset is not None
    train, validation, test = load_bits(dataset, choose_device(settings.device))
    return run_figure1(train, validation, test, settings, progress)


# ------------------------------------------------------------------------------------------------------- for a person


def curve(result: dict[str, Any], name: str, kind: str = "encoder") -> dict[str, Any]:
    """A curve by name."""
    for found in result["curves"]:
        if found["name"] == name and found["for"] == kind:
            assert isinstance(found, dict)
            return found
    raise ValueError(f"the result has no curve {name!r} for {kind!r}")


def description(result: dict[str, Any]) -> str:
    """The problem in a line."""
    settings, model = result["settings"], result["model"]
    return (
        f"{settings['dataset']}, k = {settings['k']}, exact gradient for {model['epochs']} epochs (test loss "
        f"{model['test_loss']:.2f} at the best); {settings['draws']:,} draws, {settings['examples']} images"
    )


def relative(result: dict[str, Any], name: str, key: str, kind: str = "encoder") -> list[float]:
    """A curve's numbers over the norm of the exact gradient."""
    norm = result["gradient_norms"][kind]
    return [value / norm for value in curve(result, name, kind)[key]]


def table_rows(result: dict[str, Any]) -> list[tuple[str, float, str, str, str, str]]:
    """Name, ε or τ, bias, its closed form, standard deviation, its closed form; over the norm of the gradient."""
    known = curve(result, CLOSED_FORM)
    places = {at: number for number, at in enumerate(known["at"])}
    rows = []
    for name in ("direct", "gumbel-softmax", "straight-through"):
        found = curve(result, name)
        bias, error = relative(result, name, "bias"), relative(result, name, "bias_error")
        deviation = relative(result, name, "standard_deviation")
        for number, at in enumerate(found["at"]):
            sampled = f"{bias[number]:.3f} ± {error[number]:.3f}"
            exact_bias = exact_deviation = ""
            if name == "direct":
                exact_bias = f"{relative(result, CLOSED_FORM, 'bias')[places[at]]:.4f}"
                exact_deviation = f"{relative(result, CLOSED_FORM, 'standard_deviation')[places[at]]:.3f}"
            rows.append((name, at, sampled, exact_bias, f"{deviation[number]:.3f}", exact_deviation))
    return rows


def format_table(result: dict[str, Any]) -> str:
    """Every point, for the encoder's parameters."""
    lines = ["QUICK: small images and few draws; this is not the paper's figure."] if result["quick"] else []
    lines += [
        f"{description(result)}.",
        "Gradient for all parameters of the encoder, over the norm of the exact one",
        f"{'':<18}{'ε or τ':>7} {'bias':>17} {'closed form':>12} {'deviation':>10} {'closed form':>12}",
    ]
    for name, at, bias, known_bias, deviation, known_deviation in table_rows(result):
        lines.append(f"{name:<18}{at:>7g} {bias:>17} {known_bias:>12} {deviation:>10} {known_deviation:>12}")
    return "\n".join(lines)


def markdown(result: dict[str, Any]) -> str:
    """The same for the documentation."""
    lines = [f"{description(result)}.", ""]
    lines += ["| | ε or τ | Bias | Closed form | Standard deviation | Closed form |", "|---|---|---|---|---|---|"]
    for name, at, *cells in table_rows(result):
        lines.append(f"| {name} | {at:g} | " + " | ".join(cell or "–" for cell in cells) + " |")
    return "\n".join(lines)


def plot(result: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Bias on the left, standard deviation on the right, for the encoder's parameters."""
    figure = new_figure(11, 4.6)
    left, right = figure.subplots(1, 2, sharex=True)
    for axes, title in ((left, "Bias"), (right, "Standard deviation of one draw")):
        axes.set_xscale("log")
        axes.set_yscale("log")
        prepare(axes, title, "ε (direct) or τ (Gumbel-softmax)", "over the norm of the exact gradient")
    known = curve(result, CLOSED_FORM)
    look = {"color": COLOURS["direct"], "linewidth": 1.4, "label": CLOSED_FORM}
    left.plot(known["at"], relative(result, CLOSED_FORM, "bias"), **look)
    right.plot(known["at"], relative(result, CLOSED_FORM, "standard_deviation"), **look)
    for name, marker in (("direct", "o"), ("gumbel-softmax", "^"), ("straight-through", "D")):
        at = curve(result, name)["at"]
        bias, error = relative(result, name, "bias"), relative(result, name, "bias_error")
        drawn = {"color": COLOURS[name], "marker": marker, "markersize": 5, "linewidth": 1.2}
        line = "" if name == "direct" else "-"
        seen = [number for number in range(len(at)) if bias[number] > 2 * error[number]]
        left.errorbar(
            [at[n] for n in seen], [bias[n] for n in seen], yerr=[error[n] for n in seen], linestyle=line, **drawn
        )
        right.plot(at, relative(result, name, "standard_deviation"), linestyle=line, label=name, **drawn)
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    left.text(
        0.98, 0.02, "a bias within 2 standard errors of 0 is not drawn", transform=left.transAxes, ha="right",
        fontsize=8, color="#8a8a8a",
    )  # fmt: skip
    save(figure, result, description(result), path)
