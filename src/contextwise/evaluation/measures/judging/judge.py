"""A whole judging: requests, their cost, the judge's answers, and the summary.

Each answer of the judge is a line of ``judgments.jsonl``, kept at once and found again by the content of its request, so a
stopped judging resumes, and one more model costs its own requests only. Answers without a verdict are kept as well, counted
and shown. ``summary.json`` has the ratings or win rates.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import write_json
from contextwise.base.progress import interruption, progress_bar, say
from contextwise.evaluation.kernel import Journal
from contextwise.evaluation.measures.judging.endpoint import Endpoint, EndpointDown, RequestFailed
from contextwise.evaluation.measures.judging.files import (
    WITH_REFERENCE,
    ModelAnswers,
    Question,
    read_answers,
    read_questions,
    read_references,
)
from contextwise.evaluation.measures.judging.length import check_package, length_controlled
from contextwise.evaluation.measures.judging.requests import (
    Cost,
    Request,
    comparing_requests,
    grading_requests,
    read_rating,
    read_verdict,
)
from contextwise.evaluation.measures.judging.results import summarize

JUDGMENTS, SUMMARY = "judgments.jsonl", "summary.json"
MOST_FAILURES = 5
"""Failures in a row that stop a judging: the endpoint is at fault, not the requests."""


@dataclass(frozen=True)
class Match:
    """The questions and answers of a judging.

    Attributes:
        questions: of the benchmark.
        models: their answers are rated, or (one) compared with ``against``.
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
        """Read the files, and check that they belong together.

        Args:
            limit: the first so many questions only.

        Raises:
            DataError: a file cannot be read, or has answers to other questions.
            ConfigError: they do not belong together.
        """
        read = [read_answers(path) for path in (*answers, *([] if against is None else [against]))]
        benchmarks, models = {benchmark for benchmark, _ in read}, [answers for _, answers in read]
        if len(benchmarks) > 1:
            raise ConfigError(
                "answers to MT-Bench and to AlpacaEval are given together; judge one benchmark at a time"
            )
        _check_names([model.model for model in models])
        other = models.pop() if against is not None else None
        if other is not None and len(models) > 1:
            raise ConfigError("several models are given together with --against; compare one at a time")
        every = _questions("alpaca-eval" in benchmarks, other, questions)
        kept = {} if references is None else read_references(references)
        match = cls(every[:limit], tuple(models), other, kept)
        match._check()
        return match

    def _check(self) -> None:
        for answers in (*self.models, *([] if self.against is None else [self.against])):
            known = sum(question.id in answers.texts for question in self.questions)
            if not known:
                raise DataError(
                    f"the model {answers.model!r} has answered none of the questions; give the questions that it answered"
                )
            if known < len(self.questions):
                say(f"note: {answers.model} has answered {known:,} of {len(self.questions):,} questions")
            empty = sum(not text.strip() for texts in answers.texts.values() for text in texts)
            if empty:
                say(f"note: empty answers of {answers.model}: {empty:,}; they are judged as they are")
        lacking = [q for q in self.questions if q.category in WITH_REFERENCE and q.id not in self.references]
        if lacking:
            say(
                f"note: {len(lacking):,} questions of {', '.join(WITH_REFERENCE)} have no reference answer and are judged "
                "without; give --references"
            )

    def requests(self) -> list[Request]:
        """All requests, question by question."""
        if self.against is None:
            return grading_requests(self.questions, self.models, self.references)
        return comparing_requests(self.questions, self.models[0], self.against, self.references)


def _check_names(names: list[str]) -> None:
    if len(set(names)) < len(names):
        raise ConfigError(
            f"two files hold answers of a model called {max(names, key=names.count)!r}; "
            "let `contextwise answers --model-id` give them different names"
        )


def _questions(alpaca_eval: bool, other: ModelAnswers | None, file: Path | None) -> tuple[Question, ...]:
    """The questions: AlpacaEval's are in the file of answers, MT-Bench's in a file of their own."""
    if alpaca_eval:
        if other is None:
            raise ConfigError(
                "AlpacaEval compares with a reference model's outputs; give their file with --against"
            )
        return other.questions
    if file is None:
        raise ConfigError(
            "the answers are MT-Bench's, whose questions are in a file of their own; give --questions"
        )
    return read_questions(file)[1]


