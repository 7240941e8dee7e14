"""Models that are causal pass; each broken one is caught by the perturbation that is meant for it."""

import pytest
import torch
from causality_models import (
    VOCABULARY,
    Bidirectional,
    Peeking,
    contextlm,
    gpt2,
    gpt2_config,
    hooked,
    llama_config,
    neox_config,
    one_too_far,
    shifted,
    without_mask,
    without_positions,
)
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    BertConfig,
    BertLMHeadModel,
    GPT2LMHeadModel,
    GPT2Model,
    GPTNeoXForCausalLM,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise.base.errors import ConfigError
from contextwise.evaluation.measures.causality import perturbations
from contextwise.testing import assert_causal, measure_causality
from examples import FEW

NAMES = ["future tokens", "gradients", "left padding", "tokens under the mask", "packed neighbours", "cached steps"]


def outcomes(result):
    return {effect.name: effect.outcome for effect in result.effects}


def leaking(result):
    return {effect.name for effect in result.effects if effect.outcome in ("leak", "differs")}


# Causal models


def test_rounding_in_float32_is_no_leak(monkeypatch):
    """With a tolerance below the rounding of float32 all is measured again in float64; the weights are those of before."""
    model = LlamaForCausalLM(llama_config()).eval()
    monkeypatch.setitem(perturbations.TOLERANCE, torch.float32, 1e-9)
    assert leaking(measure_causality(model, tolerance=1e-9))
    before = {name: (tensor.data_ptr(), tensor.dtype) for name, tensor in model.state_dict().items()}
    result = measure_causality(model)
    assert (result.dtype, result.causal) == ("float64", True)
    assert {name: (tensor.data_ptr(), tensor.dtype) for name, tensor in model.state_dict().items()} == before


@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "options"),
    [
        pytest.param(gpt2_config, {"chunk_size": 1}, marks=pytest.mark.slow),
        pytest.param(gpt2_config, {"chunk_size": 7, "injection_layer": 1}, marks=pytest.mark.slow),
        (gpt2_config, {"chunk_size": 3, "injection": "add"}),
        pytest.param(neox_config, {"chunk_size": 4}, marks=pytest.mark.slow),
        (llama_config, {"chunk_size": 5, "inject_every_layer": True}),
        (gpt2_config, {"chunk_size": 4, "injection": "paper"}),
        pytest.param(neox_config, {"chunk_size": 3, "injection": "paper"}, marks=pytest.mark.slow),
        pytest.param(llama_config, {"chunk_size": 3, "injection": "own_norms"}, marks=pytest.mark.slow),
        pytest.param(gpt2_config, {"chunk_size": 3, "injection": "normed_gate"}, marks=pytest.mark.slow),
        pytest.param(neox_config, {"chunk_size": 16, "inject_every_layer": True}, marks=pytest.mark.slow),
    ],
    ids=lambda value: value.__name__ if callable(value) else "-".join(map(str, value.values())),
)
def test_contextlm_is_causal_in_every_respect(config, options):
    result = measure_causality(contextlm(config(), **options))
    assert list(outcomes(result)) == NAMES
    assert set(outcomes(result).values()) == {"none"}
    # What the mathematics forbids is not small but absent; only other orders of adding up leave rounding.
    for name in ("future tokens", "gradients", "tokens under the mask", "packed neighbours"):
        assert result[name].largest == 0, name
        assert result[name].allowed > 100 * result[name].tolerance, name
    assert result["left padding"].largest < 1e-6 and result["cached steps"].largest < 1e-6


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (GPT2LMHeadModel, gpt2_config),
        pytest.param(GPTNeoXForCausalLM, neox_config, marks=pytest.mark.slow),
        (LlamaForCausalLM, llama_config),
    ],
)
def test_stock_models_are_causal(kind, config):
    torch.manual_seed(0)
    model = kind(config())
    assert set(outcomes(measure_causality(model, packed=True)).values()) == {"none"}
    assert_causal(model.set_attn_implementation("eager") or model, packed=True, lengths=[9])


def test_coarse_types_have_wide_tolerances_and_still_show_a_leak():
    result = measure_causality(gpt2().to(torch.bfloat16), lengths=[9])
    assert result.dtype == "bfloat16" and result.causal
    assert result["future tokens"].largest == 0
    precise = measure_causality(gpt2().double(), lengths=[9])
    assert precise["left padding"].tolerance < 1e-9 < result["left padding"].tolerance
    assert not measure_causality(gpt2(Bidirectional).to(torch.bfloat16), lengths=[9]).causal


# Broken models


def test_bidirectional_attention():
    result = measure_causality(gpt2(Bidirectional))
    assert leaking(result) == {"future tokens", "gradients", "cached steps"}
    assert result["packed neighbours"].outcome == "not separated"
    assert result["future tokens"].changed > result["future tokens"].affected


