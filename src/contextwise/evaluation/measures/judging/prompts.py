"""What a judge is asked, and how its verdict is read (Zheng et al. 2023, Sections 3.1 and 3.4).

The roles are the published ones (question, answers, for math, coding and reasoning a reference; of a later turn the whole
conversation; a verdict in double brackets behind an explanation), the words are ours.
"""

import re
from collections.abc import Sequence

from contextwise.evaluation.measures.judging.files import Question

Messages = list[dict[str, str]]

_GRADE = (
    "You are an impartial judge. A user talked to an assistant; rate the assistant's answer{which}. Consider whether it "
    "does what was asked, and whether it is correct, relevant, thorough, clear and, where that is wanted, creative. {reference}"
    "First explain your judgment in a few sentences. Then give a rating from 1 (useless) to 10 (excellent) on a line of its "
    "own, in exactly this form: Rating: [[5]]"
)
_COMPARE = (
    "You are an impartial judge. A user asked two assistants, A and B, the same; decide which of them answered better{which}. "
    "Consider whether they do what was asked, and whether they are correct, relevant, thorough, clear and, where that is "
    "wanted, creative. {reference}The order in which the assistants stand, their names and the mere length of an answer must "
    "not count. First explain your judgment in a few sentences. Then give your verdict on a line of its own, in exactly this "
    "form: [[A]] if A is better, [[B]] if B is better, [[C]] if neither is."
)
_REFERENCE = "A correct reference answer is given: find the mistakes by comparing with it. "
_RATING = re.compile(r"\[\[(\d+(?:\.\d+)?)\]\]")
_LOOSE_RATING = re.compile(r"\[(\d+(?:\.\d+)?)\]")
_VERDICT = re.compile(r"\[\[([ABC])\]\]")


def grading_prompt(
    question: Question, answer: Sequence[str], turn: int, reference: Sequence[str] | None
) -> Messages:
    """The request to rate one answer.

    Args:
        turn: which turn's answer is rated, from 1; the turns before it are shown as well.
    """
    parts = [] if reference is None else [_conversation("Reference", question, reference, turn)]
    parts.append(_conversation("Conversation", question, answer, turn))
    return _messages(_GRADE, turn, reference, parts)


def comparing_prompt(
    question: Question, a: Sequence[str], b: Sequence[str], turn: int, reference: Sequence[str] | None
) -> Messages:
    """The request to compare two answers, of which ``a`` is shown first."""
    parts = [] if reference is None else [_conversation("Reference", question, reference, turn)]
    parts.append(_conversation("Assistant A", question, a, turn))
    parts.append(_conversation("Assistant B", question, b, turn))
    return _messages(_COMPARE, turn, reference, parts)


def _messages(text: str, turn: int, reference: Sequence[str] | None, parts: list[str]) -> Messages:
    which = "" if turn == 1 else f" to question {turn}, the last one"
    system = text.format(which=which, reference="" if reference is None else _REFERENCE)
    return [{"role": "system", "content": system}, {"role": "user", "content": "\n\n".join(parts)}]


def _conversation(title: str, question: Question, answers: Sequence[str], turn: int) -> str:
    lines = [f"<|{title} begins|>"]
    for number, (asked, answered) in enumerate(
        zip(question.turns[:turn], answers[:turn], strict=True), start=1
    ):
        lines += [f"### Question {number}:\n{asked}", f"### Answer {number}:\n{answered}"]
    return "\n\n".join([*lines, f"<|{title} ends|>"])


def read_rating(text: str) -> float | None:
    """The rating, 1 to 10; None where there is none. Of several the last counts: the explanation may name others."""
    found = _RATING.findall(text) or _LOOSE_RATING.findall(text)
    rating = float(found[-1]) if found else None
    return rating if rating is not None and 1 <= rating <= 10 else None


def read_verdict(text: str) -> str | None:
    """``A``, ``B`` or ``C`` (neither); None where there is no verdict. Of several the last counts."""
    found = _VERDICT.findall(text)
    return found[-1] if found else None
