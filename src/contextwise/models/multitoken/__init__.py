"""Multi-token prediction: several future tokens from each position, and self-speculative decoding with them."""

from contextwise.models.multitoken.config import MultiTokenConfig
from contextwise.models.multitoken.modeling import MultiTokenForCausalLM, MultiTokenOutput
from contextwise.models.multitoken.speculative import Acceptance, SpeculativeOutput

__all__ = ["Acceptance", "MultiTokenConfig", "MultiTokenForCausalLM", "MultiTokenOutput", "SpeculativeOutput"]
