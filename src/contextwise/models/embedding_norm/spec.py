"""The specification of decoders with a norm behind their embedding: how they are built and exported, and their FLOPs."""

import copy
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from contextwise.base.progress import say
from contextwise.models.embedding_norm import EmbeddingNormConfig, EmbeddingNormForCausalLM
from contextwise.models.families import new_stock_model
from contextwise.models.spec import ModelSpec, register_model


class EmbeddingNormSpec(ModelSpec):
    """A stock decoder with one more norm, which may be a part of the embedding's rows."""

    def build(self, config: Any) -> Any:
        return EmbeddingNormForCausalLM(config)

    def operations(self, model: Any, length: int, extra: float = 0.0) -> float:
        return super().operations(model.backbone, length, extra)

    @torch.no_grad()
    def exported(self, model: Any) -> Any:
        """The stock model with the same logits, whose embedding's rows are normalized, where these are all that the norm reads.

        A matrix that the head shares must stay as it is, and learned positions are added before the norm.
        """
        config = copy.deepcopy(model.backbone.config)
        reason = "its head shares the embedding's matrix" if config.tie_word_embeddings else ""
        if hasattr(model.backbone, "wpe"):
            reason = "its norm reads learned positions too"
        if reason:
            say(f"note: the model is saved with a class of Contextwise (import contextwise to load it): {reason}")
            return model
        del config.embedding_norm
        stock = new_stock_model(AutoModelForCausalLM, config, dtype=model.dtype)
        stock.base_model.load_state_dict(model.backbone.state_dict())
        stock.get_output_embeddings().load_state_dict(model.lm_head.state_dict())
        rows = stock.get_input_embeddings().weight
        rows.copy_(model.embedding_norm(rows))
        return stock


register_model(EmbeddingNormConfig, EmbeddingNormForCausalLM, EmbeddingNormSpec())
