"""CUE: language models of sentences, conditioned on contexts that a separate encoder maps to one vector; tables and figures."""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise_papers.cue.config import CueConfig
    from contextwise_papers.cue.lstm import LSTMConfig, LSTMForCausalLM
    from contextwise_papers.cue.modeling import CueForCausalLM

__all__ = ["CueConfig", "CueForCausalLM", "LSTMConfig", "LSTMForCausalLM"]
_MODULES = {"config": ["CueConfig"], "lstm": ["LSTMConfig", "LSTMForCausalLM"], "modeling": ["CueForCausalLM"]}
__getattr__ = lazy_exports(__name__, _MODULES)
