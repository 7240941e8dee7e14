"""Run a judging: an OpenAI-compatible endpoint, its answers to all requests, and the summary.

Each answer of the judge is a line of ``judgments.jsonl``, kept at once and found again by the content of its request, so a
stopped judging resumes, and one more model costs its own requests only. Answers without a verdict are kept as well, counted
and shown. ``summary.json`` has the ratings or win rates.

AlpacaEval's outputs are compared by token probabilities where the endpoint gives them, which a first request finds out.
"""

import os
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict
from urllib.parse import urlsplit

from contextwise.base.errors import ConfigError, DataError, one_line
from contextwise.base.files import write_json
from contextwise.base.progress import interruption, progress_bar, say
from contextwise.evaluation.kernel import Journal
from contextwise.evaluation.measures.judging.requests import (
    ROLES,
    Match,
    Request,
    cost_sentence,
    read_preference,
    read_rating,
    read_verdict,
)
from contextwise.evaluation.measures.judging.results import check_package, length_controlled_win_rate, summarize

if TYPE_CHECKING:
    from openai import OpenAI

JUDGMENTS, SUMMARY = "judgments.jsonl", "summary.json"
Keyed = list[tuple[str, Request]]
"""Requests with their keys in the journal."""
MOST_FAILURES = 5
"""Failures in a row that stop a judging: the endpoint is at fault, not the requests."""
SHORTEST_SECRET = 8
"""Characters of a key below which it is no secret (local servers take any); it may be a part of an answer."""


class JudgingJson(TypedDict):
    """The keys of the summary of every judging; ratings or win rates are beside them."""

    kind: Literal["rating", "win rate"]
    verdicts: Literal["words", "token probabilities"]
    prompts: dict[str, str]
    questions: int
    judgments: int
    without_verdict: int
    examples_without_verdict: list[str]
    confidence: float
    judge: str
    endpoint: str
    parameters: dict[str, Any]
    missing: int
    why_missing: str | None


