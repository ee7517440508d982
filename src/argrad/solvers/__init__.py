"""Solvers: pure batched functions, scores in, structure out.

Importing them needs torch and numpy alone; numba is imported when a compiled solver is called.
"""

from argrad.solvers.chain import viterbi
from argrad.solvers.matching import matching
from argrad.solvers.pairwise import PairwiseSolver, PairwiseSolverName, pairwise_score, solve_pairwise
from argrad.solvers.pairwise_branch_and_bound import PairwiseSolution, pairwise_by_branch_and_bound, prove_pairwise
from argrad.solvers.pairwise_enumeration import pairwise_by_enumeration, pairwise_scores_all
from argrad.solvers.pairwise_local_search import pairwise_by_local_search
from argrad.solvers.pairwise_max_flow import pairwise_by_max_flow, pairwise_by_pymaxflow
from argrad.solvers.spanning_tree import arborescence, spanning_tree
from argrad.solvers.top_k import top_k

__all__ = [
    "PairwiseSolution",
    "PairwiseSolver",
    "PairwiseSolverName",
    "arborescence",
    "matching",
    "pairwise_by_branch_and_bound",
    "pairwise_by_enumeration",
    "pairwise_by_local_search",
    "pairwise_by_max_flow",
    "pairwise_by_pymaxflow",
    "pairwise_score",
    "pairwise_scores_all",
    "prove_pairwise",
    "solve_pairwise",
    "spanning_tree",
    "top_k",
    "viterbi",
]
