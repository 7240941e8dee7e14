"""``contextwise model serve``: the server of transformers with a model that it does not know, and with the openai client."""

import os
import signal
import subprocess
import sys
import time

import pytest

from contextwise.data.tokenizers import byte_tokenizer
from contextwise.models import load_model
from measured import make_model
from processes import free_port
from small import save_model

CHAT = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    pytest.importorskip("fastapi", reason="the serve extra is not installed")
    from starlette.testclient import TestClient
    from transformers.cli.serving.server import build_server

    from contextwise.cli import server

    tokenizer = byte_tokenizer().tokenizer
    tokenizer.chat_template = CHAT
    folder = tmp_path_factory.mktemp("served") / "model"
    save_model(folder, make_model("contextlm", vocab_size=257, n_positions=64), tokenizer)
    applications = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("transformers.cli.serving.model_manager.ModelManager", None)  # put back afterwards
        patched.setattr("transformers.cli.serving.server.build_server", build_server)
        patched.setattr("uvicorn.Server.run", lambda self: applications.append(self.config.app))
        server.serve(str(folder), "cpu", "localhost", 8000)
        with TestClient(applications[0]) as client:
            yield client


def complete(client, **changes):
    answer = client.post("/v1/completions", json={"prompt": "The company", "max_tokens": 12} | changes)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_temperature_zero_takes_the_likeliest_tokens_and_others_draw(client):
    greedy = [complete(client, temperature=0)["choices"][0]["text"] for _ in range(2)]
    drawn = [complete(client, temperature=1.5, seed=seed)["choices"][0]["text"] for seed in (3, 3, 4)]
    assert greedy[0] == greedy[1] and drawn[0] == drawn[1] and len({greedy[0], drawn[0], drawn[2]}) == 3


@pytest.mark.parametrize("wanted", [{"max_tokens": 1000}, {"max_tokens": None}])
def test_an_answer_ends_at_the_last_position(client, wanted):
    answer = complete(client, temperature=0, **wanted)
    assert answer["usage"]["completion_tokens"] == 64 - 11
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"prompt": "a" * 64}, "the prompt has 64 tokens, but the model has only 64 positions"),
        ({"prompt": ""}, "the prompt has no tokens"),
        ({"max_tokens": 0}, "0 tokens were asked for"),
        ({"model": "another/model"}, "Server is pinned to"),
    ],
)
def test_what_cannot_be_answered_is_told(client, changes, why):
    answer = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2} | changes)
    assert (answer.status_code, why in answer.json()["detail"]) == (400, True), answer.text


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},  # the template refuses it, and the next
        {"messages": [{"role": "system", "content": "Be brief."}]},
        {"messages": [{"content": "Hi"}]},
        {"messages": [{"content": "Hi"}], "stream": True},
        {},
        {"messages": None},
        {"messages": "Hi"},
        {"messages": ["Hi"]},
        {"messages": [{"role": "user", "content": 3}]},
        {"messages": [{"role": "user", "content": [{"text": "Hi"}]}]},
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": "many"},
        {"messages": [{"role": "user", "content": "Hi"}], "temperature": -1},
        {"messages": [{"role": "user", "content": "Hi"}], "generation_config": "{"},
    ],
)
def test_bodies_that_cannot_be_read_are_told(client, body):
    answer = client.post("/v1/chat/completions", json={"max_tokens": 5} | body)
    assert answer.status_code == 400 and answer.json()["detail"], answer.text
    complete(client)  # the server goes on


def test_chats_and_responses_are_answered(client):
    chat = {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 5}
    assert client.post("/v1/chat/completions", json=chat).json()["usage"]["completion_tokens"] == 5
    answer = client.post(
        "/v1/responses", json={"input": "Name a colour.", "max_output_tokens": 5, "stream": False}
    ).json()
    assert answer["status"] == "completed" and answer["output"][0]["content"][0]["text"]


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
        asked = {"model": name, "prompt": "the model", "max_tokens": 9, "temperature": 0}
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
