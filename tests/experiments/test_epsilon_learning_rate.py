"""The heat map: each cell is a model with its own ε and learning rate."""

import json

import pytest

from argrad.experiments.epsilon_learning_rate import (
    EpsilonLearningRate,
    format_table,
    grid,
    markdown,
    plot,
    run_epsilon_learning_rate,
)
from tiny_images import silent, tiny_images

TINY = EpsilonLearningRate(k=3, epsilons=(0.1, 50.0), learning_rates=(1e-5, 3e-3), epochs=12, batch_size=10, quick=True)


@pytest.fixture(scope="module")
def result() -> dict:
    return run_epsilon_learning_rate(*tiny_images(), TINY, progress=silent)


def test_every_cell_is_there(result):
    result = json.loads(json.dumps(result, allow_nan=False))
    choices, rates, losses = grid(result)
    assert choices == [0.1, 50.0, "auto", "exact"]
    assert rates == [1e-5, 3e-3]
    assert [len(row) for row in losses] == [2, 2, 2, 2]
    assert all(len(row["test_loss"]) == 1 for row in result["rows"])


def test_each_has_its_own_epsilon_and_rate(result):
    choices, _, losses = grid(result)
    by_choice = dict(zip(choices, losses, strict=True))
    for slow, fast in losses:
        assert fast < slow - 0.5  # a learning rate of 1e-5 gets nowhere
    assert by_choice["exact"][1] < by_choice[50.0][1] - 0.1  # a gradient of at most 1/50 per score keeps the codes soft
    assert by_choice["exact"][1] < by_choice["auto"][1] + 0.5


def test_words_and_picture(result, tmp_path):
    assert "ε = 50" in format_table(result)
    assert markdown(result).count("**") == 4  # one fixed ε is bold in each column
    plot(result, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("wrong", [{"epsilons": ()}, {"learning_rates": (0.0,)}, {"k": 1}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="at least"):
        EpsilonLearningRate(**wrong)
