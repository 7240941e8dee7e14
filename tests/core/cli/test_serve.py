"""``contextwise model serve``: transformers' own server on a loopback port, spoken to with the openai client."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from contextwise.data.tokenizers import byte_tokenizer
from contextwise.models import load_model
from measured import make_model
from small import save_model


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.slow
def test_the_openai_client_gets_what_generate_gives(tmp_path):
    """A ContextLM, which transformers does not know, in a folder whose name holds the sign of a revision."""
    openai = pytest.importorskip("openai", reason="the serve extra is not installed")
    pytest.importorskip("fastapi", reason="the serve extra is not installed")
    tokenizer = byte_tokenizer().tokenizer
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] + '\n' }}{% endfor %}"
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
