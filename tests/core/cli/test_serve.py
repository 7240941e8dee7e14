"""``contextwise model serve``: in a process, with the openai client, and in this one, with bodies and sockets of all kinds."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from urllib.request import Request, urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextwise.data.tokenizers import byte_tokenizer
from contextwise.models import load_model
from measured import make_model
from small import save_model


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


CHAT = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    pytest.importorskip("fastapi", reason="the serve extra is not installed")
    from contextwise.cli.server import make_app

    tokenizer = byte_tokenizer().tokenizer
    tokenizer.chat_template = CHAT
    folder = tmp_path_factory.mktemp("served") / "model"
    save_model(folder, make_model("contextlm", vocab_size=257, n_positions=64), tokenizer)
    return make_app(str(folder), "cpu")


@pytest.fixture(scope="module")
def client(app):
    from starlette.testclient import TestClient

    with TestClient(app) as client:  # 500 for what the server does not handle raises here
        yield client


@contextmanager
def listening(app):
    """The port of the application in a server of its own thread."""
    from contextwise.cli.server import make_server

    server = make_server(app, "127.0.0.1", port := free_port())
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield port
    finally:
        server.should_exit = True
        thread.join()


def fetch(port, path, body=None, seconds=20):
    """What a server answers, decoded."""
    request = Request(f"http://127.0.0.1:{port}{path}", headers={"content-type": "application/json"})
    request.data = None if body is None else json.dumps(body).encode()
    with urlopen(request, timeout=seconds) as answer:
        return json.load(answer)


def text_of(path, answer):
    if path == "/v1/responses":
        return answer["output"][0]["content"][0]["text"]
    choice = answer["choices"][0]
    return choice["text"] if path == "/v1/completions" else choice["message"]["content"]


REQUESTS = {
    "/v1/completions": {"prompt": "The company said", "max_tokens": 12},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 12},
    "/v1/responses": {"input": "Name a colour.", "max_output_tokens": 12},
}


@pytest.mark.long
@pytest.mark.parametrize("path", REQUESTS)
def test_a_seed_is_that_of_its_request(client, path):
    """Beside others at the same time, too; without a seed each answer is drawn anew."""

    def ask(seed):
        sampling = {"temperature": 1.5} | ({} if seed is None else {"seed": seed})
        answer = client.post(path, json=REQUESTS[path] | sampling)
        assert answer.status_code == 200, answer.text
        return text_of(path, answer.json())

    alone = {seed: ask(seed) for seed in (3, 4)}
    with ThreadPoolExecutor(8) as threads:
        texts = list(threads.map(ask, seeds := [3, 4, None, 3, 4, None, 3, 4]))
    assert all(text == alone[seed] for text, seed in zip(texts, seeds, strict=True) if seed is not None)
    assert len({alone[3], alone[4], texts[2], texts[5]}) == 4


def test_a_stream_draws_what_the_answer_does(client):
    asked = REQUESTS["/v1/completions"] | {"seed": 3, "top_p": 0.9, "stream": False}
    answer = client.post("/v1/completions", json=asked).json()
    lines = client.post("/v1/completions", json=asked | {"stream": True}).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines if line]
    whole = answer["choices"][0]
    streamed = "".join(chunk["text"] for chunk in chunks)
    assert len(streamed) > 3 and whole["text"].rstrip("\N{REPLACEMENT CHARACTER}").startswith(
        streamed.rstrip("\N{REPLACEMENT CHARACTER}")
    )  # a stream leaves out the bytes of a letter that is not whole
    assert chunks[-1]["finish_reason"] == whole["finish_reason"] == "length"


def test_temperature_zero_is_greedy_and_the_answer_ends_at_the_last_position(client):
    asked = {"prompt": "The company", "max_tokens": 1000, "temperature": 0, "n": 1, "user": "me", "stop": None}
    first, second = (client.post("/v1/completions", json=asked).json() for _ in range(2))
    assert text_of("/v1/completions", first) == text_of("/v1/completions", second)
    assert first["usage"]["completion_tokens"] == 64 - 11


@pytest.mark.parametrize(
    ("path", "changes", "why"),
    [
        ("/v1/completions", {"prompt": "a" * 64}, "the prompt has 64 tokens, but the model has only 64 positions"),
        ("/v1/completions", {"prompt": ["a", "b"]}, "prompt: Input should be a valid string"),
        ("/v1/completions", {"prompt": ""}, "prompt: String should have at least 1 character"),
        ("/v1/completions", {"prompt": None}, "prompt: Field required"),
        ("/v1/completions", {"logprobs": 3}, "logprobs: this server does not support it"),
        ("/v1/completions", {"n": 2}, "n: this server does not support it"),
        ("/v1/completions", {"seed": -1}, "seed: Input should be greater than or equal to 0"),
        (
            "/v1/completions",
            {"temperature": 1e-9},
            "temperature: Value error, give 0, for the likeliest token, or at least",
        ),
        ("/v1/completions", {"max_tokens": True}, "max_tokens: Input should be a valid integer"),
        ("/v1/completions", {"model": "../../etc/passwd"}, "this server has one model, "),
        ("/v1/chat/completions", {"messages": []}, "messages: List should have at least 1 item"),
        ("/v1/chat/completions", {"tools": [{"type": "function"}]}, "tools: this server does not support it"),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "image", "text": ""}]}]}, "Input should be"),
    ],
)
def test_what_a_request_cannot_have_is_named(client, path, changes, why):
    answer = client.post(path, json=REQUESTS[path] | changes)
    assert (answer.status_code, why in answer.json()["error"]["message"]) == (400, True), answer.text


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (400, b"", {}),
        (400, b"[" * 100_000, {}),
        (400, b'{"prompt": "\\ud800"}', {}),
        (400, b'{"prompt": "a", "seed": NaN}', {}),
        (400, b'"../../etc/passwd"', {}),
        (413, b'{"prompt": "' + b"a" * 2**21 + b'"}', {}),
        (415, b'{"prompt": "a"}', {"content-type": "text/plain"}),
    ],
)
def test_what_is_no_request_is_refused(client, status, body, headers):
    answer = client.post("/v1/completions", content=body, headers={"content-type": "application/json"} | headers)
    assert answer.status_code == status and answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/load_model", "/reset", "/v1/systemone", "/v1/audio/transcriptions", "/docs"])
def test_nothing_loads_or_drops_a_model(client, path):
    answers = client.post(path, json={"model": {}}), client.get(path)
    assert {answer.status_code for answer in answers} == {404}
    assert client.post("/health").status_code == client.get("/v1/completions").status_code == 405


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda value: st.lists(value, max_size=2) | st.dictionaries(st.text(max_size=5), value, max_size=2),
    max_leaves=4,
)
FIELDS = [
    *(
        "model",
        "prompt",
        "messages",
        "input",
        "instructions",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
    ),
    *(
        "temperature",
        "top_p",
        "seed",
        "stop",
        "stream",
        "n",
        "echo",
        "logprobs",
        "logit_bias",
        "generation_config",
        "suffix",
    ),
]


@pytest.mark.long
@given(st.sampled_from(sorted(REQUESTS)), st.dictionaries(st.sampled_from(FIELDS), VALUES, min_size=1, max_size=3))
def test_any_body_is_answered_or_refused(client, path, changes):
    """The client of the test raises what the server would answer with status 500."""
    body = json.dumps(
        {**REQUESTS[path], "max_tokens": 2} | changes if path != "/v1/responses" else REQUESTS[path] | changes
    )
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400)
    assert answer.status_code == 200 or answer.json()["error"]["message"]


@pytest.mark.long
def test_half_open_connections_do_not_starve_the_others(app, monkeypatch):
    monkeypatch.setattr("contextwise.cli.server.MOST_SECONDS", 1.0)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
    sent = [b"", b"GET /heal", head, head + b"Content-Length: 100\r\n\r\n{"]
    with listening(app) as port:
        sockets = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(100)]
        for number, each in enumerate(sockets):
            each.sendall(sent[number % 4])
        assert fetch(port, "/health", seconds=1) == {"status": "ok"}
        assert fetch(port, "/v1/completions", REQUESTS["/v1/completions"])["usage"]["completion_tokens"] == 12
        answers = {each.recv(1000)[:12] for each in sockets[3::4]}
        assert answers == {b"HTTP/1.1 408"}
        for number, each in enumerate(sockets):
            if number % 4 != 3:
                with suppress(ConnectionResetError):
                    assert each.recv(1) == b""
            each.close()


@pytest.mark.long
@pytest.mark.parametrize("stream", [True, False])
def test_nothing_is_generated_for_a_client_that_has_left(app, monkeypatch, stream):
    steps = []

    def slow(self, input_ids, scores):
        steps.append(1)
        time.sleep(0.1)
        return scores

    monkeypatch.setattr("transformers.TemperatureLogitsWarper.__call__", slow)
    body = json.dumps({"prompt": "a", "max_tokens": 60, "temperature": 1.5, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    with listening(app) as port:
        with socket.create_connection(("127.0.0.1", port)) as leaver:
            leaver.sendall(head.encode() + b"\r\n" + body)
            while not steps:
                time.sleep(0.01)
        assert fetch(port, "/v1/completions", {"prompt": "a", "max_tokens": 2})["usage"]["completion_tokens"] == 2
    assert len(steps) < 30


@pytest.mark.slow
def test_the_openai_client_gets_what_generate_gives(tmp_path):
    """A ContextLM, which transformers does not know, in a folder whose name holds the sign of a revision."""
    openai = pytest.importorskip("openai", reason="the serve extra is not installed")
    pytest.importorskip("fastapi", reason="the serve extra is not installed")
    tokenizer = byte_tokenizer().tokenizer
    tokenizer.chat_template = CHAT
    folder = save_model(tmp_path / "a@b", make_model("contextlm", vocab_size=257, n_positions=600), tokenizer)
    name, port = str(folder), free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "contextwise", "model", "serve", name, "--port", str(port), "--device", "cpu"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        client = openai.OpenAI(base_url=f"http://localhost:{port}/v1", api_key="none", max_retries=0)
        for _ in range(120):
            try:
                assert [model.id for model in client.models.list()] == [name]
                break
            except openai.APIConnectionError:
                assert server.poll() is None, server.stdout.read()
                time.sleep(1)
        asked = {"model": name, "prompt": "the model", "max_tokens": 9}
        answer = client.completions.create(**asked).choices[0].text
        streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True))
        messages = [{"role": "user", "content": "Name a colour."}]
        chat = client.chat.completions.create(model=name, messages=messages, max_tokens=5)
        with pytest.raises(openai.BadRequestError):  # the server is pinned to its model
            client.completions.create(**asked | {"model": "another/model"})
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 143
    finally:
        server.kill()
    prompt = tokenizer("the model", return_tensors="pt")
    expected = load_model(folder, device="cpu").generate(**prompt, max_new_tokens=9, do_sample=False)
    expected = tokenizer.decode(expected[0, prompt.input_ids.shape[1] :], skip_special_tokens=True)
    assert answer == streamed == expected and answer.isascii()
    assert chat.usage.completion_tokens == 5


def test_what_cannot_be_served_is_refused(contextwise, tmp_path):
    contextwise.refused(f"model serve {tmp_path}/none", "there is no run and no model at")
    contextwise.refused(f"model serve {tmp_path}", "contains no model")
