"""The small models of the parity task: a causal Transformer, and an MLP with a feature of its context."""

from transformers import AutoConfig, AutoModelForSequenceClassification

from contextwise.models.parity.config import ParityMLPConfig, ParityTransformerConfig
from contextwise.models.parity.modeling import ParityMLP, ParityTransformer

AutoConfig.register(ParityMLPConfig.model_type, ParityMLPConfig, exist_ok=True)
AutoConfig.register(ParityTransformerConfig.model_type, ParityTransformerConfig, exist_ok=True)
AutoModelForSequenceClassification.register(ParityMLPConfig, ParityMLP, exist_ok=True)
AutoModelForSequenceClassification.register(ParityTransformerConfig, ParityTransformer, exist_ok=True)

__all__ = ["ParityMLP", "ParityMLPConfig", "ParityTransformer", "ParityTransformerConfig"]
