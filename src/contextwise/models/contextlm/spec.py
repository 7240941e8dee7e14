"""The specification of ContextLM: how it is built, and its FLOPs."""

from typing import Any

from transformers import AutoModelForCausalLM

from contextwise.models.contextlm.config import ContextLMConfig
from contextwise.models.contextlm.modeling import ContextLMForCausalLM
from contextwise.models.spec import ModelSpec, block_operations, register_model


class ContextLMSpec(ModelSpec):
    """A decoder whose context predictor works on one vector in ``chunk_size`` tokens."""

    def build(self, config: ContextLMConfig) -> Any:
        # from_config would give the parameters the data type in which a loaded backbone was saved.
        return AutoModelForCausalLM._model_mapping[type(config)](config)

    def operations(self, model: Any, length: int, extra: float = 0.0) -> float:
        config, layers = model.config, model.context.layers
        chunks = length // config.chunk_size
        extra += block_operations(layers, config.backbone_config, chunks, len(layers)) / config.chunk_size
        return super().operations(model.backbone, length, extra)


register_model(ContextLMConfig, ContextLMForCausalLM, ContextLMSpec())
