"""The context pathway: chunk pooling, the context predictor, and the injection of its output into the decoder's input.

The index convention (ContextLM, Section 2.2, with K = floor(T/w) complete chunks): chunk k contains the tokens at
positions k*w .. (k+1)*w-1 of a document; its predicted context is computed from the chunks before it; and position t adds
the predicted context of the chunk that its *target*, token t+1, belongs to. Positions before w-1 add ``c_init``:
h_0, or zero.

Positions count from each document's first real token, so the convention also holds under left padding and for packed
documents: a chunk never contains tokens of two documents, and never padding.

Shapes: B rows, T positions of this call, D channels, w tokens per chunk, K chunks completed in this call, P chunks completed
in earlier calls; ``c`` is a chunk vector, ``context`` a predicted one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.utils.generic import is_flash_attention_requested

from contextwise.base.errors import ConfigError
from contextwise.models.contextlm.cache import Cache, ContextState, StaticContextState, initial_context
from contextwise.models.contextlm.config import ContextLMConfig
from contextwise.models.contextlm.layers import INJECTIONS, POOLINGS
from contextwise.models.families import family_of
from contextwise.models.masks import as_mask, causal_mask, lengths_of_documents, readable_without_sync


@dataclass
class ChunkLayout:
    """The positions of the chunks of one call, for rows that may differ in padding and in their documents."""

    ends_BK: Tensor
    """Index, in this call, of the last token of each chunk; rows with fewer chunks are filled with 0."""
    valid_BK: Tensor
    """Which entries of ``ends_BK`` are chunks."""
    first_BK: Tensor
    """Position of each chunk's first token in its document: the rotary position of the chunk."""
    latest_BT: Tensor
    """Number of chunks of this call that end at or before each position."""
    start_BT: Tensor
    """Index, in this call, of the document's first token; negative if it was in an earlier call."""
    initial_BT: Tensor
    """Positions that add c_init (fewer than w tokens of the document are known) and whose h_0 is in this call."""

    @classmethod
    def of(cls, positions_BT: Tensor, real_BT: Tensor, chunk_size: int) -> "ChunkLayout":
        """Lay out the chunks of tokens at these positions in their documents; ``real_BT`` is False for padding."""
        index_BT = torch.arange(positions_BT.shape[1], device=positions_BT.device).expand_as(positions_BT)
        is_end_BT = ((positions_BT + 1) % chunk_size == 0) & real_BT
        latest_BT = is_end_BT.cumsum(1)
        # Ends are at least w tokens apart. Reading the exact number would wait for an accelerator.
        exact = readable_without_sync(latest_BT)
        most = int(latest_BT[:, -1].max()) if exact else -(-latest_BT.shape[1] // chunk_size)
        # Scatter each end to its rank; positions that end no chunk go to an extra column, which is dropped.
        column_BT = torch.where(is_end_BT, latest_BT - 1, most)
        ends_BK = index_BT.new_zeros(index_BT.shape[0], most + 1).scatter_(1, column_BT, index_BT)[:, :most]
        start_BT = index_BT - positions_BT
        return cls(
            ends_BK=ends_BK,
            valid_BK=torch.arange(most, device=index_BT.device) < latest_BT[:, -1:],
            first_BK=(positions_BT.gather(1, ends_BK) - (chunk_size - 1)).clamp(min=0),
            latest_BT=latest_BT,
            start_BT=start_BT,
            initial_BT=(positions_BT + 1 < chunk_size) & (start_BT >= 0) & real_BT,
        )


def chunk_attention(end_BK: Tensor, start_BK: Tensor, end_BP: Tensor, column_BK: Tensor) -> Tensor:
    """The attention mask under which a chunk sees the chunks of its document up to itself: (B, 1, K, P) booleans.

    Indices count from the first token of all calls: of the last token of each query and key (-1: no chunk), and of the first
    token of the query's document. Every query sees its own column, so that no softmax is empty.
    """
    end_B1P = end_BP[:, None, :]
    own_BKP = column_BK[..., None] == torch.arange(end_BP.shape[1], device=end_BP.device)
    allowed_BKP = (end_B1P >= 0) & (end_B1P >= start_BK[..., None]) & (end_B1P <= end_BK[..., None])
    return (allowed_BKP | own_BKP)[:, None]


class EvenContexts(NamedTuple):
    """The contexts of a call whose rows have the same chunk borders, before they are repeated per token."""

    bank_BKD: Tensor
    """c_init, c_1, ..., c_K."""
    length: int
    """T."""


Contexts = EvenContexts | Tensor
"""The contexts of a call: per chunk, or already per position, (B, T, D)."""


class ContextPathway(nn.Module):
    """Predicts the embedding of each next chunk from the chunks before it (ContextLM, Section 2.2.2)."""

    def __init__(self, config: ContextLMConfig, stock: nn.Module) -> None:
        super().__init__()
        backbone = config.backbone_config
        self.family = family_of(backbone)
        self.backbone_config = backbone
        self.chunk_size = config.chunk_size
        width, heads = backbone.hidden_size, backbone.num_attention_heads
        self.pooling = POOLINGS[config.pooling](config.chunk_size, width, heads)
        # The layer numbers continue those of the backbone, so that these blocks use separate cache layers.
        first = backbone.num_hidden_layers
        self.layers = nn.ModuleList(self.family.new_block(backbone, first + i) for i in range(config.predictor_layers))
        self.norm = self.family.new_norm(stock) if config.predictor_norm else None
        self.initial_context = config.initial_context
        self.gate = INJECTIONS[config.injection](config.injections, width, partial(self.family.new_norm, stock))

    def inject(self, h_BTD: Tensor, contexts: Contexts, layer: int, backbone: Any) -> Tensor:
        """Merge h with the context of each position's target's chunk (Eq. 5), such as h + gate * context."""
        norm = partial(self.family.norm, backbone)
        added_BTD = self.added(contexts, lambda context: self.gate(context, layer, norm))
        return self.gate.state(h_BTD, layer, norm) + added_BTD

    def added(self, contexts: Contexts, gate: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply ``gate`` to the contexts (once per chunk if possible), and map them to positions: (B, T, D)."""
        if not isinstance(contexts, EvenContexts):
            return gate(contexts)
        gated, w = gate(contexts.bank_BKD), self.chunk_size
        rows, count, width = gated.shape
        repeated = gated[:, :, None].expand(-1, -1, w, -1).reshape(rows, count * w, width)
        # Position t reads entry t + 1: the context of its target's chunk.
        return repeated[:, 1 : contexts.length + 1]

    def predict(
        self, c_BKD: Tensor, backbone: Any, first_BK: Tensor, mask: Any, cache: Cache | None, **kwargs: Any
    ) -> Tensor:
        """Run the predictor, causal over chunks; its output at chunk k-1 is the predicted context of chunk k (Eq. 3)."""
        rotary = self.family.rotary_of_chunks(backbone, c_BKD, first_BK)
        for block in self.layers:
            c_BKD = self.family.run(block, c_BKD, mask, rotary, cache, **kwargs)
        return c_BKD if self.norm is None else self.norm(c_BKD)

    def _mask(self, allowed: Tensor, number_BK: Tensor, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
        """The predictor's mask, from ``allowed`` (B, 1, K, P), for the attention implementation, and further arguments.

        ``number_BK`` is the number of each chunk in its document, 0 for no chunk.
        """
        config, (queries, keys) = self.backbone_config, allowed.shape[2:]
        if not is_flash_attention_requested(config):
            return as_mask(allowed, config, dtype), {}
        if queries == keys:
            return None, lengths_of_documents(number_BK, config)
        if queries == 1:
            return allowed[:, 0, 0], {}
        raise ConfigError(
            f"attention {config._attn_implementation!r} reads several new chunks beside those of a cache in one document only, "
            "and rows may differ in theirs; use 'sdpa', or pass the tokens at once or one by one"
        )

    def contexts(self, h_BTD: Tensor, backbone: Any, **kwargs: Any) -> Contexts:
        """Contexts of whole, unpadded rows with one document each, as in training."""
        rows, length, width = h_BTD.shape
        w = self.chunk_size
        count = length // w
        first = initial_context(h_BTD[:, :1], self.initial_context)
        if count == 0:
            return EvenContexts(first, length)
        c_BKD = self.pooling(h_BTD[:, : count * w].reshape(rows, count, w, width))
        positions = torch.arange(0, count * w, w, device=h_BTD.device)[None]
        # Without a mask sdpa and flash attention are causal by themselves. No position ids for transformers' mask code: it
        # would treat positions 0, w, 2w, ... as documents of one token each.
        mask = None
        if self.backbone_config._attn_implementation in ("eager", "flex_attention"):
            mask = causal_mask(self.backbone_config, c_BKD, None, None, None)
        predicted_BKD = self.predict(c_BKD, backbone, positions, mask, None, **kwargs)
        return EvenContexts(torch.cat([first, predicted_BKD], dim=1), length)

    def contexts_of_rows(
        self,
        h_BTD: Tensor,
        backbone: Any,
        positions_BT: Tensor,
        real_BT: Tensor,
        cache: Cache | None = None,
        kept_state: ContextState | StaticContextState | None = None,
        consecutive: bool = False,
        inside_chunks: bool | None = None,
        **kwargs: Any,
    ) -> Contexts:
        """Contexts of rows with padding, several documents or cached chunks; updates ``kept_state`` if given.

        ``consecutive``: each row is one document without padding, so that its positions need not be read. ``inside_chunks``:
        whether each row gets one more token, which begins no document and completes no chunk; by default read from positions.
        """
        rows, _, width = h_BTD.shape
        w = self.chunk_size
        if (
            inside_chunks is None
            and kept_state is not None
            and kept_state.is_initialized
            and positions_BT.shape[1] == 1
        ):
            if consecutive and isinstance(kept_state, ContextState):
                inside_chunks = kept_state.length > 0 and (kept_state.length + 1) % w != 0
            elif readable_without_sync(positions_BT):  # else the predictor runs in every step
                inside_chunks = bool((((positions_BT + 1) % w != 0) & (positions_BT > 0)).all())
        state = ContextState([], w, self.initial_context) if kept_state is None else kept_state
        if not state.is_initialized:
            state.begin(h_BTD)
        past = state.length
        if inside_chunks:
            state.extend(h_BTD, past - positions_BT, state.current_BD)
            return state.current_BD[:, None]
        extended = torch.cat([state.tail(w - 1), h_BTD], dim=1)  # token t of this call is at index t + w - 1

        layout = ChunkLayout.of(positions_BT, real_BT, w)
        count = layout.ends_BK.shape[1]
        predicted_BKD = h_BTD.new_empty(rows, 0, width)
        if count:
            window_BKw = layout.ends_BK[..., None] + torch.arange(w, device=h_BTD.device)
            chunks = extended.gather(1, window_BKw.view(rows, -1, 1).expand(-1, -1, width))
            chunks = chunks.view(rows, count, w, width)
            end_BK = torch.where(layout.valid_BK, past + layout.ends_BK, -1)
            start_BK = past + layout.start_BT.gather(1, layout.ends_BK)
            allowed = chunk_attention(past + layout.ends_BK, start_BK, *state.allocate(end_BK))
            number_BK = torch.where(layout.valid_BK, layout.first_BK // w, 0)
            mask, lengths = self._mask(allowed, number_BK, h_BTD.dtype)
            c_BKD = self.pooling(chunks)
            predicted_BKD = self.predict(c_BKD, backbone, layout.first_BK, mask, cache, **(kwargs | lengths))
            state.keep_chunks(predicted_BKD, end_BK)
        bank = torch.cat([state.current_BD[:, None], predicted_BKD], dim=1)
        context_BTD = bank.gather(1, layout.latest_BT[..., None].expand(-1, -1, width))
        initial_BTD = h_BTD.gather(1, layout.start_BT.clamp(min=0)[..., None].expand(-1, -1, width))
        initial_BTD = initial_context(initial_BTD, self.initial_context)
        context_BTD = torch.where(layout.initial_BT[..., None], initial_BTD, context_BTD)
        if kept_state is not None:
            kept_state.extend(h_BTD, past + layout.start_BT, context_BTD[:, -1])
        if isinstance(kept_state, ContextState):
            padding_B = real_BT.flip(1).cumsum(1).eq(0).sum(1)
            if bool(padding_B.any()) if readable_without_sync(padding_B) else not consecutive:
                kept_state.align(padding_B)
        return context_BTD


def context_pathway(model: nn.Module) -> ContextPathway | None:
    """The context pathway of a model, or of the ContextLM inside it; None if it has none."""
    return next((module for module in model.modules() if isinstance(module, ContextPathway)), None)
