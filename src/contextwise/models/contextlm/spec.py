"""The specification of ContextLM: how it is built, and its FLOPs."""

from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from contextwise.models.contextlm.config import ContextLMConfig
from contextwise.models.contextlm.modeling import ContextLMForCausalLM
from contextwise.models.spec import ModelSpec, Parts, block_operations, matrix_weights, register_model


class ContextLMSpec(ModelSpec):
    """A decoder whose context predictor works on one vector in ``chunk_size`` tokens."""

    def build(self, config: ContextLMConfig) -> Any:
        # from_config would give the parameters the data type in which a loaded backbone was saved.
        return AutoModelForCausalLM._model_mapping[type(config)](config)

    def operations(self, model: Any, length: int, extra: float = 0.0) -> float:
        return super().operations(model.backbone, length, extra + self._pathway(model, length) / length)

    @staticmethod
    def _pathway(model: Any, length: int) -> float:
        """Forward operations of the pathway on a row: pooling and predictor on its whole chunks, and the injections."""
        config, context = model.config, model.context
        chunks, width = length // config.chunk_size, config.backbone_config.hidden_size
        rows = torch.empty(1, chunks, config.chunk_size, width, device=model.device, dtype=model.dtype)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
            c_BKD = context.pooling(rows) if chunks else rows[:, :, 0]
            bank_BKD = torch.cat([c_BKD, c_BKD.new_empty(1, 1, width)], dim=1)
            for layer in range(config.injections):
                context.gate(bank_BKD, layer, partial(model.family.norm, model.backbone))
        predictor = block_operations(context.layers, config.backbone_config, chunks, len(context.layers))
        return float(counter.get_total_flops()) + chunks * predictor

    def flops_per_example(self, model: Any, inputs: int, outputs: int = 0, trained: Parts = None) -> float:
        if trained is None:
            return super().flops_per_example(model, inputs, outputs)
        # Only the pathway is trained. Layers before it run forward alone. Those behind it pass gradients on: their weights
        # count once more, and their attention twice more, since both factors of its products have gradients.
        layers = model.config.num_hidden_layers
        behind = 1 - model.config.injection_layer / layers
        weights = 2 * matrix_weights(model.backbone)
        attention = super().operations(model.backbone, inputs) - weights
        backbone = weights * (1 + behind) + attention * (1 + 2 * behind)
        return 3.0 * self._pathway(model, inputs) + inputs * backbone

    def flops_per_target(self, config: Any, trained: Parts = None) -> float:
        return super().flops_per_target(config) * (1 if trained is None else 2 / 3)


register_model(ContextLMConfig, ContextLMForCausalLM, ContextLMSpec())