class RequestFailed(Exception):
    """One request failed after all retries. Others may succeed.

    Attributes:
        refused: the endpoint does not take its parameters or its messages.
    """

    def __init__(self, reason: str, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused


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
        try:
            place = urlsplit(self.url).netloc
        except ValueError as error:
            raise ConfigError(f"endpoint is {self.url!r}, which is no URL ({error})") from None
        if "@" in place:
            raise ConfigError("endpoint holds a name or a password, which would be written down; give key_file")
        if not self.timeout > 0:
            raise ConfigError(f"timeout is {self.timeout}; give a positive number of seconds")

    def masked(self, text: str) -> str:
        """A text of the endpoint, which may repeat the key, without it."""
        return text if len(self.key) < SHORTEST_SECRET else text.replace(self.key, "***")

    def _reason(self, error: BaseException) -> str:
        """The message of an error, on one line, without the key."""
        body = getattr(error, "body", None)
        message = (body.get("message") or body.get("detail")) if isinstance(body, dict) else None
        text = self.masked(str(message or error or type(error).__name__))
        return one_line(text).rstrip(".")

    def client(self) -> "OpenAI":
        """A client, which threads may share."""
        try:
            from openai import OpenAI
        except ImportError:
            raise ConfigError("the openai package is not installed; pip install 'contextwise[serve]'") from None
        return OpenAI(base_url=self.url, api_key=self.key, timeout=self.timeout, max_retries=self.retries)

    def ask(self, client: "OpenAI", request: Request) -> dict[str, Any]:
        """The judge's answer.

        Returns:
            ``text`` (empty if there is none), ``finish_reason``, ``prompt_tokens`` and ``completion_tokens`` (None if the
            endpoint does not report them); of a weighted request also ``top_logprobs``, those of the first token: token ->
            nats (None without them).

        Raises:
            ConfigError: the endpoint refuses the key, or knows neither the judge nor the path.
            EndpointDown: nothing listens.
            RequestFailed: this request was refused, or was not answered in time.
        """
        import openai

        try:
            body: dict[str, Any] = {"messages": request.messages, "extra_body": request.parameters(self.parameters)}
            answer = client.chat.completions.create(model=self.model, **body)
            # A server may answer 200 with a body of another protocol, which the client does not check.
            choice, usage = answer.choices[0], answer.usage
            if not isinstance(choice.message.content, str | None):
                raise TypeError(f"its content is not a text but {self.masked(str(choice.message.content))[:60]}")
            return {
                "text": self.masked(choice.message.content or ""),
                "finish_reason": choice.finish_reason and self.masked(str(choice.finish_reason)),
                "prompt_tokens": None if usage is None else usage.prompt_tokens,
                "completion_tokens": None if usage is None else usage.completion_tokens,
                **({"top_logprobs": self._likeliest(choice)} if request.weighted else {}),
            }
        except openai.APITimeoutError:
            raise RequestFailed(
                f"no answer within {self.timeout:g} s, {self.retries + 1} times; a longer timeout may help"
            ) from None
        except openai.APIConnectionError as error:
            raise EndpointDown(self._reason(error.__cause__ or error)) from None
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise ConfigError(
                f"{self.url} refuses the key (status {error.status_code}: {self._reason(error)}); "
                "set OPENAI_API_KEY, or give key_file"
            ) from None
        except openai.NotFoundError as error:
            raise ConfigError(
                f"{self.url} knows no judge {self.model!r}, or is not the endpoint's base, which mostly ends in /v1 "
                f"(status 404: {self._reason(error)})"
            ) from None
        except openai.APIStatusError as error:
            refused = error.status_code in (400, 422)
            raise RequestFailed(f"status {error.status_code}: {self._reason(error)}", refused) from None
        except (openai.OpenAIError, AttributeError, TypeError, IndexError, ValueError) as error:
            raise RequestFailed(f"the answer is not of the protocol ({self._reason(error)})") from None

    def _likeliest(self, choice: Any) -> dict[str, float] | None:
        """Log-probabilities of the likeliest first tokens of an answer; None without them."""
        if choice.logprobs is None or not choice.logprobs.content:
            return None
        likeliest = choice.logprobs.content[0].top_logprobs
        return {self.masked(str(each.token)): float(each.logprob) for each in likeliest} or None


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
    forms = {False: match.requests()} | ({True: match.requests(weighted=True)} if match.weighable else {})
    keyed = {
        form: [(request.key(endpoint.model, endpoint.parameters), request) for request in requests]
        for form, requests in forms.items()
    }
    if not keyed[False]:
        raise DataError("the two models have answered no question in common; there is nothing to compare")
    with Journal.opened(out / JUDGMENTS) as journal:
        weighted = next((form for form in (True, False) if _missing(keyed.get(form, []), journal)[1]), None)
        requests = keyed[bool(weighted)]
        missing, kept = _missing(requests, journal)
        sent = requests[0][1].parameters(endpoint.parameters)
        longest = sent.get("max_completion_tokens", sent.get("max_tokens"))
        cost = cost_sentence(list(missing.values()), len(requests), kept, longest, price_in, price_out)
        undecided = match.weighable and weighted is None
        say(cost + ("; one answer token each if the endpoint gives token probabilities" if undecided else ""))
        if dry_run:
            return None
        with interruption.listening():
            if undecided and _weigh_first(endpoint, journal, keyed[True]):
                requests = keyed[True]
                missing, _ = _missing(requests, journal)
            why = _ask_all(endpoint, journal, missing, concurrency)
        rows = [{**journal.rows[key], **request.row()} for key, request in requests if key in journal.rows]
        if not rows:
            raise ConfigError(f"nothing was judged: {why}; check the endpoint and the judge's name")
        summary = {
            **summarize(match.questions, match.models, match.against, rows),
            "verdicts": "token probabilities" if requests[0][1].weighted else "words",
            "prompts": {
                role: ROLES[role] for role in sorted({role for _, request in requests for role in request.roles})
            },
            "judge": endpoint.model,
            "endpoint": endpoint.url,
            "parameters": requests[0][1].parameters(endpoint.parameters),
            "missing": len(requests) - len(rows),
            "why_missing": why if len(rows) < len(requests) else None,
            "length_controlled": None,
        }
        write_json(out / SUMMARY, summary, "the summary")
        if length_controlled and match.against is not None:
            summary["length_controlled"] = length_controlled_win_rate(match.models[0], match.against, rows)
            write_json(out / SUMMARY, summary, "the summary")
        return summary


def _missing(requests: Keyed, journal: Journal) -> tuple[dict[str, Request], int]:
    """The requests whose judgments do not exist (equal ones, of two models that answered alike, once), and how many do."""
    missing = {key: request for key, request in requests if key not in journal.rows}
    return missing, sum(key in journal.rows for key, _ in requests)


def _weigh_first(endpoint: Endpoint, journal: Journal, requests: Keyed) -> bool:
    """Make the shortest weighted request, and keep its answer if it has token probabilities; returns whether it has.

    Raises:
        ConfigError: the request failed, but was not refused, which says nothing about the endpoint's probabilities.
    """
    key, request = min(requests, key=lambda each: len(each[1].messages[-1]["content"]))
    try:
        with endpoint.client() as client:
            judgment = _judgment(endpoint, request, endpoint.ask(client, request))
        if judgment["top_logprobs"] is not None:
            journal.add({"key": key, **judgment})
            return True
        why = "its answer has none"
    except EndpointDown as error:
        raise ConfigError(
            f"nothing was judged: nothing answers at {endpoint.url} ({error}); check the endpoint"
        ) from None
    except RequestFailed as error:
        if not error.refused:
            raise ConfigError(f"nothing was judged: the first request failed ({error}); check the endpoint") from None
        why = str(error)
    say(f"note: the endpoint gives no token probabilities ({why}); verdicts are read from the judge's words")
    return False


def _ask_all(endpoint: Endpoint, journal: Journal, missing: dict[str, Request], concurrency: int) -> str:
    """Make the missing requests (key -> request), some at a time, and keep the answers; returns why some have none."""
    if not missing:
        return ""
    failures: list[str] = []
    in_a_row, stopped = 0, ""
    waiting = iter(missing.items())
    running: dict[Future[dict[str, Any]], tuple[str, Request]] = {}
    with (
        endpoint.client() as client,
        progress_bar("judge", len(missing), "requests") as advance,
        ThreadPoolExecutor(concurrency) as pool,
    ):
        while True:
            if interruption.requested:
                stopped = stopped or "stopped by a signal"
            for key, request in islice(waiting, 0 if stopped else concurrency - len(running)):
                running[pool.submit(endpoint.ask, client, request)] = key, request
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                key, request = running.pop(future)
                try:
                    journal.add({"key": key, **_judgment(endpoint, request, future.result())})
                    in_a_row = 0
                except (RequestFailed, EndpointDown) as error:
                    in_a_row, name = in_a_row + 1, request.question.id
                    shown = repr(name[:40]) if isinstance(name, str) else name
                    failures.append(f"question {shown}, turn {request.turn}: {error}")
                    if isinstance(error, EndpointDown):
                        stopped = f"nothing answers at {endpoint.url} ({error})"
                    elif in_a_row >= MOST_FAILURES:
                        stopped = f"{in_a_row} requests failed one after the other, the last: {error}"
                advance()
    if stopped or not failures:
        return stopped
    several = f"{len(failures):,} requests failed, the first: "
    return f"{several if len(failures) > 1 else '1 request failed, '}{failures[0]}"


def _judgment(endpoint: Endpoint, request: Request, answer: dict[str, Any]) -> dict[str, Any]:
    """The line of ``judgments.jsonl`` of an answer, without its key."""
    text = answer.pop("text")
    if request.weighted:
        verdict: Any = read_preference(answer["top_logprobs"])
    else:
        verdict = read_rating(text) if len(request.models) == 1 else read_verdict(text)
    judgment = {
        "judge": endpoint.model,
        "user_prompt": request.messages[-1]["content"],
        "judgment": text,
        "verdict": verdict,
    }
    return {**request.row(), **judgment, **answer, "tstamp": time.time()}
