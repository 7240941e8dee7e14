"""Batches of prompts and their answers, kept as soon as they are there: a stopped measurement resumes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from contextwise.base.progress import interruption, progress_bar
from contextwise.evaluation.answering.prompts import Prompted
from contextwise.evaluation.kernel import Work

Key = tuple[str, int, int]
"""An answer's task, visible context, and question."""


class Reader(Protocol):
    """Something that answers."""

    def answer(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[str]:
        """The texts written behind prompts of token ids, at most ``new_tokens`` tokens each."""


@dataclass(frozen=True)
class Batch:
    """Questions of one task that are answered together, at one visible context."""

    task: str
    visible: int
    indices: tuple[int, ...]
    new_tokens: int

    def keys(self) -> list[Key]:
        return [(self.task, self.visible, index) for index in self.indices]


def plan_batches(
    questions: Mapping[str, Sequence[Prompted]],
    new_tokens: dict[str, int],
    visible: Sequence[int],
    batch_tokens: int,
) -> list[Batch]:
    """All batches of a measurement, the longest prompts first, so that one too large for the memory fails at once.

    The plan depends on nothing but the arguments. So an answer comes from the same batch, with the same rounding, however often
    a measurement is interrupted.
    """
    batches = []
    for context in sorted(visible, reverse=True):
        for task, encoded in questions.items():
            longest = max(len(question.prompt(context)) for question in encoded) + new_tokens[task]
            batches += split(task, context, range(len(encoded)), new_tokens[task], longest, batch_tokens)
    return batches


def split(
    task: str, visible: int, indices: Sequence[int], new_tokens: int, longest: int, batch_tokens: int
) -> list[Batch]:
    """Questions in batches of at most ``batch_tokens`` positions, in their order; a batch has at least one.

    Args:
        longest: tokens of the longest prompt and its answer.
    """
    rows = max(1, batch_tokens // longest)
    return [
        Batch(task, visible, tuple(indices[first : first + rows]), new_tokens)
        for first in range(0, len(indices), rows)
    ]


def answer_all(
    reader: Reader,
    questions: Mapping[str, Sequence[Prompted]],
    batches: Sequence[Batch],
    work: Work,
    title: str = "answer",
) -> dict[Key, str]:
    """Answer what the unfinished work lacks.

    Args:
        title: of the progress bar.

    Returns:
        (task, visible, index) -> the answer.

    Raises:
        Interrupted: the process was asked to stop; the work holds all answers so far.
    """
    total = sum(len(batch.indices) for batch in batches)
    with work.journal("answers", _key) as journal, progress_bar(title, total, "answers") as advance:
        for batch in batches:
            keys = batch.keys()
            if not all(key in journal.rows for key in keys):
                interruption.check(f"stopped after {len(journal.rows):,} of {total:,} answers")
                prompts = [questions[batch.task][index].prompt(batch.visible) for index in batch.indices]
                answers = reader.answer(prompts, batch.new_tokens)
                journal.add(
                    *(
                        {"task": task, "visible": visible, "index": index, "answer": answer}
                        for (task, visible, index), answer in zip(keys, answers, strict=True)
                    )
                )
            advance(len(keys), note=f"{batch.task}, {batch.visible:,} visible")
        return {_key(row): row["answer"] for row in journal.rows.values()}


def _key(row: dict[str, Any]) -> Key:
    return row["task"], row["visible"], row["index"]
