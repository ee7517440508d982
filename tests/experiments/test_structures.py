"""The two problems against brute force, and that Direct learns them."""

import json
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from argrad import Permutation, SpanningTree
from argrad.experiments import structures, structures_sorting, structures_tree
from argrad.experiments.structures import Structures, by_value, format_table, markdown, plot, rows_of, run
from argrad.experiments.structures_sorting import PARTS, Sorting, digits_by_value
from argrad.experiments.structures_training import Training, each_draw, train
from argrad.experiments.structures_tree import PRICE, Grid, Maps, as_graph, currents, independent_heads, paths

TINY = Structures(quick=True, sorting_steps=3, tree_steps=3, digits=3, houses=4, batch=4, evaluated=10)


def silent(line: str) -> None:
    pass


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return digits_by_value()


# ------------------------------------------------------------------------------------------------------------- sorting


def test_digits_are_split_without_overlap(images):
    assert images.shape == (10, 174, 64)
    assert 0 <= images.min() < images.max() <= 1
    used = [number for part in PARTS.values() for number in range(part.start, part.stop)]
    assert used == list(range(174))


def test_a_set_has_different_values(images):
    sets = Sorting(images, size=6).draw("validation", 50, generator())
    assert all(len(set(row)) == 6 for row in sets.values.tolist())
    ours = {tuple(image) for image in sets.images.flatten(0, 1).tolist()}
    assert ours <= {tuple(image) for image in images[:, PARTS["validation"]].flatten(0, 1).tolist()}


def test_costs_of_permutations(images):
    """By hand, for all 24: the two forms agree, and only the answer costs nothing."""
    sets = Sorting(images, size=4).draw("train", 3, generator())
    every = Permutation(torch.zeros(4, 4)).enumerate().unsqueeze(1).expand(-1, 3, 4, 4)
    linear, squared = sets.linear_cost(every), sets.squared_cost(every)
    for number, example in product(range(24), range(3)):
        place_of = every[number, example].argmax(-1).tolist()
        ordered = sorted(sets.values[example].tolist())
        by_hand = sum((v - ordered[place_of[i]]) ** 2 for i, v in enumerate(sets.values[example].tolist())) / 4
        assert linear[number, example] == pytest.approx(by_hand, abs=1e-4)
    torch.testing.assert_close(linear, squared)
    assert torch.equal((linear < 1e-4).float().sum(0), torch.ones(3))
    assert not sets.linear_cost(sets.answer).any()
    assert torch.equal(sets.arranged(sets.answer), sets.wanted)


def test_between_permutations_the_forms_differ(images):
    sets = Sorting(images, size=4).draw("train", 3, generator())
    between = torch.full((3, 4, 4), 0.25)
    assert (sets.linear_cost(between) > sets.squared_cost(between) + 0.1).all()


def test_share_in_place(images):
    sets = Sorting(images, size=4).draw("train", 3, generator())
    assert torch.equal(sets.correct(10 * sets.answer), torch.ones(3))
    assert torch.equal(sets.correct(10 * sets.answer.roll(1, -1)), torch.zeros(3))


# ---------------------------------------------------------------------------------------------------------------- tree


def current_by_hand(tree: Tensor, demand: list[float], house: int) -> float:
    behind = tree[house].nonzero().flatten().tolist()
    return demand[house] + sum(current_by_hand(tree, demand, other) for other in behind)


@pytest.mark.parametrize("n", [3, 4, 5])
def test_currents_of_every_tree(n):
    trees = SpanningTree(torch.zeros(n, n), directed=True).enumerate()
    demand = torch.rand(n, generator=generator())
    by_hand = [[current_by_hand(tree, demand.tolist(), house) for house in range(n)] for tree in trees]
    torch.testing.assert_close(currents(trees, demand), torch.tensor(by_hand))
    torch.testing.assert_close(paths(trees), torch.linalg.inv(torch.eye(n) - trees))


