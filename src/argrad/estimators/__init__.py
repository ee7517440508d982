"""Estimators: (latent, cost) → a value whose ``backward()`` estimates the gradient of E[cost]. One paper, one file."""

from argrad.estimators.arm import Arm
from argrad.estimators.base import Estimator, attach
from argrad.estimators.direct import Direct
from argrad.estimators.disarm import DisArm
from argrad.estimators.exact import Exact
from argrad.estimators.gumbel_rao import GumbelRao
from argrad.estimators.gumbel_softmax import GumbelSoftmax
from argrad.estimators.local_expectation import LocalExpectation
from argrad.estimators.rebar import Rebar
from argrad.estimators.reinforce import Reinforce
from argrad.estimators.relax import Relax

ESTIMATORS = (
    "Exact",
    "LocalExpectation",
    "Direct",
    "GumbelSoftmax",
    "GumbelRao",
    "Reinforce",
    "Rebar",
    "Relax",
    "Arm",
    "DisArm",
)
"""The names of all estimators; each works with no argument."""

__all__ = [
    "ESTIMATORS",
    "Arm",
    "Direct",
    "DisArm",
    "Estimator",
    "Exact",
    "GumbelRao",
    "GumbelSoftmax",
    "LocalExpectation",
    "Rebar",
    "Reinforce",
    "Relax",
    "attach",
]
