"""argrad: the gradient of an expected cost when the thing sampled is a discrete choice."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from argrad._version import __version__
from argrad.costs import Reconstruction, StepCost, TableCost
from argrad.diagnostics import diagnose
from argrad.estimators import (
    Arm,
    BlackboxDifferentiation,
    DebiasedDirect,
    Direct,
    DisArm,
    Exact,
    GumbelRao,
    GumbelSinkhorn,
    GumbelSoftmax,
    ImplicitMLE,
    LocalExpectation,
    PerturbedOptimizer,
    Rebar,
    Reinforce,
    Relax,
    attach,
)
from argrad.latents import (
    Bits,
    Categorical,
    Chain,
    Gaussian,
    Latent,
    PairwiseBits,
    Permutation,
    Sequence,
    SpanningTree,
    Subset,
    Unavailable,
)

if TYPE_CHECKING:
    from argrad.models import (
        AnatomicalSegmenter,
        AttributeVAE,
        DiscreteVAE,
        HashingEncoder,
        ImageCompleter,
        SemiSupervisedVAE,
        SequenceGAN,
        Tokenizer,
    )
else:
    MODELS = {
        "AnatomicalSegmenter",
        "AttributeVAE",
        "DiscreteVAE",
        "HashingEncoder",
        "ImageCompleter",
        "SemiSupervisedVAE",
        "SequenceGAN",
        "Tokenizer",
    }

    def __getattr__(name: str) -> Any:
        """Import a scikit-learn estimator when it is asked for; the rest of argrad does without scikit-learn."""
        if name in MODELS:
            globals()[name] = getattr(import_module("argrad.models"), name)
            return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "AnatomicalSegmenter",
    "Arm",
    "AttributeVAE",
    "Bits",
    "BlackboxDifferentiation",
    "Categorical",
    "Chain",
    "DebiasedDirect",
    "Direct",
    "DisArm",
    "DiscreteVAE",
    "Exact",
    "Gaussian",
    "GumbelRao",
    "GumbelSinkhorn",
    "GumbelSoftmax",
    "HashingEncoder",
    "ImageCompleter",
    "ImplicitMLE",
    "Latent",
    "LocalExpectation",
    "PairwiseBits",
    "Permutation",
    "PerturbedOptimizer",
    "Rebar",
    "Reconstruction",
    "Reinforce",
    "Relax",
    "SemiSupervisedVAE",
    "Sequence",
    "SequenceGAN",
    "SpanningTree",
    "StepCost",
    "Subset",
    "TableCost",
    "Tokenizer",
    "Unavailable",
    "__version__",
    "attach",
    "diagnose",
]
