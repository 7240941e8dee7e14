"""What the models here have in common: each is a composition around a stock decoder-only backbone of transformers."""

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel

from contextwise.base.errors import ConfigError
from contextwise.models.families import FAMILIES


class ComposedConfig(PreTrainedConfig):
    """A configuration around a backbone's own, which answers what code that knows only "a causal language model" asks.

    Attributes:
        backbone_config: configuration of the backbone.
    """

    sub_configs = {"backbone_config": AutoConfig}  # noqa: RUF012 - the name and form that transformers reads
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    def _take_backbone(
        self, backbone_config: PreTrainedConfig | dict[str, Any] | None, kwargs: dict[str, Any]
    ) -> None:
        """Keep the backbone's configuration (GPT-2's if None), and take over its special tokens and tied embeddings."""
        if backbone_config is None:
            backbone_config = {"model_type": "gpt2"}
        if isinstance(backbone_config, dict):
            values = dict(backbone_config)
            backbone_config = AutoConfig.for_model(values.pop("model_type", "gpt2"), **values)
        self.backbone_config: PreTrainedConfig = backbone_config
        for name in ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings"):
            kwargs.setdefault(name, getattr(backbone_config, name, None))

    @property
    def vocab_size(self) -> int:
        return self.backbone_config.vocab_size

    @vocab_size.setter
    def vocab_size(self, value: int) -> None:
        self.backbone_config.vocab_size = value

    @property
    def hidden_size(self) -> int:
        return self.backbone_config.hidden_size

    @property
    def num_hidden_layers(self) -> int:
        return self.backbone_config.num_hidden_layers

    @property
    def num_attention_heads(self) -> int:
        return self.backbone_config.num_attention_heads

    @property
    def max_position_embeddings(self) -> int:
        return self.backbone_config.max_position_embeddings


class ComposedForCausalLM(PreTrainedModel, GenerationMixin):
    """A causal language model around a stock ``backbone``, with a ``lm_head`` of its own."""

    config: Any
    backbone: Any
    lm_head: Any
    base_model_prefix = ""
    supports_gradient_checkpointing = True
    _no_split_modules = sorted({family.block_class.__name__ for family in FAMILIES.values()})
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_attention_backend = True

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.backbone.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.lm_head = new_embeddings

    def _token_vectors(
        self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None
    ) -> torch.Tensor:
        """The vectors (B, T, D) of tokens (B, T), or those that are given instead.

        Raises:
            ConfigError: neither is given, or both.
        """
        if (input_ids is None) == (inputs_embeds is None):
            given = "neither" if input_ids is None else "both"
            raise ConfigError(
                f"{given} of input_ids and inputs_embeds came in; give the tokens, or their vectors, one of the two"
            )
        return self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds

    def _check_length(self, length: int) -> None:
        """Refuse more tokens than a backbone with learned positions has."""
        limit = self.config.max_position_embeddings
        if self.config.backbone_config.model_type == "gpt2" and length > limit:
            raise ConfigError(
                f"{length} tokens are more than the backbone's {limit} learned positions; shorten the context"
            )

    def _check_positions(self, positions_BT: torch.Tensor) -> None:
        """The same for positions that padding or packing keeps below the length, where looking costs nothing."""
        if values_are_at_hand(positions_BT):
            self._check_length(int(positions_BT.max()) + 1)


def check_labels(labels: torch.Tensor, vocab_size: int) -> None:
    """Refuse labels outside the vocabulary, where looking costs nothing.

    Raises:
        ConfigError: one is.
    """
    if values_are_at_hand(labels) and int(labels.max()) >= vocab_size:
        raise ConfigError(f"label {int(labels.max())} is outside the vocabulary of {vocab_size} tokens")


def values_are_at_hand(x: torch.Tensor) -> bool:
    """Whether a value can be read at no cost: an accelerator would be waited for, and a compiled graph would break.

    There the kernel itself asserts that indices lie in their range.
    """
    return x.device.type == "cpu" and not torch.compiler.is_compiling()
