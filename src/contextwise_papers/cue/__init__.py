"""CUE: language models of sentences, conditioned on contexts that a separate encoder maps to one vector; tables and figures."""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise_papers.cue.config import CueConfig, CueContextConfig, CueDecoderConfig, ProxyConfig, UnigramConfig
    from contextwise_papers.cue.lstm import LSTMConfig, LSTMForCausalLM
    from contextwise_papers.cue.modeling import PARTS, CueForCausalLM
    from contextwise_papers.cue.parts import CueContextEncoder, CueDecoder, ProxyEncoder, UnigramAutoencoder

_MODULES = {
    "config": ["CueConfig", "CueContextConfig", "CueDecoderConfig", "ProxyConfig", "UnigramConfig"],
    "lstm": ["LSTMConfig", "LSTMForCausalLM"],
    "modeling": ["PARTS", "CueForCausalLM"],
    "parts": ["CueContextEncoder", "CueDecoder", "ProxyEncoder", "UnigramAutoencoder"],
}
__all__ = ["PARTS", "CueConfig", "CueContextConfig", "CueContextEncoder", "CueDecoder", "CueDecoderConfig"]
__all__ += ["CueForCausalLM", "LSTMConfig", "LSTMForCausalLM", "ProxyConfig", "ProxyEncoder"]
__all__ += ["UnigramAutoencoder", "UnigramConfig"]
__getattr__ = lazy_exports(__name__, _MODULES)
