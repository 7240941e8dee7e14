"""The context pathway: chunk pooling, the context predictor, and the gate that adds its output to the decoder's input.

Shapes: B rows, T positions, D channels, w tokens per chunk, K chunks, P chunks of earlier calls; ``c`` is a chunk vector,
``context`` a predicted one.
"""

from typing import Any

import torch
from torch import nn

from contextwise.base.errors import ConfigError
from contextwise.models.contextlm.cache import Cache, ContextState, StaticContextState
from contextwise.models.contextlm.chunks import ChunkLayout, chunk_attention
from contextwise.models.contextlm.config import ContextLMConfig
from contextwise.models.contextlm.injection import INJECTIONS
from contextwise.models.contextlm.pooling import POOLINGS
from contextwise.models.families import family_of


class ContextPathway(nn.Module):
    """Predicts the embedding of each next chunk from the chunks before it (ContextLM, Section 2.2.2)."""

    def __init__(self, config: ContextLMConfig) -> None:
        super().__init__()
        backbone = config.backbone_config
        self.family = family_of(backbone)
        self.backbone_config = backbone
        self.chunk_size = config.chunk_size
        width, heads = backbone.hidden_size, backbone.num_attention_heads
        self.pooling = POOLINGS[config.pooling](config.chunk_size, width, heads)
        # The layer numbers continue those of the backbone, so that these blocks use separate cache layers.
        first = backbone.num_hidden_layers
        self.layers = nn.ModuleList(
            self.family.new_block(backbone, first + i) for i in range(config.predictor_layers)
        )
        self.gate = INJECTIONS[config.injection](config.injections, width)

    def inject(self, h_BTD: torch.Tensor, contexts: "Contexts", layer: int) -> torch.Tensor:
        """Compute h + gate(context); each position adds the context of its target's chunk (Eq. 5)."""
        return h_BTD + contexts.spread(lambda context: self.gate(context, layer))

    def predict(
        self,
        c_BKD: torch.Tensor,
        backbone: Any,
        first_BK: torch.Tensor,
        mask: Any,
        cache: Cache | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Run the predictor, causal over chunks; its output at chunk k-1 is the predicted context of chunk k (Eq. 3)."""
        rotary = self.family.rotary_of_chunks(backbone, c_BKD, first_BK)
        for block in self.layers:
            c_BKD = self.family.run(block, c_BKD, mask, rotary, cache, **kwargs)
        return c_BKD

    def contexts(self, h_BTD: torch.Tensor, backbone: Any, **kwargs: Any) -> "Contexts":
        """Contexts of whole, unpadded rows with one document each, as in training."""
        rows, length, width = h_BTD.shape
        w = self.chunk_size
        count = length // w
        first = h_BTD[:, :1]
        if count == 0:
            return EvenContexts(first, w, length)
        c_BKD = self.pooling(h_BTD[:, : count * w].reshape(rows, count, w, width))
        positions = torch.arange(0, count * w, w, device=h_BTD.device)[None]
        # Pass no mask and no position ids to transformers' mask code: it would treat positions 0, w, 2w, ... as documents
        # of one token each. Without a mask the attention itself is causal.
        mask = None if self._implicitly_causal() else self._as_mask(_causal(count, h_BTD.device), h_BTD.dtype)
        predicted_BKD = self.predict(c_BKD, backbone, positions, mask, None, **kwargs)
        return EvenContexts(torch.cat([first, predicted_BKD], dim=1), w, length)

    def contexts_of_rows(
        self,
        h_BTD: torch.Tensor,
        backbone: Any,
        positions_BT: torch.Tensor,
        real_BT: torch.Tensor,
        cache: Cache | None = None,
        state: ContextState | StaticContextState | None = None,
        **kwargs: Any,
    ) -> "Contexts":
        """Contexts of rows with padding, several documents or cached chunks; updates ``state`` if given."""
        rows, _, width = h_BTD.shape
        w = self.chunk_size
        inside_chunks = state is not None and state.is_initialized and self._inside_chunks(positions_BT)
        kept_state = state
        state = ContextState([], w) if kept_state is None else kept_state
        if not state.is_initialized:
            state.begin(h_BTD)
        past = state.length
        if inside_chunks:
            state.extend(h_BTD, past - positions_BT, state.current_BD)
            return RaggedContexts(state.current_BD[:, None])
        extended = torch.cat([state.tail(w - 1), h_BTD], dim=1)  # token t of this call is at index t + w - 1

        layout = ChunkLayout.of(positions_BT, real_BT, w)
        count = layout.ends_BK.shape[1]
        predicted_BKD = h_BTD.new_empty(rows, 0, width)
        if count:
            window_BKw = layout.ends_BK[..., None] + torch.arange(w, device=h_BTD.device)
            chunks = extended.gather(1, window_BKw.view(rows, -1, 1).expand(-1, -1, width)).view(
                rows, count, w, width
            )
            end_BK = torch.where(layout.valid_BK, past + layout.ends_BK, -1)
            mask = layout.attention(*state.allocate(end_BK), past)
            predicted_BKD = self.predict(
                self.pooling(chunks),
                backbone,
                layout.first_BK,
                self._as_mask(mask, h_BTD.dtype),
                cache,
                **kwargs,
            )
            state.keep_chunks(predicted_BKD, end_BK)
        bank = torch.cat([state.current_BD[:, None], predicted_BKD], dim=1)
        context_BTD = bank.gather(1, layout.latest_BT[..., None].expand(-1, -1, width))
        initial_BTD = h_BTD.gather(1, layout.start_BT.clamp(min=0)[..., None].expand(-1, -1, width))
        context_BTD = torch.where(layout.initial_BT[..., None], initial_BTD, context_BTD)
        if kept_state is not None:
            kept_state.extend(h_BTD, past + layout.start_BT, context_BTD[:, -1])
        return RaggedContexts(context_BTD)

    def contexts_of_step(
        self,
        h_B1D: torch.Tensor,
        backbone: Any,
        positions_B1: torch.Tensor,
        cache: Cache | None,
        state: StaticContextState,
        completes_chunk: bool | None = None,
        **kwargs: Any,
    ) -> "Contexts":
        """Contexts of one more token per row with a cache of fixed size, in a graph that does not depend on values.

        Args:
            completes_chunk: whether any row completes a chunk; by default read from the positions. The predictor runs only
                if so, which makes two graphs.
        """
        w, past = self.chunk_size, state.length
        current_BD = state.current_BD
        first_B1, completes_B1 = positions_B1 == 0, (positions_B1 + 1) % w == 0
        if completes_chunk is None:
            completes_chunk = bool(completes_B1.any())
        if completes_chunk:
            chunk_B1wD = torch.cat([state.tail(w - 1), h_B1D], dim=1)[:, None]
            end_B1 = torch.where(completes_B1, past, -1)
            mask = chunk_attention(past.expand_as(end_B1), past - positions_B1, *state.allocate(end_B1))
            predicted_B1D = self.predict(
                self.pooling(chunk_B1wD),
                backbone,
                (positions_B1 - (w - 1)).clamp(min=0),
                self._as_mask(mask, h_B1D.dtype),
                cache,
                **kwargs,
            )
            current_BD = torch.where(completes_B1, predicted_B1D[:, 0], current_BD)
            first_B1 = first_B1 & ~completes_B1
        current_BD = torch.where(first_B1, h_B1D[:, 0], current_BD)
        state.extend(h_B1D, past - positions_B1, current_BD)
        return RaggedContexts(current_BD[:, None])

    def _inside_chunks(self, positions_BT: torch.Tensor) -> bool:
        """Whether this is one more token per row that begins no document and completes no chunk in any row."""
        if positions_BT.shape[1] != 1:
            return False
        inside = ((positions_BT + 1) % self.chunk_size != 0) & (positions_BT > 0)
        return bool(inside.all())

    def _implicitly_causal(self) -> bool:
        return self.backbone_config._attn_implementation != "eager"

    def _as_mask(self, allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Convert booleans (True: may attend) to the mask of the attention implementation in use.

        Raises:
            ConfigError: the implementation does not support such masks.
        """
        implementation = self.backbone_config._attn_implementation
        if implementation == "sdpa":
            return allowed
        if implementation == "eager":
            return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)
        raise ConfigError(
            f"attention {implementation!r} cannot run ContextLM on padded, packed or cached rows; use 'sdpa' or 'eager'"
        )


