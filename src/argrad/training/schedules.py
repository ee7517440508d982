r"""Schedules: numbers that change as training goes on.

A schedule is a function of the step. Two shapes cover what is in use: exponential decay to a floor, as in the papers
(:math:`\max(m, a e^{-r t})`, refreshed every so many steps), and a linear warm-up.
"""

import math
from dataclasses import dataclass
from typing import final

__all__ = ["Decay", "WarmUp"]


@final
@dataclass(frozen=True)
class Decay:
    r""":math:`\max(minimum, start \cdot e^{-rate \cdot step})`, constant in between refreshes; rate 0 is a constant.

    >>> paper = Decay(1.0, minimum=0.1, rate=1e-5, every=500)
    >>> paper(0), round(paper(100_499), 4), paper(10**7)
    (1.0, 0.3679, 0.1)
    """

    start: float
    minimum: float = 0.0
    rate: float = 0.0
    every: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rate < math.inf or self.every < 1:
            raise ValueError(f"a decay needs rate >= 0 and every >= 1, got rate={self.rate}, every={self.every}")
        if not math.isfinite(self.start) or (self.rate > 0 and self.start < self.minimum):
            raise ValueError(f"a decay falls from {self.start} to {self.minimum}; start at the minimum or above")

    def __call__(self, step: int) -> float:
        """The value at a step, the first being 0."""
        if self.rate == 0:
            return self.start
        return max(self.minimum, self.start * math.exp(-self.rate * (step - step % self.every)))


@final
@dataclass(frozen=True)
class WarmUp:
    """From 0 to ``end`` in a straight line over ``steps`` steps, then constant.

    >>> [WarmUp(2.0, steps=4)(step) for step in (0, 1, 4, 9)]
    [0.0, 0.5, 2.0, 2.0]
    """

    end: float
    steps: int = 0

    def __post_init__(self) -> None:
        if not math.isfinite(self.end) or self.steps < 0:
            raise ValueError(f"a warm-up needs a finite end and steps >= 0, got end={self.end}, steps={self.steps}")

    def __call__(self, step: int) -> float:
        """The value at a step, the first being 0."""
        return self.end if step >= self.steps else self.end * step / self.steps
