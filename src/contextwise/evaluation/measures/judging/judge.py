"""Run a judging: an OpenAI-compatible endpoint, its answers to all requests, and the summary.

Each answer of the judge is a line of ``judgments.jsonl``, kept at once and found again by the content of its request, so a
stopped judging resumes, and one more model costs its own requests only. Answers without a verdict are kept as well, counted
and shown. ``summary.json`` has the ratings or win rates.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import write_json
from contextwise.base.progress import interruption, progress_bar, say
from contextwise.evaluation.kernel import Journal
from contextwise.evaluation.measures.judging.requests import (
    Match,
    Request,
    cost_sentence,
    read_rating,
    read_verdict,
)
from contextwise.evaluation.measures.judging.results import (
    check_package,
    length_controlled_win_rate,
    summarize,
)

if TYPE_CHECKING:
    from openai import OpenAI

JUDGMENTS, SUMMARY = "judgments.jsonl", "summary.json"
MOST_FAILURES = 5
"""Failures in a row that stop a judging: the endpoint is at fault, not the requests."""


class RequestFailed(Exception):
    """One request failed after all retries. Others may succeed."""


class EndpointDown(Exception):
    """Nothing listens at the endpoint."""


@dataclass(frozen=True)
class Endpoint:
    """A judge behind an OpenAI-compatible endpoint, and the parameters of its requests.

    Attributes:
        url: base of the endpoint, such as ``http://localhost:8000/v1``.
        model: the judge's name there.
        key: of the endpoint; never written anywhere.
        timeout: seconds for one attempt.
        retries: further attempts after a timeout, a lost connection, 408, 409, 429 or 5xx; the waits between them grow from
            half a second to eight seconds, or follow the endpoint's Retry-After.
        parameters: of each request, beside model and messages.
    """

    url: str
    model: str
    key: str = field(default="none", repr=False)
    timeout: float = 120.0
    retries: int = 5
    parameters: dict[str, Any] = field(default_factory=lambda: {"temperature": 0, "max_tokens": 2048})

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"endpoint is {self.url!r}; give a URL such as http://localhost:8000/v1")
        if not self.timeout > 0:
            raise ConfigError(f"timeout is {self.timeout}; give a positive number of seconds")

    def client(self) -> "OpenAI":
        """A client, which threads may share."""
        try:
            from openai import OpenAI
        except ImportError:
            raise ConfigError(
                "the openai package is not installed; pip install 'contextwise[serve]'"
            ) from None
        return OpenAI(base_url=self.url, api_key=self.key, timeout=self.timeout, max_retries=self.retries)

    def ask(self, client: "OpenAI", messages: list[dict[str, str]]) -> dict[str, Any]:
        """The judge's answer.

        Returns:
            ``text`` (empty if there is none), ``finish_reason``, ``prompt_tokens`` and ``completion_tokens`` (None if the
            endpoint does not report them).

        Raises:
            ConfigError: the endpoint refuses the key, or knows neither the judge nor the path.
            EndpointDown: nothing listens.
            RequestFailed: this request was refused, or was not answered in time.
        """
        import openai

        try:
            request: dict[str, Any] = {"messages": messages, "extra_body": self.parameters}
            answer = client.chat.completions.create(model=self.model, **request)
            # A server may answer 200 with a body of another protocol, which the client does not check.
            choice, usage = answer.choices[0], answer.usage
            if not isinstance(choice.message.content, str | None):
                raise TypeError(f"its content is not a text but {str(choice.message.content)[:60]}")
            return {
                "text": choice.message.content or "",
                "finish_reason": choice.finish_reason,
                "prompt_tokens": None if usage is None else usage.prompt_tokens,
                "completion_tokens": None if usage is None else usage.completion_tokens,
            }
        except openai.APITimeoutError:
            raise RequestFailed(
                f"no answer within {self.timeout:g} s, {self.retries + 1} times; a longer timeout may help"
            ) from None
        except openai.APIConnectionError as error:
            raise EndpointDown(_reason(error.__cause__ or error)) from None
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise ConfigError(
                f"{self.url} refuses the key (status {error.status_code}: {_reason(error)}); "
                "set OPENAI_API_KEY, or give key_file"
            ) from None
        except openai.NotFoundError as error:
            raise ConfigError(
                f"{self.url} knows no judge {self.model!r}, or is not the endpoint's base, which mostly ends in /v1 "
                f"(status 404: {_reason(error)})"
            ) from None
        except openai.APIStatusError as error:
            raise RequestFailed(f"status {error.status_code}: {_reason(error)}") from None
        except (openai.OpenAIError, AttributeError, TypeError, IndexError, ValueError) as error:
            raise RequestFailed(f"the answer is not of the protocol ({_reason(error)})") from None


def read_key(file: Path | None) -> str:
    """The endpoint's key: from a file, else from ``OPENAI_API_KEY``; ``none`` for endpoints without keys."""
    if file is None:
        return os.environ.get("OPENAI_API_KEY") or "none"
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"the key file {file} cannot be read: {getattr(error, 'strerror', None) or 'no text'}"
        ) from None
    if not key or not key.isascii() or len(key.split()) != 1:
        raise DataError(f"the key file {file} must hold one key and nothing else")
    return key


