"""The server of ``contextwise serve``: two routes of the OpenAI protocol, answered by the handlers of transformers' server.

transformers' own server can also load other models, unload them, and run arbitrary generation settings for whoever reaches it.
Here are the routes that a client of one model needs, ``transformers chat`` among them. Requests are checked before they reach a
handler, and every refusal is a status between 400 and 503 with a sentence.
"""

import asyncio
import contextlib
import ctypes
import hmac
import json
import resource
import socket
import threading
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import h11
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from starlette.types import Message, Receive, Scope, Send
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cli.serving.model_manager import ModelManager
from uvicorn.protocols.http.h11_impl import H11Protocol

from contextwise.base.errors import ConfigError
from contextwise.base.progress import say
from contextwise.base.runs import RunFolder
from contextwise.cli import unexpected
from contextwise.cli.scored import Chats, Completions, OneManager, Scoring, Wanted
from contextwise.evaluation.generation import LOWEST_TEMPERATURE
from contextwise.evaluation.kernel.subject import positions
from contextwise.models import load_model, load_tokenizer

Result = TypeVar("Result")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
BODY_BYTES, BODY_SECONDS = 2**20, 30
STOP_CHARACTERS = 256
"""Of all stop texts of a request; transformers compares each character with the whole vocabulary."""
DEFAULT_TOKENS = 256
TEMPLATE_SECONDS = 5
"""For a prompt to be made of the messages, by the template that comes with the model, which may loop."""
NOT_HANDLED = {"max_completion_tokens", "stream_options", "user", "logprobs", "top_logprobs"}
"""Fields of a request that are no settings of transformers' handlers."""
NO_TEMPLATE = "the model's tokenizer has no chat template; use /v1/completions"


def _text(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("it holds half of a surrogate pair, which is no text") from None
    return value


Text = Annotated[str, StringConstraints(min_length=1), BeforeValidator(_text)]


def _stops(value: list[str]) -> list[str] | None:
    if sum(map(len, value)) > STOP_CHARACTERS:
        raise ValueError(f"the texts have more than {STOP_CHARACTERS} characters in all")
    return value or None


Stops = Annotated[list[Text], Field(max_length=16), AfterValidator(_stops)]


class Strict(BaseModel):
    """A part of a request; fields that it does not name are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Generation(Strict):
    """The settings of ``generate()`` that a client may send as the JSON text ``generation_config``."""

    max_new_tokens: int | None = Field(default=None, ge=1)
    do_sample: bool | None = None
    temperature: float | None = Field(default=None, ge=LOWEST_TEMPERATURE, le=100)
    top_k: int | None = Field(default=None, ge=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    transformers_version: str | None = Field(default=None, exclude=True)


def _generation(value: Any) -> Any:
    """The settings in a JSON text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None


class _Sampled(Strict):
    """The fields of a request that both routes have."""

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    stop: Annotated[Text, StringConstraints(max_length=STOP_CHARACTERS)] | Stops | None = None
    frequency_penalty: float | None = Field(default=None, gt=-1, le=2)
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: int | None = Field(default=None, ge=1, le=16)
    generation_config: Annotated[Generation, BeforeValidator(_generation)] | None = None
    user: str | None = None


class Completion(_Sampled):
    """A request of ``/v1/completions``."""

    prompt: Text
    suffix: Text | None = None
    logprobs: int | None = Field(default=None, ge=0, le=5)

    def wanted(self) -> Wanted | None:
        """The log-probabilities to answer with."""
        return None if self.logprobs is None else Wanted("completion", self.logprobs)


class _Part(Strict):
    type: Literal["text"]
    text: Text


class _Message(Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[_Part], Field(min_length=1, max_length=1000)]


class Chat(_Sampled):
    """A request of ``/v1/chat/completions``."""

    messages: list[_Message] = Field(min_length=1, max_length=1000)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)

    @model_validator(mode="after")
    def _check_logprobs(self) -> "Chat":
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs goes with logprobs: true")
        return self

    def wanted(self) -> Wanted | None:
        """The log-probabilities to answer with."""
        return Wanted("chat", self.top_logprobs or 0) if self.logprobs else None


