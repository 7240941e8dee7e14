"""Answers of the server that end before stop strings and carry log-probabilities, as clients of the OpenAI protocol expect.

transformers' handlers ask a manager for an answer, all at once or as a stream of text. :class:`Scoring` is such a manager. The
log-probabilities are those of the model's own logits, before temperature, top-k, top-p and penalties.
"""

import asyncio
import codecs
import contextlib
import copy
import json
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.utils import (
    DirectStreamer,
    GenerateManager,
    GenerationState,
    _GenerationCancelled,
    _StreamError,
)

from contextwise.objectives.text import TokenText

LEAST = -9999.0
"""In place of the log-probability of a token that is impossible, which JSON cannot hold."""


@dataclass(frozen=True)
class Wanted:
    """The log-probabilities that a request wants: the form of a route, with so many of the likeliest tokens."""

    form: Literal["chat", "completion"]
    likeliest: int


@dataclass(frozen=True)
class TokenScore:
    """A generated token, the character at which it begins in the answer, and its log-probability and those of the likeliest."""

    token: int
    start: int
    logprob: float
    likeliest: list[tuple[int, float]]


class Piece(str):
    """A part of a streamed answer, with the log-probabilities of its tokens in the form of the request."""

    __slots__ = ("logprobs",)
    logprobs: dict[str, Any] | None


class Tokens:
    """How the protocol shows tokens: as text, or, of a part of a character, as ``bytes:`` and its bytes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self.bytes_of = tokenizer, TokenText(tokenizer).bytes_of
        self.hidden = set(tokenizer.all_special_ids)

    def _shown(self, token: int) -> tuple[str, list[int]]:
        content = self.bytes_of(token)
        if content is None:
            text = self._tokenizer.decode([token])
            return text, list(text.encode())
        try:
            return content.decode(), list(content)
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content), list(content)

    def in_form(self, form: str, scores: list[TokenScore]) -> dict[str, Any]:
        """The field ``logprobs`` of an answer or a part of one."""
        if form == "completion":
            return {
                "tokens": [self._shown(each.token)[0] for each in scores],
                "token_logprobs": [each.logprob for each in scores],
                "top_logprobs": [
                    {self._shown(token)[0]: value for token, value in [*each.likeliest, (each.token, each.logprob)]}
                    if each.likeliest
                    else None
                    for each in scores
                ],
                "text_offset": [each.start for each in scores],
            }
        content = []
        for each in scores:
            likeliest = [self._entry(token, value) for token, value in each.likeliest]
            content.append({**self._entry(each.token, each.logprob), "top_logprobs": likeliest})
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text, content = self._shown(token)
        return {"token": text, "logprob": logprob, "bytes": content}


class Answer(DirectStreamer):
    """Receives the tokens of one answer from ``generate()``, in which :meth:`see` receives the model's outputs."""

    def __init__(self, tokens: Tokens, wanted: Wanted | None, stops: list[str], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tokens, self.wanted, self.stops = tokens, wanted, stops
        self._logits: torch.Tensor | None = None
        self._held, self._seen, self._sent, self._cut = "", 0, 0, False
        self._waiting: list[TokenScore] = []  # of text that is not sent yet
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.scores: list[TokenScore] = []

    def see(self, *call: Any) -> None:
        """A forward hook of the model: keep the logits of the next token."""
        self._logits = call[-1].logits[0, -1].detach()

    def put(self, value: torch.Tensor) -> None:
        if not self._first and self.wanted is not None and self._logits is not None:
            logprobs = self._logits.float().log_softmax(-1).clamp(min=LEAST)
            likeliest = logprobs.topk(min(self.wanted.likeliest, len(logprobs)))
            pairs = list(zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True))
            (token,) = value.tolist()
            if token not in self._tokens.hidden:
                self._waiting.append(TokenScore(token, self._start_of(token), logprobs[token].item(), pairs))
        super().put(value)

    def _start_of(self, token: int) -> int:
        """The character at which the next token begins; one that begins inside a character begins at that character."""
        content = self._tokens.bytes_of(token)
        if not content:
            return self._seen
        # Not by the text that is passed on: bytes that are no UTF-8 come late.
        unfinished = bool(self._decoder.getstate()[0]) and content[0] & 0xC0 != 0x80
        start = self._seen + unfinished
        self._seen += len(self._decoder.decode(content))
        return start

    def _enqueue(self, item: Any) -> None:
        if type(item) is not str:  # reasoning, a tool call
            super()._enqueue(item)
            return
        self._held += item
        self._seen = max(self._seen, self._sent + len(self._held))
        end = first_stop(self._held, self.stops)
        if end is not None:
            self._send(end)
            self._cut = True
        else:
            # What may be the beginning of a stop string waits for the next token.
            longest = max(map(len, self.stops), default=1) - 1
            held = (self._held[-size:] for size in range(min(longest, len(self._held)), 0, -1))
            waiting = next((len(tail) for tail in held if any(stop.startswith(tail) for stop in self.stops)), 0)
            self._send(len(self._held) - waiting)

    def _send(self, length: int, all_scores: bool = False) -> None:
        """Send so much of the held text, with the tokens that begin in it."""
        if self._cut:
            return
        text, self._held = self._held[:length], self._held[length:]
        self._sent += length
        scores = [each for each in self._waiting if all_scores or each.start < self._sent]
        self._waiting = self._waiting[len(scores) :]
        self.scores += scores
        if text or scores:
            piece = Piece(text)
            piece.logprobs = self._tokens.in_form(self.wanted.form, scores) if self.wanted is not None else None
            super()._enqueue(piece)

    def end(self) -> None:
        self._send(len(self._held), all_scores=True)
        super().end()


