"""Table 1: rows, restarts chosen on validation, choices made on validation."""

import pytest
import torch

from argrad.experiments import table1
from argrad.experiments.table1 import Table1, best_restarts, first_weights, recipes, run_dataset, summarise
from argrad.training.population import Population, join_members, pick_members
from argrad.training.population_loop import train_population
from tiny_images import silent, tiny_images

TINY = Table1(
    datasets=("tiny",),
    values=(3, 4),
    seeds=(0, 1),
    epochs=2,
    batch_size=10,
    restarts=3,
    restart_epochs=1,
    em_restarts=2,
    em_iterations=5,
)


def test_every_row_has_a_number_per_seed():
    result = run_dataset("tiny", *tiny_images(), TINY, silent)
    rows = {(row["method"], row["k"]): row for row in result["rows"]}
    methods = {method for method, _ in rows}
    assert {"exact", "direct ε=0.1", "direct auto", "as-published", "gumbel-softmax", "straight-through"} < methods
    assert set(recipes(TINY)) < methods
    for (method, k), row in rows.items():
        assert k in TINY.values
        assert len(row["nll"]) == (1 if method == "em" else 2)
        if method != "em":
            assert all(loss >= nll - 1e-3 for loss, nll in zip(row["test_loss"], row["nll"], strict=True))
    assert all(0 <= dead < k for (method, k), row in rows.items() if method != "em" for dead in row["dead_codes"])
    assert [len(seed) for seed in result["timing"]["restarted"]["revived_in_chosen"]] == [2 * len(recipes(TINY))] * 2
    assert result["timing"]["restarted"]["models"] == len(recipes(TINY)) * 2 * 3 * 2
    assert result["timing"]["table"]["models"] == 4 * 2 * 2
    assert result["timing"]["best"]["models"] == len(recipes(TINY)) * 2 * 2
    assert {len(seed) for by_seed in result["curves"].values() for seed in by_seed} == {2}


def test_restarts_are_chosen_on_validation():
    """What goes on is, for every seed and k, the restart with the least validation loss."""
    train, validation, _ = tiny_images()
    members = [member for group in recipes(TINY).values() for member in group]
    chosen, _ = best_restarts(members, train, validation, TINY, silent)
    picked = Population(chosen, members).evaluate(validation)[0]
    torch.manual_seed(0)
    parts = [first_weights(members, TINY, train.shape[1], restart) for restart in range(3)]
    everyone = Population(join_members(parts), members * 3, average=table1.AVERAGE)
    train_population(everyone, train, validation, None, epochs=1, batch_size=10)
    losses = everyone.evaluate(validation, everyone.averaged())[0].unflatten(1, (3, len(members)))
    assert float((losses.amax(1) - losses.amin(1)).max()) > 1e-3
    torch.testing.assert_close(picked, losses.amin(1))


def test_picked_members_are_those_named():
    members = [member for group in recipes(TINY).values() for member in group]
    weights = first_weights(members, TINY, 6)
    picked = pick_members(weights, torch.tensor([[2, 0], [1, 1]]))
    for name in weights:
        dim = 2 if name == "enter" else 1
        assert torch.equal(picked[name].select(dim, 0)[0], weights[name].select(dim, 2)[0])
        assert torch.equal(picked[name].select(dim, 1)[1], weights[name].select(dim, 1)[1])


def row(method: str, validation: float, test: float) -> dict:
    return {"dataset": "tiny", "k": 3, "method": method, "validation_loss": [validation], "test_loss": [test]}


def test_choices_are_made_on_validation():
    one, other = recipes(Table1())
    rows = [row("direct ε=0.1", 2.0, 1.0), row("direct auto", 1.0, 2.0), row(one, 2.0, 1.0), row(other, 1.0, 2.0)]
    with_choices, choices = summarise(rows)
    assert choices == {"direct": "direct auto", "best": other}
    assert [(r["method"], r["test_loss"]) for r in with_choices[-2:]] == [("direct", [2.0]), ("best", [2.0])]


def test_quick_changes_only_what_was_left_alone():
    quick = Table1(quick=True, epochs=7).effective()
    assert (quick.epochs, quick.values, quick.restarts) == (7, (10, 50), 2)
    assert Table1().effective() == Table1()


@pytest.mark.parametrize("quick", [True, False])
def test_the_printed_table_says_if_it_is_quick(quick):
    part = run_dataset("tiny", *tiny_images(), TINY, silent)
    result = table1.assemble({"tiny": part}, TINY, "argrad reproduce table1")
    result["quick"] = quick
    result["settings"]["datasets"] = []  # the paper has no such data
    assert table1.format_table(result).startswith("QUICK") == quick