def _reason(error: BaseException) -> str:
    body = getattr(error, "body", None)
    message = (body.get("message") or body.get("detail")) if isinstance(body, dict) else None
    return " ".join(str(message or error or type(error).__name__).split())[:200].rstrip(".")


def judge_answers(
    match: Match,
    endpoint: Endpoint,
    out: Path,
    *,
    concurrency: int = 4,
    price_in: float | None = None,
    price_out: float | None = None,
    dry_run: bool = False,
    length_controlled: bool = False,
) -> dict[str, Any] | None:
    """Judge what has not been judged yet, and summarize all judgments.

    Args:
        out: folder for ``judgments.jsonl`` and ``summary.json``.
        concurrency: requests at once.
        price_in, price_out: of a million tokens, for the estimate that is printed first.
        dry_run: print the estimate, and make no request.
        length_controlled: add AlpacaEval's length-controlled win rate.

    Returns:
        The summary; None for a dry run. It holds how many judgments are ``missing``, because requests failed or the process
        received a request to stop, and why: the same call makes those requests again.

    Raises:
        ConfigError: a setting is wrong, or the endpoint refuses everything.
        DataError: the files cannot be read or written.
    """
    if concurrency < 1:
        raise ConfigError(f"concurrency is {concurrency}; give at least 1")
    if length_controlled:
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
        say(cost_sentence(list(missing.values()), len(requests), kept, longest, price_in, price_out))
        if dry_run:
            return None
        with interruption.listening():
            judging.run(concurrency)
        rows = [{**journal.rows[key], **request.row()} for key, request in requests if key in journal.rows]
    if not rows:
        raise ConfigError(f"nothing was judged: {judging.why()}; check the endpoint and the judge's name")
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
    if length_controlled and match.against is not None:
        summary["length_controlled"] = length_controlled_win_rate(match.models[0], match.against, rows)
        write_json(out / SUMMARY, summary, "the summary")
    return summary


class Judging:
    """The missing requests (key -> request), made by several threads."""

    def __init__(self, endpoint: Endpoint, journal: Journal, missing: dict[str, Request]) -> None:
        self.endpoint, self.journal, self.waiting = endpoint, journal, deque(missing.items())
        self.failures: list[str] = []
        self.stopped: str | None = None
        self.fatal: Exception | None = None
        self._in_a_row = 0
        self._counting = threading.Lock()

    def run(self, concurrency: int) -> None:
        """Make all requests."""
        if not self.waiting:
            return
        with (
            self.endpoint.client() as client,
            progress_bar("judge", len(self.waiting), "requests") as advance,
            ThreadPoolExecutor(concurrency) as pool,
        ):
            for worker in [pool.submit(self._work, client, advance) for _ in range(concurrency)]:
                worker.result()
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
        text = answer.pop("text")
        judgment = {
            "judge": self.endpoint.model,
            "user_prompt": request.messages[-1]["content"],
            "judgment": text,
            "verdict": read_rating(text) if len(request.models) == 1 else read_verdict(text),
        }
        self.journal.add({"key": key, **request.row(), **judgment, **answer, "tstamp": time.time()})
        with self._counting:
            self._in_a_row = 0

    def _failed(self, request: Request, error: Exception) -> None:
        name = request.question.id
        with self._counting:
            shown = repr(name[:40]) if isinstance(name, str) else name
            self.failures.append(f"question {shown}, turn {request.turn}: {error}")
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
