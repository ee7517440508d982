"""Figure 5 of the paper: faces whose attributes are switched on and off while all else stays.

The paper has CelebA; here it is the CMU faces, whose people are held out: an :class:`argrad.AttributeVAE` learns from
15 people and is asked about 5 others. Attributes are sunglasses and three poses (who looks straight has none of them).

A judge that the model has never met, a small convolutional network trained on pictures of the same 15 people, says what
it sees: on real pictures of the others (its own accuracy), on their reconstructions, and on the pictures with
sunglasses switched. If switching works, its answer about sunglasses flips and its answer about the pose stays, nearly
as often as it is right on reconstructions.

Pictures are cropped to the head, 32x32, and divided by their 98 % quantile (some are dark); for training, mirrored ones
are added, with left and right exchanged.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from argrad.data import AttributeImages
from argrad.data.cmu_faces import mirrored
from argrad.experiments.drawing import new_figure, prepare, save
from argrad.experiments.paper_model import quickly
from argrad.experiments.provenance import command_line, provenance
from argrad.models.attributes.task import blurred, brightened, shifted

if TYPE_CHECKING:
    from argrad.models import AttributeVAE

__all__ = ["Figure5", "format_table", "markdown", "plot", "run", "run_figure5"]

ATTRIBUTES = ("sunglasses", "left", "right", "up")
POSES = ("left", "right", "up", "straight")
AIM = 0.9
JUDGE_BLUR = 2.5
"""Widest blur, in pixels, of the pictures that the judge learns from."""


@final
@dataclass(frozen=True)
class Figure5:
    """Settings of the experiment."""

    epochs: int = 50
    """Passes of the model over the training pictures."""
    remainder: int = 16
    """Dimensions of the continuous part."""
    switch_weight: float = 10.0
    """Weight of reading switched attributes back, by the model's own encoder."""
    switch_mixed: bool = True
    """Switch attributes on remainders between those of two pictures, which stand for people not seen."""
    blur: float = 2.0
    """Widest blur, in pixels, of what the model's encoder reads in training, switched pictures included."""
    independence_weight: float = 1000.0
    """Weight of what the remainder tells about the attributes."""
    scale: float = 0.2
    """Standard deviation of the pixels."""
    labelled: float = 1.0
    """Share of the training pictures whose attributes are known; the rest learn through the direct estimator."""
    judge_epochs: int = 60
    """Passes of the judge."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """First weights, orders and noise of the model."""
    split_seed: int = 0
    """Decides which people are held out."""
    validation: bool = False
    """Train on 12 people and report on 3 of the 15, in place of the 5: for choosing settings."""
    faces: str = "runs/figure5-faces.png"
    """Write the grid of faces here; it is not to be passed on. Give '' for none."""
    device: str = "auto"
    """cpu, cuda …"""
    quick: bool = False
    """Few epochs: a minute or two, and no good pictures."""

    def __post_init__(self) -> None:
        for name in ("epochs", "judge_epochs", "remainder"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.seeds:
            raise ValueError("give at least one seed")
        if not 0 < self.labelled <= 1:
            raise ValueError(f"labelled must be a share above 0 and at most 1, got {self.labelled}")

    def effective(self) -> Figure5:
        """The settings with ``quick`` spelt out."""
        return quickly(self, epochs=5, judge_epochs=5) if self.quick else self


def run(settings: Figure5, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """The figure from the CMU faces."""
    from argrad.data import load_cmu_faces

    return run_figure5(load_cmu_faces(attributes=ATTRIBUTES, split_seed=settings.split_seed), settings, progress)


def run_figure5(faces: AttributeImages, settings: Figure5, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """The whole figure from faces with the attributes sunglasses, left, right and up.

    Returns:
        A result ready for JSON; it holds no picture.
    """
    record = provenance(command_line("argrad reproduce figure5", settings))
    settings = settings.effective()
    train, known, test, truth = parts(faces, settings.validation)
    progress(f"the judge learns from {len(train)} pictures")
    judge = train_judge(train, known, settings.judge_epochs)
    soft = blurred(test, JUDGE_BLUR, torch.Generator().manual_seed(0))
    rows = []
    for seed in settings.seeds:
        progress(f"the model learns, seed {seed}")
        model = fit(train, known, settings, seed)
        rows.append({"seed": seed, **measure(model, judge, test, truth)})
        if settings.faces and seed == settings.seeds[0]:
            path = Path(settings.faces).expanduser()
            path.parent.mkdir(parents=True, exist_ok=True)
            draw_faces(model, test, truth, path)
            progress(f"faces drawn: {path}")
    people = {
        part: list(members) for part, members in faces.groups.items() if not settings.validation or part != "test"
    }
    return {
        **record,
        "settings": asdict(settings),
        "quick": settings.quick,
        "people": people,
        "pictures": {"trained on, mirrored ones included": len(train), "held out": len(test)},
        "judge": judge_accuracy(judge, test, truth),
        "judge on blurred pictures": judge_accuracy(judge, soft, truth),
        "rows": rows,
        "squared error of mean pictures": mean_picture_error(train, known, test, truth),
    }


def parts(faces: AttributeImages, validation: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training pictures and attributes, and those that are held out: values from 0 to 1."""
    train, known = faces.train, faces.train_attributes
    test, truth = faces.validation, faces.validation_attributes
    if not validation:
        train, known = torch.cat([train, test]), torch.cat([known, truth])
        test, truth = faces.test, faces.test_attributes
    turned, turned_known = mirrored(train, known, faces.names)
    train, known = torch.cat([train, turned]), torch.cat([known, turned_known])
    return evenly_lit(faces.values(train)), known, evenly_lit(faces.values(test)), truth


