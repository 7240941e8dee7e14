"""A whole judging: requests, what it will cost, the judge's answers, and what they come to.

Each answer of the judge is a line of ``judgments.jsonl``, kept as soon as it is there and found again by the content of its
request, so a stopped judging goes on where it was, and one more model costs its own requests only. Answers without a verdict
are kept as well, counted and shown. ``summary.json`` says what it all comes to.
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
from contextwise.base.progress import progress_bar, say
from contextwise.evaluation.kernel.journal import Journal
from contextwise.evaluation.measures.judging.endpoint import Endpoint, EndpointDown, RequestFailed
from contextwise.evaluation.measures.judging.files import (
    WITH_REFERENCE,
    Answers,
    Question,
    read_answers,
    read_questions,
    read_references,
)
from contextwise.evaluation.measures.judging.length import check_package, length_controlled
from contextwise.evaluation.measures.judging.planning import (
    Cost,
    Request,
    comparing_requests,
    grading_requests,
)
from contextwise.evaluation.measures.judging.prompts import read_rating, read_verdict
from contextwise.evaluation.measures.judging.results import summarize

JUDGMENTS, SUMMARY = "judgments.jsonl", "summary.json"
MOST_FAILURES = 5
"""So many requests failing one after the other stop a judging: the endpoint is at fault, not the requests."""


@dataclass(frozen=True)
class Match:
    """What is judged.

    Attributes:
        questions: of the benchmark.
        models: whose answers are rated, or (one) compared with ``against``.
        against: the answers to compare with; None to rate.
        references: MT-Bench's reference answers.
    """

    questions: tuple[Question, ...]
    models: tuple[Answers, ...]
    against: Answers | None
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
        benchmarks, models = {benchmark for benchmark, _ in read}, [found for _, found in read]
        if len(benchmarks) > 1:
            raise ConfigError(
                "answers to MT-Bench and to AlpacaEval are given together; judge one benchmark at a time"
            )
        _check_names([model.model for model in models])
        other = models.pop() if against is not None else None
        if other is not None and len(models) > 1:
            raise ConfigError("several models are given together with --against; compare one at a time")
        asked = _questions("alpaca-eval" in benchmarks, other, questions)
        kept = {} if references is None else read_references(references)
        match = cls(asked[:limit], tuple(models), other, kept)
        match._check()
        return match

    def _check(self) -> None:
        for answers in (*self.models, *([] if self.against is None else [self.against])):
            known = sum(question.id in answers.texts for question in self.questions)
            if not known:
                raise DataError(
                    f"the model {answers.model!r} has answered none of the questions; give the questions it was asked"
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
                "without; --references names a file with them"
            )

    def requests(self) -> list[Request]:
        """All the requests, question by question."""
        if self.against is None:
            return grading_requests(self.questions, self.models, self.references)
        return comparing_requests(self.questions, self.models[0], self.against, self.references)


def _check_names(names: list[str]) -> None:
    if len(set(names)) < len(names):
        raise ConfigError(
            f"two files hold answers of a model called {max(names, key=names.count)!r}; "
            "let `contextwise answers --model-id` give them different names"
        )


def _questions(alpaca_eval: bool, other: Answers | None, file: Path | None) -> tuple[Question, ...]:
    """The questions that were answered: AlpacaEval's stand with the answers, MT-Bench's in a file of their own."""
    if alpaca_eval:
        if other is None:
            raise ConfigError(
                "AlpacaEval compares with a reference model's outputs; name their file with --against"
            )
        return other.questions
    if file is None:
        raise ConfigError(
            "the answers are MT-Bench's, whose questions lie in a file of their own; give --questions"
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
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, Any] | None:
    """Judge what has not been judged yet, and sum everything up.

    Args:
        out: folder for ``judgments.jsonl`` and ``summary.json``.
        concurrency: requests at once.
        price_in, price_out: of a million tokens, for the estimate that is told first.
        dry_run: tell the estimate, and ask for nothing.
        length_control: add AlpacaEval's length-controlled win rate.
        should_stop: asked before each request.

    Returns:
        The summary; None for a dry run. It says how many judgments are ``missing``, since requests failed or ``should_stop``
        said so, and why: the same call asks for those again.

    Raises:
        ConfigError: a setting is wrong, or the endpoint refuses everything.
        DataError: the files cannot be read or written.
    """
    if concurrency < 1:
        raise ConfigError(f"--concurrency is {concurrency}; give at least 1")
    if length_control:
        check_package(match.against)
    requests = [(one.key(endpoint.model, endpoint.parameters), one) for one in match.requests()]
    if not requests:
        raise DataError("the two models have answered no question in common; there is nothing to compare")
    with Journal.opened(out / JUDGMENTS) as journal:
        # Equal requests (two models that answered alike) are one to the judge.
        work = Judging(
            endpoint, journal, {key: one for key, one in requests if key not in journal.rows}, should_stop
        )
        longest = endpoint.parameters.get("max_completion_tokens", endpoint.parameters.get("max_tokens"))
        asked = [one for _, one in work.waiting]
        kept = sum(key in journal.rows for key, _ in requests)
        say(Cost.of(asked, len(requests), kept, longest, price_in, price_out).sentence())
        if dry_run:
            return None
        work.run(concurrency)
        rows = [{**journal.rows[key], **one.row()} for key, one in requests if key in journal.rows]
    if not rows:
        raise ConfigError(f"nothing was judged: {work.why()}; check --endpoint and --judge-model")
    summary = {
        **summarize(match.questions, match.models, match.against, rows),
        "judge": endpoint.model,
        "endpoint": endpoint.url,
        "parameters": endpoint.parameters,
        "missing": len(requests) - len(rows),
        "why_missing": work.why() if len(rows) < len(requests) else None,
        "length_controlled": None,
    }
    write_json(out / SUMMARY, summary, "the summary")
    if length_control and match.against is not None:
        summary["length_controlled"] = length_controlled(match.models[0], match.against, rows)
        write_json(out / SUMMARY, summary, "the summary")
    return summary


class Judging:
    """The requests that are still to be made, made by several threads.

    Args:
        missing: key -> request.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        journal: Journal,
        missing: dict[str, Request],
        should_stop: Callable[[], bool] | None,
    ) -> None:
        self.endpoint, self.journal, self.should_stop = endpoint, journal, should_stop
        self.waiting = deque(missing.items())
        self.failures: list[str] = []
        self.stopped: str | None = None
        self.fatal: Exception | None = None
        self._in_a_row = 0
        self._counting = threading.Lock()

    def run(self, concurrency: int) -> None:
        """Make all the requests that there are.

        Raises:
            ConfigError, DataError: the first error that lets no other request succeed.
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
            if self.should_stop is not None and self.should_stop():
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
                self.stopped = (
                    f"{self._in_a_row} requests failed one after the other, the last one so: {error}"
                )

    def why(self) -> str:
        """Why judgments are missing."""
        if self.stopped is not None:
            return self.stopped
        if len(self.failures) == 1:
            return f"1 request failed, {self.failures[0]}"
        return f"{len(self.failures):,} requests failed, the first one so: {self.failures[0]}"


def _short(question: int | str) -> str:
    return repr(question[:40]) if isinstance(question, str) else str(question)
