"""Latents: batches of distributions over discrete structures, and the Gaussian for the continuous half."""

from argrad.latents.base import MAX_STATES, Factorised, Latent, Law, Unavailable, Variables
from argrad.latents.bits import Bits
from argrad.latents.categorical import Categorical
from argrad.latents.chain import Chain
from argrad.latents.concrete import binary_concrete_log_prob, concrete_log_prob
from argrad.latents.gaussian import Gaussian
from argrad.latents.pairwise_bits import PairwiseBits
from argrad.latents.permutation import Permutation
from argrad.latents.sequence import Sequence
from argrad.latents.spanning_tree import SpanningTree
from argrad.latents.structured import Structured
from argrad.latents.subset import Subset

__all__ = [
    "MAX_STATES",
    "Bits",
    "Categorical",
    "Chain",
    "Factorised",
    "Gaussian",
    "Latent",
    "Law",
    "PairwiseBits",
    "Permutation",
    "Sequence",
    "SpanningTree",
    "Structured",
    "Subset",
    "Unavailable",
    "Variables",
    "binary_concrete_log_prob",
    "concrete_log_prob",
]
