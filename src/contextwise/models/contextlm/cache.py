"""The context predictor's layers of a key-value cache (ContextLM, Algorithm 1).

transformers' cache is a list of layers; beams, batch selection, repetition and cropping call methods of the layers.
The predictor's blocks keep their keys and values in further layers of the same list, whose length is counted in
chunks. One last layer, :class:`ContextState`, keeps the rest that the next token needs: the token vectors, and the
context predicted after each chunk.

Shapes: B rows, S tokens and P chunk slots cached so far, T tokens and K slots of this call, D channels. Rows of a
left-padded batch complete their chunks at different steps, so a slot is a chunk in some rows and empty in the others.
"""

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicLayer, StaticLayer

from contextwise.base.errors import ConfigError
from contextwise.models.contextlm.config import ContextLMConfig
from contextwise.models.contextlm.static import StateLayer, StaticChunkLayer, StaticContextState

OTHER_MODEL = "past_key_values comes from another model: its number of layers does not match"


class ChunkLayer(DynamicLayer):
    """Keys and values of one predictor block, one entry per chunk; :class:`ContextState` crops it, in chunks."""

    keys: torch.Tensor
    values: torch.Tensor

    def crop(self, tokens_to_remove: int) -> None:
        """Do nothing: :class:`ContextState` crops this layer, since only it can convert tokens to chunks."""

    def keep(self, chunks: int) -> None:
        """Forget all but the first ``chunks`` entries."""
        if self.is_initialized:
            self.keys, self.values = self.keys[:, :, :chunks], self.values[:, :, :chunks]

    def take(self, order_BP: torch.Tensor) -> None:
        """Keep the entries at these indices, per row."""
        if self.is_initialized:
            index = order_BP[:, None, :, None].to(self.keys.device)
            self.keys, self.values = self.keys.take_along_dim(index, 2), self.values.take_along_dim(index, 2)