def test_the_plant_carries_everything():
    maps = Grid(8).draw("train", 5, generator())
    torch.testing.assert_close(maps.measured[:, 0], maps.demand.sum(-1))
    assert not maps.cost(maps.tree).any()
    assert torch.equal(maps.attachment(maps.tree), torch.ones(5))


def test_the_lines_built_are_the_cheapest():
    maps = Grid(5).draw("train", 4, generator())
    prices = (maps.houses.unsqueeze(-2) - maps.houses.unsqueeze(-3)).abs() @ torch.tensor(PRICE)
    every = SpanningTree(torch.zeros(5, 5), directed=True).enumerate()
    cheapest = (every.unsqueeze(1) * prices).sum((-1, -2)).min(0).values
    torch.testing.assert_close((maps.tree * prices).sum((-1, -2)), cheapest)


def test_rehangings_are_what_the_cost_says():
    """Every move of one house that leaves a tree, on 20 random trees."""
    maps = Grid(5).draw("train", 20, generator())
    z = SpanningTree(torch.zeros(20, 5, 5), directed=True).sample(generator=generator(1))
    table, before, compared = maps.rehangings(z), maps.cost(z), 0
    for head, house in product(range(5), range(1, 5)):
        moved = z.clone()
        moved[..., house] = 0
        moved[:, head, house] = 1
        is_tree = torch.linalg.matrix_power(moved, 5).abs().sum((-1, -2)) == 0
        if is_tree.any():
            change = (maps.cost(moved) - before)[is_tree]
            torch.testing.assert_close(table[is_tree, head, house], change, atol=1e-4, rtol=1e-4)
            compared += int(is_tree.sum())
    assert compared > 150


def test_independent_heads_are_no_tree():
    """With the very prices that the lines were built by: houses that are nearest to each other feed each other."""
    maps = Grid(8).draw("train", 200, generator())
    prices = (maps.houses.unsqueeze(-2) - maps.houses.unsqueeze(-3)).abs() @ torch.tensor(PRICE)
    z = as_graph(independent_heads(-prices).mode())
    assert torch.equal(z.sum(-2), torch.tensor([0.0] + 7 * [1.0]).expand(200, 8))
    assert (torch.linalg.matrix_power(z, 8).sum((-1, -2)) > 0).float().mean() > 0.9
    assert maps.correct(-prices).mean() == 1
    assert maps.attachment(z).mean() < 0.8


# ------------------------------------------------------------------------------------------------------------ learning


@pytest.mark.parametrize(
    ("make", "method", "value", "least"),
    [
        (lambda images: Sorting(images, size=4), structures_sorting.METHODS[0], 4.0, 0.65),
        (lambda images: Grid(6), structures_tree.METHODS[0], 0.3, 0.7),
        (lambda images: Grid(6), structures_tree.METHODS[1], 0.3, 0.7),
    ],
    ids=["sorting", "tree, re-hangings", "tree, gradient"],
)
def test_direct_learns(make, method, value, least, images):
    assert method.name.startswith("Direct")
    found = train(make(images), method.make(value, 4), seed=0, rate=0.03, steps=150, batch=25, evaluated=300)
    assert found.test > least > found.curve[0] + 0.2  # the first of the curve is before any step


def test_a_training_is_decided_by_its_seed(images):
    def once(seed: int) -> Training:
        method = structures_sorting.METHODS[0]
        return train(
            Sorting(images, size=3), method.make(4.0, 2), seed=seed, rate=0.03, steps=20, batch=5, evaluated=100
        )

    first, again, other = once(0), once(0), once(1)
    assert first.curve == again.curve
    assert first.test == again.test
    assert first.curve != other.curve


def every_loss() -> list:
    return [
        pytest.param(problem, method, id=f"{problem}: {method.name}")
        for problem, methods in (("sorting", structures_sorting.METHODS), ("tree", structures_tree.METHODS))
        for method in methods
    ]


