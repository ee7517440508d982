"""Estimators by the names that the command line uses."""

from __future__ import annotations

from typing import Literal, get_args

from argrad.estimators.arm import Arm
from argrad.estimators.base import Estimator
from argrad.estimators.debiased_direct import DebiasedDirect
from argrad.estimators.direct import Direct
from argrad.estimators.disarm import DisArm
from argrad.estimators.exact import Exact
from argrad.estimators.gumbel_rao import GumbelRao
from argrad.estimators.gumbel_softmax import GumbelSoftmax
from argrad.estimators.implicit_mle import ImplicitMLE
from argrad.estimators.local_expectation import LocalExpectation
from argrad.estimators.rebar import Rebar
from argrad.estimators.reinforce import Reinforce
from argrad.estimators.relax import Relax

__all__ = ["EstimatorName", "estimator_by_name"]

EstimatorName = Literal[
    "direct",
    "exact",
    "local-expectation",
    "gumbel-softmax",
    "straight-through",
    "gumbel-rao",
    "reinforce",
    "rebar",
    "relax",
    "arm",
    "disarm",
    "debiased-direct",
    "implicit-mle",
]


def estimator_by_name(
    name: str, *, epsilon: float | Literal["auto"] = "auto", temperature: float = 0.5, samples: int = 2
) -> Estimator:
    """An estimator with its one setting: ε for the direct ones, τ for the relaxations, the samples of REINFORCE.

    >>> estimator_by_name("direct", epsilon=0.1)
    Direct(epsilon=0.1, two_sided=False, changes='single')
    """
    if name == "direct":
        return Direct(epsilon)
    if name == "debiased-direct":
        return DebiasedDirect(epsilon)
    if name == "implicit-mle":
        return ImplicitMLE("auto")
    if name == "gumbel-softmax":
        return GumbelSoftmax(temperature)
    if name == "straight-through":
        return GumbelSoftmax(temperature, straight_through=True)
    if name == "gumbel-rao":
        return GumbelRao(temperature)
    if name == "rebar":
        return Rebar(temperature)
    if name == "relax":
        return Relax(temperature=temperature)
    if name == "reinforce":
        return Reinforce(samples)
    plain: dict[str, type[Estimator]] = {
        "exact": Exact,
        "local-expectation": LocalExpectation,
        "arm": Arm,
        "disarm": DisArm,
    }
    if name not in plain:
        raise ValueError(f"there is no estimator {name!r}; choose one of {', '.join(get_args(EstimatorName))}")
    return plain[name]()
