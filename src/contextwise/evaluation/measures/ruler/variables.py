"""vt: variable tracking. One value goes through a chain of assignments; which variables have it? (RULER, multi-hop tracing)"""

import string

import numpy as np

from contextwise.base.errors import ConfigError
from contextwise.evaluation.answering.prompts import Question
from contextwise.evaluation.measures.ruler.questions import (
    Match,
    Size,
    distances_behind,
    draw_positions,
    join_pieces,
    largest_fit,
    position_probabilities,
    source_of,
)

NOISE = (
    "The river runs slowly. The hills are quiet. A bell rings at noon. Then nothing happens for a while.\n"
)
HOPS = 4
NAME, EXAMPLE_NAME = 5, 3  # letters of a variable's name
EXAMPLE_NOISE = 5
TASK = "Some lines of this text assign values to variables. Remember these lines, and follow the assignments.\n\n"


class VariableTracking:
    """Assignments between lines of noise: one number to a first variable, and each variable to the next.

    The positions of the assignments, between the lines of noise, are drawn by the law, no position twice; the chain runs from
    the farthest to the nearest. A model that sees all but the first assignment does not know which variables have the value.

    Args:
        example: put a worked example with fewer lines before the text, as RULER does.

    Raises:
        ConfigError: the length is too short for the chain.
    """

    name, title = "vt", "variable tracking"
    match: Match = "all"
    new_tokens = 30

    def __init__(self, size: Size, example: bool = True) -> None:
        self.size, self.example = size, example
        self.noise_tokens = max(1, size.tokens(NOISE))
        self._guess = size.length // self.noise_tokens
        least = size.tokens(self._body(0, HOPS)[0])
        if least > size.length:
            raise ConfigError(
                f"length is {size.length}, but a text of {self.name} has {least} tokens at least; give more"
            )

    def question(self, index: int) -> Question:
        lines = largest_fit(
            lambda n: self.size.tokens(self._body(index, n)[0]), self.size.length, self._guess
        )
        if lines < HOPS:
            raise ConfigError(
                f"length is {self.size.length}, too short for a text of {self.name}; give some tokens more"
            )
        self._guess = lines
        body, needles, names, value = self._body(index, lines)
        opening = TASK + (self._worked_example(index) if self.example else "")
        return Question(opening, body, _ending(value), _answer(value, len(names)), names, needles)

    def _body(self, index: int, lines: int) -> tuple[str, tuple[tuple[int, int], ...], tuple[str, ...], int]:
        draw = source_of(self.size, self.name, index)
        names, value = _chain(draw, NAME)
        distances = np.minimum(distances_behind(np.full(lines, self.noise_tokens)), self.size.length - 1)
        probabilities = position_probabilities(distances, self.size.length, self.size.gamma)
        body, needles = _text(names, value, np.sort(draw_positions(draw, probabilities, len(names))), lines)
        return body, needles, names, value

    def _worked_example(self, index: int) -> str:
        draw = source_of(self.size, f"{self.name} example", index)
        names, value = _chain(draw, EXAMPLE_NAME)
        positions = np.sort(draw.choice(EXAMPLE_NOISE + 1, len(names), replace=False))
        body = _text(names, value, positions, EXAMPLE_NOISE)[0]
        return f"{body}{_ending(value)}{_answer(value, len(names))} {', '.join(names)}\n\n{TASK}"


def _chain(draw: np.random.Generator, letters: int) -> tuple[tuple[str, ...], int]:
    """Names of the variables, all different and of equal length, so that none is part of another; and the value."""
    names: dict[str, None] = {}
    while len(names) < HOPS + 1:
        names["".join(draw.choice(list(string.ascii_uppercase), letters))] = None
    return tuple(names), int(draw.integers(10_000, 100_000))


def _text(
    names: tuple[str, ...], value: int, positions: np.ndarray, lines: int
) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Lines of noise with the assignments, in their order, before those with the indices ``positions``."""
    values = [str(value), *(f"VAR {name}" for name in names)]
    assignments = {
        int(position): f"VAR {name} = {given}\n"
        for position, name, given in zip(positions, names, values, strict=False)
    }
    pieces: list[str] = []
    wanted: list[int] = []
    for line in range(lines + 1):
        if line in assignments:
            wanted.append(len(pieces))
            pieces.append(assignments[line])
        if line < lines:
            pieces.append(NOISE)
    text, needles = join_pieces(pieces, wanted)
    return text.rstrip("\n"), needles


def _ending(value: int) -> str:
    return f"\n\nQuestion: Which variables have the value {value} in the text above?\n"


def _answer(value: int, count: int) -> str:
    return f"Answer: By the assignments in the text above, {count} variables have the value {value}:"
