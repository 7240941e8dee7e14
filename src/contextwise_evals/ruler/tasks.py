"""The tasks of RULER with generated texts: variable tracking (vt), common words (cwe) and frequent words (fwe).

The positions of all assignments, or of all occurrences of the words to find, are drawn by the law, no position twice.
"""

import string
from functools import cache
from itertools import count, product

import numpy as np
from scipy.special import zeta

from contextwise.settings import ConfigError
from contextwise_evals.answering.prompts import Question
from contextwise_evals.ruler.questions import NOISE, FilledTask, Size, Spans, distances_behind, join_pieces

HOPS = 4
NAME, EXAMPLE_NAME = 5, 3  # letters of a variable's name
EXAMPLE_NOISE = 5
VT_TASK = "Some lines of this text assign values to variables. Remember these lines, and follow the assignments.\n\n"

COMMON = 10
LONG = 4096
"""From this length on RULER's words are repeated more often."""
CWE_TASK = "This is a numbered list of words. Some of them occur more often than others: remember those.\n"
CWE_ENDING = f"\nQuestion: Which {COMMON} words occur most often in the list above?\n"
CWE_ANSWER = f"Answer: The {COMMON} words that occur most often in the list are:"

ALPHA = 2.0
CODED_LETTERS = 6
FREQUENT = 3
FWE_TASK = "Read this text of coded words, and keep count of each word.\n\n"
FWE_ENDING = (
    "\n\nQuestion: Which three coded words occur most often in the text above? "
    "Do not count the dots '...', and give no explanation.\n"
)
FWE_ANSWER = "Answer: In the coded text above, the three words that occur most often are:"


class VariableTracking(FilledTask):
    """Find the variables with one value, which a chain of assignments between lines of noise passes on.

    A number is assigned to a first variable, and each variable to the next. The chain runs from the farthest assignment to the
    nearest: a model that sees all but the first one does not know which variables have the value. With ``example`` a worked
    example with fewer lines precedes the text, as in RULER.
    """

    name, title = "vt", "variable tracking"
    new_tokens = 30
    fewest = HOPS

    def __init__(self, size: Size, example: bool = True) -> None:
        self.example, self.noise_tokens = example, max(1, size.tokens(NOISE))
        super().__init__(size, size.length // self.noise_tokens)

    def question(self, index: int) -> Question:
        lines = self.largest_count(index)
        body, needles, (names, value) = self.body(index, lines)
        opening = VT_TASK + (self._worked_example(index) if self.example else "")
        return Question(opening, body, *_ending(value, len(names)), names, needles)

    def body(self, index: int, count: int) -> tuple[str, Spans, tuple[tuple[str, ...], int]]:
        draw = self.size.generator(self.name, index)
        names, value = _chain(draw, NAME)
        distances = np.minimum(distances_behind(np.full(count, self.noise_tokens)), self.size.length - 1)
        positions = np.sort(self.size.draw_positions(draw, distances, len(names)))
        return *_assignments(names, value, positions, count), (names, value)

    def _worked_example(self, index: int) -> str:
        draw = self.size.generator(f"{self.name} example", index)
        names, value = _chain(draw, EXAMPLE_NAME)
        positions = np.sort(draw.choice(EXAMPLE_NOISE + 1, len(names), replace=False))
        body = _assignments(names, value, positions, EXAMPLE_NOISE)[0]
        return f"{body}{''.join(_ending(value, len(names)))} {', '.join(names)}\n\n{VT_TASK}"


def _different_words(draw: np.random.Generator, count: int, letters: str, length: int) -> tuple[str, ...]:
    """Words that are all different and of equal length, so that none is part of another."""
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(draw.choice(list(letters), length))] = None
    return tuple(words)


def _chain(draw: np.random.Generator, letters: int) -> tuple[tuple[str, ...], int]:
    """Names of the variables, and the value."""
    names = _different_words(draw, HOPS + 1, string.ascii_uppercase, letters)
    return names, int(draw.integers(10_000, 100_000))


def _assignments(names: tuple[str, ...], value: int, positions: np.ndarray, lines: int) -> tuple[str, Spans]:
    """Lines of noise with the assignments, in their order, before those with the indices ``positions``."""
    values = [str(value), *(f"VAR {name}" for name in names)]
    pieces = [NOISE] * lines
    wanted = [int(position) + before for before, position in enumerate(positions)]
    for index, name, given in zip(wanted, names, values, strict=False):
        pieces.insert(index, f"VAR {name} = {given}\n")
    text, needles = join_pieces(pieces, wanted)
    return text.rstrip("\n"), needles


def _ending(value: int, count: int) -> tuple[str, str]:
    """The question, and the beginning of the answer."""
    return (
        f"\n\nQuestion: Which variables have the value {value} in the text above?\n",
        f"Answer: By the assignments in the text above, {count} variables have the value {value}:",
    )


@cache
def made_words() -> list[str]:
    """Words of three syllables of two letters each, of equal length, so that none is part of another."""
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    return ["".join(word) for word in product(syllables, repeat=3)]


