"""CUE: language models of sentences, conditioned on contexts that a separate encoder maps to one vector; tables and figures.

Shapes in this folder: B sentences of a batch, T positions, K contexts of a set, L tokens of a context; channels: C of the text
encoder, S of the sentence encoder's states, D of the decoder, W of e_cue, P of a proxy's code; V tokens of the vocabulary.
In scores and items: N targets (or sentences), S sentences (or seeds), A articles.
"""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise_papers.cue.config import CueConfig
    from contextwise_papers.cue.lstm import LSTMConfig, LSTMForCausalLM
    from contextwise_papers.cue.modeling import CueForCausalLM

__all__ = ["CueConfig", "CueForCausalLM", "LSTMConfig", "LSTMForCausalLM"]
__getattr__, __dir__ = lazy_exports(__name__)