def evenly_lit(pictures: Tensor) -> Tensor:
    """Each picture divided by its 98 % quantile, and cut off at 1."""
    light = pictures.flatten(1).quantile(0.98, dim=1).clamp_min(0.05)
    return (pictures / light[:, None, None]).clamp_max(1.0)


def fit(train: Tensor, known: Tensor, settings: Figure5, seed: int) -> AttributeVAE:
    """The model, with the attributes of some pictures hidden."""
    from argrad.models import AttributeVAE

    hidden = torch.rand(len(known), generator=torch.Generator().manual_seed(seed)) >= settings.labelled
    model = AttributeVAE(
        attribute_names=ATTRIBUTES,
        remainder=settings.remainder,
        likelihood="gaussian",
        scale=settings.scale,
        switch_weight=settings.switch_weight,
        switch_mixed=settings.switch_mixed,
        blur=settings.blur,
        independence_weight=settings.independence_weight,
        shift=2,
        brightness=0.2,
        epochs=settings.epochs,
        learning_rate=2e-3,
        validation_fraction=0.0,
        random_state=seed,
        device=settings.device,
    )
    return model.fit(train, known.masked_fill(hidden[:, None], -1))


# ---------------------------------------------------------------------------------------------------------- the judge


def pose_of(attributes: Tensor) -> Tensor:
    """The place in ``POSES`` of what is on among left, right and up; straight where nothing is."""
    return torch.cat([attributes[:, 1:], 1 - attributes[:, 1:].amax(1, keepdim=True)], 1).argmax(1)


