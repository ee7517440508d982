"""Spanning trees: what is their own."""

import pytest
import torch

from argrad import Categorical, SpanningTree
from structured_latents import normal


def test_three_nodes_leave_out_one_of_three_edges():
    scores = normal(5, 3, 3)
    edges = scores[:, [0, 0, 1], [1, 2, 2]]
    ours, missing = SpanningTree(scores), Categorical(-edges)
    torch.testing.assert_close(1 - ours.mean()[:, [0, 0, 1], [1, 2, 2]], missing.mean())
    torch.testing.assert_close(ours.entropy(), missing.entropy())
    torch.testing.assert_close(ours.kl(), missing.kl())


@pytest.mark.parametrize("root", [0, 2])
def test_an_undirected_tree_is_a_directed_one_with_symmetric_scores(root):
    scores = normal(2, 4, 4).triu(1)
    ours = SpanningTree(scores)
    directed = SpanningTree(scores + scores.mT, directed=True, root=root)
    torch.testing.assert_close(ours.log_partition(), directed.log_partition())
    torch.testing.assert_close(ours.entropy(), directed.entropy())
    both = directed.mean() + directed.mean().mT
    torch.testing.assert_close(ours.mean(), both.triu(1))


def test_samples_are_trees():
    z = SpanningTree(normal(7, 7)).sample((100,), generator=torch.Generator().manual_seed(0))
    assert bool((z.sum((-1, -2)) == 6).all())
    linked = (z + z.mT + torch.eye(7)).matrix_power(7)
    assert bool((linked > 0).all())
    heads = SpanningTree(normal(7, 7), directed=True, root=3).sample(generator=torch.Generator().manual_seed(0)).sum(-2)
    assert heads.tolist() == [1, 1, 1, 0, 1, 1, 1]


def test_one_node_has_one_tree():
    q = SpanningTree(torch.zeros(2, 1, 1))
    assert q.num_states == 1
    assert q.entropy().tolist() == [0, 0]
    assert q.sample(generator=torch.Generator().manual_seed(0)).sum() == 0
