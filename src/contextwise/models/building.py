"""The model that is pretrained with a configuration."""

from typing import Any

import transformers
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, PreTrainedConfig

from contextwise.models.context import ContextLMConfig, ContextLMForCausalLM
from contextwise.models.cue import UnigramAutoencoder, UnigramConfig
from contextwise.models.kinds import kind_of
from contextwise.models.parity import ParityMLP, ParityMLPConfig, ParityTransformer, ParityTransformerConfig


def build_model(config: PreTrainedConfig) -> Any:
    """A freshly initialised model: a causal or masked language model, an encoder-decoder, or an autoencoder of unigrams.

    An encoder whose ``architectures`` names another class (``BertForPreTraining``, which has the pair head) is of that class.
    """
    if isinstance(config, ContextLMConfig):
        return ContextLMForCausalLM(config)
    if isinstance(config, ParityTransformerConfig):
        return ParityTransformer(config)
    if isinstance(config, ParityMLPConfig):
        return ParityMLP(config)
    if isinstance(config, UnigramConfig):
        return UnigramAutoencoder(config)
    loader = pretraining_class(config)
    build = getattr(loader, "from_config", None) or loader._from_config
    return build(config)


def pretraining_class(config: PreTrainedConfig) -> Any:
    """The class of transformers that is pretrained with a configuration: an Auto class, or the one that an encoder names."""
    kind = kind_of(config)
    if kind == "encoder" and config.architectures:
        return getattr(transformers, config.architectures[0])
    return {
        "encoder": AutoModelForMaskedLM,
        "decoder": AutoModelForCausalLM,
        "encoder-decoder": AutoModelForSeq2SeqLM,
    }[kind]
