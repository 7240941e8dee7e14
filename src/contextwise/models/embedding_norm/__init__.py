"""A stock decoder with a norm behind its embedding: of the class of its final norm, applied to the input of the first block.

It is the control for models that normalize what their blocks read, such as ContextLM with ``own_norms``. The norm is a part of
every composition around a stock configuration with the mark ``embedding_norm``; this one adds nothing else.
"""

import copy
from typing import Any

from transformers import PreTrainedConfig

from contextwise.models.composition import ComposedConfig, ComposedForCausalLM


class EmbeddingNormConfig(ComposedConfig):
    """Configuration of a stock decoder whose own configuration gets the mark ``embedding_norm``."""

    model_type = "embedding_norm"

    def __init__(self, backbone_config: PreTrainedConfig | dict[str, Any] | None = None, **kwargs: Any) -> None:
        self._take_backbone(backbone_config, kwargs)
        self.backbone_config = copy.deepcopy(self.backbone_config)  # the caller's has no mark
        self.backbone_config.embedding_norm = True
        super().__init__(**kwargs)


class EmbeddingNormForCausalLM(ComposedForCausalLM):
    """A stock decoder with a norm of what enters its first block; of GPT-2, of the sum of token and position embedding."""

    config: EmbeddingNormConfig

    def __init__(self, config: EmbeddingNormConfig) -> None:
        super().__init__(config)
        self._make_backbone()
        self._make_head()
        self.post_init()


def with_embedding_norm(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration itself, or that of a model with an embedding norm if it has the mark ``embedding_norm``."""
    return EmbeddingNormConfig(config) if getattr(config, "embedding_norm", False) else config
