"""The requests of a judging: prompts, order, verdicts in the judge's answers, and what they cost at most.

The roles of the prompts are the published ones, which :data:`ROLES` names: question, answers, for math, coding and reasoning a
reference; of a later turn the whole conversation; a verdict in double brackets after an explanation, or AlpacaEval 2.0's in one
token. The words are ours.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.special import softmax

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.progress import say
from contextwise.evaluation.kernel import content_key
from contextwise.evaluation.measures.judging.files import (
    WITH_REFERENCE,
    ModelAnswers,
    Question,
    read_answers,
    read_questions,
    read_references,
)

CHARACTERS_PER_TOKEN = 4
ROLES = {
    "rating": "Zheng et al. 2023, Section 3.1; Appendix A, Figure 6",
    "rating with reference": "Zheng et al. 2023, Section 3.4; Appendix A, Figure 10",
    "comparison": "Zheng et al. 2023, Section 3.1; Appendix A, Figure 5",
    "comparison with reference": "Zheng et al. 2023, Section 3.4; Appendix A, Figure 8",
    "later turn": "Zheng et al. 2023, Section 3.5; Appendix A, Figures 9 and 10",
    "token probabilities": "AlpacaEval 2.0 (Dubois et al. 2024), the package's evaluator weighted_alpaca_eval_gpt4_turbo",
}
"""Role of a prompt -> where it is published."""
WEIGHTED: tuple[str, ...] = ("token probabilities",)
"""The roles of a prompt whose verdict is the probability of its first token, not words."""
NAMES = ("m", "M")
"""AlpacaEval's names of the first and the second output; each is one token."""
LIKELIEST = 5
"""Tokens whose log-probabilities AlpacaEval's evaluator asks for."""

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
_CHOOSE = (
    "You are an impartial judge. A user gave two models, m and M, the same instruction; choose the output that people would "
    "prefer. The order in which the outputs stand and the names of the models must not count. Answer with the name of the "
    "model with the better output and nothing else: m or M."
)
_REFERENCE = "A correct reference answer is given: find the mistakes by comparing with it. "
_RATING = re.compile(r"\[\[(\d+(?:\.\d+)?)\]\]")
_LOOSE_RATING = re.compile(r"\[(\d+(?:\.\d+)?)\]")
_VERDICT = re.compile(r"\[\[([ABC])\]\]")


@dataclass(frozen=True)
class Request:
    """One request to the judge.

    Attributes:
        turn: the turn whose answer is judged, from 1.
        models: whose answers are shown, in that order; one to be rated, or two to be compared.
        roles: those of its prompt, from :data:`ROLES`.
    """

    question: Question
    turn: int
    models: tuple[str, ...]
    messages: list[dict[str, str]]
    roles: tuple[str, ...]

    @property
    def weighted(self) -> bool:
        """Whether the verdict is the probability of the first token, not words."""
        return self.roles == WEIGHTED

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The judge's parameters for this request: a weighted verdict is one token with its log-probabilities."""
        if not self.weighted:
            return dict(given)
        limits = {"max_tokens", "max_completion_tokens"} & given.keys() or {"max_tokens"}
        return {**given, **dict.fromkeys(sorted(limits), 1), "logprobs": True, "top_logprobs": LIKELIEST}

    def key(self, judge: str, parameters: Mapping[str, Any]) -> str:
        """Identifies the judge's answer: the same request to the same judge is made once."""
        return content_key(judge=judge, parameters=self.parameters(parameters), messages=self.messages)

    def row(self) -> dict[str, Any]:
        """Its columns of ``judgments.jsonl``."""
        return {"question_id": self.question.id, "turn": self.turn, "models": list(self.models)}


