"""Lines of text as symbols: there and back, splits, and what is refused."""

import pytest
import torch

from argrad.data.errors import BrokenFile, MissingFiles, UnknownData, WrongOption
from argrad.data.grammar import EXPRESSIONS
from argrad.data.text import END, Text, Vocabulary, WrongText, as_text, load_text

LINES = [first + second for first in "abcde" for second in ("x", "yy", "zzz")]


def test_there_and_back():
    text = as_text(LINES)
    assert sorted(line for part in ("train", "validation", "test") for line in text.lines(part)) == sorted(LINES)
    assert text.vocabulary.symbols == tuple("abcdexyz")
    assert text.length == 5  # four characters and the end
    assert (text.train[:, -1] == END).all()


def test_words():
    text = as_text(["the cat", "a  dog runs", "the dog", "a cat"], level="words")
    assert text.vocabulary.symbols == ("a", "cat", "dog", "runs", "the")
    assert "a dog runs" in text.lines("train") + text.lines("validation") + text.lines("test")


def test_splits_do_not_overlap_and_depend_on_the_seed():
    lines = [f"{number:03d}" for number in range(100)]
    first, again, other = (as_text(lines * 2, split_seed=seed) for seed in (0, 0, 1))
    assert (len(first.train), len(first.validation), len(first.test)) == (80, 10, 10)
    parts = [set(first.lines(part)) for part in ("train", "validation", "test")]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 100
    assert torch.equal(first.train, again.train)
    assert not torch.equal(first.train, other.train)


def test_a_file(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("\ufeff" + "\r\n".join([*LINES, "", "  ", LINES[0]]), encoding="utf-8")
    text = load_text(path)
    assert len(text.train) + len(text.validation) + len(text.test) == len(LINES)
    assert repr(text).startswith(f"Text('{path}', 8 characters, at most 4 in a line, train 11")


def test_expressions():
    text = load_text("expressions")
    assert all(EXPRESSIONS.is_valid(line.split()) for line in text.lines("test")[:200])
    assert not torch.equal(text.validation, text.test)
    assert not torch.equal(text.test, load_text("expressions", split_seed=1).test)


def test_names_and_captions(data_root):
    names = load_text("names")
    assert len(names.train) + len(names.validation) + len(names.test) == 29494  # different ones
    assert len(names.vocabulary) == 27
    assert names.length == 16
    captions = load_text("captions")
    assert captions.vocabulary.level == "words"
    assert isinstance(captions, Text)


class TestRefuses:
    @pytest.mark.parametrize("content", ["", "\n \n"])
    def test_an_empty_file(self, tmp_path, content):
        path = tmp_path / "empty.txt"
        path.write_text(content)
        with pytest.raises(WrongText, match=r"empty\.txt is empty: give a file with one sequence per line"):
            load_text(path)

    def test_too_few_lines(self):
        with pytest.raises(WrongText, match=r"holds 2 different lines .* at least 3"):
            as_text(["a", "b", "a"])

    @pytest.mark.parametrize(
        ("lines", "words"),
        [("abc", "got one string"), (7, "got int"), (["a", 1.5, "b"], "and number 2 is float")],
    )
    def test_what_are_no_lines(self, lines, words):
        with pytest.raises(WrongText, match=f"lines must be a list of strings, .*{words}"):
            as_text(lines)
        with pytest.raises(WrongText, match=f"the text must be a list of strings, .*{words}"):
            Vocabulary(("a", "b"), "characters").encode(lines, length=5)

    def test_a_line_that_is_too_long(self):
        with pytest.raises(WrongText, match=r"lines: '.zzz' has 4 characters and a sequence at most 3; leave it out"):
            as_text(LINES, length=3)

    def test_a_symbol_outside_the_vocabulary(self):
        with pytest.raises(WrongText, match=r"'aq' has 'q', which is not among the 2 characters"):
            Vocabulary(("a", "b"), "characters").encode(["ab", "aq"], length=5)

    def test_numbers_outside_the_vocabulary(self):
        vocabulary = Vocabulary(("a", "b"), "characters")
        with pytest.raises(WrongText, match="from 0 to 2, got 1 to 3"):
            vocabulary.decode(torch.tensor([[1, 3]]))
        with pytest.raises(WrongOption, match="whole and"):
            vocabulary.decode(torch.zeros(2, 3))

    def test_what_is_not_there(self, tmp_path, monkeypatch):
        with pytest.raises(UnknownData, match=r"is no text file: give a file .* expressions, names, captions"):
            load_text("nowhere.txt")
        with pytest.raises(UnknownData, match="is a folder"):
            load_text(tmp_path)
        monkeypatch.setenv("ARGRAD_DATA", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        with pytest.raises(MissingFiles, match=r"names\.txt is not on this machine: .*put it into"):
            load_text("names")

    def test_what_is_not_text(self, tmp_path):
        path = tmp_path / "picture.png"
        path.write_bytes(b"\x89PNG\xff\xfe\x00")
        with pytest.raises(BrokenFile, match="is not text in UTF-8"):
            load_text(path)

    def test_options_that_do_not_exist(self):
        with pytest.raises(WrongOption, match='"characters" or "words"'):
            Vocabulary(("a",), "letters")  # type: ignore[arg-type]
        with pytest.raises(WrongOption, match="length must be at least 1"):
            as_text(LINES, length=-1)
        with pytest.raises(WrongOption, match="symbols of expressions are words"):
            load_text("expressions", level="characters")
        for seed in (-1, 2**32):
            with pytest.raises(WrongOption, match=f"split_seed={seed} is out of range"):
                load_text("expressions", split_seed=seed)
