"""Extend rotary positions beyond the trained length, with the methods of transformers.

``linear`` divides all positions by a factor, ``dynamic`` (NTK) increases the base with the length of the input and does not
change inputs of the trained length, ``yarn`` divides the low frequencies and keeps the high ones; ``none`` keeps the
frequencies.

Length-dependent frequencies need care in four cases, which transformers (5.23) leaves to its callers. It keeps the frequencies
of the longest input so far (:func:`forget_lengths`), and uses those of the longest row for all rows of a batch
(:func:`same_frequencies_up_to`). It derives the length from the requested positions; those of ContextLM's chunks end before
those of the tokens (:func:`frozen_frequencies`). In cached generation they would change at every step, while cached keys keep
their rotation (:func:`frequencies_for`).
"""

import contextlib
import copy
import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from contextwise.base.errors import ConfigError

Rope = Literal["none", "linear", "dynamic", "yarn"]


def rotary_modules(model: PreTrainedModel) -> list[tuple[str, Any]]:
    """The modules that compute rotary angles, with names; empty for a model with learned or no positions."""
    modules = model.named_modules()
    return [(name, part) for name, part in modules if hasattr(part, "rope_type") and hasattr(part, "config")]


def _kinds(module: Any) -> dict[str, str]:
    """Layer type -> type of its frequencies; the layer type is empty if all layers have the same."""
    return module.rope_type if isinstance(module.rope_type, dict) else {"": module.rope_type}


def follows_length(module: Any) -> bool:
    """Whether the frequencies of a rotary module depend on the length of the input."""
    return any("dynamic" in kind or kind == "longrope" for kind in _kinds(module).values())


def same_frequencies_up_to(model: PreTrainedModel) -> float:
    """Tokens up to which an input's rotary frequencies do not depend on its length; infinite where they never do."""
    lengths = [math.inf]
    for _, module in rotary_modules(model):
        for layer, kind in _kinds(module).items():
            if kind == "longrope":
                parameters = module.config.rope_parameters
                lengths.append((parameters[layer] if layer else parameters)["original_max_position_embeddings"])
            elif "dynamic" in kind:
                lengths.append(module.original_max_seq_len)
    return min(lengths)


def forget_lengths(model: PreTrainedModel) -> list[RemovableHandle]:
    """Let the frequencies of dynamic NTK depend on the current input alone; returns the handles that undo this."""
    modules = [module for _, module in rotary_modules(model) if follows_length(module)]
    return [module.register_forward_pre_hook(_reset_length) for module in modules]


@contextlib.contextmanager
def frozen_frequencies(modules: Iterable[Any]) -> Iterator[None]:
    """Keep the frequencies that rotary modules used last, for any positions."""
    kinds = [(module, module.rope_type) for module in modules]
    try:
        for module, kind in kinds:
            module.rope_type = dict.fromkeys(kind, "default") if isinstance(kind, dict) else "default"
        yield
    finally:
        for module, kind in kinds:
            module.rope_type = kind


@contextlib.contextmanager
def frequencies_for(model: PreTrainedModel, length: int) -> Iterator[None]:
    """Fix length-dependent frequencies at those of ``length`` tokens (in generation, of prompt and all new tokens).

    Every step then equals a full pass at these frequencies, and within the trained length nothing changes.
    """
    modules = [module for _, module in rotary_modules(model) if follows_length(module)]
    for module in modules:
        _reset_length(module)
        like = next(module.buffers())
        last = torch.tensor([[length - 1]], device=like.device)
        for layer, kind in _kinds(module).items():
            if "dynamic" in kind or kind == "longrope":
                module(like, last, *([layer] if layer else []))
    with frozen_frequencies(modules):
        yield


def _reset_length(module: Any, *_: Any) -> None:
    """Reset the longest input of dynamic NTK to the trained length."""
    for layer, kind in _kinds(module).items():
        if "dynamic" in kind:
            prefix = f"{layer}_" if layer else ""
            setattr(module, f"{prefix}inv_freq", getattr(module, f"{prefix}original_inv_freq"))
            setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)


def extend_positions(
    model: PreTrainedModel, length: int, rope: Rope = "none", factor: float | None = None, trained: int | None = None
) -> float | None:
    """Extend a model's positions in place to windows of ``length`` tokens, for inference.

    Returns the factor, None for ``none``; it is by default ``length / trained``, at least 1, and ``trained`` the length of the
    configuration.
    """
    modules = rotary_modules(model)
    if not modules:
        raise ConfigError(
            f"the positions of this {model.config.model_type} are not rotary and cannot be extended; leave out `rope`, and "
            "choose a context that the model has positions for"
        )
    if rope == "none":
        if factor is not None:
            raise ConfigError("a rope factor is given, but no method; set `rope` to linear, dynamic or yarn")
    else:
        trained = trained or getattr(modules[0][1].config, "max_position_embeddings", None)
        if trained is None:
            raise ConfigError(f"the training context of this {model.config.model_type} is not known; leave out `rope`")
        factor = max(1.0, length / trained) if factor is None else float(factor)
        if not factor >= 1:
            raise ConfigError(f"rope_factor is {factor:g}, but must be at least 1")
    for name, module in modules:
        config = module.config
        module.config = copy.deepcopy(config)
        if rope != "none":
            assert factor is not None and trained is not None
            module = _extended(module, rope, factor, trained)
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, module)
        config.max_position_embeddings = max(length, getattr(config, "max_position_embeddings", 0))
    return factor


def stock_config(config: Any) -> Any:
    """The configuration of the stock backbone inside those of ContextLM and of multi-token heads."""
    while hasattr(config, "backbone_config"):
        config = config.backbone_config
    return config


def _extended(module: Any, rope: Rope, factor: float, trained: int) -> nn.Module:
    """Create a rotary module of the same class with extended frequencies; where windows slide, of full attention alone."""
    parameters = module.config.rope_parameters
    parameters = parameters.get("full_attention", parameters)
    kind = parameters.get("rope_type", "default")
    if kind != "default":
        raise ConfigError(
            f"the model's positions are extended already (rope_type {kind!r} in its configuration); leave out `rope`"
        )
    dimensions = 2 * len(next(module.buffers()))
    if rope == "dynamic" and dimensions == 2:
        raise ConfigError(
            "dynamic NTK needs several frequencies per head, but a head of this model has only one (2 rotary dimensions); set "
            "`rope` to linear or yarn"
        )
    parameters |= {"rope_type": rope, "factor": factor}
    if rope == "yarn":
        parameters["original_max_position_embeddings"] = trained
    module.config.max_position_embeddings = trained
    device = next(module.buffers()).device
    extended = type(module)(module.config).to(device).train(module.training)
    extended.register_forward_pre_hook(_reset_length)
    return extended
