"""Latents: batches of distributions over discrete structures, and the Gaussian for the continuous half."""

from argrad.latents.base import MAX_STATES, Latent, Unavailable
from argrad.latents.bits import Bits
from argrad.latents.categorical import Categorical
from argrad.latents.concrete import binary_concrete_log_prob, concrete_log_prob
from argrad.latents.gaussian import Gaussian

__all__ = [
    "MAX_STATES",
    "Bits",
    "Categorical",
    "Gaussian",
    "Latent",
    "Unavailable",
    "binary_concrete_log_prob",
    "concrete_log_prob",
]
