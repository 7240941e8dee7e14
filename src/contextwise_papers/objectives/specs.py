"""Specifications of stock encoders and encoder-decoders, and the losses of contrastive pairs.

Shapes: B rows, T positions, D channels.
"""

import contextlib
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM, PreTrainedConfig

from contextwise.models import IGNORED, Losses, ModelSpec, labelled_losses
from contextwise.models.losses import autocast_dtype
from contextwise.models.masks import as_attention_mask, readable_without_sync, same_document, takes_masks
from contextwise.models.spec import Batch, Parts, block_operations, matrix_weights, register_kind, register_losses
from contextwise.settings import ConfigError


def padding_mask(mask_BS: Tensor | None, queries: int, model: Any) -> Any:
    """The mask of padding for a stock model with bidirectional attention: 0 in ``mask_BS`` (B, S) is padding.

    transformers reads a mask of two dimensions, to leave it out where nothing is padding; where reading would wait for an
    accelerator, the mask has four.
    """
    if mask_BS is None or readable_without_sync(mask_BS) or not takes_masks(model.config):
        return mask_BS
    rows, keys = mask_BS.shape
    return as_attention_mask(mask_BS.bool()[:, None, None].expand(rows, 1, queries, keys), model)


class EncoderSpec(ModelSpec):
    """A stock encoder with BERT's heads: for masked tokens and, optionally, for pairs."""

    def pretraining_class(self, config: PreTrainedConfig) -> Any:
        """The class in ``architectures`` (``BertForPreTraining`` has the pair head), else the Auto class."""
        return getattr(transformers, config.architectures[0]) if config.architectures else AutoModelForMaskedLM

    def operations(self, model: Any, length: int, extra: float = 0.0) -> float:
        config, encoder = model.config, getattr(model.base_model, "encoder", None)
        convolutions = (nn.Conv1d, nn.Conv2d)
        if (
            encoder is None
            or not hasattr(config, "num_attention_heads")
            or any(isinstance(part, convolutions) for part in encoder.modules())
        ):
            raise ConfigError(
                f"the FLOPs of an encoder of type {config.model_type!r} are not counted; choose a model like BERT"
            )
        return block_operations(encoder, config, length, config.num_hidden_layers)

    def flops_per_target(self, config: Any, trained: Parts = None) -> float:
        width = config.hidden_size  # the head has one more layer before the vocabulary matrix
        return 3.0 * 2 * (width * config.get_text_config().vocab_size + width * width)

    def losses(self, model: Any, batch: Batch) -> Losses:
        inputs = {name: batch[name] for name in ("token_type_ids", "position_ids") if name in batch}
        if "position_ids" in batch:
            allowed = same_document(batch["position_ids"])
            if "attention_mask" in batch:  # of a mixture: rows of pairs have padding
                allowed = allowed & batch["attention_mask"].bool()[:, None]
            mask = as_attention_mask(allowed[:, None], model)
        else:
            mask = padding_mask(batch.get("attention_mask"), batch["input_ids"].shape[1], model)
        out = model.base_model(input_ids=batch["input_ids"], attention_mask=mask, **inputs)
        head = model.cls.predictions
        labels, labelled = batch["labels"], batch.get("labelled")
        losses = labelled_losses(out.last_hidden_state, labels, head.decoder, head.transform, labelled=labelled)
        if "pair_label" not in batch:
            return losses
        logits, label = model.cls.seq_relationship(out.pooler_output).float(), batch["pair_label"]
        pair = nn.functional.cross_entropy(logits, label, reduction="sum")
        counts = torch.stack([losses.counts[0], label.ne(IGNORED).sum()])
        return Losses(("tokens", "pair"), torch.stack([losses.sums[0], pair]), counts)


def scales_decoder_outputs(config: Any) -> bool:
    """Whether a class like T5 scales what its vocabulary head reads: mT5 does not, and UMT5 does where the head is tied."""
    tied = config.model_type == "umt5" and config.tie_word_embeddings
    return getattr(config, "scale_decoder_outputs", tied)


class EncoderDecoderSpec(ModelSpec):
    """A stock encoder-decoder with the structure of T5."""

    def pretraining_class(self, config: PreTrainedConfig) -> Any:
        return AutoModelForSeq2SeqLM

    def flops_per_example(self, model: Any, inputs: int, outputs: int = 0, trained: Parts = None) -> float:
        config = model.config
        if hasattr(config, "num_experts"):
            raise ConfigError(
                f"the FLOPs of an encoder-decoder with experts ({config.model_type!r}) are not counted; choose a model like T5"
            )
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
        mask, inputs, targets = batch.get("attention_mask"), batch["input_ids"], batch["labels"]
        own_mask = padding_mask(mask, inputs.shape[1], model)
        encoded = model.encoder(input_ids=inputs, attention_mask=own_mask).last_hidden_state
        hidden = model.decoder(
            input_ids=model._shift_right(targets),
            encoder_hidden_states=encoded,
            encoder_attention_mask=padding_mask(mask, targets.shape[1], model),
            use_cache=False,
        ).last_hidden_state
        if scales_decoder_outputs(model.config):
            hidden = hidden * model.config.d_model**-0.5
        return labelled_losses(hidden, targets, model.lm_head, dense=True)


def contrastive_losses(states_BTD: Tensor, mask_BT: Tensor, document_B: Tensor, temperature_B: Tensor) -> Losses:
    """InfoNCE of pairs of rows (2 i, 2 i + 1) in a batch, in both directions; see its objective.

    A row is the mean of its states where the mask is 1, scaled to length 1. Rows of a pair's own document are no negatives. A
    last row without a partner is ignored.
    """
    mask = mask_BT.to(torch.float32)[..., None]
    vectors_BD = nn.functional.normalize((states_BTD.float() * mask).sum(1) / mask.sum(1).clamp(min=1), dim=-1)
    pairs = len(vectors_BD) // 2
    a_PD, b_PD = vectors_BD[: 2 * pairs : 2], vectors_BD[1 : 2 * pairs : 2]
    device = states_BTD.device.type
    exact = torch.autocast(device, enabled=False) if autocast_dtype(device) else contextlib.nullcontext()
    with exact:  # bfloat16 does not tell cosines near 1 apart
        logits_PP = a_PD @ b_PD.T / temperature_B[: 2 * pairs : 2, None]
    document_P, own_P = document_B[: 2 * pairs : 2], torch.arange(pairs, device=logits_PP.device)
    same_PP = (document_P[:, None] == document_P) & (own_P[:, None] != own_P)
    logits_PP = logits_PP.masked_fill(same_PP, float("-inf"))
    forward = nn.functional.cross_entropy(logits_PP, own_P, reduction="sum")
    backward = nn.functional.cross_entropy(logits_PP.T, own_P, reduction="sum")
    return Losses(("pairs",), ((forward + backward) / 2)[None], document_P.new_tensor([pairs]))


def pair_losses(model: Any, batch: Batch) -> Losses:
    """:func:`contrastive_losses` of a batch of segments."""
    ids, real = batch["input_ids"], batch["attention_mask"]
    states = model.base_model(input_ids=ids, attention_mask=padding_mask(real, ids.shape[1], model)).last_hidden_state
    return contrastive_losses(states, real, batch["document"], batch["temperature"])


register_kind("encoder", EncoderSpec())
register_kind("encoder-decoder", EncoderDecoderSpec())
register_losses("temperature", pair_losses)