class CommonWords(FilledTask):
    """A numbered list in which ten words occur more often than all others.

    Up to 4,095 tokens, the ten occur 6 times each and the others once; in longer texts 30 times and 3 times, as in RULER.
    """

    name, title = "cwe", "common words"
    new_tokens = 120
    fewest = 1

    def __init__(self, size: Size, example: bool = True) -> None:
        self.example, self.words = example, made_words()
        self.size, self.times = size, (6, 1) if size.length < LONG else (30, 3)
        super().__init__(size, max(1, (size.length - self.tokens(0, 1)) // max(1, 5 * self.times[1])))

    def question(self, index: int) -> Question:
        most = len(self.words) - COMMON
        count = self.largest_count(index, most)
        if count == most:
            raise ConfigError(
                f"length is {self.size.length}, but the {len(self.words):,} words of cwe are too few to fill it; give less"
            )
        body, needles, common = self.body(index, count)
        opening = (self._worked_example(index) if self.example else "") + CWE_TASK
        return Question(opening, body, CWE_ENDING, CWE_ANSWER, common, needles)

    def body(self, index: int, count: int) -> tuple[str, Spans, tuple[str, ...]]:
        draw = self.size.generator(self.name, index)
        common, rest = self._draw_words(draw, count)
        items, positions = scatter(draw, common * self.times[0], rest * self.times[1], self.size)
        text, needles = join_pieces([f"{i}. {word} " for i, word in enumerate(items, start=1)], positions)
        return text.rstrip(), needles, tuple(common)

    def _draw_words(self, draw: np.random.Generator, others: int) -> tuple[list[str], list[str]]:
        # One order, of which more words are a longer beginning: tokens do not decrease with their number.
        words = [self.words[int(i)] for i in draw.permutation(len(self.words))[: COMMON + max(0, others)]]
        return words[:COMMON], words[COMMON:]

    def _worked_example(self, index: int) -> str:
        draw = self.size.generator(f"{self.name} example", index)
        others, times, times_other = (10, 3, 1) if self.size.length < LONG else (30, 10, 3)
        common, rest = self._draw_words(draw, min(others, len(self.words) - COMMON))
        items = draw.permutation(common * times + rest * times_other)
        listed, answer = (
            " ".join(f"{i}. {word}" for i, word in enumerate(words, start=1)) for words in (items, common)
        )
        return f"{CWE_TASK}{listed}{CWE_ENDING}{CWE_ANSWER} {answer}\n\n"


def word_counts(total: int) -> np.ndarray:
    """How often the word of each rank occurs in a text of about ``total`` words: total · rank^-2 / ζ(2), rounded down.

    (ranks,) int64, as far as a word occurs at all.
    """
    ranks = np.arange(1, 2 + int(np.sqrt(max(0, total) / zeta(ALPHA))))
    counts = (total * ranks**-ALPHA / zeta(ALPHA)).astype(np.int64)
    return counts[counts > 0]


def third_is_clear(total: int) -> bool:
    """Whether the third word to find occurs more often than the fourth in a text of about ``total`` words."""
    counts = word_counts(total)
    return len(counts) > FREQUENT and counts[FREQUENT] > counts[FREQUENT + 1 :].max(initial=0)


class FrequentWords(FilledTask):
    """A text of coded words whose frequencies fall off as rank^-2; the first rank is noise, the next three are the answers."""

    name, title = "fwe", "frequent words"
    new_tokens = 50
    fewest = next(total for total in count(1) if third_is_clear(total))

    def __init__(self, size: Size) -> None:
        super().__init__(size, max(1, size.length // 4))

    def question(self, index: int) -> Question:
        for total in range(self.largest_count(index), self.fewest - 1, -1):
            # Another number of words may be cut into other tokens, so a smaller one is counted as well.
            if third_is_clear(total) and self.tokens(index, total) <= self.size.length:
                body, needles, frequent = self.body(index, total)
                return Question(FWE_TASK, body, FWE_ENDING, FWE_ANSWER, frequent, needles)
        raise self.too_short(index)

    def body(self, index: int, count: int) -> tuple[str, Spans, tuple[str, ...]]:
        draw = self.size.generator(self.name, index)
        counts = word_counts(count)
        coded = _different_words(draw, max(FREQUENT, len(counts) - 1), string.ascii_lowercase, CODED_LETTERS)
        words, ranks = np.array(("...", *coded)), np.arange(len(counts))
        frequent = (ranks > 0) & (ranks <= FREQUENT)
        wanted, others = (np.repeat(words[ranks[part]], counts[part]).tolist() for part in (frequent, ~frequent))
        items, positions = scatter(draw, wanted, others, self.size)
        text, needles = join_pieces([f"{word} " for word in items], positions)
        return text.rstrip(), needles, coded[:FREQUENT]


def scatter(draw: np.random.Generator, wanted: list[str], others: list[str], size: Size) -> tuple[list[str], list[int]]:
    """Items of equal length, the positions of those of ``wanted`` drawn by the law; and these positions, ascending."""
    total = len(wanted) + len(others)
    if total == 0:
        return [], []
    distances = np.arange(total)[::-1] * (size.length / total)
    positions = np.sort(size.draw_positions(draw, distances, len(wanted))).tolist()
    first, second = iter(draw.permutation(wanted).tolist()), iter(draw.permutation(others).tolist())
    taken = set(positions)
    return [next(first if position in taken else second) for position in range(total)], positions
