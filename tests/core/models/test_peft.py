"""LoRA adapters of peft attach to backbone and predictor, train, and merge."""

from functools import partial

import pytest
import torch

from contextlm_models import contextlm, draw
from multitoken_models import multitoken

peft = pytest.importorskip("peft", reason="peft is not installed")
DEFAULTS = peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
"""The layers that peft adapts in a plain model; docs/train.md names them for those of ContextLM."""
TARGETS = {"gpt2": ["c_attn", "c_fc"], "llama": ["q_proj", "v_proj", "up_proj"]}


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama", "qwen3"])
@pytest.mark.parametrize("names", ["all-linear", "peft's"])
def test_the_documented_names_adapt_backbone_and_predictor_but_not_the_head(family, names):
    targets = DEFAULTS[family] if names == "peft's" else names
    adapted = peft.get_peft_model(contextlm(family), peft.LoraConfig(target_modules=targets))
    layers = {name.split(".lora_A")[0] for name, p in adapted.named_parameters() if p.requires_grad}
    assert {name.split(".")[2] for name in layers} == {"backbone", "context"}
    tokens = draw(2, 9)
    adapted(input_ids=tokens, labels=tokens).loss.backward()


@pytest.mark.parametrize("made", [contextlm, partial(multitoken, head="layer"), partial(multitoken, head="linear")])
@pytest.mark.parametrize("family", TARGETS)
def test_adapters_and_hooks_of_vocabulary_heads_are_in_the_loss(family, made):
    """The loss is that of the logits, with gradients, although a plain head is scored in pieces by its matrix."""
    model = made(family)
    tokens = draw(2, 9) % model.config.vocab_size
    heads = [
        name for name, layer in model.named_modules() if getattr(layer, "out_features", 0) == model.config.vocab_size
    ]
    config = peft.LoraConfig(target_modules=heads, r=2, init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval()
    scored = adapted(input_ids=tokens, labels=tokens)
    logits = scored.logits[:, :-1].flatten(0, 1)
    torch.testing.assert_close(scored.loss, torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten()))
    adapted.train()(input_ids=tokens, labels=tokens).loss.backward()
    assert heads and all(p.grad is not None for name, p in adapted.named_parameters() if "lora_" in name)
    whole = adapted.unload().eval()
    with torch.no_grad():
        expected = whole(tokens).logits[:, :-1].flatten(0, 1) / 2
        whole.get_output_embeddings().register_forward_hook(lambda _, given, logits: logits / 2)
        found = whole(tokens, labels=tokens).loss
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(expected, tokens[:, 1:].flatten()))


@pytest.mark.parametrize("family", TARGETS)
def test_lora_trains_backbone_and_predictor_and_merges(family):
    model = contextlm(family, chunk_size=3)
    tokens = draw(2, 14)
    with torch.no_grad():
        before = model(tokens, use_cache=False).logits
    adapted = peft.get_peft_model(
        model,
        peft.LoraConfig(r=2, target_modules=TARGETS[family], task_type="CAUSAL_LM", fan_in_fan_out=family == "gpt2"),
    )
    trained = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    assert any(".context.layers." in name for name in trained)
    assert any(".backbone." in name for name in trained)
    with torch.no_grad():
        assert torch.equal(adapted(input_ids=tokens, use_cache=False).logits, before)
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = adapted.train()(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    adapted.eval()
    with torch.no_grad():
        after = adapted(input_ids=tokens, use_cache=False).logits
        merged = adapted.merge_and_unload()
        assert type(merged) is type(model)
        torch.testing.assert_close(merged(tokens, use_cache=False).logits, after, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(after, before, atol=1e-3)
