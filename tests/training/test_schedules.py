"""Schedules hit their ends, never leave them, and do nothing when they are told to do nothing."""

import math

import pytest

from argrad.models.discrete_vae.task import Schedules
from argrad.training import Decay, WarmUp


def test_decay_is_the_papers_formula_between_refreshes():
    decay = Decay(2.0, minimum=0.5, rate=0.01, every=10)
    for step in range(400):
        assert decay(step) == pytest.approx(max(0.5, 2.0 * math.exp(-0.1 * (step // 10))), rel=1e-12)


def test_decay_only_falls():
    values = [Decay(1.0, minimum=0.1, rate=1e-3)(step) for step in range(0, 10_000, 7)]
    assert values == sorted(values, reverse=True)
    assert values[0] == 1
    assert values[-1] == 0.1


def test_without_a_rate_it_is_constant_even_below_the_minimum():
    assert [Decay(0.05, minimum=0.1)(step) for step in (0, 1, 10**9)] == [0.05] * 3
    assert Decay(-0.1, minimum=0.1)(5) == -0.1


@pytest.mark.parametrize(
    "wrong", [{"rate": -1.0}, {"every": 0}, {"rate": math.nan}, {"start": math.inf}, {"start": -0.1, "minimum": 0.1}]
)
def test_a_decay_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="decay"):
        Decay(**{"start": 1.0, "rate": 0.1, **wrong})


def test_warm_up_rises_in_a_line_and_stays():
    assert [WarmUp(3.0, steps=3)(step) for step in range(6)] == [0, 1, 2, 3, 3, 3]
    assert [WarmUp(3.0)(step) for step in range(3)] == [3, 3, 3]


def test_a_warm_up_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="warm-up"):
        WarmUp(1.0, steps=-1)


def test_applied_to_estimators():
    from argrad import Direct, Exact, GumbelSoftmax

    schedules = Schedules(Decay(1.0, 0.1, 0.1), Decay(0.5, 0.2, 0.1))
    direct, auto, soft = Direct(9.0), Direct("auto"), GumbelSoftmax(9.0)
    for estimator in (direct, auto, soft, Exact()):
        schedules.apply(estimator, 5)
    assert direct.epsilon.item() == pytest.approx(math.exp(-0.5))
    assert auto.epsilon.item() == 1
    assert soft.temperature.item() == pytest.approx(0.5 * math.exp(-0.5))
    Schedules().apply(soft, 5)
    assert soft.temperature.item() == pytest.approx(0.5 * math.exp(-0.5))
