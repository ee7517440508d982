"""Table 2: rows, recipes, and what is said beside the paper's numbers."""

from dataclasses import replace

import pytest
import torch

from argrad.experiments import table2
from argrad.experiments.published import TABLE_2
from argrad.experiments.table2 import BEST, PAPER, LabelledBits, Table2, format_table, markdown, recipes, run_method

SILENT = lambda line: None  # noqa: E731
TINY = Table2(datasets=("tiny",), labels=(6, 12), draws=(0, 1, 2), epochs=3, batch_size=20, labelled_batch_size=5)


def tiny() -> LabelledBits:
    """Noisy copies of three 4×4 patterns."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(3, 16, generator=generator) < 0.5

    def part(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(number) % 3
        flipped = torch.rand(number, 16, generator=generator) < 0.05
        return (patterns[labels] ^ flipped).to(torch.uint8), labels

    return LabelledBits(*part(90), *part(30), *part(60), (4, 4))


def test_gumbel_softmax_is_that_of_the_authors_code():
    relaxed = recipes("mnist", Table2())["gumbel-softmax"]
    assert (relaxed.estimator, relaxed.temperature) == ("straight-through", 0.5)


def small(recipe: table2.Recipe) -> table2.Recipe:
    return replace(recipe, hidden=24, latent=2, label_first=1)


@pytest.mark.parametrize("recipe", [PAPER, table2.RELAXED, *BEST.values()], ids=["direct", "relaxed", *BEST])
def test_every_recipe_trains_every_cell(recipe):
    with torch.random.fork_rng(devices=[]):
        rows, timing = run_method("tiny", "it", small(recipe), tiny(), TINY, SILENT)
    assert [(row["dataset"], row["labels"], row["method"]) for row in rows] == [("tiny", 6, "it"), ("tiny", 12, "it")]
    for row in rows:
        for name in ("accuracy", "bound", "validation_accuracy", "validation_bound"):
            assert len(row[name]) == 3
        assert all(0 <= value <= 100 for value in row["accuracy"])
        assert all(0 < value < 20 for value in row["bound"])
    assert timing["models"] == 6
    assert timing["steps"] == 3 * 4


def test_numbers_of_labels_are_parts_of_the_whole():
    """On a CPU each number of labels may be run on its own, today or tomorrow."""
    with torch.random.fork_rng(devices=[]):
        whole, timing = run_method("tiny", "it", small(PAPER), tiny(), TINY, SILENT)
        pieces = [
            run_method("tiny", "it", small(PAPER), tiny(), replace(TINY, labels=(number,)), SILENT)
            for number in TINY.labels
        ]
    assert whole == [row for rows, _ in pieces for row in rows]
    together = table2.join_timings([timing for _, timing in pieces])
    assert (together["models"], together["steps"]) == (timing["models"], timing["steps"])
    assert together["seconds"] == pytest.approx(sum(piece["seconds"] for _, piece in pieces), abs=1e-3)


def test_one_recipe_for_all_numbers_of_labels():
    for dataset in ("mnist", "fashion-mnist"):
        rows = recipes(dataset, Table2())
        assert list(rows) == ["direct", "gumbel-softmax", "best"]
        assert rows["direct"].terms == table2.Terms()  # Eq. (9), and nothing else
        assert {recipe.latent for recipe in rows.values()} == {20}
        assert {recipe.hidden for recipe in rows.values()} == {400}
    assert recipes("mnist", Table2(quick=True, epochs=6))["best"].label_first == 2
    with pytest.raises(ValueError, match="10 epochs are too few"):
        recipes("mnist", Table2(epochs=10))


def result(accuracy: float, bound: float, *, quick: bool = False) -> dict:
    settings = {"datasets": ["mnist"], "labels": [50], "draws": [0], "methods": ["direct", "best"]}
    row = {"dataset": "mnist", "labels": 50, "accuracy": [accuracy], "bound": [bound]}
    rows = [{**row, "method": method} for method in ("direct", "best")]
    return {"settings": settings, "rows": rows, "quick": quick}


def test_the_paper_stands_beside_ours():
    text = format_table(result(93.0, 85.0))
    assert "93.0 (92.6)" in text
    assert "85.00 (90.24)" in text
    assert "QUICK" not in text
    assert format_table(result(93.0, 85.0, quick=True)).startswith("QUICK")
    assert "In 1 of 1 cells" in markdown(result(93.0, 85.0))
    assert "In 0 of 1 cells" in markdown(result(92.0, 85.0))
    assert "In 0 of 1 cells" in markdown(result(93.0, 91.0))
    assert TABLE_2["fashion-mnist"][1200]["direct"] == (73.7, 130.921)


def test_parts_are_put_together(monkeypatch):
    """Data sets that were run one by one, as on a machine lent for minutes, are the whole table."""
    one_row = lambda dataset, method, *rest: ([{"dataset": dataset, "method": method}], {"steps": 7})  # noqa: E731
    monkeypatch.setattr(table2, "run_method", one_row)
    settings = Table2(methods=("direct", "best"))
    parts = {name: table2.run_dataset(name, tiny(), settings, SILENT) for name in settings.datasets}
    whole = table2.assemble(parts, settings, "argrad reproduce table2")
    assert [(row["dataset"], row["method"]) for row in whole["rows"]] == [
        (name, method) for name in ("mnist", "fashion-mnist") for method in ("direct", "best")
    ]
    assert whole["timing"]["mnist"]["best"] == {"steps": 7}
    assert whole["recipes"]["fashion-mnist"]["best"]["augmentation"] == "clothes"
    for name in ("command", "commit", "hardware", "software", "date", "settings", "quick"):
        assert name in whole


def test_labels_are_equal_shares_and_fixed_by_the_draw(monkeypatch):
    seen = []

    def remember(recipe, data, labelled, seeds, settings, progress):
        seen.append((labelled, seeds))
        raise KeyboardInterrupt

    monkeypatch.setattr(table2, "train_recipe", remember)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            table2.run_stack("tiny", "it", small(PAPER), tiny(), TINY, SILENT)
    (first, seeds), (second, _) = seen
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert seeds == [0, 1, 2, 0, 1, 2]
    labels = tiny().train_labels
    assert [torch.bincount(labels[rows]).tolist() for rows in first] == [[2, 2, 2]] * 3 + [[4, 4, 4]] * 3
    assert not torch.equal(first[0], first[1])


def test_digits_from_the_catalogue():
    data = table2.load_labelled_bits("digits", torch.device("cpu"))
    assert data.train.shape == (1437, 64)
    assert data.classes == 10
    assert set(data.train.unique().tolist()) == {0, 1}
    with pytest.raises(ValueError, match="methods are direct, gumbel-softmax, best; got magic"):
        Table2(methods=("magic",))
