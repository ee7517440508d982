"""Pluralistic image completion: a mixture of k Gaussians for what is missing, against a single one.

On faces of people that were held out (Olivetti, CMU) and on Fashion-MNIST, the same networks are trained with k
components and with one, by the back-propagate-max loss in its right form, under masks of all kinds. Measured on test
images: whether gradients reach the weights, means and variances of the mixture; how many components the hard max picks;
log p(z_c|z_v) of the latents, against one component fitted to the same latents, by the same loss and by likelihood (see
:mod:`argrad.experiments.completion_rival`); that visible pixels are untouched; and how different eight completions are,
and how close the best of them comes, against those of the model with one component.

Faces train in minutes on a CPU; Fashion-MNIST wants a GPU: `--datasets fashion-mnist --add-to FILE` adds it to a result
that holds the others.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from argrad.data import Images
from argrad.data.masks import MaskKind
from argrad.experiments.completion_rival import fit_head
from argrad.experiments.drawing import new_figure, prepare, save
from argrad.experiments.pictures import packed, unpacked
from argrad.experiments.provenance import command_line, provenance
from argrad.models.completion.mixture import MixtureLoss
from argrad.models.completion.module import CompletionModule
from argrad.models.completion.report import rows_of_completions
from argrad.models.completion.run import CompletionSettings, load_pictures, train_completion
from argrad.models.completion.scores import evaluate_completion
from argrad.models.completion.task import fixed_masks
from argrad.models.discrete_vae.run import choose_device

__all__ = ["Completion", "format_table", "markdown", "plot", "run", "run_dataset"]

FACES = ("olivetti", "cmu-faces")
COMPLETIONS = 8
ONE_BY_LOSS = "latent_log_likelihood_of_one_by_the_same_loss"
ONE_BY_LIKELIHOOD, K_BY_LIKELIHOOD = (f"latent_log_likelihood_of_{word}_by_likelihood" for word in ("one", "k"))
RIVALS = (ONE_BY_LOSS, ONE_BY_LIKELIHOOD, K_BY_LIKELIHOOD)
SMALL = {"batch_size": 32, "hidden": 256, "scale": 0.05, "mirror": True}
"""For a few hundred pictures."""
RECIPES: dict[str, dict[str, Any]] = {
    "olivetti": {"epochs": 150, "kl_warmup_epochs": 30, **SMALL},
    "cmu-faces": {"epochs": 120, "kl_warmup_epochs": 24, **SMALL},
    "fashion-mnist": {"epochs": 60, "batch_size": 100, "kl_warmup_epochs": 5},
    "digits": {"epochs": 20, "batch_size": 50, "kl_warmup_epochs": 4, "hidden": 64, "features": 32, "dimension": 8},
}
"""Settings by data set; the rest is as `argrad complete train` has it."""


@final
@dataclass(frozen=True)
class Completion:
    """Settings of the experiment."""

    datasets: tuple[str, ...] = ("olivetti", "cmu-faces", "fashion-mnist")
    """Images to complete: these, digits, or data of your own."""
    components: int = 8
    """k of the mixture."""
    masks: MaskKind = "mixed"
    """What is hidden, in training and in testing."""
    loss: MixtureLoss = "kl"
    """Form of the back-propagate-max loss."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """First weights, orders and noise."""
    epochs: int = 0
    """Passes over the training images; 0 is the data set's own number."""
    split_seed: int = 0
    """Decides which people, or images, are held out."""
    add_to: str = ""
    """A results file of this experiment whose other data sets are kept."""
    faces: str = ""
    """Folder for pictures of completed faces, which are not to be passed on; none are drawn unless it is given."""
    device: str = "auto"
    """cpu, cuda …"""
    quick: bool = False
    """8×8 digits, one seed: half a minute, and not the experiment's data."""

    def __post_init__(self) -> None:
        if self.components < 2:
            raise ValueError(f"components must be at least 2, to be compared with one, got {self.components}")
        if not self.seeds or not self.datasets:
            raise ValueError("give at least one seed and one data set")
        if self.epochs < 0:
            raise ValueError(f"epochs must not be negative, got {self.epochs}")

    def effective(self) -> Completion:
        """The settings with ``quick`` spelt out."""
        from argrad.experiments.paper_model import quickly

        return quickly(self, datasets=("digits",), seeds=(0,)) if self.quick else self


