"""The server of one model: what it answers, what it refuses, and with which sentence."""

import asyncio
import contextlib
import itertools
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from contextwise.models import ContextLMConfig, ContextLMForCausalLM
from contextwise.models.masks import as_attention_mask, prefix_attention
from contextwise.models.prefix import set_prompt_form
from contextwise.objectives.kind import PromptForm
from small import save_model, small_gpt2

openai = pytest.importorskip("openai", reason="the serve extra is not installed")
pytest.importorskip("fastapi", reason="the serve extra is not installed")


LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n"
    "{% if m['content'] == 'loop' %}" + LOOP + "{% endif %}{% endfor %}"
)


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


def test_equal_requests_have_equal_answers_also_at_once(server: Any) -> None:
    """While one answer is sampled, requests with other seeds and without one arrive; none of them changes it."""
    from starlette.testclient import TestClient

    from contextwise.cli.server import Guard

    client = TestClient(Guard(server.app, None, None, queue=50))
    asked = {"prompt": "the model", "max_tokens": 20, "temperature": 1.0}

    def answer(seed: int | None) -> str:
        given = asked if seed is None else asked | {"seed": seed}
        return client.post("/v1/completions", json=given).json()["choices"][0]["text"]

    alone = {seed: answer(seed) for seed in (3, 4)}
    assert alone[3] != alone[4]
    for _ in range(4):
        with ThreadPoolExecutor(3) as pool:
            several = [*pool.map(answer, [3, 4, None])]
            assert several[:2] == [alone[3], alone[4]]
            assert [*pool.map(answer, [3, 3, 3])] == [alone[3]] * 3
    assert answer(3) == alone[3] and answer(None) != answer(None)
    state = torch.random.get_rng_state()
    before = answer(None)
    torch.random.set_rng_state(state)
    answer(3)
    assert answer(None) == before  # a seed is of its request alone


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
        ({"prompt": "a", "n": 17}, "n: input should be less than or equal to 16"),
        ({"prompt": "a", "seed": 2**70}, "seed: input should be less than"),
        ({"prompt": "a", "seed": -1}, "seed: input should be greater than or equal to 0"),
        ({"prompt": "a", "temperature": -1}, "temperature: input should be greater than or equal to 0"),
        ({"prompt": "a", "temperature": 1e-300}, "temperature must be 0 or at least"),
        ({"prompt": "a", "top_p": 0}, "top_p: input should be greater than 0"),
        ({"prompt": "a", "stop": "x" * 257}, "stop"),
        ({"prompt": "a", "stop": ["xy" * 10] * 13}, "the texts have more than 256 characters in all"),
        ({"prompt": "a", "stop": [""]}, "string should have at least 1 character"),
        ({"prompt": "a", "frequency_penalty": -1}, "frequency_penalty: input should be greater than -1"),
        ({"prompt": "a", "logprobs": 6}, "logprobs: input should be less than or equal to 5"),
        ({"prompt": "a", "top_logprobs": 1}, "top_logprobs: is not supported"),
        ({"prompt": "a", "model": "gpt2"}, "the model here is"),
        ({"prompt": "a", "generation_config": "{"}, "generation_config: value error, it is not JSON"),
        ({"prompt": "a", "generation_config": '{"num_beams": 9}'}, "generation_config.num_beams: is not supported"),
        ({"prompt": "a", "generation_config": '{"temperature": 0}'}, "generation_config.temperature: input should be"),
        ({"prompt": "a", "generation_config": "[]"}, "generation_config: input should be a valid dictionary"),
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


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A client of a model in a run's folder, whose tokenizer has a chat template, and the run's folder."""
    from starlette.testclient import TestClient

    from contextwise.cli.server import OneModel, build_app
    from contextwise.data.tokenizers import byte_tokenizer

    tokenizer = byte_tokenizer().tokenizer
    tokenizer.chat_template = TEMPLATE
    folder = save_model(tmp_path_factory.mktemp("run") / "model", small_gpt2(), tokenizer)
    app = build_app(OneModel(str(folder), "cpu"), 20)
    return TestClient(app, base_url="http://localhost:8000"), folder.parent


@pytest.fixture(scope="module")
def address(chatting: Any) -> Iterator[str]:
    """Address of a real server of the model with a template, on a loopback port."""
    import uvicorn

    from contextwise.cli.server import Connection

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(chatting[0].app, http=Connection, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://localhost:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def test_transformers_chat_works(
    chatting: Any, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers.cli.chat import Chat, RichInterface

    from contextwise.models import load_model, load_tokenizer

    said = iter(["hello", "!exit"])
    monkeypatch.setattr(RichInterface, "input", lambda self: next(said))
    monkeypatch.setattr(RichInterface, "confirm", lambda *_: False)
    answers = []
    stream = RichInterface.stream_output

    async def kept(self: Any, events: Any) -> Any:
        answers.append(await stream(self, events))
        return answers[-1]

    monkeypatch.setattr(RichInterface, "stream_output", kept)
    run = str(chatting[1])
    Chat(run, address, ["max_new_tokens=7", "do_sample=False", "repetition_penalty=1.2"])
    shown = capsys.readouterr().out
    assert "was already loaded" in " ".join(shown.split()) and "7 tokens in" in shown
    prompt = load_tokenizer(run)("user: hello\n", return_tensors="pt")
    model = load_model(run, device="cpu")
    tokens = model.generate(**prompt, max_new_tokens=7, do_sample=False, repetition_penalty=1.2)[0, -7:]
    expected = load_tokenizer(run).decode(tokens, skip_special_tokens=True)
    ((text, reason),) = answers
    assert reason == "length" and text and expected.startswith(text.rstrip("\ufffd"))
    with pytest.raises(RuntimeError, match="the model here is .*, not 'gpt2'"):
        Chat("gpt2", address)


def test_answers_are_sampled_where_a_request_says_so(client: Any) -> None:
    def texts(**fields: Any) -> list[str]:
        answer = client.post("/v1/completions", json={"prompt": "the model", "max_tokens": 8, **fields})
        assert answer.status_code == 200, answer.text
        answer = answer.json()
        assert [choice["index"] for choice in answer["choices"]] == list(range(fields.get("n", 1)))
        assert answer["usage"]["completion_tokens"] == 8 * len(answer["choices"])
        assert answer["usage"]["total_tokens"] == 9 + answer["usage"]["completion_tokens"]
        return [choice["text"] for choice in answer["choices"]]

    three = texts(temperature=1.0, seed=5, n=3)
    assert len(set(three)) == 3 and texts(n=3, seed=5) == three
    assert [texts(temperature=1.0, seed=seed)[0] for seed in (5, 6, 7)] == three
    greedy = texts(temperature=0)
    assert texts() == greedy != three[:1] and texts(temperature=0, n=2) == 2 * greedy
    assert texts(stop=[]) == greedy
    assert texts(top_p=1e-9, seed=1) == texts(temperature=1e-3) == greedy
    answer = client.post("/v1/completions", json={"prompt": "a", "n": 2, "stream": True})
    assert answer.status_code == 400 and "streams have one answer" in answer.json()["error"]["message"]


def chunks_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def small_context_lm() -> ContextLMForCausalLM:
    config = small_gpt2().config
    torch.manual_seed(0)
    return ContextLMForCausalLM(ContextLMConfig(config, chunk_size=4, predictor_layers=1))


def full_forward(model: Any, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """Log-probabilities of every token behind the prompt and each answered token but the last, by one forward."""
    logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return logits.detach().float().log_softmax(-1)


def test_a_chat_template_that_loops_is_ended_while_other_requests_are_answered(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contextwise.cli.server.TEMPLATE_SECONDS", 3)
    before, answers = threading.active_count(), []
    asked = json.dumps({"messages": [{"role": "user", "content": "loop"}]}).encode()

    def ask() -> None:
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(f"{address}/v1/chat/completions", asked)
        answers.append((refusal.value.code, json.load(refusal.value)["error"]["message"]))

    chat = threading.Thread(target=ask)
    chat.start()
    while threading.active_count() < before + 2:  # the request's thread and the template's
        assert chat.is_alive()
    with urllib.request.urlopen(f"{address}/health") as health:
        assert health.status == 200
    assert not answers
    chat.join()
    assert answers == [(400, "the chat template takes more than 3 s for these messages")]
    for _ in range(600):
        if threading.active_count() == before:
            break
        time.sleep(0.1)
    assert threading.active_count() == before


def test_the_event_loop_renders_no_chat_template(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered, render = [], PreTrainedTokenizerBase.apply_chat_template

    def apply(self: Any, *arguments: Any, **named: Any) -> Any:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            raise AssertionError("the event loop waits for the template")
        rendered.append(render(self, *arguments, **named))
        return rendered[-1]

    monkeypatch.setattr(PreTrainedTokenizerBase, "apply_chat_template", apply)
    asked = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    with urllib.request.urlopen(f"{address}/v1/chat/completions", json.dumps(asked).encode()) as answer:
        usage = json.load(answer)["usage"]
    assert [usage["prompt_tokens"]] == [each.input_ids.shape[-1] for each in rendered]


@pytest.mark.parametrize("form", [PromptForm(), PromptForm(before=(200, 201), after=(202,), opening=(203,))])
def test_a_prefix_model_reads_the_prompt_in_both_directions(form: PromptForm, tmp_path: Path) -> None:
    """The tokens of an answer and their log-probabilities are those of whole passes with the mask of training."""
    from starlette.testclient import TestClient

    from contextwise.cli.server import OneModel, build_app

    model = small_gpt2(n_layer=2)
    for parameter in model.parameters():  # far from the uniform distribution
        parameter.data.mul_(6 if parameter.dim() > 1 else 1)
    set_prompt_form(model.config, form)
    client = TestClient(build_app(OneModel(str(save_model(tmp_path / "model", model)), "cpu"), 20))
    asked = {"prompt": "the model", "max_tokens": 8, "temperature": 0, "logprobs": 1}
    found = client.post("/v1/completions", json=asked).json()["choices"][0]["logprobs"]
    ids = [*form.before, *b"the model", *form.after, *form.opening]
    prefix = len(ids) - len(form.opening)

    def after(prefix: int) -> torch.Tensor:
        seen = torch.arange(len(ids)) < prefix
        mask = as_attention_mask(prefix_attention(seen[None]), model)
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids]), attention_mask=mask).logits[0, -1].log_softmax(-1)

    assert (after(prefix) - after(1)).abs().max() > 1e-2  # from what a causal model would see
    for token, logprob in zip(found["tokens"], found["token_logprobs"], strict=True):
        expected = after(prefix)
        ids.append(int(expected.argmax()))
        assert (int(token[8:], 16) if token.startswith("bytes:") else ord(token)) == ids[-1]
        assert logprob == pytest.approx(float(expected.max()), abs=1e-4)


@pytest.mark.parametrize("make", [small_gpt2, small_context_lm])
def test_logprobs_are_those_of_a_full_forward(make: Any, tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    from contextwise.cli.server import OneModel, build_app
    from contextwise.data.tokenizers import byte_tokenizer

    model, tokenizer = make().eval(), byte_tokenizer().tokenizer
    tokenizer.chat_template = TEMPLATE
    client = TestClient(build_app(OneModel(str(save_model(tmp_path / "model", model, tokenizer)), "cpu"), 20))
    asked = {"prompt": "the model", "max_tokens": 12, "temperature": 0.7, "seed": 3, "frequency_penalty": 0.5}
    choices = client.post("/v1/completions", json=asked | {"logprobs": 3, "n": 2}).json()["choices"]
    for choice in choices:
        found = choice["logprobs"]
        shown = [token.removeprefix("bytes:\\x") for token in found["tokens"]]
        tokens = [int(text, 16) if len(text) == 2 else ord(text) for text in shown]  # the tokens are bytes
        expected = full_forward(model, list(b"the model"), tokens)
        own = expected[range(len(tokens)), tokens]
        torch.testing.assert_close(torch.tensor(found["token_logprobs"]), own, atol=1e-4, rtol=0)
        for row, likeliest in zip(expected, found["top_logprobs"], strict=True):
            values = sorted(likeliest.values(), reverse=True)[:3]
            torch.testing.assert_close(torch.tensor(values), row.topk(3).values, atol=1e-4, rtol=0)
        starts = found["text_offset"]
        assert len(starts) == len(tokens) and starts[0] == 0 and starts == sorted(starts)
        for token, start in zip(found["tokens"], starts, strict=True):
            assert choice["text"][start:].startswith(token) or token.startswith("bytes:")
    assert len({tuple(choice["logprobs"]["tokens"]) for choice in choices}) == 2

    asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "temperature": 0, "logprobs": True}
    answer = client.post("/v1/chat/completions", json=asked | {"top_logprobs": 2}).json()
    content = openai.types.chat.ChatCompletion.model_validate(answer).choices[0].model_dump()["logprobs"]["content"]
    tokens = [byte for each in content for byte in each["bytes"]]
    expected = full_forward(model, list(b"user: hi\n"), tokens)
    assert [each["logprob"] for each in content] == pytest.approx(expected.max(-1).values.tolist(), abs=1e-4)
    assert [each["top_logprobs"][1]["logprob"] for each in content] == pytest.approx(
        expected.topk(2).values[:, 1].tolist(), abs=1e-4
    )
    streamed = chunks_of(client.post("/v1/chat/completions", json=asked | {"top_logprobs": 2, "stream": True}).text)
    pieces = [chunk["choices"][0] for chunk in streamed if "logprobs" in chunk["choices"][0]]
    assert [each for piece in pieces for each in piece["logprobs"]["content"]] == content
    alone = client.post("/v1/chat/completions", json=asked).json()["choices"][0]["logprobs"]["content"]
    assert alone == [each | {"top_logprobs": []} for each in content]


def test_an_answer_ends_before_a_stop_string(client: Any) -> None:
    asked = {"prompt": "the model", "max_tokens": 20, "temperature": 1.0, "seed": 2, "logprobs": 0}
    whole = client.post("/v1/completions", json=asked).json()["choices"][0]
    letters = [i for i, token in enumerate(whole["logprobs"]["tokens"][:-2]) if len(token) == 1 and i > 2]
    first = next(i for i, j in itertools.pairwise(letters) if j == i + 1)
    stop = "".join(whole["logprobs"]["tokens"][first : first + 2])
    for stops in (stop, ["no such", stop, stop + "no"]):
        answer = client.post("/v1/completions", json=asked | {"stop": stops}).json()
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "stop" and choice["text"] == whole["text"].partition(stop)[0]
        assert choice["logprobs"]["token_logprobs"] == whole["logprobs"]["token_logprobs"][:first]
        assert choice["logprobs"]["top_logprobs"] == [None] * first
        streamed = chunks_of(client.post("/v1/completions", json=asked | {"stop": stops, "stream": True}).text)
        choices = [chunk["choices"][0] for chunk in streamed]
        assert "".join(each["text"] for each in choices) == choice["text"]
        scores = [value for each in choices if "logprobs" in each for value in each["logprobs"]["token_logprobs"]]
        assert scores == choice["logprobs"]["token_logprobs"]
    unmatched = chunks_of(client.post("/v1/completions", json=asked | {"stop": stop + "~~~", "stream": True}).text)
    assert whole["text"].startswith("".join(each["choices"][0]["text"] for each in unmatched))
    assert stop in "".join(each["choices"][0]["text"] for each in unmatched)


def test_a_stream_ends_with_the_usage(chatting: Any) -> None:
    asked = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "stream": True}
    events = chatting[0].post("/v1/chat/completions", json=asked | {"stream_options": {"include_usage": True}})
    chunks = [json.loads(line[6:]) for line in events.text.splitlines() if line.startswith("data: {")]
    assert events.status_code == 200 and chunks[-1]["usage"]["completion_tokens"] == 3


def test_only_the_model_here_is_ready(client: Any, server: Any) -> None:
    for body, status in ((b"{}", 400), (b"[]", 400), (b"\xff", 400), (b'{"model": "gpt2"}', 200)):
        answer = client.post("/load_model", content=body)
        assert answer.status_code == status and "ready" not in answer.text
    own = client.get("/v1/models").json()["data"][0]["id"]
    assert "has no chat template" in client.post("/load_model", json={"model": own}).text


def test_a_chat_is_answered(chatting: Any) -> None:
    client, _ = chatting
    parts = [{"type": "text", "text": "hello"}]
    for content in ("hello", parts):
        asked = {"messages": [{"role": "user", "content": content}], "max_completion_tokens": 3, "temperature": 0}
        answer = client.post("/v1/chat/completions", json=asked).json()
        assert answer["usage"]["completion_tokens"] <= 3 and answer["choices"][0]["message"]["role"] == "assistant"
    asked = {"messages": [{"role": "user", "content": "hello"}], "top_logprobs": 2}
    answer = client.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 400 and "top_logprobs goes with logprobs: true" in answer.json()["error"]["message"]
    for messages in (
        [],
        [{"role": "user"}],
        [{"role": "tool", "content": "a"}],
        "a",
        [{"role": "user", "content": []}],
    ):
        assert client.post("/v1/chat/completions", json={"messages": messages}).status_code == 400


@pytest.mark.parametrize(
    "path", ["/reset", "/v1/responses", "/v1/audio/transcriptions", "/v1/systemone", "/docs", "/openapi.json"]
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


def test_connections_without_a_request_do_not_keep_others_out(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextwise.cli.server import Connection

    monkeypatch.setattr(Connection, "most", 5)
    host, port = address.removeprefix("http://").split(":")
    waiting = [socket.create_connection((host, int(port)), timeout=60) for _ in range(20)]
    for each in waiting:
        with contextlib.suppress(ConnectionError):
            each.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
    with urllib.request.urlopen(f"{address}/health") as answer:
        assert answer.status == 200
    for each in waiting[:14]:
        with contextlib.suppress(ConnectionError):
            assert each.recv(1) == b""
    waiting[-1].sendall(b"alhost\r\n\r\n")
    assert waiting[-1].recv(12) == b"HTTP/1.1 200"
    for each in waiting:
        each.close()


def test_headers_must_arrive_in_time(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contextwise.cli.server.BODY_SECONDS", 0.2)
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as waiting, contextlib.suppress(ConnectionError):
        waiting.sendall(b"GET /health HTTP/1.1\r\n")
        assert waiting.recv(1) == b""


def test_an_unexpected_error_is_one_line(
    server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from starlette.testclient import TestClient

    from contextwise.cli.scored import Completions

    def fail(*_: Any) -> Any:
        raise RuntimeError("it broke")

    monkeypatch.setattr(Completions, "handle_request", fail)
    client = TestClient(server, base_url="http://localhost:8000")
    answer = client.post("/v1/completions", json={"prompt": "a", "stop": []})
    assert answer.status_code == 500 and "RuntimeError" in answer.json()["error"]["message"]
    assert "error: unexpected RuntimeError: it broke" in capsys.readouterr().err
