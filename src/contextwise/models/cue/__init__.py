"""CUE: language models of sentences, conditioned on contexts that a separate encoder maps to one vector."""

from contextwise.models.cue.config import CueConfig, CueContextConfig, CueDecoderConfig, ProxyConfig, UnigramConfig
from contextwise.models.cue.lstm import LSTMConfig, LSTMForCausalLM
from contextwise.models.cue.modeling import PARTS, CueForCausalLM
from contextwise.models.cue.parts import CueContextEncoder, CueDecoder, ProxyEncoder, UnigramAutoencoder

__all__ = ["CueConfig", "CueContextConfig", "CueContextEncoder", "CueDecoder", "CueDecoderConfig", "CueForCausalLM"]
__all__ += ["PARTS", "LSTMConfig", "LSTMForCausalLM", "ProxyConfig", "ProxyEncoder"]
__all__ += ["UnigramAutoencoder", "UnigramConfig"]