@dataclass(frozen=True)
class Match:
    """The questions and answers of a judging.

    Attributes:
        questions: of the benchmark.
        models: their answers are rated, or (a single model) compared with ``against``.
        against: the answers to compare with; None to rate.
        references: MT-Bench's reference answers.
    """

    questions: tuple[Question, ...]
    models: tuple[ModelAnswers, ...]
    against: ModelAnswers | None
    references: dict[int | str, tuple[str, ...]]

    @classmethod
    def read(
        cls,
        answers: Sequence[Path],
        against: Path | None,
        questions: Path | None,
        references: Path | None,
        limit: int | None = None,
    ) -> "Match":
        """Read the files, and check that they belong together; with a ``limit``, use only the first questions.

        Raises:
            DataError: a file cannot be read, or has answers to other questions.
            ConfigError: they do not belong together.
        """
        benchmarks, models = zip(*map(read_answers, [*answers, *([against] if against else [])]), strict=True)
        if len(set(benchmarks)) > 1:
            raise ConfigError("answers to MT-Bench and to AlpacaEval are given together; judge one benchmark at a time")
        names = [model.model for model in models]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"two files hold answers of a model called {max(names, key=names.count)!r}; give them different names with the "
                "model_id of contextwise answers"
            )
        if against is not None and len(answers) > 1:
            raise ConfigError("against is given together with several models; compare one at a time")
        # AlpacaEval's questions are in the files of answers, MT-Bench's in a file of their own.
        if benchmarks[0] == "alpaca-eval":
            if against is None:
                raise ConfigError(
                    "against is missing: AlpacaEval compares with a reference model's outputs; give their file"
                )
            chosen = models[-1].questions
        elif questions is None:
            raise ConfigError("questions is missing: MT-Bench's questions are in a file of their own; give it")
        else:
            chosen = read_questions(questions)[1]
        match = cls(
            chosen[:limit],
            models[: len(answers)],
            models[-1] if against else None,
            {} if references is None else read_references(references),
        )
        match._check()
        return match

    def _check(self) -> None:
        for answers in (*self.models, *([self.against] if self.against else [])):
            answered = sum(question.id in answers.texts for question in self.questions)
            if not answered:
                raise DataError(
                    f"the model {answers.model!r} has answered none of the questions; give the questions that it answered"
                )
            if answered < len(self.questions):
                say(f"note: {answers.model} has answered {answered:,} of {len(self.questions):,} questions")
            empty = sum(not text.strip() for texts in answers.texts.values() for text in texts)
            if empty:
                say(f"note: empty answers of {answers.model}: {empty:,}; they are judged as they are")
        lacking = [q for q in self.questions if q.category in WITH_REFERENCE and q.id not in self.references]
        if lacking:
            say(
                f"note: {len(lacking):,} questions of {', '.join(WITH_REFERENCE)} have no reference answer and are judged "
                "without; give references"
            )

    @property
    def weighable(self) -> bool:
        """Whether AlpacaEval's outputs are compared, whose verdicts may be weighted."""
        return self.against is not None and bool(self.against.questions)

    def requests(self, weighted: bool = False) -> list[Request]:
        """All requests, question by question: to rate every turn of every answer, or to compare it in both orders.

        Args:
            weighted: ask for AlpacaEval 2.0's weighted verdict.
        """
        pairs: list[tuple[ModelAnswers, ...]] = [(model,) for model in self.models]
        if self.against is not None:
            pairs = [(self.models[0], self.against), (self.against, self.models[0])]
        requests = []
        for question in self.questions:
            references = self.references.get(question.id, ()) if question.category in WITH_REFERENCE else ()
            answered = [pair for pair in pairs if all(question.id in model.texts for model in pair)]
            # Both orders of a turn stand together; each rated model has all its turns together.
            groups = [answered] if self.against else [[pair] for pair in answered]
            for group in filter(None, groups):
                shortest = min(len(model.texts[question.id]) for model in group[0])
                for turn in range(1, min(len(question.turns), shortest) + 1):
                    reference = references if len(references) >= turn else None
                    for pair in group:
                        texts = [model.texts[question.id] for model in pair]
                        if weighted:
                            messages, roles = weighted_prompt(question, texts), WEIGHTED
                        else:
                            messages, roles = (
                                judge_prompt(question, texts, turn, reference),
                                _roles(pair, turn, reference),
                            )
                        requests.append(Request(question, turn, tuple(m.model for m in pair), messages, roles))
        return requests


