"""A grammar against listing all its sentences."""

import math
from collections import Counter

import pytest

from argrad.data.errors import WrongOption
from argrad.data.grammar import EXPRESSIONS, Grammar

SMALL = Grammar({"s": {"a": 1, "b s": 2, "( s )": 1}}, length=4)


def test_sentences_by_hand():
    assert [" ".join(sentence) for sentence in SMALL.sentences(3)] == ["a", "b a", "b b a", "( a )"]


def test_probabilities_sum_to_one():
    assert math.fsum(math.exp(SMALL.log_prob(sentence)) for sentence in SMALL.sentences()) == pytest.approx(1)


def test_probability_by_hand():
    """Lengths 1 to 4 are equally probable; of length 3 there are b b a (1/2 · 1/2 · 1/4) and ( a ) (1/4 · 1/4)."""
    assert math.exp(SMALL.log_prob(["b", "b", "a"])) == pytest.approx(0.25 * (1 / 16) / (1 / 16 + 1 / 16))
    assert math.exp(SMALL.log_prob(["a"])) == pytest.approx(0.25)
    assert SMALL.log_prob(["a", "a"]) == -math.inf


def test_samples_have_that_law():
    """Each share within four standard errors of its probability; there are ten sentences."""
    drawn = Counter(SMALL.sample(4000, seed=0))
    assert all(SMALL.is_valid(sentence) for sentence in drawn)
    for sentence in SMALL.sentences():
        p = math.exp(SMALL.log_prob(sentence))
        assert abs(drawn[sentence] / 4000 - p) < 4 * math.sqrt(p * (1 - p) / 4000)


def test_the_same_seed_draws_the_same():
    assert EXPRESSIONS.sample(20, seed=1) == EXPRESSIONS.sample(20, seed=1) != EXPRESSIONS.sample(20, seed=2)


def test_expressions_against_python():
    """What the grammar can say with few symbols is what Python can evaluate, but for signs without brackets."""
    for sentence in EXPRESSIONS.sentences(6):
        eval("".join(sentence), {"x": 2, "y": 3})
    for wrong in ("x +", "+ x", "( x", "x y", "- x", "( )", ") x (", "x * * y", ""):
        assert not EXPRESSIONS.is_valid(wrong.split())
    assert not EXPRESSIONS.is_valid(["x", "+"] * 6 + ["x"])  # longer than the grammar allows


def test_every_expression_has_one_derivation():
    listed = list(EXPRESSIONS.sentences(7))
    assert len(listed) == len(set(listed)) > 500


def test_productions_are_counted():
    counts = EXPRESSIONS.count_productions([["x", "+", "y"], ["x", "+"]])
    used = {str(rule): count for rule, count in zip(EXPRESSIONS.productions, counts, strict=True) if count}
    assert used == {
        "sum → product": 1,
        "sum → product + sum": 1,
        "product → factor": 2,
        "factor → x": 1,
        "factor → y": 1,
    }


@pytest.mark.parametrize(
    ("rules", "length", "words"),
    [
        ({}, 3, "needs rules"),
        ({"s": {"": 1}}, 3, "right-hand sides have symbols"),
        ({"s": {"a": 0, "b": 1}}, 3, "weights above 0"),
        ({"s": {"t": 1}, "t": {"s": 1, "a": 1}}, 3, "never end"),
        ({"s": {"a a a": 1}}, 2, "at most 2 symbols; allow more"),
    ],
)
def test_bad_grammars(rules, length, words):
    with pytest.raises(WrongOption, match=words):
        Grammar(rules, length)
