"""The requests of a judging: which answers to which questions, in which order, and what they will cost about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contextwise.evaluation.kernel.journal import content_key
from contextwise.evaluation.measures.judging.files import WITH_REFERENCE, Answers, Question
from contextwise.evaluation.measures.judging.prompts import Messages, comparing_prompt, grading_prompt

CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class Request:
    """One question to the judge.

    Attributes:
        question: that was answered.
        turn: whose answer is judged, from 1.
        models: whose answers are shown, in that order; one to be rated, or two to be compared.
        messages: what the judge is sent.
    """

    question: Question
    turn: int
    models: tuple[str, ...]
    messages: Messages

    def key(self, judge: str, parameters: Mapping[str, Any]) -> str:
        """What the judge's answer depends on: the same request to the same judge is made once."""
        return content_key(judge=judge, parameters=dict(parameters), messages=self.messages)

    def row(self) -> dict[str, Any]:
        """How it is written down."""
        return {"question_id": self.question.id, "turn": self.turn, "models": list(self.models)}


def grading_requests(
    questions: Sequence[Question],
    models: Sequence[Answers],
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
    ours: Answers,
    theirs: Answers,
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
    """What is still to be asked, about.

    Attributes:
        judgments: that are wanted, and how many of them are ``kept`` from before.
        requests: that are to be made: equal ones once.
        prompt_tokens: about, by the characters: nothing is known of the judge's tokenizer.
        answer_tokens: at most, if the endpoint is told a limit.
        dollars: for all of that, where prices are given.
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
            requests: that are to be made.
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
        """As it is told before the first request."""
        parts = [
            f"{self.judgments:,} judgments, {self.kept:,} of them there already: {self.requests:,} requests to make",
            f"about {self.prompt_tokens:,} prompt tokens ({CHARACTERS_PER_TOKEN} characters each, an estimate)",
        ]
        if self.answer_tokens is not None:
            parts.append(f"at most {self.answer_tokens:,} answer tokens")
        if self.dollars is not None:
            parts.append(f"at most about {self.dollars:,.2f} in the currency of the prices")
        return "; ".join(parts)
