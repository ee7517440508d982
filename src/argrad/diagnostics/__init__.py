"""Diagnostics: the bias, variance and price of every estimator, measured on the user's own latent and cost."""

from argrad.diagnostics.diagnosis import ClosedForm, Diagnosis, LeftOut, Row
from argrad.diagnostics.procedure import diagnose

__all__ = ["ClosedForm", "Diagnosis", "LeftOut", "Row", "diagnose"]
