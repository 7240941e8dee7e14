"""Decoders that were trained with a prefix (objectives, Section 6.2.4), asked as they were trained.

The configuration of such a model says so (:func:`set_prefix`). When it is loaded, ``generate()`` reads the prompt as the
prefix: its positions see each other in both directions, and the cache is filled with their keys and values; each new token
then sees all before it, and so does what follows a cache that the caller gives. Weights, files and the class's name are
those of the stock model, so that without Contextwise it opens as a causal decoder.

Shapes: B rows, T positions of the prompt, S positions of the cache.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from contextwise.base.errors import ConfigError
from contextwise.models.families import CACHE
from contextwise.models.masks import as_attention_mask, prefix_attention

_NAME = "prefix_prompt"


def set_prefix(config: PreTrainedConfig, prefix: bool = True) -> None:
    """Write into the configuration of a model whether it reads its prompts as a prefix."""
    if prefix:
        setattr(config, _NAME, True)
    elif hasattr(config, _NAME):
        delattr(config, _NAME)


def reads_prefix(config: Any) -> bool:
    """Whether a model reads its prompts as a prefix, not causally."""
    return bool(getattr(config, _NAME, False))


def with_prefix(model: PreTrainedModel) -> PreTrainedModel:
    """Let ``generate()`` of a model read the prompt as a prefix, if its configuration says so; the same model."""
    if reads_prefix(model.config):
        kind: Any = type(model)
        model.__class__ = prefix_class(kind)
    return model


@cache
def prefix_class(kind: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """A class of stock decoders whose prompt is a prefix; it has the stock class's name."""
    return kind if issubclass(kind, _WithPrefix) else type(kind.__name__, (_WithPrefix, kind), {})


class _WithPrefix:
    """Mixin of a stock decoder: the prompt of ``generate()`` is a prefix."""

    config: Any
    generation_config: Any
    _prompt: int | None = None  # positions of the prompt of the generation under way

    @torch.no_grad()
    def generate(self, inputs: Tensor | None = None, generation_config: Any = None, *args: Any, **options: Any) -> Any:
        """Generate as transformers does, with the length of the prompts known: the first pass of assisted generation reads a
        draft behind them."""
        if not reads_prefix(self.config):
            return super().generate(inputs, generation_config, *args, **options)  # type: ignore[misc]
        given = options.pop("input_ids", None) if inputs is None else inputs
        if given is None:
            raise ConfigError("a model that reads a prefix needs token ids; give input_ids, without inputs_embeds")
        configured = [getattr(each, "prefill_chunk_size", None) for each in (generation_config, self.generation_config)]
        if any([options.get("prefill_chunk_size"), *configured]):
            raise ConfigError("a prefix is read at once, since its tokens see each other; give no prefill_chunk_size")
        outer, self._prompt = self._prompt, given.shape[1]  # a model may draft for itself
        try:
            return super().generate(given, generation_config, *args, **options)  # type: ignore[misc]
        finally:
            self._prompt = outer

    def prepare_inputs_for_generation(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The inputs of a step; those of the prompt, and without a cache of every step, have the mask of a prefix."""
        inputs = super().prepare_inputs_for_generation(input_ids, *args, **kwargs)  # type: ignore[misc]
        cache = kwargs.get(CACHE)
        first = cache is None or (kwargs.get("is_first_iteration") and cache.get_seq_length() == 0)
        if not (first and reads_prefix(self.config)):
            return inputs
        real_BT = kwargs.get("attention_mask")
        real_BT = (torch.ones_like(input_ids) if real_BT is None else real_BT).bool()
        length = input_ids.shape[1]
        prefix_BT = real_BT & (torch.arange(length, device=input_ids.device) < (self._prompt or length))
        # A padded position sees itself, so that its values are finite.
        own_TT = torch.eye(length, dtype=torch.bool, device=input_ids.device)
        allowed = prefix_attention(prefix_BT) & real_BT[:, None, None] | own_TT
        if cache is not None:  # a static one has more keys
            allowed = torch.nn.functional.pad(allowed, (0, cache.get_mask_sizes(length, 0)[0] - length))
        return inputs | {"attention_mask": as_attention_mask(allowed, self)}
