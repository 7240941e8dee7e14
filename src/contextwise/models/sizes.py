"""Named model sizes: configurations, exact parameter counts, and parameter matching.

``base`` to ``xl`` are the GPT-2 sizes of ContextLM's Table 7, ``pythia-70m`` to ``pythia-1.4b`` the Pythia sizes of its
Table 8, with the learning rates printed there and how the paper trained them (:class:`PublishedTraining`). The sizes below
``base``, and those of Llama, Qwen3, the LSTM, BERT and T5 (so many layers in the encoder, and as many in the decoder), are
ours, for machines without a large GPU.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    BertConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    PreTrainedConfig,
    Qwen3Config,
    T5Config,
)

from contextwise.base.errors import ConfigError
from contextwise.models.building import build_model
from contextwise.models.cue import LSTMConfig


@dataclass(frozen=True)
class PublishedTraining:
    """How a published model was pretrained; the fields have the names of a recipe's settings.

    ``None`` stands for what the source does not say.
    """

    context: int
    """Tokens a window."""
    tokens_per_step: int
    tokens: int
    """Training tokens."""
    warmup_steps: int
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    weight_decay: float | None = None
    minimum_learning_rate: float | None = None
    """Where the decay ends, as a share of the top."""


# ContextLM, Section 7.1: windows, AdamW's betas, clipping and warm-up; Table 7: "0.5M", which is taken for 512 windows of
# 1024 tokens, and "9B". Neither the decay of the learning rate nor weight decay is stated.
GPT2_TRAINING = PublishedTraining(
    context=1024, tokens_per_step=512 * 1024, tokens=9_000_000_000, warmup_steps=1000
)

# ContextLM, Section 3.1: windows of 2048 tokens, "following the original Pythia ... training configuration"; Table 8: "2M" and
# "300B". All else is in Pythia's own configuration files (EleutherAI/pythia, models/160M/pythia-160m.yml and its siblings):
# 1024 windows a step, warm-up over 1% of 143,000 steps (299.9 billion tokens), a cosine to 10%, betas, clipping, weight decay.
PYTHIA_TRAINING = PublishedTraining(
    context=2048,
    tokens_per_step=1024 * 2048,
    tokens=300_000_000_000,
    warmup_steps=1430,
    weight_decay=0.1,
    minimum_learning_rate=0.1,
)


@dataclass(frozen=True)
class ModelSize:
    """Depth, width and heads of a backbone, the learning rate that goes with it, and how it was trained where published."""

    layers: int
    width: int
    heads: int
    learning_rate: float
    training: PublishedTraining | None = None


OUR_SIZES = {
    "pico": ModelSize(2, 64, 2, 2.0e-3),
    "nano": ModelSize(4, 128, 4, 2.0e-3),
    "micro": ModelSize(6, 192, 6, 2.0e-3),
    "tiny": ModelSize(6, 256, 8, 1.5e-3),
    "mini": ModelSize(8, 384, 6, 1.2e-3),
    "small": ModelSize(12, 512, 8, 1.0e-3),
}

SIZES: dict[str, dict[str, ModelSize]] = {
    "gpt2": {
        **OUR_SIZES,
        "base": ModelSize(12, 768, 12, 1.0e-3, GPT2_TRAINING),
        "medium": ModelSize(24, 1024, 16, 8.0e-4, GPT2_TRAINING),
        "large": ModelSize(36, 1280, 20, 6.0e-4, GPT2_TRAINING),
        "xl": ModelSize(48, 1600, 25, 4.0e-4, GPT2_TRAINING),
    },
    "gpt_neox": {
        **OUR_SIZES,
        "pythia-70m": ModelSize(6, 512, 8, 1.0e-3, PYTHIA_TRAINING),
        "pythia-160m": ModelSize(12, 768, 12, 6.0e-4, PYTHIA_TRAINING),
        "pythia-410m": ModelSize(24, 1024, 16, 3.0e-4, PYTHIA_TRAINING),
        "pythia-1b": ModelSize(16, 2048, 8, 2.5e-4, PYTHIA_TRAINING),
        "pythia-1.4b": ModelSize(24, 2048, 16, 2.0e-4, PYTHIA_TRAINING),
    },
    "llama": OUR_SIZES,
    "qwen3": OUR_SIZES,
    "lstm": OUR_SIZES,
    "bert": OUR_SIZES,
    "t5": OUR_SIZES,
}


def named_size(family: str, size: str) -> ModelSize:
    """Look up a size.

    Raises:
        ConfigError: there is no such family, or no such size in it.
    """
    if family not in SIZES:
        raise ConfigError(f"model.family is {family!r}, but must be one of {', '.join(SIZES)}")
    if size not in SIZES[family]:
        raise ConfigError(f"model.size is {size!r}, but the sizes of {family} are {', '.join(SIZES[family])}")
    return SIZES[family][size]


def backbone_config(
    family: str,
    size: ModelSize,
    vocab_size: int,
    context: int,
    extra_layers: int = 0,
    end_of_text: int | None = None,
) -> PreTrainedConfig:
    """A stock transformers configuration, without dropout (pretraining sees each token about once).

    Args:
        vocab_size: tokens in the vocabulary.
        context: the longest context, tokens; GPT-2 and BERT learn one position embedding for each.
        extra_layers: layers on top of the size's own; 2 makes the parameter-matched baseline of ContextLM's Table 1.
        end_of_text: id of the token between documents.

    Raises:
        ConfigError: the heads do not divide the width, or a number is not positive.
    """
    if min(size.layers + extra_layers, size.width, size.heads, vocab_size, context) < 1:
        raise ConfigError("layers, width, heads, vocabulary and context must all be at least 1")
    if size.width % size.heads:
        raise ConfigError(f"{size.heads} heads do not divide a width of {size.width}; choose heads that do")
    ends: dict[str, Any] = {"bos_token_id": end_of_text, "eos_token_id": end_of_text}
    if family == "gpt2":
        return GPT2Config(
            vocab_size=vocab_size,
            n_positions=context,
            n_embd=size.width,
            n_layer=size.layers + extra_layers,
            n_head=size.heads,
            # The same function as the default gelu_new, as one operation instead of eight.
            activation_function="gelu_pytorch_tanh",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **ends,
        )
    if family == "lstm":
        return LSTMConfig(vocab_size, size.width, size.layers + extra_layers, **ends)
    common: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": size.width,
        "num_hidden_layers": size.layers + extra_layers,
        "num_attention_heads": size.heads,
        "max_position_embeddings": context,
        **ends,
    }
    if family == "gpt_neox":
        if (size.width // size.heads) % 8:
            raise ConfigError(
                "gpt_neox turns a quarter of each head: width / heads is "
                f"{size.width // size.heads}, but must be a multiple of 8"
            )
        rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
        return GPTNeoXConfig(intermediate_size=4 * size.width, rope_parameters=rope, **common)
    if family == "bert":
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return BertConfig(intermediate_size=4 * size.width, **dropout, **common)
    if family == "t5":
        return _t5_config(size, vocab_size, extra_layers, end_of_text)
    if (size.width // size.heads) % 2:
        raise ConfigError(
            f"{family} turns pairs of channels: width / heads is {size.width // size.heads}, but must be even"
        )
    # Three matrices of 8/3 of the width have the parameters of two of four times the width; embeddings are tied, as in
    # the small models of both families.
    inner = 32 * round(8 * size.width / 3 / 32)
    common |= {"intermediate_size": inner, "num_key_value_heads": size.heads, "tie_word_embeddings": True}
    if family == "llama":
        return LlamaConfig(**common)
    return Qwen3Config(head_dim=size.width // size.heads, **common)


def _t5_config(
    size: ModelSize, vocab_size: int, extra_layers: int, end_of_text: int | None
) -> PreTrainedConfig:
    """As many layers in the encoder as in the decoder; positions are relative, so that any length goes in."""
    return T5Config(
        vocab_size=vocab_size,
        d_model=size.width,
        d_kv=size.width // size.heads,
        d_ff=4 * size.width,
        num_layers=size.layers + extra_layers,
        num_decoder_layers=size.layers + extra_layers,
        num_heads=size.heads,
        dropout_rate=0.0,
        # A document begins with the token that ended the one before; so does what the decoder reads.
        decoder_start_token_id=end_of_text,
        eos_token_id=end_of_text,
        pad_token_id=end_of_text,
    )


def parameter_count(config: PreTrainedConfig) -> int:
    """Exact number of parameters, tied weights counted once; builds the model on the meta device (no memory)."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build_model(config).parameters())


