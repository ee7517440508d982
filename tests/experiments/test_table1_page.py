"""The page of Table 1 says what its results file says, misses included."""

from argrad.experiments.table1_page import markdown


def row(dataset: str, k: int, method: str, *losses: float, nll: float = 164.0) -> dict:
    return {"dataset": dataset, "k": k, "method": method, "test_loss": list(losses), "nll": [nll for _ in losses]}


RESULT = {
    "rows": [
        row("mnist", 10, "exact", 164.0, 166.0),
        row("mnist", 10, "direct", 166.0, 167.0),
        row("mnist", 10, "best", 164.6, 164.8),
        {"dataset": "mnist", "k": 10, "method": "em", "nll": [162.5]},
        row("mnist", 20, "direct", 153.0, 153.0),
        row("mnist", 20, "best", 152.9, 152.9, nll=151.0),
        {"dataset": "mnist", "k": 20, "method": "em", "nll": [150.9]},
        row("omniglot", 10, "direct", 190.0, 190.0),
    ],
    "choices_on_validation": {"direct": "direct auto"},
    "timing": {"mnist": {"table": {"models": 4, "steps": 1000, "seconds": 2.0}, "em_seconds": 3.0}},
}


def test_cells_have_mean_spread_and_the_papers_number():
    lines = markdown(RESULT).splitlines()
    cells = next(line for line in lines if line.startswith("| 10 |")).split(" | ")
    assert cells[1] == "165.00 ± 1.41 (164.53)"
    assert cells[2] == "166.50 ± 0.71 (165.26)"
    assert cells[3] == "–"
    assert cells[-1] == "162.50 |"


def test_claims_are_counted_and_misses_named():
    text = markdown(RESULT)
    assert "above the best of the paper's three: 1 of 2 cells. Not in mnist k = 20 (+0.59)." in text
    assert "above the paper's direct: 1 of 2 cells. Not in mnist k = 10 (+1.24)." in text  # and not omniglot
    assert "of the EM mixture: 1 of 2 cells. Not in mnist k = 10 (+1.50)." in text


def test_choices_and_time():
    text = markdown(RESULT)
    assert "`direct` is `direct auto`" in text
    assert "4 table models, 1,000 steps in 2 s (500 a second, 2,000 model steps)" in text