def judge_prompt(
    question: Question, answers: Sequence[Sequence[str]], turn: int, reference: Sequence[str] | None
) -> list[dict[str, str]]:
    """The messages that ask to rate one model's answer, or to compare two, of which the first is shown first.

    The answers of ``turn``, from 1, are judged; the turns before it are shown as well.
    """
    titles = ["Conversation"] if len(answers) == 1 else ["Assistant A", "Assistant B"]
    shown = [*([("Reference", reference)] if reference else []), *zip(titles, answers, strict=True)]
    parts = []
    for title, texts in shown:
        parts.append(f"<|{title} begins|>")
        turns = zip(question.turns[:turn], texts[:turn], strict=True)
        for number, (turn_text, text) in enumerate(turns, start=1):
            parts += [f"### Question {number}:\n{turn_text}", f"### Answer {number}:\n{text}"]
        parts.append(f"<|{title} ends|>")
    which = "" if turn == 1 else f" to question {turn}, the last one"
    system = (_GRADE if len(answers) == 1 else _COMPARE).format(which=which, reference=_REFERENCE if reference else "")
    return [{"role": "system", "content": system}, {"role": "user", "content": "\n\n".join(parts)}]


def _roles(answers: Sequence[Any], turn: int, reference: Any) -> tuple[str, ...]:
    """The roles of a prompt whose verdict is in words."""
    role = "rating" if len(answers) == 1 else "comparison"
    return (f"{role} with reference" if reference else role, *(["later turn"] if turn > 1 else []))


def weighted_prompt(question: Question, answers: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """The messages that ask for the better of two outputs by its name, one token; the first is shown first."""
    shown = [("Instruction", question.turns[0])]
    shown += [(f"Output of {name}", texts[0]) for name, texts in zip(NAMES, answers, strict=True)]
    parts = [part for title, text in shown for part in (f"<|{title} begins|>", text, f"<|{title} ends|>")]
    parts.append("Which model has the better output, m or M?")
    return [{"role": "system", "content": _CHOOSE}, {"role": "user", "content": "\n\n".join(parts)}]


def read_preference(likeliest: Mapping[str, float] | None) -> float | None:
    """AlpacaEval 2.0's weighted verdict for the first output, from 0 to 1: p(m) / (p(m) + p(M)).

    Args:
        likeliest: log-probabilities, in nats, of the likeliest first tokens; a name that is not among them has probability 0,
            as in the package's ``logprob_parser``.

    Returns:
        The verdict; None if neither name is among them.
    """
    named = [(likeliest or {}).get(name, -math.inf) for name in NAMES]
    return float(softmax(named)[0]) if max(named) > -math.inf else None


def read_rating(text: str) -> float | None:
    """The rating, 1 to 10; None without one. Of several the last counts: the explanation may name others."""
    ratings = _RATING.findall(text) or _LOOSE_RATING.findall(text)
    rating = float(ratings[-1]) if ratings else None
    return rating if rating is not None and 1 <= rating <= 10 else None


def read_verdict(text: str) -> str | None:
    """``A``, ``B`` or ``C`` (neither); None without a verdict. Of several the last counts."""
    verdicts = _VERDICT.findall(text)
    return verdicts[-1] if verdicts else None


def cost_sentence(
    requests: Sequence[Request],
    judgments: int,
    kept: int,
    longest: int | None,
    price_in: float | None,
    price_out: float | None,
) -> str:
    """An estimate of the remaining work, as it is printed before the first request.

    Of all ``judgments``, ``kept`` exist. An answer has at most ``longest`` tokens. The prices are those of a million tokens.
    """
    characters = sum(len(message["content"]) for request in requests for message in request.messages)
    prompt = characters // CHARACTERS_PER_TOKEN  # the judge's tokenizer is not known
    answers = None if longest is None else longest * len(requests)
    parts = [
        f"{judgments:,} judgments, {kept:,} of which exist: {len(requests):,} requests to make",
        f"about {prompt:,} prompt tokens ({CHARACTERS_PER_TOKEN} characters each, an estimate)",
    ]
    if answers is not None:
        parts.append(f"at most {answers:,} answer tokens")
    if price_in is not None or (price_out is not None and answers is not None):
        price = (prompt * (price_in or 0) + (answers or 0) * (price_out or 0)) / 1e6
        parts.append(f"at most about {price:,.2f} in the currency of the prices")
    return "; ".join(parts)
