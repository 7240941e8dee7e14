"""Base classes of this package's models: one shared ``forward``, and one loop over the blocks of a stock backbone.

Shapes: B rows, T positions, D channels, V tokens in the vocabulary.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from contextwise.base.errors import ConfigError
from contextwise.models.families import CACHE, FAMILIES, Rotary, family_of, initialize_module, new_stock_model
from contextwise.models.losses import IGNORED, head_loss, kept_positions
from contextwise.models.masks import (
    causal_mask,
    lengths_of_documents,
    packed_documents,
    readable_without_sync,
    takes_masks,
)
from contextwise.models.prefix import reads_prefix


def as_config(config: PreTrainedConfig | dict[str, Any] | None) -> PreTrainedConfig:
    """Return a model's configuration, built from its dictionary if needed; GPT-2's if None."""
    if isinstance(config, PreTrainedConfig):
        return config
    values = dict(config or {})
    return AutoConfig.for_model(values.pop("model_type", "gpt2"), **values)


def check_whole(low: int, whose: str = "", **values: Any) -> None:
    """Raise ConfigError for a value that is not a whole number of at least ``low``; ``whose`` names its owner."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            owner = f" of {whose}" if whose else ""
            raise ConfigError(f"{name}{owner} is {value!r}, but must be a whole number of at least {low}")


def _of_backbone(name: str) -> Any:
    """A property of a composed configuration that is read from its backbone's, and set there."""
    return property(
        lambda self: getattr(self.backbone_config, name), lambda self, value: setattr(self.backbone_config, name, value)
    )


class OwnConfig(PreTrainedConfig):
    """Base class of the configurations of this package's models."""

    auto_map: ClassVar[Any] = MappingProxyType({})
    """Names no remote code; TRL reads it of each model that is not one of transformers' own. It is not saved."""

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        _ = self.model_type in CONFIG_MAPPING  # where it is unknown, this registers all models with the Auto classes


class ComposedConfig(OwnConfig):
    """A configuration that contains a backbone's, with the properties that code for any causal language model reads."""

    sub_configs = {"backbone_config": AutoConfig}  # noqa: RUF012 - the name and form that transformers reads
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012
    vocab_size = _of_backbone("vocab_size")
    hidden_size = _of_backbone("hidden_size")
    num_hidden_layers = _of_backbone("num_hidden_layers")
    num_attention_heads = _of_backbone("num_attention_heads")
    max_position_embeddings = _of_backbone("max_position_embeddings")
    use_cache = _of_backbone("use_cache")

    def _take_backbone(self, backbone_config: PreTrainedConfig | dict[str, Any] | None, kwargs: dict[str, Any]) -> None:
        """Set the backbone's configuration, and copy its special tokens and tied embeddings."""
        stock: Any = as_config(backbone_config)
        # The mark ``embedding_norm`` of the stock configuration says what a composition around it adds.
        self.backbone_config = stock.backbone_config if stock.model_type == "embedding_norm" else stock
        for name in ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings"):
            kwargs.setdefault(name, getattr(self.backbone_config, name, None))