def run(settings: Completion, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """Every data set in turn."""
    command = command_line("argrad reproduce completion", settings)
    settings = settings.effective()
    read_kept(settings)  # what is wrong with it is said before the work, not after
    parts = {
        name: {**provenance(command), **run_dataset(load_pictures(name, settings.split_seed), settings, progress)}
        for name in settings.datasets
    }
    return put_together(parts, settings, command)


def put_together(parts: dict[str, Any], settings: Completion, command: str) -> dict[str, Any]:
    """The result, ready for JSON: data sets that were measured now, and those of an earlier result."""
    return {
        **provenance(command),
        "settings": asdict(settings),
        "quick": settings.quick,
        "datasets": {**read_kept(settings), **parts},
    }


def read_kept(settings: Completion) -> dict[str, Any]:
    """The data sets of an earlier result that are not measured again."""
    if not settings.add_to:
        return {}
    path = Path(settings.add_to).expanduser()
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        if earlier["quick"] != settings.quick:
            raise ValueError(f"{path} is of a {'quick' if earlier['quick'] else 'full'} run; quick and full do not mix")
        return {name: part for name, part in earlier["datasets"].items() if name not in settings.datasets}
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a result of `argrad reproduce completion`; give a file that it wrote"
        ) from error


def run_dataset(images: Images, settings: Completion, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """Train and measure k components and one on one data set, with every seed.

    Returns:
        ready for JSON; of faces it holds no picture.
    """
    device = choose_device(settings.device)
    rows = []
    pictures = None
    for seed in settings.seeds:
        for components in (settings.components, 1):
            progress(f"{images.name}, seed {seed}: {components} component{'s' if components > 1 else ''}")
            own = recipe(images.name, settings, components, seed)
            module, trained = train_completion(own, None, images, device=device)
            row = {"seed": seed, "components": components, **measure(module, own, images)}
            if components > 1:
                row |= rivals(module, own, images)
                if seed == settings.seeds[0]:
                    pictures = draw(module, own, images, settings)
            rows.append({**row, "best_epoch": trained.best_epoch, "seconds": round(trained.seconds, 1)})
    sizes = {part: len(getattr(images, part)) for part in ("train", "validation", "test")}
    return {
        "images": sizes,
        "shape": list(images.shape),
        "recipe": asdict(recipe(images.name, settings, settings.components, settings.seeds[0])),
        "rows": rows,
        "shown": shown(rows),
        "pictures": pictures,
    }


def recipe(name: str, settings: Completion, components: int, seed: int) -> CompletionSettings:
    """What is trained."""
    own = {**RECIPES.get(name, {}), **({"epochs": settings.epochs} if settings.epochs else {})}
    return CompletionSettings(
        data=name,
        split_seed=settings.split_seed,
        components=components,
        masks=settings.masks,
        loss=settings.loss,
        seed=seed,
        **own,
    )


def measure(module: CompletionModule, settings: CompletionSettings, images: Images) -> dict[str, Any]:
    """Scores on test images, and the gradient at what the mixture is made of."""
    scores = evaluate_completion(module, images, masks=settings.masks, number=COMPLETIONS)
    picked = round(scores["used_components"] * module.components)
    names = ("best_error", "mean_error", "diversity", "latent_log_likelihood", "bound")
    return {
        **{name: round(scores[name], 6) for name in names},
        "components_by_entropy": round(scores["components"], 3),
        "components_used": picked,
        "visible_untouched": scores["visible_untouched"],
        "gradient": gradients(module, settings, images),
    }


def rivals(module: CompletionModule, settings: CompletionSettings, images: Images) -> dict[str, float]:
    """log p(z_c|z_v) of other heads for the latents of a trained model, on test images."""
    found = {}
    for name, components, by_likelihood in (
        (ONE_BY_LOSS, 1, False),
        (ONE_BY_LIKELIHOOD, 1, True),
        (K_BY_LIKELIHOOD, module.components, True),
    ):
        rival = fit_head(module, settings, images, components, by_likelihood=by_likelihood)
        scores = evaluate_completion(rival, images, masks=settings.masks, samples=1)
        found[name] = round(scores["latent_log_likelihood"], 6)
    return found


def gradients(module: CompletionModule, settings: CompletionSettings, images: Images) -> dict[str, float]:
    """Norms of the objective's gradient at the weights of the last layer that make α, μ̂ and Σ̂, on training images."""
    device = next(module.parameters()).device
    x = images.values(images.train[:100].to(device))
    mask = fixed_masks(settings.masks, len(x), (images.shape[-2], images.shape[-1]), device)
    last = module.mixture_head[-1].weight
    assert isinstance(last, torch.Tensor)
    loss = module.losses(x, mask, generator=torch.Generator(device).manual_seed(0)).mean()
    (gradient,) = torch.autograd.grad(loss, [last])
    size = module.components * module.dimension
    parts = gradient.split([module.components, size, size])
    return {name: float(part.norm()) for name, part in zip(("weights", "means", "variances"), parts, strict=True)}


def draw(
    module: CompletionModule, own: CompletionSettings, images: Images, settings: Completion
) -> dict[str, Any] | None:
    """Rows of completions: of faces into a file of their own, if at all; of other images packed, if they are grey."""
    if images.name not in FACES:
        pictures = rows_of_completions(module, images, own, rows=4)
        if pictures.ndim > 3:
            return None  # colour; the figure is grey
        return packed(torch.from_numpy(pictures).reshape(-1, 10, *images.shape))
    if settings.faces:
        from argrad.training.files import write_atomically
        from argrad.training.page import mosaic_png

        folder = Path(settings.faces).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        pictures = rows_of_completions(module, images, own, rows=8)
        write_atomically(folder / f"{images.name}-completed.png", mosaic_png(pictures, columns=10, zoom=2)[0])
    return None


# ------------------------------------------------------------------------------------------------------- what it shows


def shown(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What is claimed of the mixture, with numbers: of differences the mean over seeds and its standard error."""
    several = [row for row in rows if row["components"] > 1]
    single = [row for row in rows if row["components"] == 1]

    def difference(ours: list[float], others: list[float]) -> dict[str, float]:
        apart = [one - other for one, other in zip(ours, others, strict=True)]
        error = statistics.stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else 0.0
        return {"mean": round(statistics.mean(apart), 6), "standard error": round(error, 6)}

    def column(of: list[dict[str, Any]], name: str) -> list[float]:
        return [row[name] for row in of]

    return {
        "smallest gradient": min(value for row in several for value in row["gradient"].values()),
        "fewest components used": min(column(several, "components_used")),
        "log-likelihood of z_c above one component's, same latents and loss, nats": difference(
            column(several, "latent_log_likelihood"), column(several, ONE_BY_LOSS)
        ),
        "log-likelihood of z_c above one component's, same latents, both by likelihood, nats": difference(
            column(several, K_BY_LIKELIHOOD), column(several, ONE_BY_LIKELIHOOD)
        ),
        "visible pixels untouched": all(row["visible_untouched"] for row in rows),
        "least diversity": min(column(several, "diversity")),
        "best-of-8 error above one component's": difference(
            column(several, "best_error"), column(single, "best_error")
        ),
        "bound on log p(x_c | x_v) above one component's, nats": difference(
            column(several, "bound"), column(single, "bound")
        ),
    }


def table_of(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row for each data set and number of components: means over seeds."""
    table: list[tuple[str, ...]] = []
    for name, part in result["datasets"].items():
        for components in sorted({row["components"] for row in part["rows"]}, reverse=True):
            rows = [row for row in part["rows"] if row["components"] == components]

            def mean(column: str, rows: list[dict[str, Any]] = rows) -> float:
                return float(statistics.mean(row[column] for row in rows))

            table.append(
                (
                    name,
                    str(components),
                    f"{mean('components_used'):.1f}",
                    f"{mean('best_error'):.5f}",
                    f"{mean('mean_error'):.5f}",
                    f"{mean('diversity'):.4f}",
                    f"{mean('latent_log_likelihood'):.2f}",
                    *(f"{mean(rival):.2f}" if components > 1 else "" for rival in RIVALS),
                    f"{mean('bound'):.2f}",
                )
            )
    return table


HEAD = (
    "data set",
    "k",
    "used",
    "error, best of 8",
    "error, mean",
    "diversity",
    "log p(z_c)",
    "one, same loss",
    "one, by likelihood",
    "k, by likelihood",
    "log p(x_c) bound",
)


def claims(part: dict[str, Any]) -> list[tuple[str, str]]:
    """What is shown of one data set, in words."""

    def with_error(value: Any) -> str:
        if isinstance(value, dict):
            return f"{value['mean']:+.4g} ± {value['standard error']:.2g}"
        return str(value) if isinstance(value, bool | int) else f"{value:.3g}"

    return [(name, with_error(value)) for name, value in part["shown"].items()]


def format_table(result: dict[str, Any]) -> str:
    """Every number, and what it shows."""
    lines = ["QUICK: 8×8 digits; these are not the experiment's data."] if result["quick"] else []
    rows = [HEAD, *table_of(result)]
    wide = [max(len(row[place]) for row in rows) for place in range(len(HEAD))]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, wide, strict=True)) for row in rows]
    for name, part in result["datasets"].items():
        lines += ["", f"{name}:", *(f"  {words}: {value}" for words, value in claims(part))]
    return "\n".join(lines)


