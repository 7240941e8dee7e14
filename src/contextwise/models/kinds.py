"""Decoders, encoders and encoder-decoders."""

from transformers import AutoModelForMaskedLM, PreTrainedConfig

from contextwise.objectives.kind import Kind


def kind_of(config: PreTrainedConfig) -> Kind:
    """The kind of model; an encoder is what transformers has a masked language model of, but no generation."""
    if config.is_encoder_decoder:
        return "encoder-decoder"
    masked = type(config) in AutoModelForMaskedLM._model_mapping
    return "encoder" if masked and not getattr(config, "is_decoder", False) else "decoder"
