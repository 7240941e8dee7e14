"""Attention of models in one text."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise.base.errors import CheckpointError, ConfigError, DataError
from contextwise.data import Corpus
from contextwise.models.loading import load_tokenizer
from contextwise_papers.contextlm.attention import (
    MOST_TOKENS,
    ModelReading,
    Reading,
    mean_received,
    read_with,
    read_with_models,
    token_pieces,
)
from contextwise_papers.objectives import MultiTokenForCausalLM
from examples import FEW

VOCABULARY = 300
TEXT = "The model reads tokens, and predicts the next chunk."


def gpt2(positions=64, vocabulary=VOCABULARY):
    return GPT2Config(
        vocab_size=vocabulary, n_positions=positions, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3
    )


def llama():
    return LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=32,
        initializer_range=0.3,
    )


def contextlm(backbone=None, **options):
    """A ContextLM in which the context matters: its gate is drawn, not zero."""
    torch.manual_seed(1)
    model = ContextLMForCausalLM(ContextLMConfig(backbone or gpt2(), **options)).eval()
    for weight in model.context.gate.parameters():
        torch.nn.init.normal_(weight)
    return model


def draw(length=13):
    return torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def saved(tmp_path, corpus_folder):
    """Saves a model with a tokenizer of bytes, and gives its folder."""

    def save(model, name, tokenizer=None):
        model.save_pretrained(tmp_path / name)
        (tokenizer or Corpus.open(corpus_folder).tokenizer()).save_pretrained(tmp_path / name)
        return str(tmp_path / name)

    return save


def test_a_worked_example():
    """Three tokens: scores 0; 0, ln 3; 0, 0, ln 2 give the rows 1; 1/4, 3/4; 1/4, 1/4, 1/2."""
    scores = torch.tensor([[0, -math.inf, -math.inf], [0, math.log(3), -math.inf], [0, 0, math.log(2)]])
    rows = scores.softmax(-1)
    sums = rows.sum(0).numpy()
    assert sums == pytest.approx([1.5, 1.0, 0.5])
    assert mean_received(sums) == pytest.approx([1.5 / 3, 1.0 / 2, 0.5])
    model = ModelReading("", "", [sums[None]], None)
    reading = Reading(["a", "b", "c"], [1, 2, 3], False, 2, [model])
    assert list(reading.chunks) == [0, 0, 1]
    assert reading.chunk_sums(model.received()) == pytest.approx([1.0, 0.5])
    assert reading.chunk_sums(sums) == pytest.approx([2.5, 0.5])


def test_the_sums_are_those_of_the_models_own_weights():
    model, ids = GPT2LMHeadModel(gpt2()).eval(), draw()
    result = read_with(model, ids[0].tolist(), "a", "a").layers
    own = model(ids, output_attentions=True).attentions
    assert len(result) == len(own) == 2
    for sums, weights in zip(result, own, strict=True):
        np.testing.assert_allclose(sums, weights[0].detach().sum(1).numpy(), rtol=1e-6)
        # By hand, too: the mean over the queries from j on of row i's weight on j.
        by_hand = [weights[0, 1, j:, j].mean().item() for j in range(13)]
        assert mean_received(sums)[1] == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize(
    ("model", "layers", "heads", "chunk_size"),
    [
        (lambda: GPT2LMHeadModel(gpt2()), 2, 2, None),
        (lambda: LlamaForCausalLM(llama()), 2, 4, None),
        (lambda: contextlm(predictor_layers=3), 2, 2, 4),
        (lambda: contextlm(llama(), chunk_size=5, inject_every_layer=True), 2, 4, 5),
        (lambda: MultiTokenForCausalLM.from_backbone(GPT2LMHeadModel(gpt2()), 3), 2, 2, None),
        (lambda: MultiTokenForCausalLM.from_backbone(contextlm(), 2, "linear"), 2, 2, 4),
        (lambda: BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=3, n_head=2)), 3, 2, None),
    ],
    ids=["gpt2", "llama", "contextlm", "contextlm llama", "multi-token", "multi-token over contextlm", "bloom"],
)
def test_every_query_gives_away_one(model, layers, heads, chunk_size):
    """Rows of attention sum to one: what is received of all of them is the number of queries."""
    result = read_with(model().eval(), draw()[0].tolist(), "a", "a")
    assert [layer.shape for layer in result.layers] == [(heads, 13)] * layers
    for layer in result.layers:
        np.testing.assert_allclose(layer.sum(axis=1), 13, rtol=1e-5)
    assert result.chunk_size == chunk_size


@FEW
@given(length=st.integers(1, 40), size=st.integers(1, 45), seed=st.integers(0, 99))
def test_a_chunk_receives_what_its_tokens_receive(length, size, seed):
    values = np.random.default_rng(seed).random((2, length))
    reading = Reading([""] * length, list(range(length)), False, size, [])
    sums = reading.chunk_sums(values)
    assert sums.shape == (2, -(-length // size))
    for chunk in range(sums.shape[1]):
        np.testing.assert_allclose(sums[:, chunk], values[:, reading.chunks == chunk].sum(axis=1))


def test_two_models_read_a_text(saved):
    plain, context = saved(GPT2LMHeadModel(gpt2()), "plain"), saved(contextlm(), "context")
    reading = read_with_models([plain, context], TEXT)
    assert reading.has_start and "".join(reading.pieces[1:]) == TEXT
    assert len(reading.ids) == len(TEXT) + 1 and reading.ids[0] == 256  # bytes, behind the end of text
    assert [model.name for model in reading.models] == ["plain", "context"]
    assert reading.chunk_size == 4
    bare = read_with_models([context], TEXT, start=False, context_chunk=7)
    assert not bare.has_start and bare.ids == reading.ids[1:] and bare.chunk_size == 7
    assert bare.models[0].chunk_size == 4  # its own chunks stay what they are


def test_a_special_token_that_a_text_spells_is_text(saved):
    plain = saved(GPT2LMHeadModel(gpt2()), "plain")
    spelled = load_tokenizer(plain).eos_token
    reading = read_with_models([plain], f"a{spelled}", start=False)
    assert reading.ids == list(f"a{spelled}".encode()) and "".join(reading.pieces) == f"a{spelled}"


def test_pieces_are_the_text(corpus_folder):
    tokenizer = Corpus.open(corpus_folder).tokenizer()
    text = "naïve → 日本 🙂!"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    pieces = token_pieces(tokenizer, ids)
    assert len(pieces) == len(ids) == len(text.encode()) and "".join(pieces) == text
    assert pieces[:4] == ["n", "a", "", "ï"]


def test_texts_that_cannot_be_read(saved):
    plain, context = saved(GPT2LMHeadModel(gpt2()), "plain"), saved(contextlm(), "context")
    with pytest.raises(DataError, match="the text is empty"):
        read_with_models([plain], " \n")
    with pytest.raises(DataError, match="a single token, which has nothing to attend to"):
        read_with_models([plain], "x", start=False)
    with pytest.raises(
        DataError, match="has 65 tokens with the one that begins it, but .*plain has only 64 positions; shorten"
    ):
        read_with_models([plain], "x" * 64)
    assert len(read_with_models([plain], "x" * 64, start=False).ids) == 64
    with pytest.raises(DataError, match=f"a page shows {MOST_TOKENS:,} at most"):
        read_with_models([saved(GPT2LMHeadModel(gpt2(2 * MOST_TOKENS)), "long")], "x" * MOST_TOKENS)
    with pytest.raises(ConfigError, match="5 models are given; give one to 4"):
        read_with_models([plain] * 5, TEXT)
    with pytest.raises(ConfigError, match="context_chunk is 0, but must be at least 1"):
        read_with_models([plain], TEXT, context_chunk=0)
    with pytest.raises(CheckpointError, match="no run and no model"):
        read_with_models([f"{plain}/nothing"], TEXT)
    wide = saved(contextlm(chunk_size=8), "wide")
    with pytest.raises(ConfigError, match="context has chunks of 4 tokens and wide of 8; choose with context_chunk"):
        read_with_models([context, wide], TEXT)
    assert read_with_models([context, wide], TEXT, context_chunk=8).chunk_size == 8


def test_other_tokenizers_are_refused(saved, corpus_folder):
    plain = saved(GPT2LMHeadModel(gpt2()), "plain")
    other = saved(GPT2LMHeadModel(gpt2()), "other")
    file = Path(other) / "tokenizer.json"
    settings = json.loads(file.read_text())
    settings["normalizer"] = {"type": "Lowercase"}
    file.write_text(json.dumps(settings))
    for text in (TEXT, TEXT.lower()):  # also where this text has the same ids
        with pytest.raises(ConfigError, match="have different tokenizers, so their tokens cannot be compared"):
            read_with_models([plain, other], text)


def test_models_that_cannot_read(saved):
    small = saved(GPT2LMHeadModel(gpt2(vocabulary=50)), "small")
    with pytest.raises(CheckpointError, match="gives token id 256, but its model knows only 50"):
        read_with_models([small], TEXT)
    broken = GPT2LMHeadModel(gpt2())
    with torch.no_grad():
        broken.transformer.h[1].ln_1.weight.fill_(float("nan"))
    with pytest.raises(CheckpointError, match="hold numbers that are not finite"):
        read_with_models([saved(broken, "broken")], TEXT)
