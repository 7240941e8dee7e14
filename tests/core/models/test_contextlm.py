"""ContextLM against the paper's equations, against itself, and against its backbone."""

from typing import get_args

import pytest
import torch
from reference_contextlm import reference_logits
from transformers import AutoConfig, AutoModelForCausalLM, GPT2LMHeadModel, OlmoConfig
from transformers.models.olmo.modeling_olmo import OlmoDecoderLayer

from contextlm_models import (
    EVERY_FAMILY,
    FAMILIES,
    FORMS,
    LONGEST,
    PARTS,
    VOCABULARY,
    backbone,
    contextlm,
    draw,
    stock_model,
)
from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.models.contextlm.layers import INJECTIONS, POOLINGS
from contextwise.models.families import FAMILIES as ADAPTERS
from contextwise.models.families import Family
from contextwise.models.prefix import set_prefix
from contextwise.training.kinds import ContextPredictorSettings


@EVERY_FAMILY
@FORMS
@pytest.mark.parametrize(("w", "length"), [(4, 10), (1, 6), (3, 9), (7, 5), (2, 13)])
def test_equals_a_direct_implementation_of_the_paper(family, options, w, length):
    model = contextlm(family, chunk_size=w, **options)
    tokens = draw(1, length)
    with torch.no_grad():
        torch.testing.assert_close(
            model(tokens, use_cache=False).logits[0], reference_logits(model, tokens[0].tolist()), atol=2e-5, rtol=1e-4
        )


@PARTS
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", pytest.param("llama", marks=pytest.mark.slow)])
def test_other_injections_and_poolings_equal_their_equations(family, options):
    model = contextlm(family, chunk_size=3, **options)
    tokens = draw(1, 10)
    with torch.no_grad():
        full = model(tokens, use_cache=False).logits
        torch.testing.assert_close(full[0], reference_logits(model, tokens[0].tolist()), atol=2e-5, rtol=1e-4)
        cache, steps = None, []
        for t in range(10):
            out = model(tokens[:, t : t + 1], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, 1), full, atol=2e-5, rtol=1e-4)


@PARTS
def test_other_injections_and_poolings_are_saved_and_trained(options, tmp_path):
    model = ContextLMForCausalLM.from_backbone(stock_model("gpt2"), chunk_size=3, **options)
    tokens = draw(2, 12)
    if not options.get("injection"):  # behind a closed gate no gradient would reach the other parts
        torch.nn.init.normal_(model.context.gate.weight)
    model.train()(tokens, labels=tokens).loss.backward()
    pathway = model.context
    parts = {**dict(pathway.gate.named_parameters()), **dict(pathway.pooling.named_parameters())}
    parts |= dict(pathway.norm.named_parameters()) if pathway.norm else {}
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in parts.values()), parts.keys()
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    for (name, one), other in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_the_recipe_offers_what_the_model_has():
    for name, registry in (("pooling", POOLINGS), ("injection", [*INJECTIONS, "paper"])):
        assert get_args(ContextPredictorSettings.model_fields[name].annotation) == tuple(registry)


@FAMILIES
def test_worked_example_of_the_index_convention(family):
    """w = 4, ten tokens: which tokens the context of each position is built from (the table of the convention)."""
    model = contextlm(family, chunk_size=4)
    h = torch.randn(1, 10, 16, requires_grad=True)
    contexts = model.context.added(model.context.contexts(h, model.backbone), lambda c: c)
    expected = {0: {0}, 1: {0}, 2: {0}, 3: set(range(4)), 4: set(range(4)), 5: set(range(4)), 6: set(range(4))}
    expected |= {7: set(range(8)), 8: set(range(8)), 9: set(range(8))}
    for t, sources in expected.items():
        (gradient,) = torch.autograd.grad(contexts[0, t].square().sum(), h, retain_graph=True)
        assert {i for i in range(10) if gradient[0, i].abs().sum() > 0} == sources, t
    torch.testing.assert_close(contexts[0, 2], h[0, 0])


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama", "qwen3", "mistral", "qwen2"])
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize(
    "place",
    [
        {},
        {"inject_every_layer": True},
        {"injection_layer": 1, "inject_every_layer": True},
        {"injection_layer": 2, "predictor_norm": True},
    ],
)
def test_the_gate_starts_as_the_backbone(family, pooling, place):
    stock = stock_model(family)
    model = ContextLMForCausalLM.from_backbone(stock, chunk_size=3, pooling=pooling, **place).eval()
    tokens = draw(2, 21)
    with torch.no_grad():
        assert torch.equal(model(tokens, use_cache=False).logits, stock(tokens, use_cache=False).logits)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chunk_size": 0}, "chunk_size is 0"),
        ({"chunk_size": 2.5}, "whole number"),
        ({"predictor_layers": 0}, "predictor_layers is 0"),
        ({"injection_layer": 3}, "from 0 to 2"),
        ({"pooling": "max"}, "one of mean, mlp"),
        ({"injection": "multiply"}, "one of gate, add"),
        ({"initial_context": "last"}, "one of first_token, zero"),
    ],
)
def test_values_out_of_range_are_rejected(options, words):
    with pytest.raises(ConfigError, match=words):
        ContextLMConfig(backbone("gpt2"), **options)


