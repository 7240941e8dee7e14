"""FSDP2 with a Llama-style backbone: two real processes end with the weights of one."""

import json

import pytest
import yaml
from safetensors.torch import load_file
from transformers import LlamaConfig

from contextwise.base.runs import RunFolder
from contextwise.data import Corpus
from contextwise.models import ContextLMConfig, build_model
from processes import finish_training
from small import EXACT, recipe_values
from trained import trained, weights


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


def values(start, corpus, run, **training):
    return recipe_values(corpus, run, **EXACT | training) | {"model": {"pretrained": str(start)}}


@pytest.mark.slow
def test_two_sharded_processes_end_with_the_weights_of_one(start, corpus_folder, tmp_path):
    trained(values(start, corpus_folder, tmp_path / "one"))
    recipe = tmp_path / "two.yaml"
    recipe.write_text(yaml.safe_dump(values(start, corpus_folder, tmp_path / "two", fsdp=True)))
    status, output = finish_training(recipe, processes=2)
    assert status == 0, output[-2000:]
    before, one, two = (load_file(start / "model.safetensors"), weights(tmp_path / "one"), weights(tmp_path / "two"))
    assert before.keys() == one.keys() == two.keys()
    assert {"lm_head.weight", "backbone.embed_tokens.weight", "context.gate.weight"} <= two.keys()
    assert two["backbone.layers.0.self_attn.k_proj.weight"].shape == (16, 32)
    for name in one:
        assert (two[name] - one[name]).abs().max() < 1e-4, name
        assert (one[name] - before[name]).abs().max() > 1e-3, f"{name} was not trained"
    losses = [[row["loss"] for row in RunFolder(tmp_path / run).metrics()] for run in ("one", "two")]
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    saved = json.loads((RunFolder(tmp_path / "two").model / "config.json").read_text())
    assert saved["backbone_config"]["num_key_value_heads"] == 2
    assert saved["backbone_config"]["model_type"] == "llama"
