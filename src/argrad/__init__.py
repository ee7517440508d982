"""argrad: the gradient of an expected cost when the thing sampled is a discrete choice."""

from argrad._version import __version__
from argrad.costs import Reconstruction, TableCost
from argrad.diagnostics import diagnose
from argrad.estimators import (
    Arm,
    Direct,
    DisArm,
    Exact,
    GumbelRao,
    GumbelSoftmax,
    LocalExpectation,
    Rebar,
    Reinforce,
    Relax,
    attach,
)
from argrad.latents import Bits, Categorical, Gaussian, Latent, Unavailable

__all__ = [
    "Arm",
    "Bits",
    "Categorical",
    "Direct",
    "DisArm",
    "Exact",
    "Gaussian",
    "GumbelRao",
    "GumbelSoftmax",
    "Latent",
    "LocalExpectation",
    "Rebar",
    "Reconstruction",
    "Reinforce",
    "Relax",
    "TableCost",
    "Unavailable",
    "__version__",
    "attach",
    "diagnose",
]
