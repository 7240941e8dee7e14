"""Attention of models in one text: the numbers, the page and its table."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from attention_readings import PIECES
from attention_readings import reading as written
from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise.base.errors import CheckpointError, ConfigError, DataError
from contextwise.data import Corpus
from contextwise.data.tokenizers import byte_tokenizer
from contextwise.models.loading import load_tokenizer
from contextwise_papers.contextlm.attention import (
    MOST_TOKENS,
    Reading,
    attention_received,
    numbers,
    read_with_models,
    received_table,
    token_pieces,
    write_attention_page,
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


class Weights(torch.nn.Module):
    """A model that gives these attention weights."""

    device = torch.device("cpu")

    def __init__(self, *weights):
        super().__init__()
        self.weights = [each[None] for each in weights]

    def set_attn_implementation(self, name):
        assert name == "eager"

    def forward(self, ids, **options):
        return SimpleNamespace(attentions=self.weights)


def test_a_worked_example():
    """Three tokens: scores 0; 0, ln 3; 0, 0, ln 2 give the rows 1; 1/4, 3/4; 1/4, 1/4, 1/2."""
    scores = torch.tensor([[0, -math.inf, -math.inf], [0, math.log(3), -math.inf], [0, 0, math.log(2)]])
    rows = scores.softmax(-1)[None]
    assert attention_received(Weights(rows, rows), [1, 2, 3], "a") == pytest.approx([1.5 / 3, 1.0 / 2, 0.5])
    first = torch.tensor([[[1.0, 0, 0], [1, 0, 0], [1, 0, 0]]])  # layers and heads count alike
    both = attention_received(Weights(torch.cat([rows, first]), torch.cat([rows, rows])), [1, 2, 3], "a")
    assert both == pytest.approx([(3 * 1.5 + 3) / 4 / 3, 3 * 1.0 / 4 / 2, 3 * 0.5 / 4])
    result = Reading(["a", "b", "c"], [1, 2, 3], False, 2, [], {})
    assert list(result.chunks) == [0, 0, 1]
    assert result.chunk_sums(np.array([0.5, 0.5, 0.5])) == pytest.approx([1.0, 0.5])


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        (lambda: GPT2LMHeadModel(gpt2()), 2),
        (lambda: LlamaForCausalLM(llama()), 2),
        (lambda: contextlm(predictor_layers=3), 2),
        (lambda: contextlm(llama(), chunk_size=5, inject_every_layer=True), 2),
        (lambda: MultiTokenForCausalLM.from_backbone(GPT2LMHeadModel(gpt2()), 3), 2),
        (lambda: MultiTokenForCausalLM.from_backbone(contextlm(), 2, "linear"), 2),
        (lambda: BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=3, n_head=2)), 3),
    ],
    ids=["gpt2", "llama", "contextlm", "contextlm llama", "multi-token", "multi-token over contextlm", "bloom"],
)
def test_a_token_receives_the_mean_of_the_models_own_weights(model, layers):
    model, ids = model().eval(), draw()
    result = attention_received(model, ids[0].tolist(), "a")
    own = model(ids, output_attentions=True, use_cache=False).attentions
    assert len(own) == layers  # without those of a predictor
    weights = torch.stack([each[0].detach().mean(0) for each in own]).mean(0).numpy()
    np.testing.assert_allclose(result, [weights[j:, j].mean() for j in range(13)], rtol=1e-5)
    # Every query gives away one.
    assert (result * (13 - np.arange(13))).sum() == pytest.approx(13, rel=1e-5)


@FEW
@given(length=st.integers(1, 40), size=st.integers(1, 45), seed=st.integers(0, 99))
def test_a_chunk_receives_what_its_tokens_receive(length, size, seed):
    values = np.random.default_rng(seed).random((2, length))
    reading = Reading([""] * length, list(range(length)), False, size, [], {})
    sums = reading.chunk_sums(values)
    assert sums.shape == (2, -(-length // size))
    for chunk in range(sums.shape[1]):
        np.testing.assert_allclose(sums[:, chunk], values[:, reading.chunks == chunk].sum(axis=1))


def test_two_models_read_a_text(saved):
    plain, context = saved(GPT2LMHeadModel(gpt2()), "plain"), saved(contextlm(), "context")
    reading = read_with_models([plain, context], TEXT)
    assert reading.has_start and "".join(reading.pieces[1:]) == TEXT
    assert len(reading.ids) == len(TEXT) + 1 and reading.ids[0] == 256  # bytes, behind the end of text
    assert list(reading.received) == ["plain", "context"] and reading.sources == [plain, context]
    assert reading.chunk_size == 4
    wide = saved(contextlm(chunk_size=8), "wide")
    assert read_with_models([plain, wide, context, wide], TEXT).chunk_size == 8  # of the first ContextLM
    assert read_with_models([plain], TEXT).chunk_size == 4


def test_a_special_token_that_a_text_spells_is_text(saved):
    plain = saved(GPT2LMHeadModel(gpt2()), "plain")
    spelled = load_tokenizer(plain).eos_token
    reading = read_with_models([plain], f"a{spelled}")
    assert reading.ids[1:] == list(f"a{spelled}".encode()) and "".join(reading.pieces[1:]) == f"a{spelled}"


def test_pieces_are_the_text(corpus_folder):
    tokenizer = Corpus.open(corpus_folder).tokenizer()
    text = "naïve → 日本 🙂!"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    pieces = token_pieces(tokenizer, ids)
    assert len(pieces) == len(ids) == len(text.encode()) and "".join(pieces) == text
    assert pieces[:4] == ["n", "a", "", "ï"]


def test_texts_that_cannot_be_read(saved):
    plain, bare = saved(GPT2LMHeadModel(gpt2()), "plain"), byte_tokenizer().tokenizer
    with pytest.raises(DataError, match="the text is empty"):
        read_with_models([plain], " \n")
    bare.bos_token = bare.eos_token = None
    with pytest.raises(DataError, match="a single token, which has nothing to attend to"):
        read_with_models([saved(GPT2LMHeadModel(gpt2()), "bare", bare)], "x")
    with pytest.raises(
        DataError, match="has 65 tokens with the one that begins it, but .*plain has only 64 positions; shorten"
    ):
        read_with_models([plain], "x" * 64)
    assert len(read_with_models([plain], "x" * 63).ids) == 64
    with pytest.raises(DataError, match=f"a page shows {MOST_TOKENS:,} at most"):
        read_with_models([saved(GPT2LMHeadModel(gpt2(2 * MOST_TOKENS)), "long")], "x" * MOST_TOKENS)
    with pytest.raises(ConfigError, match="5 models are given; give one to 4"):
        read_with_models([plain] * 5, TEXT)
    with pytest.raises(CheckpointError, match="no run and no model"):
        read_with_models([f"{plain}/nothing"], TEXT)


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


def test_the_page_draws_each_token_and_lists_the_chunks(tmp_path):
    path, found = tmp_path / "page.html", written("GPT-2", "Context <LM>")
    write_attention_page(found, path, ["contextwise", "measure", "attention", "a model", "--text", "x<i>.txt"])
    text = path.read_text()
    figures = json.loads(re.search(r'<script type="application/json" id="figures">(.*?)</script>', text).group(1))
    received, shares = (figures[f"plot-{i}"]["data"] for i in range(2))
    first, second = found.received.values()
    for line, values in zip(received, (first, second), strict=True):
        assert line["y"] == pytest.approx(values[1:])  # the token before the text is left out
    assert shares[1]["y"] == pytest.approx(second[1:] / first[1:])
    assert "contextwise measure attention &#x27;a model&#x27; --text &#x27;x&lt;i&gt;.txt&#x27;" in text
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "<b>" not in outside and "<LM>" not in outside and "http" not in re.sub("<meta.*?>", "", outside)
    assert "What GPT-2 and Context &lt;LM&gt; attend to" in outside
    for row in received_table(found).rows:
        assert f"<td>{row[1]}</td>" in outside and f"<td>{row[2]}</td>" in outside


def test_one_model_is_compared_with_none(tmp_path):
    write_attention_page(written("one"), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "What one attends to" in text and "over that from" not in text


def test_numbers_for_programs():
    found = written("GPT-2", "Context <LM>")
    result = numbers(found)
    assert result["tokens"] == PIECES and result["chunk_size"] == 4
    for told, values in zip(result["models"], found.received.values(), strict=True):
        np.testing.assert_allclose(told["token_received"], values)
        np.testing.assert_allclose(told["chunk_received"], found.chunk_sums(values))
    json.dumps(result, allow_nan=False)
