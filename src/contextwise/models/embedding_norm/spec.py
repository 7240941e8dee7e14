"""The specification of decoders with a norm behind their embedding, which has no matrix of its own."""

from contextwise.models.embedding_norm import EmbeddingNormConfig, EmbeddingNormForCausalLM
from contextwise.models.spec import ModelSpec, register_model

register_model(EmbeddingNormConfig, EmbeddingNormForCausalLM, ModelSpec(EmbeddingNormForCausalLM))
