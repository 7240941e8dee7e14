"""Specifications of stock transformers models: decoders, encoders like BERT, and encoder-decoders like T5."""

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, PreTrainedConfig

from contextwise.models.flops import block_operations, matrix_weights
from contextwise.models.kinds import kind_of
from contextwise.models.losses import final_hidden_states
from contextwise.models.pretraining import (
    Batch,
    Losses,
    as_attention_mask,
    labelled_losses,
    prefix_attention,
    same_document,
)
from contextwise.models.spec import ModelSpec, register_stock


class DecoderSpec(ModelSpec):
    """A causal language model; base class of this package's specifications.

    Args:
        model_class: the class to build, for a model that ``AutoModelForCausalLM`` does not build.
    """

    def __init__(self, model_class: Any = None) -> None:
        self.model_class = model_class

    def build(self, config: Any) -> Any:
        return self.model_class(config) if self.model_class else AutoModelForCausalLM.from_config(config)

    def operations(self, model: Any, length: int, extra: float = 0.0) -> float:
        """Forward operations of the blocks per position, for ``length`` positions, plus ``extra``."""
        base, config = getattr(model, "base_model", model), model.config
        return block_operations(base, config, length, config.num_hidden_layers) + extra

    def flops_per_example(
        self, model: Any, inputs: int, outputs: int = 0, trained: Sequence[str] | None = None
    ) -> float:
        return 3.0 * inputs * self.operations(model, inputs)

    def flops_per_target(self, config: Any, trained: Sequence[str] | None = None) -> float:
        return 3.0 * 2 * config.hidden_size * config.get_text_config().vocab_size

    def losses(self, model: Any, batch: Batch) -> Losses:
        hidden = final_hidden_states(model, input_ids=batch["input_ids"], **self.inputs(model, batch))
        head = model.get_output_embeddings()
        return labelled_losses(hidden, batch["labels"], head, dense="prefix" not in batch)

    def inputs(self, model: Any, batch: Batch) -> dict[str, Any]:
        """The model's inputs beside the tokens: positions, and the attention mask of a prefix."""
        inputs: dict[str, Any] = {name: batch[name] for name in ("position_ids",) if name in batch}
        if "prefix" in batch:
            allowed = prefix_attention(batch["prefix"], batch.get("position_ids"))
            inputs["attention_mask"] = as_attention_mask(allowed, model)
        return inputs


class EncoderSpec(DecoderSpec):
    """An encoder with BERT's heads: for masked tokens and, optionally, for pairs."""

    def build(self, config: Any) -> Any:
        return _fresh(pretraining_class(config), config)

    def operations(self, model: Any, length: int, extra: float = 0.0) -> float:
        config = model.config
        return block_operations(model.base_model.encoder, config, length, config.num_hidden_layers)

    def flops_per_target(self, config: Any, trained: Sequence[str] | None = None) -> float:
        width = config.hidden_size  # the head has one more layer before the vocabulary matrix
        return 3.0 * 2 * (width * config.get_text_config().vocab_size + width * width)

    def losses(self, model: Any, batch: Batch) -> Losses:
        inputs = {name: batch[name] for name in ("token_type_ids", "position_ids") if name in batch}
        mask = batch.get("attention_mask")
        if "position_ids" in batch:
            mask = as_attention_mask(same_document(batch["position_ids"])[:, None], model)
        out = model.base_model(input_ids=batch["input_ids"], attention_mask=mask, **inputs)
        head = model.cls.predictions
        losses = labelled_losses(out.last_hidden_state, batch["labels"], head.decoder, head.transform)
        if "pair_label" not in batch:
            return losses
        pair = nn.functional.cross_entropy(
            model.cls.seq_relationship(out.pooler_output).float(), batch["pair_label"], reduction="sum"
        )
        rows = losses.counts.new_full((), len(batch["pair_label"]))
        return Losses(
            ("tokens", "pair"), torch.stack([losses.sums[0], pair]), torch.stack([losses.counts[0], rows])
        )


class EncoderDecoderSpec(DecoderSpec):
    """An encoder-decoder with the structure of T5."""

    def build(self, config: Any) -> Any:
        return _fresh(pretraining_class(config), config)

    def flops_per_example(
        self, model: Any, inputs: int, outputs: int = 0, trained: Sequence[str] | None = None
    ) -> float:
        config = model.config
        attended = config.num_heads * config.d_kv
        encoder_weights = matrix_weights(model.encoder.block)
        encoder = inputs * (2 * encoder_weights + 4 * config.num_layers * attended * inputs)
        cross_attention = [block.layer[1].EncDecAttention for block in model.decoder.block]
        # Keys and values of the encoder's output are computed once per input position.
        per_input = sum(matrix_weights(part.k) + matrix_weights(part.v) for part in cross_attention)
        per_output = matrix_weights(model.decoder.block) - per_input
        decoder = outputs * (2 * per_output + 4 * config.num_decoder_layers * attended * (outputs + inputs))
        return 3.0 * (encoder + 2 * per_input * inputs + decoder)

    def losses(self, model: Any, batch: Batch) -> Losses:
        mask = batch.get("attention_mask")
        encoded = model.encoder(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
        hidden = model.decoder(
            input_ids=model._shift_right(batch["labels"]),
            encoder_hidden_states=encoded,
            encoder_attention_mask=mask,
            use_cache=False,
        ).last_hidden_state
        if model.config.scale_decoder_outputs:
            hidden = hidden * model.config.d_model**-0.5
        return labelled_losses(hidden, batch["labels"], model.lm_head, dense=True)


register_stock("decoder", DecoderSpec())
register_stock("encoder", EncoderSpec())
register_stock("encoder-decoder", EncoderDecoderSpec())


def pretraining_class(config: PreTrainedConfig) -> Any:
    """Return the transformers class to pretrain a configuration with.

    This is an Auto class, or the class in an encoder's ``architectures`` (``BertForPreTraining`` has the pair head).
    """
    kind = kind_of(config)
    if kind == "encoder" and config.architectures:
        return getattr(transformers, config.architectures[0])
    return {
        "encoder": AutoModelForMaskedLM,
        "decoder": AutoModelForCausalLM,
        "encoder-decoder": AutoModelForSeq2SeqLM,
    }[kind]


def _fresh(loader: Any, config: Any) -> Any:
    build = getattr(loader, "from_config", None) or loader._from_config
    return build(config)