BAR = r"\|"
"""A bar inside a cell of a table."""


def markdown(result: dict[str, Any]) -> str:
    """The same for the documentation."""
    lines = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    lines += [f"| {' | '.join(row)} |" for row in table_of(result)]
    names = list(result["datasets"])
    lines += ["", f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    columns = [claims(part) for part in result["datasets"].values()]
    lines += [
        f"| {words.replace('|', BAR)} | {' | '.join(column[place][1] for column in columns)} |"
        for place, (words, _) in enumerate(columns[0])
    ]
    measured = [f"{part['date']}, {part['hardware']}, commit {part['commit']}" for part in result["datasets"].values()]
    lines.append(f"| measured on | {' | '.join(measured)} |")
    return "\n".join(lines)


def plot(result: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Best-of-8 error and diversity for k and one, and completions of what is no face."""
    parts = result["datasets"]
    drawn = [name for name, part in parts.items() if part["pictures"]]
    figure = new_figure(10, 3 + 3 * len(drawn))
    grid = figure.add_gridspec(1 + len(drawn), 2)
    for place, (column, words) in enumerate((("best_error", "error, best of 8"), ("diversity", "diversity"))):
        axes = figure.add_subplot(grid[0, place])
        prepare(axes, words, "")
        for shift, several, colour in ((-0.2, True, "#1f5fa8"), (0.2, False, "#d1662a")):
            values = [[r[column] for r in part["rows"] if (r["components"] > 1) == several] for part in parts.values()]
            label = "mixture" if several else "one component"
            at = np.arange(len(parts)) + shift
            axes.bar(at, [statistics.mean(each) for each in values], 0.36, label=label, color=colour)
        axes.set_xticks(np.arange(len(parts)), list(parts))
        axes.margins(y=0.25)  # room for the legend
        axes.legend(frameon=False, fontsize=8)
    for place, name in enumerate(drawn, start=1):
        axes = figure.add_subplot(grid[place, :])
        images = np.pad(unpacked(parts[name]["pictures"]), ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=255)
        rows, columns, height, width = images.shape
        axes.imshow(images.transpose(0, 2, 1, 3).reshape(rows * height, columns * width), cmap="gray")
        axes.set_title(f"{name}: with the hole, eight completions, the truth", fontsize=9, loc="left")
        axes.set_axis_off()
    save(figure, result, "Image completion with a mixture of Gaussians, test images", path)
