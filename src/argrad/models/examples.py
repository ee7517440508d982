"""What the scikit-learn estimators share: examples as arrays that a model can read, and an estimator of their own."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from argrad.estimators import Estimator
from argrad.estimators.by_name import estimator_by_name

__all__ = ["check_examples", "check_unit_interval", "own_estimator"]

ROUNDING = 1e-6
"""How far outside [0, 1] a scaler may put a number by rounding."""


def own_estimator(model: Any) -> Estimator:
    """The gradient estimator that a model's ``estimator`` names, or a copy of the object that it is."""
    if isinstance(model.estimator, str):
        return estimator_by_name(model.estimator, epsilon=model.epsilon, temperature=model.temperature)
    if not isinstance(model.estimator, Estimator):
        raise ValueError(
            f"estimator must be a name or an estimator object such as Exact() or Arm(), got {model.estimator!r}"
        )
    return copy.deepcopy(model.estimator)


def check_examples(model: Any, X: Any, *, reset: bool = False) -> NDArray[np.floating[Any]]:
    """X as an array of floats ``[n, *shape]``, of the ``example_shape_`` that the model was fitted on.

    Args:
        model: a scikit-learn estimator that has ``module_`` and ``example_shape_`` once it is fitted.
        X: examples in any form that scikit-learn takes, of any rank, or a tensor.
        reset: whether the model is being fitted, and takes its shape from X.
    """
    if not reset:
        check_is_fitted(model, "module_")
    if isinstance(X, Tensor):
        X = X.detach().cpu().numpy()
    types, shape = [np.float64, np.float32], None
    if (X if hasattr(X, "ndim") else np.asarray(X)).ndim > 2:
        X = check_array(X, dtype=types, allow_nd=True)
        shape = X.shape
        X = X.reshape(len(X), -1)
    X = validate_data(model, X, dtype=types, reset=reset)
    examples: NDArray[np.floating[Any]] = X if shape is None else X.reshape(shape)
    if not reset and examples.shape[1:] != model.example_shape_:
        raise ValueError(
            f"X has examples of shape {examples.shape[1:]}, but this {type(model).__name__} was fitted on examples of "
            f"shape {model.example_shape_}; reshape X to (n, {', '.join(map(str, model.example_shape_))})"
        )
    return examples


def check_unit_interval(examples: NDArray[np.floating[Any]], likelihood: str) -> None:
    """Raise a ValueError where a Bernoulli likelihood meets numbers outside [0, 1]."""
    least, most = float(examples.min()), float(examples.max())
    if likelihood == "bernoulli" and (least < -ROUNDING or most > 1 + ROUNDING):
        raise ValueError(
            f"likelihood='bernoulli' needs X in [0, 1], got values from {least:g} to {most:g}; scale X to [0, 1] "
            "first (MinMaxScaler(clip=True), or divide by the largest possible value), or use likelihood='gaussian'"
        )
