"""The context's part of a key-value cache (ContextLM, Algorithm 1).

transformers' cache is a list of layers, and beams, batch selection and repetition go through the layers' own methods. The
predictor's blocks keep their keys and values in further layers of the same list, whose length is counted in chunks; one
last layer, :class:`ContextState`, keeps what the next token needs besides: the token vectors of the unfinished chunk, the
current context, and which chunk slots each row really has.
"""

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from contextwise.base.errors import ConfigError


class ContextState(CacheLayerMixin):
    """Unfinished chunk and current context of each row; grows with nothing but the number of chunk slots.

    ``tail_BUD``: the last w-1 token vectors; ``current_BD``: the context that the next position adds unless it completes a
    chunk; ``slots_BP``: which of the predictor's cached entries are chunks of that row (rows of a left-padded batch complete
    their chunks at different steps).
    """

    is_croppable = False

    tail_BUD: torch.Tensor
    current_BD: torch.Tensor
    slots_BP: torch.Tensor

    def store(self, tail_BUD: torch.Tensor, current_BD: torch.Tensor, slots_BP: torch.Tensor) -> None:
        """Replace the state after a call."""
        self.tail_BUD, self.current_BD, self.slots_BP = tail_BUD, current_BD, slots_BP
        self.is_initialized = True

    def _map(self, change) -> None:  # type: ignore[no-untyped-def]
        if self.is_initialized:
            self.tail_BUD, self.current_BD, self.slots_BP = map(
                change, (self.tail_BUD, self.current_BD, self.slots_BP)
            )

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self._map(lambda tensor: tensor.index_select(0, beam_idx.to(tensor.device)))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._map(lambda tensor: tensor[indices])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._map(lambda tensor: tensor.repeat_interleave(repeats, dim=0))

    def reset(self) -> None:
        self.is_initialized = False

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove != 0:
            raise ConfigError(
                "a ContextLM cache cannot be shortened (assisted generation does that): generate without an assistant model"
            )

    # A state has no keys, no length of its own and no mask; these are what the abstract class asks for.
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

    def offload(self) -> None:
        self._map(lambda tensor: tensor.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        return None


def context_state(cache: Cache, backbone_layers: int, predictor_layers: int) -> ContextState:
    """The context state of ``cache``, added behind the backbone's layers if the cache is still fresh.

    Raises:
        ConfigError: the cache was filled by another model, or is of a kind that cannot grow.
    """
    expected = backbone_layers + predictor_layers + 1
    if cache.layers and isinstance(cache.layers[-1], ContextState):
        if len(cache.layers) != expected:
            raise ConfigError("past_key_values comes from another model: its number of layers does not fit")
        return cache.layers[-1]
    if cache.get_seq_length() > 0:
        raise ConfigError(
            "past_key_values was filled by a model without a context predictor; start with an empty cache"
        )
    if not all(type(layer) is DynamicLayer for layer in cache.layers):
        raise ConfigError(
            "ContextLM generates with a dynamic cache only; leave cache_implementation at its default"
        )
    while len(cache.layers) < backbone_layers + predictor_layers:
        cache.layers.append(DynamicLayer())
    state = ContextState()
    cache.layers.append(state)
    return state
