"""Decoders that were trained with a prefix (objectives, Section 6.2.4), asked as they were trained.

The configuration of such a model names the form of its prompts (:func:`set_prompt_form`). When it is loaded, ``generate()``
reads the prompt as the prefix: its positions see each other in both directions, and the cache is filled with their keys and
values; each new token then sees all before it, and so does what follows a cache that the caller gives. Weights, files and
the class's name are those of the stock model, so that without Contextwise it opens as a causal decoder.

Shapes: B rows, T positions of the prompt, S positions of the cache.
"""

import copy
from dataclasses import asdict
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from contextwise.base.errors import ConfigError
from contextwise.models.families import CACHE
from contextwise.models.masks import as_attention_mask, prefix_attention
from contextwise.objectives.kind import PromptForm

_NAME = "prefix_prompt"


def set_prompt_form(config: PreTrainedConfig, form: PromptForm | None) -> None:
    """Write the form of a model's prompts into its configuration; None for one that reads prompts causally."""
    if form is not None:
        setattr(config, _NAME, {name: list(ids) for name, ids in asdict(form).items()})
    elif hasattr(config, _NAME):
        delattr(config, _NAME)


def prompt_form(config: Any) -> PromptForm | None:
    """The form of a model's prompts; None if it reads them causally."""
    written = getattr(config, _NAME, None)
    return None if written is None else PromptForm(**{name: tuple(ids) for name, ids in written.items()})


def with_prefix(model: PreTrainedModel) -> PreTrainedModel:
    """Let ``generate()`` of a model read the prompt in the form of its configuration, if that names one; the same model."""
    if prompt_form(model.config) is not None:
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
        """Generate as transformers does; prompt and lengths are the given ones, without the tokens of the form."""
        form = prompt_form(self.config)

        def setting(name: str) -> Any:
            configured = [getattr(each, name, None) for each in (generation_config, self.generation_config)]
            return next((value for value in (options.get(name), *configured) if value is not None), None)

        if form is None:
            return super().generate(inputs, generation_config, *args, **options)  # type: ignore[misc]
        given = options.pop("input_ids", None) if inputs is None else inputs
        if given is None:
            raise ConfigError("a model with a form of prompts needs token ids; give input_ids, without inputs_embeds")
        if setting("prefill_chunk_size"):
            raise ConfigError("a prefix is read at once, since its tokens see each other; give no prefill_chunk_size")
        if not form.tokens:
            return self._generate(given, generation_config, *args, **options)
        cache = options.get("past_key_values", options.get(CACHE))
        if cache is not None and cache.get_seq_length():
            raise ConfigError(
                "the tokens of the form stand around the whole prompt, so that it cannot follow a cache; give the whole "
                "prompt, without past_key_values"
            )
        generation_config = copy.deepcopy(generation_config)
        for name in ("max_length", "min_length"):
            length = setting(name)
            if length is not None and generation_config is None:
                options[name] = length + form.tokens
            elif length is not None:  # beside a configuration, transformers wants no option
                options.pop(name, None)
                setattr(generation_config, name, length + form.tokens)
        ids, mask = in_form(given, options.pop("attention_mask", None), form)
        out = self._generate(ids, generation_config, *args, attention_mask=mask, **options)
        sequences = out if isinstance(out, Tensor) else out.sequences
        prompts = given.repeat_interleave(len(sequences) // len(given), 0)
        sequences = torch.cat([prompts, sequences[:, ids.shape[1] :]], 1)
        if isinstance(out, Tensor):
            return sequences
        out.sequences = sequences
        return out

    def _generate(self, prompts: Tensor, *args: Any, **options: Any) -> Any:
        """Generate with the length of the prompts known: the first pass of assisted generation reads a draft behind them."""
        outer, self._prompt = self._prompt, prompts.shape[1]  # a model may draft for itself
        try:
            return super().generate(prompts, *args, **options)  # type: ignore[misc]
        finally:
            self._prompt = outer

    def prepare_inputs_for_generation(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The inputs of a step; those of the prompt, and without a cache of every step, have the mask of a prefix."""
        inputs = super().prepare_inputs_for_generation(input_ids, *args, **kwargs)  # type: ignore[misc]
        cache, form = kwargs.get(CACHE), prompt_form(self.config)
        if form is None or (
            cache is not None and not (kwargs.get("is_first_iteration") and cache.get_seq_length() == 0)
        ):
            return inputs
        real_BT = kwargs.get("attention_mask")
        real_BT = (torch.ones_like(input_ids) if real_BT is None else real_BT).bool()
        length = input_ids.shape[1]
        prompt = self._prompt or length
        prefix_BT = real_BT & (torch.arange(length, device=input_ids.device) < prompt - len(form.opening))
        # A padded position sees itself, so that its values are finite.
        own_TT = torch.eye(length, dtype=torch.bool, device=input_ids.device)
        allowed = prefix_attention(prefix_BT) & real_BT[:, None, None] | own_TT
        if cache is not None:  # a static one has more keys
            allowed = torch.nn.functional.pad(allowed, (0, cache.get_mask_sizes(length, 0)[0] - length))
        return inputs | {"attention_mask": as_attention_mask(allowed, self)}


def in_form(ids: Tensor, mask: Tensor | None, form: PromptForm) -> tuple[Tensor, Tensor]:
    """Prompts (B, T), padded on the left, with the tokens of a form around them, and their mask: (B, T + tokens)."""
    rows, length, count = *ids.shape, len(form.before)
    pads_B1 = torch.zeros_like(ids[:, :1]) if mask is None else mask.eq(0).sum(1, keepdim=True)
    index_T = torch.arange(length + count, device=ids.device)
    source_BT = torch.where(index_T < pads_B1 + count, index_T.clamp(max=length - 1), index_T - count)
    framed = ids.gather(1, source_BT)
    for i, token in enumerate(form.before):
        framed.scatter_(1, pads_B1 + i, token)
    behind = ids.new_tensor([*form.after, *form.opening]).expand(rows, -1)
    framed = torch.cat([framed, behind], 1)
    return framed, (torch.arange(framed.shape[1], device=ids.device) >= pads_B1).long()