@FEW
@given(data=st.data())
def test_a_leak_is_traced_to_its_two_positions(data):
    at = data.draw(st.integers(0, 12), "at")
    model = gpt2(Peeking)
    model.at, model.source = at, data.draw(st.integers(at + 1, 13), "source")
    model.detached = data.draw(st.booleans(), "detached")
    result = measure_causality(model, lengths=[14])
    leak = result["future tokens"]
    assert (leak.outcome, leak.affected, leak.changed) == ("leak", at, model.source)
    # What is read behind the gradient's back only the tokens show.
    assert result["gradients"].outcome == ("none" if model.detached else "leak")
    if not model.detached:
        assert (result["gradients"].affected, result["gradients"].changed) == (at, model.source)


@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "w"),
    [
        (gpt2_config, 2),
        (neox_config, 4),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((gpt2_config, 7), (neox_config, 2), (gpt2_config, 4), (neox_config, 7))
        ),
    ],
)
def test_contexts_that_come_one_position_early_leak_at_chunk_borders(config, w):
    result = measure_causality(shifted(contextlm(config(), chunk_size=w), "contexts"))
    assert leaking(result) >= {"future tokens", "gradients"}
    for name in ("future tokens", "gradients"):
        leak = result[name]
        assert "plain row" in leak.detail  # padded and packed rows take another path, which is whole
        assert leak.changed == leak.affected + 1 and leak.changed % w == w - 1
    assert result["tokens under the mask"].outcome == result["packed neighbours"].outcome == "none"


@pytest.mark.parametrize("config", [pytest.param(gpt2_config, marks=pytest.mark.slow), neox_config])
def test_contexts_that_come_early_in_padded_and_packed_rows_only(config):
    result = measure_causality(shifted(contextlm(config(), chunk_size=4), "contexts_of_rows"))
    assert leaking(result) >= {"future tokens", "gradients"}
    assert "plain row" not in result["future tokens"].detail
    assert result["future tokens"].changed == result["future tokens"].affected + 1


def test_borders_of_a_long_chunk_are_looked_at():
    """Rows of more than 32 tokens are not cut everywhere; the borders are among the cuts."""
    model = shifted(contextlm(gpt2_config(), chunk_size=20), "contexts")
    result = measure_causality(model, lengths=[45])
    assert (result["future tokens"].affected, result["future tokens"].changed) in {(18, 19), (38, 39)}
    assert (result["gradients"].affected, result["gradients"].changed) in {(18, 19), (38, 39)}


def test_a_closed_gate_hides_no_leak():
    model = shifted(ContextLMForCausalLM(ContextLMConfig(gpt2_config(), chunk_size=4)), "contexts")
    gate = model.context.gate.weight
    memory = gate.data_ptr()
    result = measure_causality(model, lengths=[9])
    assert "future tokens" in leaking(result)
    assert result.gates_opened and "gates are all zero" in str(result)
    assert gate.data_ptr() == memory and not gate.any()


def test_a_padding_mask_that_is_not_heeded():
    result = measure_causality(hooked(gpt2(), without_mask))
    assert leaking(result) == {"left padding", "tokens under the mask"}
    assert result["tokens under the mask"].largest == pytest.approx(result["tokens under the mask"].allowed)


def test_padding_that_moves_positions():
    """Mask heeded, positions not: GPT-2 then counts the padding, though nothing of its tokens is seen."""
    assert leaking(measure_causality(hooked(gpt2(), without_positions))) == {"left padding"}


@pytest.mark.parametrize("make", [gpt2, lambda: contextlm(neox_config(), chunk_size=4)])
def test_a_cache_that_is_off_by_one(make):
    result = measure_causality(hooked(make(), one_too_far), lengths=[9])
    assert leaking(result) == {"cached steps"}
    assert result["cached steps"].affected >= result["cached steps"].changed > 0


def test_documents_that_are_not_kept_apart():
    """Seeing the document before is no leak of the future: it is one where separation was asked for, or promised."""
    torch.manual_seed(0)
    together = hooked(LlamaForCausalLM(llama_config()), without_positions)
    result = measure_causality(together, lengths=[9])
    assert result["packed neighbours"].outcome == "not separated" and result.causal
    assert "packed neighbours (not separated)" in str(result)
    assert leaking(measure_causality(together, packed=True, lengths=[9])) == {"packed neighbours"}
    with pytest.raises(AssertionError, match="packed before theirs"):
        assert_causal(together, packed=True, lengths=[9])


def test_a_chunk_across_two_documents():
    model = contextlm(gpt2_config(), chunk_size=4)
    original = model.context.contexts_of_rows

    def across(h, backbone, positions, *arguments, **named):
        return original(h, backbone, torch.arange(h.shape[1]).expand_as(positions), *arguments, **named)

    model.context.contexts_of_rows = across
    assert "packed neighbours" in leaking(measure_causality(model))


# What cannot be measured, and what is refused


def test_what_a_model_does_not_take_is_not_measured_and_says_why():
    class IdsAlone(GPT2LMHeadModel):
        def forward(self, input_ids, use_cache=False):
            return super().forward(input_ids, use_cache=use_cache)

    result = measure_causality(gpt2(IdsAlone))
    assert outcomes(result) == {"future tokens": "none"} | dict.fromkeys(NAMES[1:], "not measured")
    assert result.causal
    assert "the model refused: " in result["gradients"].sentence and "inputs_embeds" in result["gradients"].sentence