@dataclass(frozen=True)
class ParameterMatch:
    """A backbone whose parameter count is as near to a target as whole layers, or steps of width, allow."""

    config: PreTrainedConfig
    parameters: int
    difference: int
    """Its parameters minus the target."""


def match_parameters(
    target: int, family: str, size: ModelSize, vocab_size: int, context: int, by: str = "layers"
) -> ParameterMatch:
    """Find the plain backbone with the number of parameters nearest to ``target``.

    Args:
        target: parameters to match, such as those of a ContextLM.
        size: where to start from; its depth is varied, or with ``by="width"`` its width in steps of the heads times 8.

    Raises:
        ConfigError: ``by`` is neither, or the target lies below the smallest such model.
    """
    if by not in ("layers", "width"):
        raise ConfigError(f"by is {by!r}, but parameters can be matched by layers or by width")
    step = 8 * size.heads

    def candidate(count: int) -> tuple[PreTrainedConfig, int]:
        changed = (
            ModelSize(count, size.width, size.heads, size.learning_rate)
            if by == "layers"
            else ModelSize(size.layers, count * step, size.heads, size.learning_rate)
        )
        config = backbone_config(family, changed, vocab_size, context)
        return config, parameter_count(config)

    if candidate(1)[1] > target:
        raise ConfigError(
            f"a target of {target:,} parameters is below the smallest such model, {candidate(1)[1]:,}"
        )
    high = 1
    while candidate(high)[1] < target:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if candidate(middle)[1] <= target else (low, middle)
    near = [candidate(count) for count in (max(low, 1), high)]
    config, parameters = min(near, key=lambda pair: abs(pair[1] - target))
    return ParameterMatch(config, parameters, parameters - target)


def readable_count(number: float) -> str:
    """124439808 -> '124.4M'."""
    if number < 1000:
        return f"{number:g}"
    power = min(int(math.log10(number)) // 3, 4)
    return f"{number / 1000**power:.1f}{' KMBT'[power]}"
