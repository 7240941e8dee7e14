"""Floating-point operations of training, counted from a model's matrices.

Counted are the matrix products of blocks and head (2 operations a weight and position) and of attention, over full rows as is
the convention for model FLOPs utilisation (PaLM, Appendix B): 6 N + 12 L D T for a token of a decoder. Backward counts twice
forward. Embedding look-ups, norms and softmax are left out, and so are poolings and injections with matrices of their own, and
a pair head. Padding counts: it is computed.
"""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.pytorch_utils import Conv1D

from contextwise.models.building import build_model
from contextwise.models.context import ContextLMConfig
from contextwise.models.kinds import kind_of
from contextwise.models.multitoken import MultiTokenConfig


def training_flops_per_token(config: PreTrainedConfig, context: int) -> float:
    """Operations of one training token of a decoder whose every token is a target."""
    return training_flops_per_example(config, context) / context + training_flops_per_target(config)


def training_flops_per_example(config: PreTrainedConfig, inputs: int, outputs: int = 0) -> float:
    """Operations of everything but the vocabulary head, for one example.

    Args:
        inputs: positions of the decoder, or of the encoder.
        outputs: positions of an encoder-decoder's decoder.
    """
    with torch.device("meta"):
        model = build_model(config)
    if kind_of(config) == "encoder-decoder":
        return 3.0 * _encoder_decoder(model, config, inputs, outputs)
    if kind_of(config) == "encoder":
        blocks = model.base_model.encoder
        return 3.0 * inputs * _operations(blocks, config, inputs, config.num_hidden_layers)
    extra = 0.0
    if isinstance(config, MultiTokenConfig):
        if config.head == "layer":
            extra = _operations(model.heads, config.backbone_config, inputs, config.future_tokens)
        model, config = model.backbone, config.backbone_config
    if isinstance(config, ContextLMConfig):
        # The context predictor works on one vector in `chunk_size` tokens.
        layers, chunks = model.context.layers, inputs // config.chunk_size
        extra += _operations(layers, config.backbone_config, chunks, len(layers)) / config.chunk_size
        model, config = model.backbone, config.backbone_config
    base = getattr(model, "base_model", model)
    return 3.0 * inputs * (_operations(base, config, inputs, config.num_hidden_layers) + extra)


def training_flops_per_target(config: PreTrainedConfig) -> float:
    """Operations of the vocabulary head for one token that counts in the loss; with several heads, of all of them."""
    width, heads, transform = config.hidden_size, 1, 0
    if isinstance(config, MultiTokenConfig):
        heads = config.future_tokens
    if kind_of(config) == "encoder":
        transform = width * width  # BERT's head has a layer of its own in front of the matrix
    return 3.0 * 2 * heads * (width * config.get_text_config().vocab_size + transform)


def _encoder_decoder(model: Any, config: Any, inputs: int, outputs: int) -> float:
    attended = config.num_heads * config.d_kv
    encoder = inputs * (2 * _matrix_weights(model.encoder.block) + 4 * config.num_layers * attended * inputs)
    crossing = [block.layer[1].EncDecAttention for block in model.decoder.block]
    # Keys and values of the encoder's output are made once for each of its positions.
    read = sum(_matrix_weights(part.k) + _matrix_weights(part.v) for part in crossing)
    own = _matrix_weights(model.decoder.block) - read
    decoder = outputs * (2 * own + 4 * config.num_decoder_layers * attended * (outputs + inputs))
    return encoder + 2 * read * inputs + decoder


def _operations(blocks: nn.Module, config: Any, length: int, count: int) -> float:
    """Operations of ``count`` blocks on one of ``length`` positions: weights and attention."""
    heads = config.num_attention_heads
    attended = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    return 2 * _matrix_weights(blocks) + 4 * count * attended * length


def _matrix_weights(module: nn.Module) -> int:
    """Weights of the linear layers in ``module``."""
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear | Conv1D))
