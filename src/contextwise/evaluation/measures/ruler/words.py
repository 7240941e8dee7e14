"""cwe and fwe: which words are the most common in a list, or in a coded text (RULER, aggregation).

The positions of all occurrences of the words to find are drawn by the law, no position twice; the other words fill the rest,
shuffled. A position's distance is that of its word in a list of words of equal length in tokens.
"""

import string
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.special import zeta

from contextwise.base.errors import ConfigError, DataError
from contextwise.data.input_files import readable, unpacked
from contextwise.evaluation.answering.prompts import Question
from contextwise.evaluation.measures.ruler.questions import (
    Match,
    Size,
    draw_positions,
    join_pieces,
    largest_fit,
    position_probabilities,
    source_of,
)

COMMON = 10
LONG = 4096
"""From this length on RULER's words are repeated more often."""
ALPHA = 2.0
CODED_LETTERS = 6
NOISE = "..."
FREQUENT = 3

CWE_TASK = "This is a numbered list of words. Some of them occur more often than others: remember those.\n"
CWE_ENDING = f"\nQuestion: Which {COMMON} words occur most often in the list above?\n"
CWE_ANSWER = f"Answer: The {COMMON} words that occur most often in the list are:"
FWE_TASK = "Read this text of coded words, and keep count of each word.\n\n"
FWE_ENDING = (
    "\n\nQuestion: Which three coded words occur most often in the text above? "
    "Do not count the dots '...', and give no explanation.\n"
)
FWE_ANSWER = "Answer: In the coded text above, the three words that occur most often are:"


class MadeWords(Sequence[str]):
    """Words of three syllables of two letters each, of equal length, so that none is part of another."""

    syllables = tuple(a + b for a in "bdfgklmnprstvz" for b in "aeiou")

    def __len__(self) -> int:
        return len(self.syllables) ** 3

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        rest, third = divmod(int(index), len(self.syllables))
        first, second = divmod(rest, len(self.syllables))
        return self.syllables[first] + self.syllables[second] + self.syllables[third]


def read_words(path: Path) -> list[str]:
    """The different words of a file, one a line; ``.gz`` is unpacked, empty lines are skipped.

    Raises:
        DataError: the file is missing, no text, or holds no words.
    """
    with readable(path), path.open("rb") as raw, unpacked(raw, path) as file:
        content = file.read()
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise DataError(f"the word list {path} is not UTF-8 text; give one word a line") from None
    words = list(dict.fromkeys(word.strip() for word in lines if word.strip()))
    for word in words:
        if len(word.split()) > 1:
            raise DataError(
                f"the word list {path} has a line with several words, {word[:40]!r}; give one a line"
            )
    if not words:
        raise DataError(f"the word list {path} is empty; give one word a line")
    return words


