"""Attention in blocks of queries equals torch's fused attention, and replaces it only where it is meant to."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from contextlm_models import backbone
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
    """A model whose context of 160 tokens has two blocks."""
    torch.manual_seed(0)
    if family == "ContextLM":
        config = ContextLMConfig(backbone("llama", max_position_embeddings=160), chunk_size=2)
        return ContextLMForCausalLM(config).eval()
    name = "n_positions" if family == "gpt2" else "max_position_embeddings"
    return AutoModelForCausalLM.from_config(backbone(family, **{name: 160})).eval()


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
    ids = torch.randint(0, 60, (2, 160), generator=torch.Generator().manual_seed(1))
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
    assert 160 in lengths
    assert (result - exact).norm() < 1.5 * (usual - exact).norm() < 0.1 * exact.norm()


def test_where_the_fused_attention_stays(lengths):
    model, low = model_of("gpt2"), torch.bfloat16
    with fast_attention():
        loss_of(model, torch.float32)
        padding = torch.ones(2, 160, dtype=torch.long)
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


BIAS = 3 * torch.randn(1, 4, 40, 40, generator=torch.Generator().manual_seed(3))
CALLS: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    # what differs from a plain call: of the inputs' shapes and the module, of the arguments, and whether blocks apply
    "plain": ({}, {}, True),
    "known": ({}, {"scaling": 0.2, "dropout": 0.0, "is_causal": True, "position_ids": torch.arange(40)[None]}, True),
    "without effect": ({}, {"sliding_window": 7, "use_cache": False, "position_bias": None}, True),
    "groups": ({"groups": 2}, {}, True),
    "position bias": ({}, {"position_bias": BIAS.bfloat16()}, False),
    "position bias over groups": ({"groups": 2}, {"position_bias": BIAS.bfloat16()}, False),
    "mask": ({}, {"attention_mask": torch.ones(1, 1, 40, 40, dtype=torch.bool).tril(2)}, False),
    "both directions": ({}, {"is_causal": False}, False),
    "an encoder's layer": ({"is_causal": False}, {}, False),
    "dropout": ({}, {"dropout": 0.5}, False),
    "other values": ({"values": 16}, {}, False),
    "more keys": ({"keys": 50}, {}, False),
    "one query": ({"queries": 1}, {}, False),
    "one row of keys": ({"rows": 1}, {}, False),
    "of a later version": ({}, {"s_aux": torch.ones(4)}, False),
}


@pytest.mark.parametrize("case", CALLS)
def test_every_argument_has_the_effect_that_it_has_in_transformers(case, lengths):
    """The same output and gradients, with blocks where each argument is known, and else by transformers' own function."""
    shape, options, in_blocks = CALLS[case]
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = shape.get("groups", 1), shape.get("is_causal", True)
    draw = torch.Generator().manual_seed(0)
    keys, heads, rows = shape.get("keys", 40), 4 // module.num_key_value_groups, shape.get("rows", 2)
    sizes = [(2, 4, shape.get("queries", 40), 8), (rows, heads, keys, 8), (rows, heads, keys, shape.get("values", 8))]
    options = {"attention_mask": None} | options

    def call() -> list[torch.Tensor]:
        torch.manual_seed(1)
        leaves = [torch.randn(size, generator=draw.manual_seed(2)).bfloat16().requires_grad_() for size in sizes]
        output, _ = AttentionInterface()["sdpa"](module, *leaves, **options)
        return [output, *torch.autograd.grad((output.float() ** 2).sum(), leaves)]

    expected = call()
    with fast_attention():
        result = call()
    assert bool(lengths) is in_blocks
    for ours, theirs in zip(result, expected, strict=True):
        assert (ours.float() - theirs.float()).norm() <= (0.02 if in_blocks else 0) * theirs.float().norm()


def test_an_argument_that_transformers_refuses_is_refused():
    query = torch.zeros(1, 1, 4, 8, dtype=torch.bfloat16, requires_grad=True)
    with fast_attention(), pytest.raises(ValueError, match="softcap"):
        AttentionInterface()["sdpa"](torch.nn.Module(), query, query, query, None, softcap=30.0)


def test_a_function_of_the_users_stays(monkeypatch):
    own = lambda *_, **__: None  # noqa: E731
    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", own)
    with fast_attention():
        assert AttentionInterface()["sdpa"] is own
    assert AttentionInterface()["sdpa"] is own


def test_no_second_derivative_is_made_up():
    """Blocks have none; a wrong one would train a penalty of gradients on something else."""
    leaves = [torch.randn(1, 1, 4, 8).requires_grad_() for _ in range(3)]
    loss = blockwise_attention(*leaves, 0.3).square().sum()
    (gradient,) = torch.autograd.grad(loss, leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.square().sum().backward()


def test_no_position_depends_on_a_later_one():
    generator = torch.Generator().manual_seed(2)
    query, key, value = torch.randn(3, 1, 2, 150, 16, generator=generator).bfloat16().requires_grad_().unbind(0)
    before = blockwise_attention(query, key, value, 0.25)
    key, value = key.clone(), value.clone()
    key[:, :, 100:], value[:, :, 100:] = 7.0, -7.0
    after = blockwise_attention(query, key, value, 0.25)
    assert torch.equal(before[:, :100], after[:, :100])
    assert not torch.equal(before[:, 100:], after[:, 100:])
