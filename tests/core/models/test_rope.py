"""Rotary positions beyond the training context: what each method must leave alone, and what it must equal."""

import math

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    RecurrentGemmaConfig,
)

from contextwise.base.errors import ConfigError
from contextwise.evaluation.scoring.windows import Texts, score_documents
from contextwise.models import ContextLMConfig, ContextLMForCausalLM
from contextwise.models.rope import extend_positions, forget_lengths, rotary_modules, same_frequencies_up_to
from small import small_gpt2

TRAINED = 16
COMMON = {
    "vocab_size": 19,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": TRAINED,
    "initializer_range": 0.3,
}


def make(kind):
    torch.manual_seed(0)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**COMMON)).eval()
    if kind == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(head_dim=16, num_key_value_heads=1, **COMMON)).eval()
    if kind == "gpt_neox":
        return GPTNeoXForCausalLM(GPTNeoXConfig(**COMMON)).eval()
    if kind == "gemma3":
        layers = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}
        return Gemma3ForCausalLM(Gemma3TextConfig(head_dim=16, num_key_value_heads=1, **layers, **COMMON)).eval()
    backbone = LlamaConfig(**COMMON) if kind == "contextlm-llama" else GPTNeoXConfig(**COMMON)
    return ContextLMForCausalLM(ContextLMConfig(backbone_config=backbone, chunk_size=4, injection="add")).eval()


ROTARY = ["llama", "qwen3", "gpt_neox", "contextlm-llama", "contextlm-neox"]


def logits(model, length, seed=0):
    tokens = torch.randint(0, 19, (2, length), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return model(input_ids=tokens, use_cache=False).logits


def with_divided_positions(model, factor):
    """The same model, whose angles are asked for at positions divided by ``factor``; also where it asked."""
    (_, module), *_ = rotary_modules(model)
    angles, asked = module.forward, []

    def divided(x, position_ids, *rest):
        asked.append(int(position_ids.max()))
        return angles(x, position_ids / factor, *rest)

    module.forward = divided
    return model, asked


@pytest.mark.parametrize("kind", ROTARY)
def test_linear_divides_positions(kind):
    model = make(kind)
    extend_positions(model, 4 * TRAINED, "linear", factor=3)
    divided, asked = with_divided_positions(make(kind), 3)
    torch.testing.assert_close(logits(model, 4 * TRAINED), logits(divided, 4 * TRAINED), atol=1e-4, rtol=1e-4)
    # A context predictor asks for the angles of its chunks' first tokens.
    assert asked == [4 * TRAINED - 1] + [4 * TRAINED - 4] * kind.startswith("contextlm")


@pytest.mark.parametrize("kind", ROTARY)
def test_yarn_keeps_fast_frequencies_and_divides_slow_ones(kind):
    plain, model = make(kind), make(kind)
    before = rotary_modules(plain)[0][1].inv_freq
    extend_positions(model, 8 * TRAINED, "yarn", trained=TRAINED)
    after = rotary_modules(model)[0][1].inv_freq
    assert (after <= before).all() and (after >= before / 8 - 1e-9).all()
    assert after[-1] == pytest.approx(float(before[-1]) / 8)
    assert torch.isfinite(logits(model, 8 * TRAINED)).all()


@pytest.mark.parametrize("kind", [*ROTARY, "gemma3"])
def test_none_changes_only_the_number_of_positions(kind):
    plain, model = make(kind), make(kind)
    expected = logits(plain, 4 * TRAINED)
    assert extend_positions(model, 4 * TRAINED) is None
    assert torch.equal(logits(model, 4 * TRAINED), expected)
    assert model.config.max_position_embeddings == 4 * TRAINED


def test_of_two_types_of_layers_those_with_full_attention_are_extended():
    model, plain = make("gemma3"), make("gemma3")
    extend_positions(model, 4 * TRAINED, "linear")
    new, old = rotary_modules(model)[0][1], rotary_modules(plain)[0][1]
    torch.testing.assert_close(new.full_attention_inv_freq, old.full_attention_inv_freq / 4)
    assert torch.equal(new.sliding_attention_inv_freq, old.sliding_attention_inv_freq)


def test_the_trained_length_may_be_shorter_than_the_positions():
    model = make("llama")
    assert extend_positions(model, 32, "dynamic", trained=8) == 4
    assert torch.equal(logits(model, 8), logits(make("llama"), 8))
    assert not torch.equal(logits(model, TRAINED), logits(make("llama"), TRAINED))


def one_frequency():
    shape = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    return GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=19, rotary_pct=0.25, **shape))


