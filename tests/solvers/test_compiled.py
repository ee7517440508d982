"""Compiled solvers in several processes at once, which share what is kept on disk."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("numba")

SOLVE = """
import sys, torch
from argrad.solvers.matching import matching
from argrad.solvers.pairwise import pairwise_by_branch_and_bound, pairwise_by_max_flow
from argrad.solvers.spanning_tree import arborescence, sample_arborescence, spanning_tree

scores = torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(0))
solvers = [
    lambda: matching(scores, method="numba"),
    lambda: spanning_tree(scores, method="numba"),
    lambda: arborescence(scores),
    lambda: sample_arborescence(scores, scores),
    lambda: pairwise_by_branch_and_bound(scores[:, 0], scores),
    lambda: pairwise_by_max_flow(scores[:, 0], scores.abs()),
]
print("ready", flush=True)
sys.stdin.readline()
order = [int(number) for number in sys.argv[1:]]
answers = {number: solvers[number]().flatten().int().tolist() for number in order}
print(sorted(answers.items()))
"""


@pytest.mark.slow
def test_processes_may_compile_at_the_same_time(tmp_path):
    # The order matters: what a process compiles first gets a number in its name.
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    answers = []
    for _ in range(2):  # those who write the files, then those who only read them
        processes = [
            subprocess.Popen([sys.executable, "-c", SOLVE, *order], env=environment, stdin=-1, stdout=-1, text=True)
            for order in ("012345", "102345", "213045")
        ]
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        answers += [process.communicate()[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * len(processes)
    assert len(set(answers)) == 1