class Contexts:
    """The predicted contexts of a call, before they are mapped to positions."""

    def spread(self, gate: Any) -> torch.Tensor:
        """Apply ``gate`` to the contexts, and map them to positions: (B, T, D)."""
        raise TypeError("use EvenContexts or RaggedContexts")


class EvenContexts(Contexts):
    """Contexts (c_init, c_1, ..., c_K) of rows with the same chunk borders: gated per chunk, then repeated per token."""

    def __init__(self, bank_BKD: torch.Tensor, chunk_size: int, length: int) -> None:
        self.bank_BKD, self.chunk_size, self.length = bank_BKD, chunk_size, length

    def spread(self, gate: Any) -> torch.Tensor:
        gated = gate(self.bank_BKD)
        rows, count, width = gated.shape
        repeated = (
            gated[:, :, None]
            .expand(-1, -1, self.chunk_size, -1)
            .reshape(rows, count * self.chunk_size, width)
        )
        # Position t reads entry t + 1: the context of its target's chunk.
        return repeated[:, 1 : self.length + 1]


class RaggedContexts(Contexts):
    """Contexts that are already mapped to positions: (B, T, D)."""

    def __init__(self, context_BTD: torch.Tensor) -> None:
        self.context_BTD = context_BTD

    def spread(self, gate: Any) -> torch.Tensor:
        return gate(self.context_BTD)


def _causal(count: int, device: torch.device) -> torch.Tensor:
    return torch.ones(1, 1, count, count, dtype=torch.bool, device=device).tril()