class CommonWords:
    """A numbered list in which ten words occur more often than all others.

    Up to 4,095 tokens, the ten occur 6 times each and the others once; in longer texts 30 times and 3 times, as in RULER.

    Args:
        words: source of the words; :class:`MadeWords` if None.
        example: put a worked example with fewer words before the list, as RULER does.
        source: name of the words in an error.

    Raises:
        ConfigError: the length is too short for ten common words and another.
        DataError: ``words`` has too few words to fill the length.
    """

    name, title = "cwe", "common words"
    match: Match = "all"
    new_tokens = 120

    def __init__(
        self, size: Size, words: Sequence[str] | None = None, example: bool = True, source: str = "the list"
    ) -> None:
        self.size, self.example, self.source = size, example, source
        self.words: Sequence[str] = MadeWords() if words is None else words
        self.times = (6, 1) if size.length < LONG else (30, 3)
        if len(self.words) < COMMON + 1:
            self._too_few()
        least = size.tokens(self._body(0, 1)[0])
        if least > size.length:
            raise ConfigError(
                f"length is {size.length}, but a text of {self.name} has {least} tokens at least; give more"
            )
        self._guess = max(1, (size.length - least) // max(1, 5 * self.times[1]))

    def question(self, index: int) -> Question:
        most = len(self.words) - COMMON
        count = largest_fit(
            lambda n: self.size.tokens(self._body(index, n)[0]), self.size.length, self._guess, most
        )
        if count == most:
            self._too_few()
        self._guess = count
        body, needles, common = self._body(index, count)
        opening = (self._worked_example(index) if self.example else "") + CWE_TASK
        return Question(opening, body, CWE_ENDING, CWE_ANSWER, common, needles)

    def _too_few(self) -> None:
        raise DataError(
            f"the word list {self.source} has {len(self.words):,} different words, too few to fill {self.size.length:,} "
            "tokens; give a longer list, or a smaller length"
        )

    def _body(self, index: int, others: int) -> tuple[str, tuple[tuple[int, int], ...], tuple[str, ...]]:
        draw = source_of(self.size, self.name, index)
        common, rest = self._draw_words(draw, others)
        items, positions = scatter(draw, common * self.times[0], rest * self.times[1], self.size)
        pieces = [f"{i}. {word} " for i, word in enumerate(items, start=1)]
        text, needles = join_pieces(pieces, positions)
        return text.rstrip(), needles, tuple(common)

    def _draw_words(self, draw: np.random.Generator, others: int) -> tuple[list[str], list[str]]:
        chosen = draw.choice(len(self.words), COMMON + max(0, others), replace=False)
        words = [self.words[int(i)] for i in chosen]
        return words[:COMMON], words[COMMON:]

    def _worked_example(self, index: int) -> str:
        draw = source_of(self.size, f"{self.name} example", index)
        others, times, times_other = (10, 3, 1) if self.size.length < LONG else (30, 10, 3)
        common, rest = self._draw_words(draw, min(others, len(self.words) - COMMON))
        items = draw.permutation(common * times + rest * times_other)
        listed = " ".join(f"{i}. {word}" for i, word in enumerate(items, start=1))
        answer = " ".join(f"{i}. {word}" for i, word in enumerate(common, start=1))
        return f"{CWE_TASK}{listed}{CWE_ENDING}{CWE_ANSWER} {answer}\n\n"


class FrequentWords:
    """A text of coded words whose frequencies fall off as rank^-2; the first rank is noise, the next three are the answers.

    Raises:
        ConfigError: the length is too short for the third of them to be more frequent than the next word.
    """

    name, title = "fwe", "frequent words"
    match: Match = "all"
    new_tokens = 50

    def __init__(self, size: Size) -> None:
        self.size = size
        self._guess = max(1, size.length // 4)

    def question(self, index: int) -> Question:
        count = largest_fit(
            lambda n: self.size.tokens(self._body(index, n)[0]), self.size.length, self._guess
        )
        self._guess = max(1, count)
        while count > 0 and not _distinct(word_counts(count)):
            count -= 1
        if count < 1:
            raise ConfigError(
                f"length is {self.size.length}, too short for {self.name}: the third word would not be more "
                "frequent than the fourth; give some tokens more"
            )
        body, needles, frequent = self._body(index, count)
        return Question(FWE_TASK, body, FWE_ENDING, FWE_ANSWER, frequent, needles)

    def _body(self, index: int, total: int) -> tuple[str, tuple[tuple[int, int], ...], tuple[str, ...]]:
        draw = source_of(self.size, self.name, index)
        counts = word_counts(total)
        words = [NOISE, *_coded_words(draw, max(FREQUENT, len(counts) - 1))]
        frequent = words[1 : FREQUENT + 1]
        repeated = [[word] * count for word, count in zip(words, counts.tolist(), strict=False)]
        wanted = [word for group in repeated[1 : FREQUENT + 1] for word in group]
        others = [word for group in (repeated[:1] + repeated[FREQUENT + 1 :]) for word in group]
        items, positions = scatter(draw, wanted, others, self.size)
        text, needles = join_pieces([f"{word} " for word in items], positions)
        return text.rstrip(), needles, tuple(frequent)


def word_counts(total: int) -> np.ndarray:
    """How often the word of each rank occurs in a text of about ``total`` words: total · rank^-2 / ζ(2), rounded down.

    Returns:
        (ranks,) int64, as far as a word occurs at all.
    """
    ranks = np.arange(1, 2 + int(np.sqrt(max(0, total) / zeta(ALPHA))))
    counts = (total * ranks**-ALPHA / zeta(ALPHA)).astype(np.int64)
    return counts[counts > 0]


def _distinct(counts: np.ndarray) -> bool:
    """Whether the last word to find is more frequent than the next one."""
    return len(counts) > FREQUENT and counts[FREQUENT] > (counts[FREQUENT + 1 :].max(initial=0))


def _coded_words(draw: np.random.Generator, count: int) -> list[str]:
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(draw.choice(list(string.ascii_lowercase), CODED_LETTERS))] = None
    return list(words)


def scatter(
    draw: np.random.Generator, wanted: list[str], others: list[str], size: Size
) -> tuple[list[str], list[int]]:
    """Items in an order in which the positions of ``wanted`` are drawn by the law.

    Returns:
        The items, and the indices of those of ``wanted``, ascending.
    """
    total = len(wanted) + len(others)
    if total == 0:
        return [], []
    distances = np.arange(total)[::-1] * (size.length / total)
    positions = np.sort(
        draw_positions(draw, position_probabilities(distances, size.length, size.gamma), len(wanted))
    )
    first, second = iter(draw.permutation(wanted).tolist()), iter(draw.permutation(others).tolist())
    taken = set(positions.tolist())
    return [
        next(first) if position in taken else next(second) for position in range(total)
    ], positions.tolist()
