"""``contextwise serve``: a real server on a loopback port, spoken to with the openai client."""

import os
import socket
import subprocess
import sys
import time

import pytest

from contextwise.models import load_model, load_tokenizer
from contextwise.training import Recipe, train
from small import recipe_values

openai = pytest.importorskip("openai", reason="the serve extra is not installed")
pytest.importorskip("fastapi", reason="the serve extra is not installed")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.slow
def test_the_openai_client_gets_what_generate_gives(corpus_folder, tmp_path):
    run = train(Recipe.model_validate(recipe_values(corpus_folder, tmp_path / "run", steps=4))).path
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "contextwise", "serve", str(run), "--port", str(port), "--host", "127.0.0.1"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
        for _ in range(120):
            try:
                answer = client.completions.create(
                    model=str(run / "model"), prompt="the model", max_tokens=9, temperature=0
                )
                break
            except openai.APIConnectionError:
                assert server.poll() is None, server.stdout.read()
                time.sleep(1)
    finally:
        server.kill()
    tokenizer, model = load_tokenizer(run), load_model(run, device="cpu")
    prompt = tokenizer("the model", return_tensors="pt")
    expected = model.generate(**prompt, max_new_tokens=9, do_sample=False)[0, prompt.input_ids.shape[1] :]
    assert answer.choices[0].text == tokenizer.decode(expected, skip_special_tokens=True)