class OneModel(ModelManager):
    """Holds one model, loaded as every verb loads it: from safetensors, and without code of its own unless that is trusted."""

    def __init__(self, source: str, device: str) -> None:
        self.source = source
        # Its name in the server's memory, which is never read as a path.
        super().__init__(device=device, force_model=Path(source).resolve().name or "model")

    def _load_processor(self, *_: Any, **__: Any) -> PreTrainedTokenizerBase:  # type: ignore[override]
        return load_tokenizer(self.source)

    def _load_model(self, *_: Any, **__: Any) -> PreTrainedModel:
        return load_model(self.source, device=None if self.device == "auto" else str(self.device))


class Connection(H11Protocol):
    """A connection whose requests must arrive in time; one too many ends the one that has waited longest for a request."""

    most = min(1000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect()
        opened = [each for each in self.connections if isinstance(each, Connection) and not each.transport.is_closing()]
        if len(opened) > self.most:
            waiting = [(each.late.when(), each.transport) for each in opened if each.late is not None]
            min(waiting, key=itemgetter(0))[1].abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect()

    def connection_lost(self, problem: Exception | None) -> None:
        super().connection_lost(problem)
        self._cancel()

    def _expect(self) -> None:
        """Set the time for a request whose headers are not complete."""
        if self.conn.their_state is not h11.IDLE:
            self._cancel()
        elif self.late is None:
            self.late = self.loop.call_later(BODY_SECONDS, self.transport.abort)

    def _cancel(self) -> None:
        if self.late is not None:
            self.late.cancel()
            self.late = None


class Guard:
    """Refuses requests before they are read: of other origins, without the key, too large, or too many at once.

    Args:
        hosts: names under which a client may address the server; None: any.
        queue: requests that are answered or wait at one time.
    """

    def __init__(self, app: Any, hosts: tuple[str, ...] | None, key: str | None, queue: int) -> None:
        self.app, self.hosts, self.key, self.queue, self.running = app, hosts, key, queue, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if refusal := self.refusal(headers):
            await refused(*refusal)(scope, receive, send)
            return
        if self.running >= self.queue:
            busy = f"{self.queue} requests are being answered already; try again later"
            await refused(503, busy)(scope, receive, send)
            return
        self.running += 1
        try:
            body = await asyncio.wait_for(_read(receive), BODY_SECONDS)
            if body is None:
                await refused(413, f"the request is larger than {BODY_BYTES:,} bytes")(scope, receive, send)
                return
            first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

            async def replayed() -> Message:
                return first.pop() if first else await receive()

            await self.app(scope, replayed, send)
        except TimeoutError:
            await refused(408, f"the request did not arrive within {BODY_SECONDS} seconds")(scope, receive, send)
        except Exception as error:  # it is answered with status 500
            say(f"error: {unexpected(error)}")
        finally:
            self.running -= 1

    def refusal(self, headers: dict[str, str]) -> tuple[int, str] | None:
        """Status and sentence of a request that is refused by its headers."""
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            name, place = urlsplit(f"//{host}").hostname, urlsplit(origin or "").netloc
        except ValueError:
            return 400, "the headers Host and Origin are no addresses"
        # A page of another site can have a name of its own that leads here (DNS rebinding), so the name is checked too.
        if self.hosts is not None and name not in self.hosts:
            return 403, f"this server is addressed as {self.hosts[0]}, not as {host[:100]!r}"
        if origin is not None and place != host:
            return 403, f"requests of pages of another origin ({origin[:100]}) are refused"
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if self.key is not None and not hmac.compare_digest(given.encode(), self.key.encode()):
            return 401, "the request has not this server's key (Authorization: Bearer KEY)"
        length = headers.get("content-length", "0")
        if not length.isdigit() or len(length) > 15 or int(length) > BODY_BYTES:
            return 413, f"the request is larger than {BODY_BYTES:,} bytes"
        return None


async def _read(receive: Receive) -> bytes | None:
    """The body of a request; None if it is too large."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return body


def refused(status: int, why: str) -> JSONResponse:
    """A refusal in the form that clients of the protocol read."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": why, "type": kind, "code": status}}, status_code=status)


