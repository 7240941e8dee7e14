"""The context predictor's layers of a key-value cache (ContextLM, Algorithm 1).

The predictor's blocks keep their keys and values in further layers of transformers' list, whose length is counted in chunks;
one last layer keeps the rest that the next token needs. Rows of a left-padded batch complete their chunks at different steps,
so a slot of a chunk layer is a chunk in some rows and empty in the others. The static layers are for decoding in compiled
graphs: of fixed size and filled in place; rows without a new chunk write to one extra slot, which is never read.

Shapes: B rows, S tokens and P chunk slots cached so far, T tokens and K slots of this call, D channels, w tokens per chunk.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, StaticCache, StaticLayer

from contextwise.base.errors import ConfigError
from contextwise.models.contextlm.config import ContextLMConfig
from contextwise.models.families import CACHE
from contextwise.models.masks import readable_without_sync

OTHER_MODEL = "past_key_values comes from another model: its number of layers does not match"


def initial_context(first_token: Tensor, kind: str) -> Tensor:
    """c_init, the context before the first complete chunk of a document, from h_0 of the same shape."""
    return torch.zeros_like(first_token) if kind == "zero" else first_token


class StateLayer(CacheLayerMixin):
    """Base class of cache layers without keys, length and mask, whose state is in the tensors named by ``tensors``."""

    is_initialized: bool
    tensors: tuple[str, ...]
    row_dimension = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = False

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.is_initialized = False

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.is_initialized:
            for name in self.tensors:
                setattr(self, name, change(getattr(self, name)))

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self._map(lambda tensor: tensor.index_select(self.row_dimension, beam_idx.to(tensor.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._map(lambda tensor: tensor[(slice(None),) * self.row_dimension + (indices,)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._map(lambda tensor: tensor.repeat_interleave(repeats, dim=self.row_dimension))

    def offload(self) -> None:
        self._map(lambda tensor: tensor.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        self._map(lambda tensor: tensor.to(self.device, non_blocking=True))


class ChunkLayer(DynamicLayer):
    """Keys and values of one predictor block, one entry per chunk; :class:`ContextState` crops it, in chunks."""

    keys: Tensor
    values: Tensor

    def crop(self, tokens_to_remove: int) -> None:
        """Do nothing: :class:`ContextState` crops this layer, since only it can convert tokens to chunks."""

    def keep(self, chunks: int) -> None:
        """Forget all but the first ``chunks`` entries."""
        if not chunks:
            self.reset()  # transformers selects and repeats no rows of a layer without entries, which keeps its batch size
        elif self.is_initialized:
            self.keys, self.values = self.keys[:, :, :chunks], self.values[:, :, :chunks]


class ContextState(StateLayer):
    """Token vectors and predicted contexts of everything cached, so that a cache can be cropped into the middle of a chunk.

    ``h_BSD``: output of the token encoder. ``start_BS``: index, among all S, of the first token of each token's document.
    ``context_BPD``: the context predicted after each chunk. ``end_BP``: index of that chunk's last token, -1 for no chunk.
    ``current_BD``: the context that the last token added, and that the next token adds unless it completes a chunk.
    """

    is_croppable = True
    tensors = ("h_BSD", "start_BS", "context_BPD", "end_BP", "current_BD")

    h_BSD: Tensor
    start_BS: Tensor
    context_BPD: Tensor
    end_BP: Tensor
    current_BD: Tensor

    def __init__(self, chunk_layers: list[ChunkLayer], chunk_size: int, initial_context: str) -> None:
        super().__init__()
        self.chunk_layers, self.chunk_size, self.initial_context = chunk_layers, chunk_size, initial_context

    @property
    def length(self) -> int:
        """S, the tokens cached so far."""
        return self.h_BSD.shape[1] if self.is_initialized else 0

    def begin(self, h_BTD: Tensor) -> None:
        """Initialize an empty state of the batch size, dtype and device of ``h_BTD``."""
        no_index = torch.zeros(h_BTD.shape[0], 0, dtype=torch.long, device=h_BTD.device)
        self.h_BSD, self.start_BS = h_BTD[:, :0], no_index
        self.context_BPD, self.end_BP = h_BTD[:, :0], no_index
        self.current_BD = h_BTD[:, 0]
        self.device = h_BTD.device
        self.is_initialized = True

    def extend(self, h_BTD: Tensor, start_BT: Tensor, current_BD: Tensor) -> None:
        """Append the tokens of one call; ``current_BD`` is the context that the last of them adds."""
        self.h_BSD = torch.cat([self.h_BSD, h_BTD], dim=1)
        self.start_BS = torch.cat([self.start_BS, start_BT], dim=1)
        self.current_BD = current_BD

    def allocate(self, end_BK: Tensor) -> tuple[Tensor, Tensor]:
        """Append chunks that end at ``end_BK`` (-1: no chunk): the ends of all, (B, P + K), and the columns of the new."""
        columns_K = torch.arange(end_BK.shape[1], device=end_BK.device) + self.end_BP.shape[1]
        return torch.cat([self.end_BP, end_BK], dim=1), columns_K.expand_as(end_BK)

    def keep_chunks(self, context_BKD: Tensor, end_BK: Tensor) -> None:
        """Append the chunks that one call completed: the context predicted after each, and its last token's index."""
        self.context_BPD = torch.cat([self.context_BPD, context_BKD], dim=1)
        self.end_BP = torch.cat([self.end_BP, end_BK], dim=1)

    def tail(self, count: int) -> Tensor:
        """The last ``count`` token vectors, (B, count, D), padded with zeros before the first token."""
        tail_BUD = self.h_BSD[:, max(0, self.length - count) :] if count else self.h_BSD[:, :0]
        return nn.functional.pad(tail_BUD, (0, 0, count - tail_BUD.shape[1], 0))

    def newest_context(self) -> Tensor:
        """The newest context of each row's last document; before its first chunk ends, c_init of that document: (B, D)."""
        start_B1 = self.start_BS[:, -1:]
        first_BD = initial_context(self.h_BSD.take_along_dim(start_B1[..., None], 1)[:, 0], self.initial_context)
        own_BP = self.end_BP - (self.chunk_size - 1) >= start_B1
        if not own_BP.shape[1]:
            return first_BD
        newest_B = torch.where(own_BP, self.end_BP, -1).argmax(dim=1)
        context_BD = self.context_BPD.take_along_dim(newest_B[:, None, None], 1)[:, 0]
        return torch.where(own_BP.any(dim=1, keepdim=True), context_BD, first_BD)

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens of every row (a negative number, as in all layers), and the chunks that end in them."""
        if tokens_to_remove > 0:
            raise ConfigError(
                f"a cache is cropped by a negative number of tokens, not by {tokens_to_remove}: -3 removes the last three"
            )
        if tokens_to_remove == 0 or not self.is_initialized:
            return
        length = max(0, self.length + tokens_to_remove)
        if length == 0:
            self.reset()
            chunks = 0
        else:
            self.h_BSD, self.start_BS = self.h_BSD[:, :length], self.start_BS[:, :length]
            self.end_BP = self.end_BP.masked_fill(self.end_BP >= length, -1)
            used = (self.end_BP >= 0).any(dim=0).nonzero()[:, 0]
            chunks = int(used[-1]) + 1 if len(used) else 0
            self.end_BP, self.context_BPD = self.end_BP[:, :chunks], self.context_BPD[:, :chunks]
            self.current_BD = self.newest_context()
        for layer in self.chunk_layers:
            layer.keep(chunks)

    def align(self, padding_B: Tensor) -> None:
        """Move rows to the right by ``padding_B``, the columns of padding after their tokens; reads no values."""
        moved_B1 = padding_B[:, None]
        from_BS = (torch.arange(self.length, device=self.h_BSD.device) - moved_B1).clamp(min=0)
        self.h_BSD = self.h_BSD.take_along_dim(from_BS[..., None], 1)
        self.start_BS = self.start_BS.take_along_dim(from_BS, 1) + moved_B1
        self.end_BP = torch.where(self.end_BP >= 0, self.end_BP + moved_B1, -1)
        self.current_BD = self.newest_context()


class StaticChunkLayer(StaticLayer):
    """Keys and values of one predictor block; :class:`StaticContextState` assigns the slots of new ones."""

    slots_BK: Tensor

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
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


class StaticContextState(StateLayer):
    """The state of :class:`ContextState` in tensors of fixed size, which cannot be cropped; the same methods.

    ``tail_BUD``: the last w - 1 token vectors. ``count_B1``: chunks so far. ``length``: tokens so far, ().
    """

    is_compileable = True
    is_croppable = False
    tensors = ("tail_BUD", "current_BD", "end_BP", "count_B1")

    def __init__(self, chunk_layers: list[StaticChunkLayer], chunk_size: int, max_tokens: int) -> None:
        super().__init__()
        self.chunk_layers, self.chunk_size, self.max_tokens = chunk_layers, chunk_size, max_tokens
        self.slots = max_tokens // chunk_size

    def begin(self, h_BTD: Tensor) -> None:
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

    def tail(self, count: int) -> Tensor:
        return self.tail_BUD  # count is always w - 1

    def allocate(self, end_BK: Tensor) -> tuple[Tensor, Tensor]:
        """Assign slots to new chunks: the ends of the chunks in all slots, (B, P + 1), and the slots of the new, (B, K)."""
        is_chunk_BK = end_BK >= 0
        slots_BK = torch.where(is_chunk_BK, self.count_B1 + is_chunk_BK.cumsum(1) - 1, self.slots)
        self.end_BP.scatter_(1, slots_BK, end_BK)
        self.count_B1.add_(is_chunk_BK.sum(1, keepdim=True))
        for layer in self.chunk_layers:
            layer.slots_BK = slots_BK
        return self.end_BP, slots_BK

    def extend(self, h_BTD: Tensor, start_BT: Tensor, current_BD: Tensor) -> None:
        tail_BUD = torch.cat([self.tail_BUD, h_BTD], dim=1)
        self.tail_BUD.copy_(tail_BUD[:, tail_BUD.shape[1] - self.tail_BUD.shape[1] :])
        self.current_BD.copy_(current_BD)
        self.length.add_(h_BTD.shape[1])

    def keep_chunks(self, context_BKD: Tensor, end_BK: Tensor) -> None:
        """Do nothing: contexts of earlier chunks are needed only to crop a cache."""

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.is_initialized:
            for name in self.tensors:
                getattr(self, name).copy_(change(getattr(self, name)))

    def get_max_length(self) -> int:
        return self.max_tokens


def context_state(
    cache: Cache, config: ContextLMConfig, further_layers: int = 0, depth: int | None = None
) -> ContextState | StaticContextState:
    """The context state of ``cache``, which ``further_layers`` may follow; a new cache gets one after the backbone's layers.

    ``depth`` is the number of the backbone's blocks, where the configuration says to run fewer of them (early exit).
    """
    layers = config.num_hidden_layers if depth is None else depth
    own = layers + config.predictor_layers + 1
    if not hasattr(cache, "layers"):  # of `generate_batch`, in pages
        raise ConfigError(f"ContextLM has no state in a {type(cache).__name__}; generate with model.generate")
    states = [i for i, layer in enumerate(cache.layers) if isinstance(layer, ContextState | StaticContextState)]
    if states:
        if states != [own - 1] or len(cache.layers) > own + further_layers:
            raise ConfigError(OTHER_MODEL)
        return cache.layers[own - 1]  # type: ignore[return-value]
    if cache.get_seq_length() > 0:
        raise ConfigError(
            "past_key_values was filled by a model without a context predictor; start with an empty cache"
        )
    kinds = {type(layer) for layer in cache.layers}
    if not (kinds <= {DynamicLayer} or kinds == {StaticLayer}):
        raise ConfigError(
            "ContextLM generates with a dynamic or a static cache only; leave cache_implementation at its default"
        )
    static = kinds == {StaticLayer}
    if len(cache.layers) > layers + further_layers or (static and len(cache.layers) < layers):
        raise ConfigError(OTHER_MODEL)
    cache.layers += [DynamicLayer() for _ in range(layers - len(cache.layers))]
    w, predictor = config.chunk_size, range(config.predictor_layers)
    if static:
        tokens = cache.layers[0].get_max_length()
        slots = [StaticChunkLayer(tokens // w + 1) for _ in predictor]
        cache.layers[layers:layers] = [*slots, StaticContextState(slots, w, tokens)]
    else:
        chunks = [ChunkLayer() for _ in predictor]
        cache.layers[layers:layers] = [*chunks, ContextState(chunks, w, config.initial_context)]
    return cache.layers[own - 1]  # type: ignore[return-value]


def refuse_right_padding(attention_mask: Tensor | None) -> None:
    """Raise ConfigError for padding after a row's tokens; an accelerator raises by itself, and is not waited for."""
    if attention_mask is None or attention_mask.dim() != 2:
        return
    padded = (attention_mask[:, -1] < attention_mask.amax(1)).any()
    message = "a row of attention_mask has padding after its tokens; pad on the left to generate (padding_side='left')"
    if not readable_without_sync(attention_mask):
        torch._assert_async(~padded, message)
    elif bool(padded):
        raise ConfigError(message)


def static_inputs(
    inputs: dict[str, Any],
    chunk_size: int,
    attention_mask: Tensor | None = None,
    is_first_iteration: bool | None = False,
    **_: Any,
) -> dict[str, Any]:
    """Complete the inputs that transformers prepared for a static cache; refuse prompts padded on the right.

    Whether a row completes a chunk is decided outside the compiled step, which is therefore one of two graphs.
    """
    if is_first_iteration:
        refuse_right_padding(attention_mask)
    if isinstance(inputs.get(CACHE), StaticCache):
        if is_first_iteration:
            inputs["attention_mask"] = attention_mask
        else:
            position_B = inputs["position_ids"][:, -1]
            inputs["inside_chunks"] = bool(((position_B > 0) & ((position_B + 1) % chunk_size > 0)).all())
    return inputs
