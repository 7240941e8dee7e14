"""Questions of RULER, and the law of the answers' positions. Question i depends on (seed, task, i) and the settings alone.

The position of an answer follows P(x) ∝ (1 - x/L)^γ (intrinsic entropy, Appendix A.1): x is the number of the text's tokens
after it, L their number. γ = 0 is RULER itself (Hsieh et al. 2024); a greater γ draws nearer to the end.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from contextwise.objectives import generator
from contextwise.settings import ConfigError
from contextwise_evals.answering.prompts import Question

Spans = tuple[tuple[int, int], ...]
NOISE = "The river runs slowly. The hills are quiet. A bell rings at noon. Then nothing happens for a while.\n"


@dataclass(frozen=True)
class Size:
    """The most tokens of a body (``length``, L of the law), γ of the law of positions, a counter of tokens, and the seed."""

    length: int
    gamma: float
    tokens: Callable[[str], int]
    seed: int = 0

    def generator(self, name: str, index: int) -> np.random.Generator:
        """The generator of all draws for one question of a task."""
        return generator(self.seed, 0, index, f"ruler {name}")

    def probabilities(self, distances: np.ndarray) -> np.ndarray:
        """Probability of each position by the law, (positions,) float64, from its x; a ValueError for an x out of range."""
        distances = np.asarray(distances, dtype=np.float64)
        if distances.size == 0 or distances.min() < 0 or distances.max() >= self.length:
            raise ValueError(f"distances must be from 0 to below {self.length}")
        logarithms = self.gamma * np.log1p(-distances / self.length)
        weights = np.exp(logarithms - logarithms.max())
        return weights / weights.sum()

    def draw_positions(self, draw: np.random.Generator, distances: np.ndarray, count: int = 1) -> np.ndarray:
        """Indices of ``count`` different positions at these distances, (count,) int64, in the order of the draws.

        The first follows the law, each later one the same among the positions that are left.
        """
        # The largest of log p + Gumbel noise is a draw from p, the next largest one from the rest, and so on.
        with np.errstate(divide="ignore"):
            keys = np.log(self.probabilities(distances)) + draw.gumbel(size=len(distances))
        return np.argsort(-keys)[:count]


class Task(ABC):
    """One of RULER's tasks, with RULER's name and most tokens of an answer.

    ``match``: ``all``: the score is the share of the answers that occur; ``part``: 1 if one of them does, else 0.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    match: ClassVar[Literal["all", "part"]] = "all"
    new_tokens: ClassVar[int]

    @abstractmethod
    def question(self, index: int) -> Question:
        """Question number ``index``, from 0 on."""


class FilledTask(Task):
    """A task whose text is filled up to the length with pieces that hold no answer, ``fewest`` of them at least."""

    fewest: ClassVar[int]

    def __init__(self, size: Size, guess: int = 1) -> None:
        self.size, self._guess = size, guess
        if self.tokens(0, self.fewest) > size.length:
            raise self.too_short(0)

    @abstractmethod
    def body(self, index: int, count: int) -> tuple[str, Spans, Any]:
        """The text with ``count`` pieces, the spans of the answers in it, and what the task asks for."""

    def tokens(self, index: int, count: int) -> int:
        """Tokens of :meth:`body`."""
        return self.size.tokens(self.body(index, count)[0])

    def largest_count(self, index: int, most: int | None = None) -> int:
        """The most pieces with which the text fits; the search begins at the last result."""
        length = self.size.length
        self._guess = largest_fit(lambda count: self.tokens(index, count), length, self._guess, self.fewest, most)
        if self._guess < self.fewest:
            raise self.too_short(index)
        return self._guess

    def too_short(self, index: int) -> ConfigError:
        """The error of a length into which not even the shortest text of question ``index`` fits."""
        return too_short(f"a text of {self.name}", self.size.length, self.tokens(index, self.fewest))


def largest_fit(
    tokens_of: Callable[[int], int], room: int, guess: int, fewest: int = 0, most: int | None = None
) -> int:
    """The largest n from ``fewest`` to ``most`` with ``tokens_of(n) <= room``; ``fewest - 1`` if even those do not fit.

    ``tokens_of`` does not decrease with n; the nearer ``guess`` to the result, the fewer calls.
    """
    beyond = sys.maxsize if most is None else most + 1
    low, high, step, n = fewest - 1, beyond, 1, max(fewest, min(guess, beyond - 1))
    while high - low > 1:
        low, high = (n, high) if tokens_of(n) <= room else (low, n)
        if high == beyond:
            n = min(low + step, beyond - 1)
        elif low < fewest:
            n = max(high - step, fewest)
        else:
            n = (low + high) // 2
        step *= 2
    return low


def too_short(what: str, length: int, least: int) -> ConfigError:
    """The error of a length into which not even the shortest text fits."""
    return ConfigError(f"length is {length}, but {what} has {least} tokens at least; give at least that")


def join_pieces(pieces: Sequence[str], wanted: Sequence[int]) -> tuple[str, Spans]:
    """Join pieces to one text, and find the spans in characters of those with the indices ``wanted``.

    White space at the ends of a piece is not part of its span.
    """
    stops = np.cumsum([len(piece) for piece in pieces])
    spans = []
    for index in wanted:
        piece = pieces[index]
        start = int(stops[index]) - len(piece)
        spans.append((start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())))
    return "".join(pieces), tuple(spans)


def distances_behind(sizes: np.ndarray) -> np.ndarray:
    """Distances (n + 1,) int64 of the positions before, between and after n pieces of ``sizes`` (n,) tokens.

    Position i is before piece i, with pieces i, i + 1, … after it; the last has nothing after it.
    """
    return np.append(np.cumsum(np.asarray(sizes, dtype=np.int64)[::-1])[::-1], 0)
