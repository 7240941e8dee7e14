"""ContextLM: language models that predict the embedding of their next chunk."""

from contextwise.models.contextlm.config import ContextLMConfig
from contextwise.models.contextlm.modeling import ContextLMForCausalLM

__all__ = ["ContextLMConfig", "ContextLMForCausalLM"]
