"""ContextLM: language models that predict the embedding of their next chunk."""

from transformers import AutoConfig, AutoModelForCausalLM

from contextwise.models.contextlm.config import ContextLMConfig
from contextwise.models.contextlm.modeling import ContextLMForCausalLM

AutoConfig.register(ContextLMConfig.model_type, ContextLMConfig, exist_ok=True)
AutoModelForCausalLM.register(ContextLMConfig, ContextLMForCausalLM, exist_ok=True)

__all__ = ["ContextLMConfig", "ContextLMForCausalLM"]
