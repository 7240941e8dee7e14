"""A model exported with its code opens, and says the same, where Contextwise cannot be imported."""

import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from contextlm_models import contextlm, draw, normed, stock_model
from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.models.export import export_model_folder

ELSEWHERE = """
import sys
sys.modules["contextwise"] = None  # any import of it fails
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
tokens = torch.load(sys.argv[2])
with torch.no_grad():
    torch.save((model(tokens, use_cache=False).logits, model.generate(tokens, max_new_tokens=9, do_sample=False)), sys.argv[3])
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: contextlm("gpt2", chunk_size=3, injection="paper"), marks=pytest.mark.slow),
        lambda: contextlm("qwen3", chunk_size=3, pooling="attention", injection="projection"),
        lambda: normed("gpt2"),
    ],
    ids=["gpt2", "qwen3", "embedding norm"],
)
def test_an_exported_model_needs_no_contextwise(build, tmp_path):
    model = build()
    model.save_pretrained(tmp_path / "model")
    out = export_model_folder(tmp_path / "model", tmp_path / "out", standalone=True)
    tokens = draw(2, 11).clamp(min=1)
    torch.save(tokens, tmp_path / "tokens.pt")
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(out), str(tmp_path / "tokens.pt"), str(tmp_path / "found.pt")],
        env=os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    logits, text = torch.load(tmp_path / "found.pt")
    with torch.no_grad():
        assert torch.equal(logits, model(tokens, use_cache=False).logits)
    assert torch.equal(text, model.generate(tokens, max_new_tokens=9, do_sample=False))
    # and where Contextwise is installed it is opened by Contextwise's own class, without any trust
    assert type(AutoModelForCausalLM.from_pretrained(out)) is type(model)


def test_a_plain_copy_holds_the_same_files(tmp_path):
    contextlm("gpt2").save_pretrained(tmp_path / "model")
    out = export_model_folder(tmp_path / "model", tmp_path / "out", card="words")
    for file in (tmp_path / "model").iterdir():
        assert (out / file.name).read_bytes() == file.read_bytes()
    assert (out / "README.md").read_text() == "words"


def test_what_cannot_be_exported_is_reported(tmp_path):
    stock_model("gpt2").save_pretrained(tmp_path / "stock")
    with pytest.raises(ConfigError, match="stock gpt2, which loads everywhere"):
        export_model_folder(tmp_path / "stock", tmp_path / "out", standalone=True)
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        export_model_folder(tmp_path / "stock", tmp_path / "out")
    with pytest.raises(CheckpointError, match="there is no run and no model"):
        export_model_folder(tmp_path / "none" / "at" / "all", tmp_path / "new")
