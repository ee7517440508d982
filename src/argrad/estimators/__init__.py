"""Estimators: (latent, cost) → a value whose ``backward()`` estimates the gradient of E[cost]. One paper, one file."""

from argrad.estimators.arm import Arm
from argrad.estimators.base import Estimator, attach
from argrad.estimators.blackbox_differentiation import BlackboxDifferentiation
from argrad.estimators.debiased_direct import DebiasedDirect
from argrad.estimators.direct import Direct
from argrad.estimators.disarm import DisArm
from argrad.estimators.exact import Exact
from argrad.estimators.gumbel_rao import GumbelRao
from argrad.estimators.gumbel_sinkhorn import GumbelSinkhorn
from argrad.estimators.gumbel_softmax import GumbelSoftmax
from argrad.estimators.implicit_mle import ImplicitMLE
from argrad.estimators.local_expectation import LocalExpectation
from argrad.estimators.perturbed_optimizer import PerturbedOptimizer
from argrad.estimators.rebar import Rebar
from argrad.estimators.reinforce import Reinforce
from argrad.estimators.relax import Relax

ESTIMATORS = (
    "Exact",
    "LocalExpectation",
    "Direct",
    "DebiasedDirect",
    "GumbelSoftmax",
    "GumbelRao",
    "Reinforce",
    "Rebar",
    "Relax",
    "Arm",
    "DisArm",
    "PerturbedOptimizer",
    "ImplicitMLE",
    "BlackboxDifferentiation",
    "GumbelSinkhorn",
)
"""The names of all estimators; each works with no argument."""

__all__ = [
    "ESTIMATORS",
    "Arm",
    "BlackboxDifferentiation",
    "DebiasedDirect",
    "Direct",
    "DisArm",
    "Estimator",
    "Exact",
    "GumbelRao",
    "GumbelSinkhorn",
    "GumbelSoftmax",
    "ImplicitMLE",
    "LocalExpectation",
    "PerturbedOptimizer",
    "Rebar",
    "Reinforce",
    "Relax",
    "attach",
]
