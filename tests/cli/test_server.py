"""The server of one model: what it answers, what it refuses, and with which sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from small import save_model, small_gpt2

pytest.importorskip("fastapi", reason="the serve extra is not installed")


TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The application around a model with 48 positions, which accepts three requests at a time."""
    from contextwise.cli.server import LOOPBACK, Guard, OneModel, build_app

    folder = save_model(tmp_path_factory.mktemp("served") / "model", small_gpt2())
    return Guard(build_app(OneModel(str(folder), "cpu"), most_tokens=20), LOOPBACK, None, queue=3)


@pytest.fixture
def client(server: Any) -> Any:
    from starlette.testclient import TestClient

    return TestClient(server, base_url="http://localhost:8000", raise_server_exceptions=False)


def test_a_prompt_is_continued(client: Any) -> None:
    given = {"prompt": "the model", "max_tokens": 5, "temperature": 0}
    answer = client.post("/v1/completions", json=given)
    assert answer.status_code == 200
    assert answer.json()["usage"] == {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
    streamed = client.post("/v1/completions", json=given | {"stream": True}).text
    chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text and answer.json()["choices"][0]["text"].startswith(text)  # half a character at the end is not streamed


def test_an_answer_ends_at_the_limit_and_at_the_last_position(client: Any) -> None:
    for prompt, tokens in (("the model", 20), ("x" * 40, 8)):
        answer = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 10**9, "temperature": 0}).json()
        assert 1 <= answer["usage"]["completion_tokens"] <= tokens


def test_the_model_is_listed(client: Any, server: Any) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert (
        client.post("/v1/completions", json={"prompt": "a", "model": model["id"], "max_tokens": 1}).status_code == 200
    )


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "prompt: field required"),
        ({"prompt": ""}, "prompt: string should have at least 1 character"),
        ({"prompt": ["a"]}, "prompt: input should be a valid string"),
        ({"prompt": "x" * 48}, "the prompt has 48 tokens, but the model has 48 positions"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens: input should be greater than or equal to 1"),
        ({"prompt": "a", "max_tokens": "5"}, "max_tokens: input should be a valid integer"),
        ({"prompt": "a", "n": 2}, "n: input should be 1"),
        ({"prompt": "a", "seed": 2**70}, "seed: input should be less than"),
        ({"prompt": "a", "seed": -1}, "seed: input should be greater than or equal to 0"),
        ({"prompt": "a", "temperature": -1}, "temperature: input should be greater than or equal to 0"),
        ({"prompt": "a", "temperature": 1e-300}, "temperature must be 0 or at least"),
        ({"prompt": "a", "top_p": 0}, "top_p: input should be greater than 0"),
        ({"prompt": "a", "stop": [""]}, "string should have at least 1 character"),
        ({"prompt": "a", "frequency_penalty": -1}, "frequency_penalty: input should be greater than -1"),
        ({"prompt": "a", "model": "gpt2"}, "the model here is"),
        ({"prompt": "a", "generation_config": "{}"}, "generation_config: is not supported"),
    ],
)
def test_a_wrong_request_is_refused_with_a_sentence(client: Any, fields: dict[str, Any], why: str) -> None:
    answer = client.post("/v1/completions", json=fields)
    assert answer.status_code == 400 and why in answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"3", b"\xff\xfe", b"[" * 100_000, b'{"prompt": "\\ud800"}', b'{"prompt": NaN}']
)
def test_what_is_no_request_is_refused(client: Any, content: bytes) -> None:
    answer = client.post("/v1/completions", content=content)
    assert answer.status_code == 400 and answer.json()["error"]["message"]


def test_a_chat_needs_a_template(client: Any, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hello"}]
    answer = client.post("/v1/chat/completions", json={"messages": messages})
    assert answer.status_code == 400 and "no chat template" in answer.json()["error"]["message"]


def test_a_chat_is_answered(tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    from contextwise.cli.server import OneModel, build_app
    from contextwise.data.tokenizers import byte_tokenizer

    tokenizer = byte_tokenizer().tokenizer
    tokenizer.chat_template = TEMPLATE
    folder = save_model(tmp_path / "model", small_gpt2(), tokenizer)
    client = TestClient(build_app(OneModel(str(folder), "cpu"), 20))
    parts = [{"type": "text", "text": "hello"}]
    for content in ("hello", parts):
        asked = {"messages": [{"role": "user", "content": content}], "max_completion_tokens": 3, "temperature": 0}
        answer = client.post("/v1/chat/completions", json=asked).json()
        assert answer["usage"]["completion_tokens"] <= 3 and answer["choices"][0]["message"]["role"] == "assistant"
    for messages in (
        [],
        [{"role": "user"}],
        [{"role": "tool", "content": "a"}],
        "a",
        [{"role": "user", "content": []}],
    ):
        assert client.post("/v1/chat/completions", json={"messages": messages}).status_code == 400


@pytest.mark.parametrize(
    "path",
    ["/load_model", "/reset", "/v1/responses", "/v1/audio/transcriptions", "/v1/systemone", "/docs", "/openapi.json"],
)
def test_other_routes_are_off(client: Any, path: str) -> None:
    for answer in (client.post(path, json={"model": "gpt2"}), client.get(path)):
        assert answer.status_code == 404 and "there is no" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://localhost:8000"}, 200),
        ({"Origin": "http://localhost:8001"}, 403),
        ({"Origin": "https://example.org"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "example.org:8000"}, 403),
        ({"Host": "127.0.0.1:8000"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "localhost.example.org"}, 403),
        ({"Host": "[x"}, 400),
        ({"Origin": "http://["}, 400),
    ],
)
def test_pages_of_other_origins_are_refused(client: Any, headers: dict[str, str], status: int) -> None:
    assert client.get("/health", headers=headers).status_code == status
    assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers=headers).status_code == status


def test_a_key_is_required_where_there_is_one(server: Any) -> None:
    from starlette.testclient import TestClient

    from contextwise.cli.server import Guard

    client = TestClient(Guard(server.app, None, "secret", 3))
    assert client.get("/health").status_code == 401
    assert client.get("/health", headers={"Authorization": "Bearer secre"}).status_code == 401
    assert client.get("/health", headers=[(b"Authorization", b"Bearer \xe9")]).status_code == 401
    assert client.get("/health", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_large_requests_are_refused(client: Any) -> None:
    assert client.post("/v1/completions", json={"prompt": "x" * 2**21}).status_code == 413

    def pieces() -> Any:  # of a length that is not said before
        for _ in range(40):
            yield b"x" * 2**16

    assert client.post("/v1/completions", content=pieces()).status_code == 413


def test_too_many_requests_at_once_are_refused(server: Any, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "running", 3)
    answer = client.post("/v1/completions", json={"prompt": "a"})
    assert answer.status_code == 503 and "3 requests are being answered already" in answer.json()["error"]["message"]