def build_app(models: OneModel, most_tokens: int) -> FastAPI:
    """The routes ``/v1/completions``, ``/v1/chat/completions`` (``most_tokens`` in an answer), ``/v1/models``, ``/health``."""
    name = str(models.force_model)
    folder = Path(models.source)
    folders = [folder, folder.parent] if RunFolder(folder.parent).model == folder else [folder]
    names = {name, *map(str, folders), *(str(each.resolve()) for each in folders)}
    model, tokenizer = models.load_model_and_processor(models.process_model_name(name))
    scoring = Scoring(tokenizer)
    state = OneManager(scoring)
    completion, chat = Completions(models, state), Chats(models, state)
    app = FastAPI(title="contextwise serve", docs_url=None, redoc_url=None, openapi_url=None)
    limit = positions(model.config)

    @app.exception_handler(HTTPException)
    async def refuse(_: Request, problem: HTTPException) -> JSONResponse:
        return refused(problem.status_code, str(problem.detail))

    @app.exception_handler(404)
    @app.exception_handler(405)
    async def unknown(request: Request, _: Any) -> JSONResponse:
        return refused(
            404, f"there is no {request.method} {request.url.path[:100]}; POST /v1/completions continues a prompt"
        )

    @app.exception_handler(Exception)
    async def fail(_: Request, problem: Exception) -> JSONResponse:
        return refused(500, f"the model failed: {type(problem).__name__}")

    async def checked(request: Request, form: type[Completion] | type[Chat]) -> tuple[dict[str, Any], Wanted | None]:
        """The fields of a request for a handler, with the number of tokens that the model has room for; wanted logprobs."""
        try:
            values = form.model_validate(json.loads(await request.body()))
        except ValidationError as error:
            raise HTTPException(400, _problems(error)) from None
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, f"the request is not JSON ({str(error)[:100]})") from None
        if values.model is not None and values.model not in names:
            raise HTTPException(400, f"the model here is {models.source}, not {values.model[:100]!r}")
        if values.temperature is not None and 0 < values.temperature < LOWEST_TEMPERATURE:
            raise HTTPException(400, f"temperature must be 0 or at least {LOWEST_TEMPERATURE}")
        try:
            inputs = await in_thread(lambda: prompt_of(values), TEMPLATE_SECONDS)
        except TimeoutError:
            why = f"the chat template takes more than {TEMPLATE_SECONDS} s for these messages"
            raise HTTPException(400, why) from None
        prompt = inputs.input_ids.shape[-1]
        if not prompt:
            raise HTTPException(400, "the prompt holds no token; give some text")
        room = most_tokens if limit is None else min(most_tokens, limit - prompt)
        if room < 1:
            raise HTTPException(400, f"the prompt has {prompt} tokens, but the model has {limit} positions; shorten it")
        # Streams end with the usage anyway.
        content = values.model_dump(exclude_none=True, exclude=NOT_HANDLED)
        wanted = getattr(values, "max_completion_tokens", None) or values.max_tokens
        if values.generation_config is not None:
            wanted = wanted or values.generation_config.max_new_tokens
            content["generation_config"] = json.dumps(content["generation_config"])
        elif values.temperature != 0 and any(
            given is not None for given in (values.temperature, values.top_p, values.n)
        ):
            # transformers' handlers do not sample unless they are told to, and then from the 50 likeliest tokens.
            sampled = {"do_sample": True, "top_k": model.generation_config.top_k or 0}
            content["generation_config"] = json.dumps(sampled)
        if isinstance(values, Chat):
            content["inputs"] = inputs
        return content | {"model": name, "max_tokens": min(wanted or DEFAULT_TOKENS, room)}, values.wanted()

    def prompt_of(values: Any) -> BatchEncoding:
        if isinstance(values, Completion):
            return tokenizer(values.prompt, return_tensors="pt")
        if tokenizer.chat_template is None:
            raise HTTPException(400, NO_TEMPLATE)
        try:
            messages = completion.get_processor_inputs_from_messages(
                values.model_dump()["messages"], models.get_model_modality(model, processor=tokenizer)
            )
            form = {"add_generation_prompt": True, "return_dict": True, "return_tensors": "pt"}
            rendered: BatchEncoding = tokenizer.apply_chat_template(messages, **form)
            return rendered
        except Exception as error:  # the template's own refusals
            raise HTTPException(400, f"the chat template refuses the messages ({str(error)[:200]})") from None

    async def answered(handler: Completions | Chats, values: dict[str, Any], wanted: Wanted | None) -> Any:
        """The answer of a handler, or ``n`` of them in one; a given seed is that of the first, and rises."""
        count, seed = values.pop("n", 1), values.pop("seed", None)
        if count > 1 and values.get("stream"):
            raise HTTPException(400, "n: streams have one answer; leave out n or stream")
        answers = []
        for number in range(count):
            request_id = str(uuid4())
            if seed is not None:
                scoring.seeds[request_id] = (seed + number) % 2**63
            if wanted is not None:
                scoring.wanted[request_id] = wanted
            try:
                # Not with the seed: a handler would seed the whole process at once, while another answer may be sampled.
                answer = await handler.handle_request(values, request_id)
            finally:
                scoring.wanted.pop(request_id, None)
                scoring.seeds.pop(request_id, None)
            if values.get("stream") or (count == 1 and wanted is None):
                return answer
            answers.append(json.loads(answer.body))
            if wanted is not None:
                answers[-1]["choices"][0]["logprobs"] = scoring.scored.pop(request_id)
        first, usage = answers[0], answers[0]["usage"]
        first["choices"] = [each["choices"][0] | {"index": number} for number, each in enumerate(answers)]
        usage["completion_tokens"] = sum(each["usage"]["completion_tokens"] for each in answers)
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
        return first

    @app.post("/v1/completions")
    async def completions(request: Request) -> Any:
        return await answered(completion, *await checked(request, Completion))

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Any:
        return await answered(chat, *await checked(request, Chat))

    @app.post("/load_model")
    async def loaded(request: Request) -> Any:
        """Say that the model is ready, as ``transformers chat`` asks first; nothing is loaded, and no name is looked up."""
        try:
            asked = json.loads(await request.body())["model"]
        except (ValueError, RecursionError, KeyError, TypeError):
            raise HTTPException(400, "the request names no model") from None
        event = {"status": "ready", "model": name, "cached": True}
        if asked not in names:
            event = {"status": "error", "message": f"the model here is {models.source}, not {str(asked)[:100]!r}"}
        elif tokenizer.chat_template is None:
            event = {"status": "error", "message": NO_TEMPLATE}
        return Response(f"data: {json.dumps(event)}\n\n", media_type="text/event-stream")

    @app.get("/v1/models")
    async def list_models() -> Any:
        return {"object": "list", "data": [{"id": models.source, "object": "model", "owned_by": "contextwise"}]}

    @app.get("/health")
    async def health() -> Any:
        return {"status": "ok"}

    return app


