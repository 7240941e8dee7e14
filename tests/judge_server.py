"""A judge for tests, and what it judges: an HTTP server of the chat-completions protocol that misbehaves as it is told to."""

import json
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from contextwise.evaluation.measures.judging.files import ModelAnswers, Question

CATEGORIES = ["writing", "math", "coding", "stem"]
QUESTIONS = tuple(
    Question(81 + i, category, (f"First of {i}?", f"Second of {i}?")) for i, category in enumerate(CATEGORIES)
)


def answers_of(model: str, quality: int) -> ModelAnswers:
    """A model whose texts say how good they are."""
    return ModelAnswers(model, {q.id: (f"quality {quality}", f"quality {quality + 1}") for q in QUESTIONS})


GOOD, BAD = answers_of("good", 7), answers_of("bad", 3)
REFERENCES = {82: ("quality 10", "quality 10"), 83: ("quality 10", "quality 10")}


def qualities(messages: list[dict[str, str]], title: str) -> list[int]:
    part = re.search(rf"<\|{title} begins\|>(.*)<\|{title} ends\|>", messages[1]["content"], re.S)
    return [int(number) for number in re.findall(r"quality (\d+)", part[1])] if part else []


def rate(messages: list[dict[str, str]]) -> str:
    """The quality of the last answer; the reference's would be 10."""
    return f"It is so-so, no [[1]]. Rating: [[{qualities(messages, 'Conversation')[-1]}]]"


def compare(messages: list[dict[str, str]]) -> str:
    if not qualities(messages, "Assistant A"):
        return "m"  # asked for one token
    a, b = (qualities(messages, f"Assistant {name}")[-1] for name in "AB")
    return "[[A]]" if a > b else "[[B]]" if b > a else "[[C]]"


class JudgeServer:
    """Answers each request with ``judge(messages)``; what is in ``next`` goes before: a status, or seconds to be late.

    A judge that answers with a text and the probabilities of first tokens gives their logarithms to requests with ``logprobs``.

    Attributes:
        requests: the bodies that came, in order, and ``times`` when.
        keys: what came as authorization.
    """

    def __init__(self, judge: Callable[[list[dict[str, str]]], str | tuple[str, dict[str, float]]]) -> None:
        self.judge = judge
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.keys: list[str | None] = []
        self.next: deque[Any] = deque()
        self.always: Any = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self) -> "JudgeServer":
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        self.requests.append(body)
        self.times.append(time.monotonic())
        self.keys.append(handler.headers["Authorization"])
        fault = self.next.popleft() if self.next else self.always
        status, headers, content = 200, {}, None
        if handler.path != "/v1/chat/completions":
            fault = 404
        if isinstance(fault, float):
            time.sleep(fault)
        elif isinstance(fault, bytes):
            content = fault
        elif fault is not None:
            status, headers = fault if isinstance(fault, tuple) else (fault, {})
            content = json.dumps({"error": {"message": f"fault {status}"}}).encode()
        if content is None:
            judged = self.judge(body["messages"])
            text, likeliest = judged if isinstance(judged, tuple) else (judged, {})
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            if likeliest and body.get("logprobs"):
                top = [{"token": token, "logprob": math.log(p), "bytes": None} for token, p in likeliest.items()]
                choice["logprobs"] = {"content": [{**top[0], "top_logprobs": top[: body["top_logprobs"]]}]}
            usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
            reply = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]}
            content = json.dumps(reply | {"choices": [choice], "usage": usage}).encode()
        try:
            handler.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(content)))
            handler.end_headers()
            handler.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client did not wait


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def mt_bench_files(folder: Path) -> tuple[Path, Path, Path]:
    questions = [{"question_id": q.id, "category": q.category, "turns": q.turns} for q in QUESTIONS]
    files = [write(folder / "question.jsonl", questions)]
    for answers in (GOOD, BAD):
        rows = [
            {"question_id": i, "model_id": answers.model, "choices": [{"index": 0, "turns": turns}]}
            for i, turns in answers.texts.items()
        ]
        files.append(write(folder / f"{answers.model}.jsonl", rows))
    return files[0], files[1], files[2]
