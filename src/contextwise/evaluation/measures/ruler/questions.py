"""What a RULER task asks: a text with something hidden in it, a question behind it, and the answers.

A task makes question number i from (seed, task, i) and the settings alone, so that every model with the same tokenizer, and
every visible context, gets the same questions.
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
    """How long the texts are, and how places in them are drawn.

    Attributes:
        length: most tokens of a body; L of the law of places.
        gamma: γ of the law of places.
        tokens: how many tokens the model's tokenizer makes of a text.
        seed: of all that is drawn.
    """

    length: int
    gamma: float
    tokens: CountTokens
    seed: int = 0


class Task(Protocol):
    """One of RULER's tasks.

    Attributes:
        name: as RULER has it.
        title: what it is, in words.
        match: ``all``: the score is the share of the answers that are found; ``part``: 1 if one of them is, else 0.
        new_tokens: most tokens of an answer, as RULER has them.
    """

    name: str
    title: str
    match: Match
    new_tokens: int

    def question(self, index: int) -> Question:
        """Question number ``index``, from 0 on."""


def source_of(size: Size, name: str, index: int) -> np.random.Generator:
    """The source of all that is drawn for one question."""
    return generator(size.seed, 0, index, f"ruler {name}")


def largest_fit(tokens_of: Callable[[int], int], room: int, guess: int, most: int | None = None) -> int:
    """The largest n ≥ 0 with ``tokens_of(n) <= room``; -1 if even none fits.

    Args:
        tokens_of: does not decrease with n.
        guess: where to begin; the nearer to the result, the fewer calls.
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
    """Pieces as one text, and where those with the indices ``wanted`` stand in it, in characters.

    White space at the ends of a piece is not counted as part of it.
    """
    ends = np.cumsum([len(piece) for piece in pieces])
    spans = []
    for index in wanted:
        piece = pieces[index]
        start = int(ends[index]) - len(piece)
        spans.append((start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())))
    return "".join(pieces), tuple(spans)
