"""Models of the parity task: a causal Transformer, and an MLP with a context feature."""

from contextwise.models.parity.config import ParityMLPConfig, ParityTransformerConfig
from contextwise.models.parity.modeling import ParityMLP, ParityTransformer

__all__ = ["ParityMLP", "ParityMLPConfig", "ParityTransformer", "ParityTransformerConfig"]
