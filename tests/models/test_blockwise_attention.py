"""Attention in blocks of queries equals torch's fused attention, and replaces it only where it is meant to."""

from typing import Any

import pytest
import torch
from contextlm_models import backbone
from hypothesis import given
from hypothesis import strategies as st
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise.models import attention
from contextwise.models.attention import blockwise_attention, fast_attention
from contextwise.models.losses import final_hidden_states, linear_cross_entropy


def fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    result = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.3)
    return result.transpose(1, 2)


@given(st.integers(1, 300), st.integers(1, 3), st.integers(0, 2**31 - 1))
def test_blocks_equal_fused_attention(length, heads, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(3, 2, heads, length, 8, generator=generator, dtype=torch.float64).unbind(0)
    grad = torch.randn(2, length, heads, 8, generator=generator, dtype=torch.float64)
    results = []
    for function in (fused, lambda *x: blockwise_attention(*x, 0.3)):
        leaves = [x.clone().requires_grad_() for x in inputs]
        output = function(*leaves)
        results.append([output, *torch.autograd.grad(output, leaves, grad)])
    for expected, result in zip(*results, strict=True):
        torch.testing.assert_close(result, expected)


def model_of(family: str) -> Any:
    """A model whose context of 96 tokens has two blocks."""
    torch.manual_seed(0)
    if family == "ContextLM":
        config = ContextLMConfig(backbone("llama", max_position_embeddings=96), chunk_size=2)
        return ContextLMForCausalLM(config).eval()
    name = "n_positions" if family == "gpt2" else "max_position_embeddings"
    return AutoModelForCausalLM.from_config(backbone(family, **{name: 96})).eval()


@pytest.fixture
def lengths(monkeypatch) -> list[int]:
    """The lengths of the attentions that were computed in blocks."""
    lengths = []
    own = attention.blockwise_attention

    def counted(query: torch.Tensor, *rest: Any) -> torch.Tensor:
        lengths.append(query.shape[2])
        return own(query, *rest)

    monkeypatch.setattr(attention, "blockwise_attention", counted)
    return lengths


def loss_of(model: Any, dtype: torch.dtype, **inputs: Any) -> torch.Tensor:
    ids = torch.randint(0, 60, (2, 96), generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        hidden = final_hidden_states(model, input_ids=ids, **inputs)
        return linear_cross_entropy(hidden, model.get_output_embeddings().weight, ids.roll(-1, 1))


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama", "ContextLM"])
def test_a_training_step_of_a_stock_model_in_bf16(family, lengths):
    """In blocks, its gradients are as near to those of float32 as those of the fused attention are."""
    model = model_of(family)

    def gradients(dtype: torch.dtype) -> torch.Tensor:
        model.zero_grad()
        loss_of(model, dtype).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    exact, usual = gradients(torch.float32), gradients(torch.bfloat16)
    assert not lengths
    with fast_attention():
        result = gradients(torch.bfloat16)
    assert 96 in lengths
    assert (result - exact).norm() < 1.5 * (usual - exact).norm() < 0.1 * exact.norm()


def test_where_the_fused_attention_stays(lengths):
    model, low = model_of("gpt2"), torch.bfloat16
    with fast_attention():
        loss_of(model, torch.float32)
        padding = torch.ones(2, 96, dtype=torch.long)
        padding[0, :9] = 0
        loss_of(model, low, attention_mask=padding)
        with torch.no_grad():
            loss_of(model, low)
        model.generate(padding[:, :60], max_new_tokens=2, do_sample=False)
        for block in model.transformer.h:
            block.attn.attn_dropout.p = 0.1
        loss_of(model.train(), low)
        assert not lengths
        loss_of(model.eval(), low)
        assert lengths
    assert AttentionInterface()["sdpa"] is sdpa_attention_forward


def test_no_position_depends_on_a_later_one():
    generator = torch.Generator().manual_seed(2)
    query, key, value = torch.randn(3, 1, 2, 150, 16, generator=generator).bfloat16().requires_grad_().unbind(0)
    before = blockwise_attention(query, key, value, 0.25)
    key, value = key.clone(), value.clone()
    key[:, :, 100:], value[:, :, 100:] = 7.0, -7.0
    after = blockwise_attention(query, key, value, 0.25)
    assert torch.equal(before[:, :100], after[:, :100])
    assert not torch.equal(before[:, 100:], after[:, 100:])
