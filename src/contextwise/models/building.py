"""Build configurations from a family and a size, count parameters exactly, and match parameter counts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
from contextwise.models.cue.lstm import LSTMConfig
from contextwise.models.sizes import ModelSize, shape_problems
from contextwise.models.spec import meta_model


def backbone_config(
    family: str,
    size: ModelSize,
    vocab_size: int,
    context: int,
    extra_layers: int = 0,
    end_of_text: int | None = None,
) -> PreTrainedConfig:
    """Build a stock transformers configuration, without dropout (pretraining sees each token about once).

    Args:
        vocab_size: tokens in the vocabulary.
        context: the longest context, tokens; GPT-2 and BERT learn one position embedding for each.
        extra_layers: layers added to those of the size; 2 for the parameter-matched baseline of ContextLM's Table 1.
        end_of_text: id of the token between documents.

    Raises:
        ConfigError: the width is not divisible by the heads, or a number is not positive.
    """
    layers = size.layers + extra_layers
    if min(layers, size.width, size.heads, vocab_size, context) < 1:
        raise ConfigError("layers, width, heads, vocabulary and context must all be at least 1")
    if problems := shape_problems(family, size):
        raise ConfigError(*problems)
    return _CONFIGS[family](Shape(layers, size.width, size.heads, vocab_size, context, end_of_text))


@dataclass(frozen=True)
class Shape:
    """Dimensions of a stock configuration; ``end_of_text`` is the id of the token between documents."""

    layers: int
    width: int
    heads: int
    vocab_size: int
    context: int
    end_of_text: int | None

    @property
    def special(self) -> dict[str, Any]:
        """Special tokens: the token that ends one document also begins the next."""
        return {"bos_token_id": self.end_of_text, "eos_token_id": self.end_of_text}

    @property
    def common(self) -> dict[str, Any]:
        """The arguments that most families share."""
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "max_position_embeddings": self.context,
            **self.special,
        }


def _gpt2(shape: Shape) -> PreTrainedConfig:
    return GPT2Config(
        vocab_size=shape.vocab_size,
        n_positions=shape.context,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        # The same function as the default gelu_new, as one operation instead of eight.
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        **shape.special,
    )


def _gpt_neox(shape: Shape) -> PreTrainedConfig:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    return GPTNeoXConfig(intermediate_size=4 * shape.width, rope_parameters=rope, **shape.common)


def _gated(shape: Shape) -> dict[str, Any]:
    """Arguments of the families with gated feed-forward layers and rotary positions on whole heads."""
    # Three matrices with an inner width of 8/3 of the width have as many parameters as two with 4 times the width.
    # Embeddings are tied, as in the small models of both families.
    inner = 32 * round(8 * shape.width / 3 / 32)
    return shape.common | {
        "intermediate_size": inner,
        "num_key_value_heads": shape.heads,
        "tie_word_embeddings": True,
    }


def _llama(shape: Shape) -> PreTrainedConfig:
    return LlamaConfig(**_gated(shape))


def _qwen3(shape: Shape) -> PreTrainedConfig:
    return Qwen3Config(head_dim=shape.width // shape.heads, **_gated(shape))


def _lstm(shape: Shape) -> PreTrainedConfig:
    return LSTMConfig(shape.vocab_size, shape.width, shape.layers, **shape.special)


def _bert(shape: Shape) -> PreTrainedConfig:
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertConfig(intermediate_size=4 * shape.width, **dropout, **shape.common)


def _t5(shape: Shape) -> PreTrainedConfig:
    """T5 with as many encoder as decoder layers; positions are relative, so inputs may have any length."""
    return T5Config(
        vocab_size=shape.vocab_size,
        d_model=shape.width,
        d_kv=shape.width // shape.heads,
        d_ff=4 * shape.width,
        num_layers=shape.layers,
        num_decoder_layers=shape.layers,
        num_heads=shape.heads,
        dropout_rate=0.0,
        # As for documents, the end-of-text token also begins the decoder's input.
        decoder_start_token_id=shape.end_of_text,
        eos_token_id=shape.end_of_text,
        pad_token_id=shape.end_of_text,
    )


_CONFIGS: dict[str, Callable[[Shape], PreTrainedConfig]] = {
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "llama": _llama,
    "qwen3": _qwen3,
    "lstm": _lstm,
    "bert": _bert,
    "t5": _t5,
}


def parameter_count(config: PreTrainedConfig) -> int:
    """Count the parameters exactly, tied weights once; allocates no memory for weights."""
    return sum(parameter.numel() for parameter in meta_model(config).parameters())


@dataclass(frozen=True)
class ParameterMatch:
    """The backbone whose parameter count is nearest to a target, in whole layers or in steps of width."""

    config: PreTrainedConfig
    parameters: int
    difference: int
    """``parameters`` minus the target."""


def match_parameters(
    target: int, family: str, size: ModelSize, vocab_size: int, context: int, by: str = "layers"
) -> ParameterMatch:
    """Find the plain backbone with the number of parameters nearest to ``target``.

    Args:
        target: parameters to match, such as those of a ContextLM.
        size: the size to vary: its depth, or with ``by="width"`` its width in steps of 8 times the heads.

    Raises:
        ConfigError: ``by`` is neither "layers" nor "width", or the target is below the smallest such model.
    """
    if by not in ("layers", "width"):
        raise ConfigError(f"by is {by!r}, but parameters can be matched by layers or by width")
    step = 8 * size.heads

    def candidate(count: int) -> tuple[PreTrainedConfig, int]:
        resized = (
            ModelSize(count, size.width, size.heads, size.learning_rate)
            if by == "layers"
            else ModelSize(size.layers, count * step, size.heads, size.learning_rate)
        )
        config = backbone_config(family, resized, vocab_size, context)
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
    neighbors = [candidate(count) for count in (max(low, 1), high)]
    config, parameters = min(neighbors, key=lambda pair: abs(pair[1] - target))
    return ParameterMatch(config, parameters, parameters - target)
