"""Decoders, encoders and encoder-decoders."""

from typing import Literal

from transformers import AutoModelForMaskedLM, PreTrainedConfig

# The same as that of the objectives; this module is part of standalone exports, which should not carry those.
Kind = Literal["decoder", "encoder", "encoder-decoder"]


def kind_of(config: PreTrainedConfig) -> Kind:
    """The kind of model; an encoder is what transformers has a masked language model of, but no generation."""
    if config.is_encoder_decoder:
        return "encoder-decoder"
    masked = type(config) in AutoModelForMaskedLM._model_mapping
    return "encoder" if masked and not getattr(config, "is_decoder", False) else "decoder"
