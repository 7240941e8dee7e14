"""Multi-token prediction: several future tokens from each position, and self-speculative decoding with them."""

from contextwise_papers.objectives.multitoken.config import MultiTokenConfig
from contextwise_papers.objectives.multitoken.modeling import MultiTokenForCausalLM, MultiTokenOutput
from contextwise_papers.objectives.multitoken.speculative import Acceptance

__all__ = ["Acceptance", "MultiTokenConfig", "MultiTokenForCausalLM", "MultiTokenOutput"]
