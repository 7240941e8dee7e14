"""Build configurations from a family and a size, and count parameters exactly."""

import contextlib
import math
import zlib
from collections.abc import Collection
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from transformers import GPT2Config, GPTNeoXConfig, LlamaConfig, PreTrainedConfig, PreTrainedModel, Qwen3Config
from transformers import initialization as init

from contextwise.base.errors import ConfigError, Problem, did_you_mean, one_line
from contextwise.models.families import initialize_module
from contextwise.models.sizes import SIZES, ModelSize, shape_problems
from contextwise.models.spec import build_model, meta_model

STATE_BYTES = 16
"""Of each parameter in training: weight, gradient and two moments in float32."""
ACTIVATION_BYTES = 34
"""Of a Transformer block for each position and channel in 16 bits, with attention that keeps no matrix of its own (Korthikanti
et al. 2022, "Reducing activation recomputation in large Transformer models", Section 4.1)."""
OWN_SETTINGS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "max_position_embeddings": "max_context",
    "intermediate_size": "feed_forward",
    "n_inner": "feed_forward",
    "d_ff": "feed_forward",
    "tie_word_embeddings": "tie_embeddings",
}
"""Fields of stock configurations that a setting of the section ``model`` gives."""
NOT_FOR_PRETRAINING = (
    "add_cross",
    "bos_",
    "classifier_",
    "eos_",
    "is_",
    "pad_",
    "pretraining_tp",
    "summary_",
    "use_cache",
    "vocab_",
)
"""First letters of the fields of stock configurations that a recipe does not change."""
_seed: ContextVar[int | None] = ContextVar("seed", default=None)


