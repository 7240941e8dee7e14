"""Vectors of texts: the hidden states of transformers, and no influence of neighbours."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import normalizers
from transformers import AutoModel, BertModel, T5Config, ViTConfig, ViTModel

from contextwise.base.errors import CheckpointError, ConfigError, DataError
from contextwise.models.losses import final_hidden_states
from contextwise_papers.objectives.embedding import Embedder, load_text_model, position_limit, text_kind
from embedding_models import (
    CLS,
    ENCODERS,
    MODELS,
    POSITIONS,
    SEP,
    bert,
    bloom,
    context_lm,
    embed_texts,
    gpt2,
    made,
    roberta,
    tokenizer,
)
from examples import FEW

TEXTS = ["one", "a longer text than that", "b", "of the middle", "zwölf", "the end of it all"]
shared = cache(made)


def framed(name, text):
    """The token ids that a model of this kind is to read."""
    ids = list(text.encode())
    return [CLS, *ids, SEP] if name in ENCODERS else ids


@torch.no_grad()
def states(name, text):
    """The final hidden states of one text alone, (T, D)."""
    model, _ = shared(name)
    ids = torch.tensor([framed(name, text)])
    if name in ENCODERS:
        return model.base_model(input_ids=ids).last_hidden_state[0]
    return final_hidden_states(model, input_ids=ids)[0]


def pooled(name, text, pooling):
    result = states(name, text)
    return {"cls": result[0], "last": result[-1], "mean": result.mean(0)}[pooling].numpy()


@pytest.mark.parametrize("name", MODELS)
def test_the_default_is_the_mean_or_a_decoders_last_token(name):
    model, text = shared(name)
    usual = "mean" if name in ENCODERS else "last"
    expected = np.stack([pooled(name, one, usual) for one in TEXTS])
    np.testing.assert_allclose(embed_texts(model, text, TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize("name", MODELS)
def test_each_pooling_is_of_transformers_own_states(name, pooling):
    model, text = shared(name)
    if pooling == "cls" and name not in ENCODERS:
        with pytest.raises(ConfigError, match="the pooling is cls, but"):
            embed_texts(model, text, TEXTS, pooling=pooling)
        return
    result = embed_texts(model, text, TEXTS, pooling=pooling, batch_size=4)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, np.stack([pooled(name, one, pooling) for one in TEXTS]), atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@FEW
@given(
    lengths=st.lists(st.integers(1, POSITIONS - 2), min_size=1, max_size=9),
    batch_size=st.integers(1, 5),
    data=st.data(),
)
def test_a_vector_depends_on_its_text_alone(name, lengths, batch_size, data):
    """Whatever the lengths of its neighbours, their order, and the size of batches."""
    model, text = shared(name)
    texts = ["".join(chr(97 + (i + j * j) % 26) for j in range(length)) for i, length in enumerate(lengths)]
    pooling = data.draw(st.sampled_from(["mean", "last"]))
    together = embed_texts(model, text, texts, batch_size=batch_size, pooling=pooling)
    alone = [embed_texts(model, text, [one], pooling=pooling)[0] for one in texts]
    np.testing.assert_allclose(together, np.stack(alone), atol=1e-5)


def test_without_a_size_texts_of_one_length_have_batches_of_one_shape(monkeypatch):
    """So that the last bits of a vector do not depend on how many others there are."""
    model, text = shared("gpt2")
    embedder, shapes, real = Embedder(model, text, batch_size=None), [], Embedder._vectors

    def seen(self, tokens):
        shapes.append((len(tokens), len(tokens[0])))
        return real(self, tokens)

    monkeypatch.setattr(Embedder, "_vectors", seen)
    (vectors,) = embedder.blocks(["a", *["four"] * 3, *["three"] * 70])
    assert len(vectors) == 74 and len(shapes) == 4 and len(set(shapes)) == 3


def test_groups_keep_the_order(monkeypatch):
    """Texts are sorted by length within a group; here a group has two batches of two."""
    model, text = shared("gpt2")
    monkeypatch.setattr("contextwise_papers.objectives.embedding.BATCHES_AT_ONCE", 2)
    embedder = Embedder(model, text, batch_size=2)
    blocks = list(embedder.blocks(TEXTS))
    assert [len(block) for block in blocks] == [4, 2]
    np.testing.assert_allclose(
        np.concatenate(blocks), np.stack([pooled("gpt2", one, "last") for one in TEXTS]), atol=1e-5
    )


@pytest.mark.parametrize(("name", "special"), [("gpt2", 0), ("bert", 2)])
def test_a_longer_text_is_truncated_within_its_special_tokens_and_counted(name, special):
    model, text = shared(name)
    embedder = Embedder(model, text, max_tokens=8)
    [result] = embedder.blocks(["abcdefghijkl", "abc", "abcdefghi"])
    assert embedder.was_cut == [True, False, True]
    room = 8 - special
    np.testing.assert_allclose(
        result, embed_texts(model, text, ["abcdefghijkl"[:room], "abc", "abcdefghi"[:room]]), atol=1e-5
    )


@pytest.mark.parametrize("name", ["gpt2", "bert", "roberta"])
def test_texts_are_truncated_to_the_models_positions(name):
    model, text = shared(name)
    assert position_limit(model) == POSITIONS
    embedder = Embedder(model, text)
    [result] = embedder.blocks(["x" * 3 * POSITIONS])
    assert embedder.was_cut == [True]
    room = POSITIONS - len(embedder.frame)
    exact = Embedder(model, text)
    np.testing.assert_allclose(result, next(exact.blocks(["x" * room])), atol=1e-5)
    assert exact.was_cut == [False]


def test_the_limit_of_the_tokenizer_is_used():
    model, text = bloom(), tokenizer()
    assert Embedder(model, text).max_tokens is None
    text.model_max_length = 7
    assert Embedder(model, text).max_tokens == 7
    assert Embedder(model, text, max_tokens=9).max_tokens == 9  # relative positions have no end


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gpt2", {"pooling": "max"}, "the pooling is 'max'; choose cls, mean or last"),
        ("gpt2", {"pooling": "cls"}, "in a decoder the first token does not see"),
        ("gpt2", {"max_tokens": 41}, "max tokens is 41, but the model has positions for 40"),
        ("roberta", {"max_tokens": 41}, "max tokens is 41, but the model has positions for 40"),
        ("bert", {"max_tokens": 2}, "leaves no space for text beside 2 special tokens; choose at least 3"),
        ("gpt2", {"max_tokens": 0}, "choose at least 1"),
    ],
)
def test_options_out_of_range_get_a_clear_error(name, options, message):
    model, text = shared(name)
    with pytest.raises(ConfigError, match=message):
        embed_texts(model, text, TEXTS, **options)


def test_cls_needs_its_token():
    with pytest.raises(ConfigError, match=r"adds no \[CLS\] token before a text"):
        Embedder(bert(), tokenizer(), pooling="cls")


def test_empty_texts_are_rejected():
    model, text = shared("gpt2")
    for texts, message in ((["a", " \n"], "text 2 is empty"), (["a", "", "b"], "text 2 is empty")):
        with pytest.raises(DataError, match=message):
            embed_texts(model, text, texts)
    strict = tokenizer()
    strict.backend_tokenizer.normalizer = normalizers.Replace("a", "")
    with pytest.raises(DataError, match="text 2 has no tokens"):
        embed_texts(model, strict, ["b", "a"])


def test_a_tokenizer_of_another_model_is_rejected():
    small = gpt2()
    small.resize_token_embeddings(100)
    with pytest.raises(ConfigError, match="produces the token 120, but the model has only 100 tokens"):
        embed_texts(small, tokenizer(), ["x"])


def test_a_vector_that_is_not_finite_is_an_error():
    model, text = made("gpt2")
    with torch.no_grad():
        model.transformer.ln_f.weight[0] = float("inf")
    with pytest.raises(ConfigError, match="not finite: float32 is not precise enough"):
        embed_texts(model, text, ["a"])


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_gives_the_same_vectors(name, tmp_path):
    model, text = shared(name)
    model.save_pretrained(tmp_path)
    loaded = load_text_model(tmp_path, device="cpu")
    assert not loaded.training
    np.testing.assert_allclose(embed_texts(loaded, text, TEXTS), embed_texts(model, text, TEXTS), atol=1e-6)


def test_a_base_model_without_a_head_gives_the_same_vectors():
    text = tokenizer()
    np.testing.assert_allclose(
        embed_texts(gpt2().transformer, text, TEXTS), embed_texts(gpt2(), text, TEXTS), atol=1e-6
    )


def test_unsupported_models_are_rejected(tmp_path):
    vit = ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, image_size=4, patch_size=2
    )
    ViTModel(vit).save_pretrained(tmp_path / "vit")
    T5Config().save_pretrained(tmp_path / "t5")
    for kind in ("vit", "t5"):
        with pytest.raises(CheckpointError, match=f"a model of type '{kind}' is not supported; use an encoder or"):
            load_text_model(tmp_path / kind)
    model = bert().bert
    weights = {name: value for name, value in model.state_dict().items() if "layer.1.output" not in name}
    model.save_pretrained(tmp_path / "bert", state_dict=weights)
    with pytest.raises(CheckpointError, match=r"encoder\.layer\.1\.output\S+ and 1 more missing"):
        load_text_model(tmp_path / "bert")
    assert isinstance(AutoModel.from_config(model.config), BertModel)
    (tmp_path / "bert" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no model could be loaded from") as caught:
        load_text_model(tmp_path / "bert")
    assert "\n" not in str(caught.value)


def test_kinds_of_text_models():
    assert text_kind(roberta().config) == "encoder"
    assert text_kind(context_lm().config) == "decoder"


def test_an_encoder_needs_no_heads_but_its_backbone(tmp_path):
    bert().save_pretrained(tmp_path / "model")
    assert load_text_model(tmp_path).pooler is None
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    del tensors["bert.encoder.layer.0.output.dense.weight"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match="output.dense.weight missing"):
        load_text_model(tmp_path)
