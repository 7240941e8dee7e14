"""LoRA adapters of peft attach to backbone and predictor, train, and merge."""

import pytest
import torch

from contextlm_models import contextlm, draw

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
