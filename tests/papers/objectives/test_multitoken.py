"""Multi-token prediction against stock models, and against itself."""

from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from contextlm_models import EVERY_FAMILY, FAMILIES, draw_parts, normed
from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise.base.errors import ConfigError
from contextwise.models.export import export_model_folder
from contextwise.models.prefix import set_prefix
from contextwise_papers.objectives.multitoken import MultiTokenConfig, MultiTokenForCausalLM
from multitoken_models import LONGEST, VOCABULARY, all_logits, as_stock_model, backbone, draw, multitoken

HEADS = pytest.mark.parametrize("head", ["layer", "linear"])


@EVERY_FAMILY
@HEADS
def test_each_head_is_a_stock_model_on_the_same_trunk(family, head):
    model = multitoken(family, head)
    tokens = draw(2, 11)
    with torch.no_grad():
        result = all_logits(model(tokens, heads=3, use_cache=False))
        for i in (1, 2, 3):
            assert torch.equal(result[:, :, i - 1], as_stock_model(model, i)(tokens).logits), i


@FAMILIES
@pytest.mark.parametrize(("head", "n"), [("linear", 1), ("linear", 4), ("layer", 1), ("layer", 4)])
def test_from_backbone_keeps_the_backbones_logits(family, head, n):
    torch.manual_seed(1)
    stock = AutoModelForCausalLM.from_config(backbone(family, layers=3)).eval()
    model = MultiTokenForCausalLM.from_backbone(stock, n, head).eval()
    tokens = draw(2, 13)
    packed = torch.cat([torch.arange(5), torch.arange(8)])[None].expand(2, -1)
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, stock(tokens).logits)
        inputs = {"position_ids": packed, "use_cache": False}
        assert torch.equal(model(tokens, **inputs).logits, stock(tokens, **inputs).logits)
    options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(tokens, **options), stock.generate(tokens, **options))
    assert model.backbone.config.num_hidden_layers == (2 if head == "layer" else 3)
    loss = model(tokens, labels=tokens)
    torch.testing.assert_close(loss.head_losses[0], stock(tokens, labels=tokens).loss.detach())
    if n == 1:
        torch.testing.assert_close(loss.loss, stock(tokens, labels=tokens).loss)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_neox"])
@pytest.mark.parametrize(
    "made", [partial(MultiTokenForCausalLM.from_backbone, head=head) for head in ("layer", "linear")]
)
def test_from_backbone_keeps_the_logits_in_bfloat16(family, made, tmp_path):
    """Rotary frequencies stay in float32, as in a model that is loaded."""
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(backbone(family, layers=3)).bfloat16().save_pretrained(tmp_path)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for model in (made(stock), ContextLMForCausalLM.from_backbone(tmp_path, chunk_size=2)):
        tokens = draw(2, min(LONGEST, 60))
        with torch.no_grad():
            assert model.eval().dtype == torch.bfloat16 and torch.equal(model(tokens).logits, stock(tokens).logits)
        assert all(buffer.dtype != torch.bfloat16 for buffer in model.buffers() if buffer.is_floating_point())


def test_generation_runs_the_first_head_only():
    model = multitoken("gpt2", "layer", 4)
    calls = [0] * 4
    for i, block in enumerate(model.heads):
        block.register_forward_hook(lambda *_, i=i: calls.__setitem__(i, calls[i] + 1))
    model.generate(draw(1, 6), max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert calls == [5, 0, 0, 0]


@FAMILIES
def test_parameters_are_counted_as_documented(family):
    def count(model):
        return sum(p.numel() for p in model.parameters())

    stock = count(AutoModelForCausalLM.from_config(backbone(family, layers=6)))
    assert count(multitoken(family, "layer", n=4, layers=2)) == stock
    assert count(multitoken(family, "linear", n=4, layers=6)) == stock + 3 * VOCABULARY * 16


@HEADS
def test_the_vocabulary_can_be_resized(head):
    model = multitoken("llama", head)
    model.resize_token_embeddings(VOCABULARY + 3, mean_resizing=False)
    tokens = torch.full((1, 4), VOCABULARY + 2)
    out = model(tokens, heads=3, labels=tokens)
    assert all_logits(out).shape == (1, 4, 3, VOCABULARY + 3)
    assert model.config.vocab_size == VOCABULARY + 3


@HEADS
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama", "qwen3"])
def test_heads_on_a_contextlm(family, head, tmp_path):
    torch.manual_seed(0)
    context = ContextLMForCausalLM(ContextLMConfig(backbone(family), chunk_size=3)).eval()
    torch.nn.init.normal_(context.context.gate.weight)
    model = MultiTokenForCausalLM.from_backbone(context, 3, head).eval()
    tokens = draw(2, 11)
    options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(tokens, **options), context.generate(tokens, **options))
    static = model.generate(tokens, cache_implementation="static", **options)
    assert torch.equal(static, context.generate(tokens, **options))
    with torch.no_grad():
        assert torch.equal(model(tokens, use_cache=False).logits, context(tokens, use_cache=False).logits)
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigError, match="is a multitoken on a contextlm, which transformers cannot build"):
        export_model_folder(tmp_path / "model", tmp_path / "out", standalone=True)
    model.train()(tokens, labels=tokens).loss.backward()
    assert model.backbone.context.gate.weight.grad.abs().sum() > 0