async def in_thread(work: Callable[[], Result], seconds: float) -> Result:
    """What ``work`` returns, while the event loop goes on; a TimeoutError ends it at its next Python instruction."""
    loop, done = asyncio.get_running_loop(), asyncio.Future[Result]()

    def settle(method: Callable[[Any], None], value: Any) -> None:
        if not done.done():
            method(value)

    def run() -> None:
        outcome: tuple[Callable[[Any], None], Any]
        try:
            outcome = done.set_result, work()
        except SystemExit:
            return  # raised in this thread after `seconds`: nobody waits for the outcome
        except Exception as error:
            outcome = done.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, *outcome)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        return await asyncio.wait_for(done, seconds)
    except (TimeoutError, asyncio.CancelledError):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        raise


def _problems(error: ValidationError) -> str:
    parts = []
    for problem in error.errors()[:5]:
        field, text = ".".join(map(str, problem["loc"])), problem["msg"]
        unknown = problem["type"] == "extra_forbidden"
        parts.append(f"{field or 'the request'}: {'is not supported' if unknown else text[0].lower() + text[1:]}"[:200])
    return "; ".join(parts)


def run_server(source: str, host: str, port: int, device: str, key: str | None, most_tokens: int, queue: int) -> None:
    """Answer requests until a signal stops the process.

    Raises:
        ConfigError: the port is taken, or the address is not one of this machine.
        CheckpointError: the model cannot be loaded.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"nothing can listen at {host}:{port} ({reason}); choose another --port or --host") from None
    with listener:
        app = build_app(OneModel(source, device), most_tokens)
        hosts = (host, *LOOPBACK) if host in LOOPBACK else None
        guarded = Guard(app, hosts, key, queue)
        config = uvicorn.Config(guarded, http=Connection, log_level="warning", timeout_graceful_shutdown=5)
        uvicorn.Server(config).run(sockets=[listener])
