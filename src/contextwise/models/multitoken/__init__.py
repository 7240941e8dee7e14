"""Multi-token prediction: several future tokens from each position, and self-speculative decoding with them."""

from transformers import AutoConfig, AutoModelForCausalLM

from contextwise.models.multitoken.config import MultiTokenConfig
from contextwise.models.multitoken.modeling import MultiTokenForCausalLM, MultiTokenOutput
from contextwise.models.multitoken.speculative import Acceptance, SpeculativeOutput

AutoConfig.register(MultiTokenConfig.model_type, MultiTokenConfig, exist_ok=True)
AutoModelForCausalLM.register(MultiTokenConfig, MultiTokenForCausalLM, exist_ok=True)

__all__ = [
    "Acceptance",
    "MultiTokenConfig",
    "MultiTokenForCausalLM",
    "MultiTokenOutput",
    "SpeculativeOutput",
]
