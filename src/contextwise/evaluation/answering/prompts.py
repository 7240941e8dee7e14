"""Prompts of questions on texts, of which only the nearest part is visible.

A prompt is three sequences of token ids: what precedes the text, the text's last ``visible`` tokens, and what follows it (the
question and the beginning of the answer). The first and the third are always whole. For a chat model they hold the marks of
its template too. So a text is cut at exact numbers of tokens, and everything else is the same at every visible context.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from contextwise.base.errors import ConfigError
from contextwise.evaluation.kernel import Subject

_MARK = "\N{WHITE SQUARE}text\N{WHITE SQUARE}"


class Prompted(Protocol):
    """A question as token ids: ``head``, ``body``, ``tail``. Only the body may be cut."""

    @property
    def head(self) -> Sequence[int]: ...

    @property
    def body(self) -> Sequence[int]: ...

    @property
    def tail(self) -> Sequence[int]: ...

    def prompt(self, visible: int) -> list[int]:
        """Token ids (T,) with ``visible`` tokens of the body."""


@dataclass(frozen=True)
class Question:
    """One question on a text; a model reads ``opening + body + ending``, and then ``answer_prefix``.

    Attributes:
        opening: precedes the text: what is to be done, and a worked example where the task has one.
        body: the text, the only part that may be cut.
        ending: the question.
        answer_prefix: the beginning of the answer, which the model continues.
        answers: looked for in the model's answer.
        needles: (start, end) of each part of ``body`` that the answer depends on, in characters.
    """

    opening: str
    body: str
    ending: str
    answer_prefix: str
    answers: tuple[str, ...]
    needles: tuple[tuple[int, int], ...]


class Needle(NamedTuple):
    """Position of a part of the text that the answer depends on, in tokens.

    Attributes:
        behind: tokens of the text behind its last token: its distance from the end.
        reach: tokens from its first token to the end of the text: the smallest visible context that holds all of it.
    """

    behind: int
    reach: int


@dataclass(frozen=True)
class Encoded:
    """A question as token ids; ``head`` and ``tail`` are never cut."""

    question: Question
    head: tuple[int, ...]
    body: tuple[int, ...]
    tail: tuple[int, ...]
    needles: tuple[Needle, ...]

    def prompt(self, visible: int) -> list[int]:
        """Token ids (T,) with the nearest ``visible`` tokens of the text, or all of it where it is shorter."""
        return [*self.head, *self.body[max(0, len(self.body) - visible) :], *self.tail]

    def in_view(self, visible: int) -> float:
        """Share of the needles that lie wholly within the nearest ``visible`` tokens."""
        return sum(needle.reach <= visible for needle in self.needles) / len(self.needles)


class Encoder:
    """Turns questions into token ids for one model.

    Args:
        tokenizer: the model's.
        chat: put the question into the tokenizer's chat template, as a user's message; the model continues the answer's
            beginning. Thinking is switched off in templates that have it.
        name: of the model in errors.

    Raises:
        ConfigError: the tokenizer has no character offsets (it is not a fast one), or no chat template.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, chat: bool = False, name: str = "the model"
    ) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(
                f"the tokenizer of {name} gives no character offsets of its tokens; "
                "convert it to a tokenizer.json (a fast tokenizer)"
            )
        if chat and not tokenizer.chat_template:
            raise ConfigError(f"chat is given, but {name} has no chat template; leave chat out")
        self.tokenizer, self.chat, self.name = tokenizer, chat, name

    def count(self, text: str) -> int:
        """Number of tokens of a text, without special ones."""
        return len(self.ids(text))

    def encode(self, question: Question) -> Encoded:
        """The parts of a question as token ids, and the positions of its needles."""
        head, tail = self._frame(question)
        coded = self.tokenizer(
            question.body, add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=True
        )
        needles = _needles(question.needles, coded["offset_mapping"])
        return Encoded(question, tuple(head), tuple(coded["input_ids"]), tuple(tail), needles)

    def _frame(self, question: Question) -> tuple[list[int], list[int]]:
        if not self.chat:
            opening = [*self._opening_tokens(), *self.ids(question.opening)]
            return opening, self.ids(question.ending + question.answer_prefix)
        message = {"role": "user", "content": f"{question.opening}{_MARK}{question.ending}".rstrip()}
        text = self.tokenizer.apply_chat_template(
            [message], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        parts = str(text).split(_MARK)
        if len(parts) != 2:
            raise ConfigError(f"the chat template of {self.name} does not show a user's message as it is")
        ids = [self.tokenizer(part, add_special_tokens=False).input_ids for part in parts]
        return ids[0], ids[1] + self.ids(question.answer_prefix)

    def _opening_tokens(self) -> list[int]:
        """Special tokens that the tokenizer puts before a text."""
        whole = self.tokenizer("a").input_ids
        first = self.ids("a")[:1]
        return whole[: whole.index(first[0])] if first and first[0] in whole else []

    def ids(self, text: str) -> list[int]:
        """Token ids of a text, without special ones."""
        return self.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids


def check_vocabulary(subject: Subject, questions: Iterable[Prompted]) -> None:
    """
    Raises:
        ConfigError: the tokenizer made ids that the model does not know.
    """
    highest = max(max(question.prompt(len(question.body)), default=0) for question in questions)
    size = int(subject.model.get_input_embeddings().weight.shape[0])
    if highest >= size:
        raise ConfigError(
            f"the tokenizer of {subject.source} made the token {highest}, but the model has a vocabulary of {size}; "
            "save the model's own tokenizer with it"
        )


def check_positions(
    subject: Subject, questions: Iterable[tuple[str, Prompted, int]], visible: int, further: str = ""
) -> None:
    """
    Args:
        questions: name in the message, question, most tokens of its answer.
        visible: tokens of the body.
        further: another way out than a smaller visible context.

    Raises:
        ConfigError: prompt and answer do not fit into the model's positions.
    """
    limit = subject.positions
    if limit is None:
        return
    questions = list(questions)
    needed, name = max(
        ((len(question.prompt(visible)) + new, name) for name, question, new in questions),
        key=lambda pair: pair[0],
    )
    if needed <= limit:
        return
    room = limit - max(len(question.head) + len(question.tail) + new for _, question, new in questions)
    fix = (
        f"give at most {room:,} visible tokens" if room > 0 else "give questions or answers with fewer tokens"
    )
    raise ConfigError(
        f"{subject.source} has {limit:,} positions, but {name} needs {needed:,} with its answer at a visible context of "
        f"{visible:,}; {fix}{further}"
    )


def _needles(spans: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]]) -> tuple[Needle, ...]:
    """Positions of the tokens that hold the characters of each span; ``offsets`` are each token's (first, behind the last)."""
    begins, ends = np.array(offsets).reshape(-1, 2).T
    starts, stops = np.array(spans).reshape(-1, 2).T
    first = np.searchsorted(ends, starts, side="right")
    last = np.searchsorted(begins, stops, side="left") - 1
    count = len(offsets)
    return tuple(Needle(count - 1 - b, count - a) for a, b in zip(first.tolist(), last.tolist(), strict=True))