class Body(nn.Module):
    """A causal language model up to its vocabulary head, with its modules: what other libraries call ``model.base_model``."""

    whole: Any

    def __init__(self, model: "CausalLanguageModel") -> None:
        super().__init__()
        self.__dict__["whole"] = model  # not a submodule
        self.training, self.config = model.training, model.config
        head = model.get_output_embeddings()
        for name, module in model.named_children():
            if module is not head:
                self.add_module(name, module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the input of the vocabulary head; arguments as for :meth:`CausalLanguageModel.base_outputs`."""
        return self.whole.base_outputs(*args, **kwargs)


class CausalLanguageModel(PreTrainedModel, GenerationMixin):
    """A causal language model of this package: :meth:`hidden_states`, then the vocabulary head, and one ``forward`` for all."""

    config: Any
    lm_head: Any
    base_model_prefix = "body"
    keeps_cache = True
    _can_record_outputs: Any = {}  # noqa: RUF012 - the name and form that transformers reads
    hidden_states: Callable[..., Tensor]
    """Computes the input of the vocabulary head: (B, T, D). Every subclass defines it."""

    @property
    def body(self) -> Body:
        """The model without its vocabulary head: ``model.base_model``."""
        return Body(self)

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        """Initialize a module as in transformers' own classes; in others those without own parameters are skipped."""
        super()._initialize_weights(module)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Compute logits (B, T, V), and the loss if labels are given: in training without logits, in pieces.

        ``labels`` (B, T) are unshifted, as in transformers; ``shift_labels`` among the ``kwargs`` are shifted already.
        ``num_items_in_batch`` divides the summed loss in place of the number of targets.
        """
        # No named arguments: transformers' Trainer takes each argument with "label" in its name for a column of the data.
        targets, items = kwargs.pop("shift_labels", None), kwargs.pop("num_items_in_batch", None)
        if targets is None and labels is not None:
            targets = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
        if targets is not None:
            check_labels(targets, self.config.vocab_size)
        use_cache = False if self.training and targets is not None else use_cache
        past = cache if past_key_values is None else past_key_values
        inputs = (input_ids, attention_mask, position_ids, past, inputs_embeds, use_cache)
        base = self.base_outputs(*inputs, scored=targets is not None, **kwargs)
        return self.outputs(base, targets, logits_to_keep, items, position_ids)

    def outputs(
        self,
        base: Any,
        targets: Tensor | None,
        logits_to_keep: int | Tensor,
        items: Tensor | int | None,
        position_ids: Tensor | None,
    ) -> CausalLMOutputWithPast:
        """Compute loss and logits from the outputs of :meth:`base_outputs`; ``items`` divides the summed loss."""
        hidden_BTD, head = base.last_hidden_state, self.get_output_embeddings()
        loss = logits = None
        if targets is not None:
            total = head_loss(hidden_BTD, head, targets)
            loss = total / (targets.ne(IGNORED).sum() if items is None else items)
        if targets is None or not self.training:
            logits = head(hidden_BTD[:, kept_positions(logits_to_keep)])
        return CausalLMOutputWithPast(loss, logits, getattr(base, CACHE), base.hidden_states, base.attentions)

    @can_return_tuple
    def base_outputs(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the model up to its vocabulary head.

        ``hidden_states`` are the input of the first block, with any context, and the output of each; the last is
        ``last_hidden_state``.
        """
        cache = past_key_values
        if self.keeps_cache:
            if use_cache is None:
                use_cache = getattr(self.config, "use_cache", True) and not self.training
            if use_cache and cache is None:
                cache = DynamicCache(config=self.config)
            kwargs["past_key_values"] = cache
        elif cache is not None:
            raise ConfigError(
                f"a {self.config.model_type} model keeps no cache; pass the whole text, without past_key_values"
            )
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        out = self._recorded(**inputs, inputs_embeds=inputs_embeds, **kwargs)
        states, attentions = map(_once, (out.hidden_states, out.attentions))
        if states and states[-1] is not None:
            states = (*states[:-1], out.last_hidden_state)
        kept = cache if use_cache else None
        return replace(out, **{CACHE: kept}, hidden_states=states, attentions=attentions)

    @capture_outputs(tie_last_hidden_states=False)
    def _recorded(self, output_hidden_states: Any = None, output_attentions: Any = None, **inputs: Any) -> Any:
        """The base outputs, to which transformers adds the outputs of the modules that it watches."""
        for name, wanted in (("hidden_states", output_hidden_states), ("attentions", output_attentions)):
            if wanted and name not in self._can_record_outputs:
                raise ConfigError(f"a {self.config.model_type} model returns no {name}; leave out output_{name}")
        return self._base_outputs(**inputs)

    def _base_outputs(self, scored: bool = False, **inputs: Any) -> Any:
        """Compute the base outputs; ``scored``: a loss will be computed from them."""
        return BaseModelOutputWithPast(last_hidden_state=self.hidden_states(**inputs))


def _once(recorded: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """Each recorded output once: a backbone that has been asked for its own outputs before records them twice."""
    if recorded is None:
        return None
    return tuple({i if each is None else id(each): each for i, each in enumerate(recorded)}.values())


@dataclass
class Decoded:
    """The output (B, T, D) of a backbone's blocks, with the other arguments of the last one, for blocks that follow."""

    h_BTD: Tensor
    mask: Any
    rotary: Rotary | None
    cache: Cache | None
    kwargs: dict[str, Any]


class ComposedForCausalLM(CausalLanguageModel):
    """A causal language model around a stock ``backbone``, with its own ``lm_head``."""

    backbone: Any
    embedding_norm: nn.Module | None
    """Applied to the input of the first block, if the mark ``embedding_norm`` of the backbone's configuration says so."""
    supports_gradient_checkpointing = True
    _no_split_modules = sorted({family.block_class.__name__ for family in FAMILIES.values()})
    _skip_keys_device_placement = [CACHE]  # noqa: RUF012
    # The backbone refuses those that it has not.
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_sdpa = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    # The backbone names the modules that record them; there are no others.
    _can_record_outputs = {"hidden_states": [], "attentions": []}  # noqa: RUF012

    @property
    def blocks(self) -> list[nn.Module]:
        """The blocks between the embedding and the next-token head, in order."""
        return list(self.family.blocks(self.backbone))

    def _make_backbone(self) -> None:
        config, attention = self.config, self.config._attn_implementation
        self.family = family_of(config.backbone_config)
        self.backbone = new_stock_model(AutoModel, config.backbone_config, attn_implementation=attention)
        config.backbone_config = self.backbone.config
        normed = getattr(config.backbone_config, "embedding_norm", False)
        self.embedding_norm = self.family.new_norm(self.backbone) if normed else None

    def _make_head(self) -> None:
        """Create the vocabulary head, tied to the embedding if the configuration ties it."""
        config = self.backbone.config
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if self.config.tie_word_embeddings:
            self._tied_weights_keys = {"lm_head.weight": f"backbone.{self.family.embedding_name}.weight"}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize a part as the backbone initializes its own."""
        initialize_module(self.backbone, module)

    def hidden_states(self, input_ids: Tensor | None = None, *inputs: Any, **kwargs: Any) -> Tensor:
        """Compute the input of the vocabulary head: (B, T, D), after the final norm. Inputs as for :meth:`decoded`."""
        return self.family.norm(self.backbone, self.decoded(input_ids, *inputs, **kwargs).h_BTD)

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.backbone.set_input_embeddings(value)

    def decoded(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        positions_BT: Tensor | None = None,
        before_block: Callable[[int, Tensor], Tensor] | None = None,
        **kwargs: Any,
    ) -> Decoded:
        """Run the model up to the final norm; inputs as for any transformers model.

        Where ``position_ids`` do not increase by one a new document begins, which attention does not cross. If
        ``positions_BT``, those of tokens in their documents, are given, mask and ``position_ids`` only make the mask.
        ``before_block`` maps the index of a block and its input to a changed input.
        """
        family, backbone, cache = self.family, self.backbone, past_key_values
        embeds = self._token_vectors(input_ids, inputs_embeds)
        if positions_BT is None:
            positions_BT = self._positions(embeds, attention_mask, position_ids, cache)
        starts = cache is None or not (cache.is_compileable or cache.get_seq_length())
        documents = None
        if starts and (takes_masks(backbone.config) or not torch.compiler.is_compiling()):
            read = not takes_masks(backbone.config)
            attention_mask, documents = packed_documents(attention_mask, position_ids, read)
        earlier = None if starts else cache
        mask = causal_mask(backbone.config, embeds, attention_mask, position_ids, earlier, documents)
        if attention_mask is None and starts:
            kwargs = kwargs | lengths_of_documents(position_ids, backbone.config)
        layers = self.config.backbone_config.num_hidden_layers  # fewer in an early exit

        def before(i: int, h_BTD: Tensor) -> Tensor:
            if i == 0 and self.embedding_norm is not None:
                h_BTD = self.embedding_norm(h_BTD)
            return h_BTD if before_block is None else before_block(i, h_BTD)

        inputs = (embeds, positions_BT, mask, cache, before, layers)
        h_BTD, rotary = family.run_blocks(backbone, *inputs, **kwargs)
        return Decoded(h_BTD, mask, rotary, cache, kwargs)

    def _token_vectors(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Embed the tokens (B, T) as vectors (B, T, D), or return ``inputs_embeds``; exactly one must be given."""
        if (input_ids is None) == (inputs_embeds is None):
            given = "neither" if input_ids is None else "both"
            raise ConfigError(f"{given} of input_ids and inputs_embeds given; pass exactly one of the two")
        return self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds

    def _positions(
        self, embeds: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, cache: Cache | None
    ) -> Tensor:
        """Position of each token in its row or document: (B, T); they must not exceed those that the backbone has learned."""
        rows, length = embeds.shape[:2]
        if position_ids is None and attention_mask is None:
            past = cache.get_seq_length() if cache is not None else 0
            self._check_length(past + length)
            return torch.arange(past, past + length, device=embeds.device).expand(rows, -1)
        if position_ids is None:
            assert attention_mask is not None
            if attention_mask.dim() != 2:
                raise ConfigError("an attention_mask that is not of shape (batch, length) needs position_ids too")
            position_ids = (attention_mask.long().cumsum(1) - 1).clamp(min=0)[:, -length:]
        if readable_without_sync(position_ids):
            self._check_length(int(position_ids.max()) + 1)
        return position_ids.expand(rows, -1)

    def _check_length(self, length: int) -> None:
        limit = self.config.max_position_embeddings
        if self.config.backbone_config.model_type == "gpt2" and length > limit:
            raise ConfigError(
                f"{length} tokens are more than the backbone's {limit} learned positions; shorten the context"
            )


def pretrained_backbone(backbone: str | Path | PreTrainedModel, what: str) -> Any:
    """The causal language model to build a composition around, loaded on the CPU if given by path or name.

    Its head must have no bias, and it reads no prefix; ``what`` names the part that uses the head, for the error.
    """
    model: Any = backbone
    if isinstance(backbone, str | Path):
        model = importlib.import_module("contextwise.models.loading").load_model(backbone, device="cpu")
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        raise ConfigError(
            f"the vocabulary head of this {model.config.model_type} has a bias, which {what} not; "
            "choose a backbone whose head is a plain matrix"
        )
    if reads_prefix(model.config):
        raise ConfigError(
            f"this {model.config.model_type} reads its prompts as a prefix, in both directions, which a model around it would "
            "not; choose a backbone that was trained causally"
        )
    return model


def stock_parts(model: Any) -> tuple[Any, nn.Module | None]:
    """The stock base model of a causal language model, and the norm behind its embedding if it has one."""
    if model.config.model_type == "embedding_norm":
        return model.backbone, model.embedding_norm
    return model.base_model, None


def check_labels(labels: Tensor, vocab_size: int) -> None:
    """Raise ConfigError for labels outside the vocabulary, if reading them does not synchronize a device."""
    if readable_without_sync(labels):
        for worst in (int(labels.max()), int(labels.masked_fill(labels == IGNORED, 0).min())):
            if worst >= vocab_size or (worst < 0 and worst != IGNORED):
                raise ConfigError(
                    f"label {worst} is outside the vocabulary of {vocab_size} tokens; {IGNORED} is a position without a loss"
                )
