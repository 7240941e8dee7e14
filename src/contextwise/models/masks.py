"""Attention masks, built without reading values from an accelerator, which would wait for all work before it.

transformers reads padding masks and positions to leave a mask out where nothing is masked. That is free on a CPU only.

Shapes: B rows, T positions of a call, S positions with keys.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_flash_attention_utils import prepare_fa_kwargs_from_position_ids
from transformers.utils.generic import is_flash_attention_requested

from contextwise.base.errors import ConfigError

_may_read = True


@contextlib.contextmanager
def without_reading() -> Iterator[None]:
    """Inside the ``with`` block models read no values from tensors, as on an accelerator."""
    global _may_read
    before, _may_read = _may_read, False
    try:
        yield
    finally:
        _may_read = before


def readable_without_sync(x: Tensor) -> bool:
    """Whether values can be read without waiting for an accelerator or breaking a compiled or recorded graph."""
    return x.device.type == "cpu" and _may_read and not torch.compiler.is_compiling()


def takes_masks(config: Any) -> bool:
    """Whether masks of :func:`as_mask` are made without reading values, for this attention implementation."""
    return config._attn_implementation in ("sdpa", "eager")


def as_mask(allowed: Tensor, config: Any, dtype: torch.dtype) -> Any:
    """Convert booleans (B, 1, T, S), True: may attend, to the mask that the attention implementation of ``config`` takes."""
    implementation = config._attn_implementation
    if implementation == "sdpa":
        return allowed
    if implementation == "eager":
        return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)
    if implementation == "flex_attention":
        rows, _, queries, keys = allowed.shape

        def may_attend(row: Any, _: Any, query: Any, key: Any) -> Tensor:
            return allowed[row, 0, query, key]

        return create_block_mask(may_attend, rows, None, queries, keys, str(allowed.device))
    raise ConfigError(
        f"attention {implementation!r} takes no masks of prefixes, of packed documents whose tokens see both sides, or of "
        "padding beside packed documents; use 'sdpa', 'eager' or, for a model that has it, 'flex_attention'"
    )


def lengths_of_documents(position_ids: Tensor | None, config: Any) -> dict[str, Any]:
    """What flash attention takes in place of a mask of packed documents: further arguments of the blocks.

    A document begins where ``position_ids`` (B, T) do not increase by one. transformers reads the arguments from them where
    there is one row; with several rows it would let tokens see other documents. Empty for the other implementations.
    """
    if position_ids is None or not is_flash_attention_requested(config):
        return {}
    begins_BT = position_ids.diff(prepend=position_ids[:, :1] - 2) != 1
    (queries, keys), (longest_query, longest_key) = prepare_fa_kwargs_from_position_ids((~begins_BT).long())
    longest = {"max_length_q": int(longest_query), "max_length_k": int(longest_key)}
    return {"cu_seq_lens_q": queries, "cu_seq_lens_k": keys, **longest}


def all_real(attention_mask: Tensor | None) -> bool:
    """Whether no position is known to be padding; the mask is not read if that would wait for an accelerator."""
    if attention_mask is None:
        return True
    return attention_mask.dim() == 2 and readable_without_sync(attention_mask) and bool(attention_mask.all())


def packed_documents(
    attention_mask: Tensor | None, position_ids: Tensor | None, read: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The mask (B, T) that is still needed beside positions that restart, and the number of each token's document, (B, T).

    transformers reads documents from positions only where no mask is given: with one, even of ones, tokens would see other
    documents. A mask that hides nothing is therefore left out, and numbers are returned for one that does. A document begins at
    a real token whose position follows neither the position before it nor that of the last real token. Unless ``read``, values
    on a device are not read.
    """
    if attention_mask is None or position_ids is None or attention_mask.dim() != 2:
        return attention_mask, None
    real_BT = attention_mask.bool()
    if real_BT.shape[1] != position_ids.shape[1]:
        return attention_mask, None
    positions_BT, index = position_ids.expand(real_BT.shape), torch.arange(real_BT.shape[1], device=real_BT.device)
    before_BT = nn.functional.pad(torch.where(real_BT, index, -1).cummax(1).values[:, :-1], (1, 0), value=-1)
    after_real_BT = positions_BT == positions_BT.gather(1, before_BT.clamp(min=0)) + 1
    follows_BT = (before_BT >= 0) & (after_real_BT | (positions_BT == positions_BT.roll(1, 1) + 1))
    number_BT = (real_BT & ~follows_BT).cumsum(1)
    if read or readable_without_sync(number_BT):
        if not bool((number_BT > 1).any()):
            return attention_mask, None
        if bool(real_BT.all()):
            return None, None
    return attention_mask, number_BT