@HEADS
@FAMILIES
def test_heads_on_a_model_with_an_embedding_norm(family, head):
    """The trunk has the norm, with and without a predictor in it."""
    plain = normed(family)
    context = ContextLMForCausalLM.from_backbone(plain, chunk_size=3, injection="own_norms").eval()
    draw_parts(context)
    tokens = draw(2, 11)
    for source in (plain, context):
        model = MultiTokenForCausalLM.from_backbone(source, 2, head).eval()
        with torch.no_grad():
            whole = all_logits(model(tokens, heads=2, use_cache=False))
            torch.testing.assert_close(whole[:, :, 0], source(tokens, use_cache=False).logits)
            cache = DynamicCache(config=model.config)
            parts = tokens.split([5, 1, 4, 1], dim=1)
            steps = [all_logits(model(part, heads=2, past_key_values=cache, use_cache=True)) for part in parts]
        torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=1e-5, rtol=1e-4)
    assert MultiTokenConfig(plain.config, 2).backbone_config is plain.config.backbone_config


@pytest.mark.parametrize("options", [{"inject_every_layer": True}, {"injection_layer": 1}])
def test_a_context_before_the_last_block_allows_no_layer_heads(options):
    context = ContextLMForCausalLM(ContextLMConfig(backbone("gpt2"), **options))
    with pytest.raises(ConfigError, match="adds its context before its last block"):
        MultiTokenForCausalLM.from_backbone(context, 3, "layer")


def test_backbones_with_a_biased_head_or_a_prefix_are_rejected():
    biased, prefixed = (AutoModelForCausalLM.from_config(backbone("gpt2")) for _ in range(2))
    biased.lm_head = torch.nn.Linear(16, VOCABULARY)
    set_prefix(prefixed.config)
    for stock, words in ((biased, "has a bias"), (prefixed, "this gpt2 reads its prompts as a prefix")):
        with pytest.raises(ConfigError, match=words):
            MultiTokenForCausalLM.from_backbone(stock, 3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"future_tokens": 0}, "future_tokens is 0, but must be a whole number of at least 1"),
        ({"future_tokens": True}, "future_tokens is True"),
        ({"future_tokens": 2.0}, "whole number"),
        ({"head": "conv"}, "head is 'conv', but must be one of layer, linear"),
    ],
)
def test_values_out_of_range_are_rejected(options, words):
    with pytest.raises(ConfigError, match=words):
        MultiTokenConfig(backbone("gpt2"), **options)


def test_misuse_gets_a_clear_error():
    with pytest.raises(ConfigError, match="no adapter for backbones of type 'bert'"):
        MultiTokenConfig({"model_type": "bert"})
    model = multitoken("gpt2", "layer")
    with pytest.raises(ConfigError, match="65 tokens are more than the backbone's 64"):
        model(draw(1, LONGEST + 1))
    with pytest.raises(ConfigError, match="66 tokens are more than the backbone's 64"):
        model(draw(1, 2), position_ids=torch.tensor([[LONGEST, LONGEST + 1]]))
    with pytest.raises(ConfigError, match="label 23 is outside the vocabulary"):
        model(draw(1, 5), labels=torch.full((1, 5), VOCABULARY))
    with pytest.raises(ConfigError, match="heads is 4, but this model has heads 1 to 3"):
        model(draw(1, 5), heads=4)
    with pytest.raises(ConfigError, match="needs position_ids too"):
        model(draw(1, 5), attention_mask=torch.ones(1, 1, 5, 5, dtype=torch.bool))
    with pytest.raises(ConfigError, match="not filled for 3 of this model's heads"):
        model(draw(1, 1), past_key_values=model(draw(1, 5), use_cache=True).past_key_values, heads=3)
    foreign = DynamicCache()
    AutoModelForCausalLM.from_config(backbone("gpt2"))(draw(1, 5), past_key_values=foreign)
    with pytest.raises(ConfigError, match="not filled for 1 of this model's heads"):
        model(draw(1, 1), past_key_values=foreign)
    with pytest.raises(ConfigError, match="none left for the trunk"):
        MultiTokenForCausalLM.from_backbone(AutoModelForCausalLM.from_config(backbone("gpt2", layers=1)))
