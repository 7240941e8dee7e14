"""flex and flash attention give what sdpa gives, on whole, padded and packed rows, of stock models and ContextLM."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForCausalLM, DynamicCache, modeling_flash_attention_utils

from contextlm_models import FAMILIES, backbone, contextlm, draw, draw_parts, stock_model
from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise.base.errors import ConfigError
from contextwise.models.losses import final_hidden_states

LENGTH = 23
PACKED = torch.stack([torch.cat([torch.arange(n), torch.arange(LENGTH - n)]) for n in (9, 14)])
PADDED = torch.ones(2, LENGTH, dtype=torch.long)
PADDED[0, :6] = 0
ROWS: dict[str, dict[str, Tensor]] = {
    "whole": {},
    "packed": {"position_ids": PACKED},
    "padded": {"attention_mask": PADDED},
}
MODELS = {"stock": stock_model, "contextlm": lambda family: contextlm(family, chunk_size=3)}


def wide(kind: str, config: Any) -> Any:
    torch.manual_seed(0)
    if kind == "stock":
        return AutoModelForCausalLM.from_config(config)
    model = ContextLMForCausalLM(ContextLMConfig(config, chunk_size=3))
    draw_parts(model)
    return model


def hidden(model: Any, rows: str, tokens: Tensor) -> Tensor:
    batch = {name: value.to(tokens.device) for name, value in ROWS[rows].items()}
    with torch.no_grad():
        states = final_hidden_states(model, input_ids=tokens, **batch)
    return states[PADDED.bool()] if rows == "padded" else states.flatten(0, 1)


def set_attention(model: Any, name: str) -> None:
    """Without transformers' check that a kernel is there."""
    for config in {
        id(module.config): module.config for module in model.modules() if hasattr(module, "config")
    }.values():
        config._attn_implementation_internal = name


def reference_varlen(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:
    """Flash attention of documents one after another, (tokens, heads, channels), by its definition."""
    out = torch.empty_like(q)
    borders = [given[name].tolist() for name in ("cu_seqlens_q", "cu_seqlens_k")]
    for q0, q1, k0, k1 in zip(borders[0], borders[0][1:], borders[1], borders[1][1:], strict=False):
        out[q0:q1] = reference(q[None, q0:q1], k[None, k0:k1], v[None, k0:k1], **given)[0]
    return out


def reference(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:
    """Flash attention, (B, T, heads, channels): causal, the last query being at the last key."""
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], dim=2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (given["softmax_scale"] or q.shape[-1] ** -0.5)
    if given["is_causal"]:
        queries, keys = scores.shape[2:]
        scores = scores.masked_fill(torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries), -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' flash attention, with the kernels' definition in place of the kernels, which need a GPU."""
    utils = modeling_flash_attention_utils
    kernels = (reference, reference_varlen, None, utils._pad_input, utils._unpad_input)
    monkeypatch.setattr(utils, "lazy_import_flash_attention", lambda *_, **__: (kernels, (dict, dict)))
    # The kernels take half precision alone, the definition float32 too.
    monkeypatch.setattr(transformers.integrations.flash_attention, "get_target_dtype", lambda *_: None)


@FAMILIES
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("rows", ROWS)
def test_flash_attention_gets_documents_and_padding(flash: None, family: str, kind: str, rows: str) -> None:
    model, tokens = MODELS[kind](family).eval(), draw(2, LENGTH)
    expected = hidden(model, rows, tokens)
    set_attention(model, "flash_attention_2")
    torch.testing.assert_close(hidden(model, rows, tokens), expected, atol=2e-5, rtol=1e-4)


@FAMILIES
def test_flash_attention_generates(flash: None, family: str) -> None:
    model, tokens = contextlm(family, chunk_size=3).eval(), draw(2, LENGTH)
    options: dict[str, Any] = {"attention_mask": PADDED, "max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    expected = model.generate(tokens, **options)
    set_attention(model, "flash_attention_2")
    assert torch.equal(model.generate(tokens, **options), expected)
    cache = DynamicCache(config=model.config)
    model(tokens, past_key_values=cache)
    with pytest.raises(ConfigError, match="several new chunks beside those of a cache"):
        model(tokens, past_key_values=cache)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt_neox", "llama"])
@pytest.mark.parametrize("kind", MODELS)
def test_flex_attention_gives_the_same(family: str, kind: str, device: str) -> None:
    config = backbone(family, num_attention_heads=1)  # heads of 16 channels: on a GPU flex attention takes no fewer
    model, tokens = wide(kind, config).to(device).eval(), draw(2, LENGTH).to(device)
    expected = {rows: hidden(model, rows, tokens) for rows in ROWS}
    model.set_attn_implementation("flex_attention")
    torch.compiler.reset()
    # torch 2.13 writes wrong C++ for flex attention on a CPU if one graph serves several lengths.
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        for rows in ROWS:
            torch.testing.assert_close(hidden(model, rows, tokens), expected[rows], atol=2e-5, rtol=1e-4)


@pytest.mark.cuda
@FAMILIES
@pytest.mark.parametrize("kind", MODELS)
def test_torchs_flash_kernel_gives_the_same(family: str, kind: str) -> None:
    """Forward and backward of whole rows, which need no mask; torch refuses where its kernel does not apply."""
    model, tokens, results = MODELS[kind](family).cuda(), draw(2, LENGTH).cuda(), []
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        model.zero_grad()
        with sdpa_kernel(backend), torch.autocast("cuda", torch.bfloat16):
            states = final_hidden_states(model, input_ids=tokens)
        (states.float() ** 3).mean().backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        results.append((states.detach().float(), gradients))
    for ours, expected in zip(results[1], results[0], strict=True):
        assert (ours - expected).norm() <= 0.05 * expected.norm()


@pytest.mark.cuda
@FAMILIES
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("rows", ROWS)
def test_the_flash_attention_package_gives_the_same(family: str, kind: str, rows: str) -> None:
    pytest.importorskip("flash_attn", reason="flash-attn is not installed")
    model, tokens = MODELS[kind](family).to("cuda", torch.bfloat16).eval(), draw(2, LENGTH).cuda()
    expected = hidden(model, rows, tokens)
    model.set_attn_implementation("flash_attention_2")
    assert (hidden(model, rows, tokens) - expected).norm() <= 0.05 * expected.norm()


def test_a_backbone_without_flex_attention_refuses_it() -> None:
    with pytest.raises(ValueError, match="GPT2Model does not support .* flex_attention"):
        contextlm("gpt2").set_attn_implementation("flex_attention")
