"""A stock decoder with a norm behind its embedding."""

from contextwise.models.embedding_norm.modeling import (
    EmbeddingNormConfig,
    EmbeddingNormForCausalLM,
    with_embedding_norm,
)

__all__ = ["EmbeddingNormConfig", "EmbeddingNormForCausalLM", "with_embedding_norm"]
