"""The server of ``contextwise model serve``: the answers of ``transformers serve`` for one model that Contextwise loads.

Bodies are checked before they reach transformers, so that it is asked only for what it does, and each request has a generator
of its own: its seed and sampling hold for no other.
"""

import asyncio
import secrets
import threading
import uuid
from typing import Annotated, Any, ClassVar, Literal

import torch
import uvicorn
from jinja2 import TemplateError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from transformers import PreTrainedModel, StoppingCriteriaList
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.response import ResponseHandler
from transformers.cli.serving.utils import GenerateManager, GenerationState, InferenceThread
from uvicorn.protocols.http.h11_impl import H11Protocol

from contextwise.base.errors import ConfigError
from contextwise.evaluation.generation import LOWEST_TEMPERATURE, allowed_new_tokens
from contextwise.models import load_model, load_tokenizer

MOST_BYTES = 2**20
MOST_SECONDS = 20.0
"""How long a client may take to send a request."""
IGNORED = {"user", "metadata", "store", "service_tier", "stream_options"}
"""Fields of OpenAI's clients that change no answer."""
NEUTRAL = {"n": 1, "best_of": 1, "echo": False, "logprobs": False, "frequency_penalty": 0, "presence_penalty": 0}
"""Fields that have no effect here, with the value that asks for none; another value is refused."""

Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[int, Field(ge=1, lt=2**31)]
Stop = Text | Annotated[list[Text], Field(min_length=1, max_length=16)]


def _temperature(value: Any) -> Any:
    if isinstance(value, float) and 0 < value < LOWEST_TEMPERATURE:
        raise ValueError(f"give 0, for the likeliest token, or at least {LOWEST_TEMPERATURE}")
    return value


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Asked(Strict):
    """What any request may ask for."""

    handler: ClassVar[type]
    model: str | None = None
    stream: bool = False
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100), BeforeValidator(_temperature)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None


class Completion(Asked):
    handler = CompletionHandler
    prompt: Text
    max_tokens: Tokens | None = None
    stop: Stop | None = None


class Part(Strict):
    type: Literal["text", "input_text", "output_text"]
    text: str


class Turn(Strict):
    role: Text
    content: str | list[Part]


class Chat(Asked):
    handler = ChatCompletionHandler
    messages: Annotated[list[Turn], Field(min_length=1)]
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    stop: Stop | None = None


