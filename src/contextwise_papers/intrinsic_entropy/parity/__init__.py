"""Models of the parity task: a causal Transformer, and an MLP with a context feature."""

from contextwise_papers.intrinsic_entropy.parity.spec import (
    ParityMLP,
    ParityMLPConfig,
    ParityTransformer,
    ParityTransformerConfig,
)

__all__ = ["ParityMLP", "ParityMLPConfig", "ParityTransformer", "ParityTransformerConfig"]
