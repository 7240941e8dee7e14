"""The context predictor's layers of a cache of fixed size, for decoding in compiled graphs.

transformers' ``StaticCache`` holds tensors that are filled in place, so that every decoding step is the same graph. The
predictor's keys and values, and the rest of the state that the next token needs, are stored in the same way. Token vectors
before the unfinished chunk are not kept, so such a cache cannot be cropped.

Shapes: B rows, K chunks of this call, P chunk slots, D channels, w tokens per chunk. Rows without a new chunk write to one
extra slot, which is never read.
"""

from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin, StaticCache, StaticLayer


class StaticChunkLayer(StaticLayer):
    """Keys and values of one predictor block; :class:`StaticContextState` assigns the slots of new ones."""

    slots_BK: torch.Tensor

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        index = self.slots_BK[:, None, :, None]
        self.keys.scatter_(2, index.expand_as(key_states), key_states)
        self.values.scatter_(2, index.expand_as(value_states), value_states)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        if self.is_initialized:
            self.keys.copy_(self.keys.index_select(0, beam_idx.to(self.device)))
            self.values.copy_(self.values.index_select(0, beam_idx.to(self.device)))

    def get_seq_length(self) -> int:
        return 0


class StateLayer(CacheLayerMixin):
    """Base class of cache layers without keys, length and mask; implements transformers' abstract methods."""

    is_initialized: bool

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = False

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.is_initialized = False


class StaticContextState(StateLayer):
    """The state of :class:`~contextwise.models.contextlm.cache.ContextState` in tensors of fixed size.

    ``tail_BUD``: the last w - 1 token vectors. ``current_BD``: the context that the last token added. ``end_BP``: index of each
    slot's last token, -1 for no chunk. ``count_B1``: chunks so far. ``length``: tokens so far, ().
    """

    is_compileable = True
    is_croppable = False

    def __init__(self, chunk_layers: list[StaticChunkLayer], chunk_size: int, max_tokens: int) -> None:
        super().__init__()
        self.chunk_layers, self.chunk_size, self.slots = chunk_layers, chunk_size, max_tokens // chunk_size
        self.max_tokens = max_tokens

    @classmethod
    def with_layers(
        cls, predictor_layers: int, chunk_size: int, max_tokens: int
    ) -> tuple[list[StaticChunkLayer], "StaticContextState"]:
        """Create the predictor's cache layers for ``max_tokens`` tokens, and their state."""
        chunk_layers = [StaticChunkLayer(max_tokens // chunk_size + 1) for _ in range(predictor_layers)]
        return chunk_layers, cls(chunk_layers, chunk_size, max_tokens)

    def begin(self, h_BTD: torch.Tensor) -> None:
        """Allocate the tensors, before the first token."""
        rows, _, width = h_BTD.shape
        self.device = h_BTD.device
        self.tail_BUD = h_BTD.new_zeros(rows, self.chunk_size - 1, width)
        self.current_BD = h_BTD[:, 0].detach().clone()
        self.end_BP = torch.full((rows, self.slots + 1), -1, device=self.device)
        self.count_B1 = torch.zeros(rows, 1, dtype=torch.long, device=self.device)
        self.length = torch.zeros((), dtype=torch.long, device=self.device)
        # So that a compiled graph may write into them instead of returning new ones.
        for tensor in (self.tail_BUD, self.current_BD, self.end_BP, self.count_B1, self.length):
            torch._dynamo.mark_static_address(tensor)
        self.is_initialized = True

    def tail(self, count: int) -> torch.Tensor:
        """The last ``count`` = w - 1 token vectors, (B, count, D), padded with zeros before the first token."""
        return self.tail_BUD

    def allocate(self, end_BK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Assign slots to new chunks.

        Args:
            end_BK: index of each chunk's last token, -1 for no chunk.

        Returns:
            The ends of the chunks in all slots, (B, P + 1), and the slots of the new ones, (B, K).
        """
        is_chunk_BK = end_BK >= 0
        slots_BK = torch.where(is_chunk_BK, self.count_B1 + is_chunk_BK.cumsum(1) - 1, self.slots)
        self.end_BP.scatter_(1, slots_BK, end_BK)
        self.count_B1.add_(is_chunk_BK.sum(1, keepdim=True))
        for layer in self.chunk_layers:
            layer.slots_BK = slots_BK
        return self.end_BP, slots_BK

    def extend(self, h_BTD: torch.Tensor, start_BT: torch.Tensor, current_BD: torch.Tensor) -> None:
        """Append the tokens of one call; ``current_BD`` is the context that the last of them added."""
        tail_BUD = torch.cat([self.tail_BUD, h_BTD], dim=1)
        self.tail_BUD.copy_(tail_BUD[:, tail_BUD.shape[1] - self.tail_BUD.shape[1] :])
        self.current_BD.copy_(current_BD)
        self.length.add_(h_BTD.shape[1])

    def keep_chunks(self, context_BKD: torch.Tensor, end_BK: torch.Tensor) -> None:
        """Do nothing: contexts of earlier chunks are needed only to crop a cache."""

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        if self.is_initialized:
            for tensor in (self.tail_BUD, self.current_BD, self.end_BP, self.count_B1):
                tensor.copy_(tensor.index_select(0, beam_idx.to(self.device)))

    def get_max_length(self) -> int:
        return self.max_tokens


def static_inputs(
    inputs: dict[str, Any],
    chunk_size: int,
    attention_mask: torch.Tensor | None = None,
    is_first_iteration: bool | None = False,
    **_: Any,
) -> dict[str, Any]:
    """Complete the inputs that ``generate()`` passes to the model, if the cache is static.

    Whether any row completes a chunk is decided outside the compiled step, which is therefore one of two graphs: with or
    without the predictor.

    Args:
        inputs: the inputs that transformers prepared.
        attention_mask: (B, past + T), the padding of the prompt; later steps use transformers' own mask.
    """
    if isinstance(inputs.get("past_key_values"), StaticCache):
        if is_first_iteration:
            inputs["attention_mask"] = attention_mask
        else:
            inputs["completes_chunk"] = bool(((inputs["position_ids"][:, -1] + 1) % chunk_size == 0).any())
    return inputs