def backbone_config(
    family: str, size: ModelSize, vocab_size: int, context: int, extra_layers: int = 0, end_of_text: int | None = None
) -> PreTrainedConfig:
    """Build a stock transformers configuration, without dropout (pretraining sees each token about once).

    Args:
        vocab_size: tokens in the vocabulary.
        context: the longest context, tokens; GPT-2 learns one position embedding for each.
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
    width, heads = size.width, size.heads
    # The token that ends one document also begins the next.
    special: dict[str, Any] = {"bos_token_id": end_of_text, "eos_token_id": end_of_text}
    common = special | {
        "vocab_size": vocab_size,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": context,
    }
    # Gated feed-forward layers: three matrices with an inner width of 8/3 of the width have as many parameters as two with
    # 4 times the width. Embeddings are tied, as in the small models of both families.
    gated = {
        "intermediate_size": 32 * round(8 * width / 3 / 32),
        "num_key_value_heads": heads,
        "tie_word_embeddings": True,
    }
    if family == "gpt2":
        # The exact GELU; the default, its approximation by a hyperbolic tangent, takes four times as long on a CPU.
        dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return GPT2Config(activation_function="gelu", **dropout, **common)
    if family in ("gpt_neox", "gpt2_rotary"):
        # The class of GPT-NeoX computes GPT-2 with rotary positions too: the model of context scaling.
        gpt2 = family == "gpt2_rotary"
        rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0 if gpt2 else 0.25}
        # GPT-NeoX-20B and Pythia begin with ``small_init``, √(2/5D) (Nguyen and Salazar 2019), and ``wang_init``.
        alike: dict[str, Any] = {"initializer_range": math.sqrt(2 / (5 * width)), "residual_init": "wang"}
        if gpt2:
            alike = {"use_parallel_residual": False, "tie_word_embeddings": True, "residual_init": "gpt2"}
        return GPTNeoXConfig(intermediate_size=4 * width, rope_parameters=rope, **alike, **common)
    if family == "llama":
        return LlamaConfig(**common, **gated)
    if family == "qwen3":
        return Qwen3Config(head_dim=width // heads, **common, **gated)
    raise ConfigError(f"model.family is {family!r}, but the families of decoders are {', '.join(SIZES)}")


def with_fields(
    config: PreTrainedConfig, options: dict[str, Any] | None, settings: Collection[str]
) -> PreTrainedConfig:
    """A stock configuration with other values of its own fields; those of a field that is a dictionary are merged.

    Args:
        options: field -> value, such as ``{"attn_pdrop": 0.1}``.
        settings: names of the settings of the section ``model``.

    Raises:
        ConfigError: a field is unknown or has a setting of its own, or transformers builds no model with the values.
    """
    if not options:
        return config
    named = {own: name for name, own in config.attribute_map.items()}
    own = {
        name: OWN_SETTINGS.get(named.get(name, name), "") for name in [*type(config).__annotations__, *named.values()]
    }
    free = [
        name for name, setting in own.items() if setting not in settings and not name.startswith(NOT_FOR_PRETRAINING)
    ]
    values = _given(config)
    values.pop("layer_types", None)  # follows from other fields unless it is given
    options = {name: _number(value) for name, value in options.items()}
    for name, value in options.items():
        if own.get(name) in settings:
            fix = f"set model.{own[name]}"
            raise ConfigError(Problem("but has a setting of its own", f"model.options.{name}", value, fix=fix))
        if name not in free:
            why = f"but {type(config).__name__} has {', '.join(free) or 'no further field'}"
            fix = did_you_mean(name, free) if free else ""
            raise ConfigError(Problem(why, f"model.options.{name}", value, fix=fix))
        merged = isinstance(value, dict) and isinstance(values.get(name), dict)
        values[name] = values[name] | value if merged else value
    try:
        changed = type(config)(**values)
        model, ids = meta_model(changed), torch.zeros((1, 2), dtype=torch.long, device="meta")
        try:
            model(input_ids=ids, **({"decoder_input_ids": ids} if changed.is_encoder_decoder else {}))
        except RuntimeError as error:
            if "meta" not in str(error):  # of a model that reads values, which the meta device has none of
                raise
    except Exception as error:  # of any class: transformers checks some values where it builds or runs the model
        why = f"but with these options transformers gives {type(error).__name__}: {one_line(error)}"
        raise ConfigError(Problem(why, "model.options", options)) from error
    for name, value in options.items():
        is_now = getattr(changed, name)
        if is_now != value and not (isinstance(value, dict) and is_now.items() >= value.items()):
            why = f"but transformers makes it {is_now!r} beside the other fields"
            raise ConfigError(Problem(why, f"model.options.{name}", value))
    return changed


def _given(config: PreTrainedConfig) -> dict[str, Any]:
    """The values that a configuration was built from, without those that its class derives."""
    start, values = type(config)().to_dict(), config.to_dict()
    declared = {name for base in type(config).__mro__ for name in vars(base).get("__annotations__", ())}
    return {
        name: value
        for name, value in values.items()
        if name not in ("model_type", "transformers_version")
        and (name not in start or (name in declared and value != start[name]))
    }


def _number(value: Any) -> Any:
    """A number that YAML reads as a text, such as ``1e6``, as a number; also in a dictionary."""
    if isinstance(value, dict):
        return {name: _number(each) for name, each in value.items()}
    with contextlib.suppress(ValueError):
        return float(value) if isinstance(value, str) else value
    return value


def parameter_count(config: PreTrainedConfig) -> int:
    """Count the parameters exactly, tied weights once; allocates no memory for weights."""
    return sum(parameter.numel() for parameter in meta_model(config).parameters())


def training_memory(config: PreTrainedConfig, positions: int) -> tuple[int, int]:
    """Estimate the bytes of weights, gradients and moments, and of the activations of ``positions`` in 16 bits."""
    layers, width = getattr(config, "num_hidden_layers", 0), getattr(config, "hidden_size", 0)
    return STATE_BYTES * parameter_count(config), ACTIVATION_BYTES * positions * layers * width


def build_paired(config: PreTrainedConfig, seed: int) -> Any:
    """Build a model as :func:`~contextwise.models.spec.build_model` does, with initial values by :func:`initialize_by_name`."""
    token = _seed.set(seed)
    try:
        model = build_model(config)
    finally:
        _seed.reset(token)
    initialize_by_name(model, seed)
    return model


def pair_stock(model: PreTrainedModel) -> None:
    """Give the stock model that a variant's code is about to change the values of a paired initialization, if there is one."""
    if (seed := _seed.get()) is not None and model.device.type != "meta":
        initialize_by_name(model, seed)
        for module in model.modules():
            module.keeps_initial_values = True


@torch.no_grad()
@init.guard_torch_init_functions()
def initialize_by_name(model: PreTrainedModel, seed: int) -> None:
    """Initialize each module from the seed and its own name, so that models that share modules start from the same values.

    The prefix of the stock model inside a composition does not count (``transformer.h.0`` of GPT-2 and ``backbone.h.0`` of
    ContextLM are one name). A module keeps the distribution of its model; modules of a variant's own (``keeps_initial_values``)
    stay.
    """

    def visit(module: nn.Module, owner: PreTrainedModel, name: str) -> None:
        owner = module if isinstance(module, PreTrainedModel) else owner
        for child_name, child in module.named_children():
            if isinstance(child, PreTrainedModel):  # the stock model of a composition, or a base model below its head
                child_name = ""
            elif child is owner.get_output_embeddings():
                child_name = "head"
            visit(child, owner, f"{name}.{child_name}" if child_name else name)
        # The CPU's generator alone: torch.manual_seed takes a traceback for each kind of accelerator, which takes milliseconds.
        torch.default_generator.manual_seed(zlib.crc32(f"{seed}{name}".encode()))
        if not getattr(module, "keeps_initial_values", False):
            initialize_module(owner, module)

    with torch.random.fork_rng(devices=[]):
        visit(model, model, "")
    model.tie_weights()
