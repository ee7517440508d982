"""Recall and average precision: every order of ties written out, and scikit-learn where there are none."""

from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from argrad.models.hashing.retrieval import from_groups, in_order, retrieval_by_bits, retrieval_by_cosine


def measures_of(ranked: list[bool], recall_at: tuple[int, ...]) -> list[float]:
    """Of one list, from the definition."""
    hits = [rank for rank, right in enumerate(ranked, 1) if right]
    precision = [(number + 1) / rank for number, rank in enumerate(hits)]
    return [*(float(any(ranked[:k])) for k in recall_at), sum(precision) / len(precision)]


def every_order(groups: list[list[bool]]) -> list[list[bool]]:
    """Every list that the groups of ties can make, nearest group first."""
    lists: list[list[bool]] = [[]]
    for group in groups:
        lists = [begun + list(order) for begun in lists for order in permutations(group)]
    return lists


@pytest.mark.parametrize(
    "groups",
    [
        [[True]],
        [[False, True]],
        [[False], [True, False]],
        [[True, True, False], [], [False, True, False]],
        [[False, False], [True, True, True], [False, True]],
        [[], [False, False, False], [True, False, False, True]],
    ],
)
def test_ties_are_averaged_over_every_order(groups):
    lists = every_order(groups)
    expected = np.mean([measures_of(each, (1, 2, 5)) for each in lists], axis=0)
    right, total = torch.tensor([[sum(g) for g in groups]]), torch.tensor([[len(g) for g in groups]])
    found = from_groups(right, total, (1, 2, 5))
    assert list(found) == ["recall@1", "recall@2", "recall@5", "map"]
    np.testing.assert_allclose(list(found.values()), expected, rtol=1e-10)


def random_problem(generator, queries=20, others=60, bits=5, classes=4):
    draw = lambda high, *shape: torch.randint(high, shape, generator=generator)  # noqa: E731
    return draw(2, queries, bits), draw(2, others, bits), draw(classes, queries), draw(classes, others)


def test_codes_are_ranked_by_distance(generator):
    """Against a random order of ties, averaged: within four standard errors."""
    queries, codes, query_labels, labels = random_problem(generator)
    found = retrieval_by_bits(queries, codes, query_labels, labels)
    away = (queries.unsqueeze(1) != codes).sum(-1).double()
    drawn = []
    for _ in range(400):
        order = (away + 0.5 * torch.rand(away.shape, generator=generator)).argsort(1)
        right = (labels[order] == query_labels.unsqueeze(1)).tolist()
        drawn.append(np.mean([measures_of(each, (1, 10)) for each in right], axis=0))
    error = np.mean(drawn, axis=0) - list(found.values())
    assert (np.abs(error) < 4 * np.std(drawn, axis=0) / 20 + 1e-12).all()


def test_pieces_do_not_matter(generator, monkeypatch):
    problem = random_problem(generator)
    whole = retrieval_by_bits(*problem), retrieval_by_cosine(problem[0].float(), problem[1].float(), *problem[2:])
    monkeypatch.setattr("argrad.models.hashing.retrieval.NUMBERS_AT_ONCE", {"cpu": 150})
    assert retrieval_by_bits(*problem) == whole[0]
    assert retrieval_by_cosine(problem[0].float(), problem[1].float(), *problem[2:]) == whole[1]


def test_embeddings_are_ranked_by_angle(generator):
    queries, others = torch.randn(15, 6, generator=generator), torch.randn(50, 6, generator=generator)
    query_labels = torch.randint(3, (15,), generator=generator)
    labels = torch.randint(3, (50,), generator=generator)
    found = retrieval_by_cosine(7 * queries, others, query_labels, labels)
    likeness = torch.cosine_similarity(queries.unsqueeze(1), others, dim=-1).numpy()
    right = labels.numpy() == query_labels.numpy()[:, None]
    expected = np.mean([average_precision_score(r, s) for r, s in zip(right, likeness, strict=True)])
    assert found["map"] == pytest.approx(expected, abs=1e-6)
    assert found["recall@1"] == pytest.approx(np.mean([r[s.argmax()] for r, s in zip(right, likeness, strict=True)]))


def test_of_equal_distances_the_wrong_come_first(generator):
    away = torch.randint(-3, 4, (40, 30), generator=generator) * 0.1
    away[:, 3], away[:, 7] = -0.0, torch.inf
    right = torch.randint(2, away.shape, generator=generator).bool()
    right[:, 7] = False
    order = np.lexsort((right.numpy(), away.numpy()))
    assert torch.equal(in_order(away, right), torch.from_numpy(np.take_along_axis(right.numpy(), order, 1)))


def test_float64_is_ranked_in_float64():
    embeddings = torch.tensor([[1.0, 1e-5], [1.0, 2e-5]], dtype=torch.float64)
    found = retrieval_by_cosine(embeddings[:1], embeddings, torch.tensor([1]), torch.tensor([1, 0]))
    assert found["recall@1"] == 1


@pytest.mark.parametrize("kind", ["bits", "cosine"])
def test_leaving_one_out_is_removing_it(kind, generator):
    function = retrieval_by_bits if kind == "bits" else retrieval_by_cosine
    codes = torch.randint(2, (30, 6), generator=generator).float()
    if kind == "cosine":
        codes = torch.randn(30, 6, generator=generator)
    labels = torch.randint(4, (30,), generator=generator)
    by_hand = []
    for one in range(30):
        rest = torch.arange(30) != one
        by_hand.append(list(function(codes[one : one + 1], codes[rest], labels[one : one + 1], labels[rest]).values()))
    found = function(codes, codes, labels, labels, leave_one_out=True)
    np.testing.assert_allclose(list(found.values()), np.mean(by_hand, axis=0), rtol=1e-6)


@pytest.mark.parametrize("function", [retrieval_by_bits, retrieval_by_cosine])
def test_queries_with_nothing_to_find_do_not_count(function):
    codes, labels = torch.eye(3), torch.tensor([0, 0, 1])
    both = function(codes[:2], codes, torch.tensor([0, 7]), labels)
    assert both == function(codes[:1], codes, torch.tensor([0]), labels)
    with pytest.raises(ValueError, match="no query has an example of its own class to find"):
        function(codes, codes, torch.tensor([7, 8, 9]), labels)


@pytest.mark.parametrize("function", [retrieval_by_bits, retrieval_by_cosine])
def test_bad_input(function):
    codes, labels = torch.eye(3), torch.tensor([0, 0, 1])
    with pytest.raises(ValueError, match="with the same n, got \\(3, 2\\) and \\(3, 3\\)"):
        function(codes[:, :2], codes, labels, labels)
    with pytest.raises(ValueError, match="need a label each"):
        function(codes, codes, labels[:2], labels)
    with pytest.raises(ValueError, match="there must be some"):
        function(codes[:0], codes, labels[:0], labels)
    with pytest.raises(ValueError, match="the searched examples themselves"):
        function(codes[:2], codes, labels[:2], labels, leave_one_out=True)
