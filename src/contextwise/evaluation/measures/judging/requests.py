"""The requests of a judging: prompts, order, verdicts in the judge's answers, and what they cost at most.

The roles of the prompts are the published ones (Zheng et al. 2023, Sections 3.1 and 3.4): question, answers, for math, coding
and reasoning a reference; of a later turn the whole conversation; a verdict in double brackets behind an explanation. The
words are ours.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contextwise.evaluation.kernel import content_key
from contextwise.evaluation.measures.judging.files import WITH_REFERENCE, ModelAnswers, Question

CHARACTERS_PER_TOKEN = 4
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
        turn: of the rated answer, from 1; the turns before it are shown as well.
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
    for number, (turn_text, text) in enumerate(
        zip(question.turns[:turn], answers[:turn], strict=True), start=1
    ):
        lines += [f"### Question {number}:\n{turn_text}", f"### Answer {number}:\n{text}"]
    return "\n\n".join([*lines, f"<|{title} ends|>"])


def read_rating(text: str) -> float | None:
    """The rating, 1 to 10; None without one. Of several the last counts: the explanation may name others."""
    ratings = _RATING.findall(text) or _LOOSE_RATING.findall(text)
    rating = float(ratings[-1]) if ratings else None
    return rating if rating is not None and 1 <= rating <= 10 else None


def read_verdict(text: str) -> str | None:
    """``A``, ``B`` or ``C`` (neither); None without a verdict. Of several the last counts."""
    verdicts = _VERDICT.findall(text)
    return verdicts[-1] if verdicts else None


@dataclass(frozen=True)
class Request:
    """One request to the judge.

    Attributes:
        question: of the benchmark.
        turn: the turn whose answer is judged, from 1.
        models: whose answers are shown, in that order; one to be rated, or two to be compared.
        messages: sent to the judge.
    """

    question: Question
    turn: int
    models: tuple[str, ...]
    messages: Messages

    def key(self, judge: str, parameters: Mapping[str, Any]) -> str:
        """Identifies the judge's answer: the same request to the same judge is made once."""
        return content_key(judge=judge, parameters=dict(parameters), messages=self.messages)

    def row(self) -> dict[str, Any]:
        """Its columns of ``judgments.jsonl``."""
        return {"question_id": self.question.id, "turn": self.turn, "models": list(self.models)}


def grading_requests(
    questions: Sequence[Question],
    models: Sequence[ModelAnswers],
    references: Mapping[int | str, Sequence[str]],
) -> list[Request]:
    """Every turn of every answer, to be rated."""
    return [
        Request(question, turn, (answers.model,), grading_prompt(question, texts, turn, reference))
        for question in questions
        for answers in models
        if (texts := answers.texts.get(question.id)) is not None
        for turn in range(1, min(len(question.turns), len(texts)) + 1)
        for reference in [_reference(question, references, turn)]
    ]


def comparing_requests(
    questions: Sequence[Question],
    ours: ModelAnswers,
    theirs: ModelAnswers,
    references: Mapping[int | str, Sequence[str]],
) -> list[Request]:
    """Every turn of both models' answers, to be compared, each pair in both orders."""
    return [
        Request(question, turn, names, comparing_prompt(question, a, b, turn, reference))
        for question in questions
        if question.id in ours.texts and question.id in theirs.texts
        for mine, other in [(ours.texts[question.id], theirs.texts[question.id])]
        for turn in range(1, min(len(question.turns), len(mine), len(other)) + 1)
        for reference in [_reference(question, references, turn)]
        for names, a, b in [
            ((ours.model, theirs.model), mine, other),
            ((theirs.model, ours.model), other, mine),
        ]
    ]


def _reference(
    question: Question, references: Mapping[int | str, Sequence[str]], turn: int
) -> Sequence[str] | None:
    texts = references.get(question.id, ()) if question.category in WITH_REFERENCE else ()
    return texts if len(texts) >= turn else None


@dataclass(frozen=True)
class Cost:
    """An estimate of the remaining work.

    Attributes:
        judgments: in all, of which ``kept`` exist.
        requests: to make; equal ones are made once.
        prompt_tokens: estimated from characters: the judge's tokenizer is not known.
        answer_tokens: at most, if the requests set a limit.
        dollars: at most, where prices are given.
    """

    judgments: int
    kept: int
    requests: int
    prompt_tokens: int
    answer_tokens: int | None
    dollars: float | None

    @classmethod
    def of(
        cls,
        requests: Sequence[Request],
        judgments: int,
        kept: int,
        longest: int | None,
        price_in: float | None,
        price_out: float | None,
    ) -> "Cost":
        """
        Args:
            requests: to make.
            longest: tokens of an answer, at most.
            price_in, price_out: of a million tokens.
        """
        characters = sum(len(message["content"]) for request in requests for message in request.messages)
        prompt = characters // CHARACTERS_PER_TOKEN
        answers = None if longest is None else longest * len(requests)
        dollars = None
        if price_in is not None or (price_out is not None and answers is not None):
            dollars = (prompt * (price_in or 0) + (answers or 0) * (price_out or 0)) / 1e6
        return cls(judgments, kept, len(requests), prompt, answers, dollars)

    def sentence(self) -> str:
        """As it is printed before the first request."""
        parts = [
            f"{self.judgments:,} judgments, {self.kept:,} of which exist: {self.requests:,} requests to make",
            f"about {self.prompt_tokens:,} prompt tokens ({CHARACTERS_PER_TOKEN} characters each, an estimate)",
        ]
        if self.answer_tokens is not None:
            parts.append(f"at most {self.answer_tokens:,} answer tokens")
        if self.dollars is not None:
            parts.append(f"at most about {self.dollars:,.2f} in the currency of the prices")
        return "; ".join(parts)
