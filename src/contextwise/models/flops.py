"""Floating-point operations of training, counted from a model's matrices.

Counted are the matrix products of blocks and head (2 operations a weight and position) and of attention, over full rows as is
the convention for model FLOPs utilisation (PaLM, Appendix B): 6 N + 12 L D T for a token of a decoder. Backward counts twice
forward, of a matrix that is frozen below one that is trained once, of what is frozen below all others not at all. Embedding
look-ups, norms and softmax are left out, and so are poolings and injections with matrices of their own, and
a pair head. Padding counts: it is computed.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedConfig
from transformers.pytorch_utils import Conv1D

from contextwise.models.building import meta_model
from contextwise.models.contextlm import ContextLMConfig
from contextwise.models.cue import CueConfig, LSTMConfig, UnigramConfig
from contextwise.models.kinds import kind_of
from contextwise.models.multitoken import MultiTokenConfig


def training_flops_per_token(config: PreTrainedConfig, context: int) -> float:
    """Operations of one training token of a decoder whose every token is a target."""
    return training_flops_per_example(config, context) / context + training_flops_per_target(config)


def training_flops_per_example(
    config: PreTrainedConfig, inputs: int, outputs: int = 0, trained: Sequence[str] | None = None
) -> float:
    """Operations of everything but the vocabulary head, for one example.

    Args:
        inputs: positions of the decoder, or of the encoder.
        outputs: positions of an encoder-decoder's decoder.
        trained: the parts of a CUE model that are; all but the sentence encoder if not given.
    """
    model = meta_model(config)
    if isinstance(config, CueConfig):
        return _cue(model, config, inputs, trained)
    if isinstance(config, LSTMConfig):
        return 3.0 * inputs * 2 * _matrix_weights(model.lstm)
    if isinstance(config, UnigramConfig):
        # One vector a sentence; the last layer counts as the vocabulary's head.
        return 3.0 * 2 * (_matrix_weights(model) - _matrix_weights(model.up[-1]))
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


def training_flops_per_target(config: PreTrainedConfig, trained: Sequence[str] | None = None) -> float:
    """Operations of the vocabulary head for one token that counts in the loss; with several heads, of all of them.

    Args:
        trained: as :func:`training_flops_per_example` has it.
    """
    width, heads, transform = config.hidden_size, 1, 0
    passes = 2.0 if trained is not None and "decoder" not in trained else 3.0
    if isinstance(config, MultiTokenConfig):
        heads = config.future_tokens
    if kind_of(config) == "encoder":
        transform = width * width  # BERT's head has a layer of its own in front of the matrix
    return passes * 2 * heads * (width * config.get_text_config().vocab_size + transform)


def _cue(model: Any, config: CueConfig, inputs: int, trained: Sequence[str] | None) -> float:
    """Of a CUE model's parts: the frozen text encoder is none of them, its vectors are computed once."""
    trained = ("context_encoder", "proxy", "decoder") if trained is None else trained
    total = training_flops_per_example(config.sentence_encoder, inputs) / 3  # forward alone
    if config.context_encoder is not None:
        encoder = config.context_encoder
        named = encoder.contexts
        contexts = len(named.get("columns", [])) + bool(named.get("previous_sentence"))
        each = 2 * _matrix_weights(model.context_encoder) + 4 * encoder.layers * encoder.width * contexts
        total += (3 if "context_encoder" in trained else 1) * contexts * each
    if config.proxy is not None:
        coded = _matrix_weights(model.proxy.autoencoder.down)
        total += 2 * coded + 3 * 2 * _matrix_weights(model.proxy.project)
    if config.decoder.form == "transformer":
        blocks = model.decoder.transformer
        # Keys and values of e_cue are made once for each sentence.
        read = sum(_matrix_weights(block.crossattention.c_attn) for block in blocks.h)
        own = 2 * (_matrix_weights(blocks) - read)
        attended = 4 * config.decoder.layers * config.decoder.width * (inputs + 1)
        total += (3 if "decoder" in trained else 2) * (inputs * (own + attended) + 2 * read)
    return total


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
    """Weights of the linear layers in ``module``, and of the gates of an LSTM."""
    return sum(_of_matrices(part) for part in module.modules())


def _of_matrices(part: nn.Module) -> int:
    if isinstance(part, nn.Linear | Conv1D):
        return part.weight.numel()
    if isinstance(part, nn.LSTM):
        return sum(weight.numel() for weight in part.parameters() if weight.dim() == 2)
    if isinstance(part, nn.MultiheadAttention):  # its output projection is a linear layer of its own
        return part.in_proj_weight.numel()
    return 0