def judge_answers(
    match: Match,
    endpoint: Endpoint,
    out: Path,
    *,
    concurrency: int = 4,
    price_in: float | None = None,
    price_out: float | None = None,
    dry_run: bool = False,
    length_control: bool = False,
) -> dict[str, Any] | None:
    """Judge what has not been judged yet, and summarize all judgments.

    Args:
        out: folder for ``judgments.jsonl`` and ``summary.json``.
        concurrency: requests at once.
        price_in, price_out: of a million tokens, for the estimate that is printed first.
        dry_run: print the estimate, and make no request.
        length_control: add AlpacaEval's length-controlled win rate.

    Returns:
        The summary; None for a dry run. It holds how many judgments are ``missing``, because requests failed or the process was
        asked to stop, and why: the same call makes those requests again.

    Raises:
        ConfigError: a setting is wrong, or the endpoint refuses everything.
        DataError: the files cannot be read or written.
    """
    if concurrency < 1:
        raise ConfigError(f"--concurrency is {concurrency}; give at least 1")
    if length_control:
        check_package(match.against)
    requests = [(request.key(endpoint.model, endpoint.parameters), request) for request in match.requests()]
    if not requests:
        raise DataError("the two models have answered no question in common; there is nothing to compare")
    with Journal.opened(out / JUDGMENTS) as journal:
        # Equal requests (two models that answered alike) are made once.
        missing = {key: request for key, request in requests if key not in journal.rows}
        judging = Judging(endpoint, journal, missing)
        longest = endpoint.parameters.get("max_completion_tokens", endpoint.parameters.get("max_tokens"))
        kept = sum(key in journal.rows for key, _ in requests)
        say(Cost.of(list(missing.values()), len(requests), kept, longest, price_in, price_out).sentence())
        if dry_run:
            return None
        with interruption.listening():
            judging.run(concurrency)
        rows = [{**journal.rows[key], **request.row()} for key, request in requests if key in journal.rows]
    if not rows:
        raise ConfigError(f"nothing was judged: {judging.why()}; check --endpoint and --judge-model")
    summary = {
        **summarize(match.questions, match.models, match.against, rows),
        "judge": endpoint.model,
        "endpoint": endpoint.url,
        "parameters": endpoint.parameters,
        "missing": len(requests) - len(rows),
        "why_missing": judging.why() if len(rows) < len(requests) else None,
        "length_controlled": None,
    }
    write_json(out / SUMMARY, summary, "the summary")
    if length_control and match.against is not None:
        summary["length_controlled"] = length_controlled(match.models[0], match.against, rows)
        write_json(out / SUMMARY, summary, "the summary")
    return summary


class Judging:
    """The missing requests, made by several threads.

    Args:
        missing: key -> request.
    """

    def __init__(self, endpoint: Endpoint, journal: Journal, missing: dict[str, Request]) -> None:
        self.endpoint, self.journal = endpoint, journal
        self.waiting = deque(missing.items())
        self.failures: list[str] = []
        self.stopped: str | None = None
        self.fatal: Exception | None = None
        self._in_a_row = 0
        self._counting = threading.Lock()

    def run(self, concurrency: int) -> None:
        """Make all requests.

        Raises:
            ConfigError, DataError: an error that makes all other requests fail too.
        """
        if not self.waiting:
            return
        client = self.endpoint.client()
        with (
            client,
            progress_bar("judge", len(self.waiting), "requests") as advance,
            ThreadPoolExecutor(concurrency) as pool,
        ):
            for done in [pool.submit(self._work, client, advance) for _ in range(concurrency)]:
                done.result()
        if self.fatal is not None:
            raise self.fatal

    def _work(self, client: Any, advance: Callable[..., None]) -> None:
        while self.fatal is None and self.stopped is None:
            if interruption.requested:
                self.stopped = "stopped by a signal"
                return
            try:
                key, request = self.waiting.popleft()
            except IndexError:
                return
            try:
                self._ask(client, key, request)
            except (RequestFailed, EndpointDown) as error:
                self._failed(request, error)
            except Exception as error:
                self.fatal = error
            advance()

    def _ask(self, client: Any, key: str, request: Request) -> None:
        answer = self.endpoint.ask(client, request.messages)
        verdict = read_rating(answer["text"]) if len(request.models) == 1 else read_verdict(answer["text"])
        self.journal.add(
            {
                "key": key,
                **request.row(),
                "judge": self.endpoint.model,
                "user_prompt": request.messages[-1]["content"],
                "judgment": answer.pop("text"),
                "verdict": verdict,
                **answer,
                "tstamp": time.time(),
            }
        )
        with self._counting:
            self._in_a_row = 0

    def _failed(self, request: Request, error: Exception) -> None:
        with self._counting:
            self.failures.append(f"question {_short(request.question.id)}, turn {request.turn}: {error}")
            self._in_a_row += 1
            if isinstance(error, EndpointDown):
                self.stopped = f"nothing answers at {self.endpoint.url} ({error})"
            elif self._in_a_row >= MOST_FAILURES:
                self.stopped = f"{self._in_a_row} requests failed one after the other, the last: {error}"

    def why(self) -> str:
        """Why judgments are missing."""
        if self.stopped is not None:
            return self.stopped
        if len(self.failures) == 1:
            return f"1 request failed, {self.failures[0]}"
        return f"{len(self.failures):,} requests failed, the first: {self.failures[0]}"


def _short(question: int | str) -> str:
    return repr(question[:40]) if isinstance(question, str) else str(question)