def extended_already():
    extend_positions(model := make("llama"), 32, "yarn")
    return model


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (small_gpt2, {"rope": "linear"}, "positions of this gpt2 are not rotary and cannot be extended"),
        (lambda: make("llama"), {"rope": "linear", "factor": 0.5}, r"rope_factor is 0\.5, but must be at least 1"),
        (lambda: make("llama"), {"rope": "none", "factor": 2.0}, "a rope factor is given, but no method"),
        (extended_already, {"rope": "linear"}, r"extended already \(rope_type 'yarn'"),
        (one_frequency, {"rope": "dynamic"}, r"only one \(2 rotary dimensions\); set `rope` to linear or yarn"),
    ],
    ids=["learned positions", "factor", "no method", "twice", "one frequency"],
)
def test_invalid_extensions_are_rejected(model, options, message):
    with pytest.raises(ConfigError, match=message):
        extend_positions(model(), 64, **options)


def following(kind):
    """A model whose frequencies follow the length beyond 8 tokens, as its checkpoint says."""
    torch.manual_seed(0)
    values = COMMON | {"max_position_embeddings": 8}
    if kind == "dynamic":
        rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
        return LlamaForCausalLM(LlamaConfig(**values, rope_parameters=rope)).eval()
    long = {
        "short_factor": [1.0] * 8,
        "long_factor": [1.0, 1.5, 2, 3, 4, 5, 6, 7],
        "rope_theta": 1e4,
        "rope_type": "longrope",
    }
    values |= {"max_position_embeddings": 64, "pad_token_id": 0}
    return Phi3ForCausalLM(
        Phi3Config(
            **values, original_max_position_embeddings=8, rope_parameters=long | {"original_max_position_embeddings": 8}
        )
    ).eval()


def test_the_length_up_to_which_frequencies_are_the_same():
    assert same_frequencies_up_to(make("llama")) == math.inf
    assert same_frequencies_up_to(following("dynamic")) == same_frequencies_up_to(following("longrope")) == 8
    extended = make("contextlm-llama")
    extend_positions(extended, 64, "dynamic")
    assert same_frequencies_up_to(extended) == TRAINED


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_frequencies_follow_the_current_input_alone(kind):
    expected = {length: logits(following(kind), length) for length in (20, 12, 8, 5)}
    model = following(kind)
    handles = forget_lengths(model)
    for length, alone in expected.items():  # transformers itself keeps those of the longest input
        assert torch.equal(logits(model, length), alone)
    for handle in handles:
        handle.remove()
    logits(model, 20)
    assert torch.equal(logits(model, 12), expected[12]) == (kind == "longrope")


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_losses_of_documents_do_not_depend_on_others_in_their_batch(kind):
    draw = np.random.default_rng(0)
    documents = [draw.integers(1, 19, size) for size in (30, 5, 12, 7, 8, 9, 12)]

    def losses(documents, batch_tokens):
        return score_documents(following(kind), Texts(documents), 64, 64, batch_tokens=batch_tokens).document_sums()

    alone = np.concatenate([losses([document], 1) for document in documents])
    np.testing.assert_allclose(losses(documents, 1000), alone, rtol=1e-6)


def test_a_model_whose_configuration_has_no_number_of_positions_is_read_as_it_is():
    sizes = {"vocab_size": 19, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "lru_width": 32}
    model, other = (AutoModelForCausalLM.from_config(RecurrentGemmaConfig(**sizes)) for _ in range(2))
    assert not hasattr(model.config, "max_position_embeddings") and extend_positions(model, 40) is None
    with pytest.raises(ConfigError, match="the training context of this recurrent_gemma is not known"):
        extend_positions(other, 40, "yarn")
