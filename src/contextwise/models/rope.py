"""Rotary positions beyond those that a model was trained with, by the methods that transformers has for them.

A rotary model can read windows of any length: nothing has to be added for ``none``, which leaves the frequencies alone.
``linear`` divides all positions by a factor, ``dynamic`` (NTK) raises the base with the length of the input and leaves
inputs of the trained length as they are, ``yarn`` divides the slow frequencies and keeps the fast ones
(``transformers.modeling_rope_utils``).

Frequencies that follow the length need care in three places, which transformers (5.23) leaves to its callers:

- It keeps those of the longest input so far. Here an input's depend on that input alone (:func:`extend_positions`).
- It takes the length from the positions that are asked for. Those of ContextLM's chunks end before the tokens' do, so the
  predictor asks again at the frequencies that the tokens got (:func:`frozen_frequencies`).
- In cached generation they change at every step, while the cached keys keep the angles that they were turned by. Generation
  here fixes them for its last length before it begins (:func:`frequencies_for`), and is what a full pass of that length gives.
"""

import contextlib
import copy
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args

import torch
from torch import nn
from transformers import PreTrainedModel

from contextwise.base.errors import ConfigError

Rope = Literal["none", "linear", "dynamic", "yarn"]
ROPES: tuple[str, ...] = get_args(Rope)


def rotary_modules(model: PreTrainedModel) -> list[tuple[str, Any]]:
    """The modules that turn positions into rotary angles, by name; none where positions are learned or absent."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if hasattr(module, "rope_type") and hasattr(module, "config")
    ]


def _kinds(module: Any) -> dict[str, str]:
    """Layer type -> how its frequencies come about; the layer type is empty where all layers have the same."""
    return module.rope_type if isinstance(module.rope_type, dict) else {"": module.rope_type}


def follows_length(module: Any) -> bool:
    """Whether the frequencies of a rotary module depend on how long the input is."""
    return any("dynamic" in kind or kind == "longrope" for kind in _kinds(module).values())


@contextlib.contextmanager
def frozen_frequencies(modules: Iterable[Any]) -> Iterator[None]:
    """Let rotary modules answer at the frequencies that they used last, whatever positions they are asked for."""
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
    """Fix frequencies that follow the length at those of ``length`` tokens; other models are left as they are.

    For generation: ``length`` is that of the prompt and all new tokens. Every step then is what a full pass at these
    frequencies gives, and within the trained length nothing changes.
    """
    modules = [module for _, module in rotary_modules(model) if follows_length(module)]
    for module in modules:
        _start_over(module)
        like = next(module.buffers())
        last = torch.tensor([[length - 1]], device=like.device)
        for layer, kind in _kinds(module).items():
            if "dynamic" in kind or kind == "longrope":
                module(like, last, *([layer] if layer else []))
    with frozen_frequencies(modules):
        yield


def _start_over(module: Any, *_: Any) -> None:
    """Forget the longest input of dynamic NTK."""
    for layer, kind in _kinds(module).items():
        if "dynamic" in kind:
            prefix = f"{layer}_" if layer else ""
            setattr(module, f"{prefix}inv_freq", getattr(module, f"{prefix}original_inv_freq"))
            setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)


def extend_positions(
    model: PreTrainedModel,
    length: int,
    rope: Rope = "none",
    factor: float | None = None,
    trained: int | None = None,
) -> float | None:
    """Let a model read windows of ``length`` tokens, longer than it was trained with; in place, for inference.

    The rotary modules get a configuration of their own. All that asks them for angles follows, ContextLM's predictor
    among it. The model is not meant to be saved afterwards.

    Args:
        rope: how the positions are extended.
        factor: of ``linear``, ``dynamic`` and ``yarn``; ``length / trained`` if not given, and at least 1.
        trained: tokens of the windows that the model was trained with; what its configuration says if not given.

    Returns:
        The factor that is used; None for ``none``.

    Raises:
        ConfigError: the model has no rotary positions, it has extended ones already, or the factor is below 1.
    """
    modules = rotary_modules(model)
    if not modules:
        raise ConfigError(
            f"the positions of this {model.config.model_type} are not rotary, so they cannot be extended; leave --rope out, "
            "and give a --context that the model has positions for"
        )
    if rope == "none":
        if factor is not None:
            raise ConfigError(
                "a rope factor is given, but no method; give --rope linear, dynamic or yarn too"
            )
    else:
        trained = trained or int(modules[0][1].config.max_position_embeddings)
        factor = max(1.0, length / trained) if factor is None else float(factor)
        if not factor >= 1:
            raise ConfigError(f"--rope-factor is {factor:g}; it must be at least 1")
    for name, module in modules:
        config = module.config
        module.config = copy.deepcopy(config)
        if rope != "none":
            assert factor is not None and trained is not None
            module = _extended(module, rope, factor, trained)
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, module)
        config.max_position_embeddings = max(length, config.max_position_embeddings)
    return factor


def _extended(module: Any, rope: Rope, factor: float, trained: int) -> nn.Module:
    """A rotary module of the same class with other frequencies."""
    parameters = _full_attention(module.config.rope_parameters)
    kind = parameters.get("rope_type", "default")
    if kind != "default":
        raise ConfigError(
            f"the model's positions are extended already (rope_type {kind!r} in its configuration); leave --rope out"
        )
    dimensions = 2 * len(next(module.buffers()))
    if rope == "dynamic" and dimensions == 2:
        raise ConfigError(
            "dynamic NTK spreads a head's frequencies apart, but a head of this model has only one (2 rotary dimensions); "
            "choose --rope linear or yarn"
        )
    parameters |= {"rope_type": rope, "factor": factor}
    if rope == "yarn":
        parameters["original_max_position_embeddings"] = trained
    module.config.max_position_embeddings = trained
    device = next(module.buffers()).device
    extended = type(module)(module.config).to(device).train(module.training)
    extended.register_forward_pre_hook(_start_over)
    return extended


def _full_attention(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters of layers that see everything: some models have others beside them, for sliding windows."""
    return parameters.get("full_attention", parameters)
