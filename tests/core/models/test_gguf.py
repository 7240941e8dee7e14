"""``examples/serving/gguf_file.py``: what it writes is the model, as transformers reads GGUF files."""

import runpy
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig

from contextwise.data.tokenizers import learn_bpe
from small import save_model

EXAMPLE = Path(__file__).parents[3] / "examples/serving/gguf_file.py"
TEXTS = ["The loss of a language model is measured in nats.", "Sort a list of 12 numbers in place."] * 20


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_plain_run_is_written(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = learn_bpe(TEXTS, 300).tokenizer
    ends = {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    if family == "gpt2":
        config = GPT2Config(n_positions=64, n_embd=32, n_layer=2, n_head=2, **ends)
    else:
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 64}
        config = LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes, **ends)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    source = save_model(tmp_path / "model", model, tokenizer)
    monkeypatch.setattr("sys.argv", [str(EXAMPLE), str(source), str(tmp_path / "model.gguf")])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    tokens = torch.randint(0, len(tokenizer), (2, 20), generator=torch.Generator().manual_seed(0))
    read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", config=config).eval()
    torch.testing.assert_close(read(tokens).logits, model(tokens).logits)
    words = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    assert words(TEXTS[0]).input_ids == tokenizer(TEXTS[0]).input_ids
