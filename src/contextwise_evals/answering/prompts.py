"""Prompts of questions on texts, of which only the nearest part is visible; and their answers, in batches that resume.

Before and after the text's last ``visible`` tokens, a prompt has the same token ids at every visible context.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jinja2 import TemplateError

from contextwise.base.errors import one_line
from contextwise.measures import Subject, Work
from contextwise.settings import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from contextwise_evals.answering.readers import ModelReader

Key = tuple[str, int, int]
"""An answer's task, visible context, and question."""
MOST_MARKS = 1_000_000
"""The most characters that a chat template adds to a conversation, such as a description of tools."""
_MARK = "\N{WHITE SQUARE}text\N{WHITE SQUARE}"


@dataclass(frozen=True)
class Prompt:
    """A question as token ids; ``head`` and ``tail`` are never cut."""

    head: tuple[int, ...]
    body: tuple[int, ...]
    tail: tuple[int, ...]

    def prompt(self, visible: int) -> list[int]:
        """Token ids (T,) with the nearest ``visible`` tokens of the body, or all of it where it is shorter."""
        return [*self.head, *self.body[max(0, len(self.body) - visible) :], *self.tail]


def body_lengths(prompts: "Sequence[Prompt]") -> dict[str, float]:
    """The mean, the least and the most tokens of the prompts' bodies."""
    lengths = [len(prompt.body) for prompt in prompts]
    return {"mean": sum(lengths) / len(lengths), "least": min(lengths), "most": max(lengths)}


@dataclass(frozen=True)
class Question:
    """One question on a text; a model reads ``opening + body + ending``, and then ``answer_prefix``, which it continues.

    Only ``body``, the text, may be cut. ``needles`` are (start, end) of each part of it that the answer depends on, characters.
    """

    opening: str
    body: str
    ending: str
    answer_prefix: str
    answers: tuple[str, ...]
    needles: tuple[tuple[int, int], ...]


class Needle(NamedTuple):
    """Part of a text that an answer depends on: tokens ``behind`` its last one, and ``reach``, from its first to the end."""

    behind: int
    reach: int


@dataclass(frozen=True)
class Encoded(Prompt):
    """A question on a text as token ids."""

    question: Question
    needles: tuple[Needle, ...]

    def in_view(self, visible: int) -> float:
        """Share of the needles that lie wholly within the nearest ``visible`` tokens."""
        return sum(needle.reach <= visible for needle in self.needles) / len(self.needles)


class Encoder:
    """Turns questions into token ids for one model, whose ``name`` stands in errors.

    With ``chat`` a question becomes a user's message in the tokenizer's chat template, without thinking, and the model
    continues the answer's beginning.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", chat: bool = False, name: str = "the model") -> None:
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
        head, tail = self._around(question)
        coded = self.tokenizer(
            question.body, add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=True
        )
        needles = _needles(question.needles, coded["offset_mapping"])
        return Encoded(tuple(head), tuple(coded["input_ids"]), tuple(tail), question, needles)

    def _around(self, question: Question) -> tuple[list[int], list[int]]:
        """Token ids before and after the body."""
        if not self.chat:
            whole, first = self.tokenizer("a").input_ids, self.ids("a")[:1]
            special = whole[: whole.index(first[0])] if first and first[0] in whole else []
            return special + self.ids(question.opening), self.ids(question.ending + question.answer_prefix)
        message = {"role": "user", "content": f"{question.opening}{_MARK}{question.ending}".rstrip()}
        text = apply_template(self.tokenizer, [message], "leave --chat out", tokenize=False, enable_thinking=False)
        parts = str(text).split(_MARK)
        if len(parts) != 2:
            raise ConfigError(f"the chat template of {self.name} changes a user's message")
        head, tail = (self.tokenizer(part, add_special_tokens=False).input_ids for part in parts)
        return head, tail + self.ids(question.answer_prefix)

    def ids(self, text: str) -> list[int]:
        """Token ids of a text, without special ones."""
        return self.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids


def apply_template(
    tokenizer: "PreTrainedTokenizerBase", messages: list[dict[str, str]], fix: str, **options: Any
) -> Any:
    """A conversation in a tokenizer's chat template, up to where the next answer begins.

    A ConfigError, which ends in ``fix``, if the template, a program of the model's author, fails, leaves the last message out,
    or writes a flood.
    """
    asked, given = messages[-1]["content"].strip(), sum(len(message["content"]) for message in messages)
    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, **options | {"tokenize": False})
        if asked not in text:
            raise ValueError("it leaves the question out")
        if len(text) > 2 * given + MOST_MARKS:
            raise ValueError(f"it writes {len(text):,} characters for {given:,}")
        made = tokenizer.apply_chat_template(messages, add_generation_prompt=True, **options)
        if not (made if isinstance(made, str) else made["input_ids"]):
            raise ValueError("it writes nothing")
        return made
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        raise ConfigError(
            f"the model's chat template refuses the conversation ({one_line(error, 100)}); {fix}"
        ) from None


def check_vocabulary(subject: Subject, questions: Iterable[Prompt]) -> None:
    """Raise a CheckpointError if the questions have token ids that the model's vocabulary lacks."""
    from contextwise.measures import check_tokens

    check_tokens(max(max(question.prompt(len(question.body)), default=0) for question in questions), subject.model)