class ContextState(StateLayer):
    """Token vectors and predicted contexts of everything cached.

    ``h_BSD``: output of the token encoder. ``start_BS``: index, among all S, of the first token of each token's document.
    ``context_BPD``: the context predicted after each chunk. ``end_BP``: index of that chunk's last token, -1 for no chunk.
    ``current_BD``: the context that the last token added, and that the next token adds unless it completes a chunk.

    All token vectors are kept, not only the last w - 1, so that a cache can be cropped into the middle of a chunk; that
    is one vector per token in addition to the backbone's two per layer.
    """

    is_croppable = True

    h_BSD: torch.Tensor
    start_BS: torch.Tensor
    context_BPD: torch.Tensor
    end_BP: torch.Tensor
    current_BD: torch.Tensor

    def __init__(self, chunk_layers: list[ChunkLayer], chunk_size: int) -> None:
        super().__init__()
        self.chunk_layers, self.chunk_size = chunk_layers, chunk_size

    @property
    def length(self) -> int:
        """S, the tokens cached so far."""
        return self.h_BSD.shape[1] if self.is_initialized else 0

    def begin(self, h_BTD: torch.Tensor) -> None:
        """Initialize an empty state of the batch size, dtype and device of ``h_BTD``."""
        no_index = torch.zeros(len(h_BTD), 0, dtype=torch.long, device=h_BTD.device)
        self.h_BSD, self.start_BS = h_BTD[:, :0], no_index
        self.context_BPD, self.end_BP = h_BTD[:, :0], no_index
        self.current_BD = h_BTD[:, 0]
        self.device = h_BTD.device
        self.is_initialized = True

    def extend(self, h_BTD: torch.Tensor, start_BT: torch.Tensor, current_BD: torch.Tensor) -> None:
        """Append the tokens of one call; ``current_BD`` is the context that the last of them adds."""
        self.h_BSD = torch.cat([self.h_BSD, h_BTD], dim=1)
        self.start_BS = torch.cat([self.start_BS, start_BT], dim=1)
        self.current_BD = current_BD

    def allocate(self, end_BK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The columns of the keys of new chunks: after all others.

        Args:
            end_BK: index of each chunk's last token, -1 for no chunk.

        Returns:
            The ends of all chunks, (B, P + K), and the columns of the new ones, (B, K).
        """
        columns_K = torch.arange(end_BK.shape[1], device=end_BK.device) + self.end_BP.shape[1]
        return torch.cat([self.end_BP, end_BK], dim=1), columns_K.expand_as(end_BK)

    def keep_chunks(self, context_BKD: torch.Tensor, end_BK: torch.Tensor) -> None:
        """Append the chunks that one call completed: the context predicted after each, and its last token's index."""
        self.context_BPD = torch.cat([self.context_BPD, context_BKD], dim=1)
        self.end_BP = torch.cat([self.end_BP, end_BK], dim=1)

    def tail(self, count: int) -> torch.Tensor:
        """The last ``count`` token vectors, (B, count, D), padded with zeros before the first token."""
        tail_BUD = self.h_BSD[:, max(0, self.length - count) :] if count else self.h_BSD[:, :0]
        return nn.functional.pad(tail_BUD, (0, 0, count - tail_BUD.shape[1], 0))

    def _newest_context(self) -> torch.Tensor:
        """The newest context of each row's last document; before its first chunk ends, h_0 of that document: (B, D)."""
        start_B1 = self.start_BS[:, -1:]
        first_BD = self.h_BSD.take_along_dim(start_B1[..., None], 1)[:, 0]
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
            for layer in self.chunk_layers:
                layer.keep(0)
            return
        self.h_BSD, self.start_BS = self.h_BSD[:, :length], self.start_BS[:, :length]
        self.end_BP = self.end_BP.masked_fill(self.end_BP >= length, -1)
        used = (self.end_BP >= 0).any(dim=0).nonzero()[:, 0]
        chunks = int(used[-1]) + 1 if len(used) else 0
        self.end_BP, self.context_BPD = self.end_BP[:, :chunks], self.context_BPD[:, :chunks]
        for layer in self.chunk_layers:
            layer.keep(chunks)
        self.current_BD = self._newest_context()

    def forget(self, surplus_B: torch.Tensor, kept: int) -> None:
        """Forget a number of last tokens per row: rows move to the right, and padding is added on their left.

        Args:
            surplus_B: number of tokens that each row forgets.
            kept: number of columns to keep, counted from the right; all columns left of them are padding in every row.
        """
        length = self.length
        from_BS = torch.arange(length - kept, length, device=self.h_BSD.device) - surplus_B[:, None]
        moved_B1 = surplus_B[:, None] - (length - kept)
        self.h_BSD = self.h_BSD.take_along_dim(from_BS.clamp(min=0)[..., None], 1)
        self.start_BS = self.start_BS.take_along_dim(from_BS.clamp(min=0), 1) + moved_B1
        gone_BP = (self.end_BP < 0) | (self.end_BP >= length - surplus_B[:, None])
        # Move the kept chunks to the front of each row, so that forgotten chunks leave no empty columns.
        order_BP = gone_BP.int().argsort(dim=1, stable=True)
        order_BP = order_BP[:, : int((~gone_BP).sum(1).max())]
        self.end_BP = (self.end_BP + moved_B1).masked_fill(gone_BP, -1).take_along_dim(order_BP, 1)
        self.context_BPD = self.context_BPD.take_along_dim(order_BP[..., None], 1)
        for layer in self.chunk_layers:
            layer.take(order_BP)
        self.current_BD = self._newest_context()

    def _map(self, change) -> None:  # type: ignore[no-untyped-def]
        if self.is_initialized:
            for name in ("h_BSD", "start_BS", "context_BPD", "end_BP", "current_BD"):
                setattr(self, name, change(getattr(self, name)))

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self._map(lambda tensor: tensor.index_select(0, beam_idx.to(tensor.device)))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._map(lambda tensor: tensor[indices])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._map(lambda tensor: tensor.repeat_interleave(repeats, dim=0))

    def offload(self) -> None:
        self._map(lambda tensor: tensor.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        self._map(lambda tensor: tensor.to(self.device, non_blocking=True))


def context_state(
    cache: Cache, config: ContextLMConfig, further_layers: int = 0
) -> ContextState | StaticContextState:
    """Return the context state of ``cache``; a new cache gets one after the backbone's layers.

    Args:
        further_layers: how many layers may follow the state, for blocks that are not part of ContextLM.

    Raises:
        ConfigError: the cache was filled by another model, or is of a kind that cannot hold a context.
    """
    layers, own = config.num_hidden_layers, config.cache_layers
    states = [
        i for i, layer in enumerate(cache.layers) if isinstance(layer, ContextState | StaticContextState)
    ]
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
    if len(cache.layers) > layers + further_layers or (kinds == {StaticLayer} and len(cache.layers) < layers):
        raise ConfigError(OTHER_MODEL)
    cache.layers += [DynamicLayer() for _ in range(layers - len(cache.layers))]
    state: ContextState | StaticContextState
    chunk_layers: list[ChunkLayer] | list[StaticChunkLayer]
    if kinds == {StaticLayer}:
        chunk_layers, state = StaticContextState.with_layers(
            config.predictor_layers, config.chunk_size, cache.layers[0].get_max_length()
        )
    else:
        chunk_layers = [ChunkLayer() for _ in range(config.predictor_layers)]
        state = ContextState(chunk_layers, config.chunk_size)
    cache.layers[layers:layers] = [*chunk_layers, state]
    return state