def first_stop(text: str, stops: list[str]) -> int | None:
    """Where the first of the stop strings in a text begins; None if there is none."""
    return min((place for stop in stops if (place := text.find(stop)) >= 0), default=None)


class Scoring(GenerateManager):
    """The manager of the one model."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokens = Tokens(tokenizer)
        self.wanted: dict[str, Wanted] = {}  # by the request's id
        self.seeds: dict[str, int] = {}  # likewise
        self.scored: dict[str, dict[str, Any]] = {}  # log-probabilities of answers that were given at once

    def _start(
        self,
        model: PreTrainedModel,
        processor: Any,
        inputs: Any,
        config: GenerationConfig,
        request_id: str,
        parser: Any,
    ) -> tuple[asyncio.Queue, Answer, Callable[[], torch.Tensor]]:
        loop, queue = asyncio.get_running_loop(), asyncio.Queue()  # type: ignore[var-annotated]
        stops = config.stop_strings or []
        stops = [stops] if isinstance(stops, str) else stops
        wanted, backend = self.wanted.pop(request_id, None), processor._tokenizer
        seed = self.seeds.pop(request_id, None)
        answer = Answer(self._tokens, wanted, stops, backend, loop, queue, response_parser=parser)

        def run() -> torch.Tensor:
            hook = model.register_forward_hook(answer.see)
            try:
                # Answers are made one after the other in one thread, so each can have the process's generator for itself.
                with _seeded(seed, model.device):
                    result: Any = model.generate(
                        **inputs, generation_config=config, tokenizer=processor, streamer=answer
                    )
                return result
            finally:
                hook.remove()

        return queue, answer, run

    def generate_streaming(  # type: ignore[override]
        self,
        model: PreTrainedModel,
        processor: Any,
        inputs: Any,
        gen_config: GenerationConfig,
        request_id: str,
        response_parser: Any = None,
    ) -> tuple[asyncio.Queue, Answer]:
        loop = asyncio.get_running_loop()
        queue, answer, run = self._start(model, processor, inputs, gen_config, request_id, response_parser)

        def run_to_end() -> None:
            try:
                run()
            except _GenerationCancelled:
                loop.call_soon_threadsafe(queue.put_nowait, None)
            except Exception as error:
                loop.call_soon_threadsafe(queue.put_nowait, _StreamError(str(error)))

        self.submit(run_to_end)
        return queue, answer

    async def generate_non_streaming(  # type: ignore[override]
        self, model: PreTrainedModel, processor: Any, inputs: Any, gen_config: GenerationConfig, request_id: str
    ) -> tuple[str, int, torch.Tensor]:
        _, answer, run = self._start(model, processor, inputs, gen_config, request_id, None)
        sequences = await self.async_submit(run)
        length = inputs["input_ids"].shape[-1]
        tokens = sequences[0, length:]
        text = processor.decode(tokens, skip_special_tokens=True)
        if answer.wanted is not None:
            self.scored[request_id] = self._tokens.in_form(answer.wanted.form, answer.scores)
        return text[: first_stop(text, answer.stops)], length, tokens


@contextlib.contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Sample from a seed, and put the generators back afterwards; without a seed, sample from where they are."""
    with torch.random.fork_rng([device] if device.type == "cuda" else [], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        yield


class OneManager(GenerationState):
    """State of transformers' handlers with one manager."""

    def __init__(self, manager: Scoring) -> None:
        super().__init__()
        self.manager = manager

    def get_manager(self, *_: Any, **__: Any) -> Scoring:
        return self.manager


class _WithLogprobs:
    """Adds the log-probabilities of a piece to its event."""

    def _build_chunk_sse(self, *args: Any, **fields: Any) -> str:
        event: str = super()._build_chunk_sse(*args, **fields)  # type: ignore[misc]
        logprobs = getattr(fields.get("text", fields.get("content")), "logprobs", None)
        if logprobs is None:
            return event
        chunk = json.loads(event.removeprefix("data: "))
        chunk["choices"][0]["logprobs"] = logprobs
        return f"data: {json.dumps(chunk)}\n\n"


class Completions(_WithLogprobs, CompletionHandler):
    """Handler of ``/v1/completions``."""


class Chats(_WithLogprobs, ChatCompletionHandler):
    """Handler of ``/v1/chat/completions``.

    Its prompts come with the request, in the field ``inputs``: the event loop renders no template, which may be slow.
    """

    _inputs: ContextVar[Any] = ContextVar("inputs")

    async def handle_request(self, body: dict[str, Any], request_id: str) -> Any:
        self._inputs.set(body.pop("inputs"))
        return await super().handle_request(body, request_id)

    def _resolve_model(self, body: dict[str, Any]) -> Any:
        name, model, processor = super()._resolve_model(body)
        processor, inputs = copy.copy(processor), self._inputs.get()
        processor.apply_chat_template = lambda *_, **__: inputs  # type: ignore[method-assign]
        return name, model, processor
