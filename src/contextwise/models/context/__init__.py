"""ContextLM: language models that predict the embedding of their next chunk."""

from contextwise.models.context.config import ContextLMConfig
from contextwise.models.context.modeling import ContextLMForCausalLM

__all__ = ["ContextLMConfig", "ContextLMForCausalLM"]