@pytest.mark.parametrize(("problem", "method"), every_loss())
def test_every_method_has_a_gradient(problem, method, images):
    made = Sorting(images, size=3) if problem == "sorting" else Grid(4)
    batch = made.draw("train", 10, generator())
    scores = torch.randn(10, *((3, 3) if problem == "sorting" else (4, 4)), generator=generator(1), requires_grad=True)
    loss: Callable[..., Tensor] = method.make(method.values[-1], 4)
    value = loss(scores, batch, generator(2))
    assert value.isfinite().all()
    value.mean().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert scores.grad.any()


def test_each_draw_has_its_own_noise():
    scores = each_draw(torch.zeros(5, 4, 4), 3)
    z = Permutation(scores, law="perturb").sample(generator=generator())
    assert z.shape == (3, 5, 4, 4)
    assert not torch.equal(z[0], z[1])


# ----------------------------------------------------------------------------------------------------------- the whole


@pytest.fixture(scope="module")
def result() -> dict:
    return run(TINY, progress=silent)


def test_every_row_is_there(result):
    result = json.loads(json.dumps(result, allow_nan=False))
    for problem, methods in (("sorting", structures_sorting.METHODS), ("tree", structures_tree.METHODS)):
        rows = rows_of(result, problem)
        assert sorted(row["method"] for row in rows) == sorted(method.name for method in methods)
        assert all(len(row["test"]) == 1 and 0 <= row["test"][0] <= 1 for row in rows)
        assert [row["test"][0] for row in rows] == sorted((row["test"][0] for row in rows), reverse=True)
    assert result["command"].startswith("argrad reproduce structures --sorting-steps 3")


def test_validation_chooses(monkeypatch):
    """The candidate with the best validation is the one that is measured, with seeds that tuning has not seen."""
    seen = []

    def pretend(problem, loss, *, seed, rate, **rest):
        seen.append((seed, rate))
        return Training([0, 1], [0.1, rate], validation=-abs(rate - 0.03), test=0.5, seconds=0.0)

    monkeypatch.setattr(structures, "train", pretend)
    rates = (0.01, 0.03, 0.1)
    rows = run(Structures(seeds=2, rates=rates), progress=silent)["rows"]
    assert {row["rate"] for row in rows} == {0.03}
    assert [row["parameter"] for row in rows if row["method"] == "Exact"] == [""]
    assert {rate for seed, rate in seen if seed == structures.TUNING_SEED} == set(rates)
    assert {(seed, rate) for seed, rate in seen if seed != structures.TUNING_SEED} == {(0, 0.03), (1, 0.03)}


def test_words_and_picture(result, tmp_path):
    assert "QUICK" in format_table(result)
    for text in (format_table(result), markdown(result)):
        assert "GumbelSinkhorn" in text
        assert "Marginals" in text
    plot(result, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_what_validation_said_about_a_parameter():
    row = {"problem": "tree", "method": "Direct", "value": 0.1}
    tuning = [{**row, "validation": 0.4}, {**row, "validation": 0.6}, {**row, "value": 1.0, "validation": 0.5}]
    tuning += [{**row, "method": "Other", "validation": 0.9}, {**row, "problem": "sorting", "validation": 0.9}]
    assert by_value({"tuning": tuning}, "tree", "Direct") == {0.1: 0.6, 1.0: 0.5}


@pytest.mark.parametrize("wrong", [{"seeds": 0}, {"draws": 1}, {"rates": ()}, {"rates": (0.0,)}, {"evaluated": 0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="at least"):
        Structures(**wrong)


def test_wrong_sizes_are_refused(images):
    with pytest.raises(ValueError, match="2 to 10 digits"):
        Sorting(images, size=11)
    with pytest.raises(ValueError, match="at least 3 houses"):
        Grid(2)


def test_a_map_is_not_told_the_tree():
    """What is trained on leaves the tree alone: another tree with the same meters gives the same cost."""
    maps = Grid(5).draw("train", 3, generator())
    other = Maps(maps.houses, maps.demand, torch.zeros_like(maps.tree), maps.measured)
    z = SpanningTree(torch.zeros(3, 5, 5), directed=True).sample(generator=generator(1))
    torch.testing.assert_close(other.cost(z), maps.cost(z))
    torch.testing.assert_close(other.rehangings(z), maps.rehangings(z))
