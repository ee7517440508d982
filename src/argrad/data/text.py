"""Lines of text as sequences of symbols: characters or words, with an end, all of one length.

Symbol 0 is the end: it closes a sequence and fills what is left of its length. `load_text` reads the user's own file,
one sequence per line, or one of a few by name:

- `names`: 32,033 first names (`text/names.txt` of karpathy/makemore, MIT), by characters;
- `captions`: 10,000 captions of pictures (`text/image_coco.txt` of geek-ai/Texygen, MIT), by words;
- `expressions`: sentences of a small grammar (`argrad.data.grammar.EXPRESSIONS`), drawn afresh, nothing to be found.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

import torch
from torch import Tensor

from argrad.data.errors import BrokenFile, DataError, MissingFiles, UnknownData, WrongOption
from argrad.data.grammar import EXPRESSIONS
from argrad.data.locate import data_folders
from argrad.data.splits import DEFAULT_FRACTIONS, check_split_seed, cut, permutation, share_of

__all__ = ["END", "NAMED", "Level", "Text", "Vocabulary", "WrongText", "as_text", "load_text"]

END = 0
"""The number of the symbol that ends a sequence."""
Level = Literal["characters", "words"]
NAMED: dict[str, tuple[str, Level]] = {"names": ("names.txt", "characters"), "captions": ("image_coco.txt", "words")}
"""Files in the folder `text` of the data folders, and what their symbols are."""
SENTENCES = {"train": 4000, "validation": 2000, "test": 2000}
"""How many are drawn from the grammar."""


class WrongText(DataError):
    """The file could be read, but its lines cannot be used as sequences of symbols."""


@final
@dataclass(frozen=True)
class Vocabulary:
    """Symbols and their numbers, from 1; 0 is the end.

    Args:
        symbols: characters or words.
        level: which of the two.

    >>> letters = Vocabulary(("a", "b"), "characters")
    >>> letters.encode(["ab", "b"], length=3).tolist(), letters.decode(torch.tensor([[2, 1, 0]]))
    ([[1, 2, 0], [2, 0, 0]], ['ba'])
    """

    symbols: tuple[str, ...]
    level: Level

    def __post_init__(self) -> None:
        if self.level not in ("characters", "words"):
            raise WrongOption(f'a vocabulary is of "characters" or "words", got {self.level!r}')

    def __len__(self) -> int:
        """How many symbols there are, the end included."""
        return 1 + len(self.symbols)

    def encode(self, lines: Iterable[str], length: int, name: str = "the text") -> Tensor:
        """Symbol numbers ``[N, length]`` of lines with fewer than ``length`` symbols each.

        Raises:
            WrongText: for the first line that is too long or has a symbol outside the vocabulary.
        """
        lines = as_lines(lines, name)
        number_of = {symbol: number for number, symbol in enumerate(self.symbols, start=1)}
        found = torch.zeros(len(lines), length, dtype=torch.int64)
        for row, line in enumerate(lines):
            symbols = symbols_of(line, self.level)
            if len(symbols) >= length:
                raise WrongText(
                    f"{name}: {shortened(line)} has {len(symbols)} {self.level} and a sequence at most {length - 1}; "
                    "leave it out, or train a model for longer ones"
                )
            unknown = [symbol for symbol in symbols if symbol not in number_of]
            if unknown:
                raise WrongText(
                    f"{name}: {shortened(line)} has {unknown[0]!r}, which is not among the {len(self.symbols)} "
                    f"{self.level} of the vocabulary; leave it out, or train a model on text that has it"
                )
            found[row, : len(symbols)] = torch.tensor([number_of[symbol] for symbol in symbols])
        return found

    def decode(self, indices: Tensor) -> list[str]:
        """Lines from symbol numbers ``[N, length]``, each up to its first end."""
        if indices.dim() != 2 or indices.is_floating_point():
            raise WrongOption(f"symbol numbers are whole and [N, length], got {indices.dtype} {tuple(indices.shape)}")
        if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < len(self):
            raise WrongText(
                f"symbol numbers run from 0 to {len(self) - 1}, got {int(indices.min())} to {int(indices.max())}"
            )
        between = "" if self.level == "characters" else " "
        rows = (row[: row.index(END)] if END in row else row for row in indices.tolist())
        return [between.join(self.symbols[number - 1] for number in row) for row in rows]


@final
@dataclass(frozen=True)
class Text:
    """Sequences for training, validation and test.

    Args:
        name: of the text.
        vocabulary: its symbols.
        train: symbol numbers ``[N, length]``.
        validation: the same; no line of a file is in two of the three.
        test: the same.
    """

    name: str
    vocabulary: Vocabulary
    train: Tensor
    validation: Tensor
    test: Tensor

    @property
    def length(self) -> int:
        """Of every sequence, the end included."""
        return self.train.shape[1]

    def lines(self, split: str) -> list[str]:
        """The lines of a split."""
        return self.vocabulary.decode(getattr(self, split))

    def to(self, device: torch.device) -> Text:
        """The same on a device."""
        parts = (part.to(device) for part in (self.train, self.validation, self.test))
        return Text(self.name, self.vocabulary, *parts)

    def __repr__(self) -> str:
        """Name and sizes."""
        sizes = ", ".join(f"{part} {len(getattr(self, part))}" for part in ("train", "validation", "test"))
        kind = f"{len(self.vocabulary) - 1} {self.vocabulary.level}"
        return f"Text({self.name!r}, {kind}, at most {self.length - 1} in a line, {sizes})"


def load_text(
    name_or_path: str | os.PathLike[str] = "expressions",
    *,
    level: Level | None = None,
    length: int | None = None,
    split_seed: int = 0,
) -> Text:
    """Load text by name, or the user's own file, one sequence per line. Nothing is ever downloaded.

    Empty lines are passed over, and of equal lines one is kept, so that what is held out was never trained on; the
    sentences of a grammar are draws, and stay as they are. 80% are for training, 10% each for validation and test.

    Args:
        name_or_path: "names", "captions", "expressions", or a text file (UTF-8).
        level: "characters", or "words" and punctuation marks; characters for files unless given.
        length: the most symbols that a line may have; as many as the longest has unless given.
        split_seed: decides which lines are held out, or which sentences are drawn.

    >>> load_text("expressions")
    Text('expressions', 7 words, at most 11 in a line, train 4000, validation 2000, test 2000)
    """
    name = str(name_or_path)
    if name == "expressions":
        if level == "characters":
            raise WrongOption("the symbols of expressions are words; leave level out")
        check_split_seed(split_seed)
        drawn = (EXPRESSIONS.sample(number, 3 * split_seed + part) for part, number in enumerate(SENTENCES.values()))
        parts = [[" ".join(sentence) for sentence in sentences] for sentences in drawn]
        return encoded(name, Vocabulary(EXPRESSIONS.alphabet, "words"), parts, length)
    path, usual = find_text(name)
    return as_text(read_lines(path), name=name, level=level or usual, length=length, split_seed=split_seed)


def as_text(
    lines: Iterable[str],
    *,
    name: str = "lines",
    level: Level = "characters",
    length: int | None = None,
    split_seed: int = 0,
) -> Text:
    """The same from lines in memory, under the same rules as a file."""
    distinct = list(dict.fromkeys(stripped for line in as_lines(lines, name) if (stripped := line.strip())))
    if len(distinct) < 3:
        raise WrongText(
            f"{name} holds {len(distinct)} different lines that are not empty, and at least 3 are needed: one each to "
            "train on, to validate and to test"
        )
    order = permutation(len(distinct), split_seed)
    held_out = [share_of(len(distinct), share) for share in DEFAULT_FRACTIONS[1:]]
    parts = [[distinct[row] for row in rows] for rows in cut(order, *held_out)]
    counts = Counter(symbol for line in distinct for symbol in symbols_of(line, level))
    vocabulary = Vocabulary(tuple(sorted(counts)), level)
    return encoded(name, vocabulary, parts, length)


def as_lines(lines: Iterable[str], name: str) -> list[str]:
    """Lines as a list, or an error that says why they are none."""
    if isinstance(lines, str) or not isinstance(lines, Iterable):
        given = "one string" if isinstance(lines, str) else type(lines).__name__
        raise WrongText(f"{name} must be a list of strings, one for each line, got {given}; split it into lines")
    found = list(lines)
    for number, line in enumerate(found, start=1):
        if not isinstance(line, str):
            raise WrongText(f"{name} must be a list of strings, and number {number} is {type(line).__name__}")
    return found


def encoded(name: str, vocabulary: Vocabulary, parts: list[list[str]], length: int | None) -> Text:
    """The three splits as numbers."""
    if length is None:
        length = max(len(symbols_of(line, vocabulary.level)) for part in parts for line in part)
    if length < 1:
        raise WrongOption(f"length must be at least 1, got {length}")
    return Text(name, vocabulary, *(vocabulary.encode(part, length + 1, name) for part in parts))


def symbols_of(line: str, level: Level) -> list[str]:
    """The symbols of a line.

    >>> symbols_of("a dog, two cats.", "words")
    ['a', 'dog', ',', 'two', 'cats', '.']
    """
    return list(line) if level == "characters" else re.findall(r"[\w']+|[^\w\s]", line)


def find_text(name: str) -> tuple[Path, Level]:
    """The file of a text, and what its symbols are unless the user says."""
    if name not in NAMED:
        path = Path(name).expanduser()
        if path.is_file():
            return path, "characters"
        known = ", ".join(["expressions", *NAMED])
        what = "is a folder, not a text file" if path.is_dir() else "is no text file"
        raise UnknownData(f"{name!r} {what}: give a file with one sequence per line, or one of {known}")
    file, level = NAMED[name]
    for root in data_folders():
        if (root / "text" / file).is_file():
            return root / "text" / file, level
    places = " or ".join(str(root / "text") for root in data_folders()) or "a folder text below $ARGRAD_DATA"
    raise MissingFiles(f"{name}: {file} is not on this machine: argrad does not download it; put it into {places}")


def read_lines(path: Path) -> list[str]:
    """The lines of a file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BrokenFile(
            f"{path} is not text in UTF-8 ({error.reason} at byte {error.start}); save it as such"
        ) from error
    if not text.strip():
        raise WrongText(f"{path} is empty: give a file with one sequence per line")
    return text.splitlines()


def shortened(line: str) -> str:
    """A line in quotes, as an error message shows it."""
    return repr(line if len(line) <= 40 else line[:39] + "…")