def train_judge(train: Tensor, known: Tensor, epochs: int, *, seed: int = 0, batch_size: int = 32) -> nn.Module:
    """A small convolutional network that tells sunglasses and the pose; it never sees what the model makes.

    It learns from pictures that are moved, blurred, darkened or brightened and noisy. What a decoder makes is blurred,
    and a judge of sharp pictures alone takes any blurred face for one without sunglasses.
    """
    height, width = train.shape[1:]
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = [nn.Unflatten(1, (1, height))]
        for before, after in ((1, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(before, after, 3, 1, 1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
        features = 64 * (height // 8) * (width // 8)
        judge = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.5), nn.Linear(features, 1 + len(POSES)))
        optimiser = torch.optim.AdamW(judge.parameters(), weight_decay=0.01)
        steps = epochs * math.ceil(len(train) / batch_size)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps)
        for _ in range(epochs):
            for batch in torch.randperm(len(train), generator=generator).split(batch_size):
                x = brightened(shifted(blurred(train[batch], JUDGE_BLUR, generator), 3, generator), 0.2, generator)
                answers = judge(x + 0.02 * torch.randn(x.shape, generator=generator))
                glasses = binary_cross_entropy_with_logits(answers[:, 0], known[batch, 0].float())
                loss = glasses + cross_entropy(answers[:, 1:], pose_of(known[batch]))
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
    return judge.eval()


@torch.no_grad()
def ask(judge: nn.Module, pictures: Tensor | NDArray[np.floating[Any]]) -> tuple[Tensor, Tensor]:
    """Whether there are sunglasses, and which pose."""
    answers = judge(torch.as_tensor(pictures, dtype=torch.float32).clamp(0, 1))
    return (answers[:, 0] > 0).long(), answers[:, 1:].argmax(1)


def judge_accuracy(judge: nn.Module, pictures: Tensor, truth: Tensor) -> dict[str, float]:
    """How often the judge is right about real pictures of people it has not seen."""
    glasses, pose = ask(judge, pictures)
    return {"sunglasses": share(glasses == truth[:, 0]), "pose": share(pose == pose_of(truth))}


def share(right: Tensor) -> float:
    """The mean of booleans, rounded; 0 of none."""
    return round(right.double().mean().item(), 4) if len(right) else 0.0


def measure(model: AttributeVAE, judge: nn.Module, test: Tensor, truth: Tensor) -> dict[str, Any]:
    """What the model reads, and what the judge sees when it switches."""
    read = torch.as_tensor(model.predict(test))
    glasses, pose = ask(judge, model.change(test))
    accuracy = {name: share(read[:, place] == truth[:, place]) for place, name in enumerate(ATTRIBUTES)}
    agreement = {"sunglasses": share(glasses == truth[:, 0]), "pose": share(pose == pose_of(truth))}
    switched = {}
    for word, on in (("on", True), ("off", False)):
        other = truth[:, 0] != int(on)
        to_flip = other & (glasses != int(on))
        glasses_after, pose_after = ask(judge, model.change(test, sunglasses=on))
        flips, stays = share(glasses_after[to_flip] == int(on)), share(pose_after[other] == pose[other])
        switched[word] = {
            "pictures": int(other.sum()),
            "to flip": int(to_flip.sum()),
            "flips": flips,
            "flips over agreement": ratio(flips, agreement["sunglasses"]),
            "pose stays": stays,
            "pose stays over agreement": ratio(stays, agreement["pose"]),
        }
    posed = {
        name: share(ask(judge, model.change(test, **pose_switches(name)))[1] == place)
        for place, name in enumerate(POSES)
    }
    return {
        "accuracy": {**accuracy, "pose": share(pose_of(read) == pose_of(truth))},
        "agreement on reconstructions": agreement,
        "sunglasses": switched,
        "pose switched": posed,
        "squared error": round(float(np.square(model.change(test) - test.numpy()).mean()), 5),
    }


def mean_picture_error(train: Tensor, known: Tensor, test: Tensor, truth: Tensor) -> float:
    """The squared error of the mean training picture with the same attributes.

    A model that ignores the remainder makes these pictures. It switches perfectly, and is of no use: reconstructions
    must be clearly better.
    """
    errors = [
        (test[(truth == attributes).all(1)] - train[(known == attributes).all(1)].mean(0)).square().flatten()
        for attributes in truth.unique(dim=0)
    ]
    return round(torch.cat(errors).mean().item(), 5)


def ratio(one: float, other: float) -> float:
    """One over the other, rounded."""
    return round(one / other, 4) if other else 0.0


def pose_switches(pose: str) -> dict[str, bool]:
    """What is switched for a pose: it on, the others off."""
    return {name: name == pose for name in ATTRIBUTES[1:]}


# ------------------------------------------------------------------------------------------------------- for a person


def words_of(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Every measured share, in words; with several seeds the mean, and of what there is an aim for the lowest too."""
    rows = result["rows"]

    def each(*path: str) -> list[float]:
        return [float(reduce(lambda found, key: found[key], path, row)) for row in rows]

    def mean(*path: str) -> float:
        return sum(each(*path)) / len(rows)

    def percent(value: float) -> str:
        return f"{100 * value:.1f} %"

    def multiple(*path: str) -> str:
        return f"{mean(*path):.2f} ×" + (f", lowest {min(each(*path)):.2f} ×" if len(rows) > 1 else "")

    lines = [(f"Attribute read right: {name}", percent(mean("accuracy", name))) for name in (*ATTRIBUTES, "pose")]
    for key, which in (("judge", "real"), ("judge on blurred pictures", "blurred real")):
        lines += [(f"Judge right on {which} pictures: {name}", percent(value)) for name, value in result[key].items()]
    lines += [
        (f"Judge right on reconstructions: {name}", percent(mean("agreement on reconstructions", name)))
        for name in ("sunglasses", "pose")
    ]
    for word in ("on", "off"):
        for key, what in (("flips", "the judge's answer flips"), ("pose stays", "its pose answer stays")):
            over = multiple("sunglasses", word, f"{key} over agreement")
            value = f"{percent(mean('sunglasses', word, key))} ({over})"
            lines.append((f"Sunglasses switched {word}: {what}", value))
    lines += [(f"Pose switched to {name}: the judge sees it", percent(mean("pose switched", name))) for name in POSES]
    return lines


def description(result: dict[str, Any]) -> str:
    """What was held out, in a sentence."""
    held_out = result["people"]["validation" if result["settings"]["validation"] else "test"]
    pictures, seeds = result["pictures"]["held out"], len(result["rows"])
    return (
        f"{pictures} pictures of {len(held_out)} people that neither model nor judge has seen; "
        f"{seeds} seed{'s' if seeds > 1 else ''}; × is over the judge's agreement on reconstructions, aim {AIM} ×"
    )


def error_words(result: dict[str, Any]) -> str:
    """Whether the remainder is used, in a sentence."""
    errors = [row["squared error"] for row in result["rows"]]
    return (
        f"Squared error of a pixel: reconstructions {sum(errors) / len(errors):.4f}, the mean training picture with "
        f"the same attributes {result['squared error of mean pictures']:.4f}"
    )


def format_table(result: dict[str, Any]) -> str:
    """Every number, a line each."""
    lines = ["QUICK: few epochs; these are not the figure's numbers."] if result["quick"] else []
    lines.append(f"{description(result)}.")
    wide = max(len(words) for words, _ in words_of(result))
    lines += [f"{words:<{wide}}  {value}" for words, value in words_of(result)]
    return "\n".join([*lines, f"{error_words(result)}."])


def markdown(result: dict[str, Any]) -> str:
    """The same for the documentation."""
    rows = [f"| {words} | {value} |" for words, value in words_of(result)]
    return "\n".join([f"{description(result)}.", "", "| | |", "|---|---|", *rows, "", f"{error_words(result)}."])


def plot(result: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """The shares as bars; the grid of faces is a file of its own, which is not passed on."""
    numbers = [(words, float(value.split(" %")[0])) for words, value in words_of(result)]
    figure = new_figure(9, 5.6)
    axes = figure.subplots()
    prepare(axes, "", "% of held-out pictures")
    axes.barh([words for words, _ in numbers], [value for _, value in numbers], color="#1f5fa8", height=0.6)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.tick_params(axis="y", labelsize=8)
    save(figure, result, description(result), path)


def draw_faces(model: AttributeVAE, test: Tensor, truth: Tensor, path: Path, rows: int = 8) -> None:
    """The grid: a held-out picture a row, the same remainder all along it, attributes switched from left to right."""
    pick = torch.linspace(0, len(test) - 1, rows).long()
    pictures = test[pick]
    columns: list[tuple[str, Any]] = [("picture", pictures.numpy()), ("again", model.change(pictures))]
    for word, on in (("off", False), ("on", True)):
        columns.append((f"sunglasses {word}", model.change(pictures, sunglasses=on)))
    for pose in POSES:
        columns.append((pose, model.change(pictures, **pose_switches(pose))))
    columns.append(("up, sunglasses", model.change(pictures, sunglasses=True, **pose_switches("up"))))
    figure = new_figure(1.1 * len(columns), 1.15 * rows)
    grid = figure.subplots(rows, len(columns), squeeze=False)
    for across, (title, images) in enumerate(columns):
        for down in range(rows):
            axes = grid[down][across]
            axes.imshow(images[down], cmap="gray", vmin=0, vmax=1)
            axes.set_axis_off()
        grid[0][across].set_title(title, fontsize=8)
    figure.savefig(path, dpi=110, format="png")