def test_a_recurrent_model():
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, state_size=4)
    result = measure_causality(MambaForCausalLM(config), lengths=[9])
    assert result.causal and result["gradients"].outcome == "none"
    assert result["packed neighbours"].outcome in ("not separated", "not measured")


def test_a_refusal_in_the_models_own_words():
    class NoPadding(GPT2LMHeadModel):
        def forward(self, input_ids=None, attention_mask=None, **kwargs):
            if attention_mask is not None:
                raise ValueError("no padding here\nsecond line")
            return super().forward(input_ids, **kwargs)

    result = measure_causality(gpt2(NoPadding), lengths=[9])
    assert result["left padding"].detail == "the model refused: no padding here"
    assert outcomes(result)["future tokens"] == outcomes(result)["cached steps"] == "none"


def test_a_model_that_no_token_moves_proves_nothing():
    model = gpt2()
    model.lm_head.weight = torch.nn.Parameter(torch.zeros(VOCABULARY, 16))
    assert outcomes(measure_causality(model, lengths=[9]))["future tokens"] == "not measured"
    with pytest.raises(AssertionError, match="it changes nothing at all"):
        assert_causal(model, lengths=[9])


def test_an_encoder_is_caught():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, is_decoder=False
    )
    with pytest.raises(AssertionError, match="leaks \\(future tokens, gradients"):
        assert_causal(BertLMHeadModel(config))


class Restless(GPT2LMHeadModel):
    """Dropout that stays on in evaluation mode."""

    def forward(self, *arguments, **named):
        output = super().forward(*arguments, **named)
        output.logits = torch.nn.functional.dropout(output.logits)
        return output


def broken_weights():
    model = gpt2()
    model.transformer.wpe.weight.data[1] = float("nan")
    return model


def encoder_decoder():
    return T5ForConditionalGeneration(
        T5Config(vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    )


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (lambda: "gpt2", {}, "str is no decoder of transformers; give a loaded decoder-only causal language model"),
        (encoder_decoder, {}, "is no decoder of transformers; give a loaded decoder-only"),
        (lambda: gpt2(GPT2Model), {}, "GPT2Model returns no logits"),
        (broken_weights, {}, "not all numbers"),
        (lambda: gpt2(Restless), {}, "other logits each time"),
        (gpt2, {"lengths": [1, 9]}, r"lengths is \[1, 9\], but must hold numbers from 2 to 48"),
        (gpt2, {"lengths": [49]}, "from 2 to 48"),
        (gpt2, {"lengths": []}, "lengths is"),
        (gpt2, {"chunk_size": 0}, "chunk_size is 0"),
    ],
)
def test_bad_input_gets_one_sentence(make, options, words):
    with pytest.raises(ConfigError, match=words) as caught:
        measure_causality(make(), **options)
    assert "\n" not in str(caught.value)


# What is left behind, and what is said


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was_found(fails):
    model = ContextLMForCausalLM(ContextLMConfig(gpt2_config(), chunk_size=4)).train()
    model.context.eval()
    model.backbone.wte.weight.requires_grad_(False)
    tokens = torch.randint(0, VOCABULARY, (2, 9))
    model(tokens, labels=tokens).loss.backward()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = {n: p.grad if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    random_state = torch.random.get_rng_state()
    if fails:
        # An error that is no refusal goes on to the caller, from the middle of the measurement.
        def fail(module, positional, named):
            if named.get("use_cache"):
                raise RuntimeError("out of memory")

        hooked(model, fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            measure_causality(model, lengths=[9])
    else:
        assert measure_causality(model, lengths=[9]) == measure_causality(model, lengths=[9])
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert not model.backbone.wte.weight.requires_grad
    for name, parameter in model.named_parameters():
        before = gradients[name]
        assert parameter.grad is None if before is None else torch.equal(parameter.grad, before), name


def test_it_works_where_the_caller_has_switched_gradients_off():
    model = gpt2()
    with torch.inference_mode():
        assert measure_causality(model, lengths=[9])["gradients"].outcome == "none"
        assert torch.is_inference_mode_enabled()


def test_the_message_is_a_table_and_a_sentence():
    with pytest.raises(AssertionError) as caught:
        assert_causal(gpt2(Peeking))
    lines = str(caught.value).splitlines()
    assert lines[0] == "Peeking, float64: leaks (future tokens, gradients, left padding), other logits with a cache"
    table = [line for line in lines[1:10] if line.strip() and "─" not in line]
    assert [line[:22].strip() for line in table] == ["perturbation", *NAMES]
    assert all(len(line) <= 80 for line in table)
    (sentence,) = (line for line in lines if line.startswith("future tokens (leak)"))
    assert "the logits at position 3 change by " in sentence
    assert "when the token at position 4 does (" in sentence