def check_positions(
    subject: Subject,
    questions: Iterable[tuple[str, Prompt, int]],
    visible: int,
    further: str = "",
    setting: str = "`visible`",
) -> None:
    """Raise a ConfigError if the longest prompt with its answer does not fit into the model's positions.

    ``questions`` are (name in the message, question, most tokens of its answer); ``setting`` is what sets ``visible``, the
    tokens of the body, and ``further`` another fix than a smaller one.
    """
    limit, questions = subject.positions, list(questions)
    sizes = [(len(question.prompt(visible)) + new, name) for name, question, new in questions]
    needed, longest = max(sizes, key=lambda pair: pair[0])
    if limit is None or needed <= limit:
        return
    room = limit - max(len(question.head) + len(question.tail) + new for _, question, new in questions)
    fix = f"give {setting} {room:,} at most" if room > 0 else "give questions or answers with fewer tokens"
    raise ConfigError(
        f"{subject.source} has {limit:,} positions, but {longest} needs {needed:,} with its answer at {setting} {visible:,}; "
        f"{fix}{further}"
    )


def _needles(spans: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]]) -> tuple[Needle, ...]:
    """Positions of the tokens that hold the characters of each span; ``offsets`` are each token's (first, after the last)."""
    token_starts, token_stops = np.array(offsets).reshape(-1, 2).T
    starts, stops = np.array(spans).reshape(-1, 2).T
    first = np.searchsorted(token_stops, starts, side="right")
    last = np.searchsorted(token_starts, stops, side="left") - 1
    count = len(offsets)
    return tuple(Needle(count - 1 - b, count - a) for a, b in zip(first.tolist(), last.tolist(), strict=True))


def answer_all(
    reader: "ModelReader",
    questions: Mapping[str, Sequence[Prompt]],
    new_tokens: Mapping[str, int],
    visible: Iterable[int],
    work: Work,
    *,
    batch_tokens: int,
    mixed_up_to: float = math.inf,
    title: str = "answer",
) -> dict[Key, str]:
    """Answer the questions of each task at each visible context that the unfinished work lacks; returns all answers.

    The batches, of one task and one context each, depend on the arguments alone. ``new_tokens``: most tokens of an answer.
    """
    from contextwise.measures import batches

    groups = [*product(sorted(visible, reverse=True), questions.items())]
    keys = [(task, context, index) for context, (task, encoded) in groups for index in range(len(encoded))]

    def in_batches() -> Iterator[np.ndarray]:
        first = 0
        for context, (task, encoded) in groups:
            lengths = np.array([len(question.prompt(context)) + new_tokens[task] for question in encoded])
            yield from (first + batch for batch in batches(lengths, batch_tokens, mixed_up_to))
            first += len(encoded)

    def answered(rows: list[int]) -> list[dict[str, Any]]:
        task, context, _ = keys[rows[0]]
        prompts = [questions[task][keys[row][2]].prompt(context) for row in rows]
        return [{"answer": text} for text in reader.answer(prompts, new_tokens[task])]

    rows = work.rows("answers", len(keys), in_batches(), answered, title)
    return {key: row["answer"] for key, row in zip(keys, rows, strict=True)}
