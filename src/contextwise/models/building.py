"""The model that is pretrained with a configuration."""

from typing import Any

import transformers
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, PreTrainedConfig

from contextwise.models.context import ContextLMConfig, ContextLMForCausalLM
from contextwise.models.kinds import kind_of


def build_model(config: PreTrainedConfig) -> Any:
    """A freshly initialised model: a causal or masked language model, or an encoder-decoder.

    An encoder whose ``architectures`` names another class (``BertForPreTraining``, which has the pair head) is of that class.
    """
    if isinstance(config, ContextLMConfig):
        return ContextLMForCausalLM(config)
    kind = kind_of(config)
    if kind == "encoder":
        name = (config.architectures or [None])[0]
        return (
            getattr(transformers, name)._from_config(config)
            if name
            else AutoModelForMaskedLM.from_config(config)
        )
    auto = AutoModelForCausalLM if kind == "decoder" else AutoModelForSeq2SeqLM
    return auto.from_config(config)
