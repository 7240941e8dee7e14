"""Causal attention of a training step on a CPU in bf16, in blocks of queries with torch's matrix products.

The backward pass of torch's fused attention on a CPU runs at a tenth of the rate of its bf16 matrix products. Here the
scores of one block of queries with all earlier keys are computed at a time, and the probabilities are kept for the backward
pass: faster for short contexts (``benchmarks/training_step.py``), more memory for long ones. Models stay stock classes.

Shapes: B rows, H heads, T positions, d channels of a head.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

LONGEST = 1024
"""The longest context in blocks; the probabilities of longer ones would need more memory than other activations."""
SIZE = 128
"""Queries of a block. Blocks of 64 compute fewer scores, in products too small for a processor with AMX."""


class _BlockwiseAttention(torch.autograd.Function):
    """Causal attention of ``query`` (B·H, T, d), already scaled, over ``key`` and ``value`` (B·H, T, d)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length = query.shape[1]
        later = query.new_full((SIZE, SIZE), -torch.inf).triu(1)
        output, kept = torch.empty_like(query), []
        for start in range(0, length, SIZE):
            end = min(start + SIZE, length)
            scores = query[:, start:end] @ key[:, :end].transpose(1, 2)
            scores[:, :, start:].add_(later[: end - start, : end - start])
            probabilities = scores.softmax(-1)
            output[:, start:end] = probabilities @ value[:, :end]
            kept.append(probabilities)
        ctx.save_for_backward(query, key, value, *kept)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        query, key, value, *kept = ctx.saved_tensors
        grad_query = torch.empty_like(query)
        wide = torch.promote_types(key.dtype, torch.float32)  # of the sums over blocks
        grad_key, grad_value = torch.zeros_like(key, dtype=wide), torch.zeros_like(key, dtype=wide)
        start = 0
        for probabilities in kept:
            end = probabilities.shape[2]
            rows = grad[:, start:end]
            grad_scores = torch._softmax_backward_data(
                rows @ value[:, :end].transpose(1, 2), probabilities, -1, query.dtype
            )
            grad_query[:, start:end] = grad_scores @ key[:, :end]
            grad_key[:, :end].add_(grad_scores.transpose(1, 2) @ query[:, start:end])
            grad_value[:, :end].add_(probabilities.transpose(1, 2) @ rows)
            start = end
        return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype)


def blockwise_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Causal attention in blocks of queries: (B, H, T, d) each -> (B, T, H, d), differentiable once."""
    shape = query.shape
    with torch.autocast(query.device.type, enabled=False):
        flat = [x.reshape(-1, *shape[2:]) for x in (query * scale, key, value)]
        return _BlockwiseAttention.apply(*flat).view(shape).transpose(1, 2)


WITHOUT_EFFECT = ("position_ids", "use_cache", "sliding_window")
"""Arguments that models pass on to transformers' own function, which does not read them: the mask holds their effect."""


def _in_blocks(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, options: dict[str, Any]
) -> bool:
    """Whether the blocks compute what transformers' own function does; an argument that is not known may change the result."""
    known = {"dropout", "scaling", "is_causal", *WITHOUT_EFFECT}
    causal, heads = options.get("is_causal"), query.shape[1]
    groups = getattr(module, "num_key_value_groups", 1)
    return (
        query.dtype == key.dtype == value.dtype == torch.bfloat16
        and query.device.type == "cpu"
        and torch.is_grad_enabled()
        and (getattr(module, "is_causal", True) if causal is None else causal)
        and attention_mask is None
        and not options.get("dropout")
        and all(name in known or value is None for name, value in options.items())
        and 1 < query.shape[2] <= LONGEST
        and key.shape == value.shape == (query.shape[0], heads // groups, *query.shape[2:])
        and heads % groups == 0
    )


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *others: Any,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention of a layer as transformers calls it: in blocks where they apply, by its own function elsewhere."""
    inputs = query, key, value
    if torch.is_autocast_enabled(query.device.type):  # rotary positions make queries and keys float32
        low = torch.get_autocast_dtype(query.device.type)
        inputs = query.to(low), key.to(low), value.to(low)
    if others or not _in_blocks(module, *inputs, attention_mask, options):
        return sdpa_attention_forward(module, query, key, value, attention_mask, *others, **options)
    query, key, value = inputs
    groups, scaling = query.shape[1] // key.shape[1], options.get("scaling")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return blockwise_attention(query, repeat_kv(key, groups), repeat_kv(value, groups), scale), None


@contextmanager
def fast_attention() -> Iterator[None]:
    """Let transformers models with torch's fused attention (``sdpa``) compute it in blocks where that is faster.

    A function of the user's that replaces transformers' own stays in place.
    """
    if AttentionInterface()["sdpa"] is not sdpa_attention_forward:
        yield
        return
    AttentionInterface.register("sdpa", _attention)
    try:
        yield
    finally:
        AttentionInterface.register("sdpa", sdpa_attention_forward)
