"""A small grammar as a source of sequences that can be checked: what it can say, how probable, by which productions.

Every production has a probability among those of its left-hand side. A sentence is drawn in two steps: its length, each
possible one as probable as the others, and then the sentence by the productions' law given that length, by counting, so
that no draw is thrown away. Sums run over all ways to split a sentence, so sentences should be short.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from argrad.data.errors import WrongOption

__all__ = ["EXPRESSIONS", "Grammar", "Production"]

Sentence = tuple[str, ...]


@final
@dataclass(frozen=True)
class Production:
    """``left → right``, chosen with a probability among the productions of the same left-hand side."""

    left: str
    right: Sentence
    probability: float

    def __str__(self) -> str:
        return f"{self.left} → {' '.join(self.right)}"


@final
class Grammar:
    """A context-free grammar in which every sentence has one derivation.

    Args:
        rules: for each left-hand side, its right-hand sides (symbols separated by spaces) with their weights. The first
            is where sentences start. Symbols without rules are what sentences are made of.
        length: the most symbols that a sentence may have; recursion ends there.

    >>> EXPRESSIONS.derivation("x + y".split())[:2]
    (1, 3)
    >>> EXPRESSIONS.derivation("x + +".split()) is None
    True
    """

    def __init__(self, rules: Mapping[str, Mapping[str, float]], length: int) -> None:
        self.productions: tuple[Production, ...] = tuple(
            Production(left, tuple(right.split()), weight / sum(rights.values()))
            for left, rights in rules.items()
            for right, weight in rights.items()
        )
        if not self.productions or any(not rule.right or rule.probability <= 0 for rule in self.productions):
            raise WrongOption("a grammar needs rules whose right-hand sides have symbols and weights above 0")
        self.start = self.productions[0].left
        self.length = length
        self._of: dict[str, list[int]] = {left: [] for left in rules}
        for number, rule in enumerate(self.productions):
            self._of[rule.left].append(number)
        self._check_for_loops()
        seen = dict.fromkeys(symbol for rule in self.productions for symbol in rule.right)
        self.alphabet: tuple[str, ...] = tuple(symbol for symbol in seen if symbol not in self._of)
        self._weight = functools.cache(self._compute_weight)
        self._running_sums = functools.cache(self._compute_running_sums)
        self.lengths: tuple[int, ...] = tuple(n for n in range(1, length + 1) if self._weight((self.start,), n) > 0)
        if not self.lengths:
            raise WrongOption(f"no sentence of this grammar has at most {length} symbols; allow more")

    def sample(self, count: int, seed: int) -> list[Sentence]:
        """Sentences drawn independently; the same for the same seed on every machine."""
        random = np.random.RandomState(seed)
        chosen = random.randint(len(self.lengths), size=count)
        return [self._draw((self.start,), self.lengths[number], random) for number in chosen]

    def derivation(self, sentence: Sequence[str]) -> tuple[int, ...] | None:
        """The numbers of the productions that make the sentence, outermost first; None if it is not one."""
        if not 1 <= len(sentence) <= self.length:
            return None
        return self._derive((self.start,), tuple(sentence), {})

    def is_valid(self, sentence: Sequence[str]) -> bool:
        """Whether the grammar can say this."""
        return self.derivation(sentence) is not None

    def log_prob(self, sentence: Sequence[str]) -> float:
        """The log-probability with which :meth:`sample` draws a sentence; −inf if it is not one."""
        found = self.derivation(sentence)
        if found is None:
            return -math.inf
        given_length = sum(math.log(self.productions[number].probability) for number in found)
        return given_length - math.log(self._weight((self.start,), len(sentence))) - math.log(len(self.lengths))

    def sentences(self, length: int | None = None) -> Iterator[Sentence]:
        """All sentences of at most ``length`` symbols, short ones first."""
        for n in range(1, (self.length if length is None else length) + 1):
            yield from self._all((self.start,), n)

    def count_productions(self, sentences: Sequence[Sequence[str]]) -> list[int]:
        """How often each production is used in those sentences that are valid."""
        counts = [0] * len(self.productions)
        for sentence in sentences:
            for number in self.derivation(sentence) or ():
                counts[number] += 1
        return counts

    def _compute_weight(self, symbols: Sentence, n: int) -> float:
        """The probability that a string of symbols becomes a sentence of exactly n."""
        if n < len(symbols) or not symbols:
            return float(n == 0 and not symbols)
        first, rest = symbols[0], symbols[1:]
        if rest:
            return sum(self._weight((first,), m) * self._weight(rest, n - m) for m in range(1, n))
        if first not in self._of:
            return float(n == 1)
        rules = (self.productions[number] for number in self._of[first])
        return sum(rule.probability * self._weight(rule.right, n) for rule in rules)

    def _draw(self, symbols: Sentence, n: int, random: np.random.RandomState) -> Sentence:
        first, rest = symbols[0], symbols[1:]
        if not rest and first not in self._of:
            return (first,)
        sums = self._running_sums(symbols, n)
        chosen = min(bisect.bisect_right(sums, sums[-1] * random.random_sample()), len(sums) - 1)
        if rest:
            return self._draw((first,), 1 + chosen, random) + self._draw(rest, n - 1 - chosen, random)
        return self._draw(self.productions[self._of[first][chosen]].right, n, random)

    def _compute_running_sums(self, symbols: Sentence, n: int) -> list[float]:
        """Summed weights of the ways to go on: how many symbols the first of several gets, or by which production."""
        first, rest = symbols[0], symbols[1:]
        if rest:
            weights = [self._weight((first,), m) * self._weight(rest, n - m) for m in range(1, n)]
        else:
            rules = [self.productions[number] for number in self._of[first]]
            weights = [rule.probability * self._weight(rule.right, n) for rule in rules]
        return list(itertools.accumulate(weights))

    def _derive(
        self, symbols: Sentence, text: Sentence, known: dict[tuple[Sentence, Sentence], tuple[int, ...] | None]
    ) -> tuple[int, ...] | None:
        if len(text) < len(symbols):
            return None
        if (symbols, text) not in known:
            known[symbols, text] = self._find(symbols, text, known)
        return known[symbols, text]

    def _find(
        self, symbols: Sentence, text: Sentence, known: dict[tuple[Sentence, Sentence], tuple[int, ...] | None]
    ) -> tuple[int, ...] | None:
        first, rest = symbols[0], symbols[1:]
        if rest:
            for m in range(1, len(text) - len(rest) + 1):
                head = self._derive((first,), text[:m], known)
                tail = None if head is None else self._derive(rest, text[m:], known)
                if head is not None and tail is not None:
                    return head + tail
            return None
        if first not in self._of:
            return () if text == (first,) else None
        for number in self._of[first]:
            inside = self._derive(self.productions[number].right, text, known)
            if inside is not None:
                return (number, *inside)
        return None

    def _all(self, symbols: Sentence, n: int) -> Iterator[Sentence]:
        first, rest = symbols[0], symbols[1:]
        if self._weight(symbols, n) == 0:
            return
        if rest:
            for m in range(1, n):
                for tail in self._all(rest, n - m) if self._weight((first,), m) else ():
                    yield from (head + tail for head in self._all((first,), m))
        elif first not in self._of:
            yield (first,)
        else:
            for number in self._of[first]:
                yield from self._all(self.productions[number].right, n)

    def _check_for_loops(self) -> None:
        """A symbol that can become itself, and nothing more, would have endless derivations."""
        for start in self._of:
            reached: set[str] = set()
            new = {start}
            while new:
                new = {
                    self.productions[number].right[0]
                    for symbol in new
                    for number in self._of.get(symbol, ())
                    if len(self.productions[number].right) == 1
                } - reached
                reached |= new
            if start in reached:
                raise WrongOption(f"{start} can become {start} itself, so that derivations never end; leave that out")


EXPRESSIONS = Grammar(
    {
        "sum": {"product": 2, "product + sum": 2, "product - sum": 1},
        "product": {"factor": 2, "factor * product": 1},
        "factor": {"x": 3, "y": 2, "( sum )": 2, "- ( sum )": 1},
    },
    length=11,
)
"""Sums and products of x and y with brackets: 7 symbols, 9 productions, one derivation for each expression."""