class ResponseInput(Asked):
    handler = ResponseHandler
    input: Text | Annotated[list[Turn], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Tokens | None = None


def parse_request(kind: type[Asked], body: bytes, served: str) -> Asked:
    """Check a body; ConfigError if it is malformed or asks for what this server does not do."""
    try:
        fields = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ConfigError(f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigError("the body is not a JSON object")
    fields = {name: value for name, value in fields.items() if value is not None and name not in IGNORED}
    try:
        asked = kind.model_validate({n: v for n, v in fields.items() if n not in NEUTRAL or v != NEUTRAL[n]})
    except ValidationError as invalid:
        whys = []
        for wrong in invalid.errors()[:5]:
            unknown = wrong["type"] == "extra_forbidden"
            why = "this server does not support it" if unknown else wrong["msg"]
            whys.append(f"{'.'.join(map(str, wrong['loc']))[:80]}: {why}")
        raise ConfigError(f"the request is invalid: {'; '.join(whys)}") from None
    if asked.model not in (None, served):
        raise ConfigError(f"this server has one model, {served}; name it as `model`, or leave that out")
    return asked


async def read_body(request: Request) -> bytes:
    """Read a body of JSON within the limits of size and time; HTTPException for another one."""
    # A page of another site can send other types from a browser without asking first.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "the content type must be application/json")
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(MOST_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                body += chunk if size <= MOST_BYTES else b""
    except TimeoutError:
        raise HTTPException(408, f"the body took more than {MOST_SECONDS:g} seconds", {"connection": "close"}) from None
    if size > MOST_BYTES:
        raise HTTPException(413, f"the body has {size:,} bytes, but at most {MOST_BYTES:,} are allowed")
    return bytes(body)


class OneModel(ModelManager):
    """Loads any kind of model here; transformers' own manager knows the classes of transformers alone."""

    force_model: str

    @staticmethod
    def process_model_name(model_id: str) -> str:
        """The name as it is, for the answers; transformers would add a revision."""
        return model_id

    def _load_processor(self, *_: Any, **__: Any) -> Any:
        return load_tokenizer(self.force_model)

    def _load_model(self, *_: Any, **__: Any) -> PreTrainedModel:
        return load_model(self.force_model, device=None if self.device == "auto" else self.device)


class OneRequest(GenerateManager):
    """Generates for one request, on the thread that takes one request after the other."""

    def __init__(self, asked: Asked, thread: InferenceThread) -> None:
        self.asked, self._thread = asked, thread
        self.left = threading.Event()  # the client has left

    def generate_streaming(self, model: Any, processor: Any, inputs: Any, config: Any, *more: Any, **named: Any) -> Any:
        inputs = self._settle(model, inputs, config)
        return super().generate_streaming(model, processor, inputs, config, *more, **named)

    async def generate_non_streaming(
        self, model: Any, processor: Any, inputs: Any, config: Any, *more: Any, **named: Any
    ) -> Any:
        inputs = self._settle(model, inputs, config)
        return await super().generate_non_streaming(model, processor, inputs, config, *more, **named)

    def _settle(self, model: Any, inputs: Any, config: Any) -> dict[str, Any]:
        """Draw tokens if the request says so; end at the model's last position, and when the client has left."""
        tokens = inputs["input_ids"].shape[-1]
        if tokens == 0:
            raise ConfigError("the prompt has no tokens")
        config.max_new_tokens = allowed_new_tokens(model, tokens, config.max_new_tokens)
        if self.asked.temperature is not None or self.asked.top_p is not None:
            config.do_sample = self.asked.temperature != 0
        stop = StoppingCriteriaList(
            [lambda ids, *_, **__: ids.new_full((len(ids),), self.left.is_set(), dtype=torch.bool)]
        )
        return {**inputs, "stopping_criteria": stop}

    def submit(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        return super().submit(self._seeded, fn, *args, **kwargs)

    def async_submit(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        return super().async_submit(self._seeded, fn, *args, **kwargs)

    def _seeded(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Call ``fn`` with the request's seed, set when its turn has come: until it returns, no other request draws."""
        torch.manual_seed(secrets.randbits(63) if self.asked.seed is None else self.asked.seed)
        return fn(*args, **kwargs)


class OneState(GenerationState):
    """What a handler of transformers asks for the manager of a request."""

    def __init__(self, manager: OneRequest) -> None:
        super().__init__()
        self.manager = manager

    def get_manager(self, *_: Any, **__: Any) -> OneRequest:  # type: ignore[override]
        return self.manager


def make_app(folder: str, device: str) -> Starlette:
    """Load a model, and make the application that serves it."""
    models, thread = OneModel(device=device, force_model=folder), InferenceThread()
    chats = load_tokenizer(folder).chat_template is not None
    watching: set[asyncio.Task[None]] = set()

    def answer(kind: type[Asked]) -> Any:
        async def endpoint(request: Request) -> Response:
            body = await read_body(request)
            if kind is not Completion and not chats:
                raise ConfigError("the model's tokenizer has no chat template; use /v1/completions")
            asked = parse_request(kind, body, folder)
            manager = OneRequest(asked, thread)
            fields = asked.model_dump(exclude_none=True, exclude={"seed"})  # transformers would seed the process

            async def watch() -> None:
                while (await request.receive())["type"] != "http.disconnect":
                    pass
                manager.left.set()

            watching.add(task := asyncio.create_task(watch()))  # it ends with the answer, too
            task.add_done_callback(watching.discard)
            return await kind.handler(models, OneState(manager)).handle_request(fields, str(uuid.uuid4()))

        return endpoint

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def list_models(_: Request) -> Response:
        model = {"id": folder, "object": "model", "created": 0, "owned_by": ""}
        return JSONResponse({"object": "list", "data": [model]})

    posts: dict[str, type[Asked]] = {
        "/v1/completions": Completion,
        "/v1/chat/completions": Chat,
        "/v1/responses": ResponseInput,
    }
    gets = {"/v1/models": list_models, "/health": health}

    async def refuse(_: Request, error: Exception) -> Response:
        status, why, headers = 400, str(error), None
        if isinstance(error, HTTPException):
            status, why, headers = error.status_code, error.detail, error.headers
        if status in (404, 405):
            why = f"{why}: this server answers POST {', '.join(posts)} and GET {', '.join(gets)}"
        shown = {"message": why, "type": "invalid_request_error", "param": None, "code": None}
        return JSONResponse({"error": shown}, status, headers)

    routes = [Route(path, answer(kind), methods=["POST"]) for path, kind in posts.items()]
    routes += [Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()]
    faults: dict[Any, Any] = dict.fromkeys((ConfigError, TemplateError, HTTPException, ClientDisconnect), refuse)
    return Starlette(routes=routes, exception_handlers=faults)


class Impatient(H11Protocol):
    """Closes connections on which no request arrives."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(MOST_SECONDS, self.check, None)

    def check(self, last: Any) -> None:
        """Close the connection if it waits for a request, and did when ``last`` was its last one; else look again later."""
        if self.cycle is last and (last is None or last.response_complete):
            self.transport.abort()
        elif not self.transport.is_closing():
            self.loop.call_later(MOST_SECONDS, self.check, self.cycle)


def make_server(app: Starlette, host: str, port: int) -> uvicorn.Server:
    """The server of an application; ``run()`` ends with SIGINT or SIGTERM."""
    return uvicorn.Server(uvicorn.Config(app, host=host, port=port, http=Impatient, ws="none"))
