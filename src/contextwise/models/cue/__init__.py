"""CUE: language models of sentences, conditioned on contexts that a separate encoder turns into one vector."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from contextwise.models.cue.config import (
    CueConfig,
    CueContextConfig,
    CueDecoderConfig,
    ProxyConfig,
    UnigramConfig,
)
from contextwise.models.cue.context_encoder import CueContextEncoder
from contextwise.models.cue.decoder import CueDecoder
from contextwise.models.cue.lstm import LSTMConfig, LSTMForCausalLM
from contextwise.models.cue.modeling import PARTS, CueForCausalLM
from contextwise.models.cue.proxy import ProxyEncoder, UnigramAutoencoder

for _model in (CueContextEncoder, CueDecoder, ProxyEncoder, UnigramAutoencoder):
    AutoConfig.register(_model.config_class.model_type, _model.config_class, exist_ok=True)
    AutoModel.register(_model.config_class, _model, exist_ok=True)
for _causal in (CueForCausalLM, LSTMForCausalLM):
    AutoConfig.register(_causal.config_class.model_type, _causal.config_class, exist_ok=True)
    AutoModelForCausalLM.register(_causal.config_class, _causal, exist_ok=True)

__all__ = [
    "PARTS",
    "CueConfig",
    "CueContextConfig",
    "CueContextEncoder",
    "CueDecoder",
    "CueDecoderConfig",
    "CueForCausalLM",
    "LSTMConfig",
    "LSTMForCausalLM",
    "ProxyConfig",
    "ProxyEncoder",
    "UnigramAutoencoder",
    "UnigramConfig",
]