def causal_mask(
    config: PreTrainedConfig,
    embeds: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    cache: Cache | None,
    document_BT: Tensor | None = None,
) -> Any:
    """The mask of causal attention inside rows, padding and documents; None where the implementation needs none.

    ``attention_mask`` (B, S) is 0 for padding, or passed on as it is. Without mask and cache, a document begins where
    ``position_ids`` do not increase by one; ``document_BT`` numbers documents beside a mask of padding.
    """
    given = attention_mask if attention_mask is not None else position_ids
    ours = not readable_without_sync(embeds) and not torch.compiler.is_compiling()
    static = cache is not None and cache.is_compileable
    if document_BT is None and (not (ours and takes_masks(config)) or given is None or given.dim() != 2 or static):
        return create_causal_mask(config, embeds, attention_mask, cache, position_ids)
    past, length = (cache.get_seq_length() if cache is not None else 0), embeds.shape[1]
    index = torch.arange(past + length, device=embeds.device)
    allowed = (index <= index[past:, None])[None, None]
    if attention_mask is not None:
        allowed = allowed & attention_mask[:, None, None].bool()
    elif cache is None and position_ids is not None:
        document_BT = (position_ids.diff(prepend=position_ids[:, :1] - 1) != 1).cumsum(1)
    if document_BT is not None:
        allowed = allowed & (document_BT[:, None, :, None] == document_BT[:, None, None])
    return as_mask(allowed.expand(embeds.shape[0], -1, -1, -1), config, embeds.dtype)


def prefix_attention(prefix_BT: Tensor, position_ids: Tensor | None = None) -> Tensor:
    """The attention mask (B, 1, T, T) of a prefix LM (objectives, Section 6.2.4): causal, and bidirectional in the prefix.

    ``position_ids`` (B, T) are given for packed documents, which do not see each other.
    """
    length = prefix_BT.shape[1]
    causal_TT = torch.ones(length, length, dtype=torch.bool, device=prefix_BT.device).tril()
    allowed = causal_TT | (prefix_BT[:, :, None] & prefix_BT[:, None, :])
    return (allowed if position_ids is None else allowed & same_document(position_ids))[:, None]


def same_document(position_ids: Tensor) -> Tensor:
    """Mask of the pairs of positions in the same document, (B, T, T); documents begin at position 0."""
    document = position_ids.eq(0).cumsum(1)
    return document[:, :, None] == document[:, None, :]


def document_numbers(input_ids: Tensor, position_ids: Tensor | None, config: Any) -> Tensor:
    """The number of each token's document in its row, (B, T): it begins with end-of-text, and at position 0."""
    end = config.eos_token_id
    begins = torch.zeros_like(input_ids, dtype=torch.bool)
    for token in [end] if end is None or isinstance(end, int) else end:
        begins |= False if token is None else input_ids.eq(token)
    return (begins if position_ids is None else begins | position_ids.eq(0)).cumsum(1)


def as_attention_mask(allowed: Tensor, model: Any) -> Any:
    """Convert booleans to the mask of the model's attention implementation, by :func:`as_mask`."""
    return as_mask(allowed, model.config, model.dtype)
