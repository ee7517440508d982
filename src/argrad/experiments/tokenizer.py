"""An image tokenizer by every estimator, beside a vector-quantised auto-encoder of the same size.

Images 28 × 28 in shades of grey become 7 × 7 codes out of 512. All have the same convolutions, the same number of steps
of the same size, and their last weights are scored. All spend the first twentieth of them without codes, which are then
placed among the vectors of the encoder (:mod:`argrad.models.tokenizer.codes`). The dVAE is trained with Gumbel-softmax
and with its straight-through form, τ annealed alike, with direct optimisation by random changes of single codes and by
the gradient of the cost, and with REINFORCE with leave-one-out baselines. The rival, ``vq``, is that of the package
vector-quantize-pytorch (:mod:`argrad.experiments.tokenizer_vq`). Schedules are the same for all; settings were chosen
on validation images, with seeds used for nothing else: how codes are placed and sharpened, β and the last τ by the
relaxations, the rival's running means and replacement of codes by the rival. The protocol is sized for two cores;
``--steps 12000 --batch-size 100`` is one for a GPU.

Errors are squared errors per pixel on test images: ``hard`` from the most probable codes, ``soft`` from the mixture of
code vectors by their probabilities (for ``vq`` from what the encoder says before it is quantised), ``relaxed`` from a
Gumbel-softmax draw at the last τ, ``sampled`` from a draw of codes. Perplexity is exp(entropy) of how often the hard
codes occur in test images. A prior over the codes of the first seed of each method gives −log p(codes) and samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from argrad.costs import evaluate
from argrad.experiments.paper_model import quickly
from argrad.experiments.pictures import packed
from argrad.experiments.provenance import command_line, provenance
from argrad.experiments.tokenizer_page import format_table, markdown, plot
from argrad.experiments.tokenizer_training import Pace, as_values, look, train
from argrad.experiments.tokenizer_vq import QuantizedModule
from argrad.models.dead_codes import perplexity, used
from argrad.models.discrete_vae.task import evaluate_in_batches
from argrad.models.tokenizer.module import TokenizerModule
from argrad.models.tokenizer.prior import CodePrior, PriorTask
from argrad.models.tokenizer.run import TokenizerSettings, build_tokenizer
from argrad.models.tokenizer.task import AT_ONCE
from argrad.training import LoopSettings
from argrad.training import train as train_in_loop
from argrad.training.matmul_precision import training_precision

__all__ = [
    "METHODS",
    "TokenizerComparison",
    "assemble",
    "format_table",
    "markdown",
    "plot",
    "run",
    "run_dataset",
    "run_method",
]

Stored = tuple[Tensor, Tensor, Tensor]
"""Train, validation and test images ``[N, H, W]``, uint8 pixels or float32, on a device."""
METHODS = ("gumbel-softmax", "straight-through", "direct", "direct-gradient", "reinforce", "vq")
PICTURED = ("fashion-mnist", "digits")
"""Data sets whose pictures may be kept with a result."""
PRIOR_BATCH = 100


@final
@dataclass(frozen=True)
class TokenizerComparison:
    """Settings of the experiment."""

    datasets: tuple[str, ...] = ("fashion-mnist", "omniglot")
    """Which data sets, 28 × 28 and in shades of grey."""
    methods: tuple[str, ...] = METHODS
    """What is compared."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """First weights, orders and noise."""
    steps: int = 2000
    """Training steps, the same for all; dead codes are revived in nine tenths of them."""
    codes: int = 512
    """Size of the vocabulary."""
    width: int = 64
    """Channels of the convolutions, and numbers in a code's vector."""
    kl_weight: float = 0.0005
    """Weight β of an image's KL, once it has risen from 0; 1 is the ELBO."""
    kl_weight_minimum: float = 0.00001
    """β at last: it falls as τ does, from codes that are all tried to codes that are sure."""
    temperature_minimum: float = 0.15
    """τ of the relaxations at last; it starts at 1, and falls for a third of the training."""
    sharpen: float = 8.0
    """Factor by which the precision of codes rises in the last two thirds, beside what it learns, so that codes become
    sure."""
    changes: int = 8
    """Of direct: changes of single codes per image and step, drawn at random from likely ones."""
    samples: int = 4
    """Of reinforce: draws per image."""
    decay: float = 0.8
    """Of vq: the share that a code keeps of its running mean at each step."""
    replace_below: float = 0.2
    """Of vq: a code that stands for fewer of a batch's cells, in the running mean, is replaced."""
    batch_size: int = 50
    """Images per step."""
    learning_rate: float = 1e-3
    """Adam's step size; it falls to 0 in the last two thirds of the training."""
    clip_norm: float = 1.0
    """Norm that the gradient of a batch is scaled down to."""
    looks: int = 16
    """How often validation images are looked at, and dead codes revived."""
    prior_steps: int = 1000
    """Training steps of the prior over codes."""
    prior_width: int = 128
    """Of its network."""
    device: str = "auto"
    """cpu, cuda …"""
    quick: bool = False
    """8×8 digits, 2 × 2 codes out of 32, one seed: a minute on a laptop, and far from the full protocol."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "looks", "prior_steps", "prior_width", "changes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.sharpen < math.inf:
            raise ValueError(f"sharpen is a factor, above 0, got {self.sharpen}")
        if not self.clip_norm > 0:
            raise ValueError(f"clip_norm is the norm that gradients are scaled down to, above 0, got {self.clip_norm}")
        unknown = sorted(set(self.methods) - set(METHODS))
        if unknown or not self.methods:
            raise ValueError(f"methods are {', '.join(METHODS)}, got {', '.join(unknown) or 'none'}")
        if not self.seeds or not self.datasets:
            raise ValueError("give at least one seed and one data set")

    def effective(self) -> TokenizerComparison:
        """The settings with ``quick`` spelt out."""
        if not self.quick:
            return self
        return quickly(
            self,
            datasets=("digits",),
            seeds=(0,),
            steps=200,
            codes=32,
            width=16,
            batch_size=50,
            looks=4,
            prior_steps=60,
            prior_width=32,
        )

    def pace(self, seed: int) -> Pace:
        """How a model is trained."""
        return Pace(
            steps=self.steps,
            rounds=self.looks,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            clip_norm=self.clip_norm,
            temperature=(1.0, self.temperature_minimum),
            kl_weight=(self.kl_weight, self.kl_weight_minimum),
            sharpen=self.sharpen,
            seed=seed,
        )


def build(method: str, shape: tuple[int, ...], settings: TokenizerComparison, seed: int) -> Any:
    """The model of a method, with the first weights of a seed."""
    codes, width = settings.codes, settings.width
    if method == "vq":
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return QuantizedModule(
                shape,
                codes=codes,
                width=width,
                dimension=width,
                decay=settings.decay,
                replace_below=settings.replace_below,
            )
    chosen: dict[str, Any] = {"estimator": method, "changes": settings.changes, "samples": settings.samples}
    return build_tokenizer(TokenizerSettings(codes=codes, width=width, dimension=width, seed=seed, **chosen), shape)


@torch.no_grad()
def score(model: TokenizerModule | QuantizedModule, stored: Tensor, temperature: float) -> dict[str, float]:
    """What a trained model makes of images."""
    hard, usage = look(model, stored)
    scores = {"hard_error": hard, "perplexity": perplexity(usage), "used_codes": used(usage)}
    noise = torch.Generator(stored.device).manual_seed(0)
    for chunk in stored.split(AT_ONCE):
        for name, numbers in measure(model, as_values(chunk), temperature, noise).items():
            scores[name] = scores.get(name, 0.0) + float(numbers.mean()) * len(chunk) / len(stored)
    return scores | {"hard_over_soft": scores["hard_error"] / scores["soft_error"]}


def measure(
    model: TokenizerModule | QuantizedModule, x: Tensor, temperature: float, noise: torch.Generator
) -> dict[str, Tensor]:
    """Errors of other than hard codes, and for a dVAE the terms of its bound: a number or more per image."""
    if isinstance(model, QuantizedModule):
        return {"soft_error": (model.reconstruct(x, "soft") - x).square()}
    q = model.posterior(x)
    z, kl = q.sample(generator=noise), q.kl()
    rebuilt = {
        "soft_error": model.rebuild(q, "soft"),
        "relaxed_error": model.rebuild(q, "relaxed", temperature=temperature, generator=noise),
        "sampled_error": model.means(model.decoder(z)),
    }
    bound = {"kl": kl, "negative_elbo": evaluate(model.reconstruction(x), q, z) + kl}
    return {name: (mean - x).square() for name, mean in rebuilt.items()} | bound


def run_method(
    dataset: str,
    method: str,
    images: Stored,
    settings: TokenizerComparison,
    progress: Callable[[str], object] = print,
) -> dict[str, Any]:
    """Train a method with every seed, and a prior over the codes of the first: one row, its numbers lists by seed."""
    settings = settings.effective()
    rows = []
    extra: dict[str, Any] = {}
    for seed in settings.seeds:
        model = build(method, tuple(images[0].shape[1:]), settings, seed).to(images[0].device)
        where = f"{dataset}, {method}, seed {seed}"
        pace = settings.pace(seed)
        learnt = train(model, images[0], images[1], pace, partial(tell, progress, where))
        rows.append(
            {
                **{name: float(f"{value:.5g}") for name, value in score(model, images[2], pace.temperature[1]).items()},
                "revived": learnt.revived,
                "seconds": float(f"{learnt.seconds:.4g}"),
                "curve": [float(f"{error:.5g}") for error in learnt.hard_error],
                "perplexity_curve": [float(f"{number:.4g}") for number in learnt.perplexity],
            }
        )
        if not extra:
            progress(f"{where}: a prior over its codes")
            extra = {"looked_after": learnt.looked_after, **dream(dataset, model, images, settings, seed)}
    return {"dataset": dataset, "method": method, **{name: [row[name] for row in rows] for name in rows[0]}, **extra}


def tell(progress: Callable[[str], object], where: str, line: str) -> None:
    """Pass on how far a training is."""
    progress(f"{where}: {line}")


def dream(
    dataset: str, model: TokenizerModule | QuantizedModule, images: Stored, settings: TokenizerComparison, seed: int
) -> dict[str, Any]:
    """Train a prior over the codes of images; −log p of test codes, and pictures where they may be kept."""
    codes = [torch.cat([model.encode(as_values(chunk)) for chunk in part.split(AT_ONCE)]) for part in images]
    device = images[0].device
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        grid = (codes[0].shape[1], codes[0].shape[2])
        prior = CodePrior(grid, settings.codes, settings.prior_width).to(device)
    epochs = -(-settings.prior_steps * PRIOR_BATCH // len(codes[0]))
    with training_precision(device):
        train_in_loop(PriorTask(prior, codes[0], codes[1]), LoopSettings(epochs, PRIOR_BATCH, 1e-3, seed))
    prior.eval()
    with torch.no_grad():
        nll = evaluate_in_batches(lambda one: -prior.log_prob(one), codes[2], AT_ONCE)
    found: dict[str, Any] = {"prior_nll": float(f"{nll:.5g}")}
    if dataset in PICTURED:
        samples = prior.sample(24, generator=torch.Generator(device).manual_seed(seed))
        found["pictures"] = {
            "originals": packed(as_values(images[2][:8])),
            "reconstructions": packed(model.decode(codes[2][:8])),
            "samples": packed(model.decode(samples)),
        }
    return found


def run_dataset(
    dataset: str, images: Stored, settings: TokenizerComparison, progress: Callable[[str], object] = print
) -> list[dict[str, Any]]:
    """The rows of one data set, one per method."""
    return [run_method(dataset, method, images, settings, progress) for method in settings.methods]


def assemble(rows: Sequence[dict[str, Any]], settings: TokenizerComparison, command: str) -> dict[str, Any]:
    """A result ready for JSON."""
    settings = settings.effective()
    return {
        **provenance(command),
        "figure": "tokenizer",
        "settings": asdict(settings),
        "quick": settings.quick,
        "rows": list(rows),
    }


def run(settings: TokenizerComparison, progress: Callable[[str], object] = print) -> dict[str, Any]:
    """All data sets, from the catalogue."""
    from argrad.data import load
    from argrad.models.discrete_vae.run import choose_device

    device = choose_device(settings.device)
    command = command_line("argrad reproduce tokenizer", settings)
    rows: list[dict[str, Any]] = []
    for name in settings.effective().datasets:
        images = load(name, binarize="none").to(device)
        rows += run_dataset(name, (images.train, images.validation, images.test), settings, progress)
    return assemble(rows, settings, command)
