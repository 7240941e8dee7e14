"""FSDP2 with a Llama-style backbone: two real processes end with the weights of one."""

import json

import pytest
from safetensors.torch import load_file
from transformers import LlamaConfig

from contextwise.data import Corpus
from contextwise.models import ContextLMConfig, build_model
from small import EXACT, recipe_values
from trained import trained_by_two, weights


@pytest.fixture(scope="module")
def start(corpus_folder, tmp_path_factory):
    """An untrained ContextLM over Llama: two queries share keys and values, and the head is a matrix of its own."""
    tokenizer = Corpus.open(corpus_folder).tokenizer()
    llama = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    folder = tmp_path_factory.mktemp("llama") / "start"
    build_model(ContextLMConfig(llama, predictor_layers=1)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_two_sharded_processes_end_with_the_weights_of_one(start, corpus_folder, tmp_path):
    values = recipe_values(corpus_folder, tmp_path, **EXACT) | {"model": {"pretrained": str(start)}}
    one, two = trained_by_two(tmp_path, values, fsdp=True)
    before, after = load_file(start / "model.safetensors"), weights(one)
    assert before.keys() == after.keys()
    assert {"lm_head.weight", "backbone.embed_tokens.weight", "context.gate.weight"} <= after.keys()
    assert after["backbone.layers.0.self_attn.k_proj.weight"].shape == (16, 32)
    for name in after:
        assert (after[name] - before[name]).abs().max() > 1e-3, f"{name} was not trained"
    saved = json.loads((two.model / "config.json").read_text())
    assert saved["backbone_config"]["num_key_value_heads"] == 2
    assert saved["backbone_config"]["model_type"] == "llama"
