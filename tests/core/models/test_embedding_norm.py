"""A norm behind the embedding: of stock decoders and of every composition around one."""

import pytest
import torch
from pydantic import ValidationError
from reference_contextlm import NAMES, norm_of, run
from transformers import AutoModelForCausalLM, LlamaConfig

from contextlm_models import EVERY_FAMILY, FAMILIES, VOCABULARY, backbone, draw, normed
from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise.base.errors import ConfigError
from contextwise.models import build_model
from contextwise.models.embedding_norm import EmbeddingNormConfig
from contextwise.models.spec import spec_of
from contextwise.training.model import starting_model
from contextwise.training.recipe import Recipe
from small import recipe_values


@EVERY_FAMILY
def test_equals_a_direct_implementation(family):
    model, tokens = normed(family), draw(1, 10)[0]
    blocks, embedding, norm = (getattr(model.backbone, name) for name in NAMES[family])
    h = embedding(tokens)
    if family == "gpt2":
        h = h + model.backbone.wpe.weight[:10]
    h = norm_of(h, model.embedding_norm)
    for block in blocks:
        h = run(model, block, h, list(range(10)))
    logits = norm_of(h, norm) @ model.lm_head.weight.T
    torch.testing.assert_close(model(tokens[None]).logits[0], logits, atol=1e-5, rtol=1e-4)


@FAMILIES
def test_compositions_have_the_norm_of_the_model_that_they_are_made_of(family, tmp_path):
    model, tokens = normed(family), draw(2, 12)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits
        context = ContextLMForCausalLM.from_backbone(tmp_path, chunk_size=3)
        assert torch.equal(context(tokens, use_cache=False).logits, logits)
        assert context.embedding_norm is not None


@pytest.mark.parametrize("further", [{}, {"context_predictor": {"injection": "paper"}}])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama"])
def test_a_recipe_sets_the_norm_with_its_initial_values(tmp_path, family, further, paired):
    values = recipe_values(tmp_path, tmp_path, paired_initialization=paired)
    values["model"] = {
        "family": family,
        "size": "pico",
        "vocab_size": 90,
        "embedding_norm": True,
        "extra_layers": 2,
        **further,
    }
    recipe = Recipe.model_validate(values)
    model = starting_model(recipe, recipe.model.config(recipe, 90, 0))
    assert len(model.family.blocks(model.backbone)) == 4
    assert type(model.embedding_norm) is type(getattr(model.backbone, model.family.norm_name))
    for name, parameter in model.embedding_norm.named_parameters():
        assert torch.equal(parameter, torch.full_like(parameter, float(name == "weight")))
    read = []
    model.family.blocks(model.backbone)[0].register_forward_pre_hook(lambda block, inputs: read.append(inputs[0]))
    model(draw(1, 8))
    if "context_predictor" not in further:
        torch.testing.assert_close(read[0].square().mean(-1), torch.ones(1, 8), atol=0.1, rtol=0)


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_an_untied_model_without_learned_positions_is_exported_as_stock(family):
    model, tokens = normed(family, tie_word_embeddings=False), draw(2, 12)
    stock = spec_of(model.config).exported(model).eval()
    assert stock.config.model_type == family
    assert stock.state_dict().keys() == AutoModelForCausalLM.from_config(backbone(family)).state_dict().keys()
    with torch.no_grad():
        torch.testing.assert_close(stock(tokens).logits, model(tokens).logits, atol=1e-6, rtol=1e-6)
    assert model.config.backbone_config.embedding_norm  # the trained model is unchanged


@pytest.mark.parametrize(
    ("family", "tied", "reason"),
    [
        ("gpt2", False, "its norm reads learned positions too"),
        ("qwen3", True, "its head shares the embedding's matrix"),
    ],
)
def test_another_model_is_exported_as_it_is_and_said_so(family, tied, reason, capsys):
    model = normed(family, tie_word_embeddings=tied)
    assert spec_of(model.config).exported(model) is model
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [{"model": {"variant": "variants/token_order.py:TokenOrder"}}, {"objective": "prefix"}],
    ids=["variant", "prefix"],
)
def test_what_needs_a_stock_model_is_refused(tmp_path, change):
    values = recipe_values(tmp_path, tmp_path)
    values |= {name: value for name, value in change.items() if name != "model"}
    values["model"] = {"family": "gpt2", "size": "pico", "embedding_norm": True, **change.get("model", {})}
    with pytest.raises(ValidationError, match=r"model.embedding_norm does not go with .*, which needs a stock model"):
        Recipe.model_validate(values)


def test_the_operations_are_those_of_the_stock_model():
    stock, model = build_model(backbone("llama")), normed("llama")
    assert spec_of(model.config).flops_per_example(model, 12) == spec_of(stock.config).flops_per_example(stock, 12)
    assert ContextLMConfig(model.config).backbone_config is model.config.backbone_config
    assert ContextLMConfig(model.config).vocab_size == VOCABULARY


def test_the_configuration_it_was_given_has_no_mark():
    given = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    EmbeddingNormConfig(given)
    assert not hasattr(given, "embedding_norm")
    assert ContextLMForCausalLM(ContextLMConfig(given)).embedding_norm is None


@pytest.mark.parametrize("options", [{"predictor_norm": "yes"}, {"initial_context": ""}])
def test_norm_and_initial_context_are_checked(options):
    given = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    with pytest.raises(ConfigError, match="but must be"):
        ContextLMConfig(given, **options)
