"""Classify models as decoders, encoders or encoder-decoders."""

from transformers import AutoModelForMaskedLM, PreTrainedConfig

from contextwise.objectives.kind import Kind


def kind_of(config: PreTrainedConfig) -> Kind:
    """Return the kind of a model; encoders have a masked language model in transformers and do not generate."""
    if config.is_encoder_decoder:
        return "encoder-decoder"
    masked = type(config) in AutoModelForMaskedLM._model_mapping
    return "encoder" if masked and not getattr(config, "is_decoder", False) else "decoder"
