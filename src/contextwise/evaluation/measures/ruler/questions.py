"""Questions of RULER: a text with something hidden in it, a question behind it, and the answers; and the law of positions.

A task makes question number i from (seed, task, i) and the settings alone, so that every model with the same tokenizer, and
every visible context, gets the same questions.

The position of what matters follows a law (intrinsic entropy, Appendix A.1):

    P(x) ∝ (1 - x/L)^γ

x is the distance of a position from the end of the text: the number of the text's tokens behind it, 0 for the nearest. L is
the length of the text in tokens. With γ = 0 all positions are equally likely, which is RULER itself (Hsieh et al. 2024); a
greater γ draws nearer to the end. The law is over positions between pieces of text, not over tokens: between n paragraphs there
are n + 1 positions, each with its own distance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from contextwise.evaluation.answering.prompts import Question
from contextwise.objectives.objective import generator

Match = Literal["all", "part"]
CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class Size:
    """The length of the texts, and the law of positions in them.

    Attributes:
        length: most tokens of a body; L of the law.
        gamma: γ of the law.
        tokens: counts the tokens of a text, by the model's tokenizer.
        seed: of all draws.
    """

    length: int
    gamma: float
    tokens: CountTokens
    seed: int = 0


class Task(Protocol):
    """One of RULER's tasks.

    Attributes:
        name: RULER's.
        title: the name in words.
        match: ``all``: the score is the share of the answers that are found; ``part``: 1 if one of them is, else 0.
        new_tokens: most tokens of an answer, RULER's.
    """

    name: str
    title: str
    match: Match
    new_tokens: int

    def question(self, index: int) -> Question:
        """Question number ``index``, from 0 on."""


def source_of(size: Size, name: str, index: int) -> np.random.Generator:
    """The generator of all draws for one question."""
    return generator(size.seed, 0, index, f"ruler {name}")


def largest_fit(tokens_of: Callable[[int], int], room: int, guess: int, most: int | None = None) -> int:
    """The largest n ≥ 0 with ``tokens_of(n) <= room``; -1 if even none fits.

    Args:
        tokens_of: does not decrease with n.
        guess: the search begins here; the nearer to the result, the fewer calls.
        most: upper limit of n.
    """
    top = None if most is None else most + 1
    low, step = max(0, guess if most is None else min(guess, most)), 1
    if tokens_of(low) <= room:
        high = low
        while top is None or high < top:
            high = low + step if top is None else min(low + step, top)
            if high == top or tokens_of(high) > room:
                break
            low, step = high, 2 * step
    else:
        high = low
        while high > 0:
            low = max(-1, high - step)
            if low < 0 or tokens_of(low) <= room:
                break
            high, step = low, 2 * step
        else:
            return -1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tokens_of(middle) <= room else (low, middle)
    return low


def join_pieces(pieces: Sequence[str], wanted: Sequence[int]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Pieces as one text, and the spans in characters of those with the indices ``wanted``.

    White space at the ends of a piece is not part of its span.
    """
    ends = np.cumsum([len(piece) for piece in pieces])
    spans = []
    for index in wanted:
        piece = pieces[index]
        start = int(ends[index]) - len(piece)
        spans.append((start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())))
    return "".join(pieces), tuple(spans)


def position_probabilities(distances: np.ndarray, length: int, gamma: float) -> np.ndarray:
    """Probability of each position by the law P(x) ∝ (1 - x/L)^γ, (positions,) float64; they sum to 1.

    Args:
        distances: (positions,) x of each position, tokens; at least 0 and less than ``length``.
        length: L, tokens.
        gamma: γ of the law; 0 for uniform.

    Raises:
        ValueError: a distance is out of range.
    """
    distances = np.asarray(distances, dtype=np.float64)
    if distances.size == 0 or distances.min() < 0 or distances.max() >= length:
        raise ValueError(f"distances must be from 0 to below {length}")
    logarithms = gamma * np.log1p(-distances / length)
    weights = np.exp(logarithms - logarithms.max())
    return weights / weights.sum()


def draw_positions(draw: np.random.Generator, probabilities: np.ndarray, count: int = 1) -> np.ndarray:
    """Indices of ``count`` different positions, (count,) int64, in the order of the draws.

    The first follows ``probabilities``, each later one the same among the positions that are left.
    """
    # The largest of log p + Gumbel noise is a draw from p, the next largest one from the rest, and so on.
    with np.errstate(divide="ignore"):
        keys = np.log(probabilities) + draw.gumbel(size=len(probabilities))
    return np.argsort(-keys)[:count]


def distances_behind(sizes: np.ndarray) -> np.ndarray:
    """Distance of each of the n + 1 positions before, between and behind n pieces of a text.

    Args:
        sizes: (n,) tokens of each piece.

    Returns:
        (n + 1,) int64: position i is before piece i, with pieces i, i + 1, … behind it; the last has nothing behind it.
    """
    return np.append(np.cumsum(np.asarray(sizes, dtype=np.int64)[::-1])[::-1], 0)