@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("gpt2", ("shared_norm", False, "zero")),
        ("gpt_neox", ("add", True, "zero")),
        ("llama", ("add", False, "zero")),
        ("qwen3", ("add", False, "zero")),
    ],
)
def test_the_form_of_the_papers_code(family, form, tmp_path):
    def parts(config):
        return config.injection, config.predictor_norm, config.initial_context

    config = ContextLMConfig(backbone(family), injection="paper")
    assert parts(config) == form
    config.save_pretrained(tmp_path)
    assert parts(AutoConfig.from_pretrained(tmp_path)) == form
    own = ContextLMConfig(
        backbone(family), injection="paper", predictor_norm=not form[1], initial_context="first_token"
    )
    assert parts(own) == (form[0], not form[1], "first_token")
    assert parts(ContextLMConfig(backbone(family))) == ("gate", False, "first_token")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "bert"}, "no adapter for backbones of type 'bert'"),
        ({"model_type": "mistral", "sliding_window": 16}, "has sliding windows; set sliding_window to null"),
        (
            {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
            "has sliding windows; set sliding_window to null",
        ),
    ],
    ids=["unknown", "mistral", "qwen3"],
)
def test_families_and_sliding_windows_are_rejected(values, message):
    with pytest.raises(ConfigError, match=message):
        ContextLMConfig(values)


def test_misuse_gets_a_clear_error():
    model = contextlm("gpt2")
    with pytest.raises(ConfigError, match="49 tokens are more than the backbone's 48"):
        model(draw(1, LONGEST + 1))
    with pytest.raises(ConfigError, match="label 61 is outside the vocabulary"):
        model(draw(1, 5), labels=torch.full((1, 5), VOCABULARY))
    with pytest.raises(
        ConfigError, match="label -1 is outside the vocabulary of 61 tokens; -100 is a position without a loss"
    ):
        model(draw(1, 5), labels=torch.tensor([[3, -100, -1, 2, 1]]))
    stock = GPT2LMHeadModel(backbone("gpt2"))
    filled = stock(draw(1, 5), use_cache=True).past_key_values
    with pytest.raises(ConfigError, match="filled by a model without a context predictor"):
        model(draw(1, 1), past_key_values=filled, use_cache=True)
    cache = model(draw(1, 5), use_cache=True).past_key_values
    with pytest.raises(ConfigError, match="cropped by a negative number"):
        cache.layers[-1].crop(1)


def with_a_bias():
    stock = stock_model("gpt2")
    stock.lm_head.bias = torch.nn.Parameter(torch.zeros(VOCABULARY))
    return stock


def with_a_prefix():
    set_prefix((stock := stock_model("gpt2")).config)
    return stock


@pytest.mark.parametrize(
    ("stock", "message"),
    [
        (with_a_bias, "vocabulary head of this gpt2 has a bias"),
        (with_a_prefix, "this gpt2 reads its prompts as a prefix, .*; choose a backbone that was"),
    ],
)
def test_backbones_with_a_bias_or_a_prefix_are_rejected(stock, message):
    with pytest.raises(ConfigError, match=message):
        ContextLMForCausalLM.from_backbone(stock())


def test_a_family_added_as_the_guide_says_works(monkeypatch):
    class OlmoFamily(Family):
        block_class = OlmoDecoderLayer
        embedding_name, norm_name = "embed_tokens", "norm"

    monkeypatch.setitem(ADAPTERS, "olmo", OlmoFamily())
    values = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    ends = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    stock = AutoModelForCausalLM.from_config(OlmoConfig(**values, **ends)).eval()
    model = ContextLMForCausalLM.from_backbone(stock, chunk_size=3).eval()
    tokens = draw(2, 10)
    with torch.no_grad():
        assert torch.equal(model(tokens, use_cache=False).logits, stock(tokens).logits)
        torch.nn.init.normal_(model.context.gate.weight)
        full = model(tokens, use_cache=False).logits
        first = model(tokens[:, :4], use_cache=True)
        rest = model(tokens[:, 4:], past_key_values=first.past_key_values, use_cache=True)
    assert not torch.allclose(full, stock(tokens).logits, atol=1e-4)
    torch.testing.assert_close(rest.logits, full[:, 4:], atol=1e-5, rtol=1e-4)


def test_from_backbone_loads_a_folder(tmp_path):
    stock = stock_model("llama")
    stock.save_pretrained(tmp_path / "backbone")
    model = ContextLMForCausalLM.from_backbone(tmp_path / "backbone", chunk_size=2)
    assert not model.training
    with torch.no_grad():
        assert torch.equal(model(draw(1, 7), use_cache=False).logits, stock(draw(1, 7)).logits)
    with pytest.raises(CheckpointError, match="there is no run and no model at"):
        ContextLMForCausalLM.from_backbone(tmp_path / "nothing")
