"""Model specifications: how a type of model is built, the FLOPs of its training, and its pretraining losses.

Each model folder has a ``spec.py``, which registers its configurations, their classes and their :class:`ModelSpec`; that of
``stock`` is for the models of transformers. The functions at the end use the specification of a configuration.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from contextwise.models.kinds import kind_of
from contextwise.models.pretraining import Batch, Losses
from contextwise.objectives.kind import Kind

_SPECS: dict[type[PreTrainedConfig], "ModelSpec"] = {}
_STOCK: dict[Kind, "ModelSpec"] = {}


class ModelSpec(ABC):
    """The interface that training, evaluation and FLOPs counting use for a type of model."""

    @abstractmethod
    def build(self, config: Any) -> Any:
        """Build a newly initialized model."""

    @abstractmethod
    def flops_per_example(
        self, model: Any, inputs: int, outputs: int = 0, trained: Sequence[str] | None = None
    ) -> float:
        """Forward and backward operations per example, without the vocabulary head.

        Args:
            model: may be on the meta device.
            inputs: positions of the decoder, or of the encoder.
            outputs: positions of an encoder-decoder's decoder.
            trained: the trained parts of a model with several parts; by default those that are usually trained.
        """

    @abstractmethod
    def flops_per_target(self, config: Any, trained: Sequence[str] | None = None) -> float:
        """Forward and backward operations of the vocabulary head (or all heads) per target token."""

    @abstractmethod
    def losses(self, model: Any, batch: Batch) -> Losses:
        """Compute the pretraining losses of a batch."""


def register_model(
    config_class: type[PreTrainedConfig],
    model_class: type[PreTrainedModel],
    spec: ModelSpec | None = None,
    auto_class: Any = AutoModelForCausalLM,
) -> None:
    """Register a model of this package with transformers' Auto classes, and its specification.

    Args:
        spec: by default that of the nearest base class of ``config_class`` with a specification.
        auto_class: the Auto class that loads the model.
    """
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    auto_class.register(config_class, model_class, exist_ok=True)
    if spec is not None:
        _SPECS[config_class] = spec


def register_stock(kind: Kind, spec: ModelSpec) -> None:
    """Register the specification of the stock models of a kind."""
    _STOCK[kind] = spec


def register_models() -> None:
    """Import ``spec.py`` of every model folder, which registers its models."""
    for file in sorted(Path(__file__).parent.glob("*/spec.py")):
        importlib.import_module(f"contextwise.models.{file.parent.name}.spec")


def spec_of(config: PreTrainedConfig) -> ModelSpec:
    """The specification of a configuration's model: that of the nearest registered base class, else of its kind."""
    register_models()
    own = next((_SPECS[base] for base in type(config).__mro__ if base in _SPECS), None)
    return own or _STOCK[kind_of(config)]


def build_model(config: PreTrainedConfig) -> Any:
    """Build a newly initialized model: causal, masked, encoder-decoder, or any other type with a specification."""
    return spec_of(config).build(config)


_META_MODELS: dict[tuple[type, str], Any] = {}


def meta_model(config: PreTrainedConfig) -> Any:
    """Build the model of a configuration on the meta device, to count its parameters; cached for equal configurations.

    A plan needs the same few models many times, and initializing weights costs time on the meta device too.
    """
    key = type(config), config.to_json_string(use_diff=False)
    if key not in _META_MODELS:
        if len(_META_MODELS) == 64:
            _META_MODELS.clear()
        with torch.device("meta"):
            _META_MODELS[key] = build_model(config)
    return _META_MODELS[key]


def pretraining_losses(model: Any, batch: Batch) -> Losses:
    """Compute the pretraining losses of a batch with the model's specification.

    Args:
        model: a causal or masked language model, or an encoder-decoder, of transformers or of this package.
        batch: ``input_ids``, ``labels`` and the other tensors of the objective's examples.
    """
    return spec_of(model.config).losses(model, batch)


def training_flops_per_token(config: PreTrainedConfig, context: int) -> float:
    """Operations per training token of a decoder that predicts every token."""
    return training_flops_per_example(config, context) / context + training_flops_per_target(config)


def training_flops_per_example(
    config: PreTrainedConfig, inputs: int, outputs: int = 0, trained: Sequence[str] | None = None
) -> float:
    """Operations per example without the vocabulary head; see :meth:`ModelSpec.flops_per_example`."""
    return spec_of(config).flops_per_example(meta_model(config), inputs, outputs, trained)


def training_flops_per_target(config: PreTrainedConfig, trained: Sequence[str] | None = None) -> float:
    """Operations of the vocabulary head, or of all heads, per target token."""
    return spec_of(config).flops_per_target(config, trained)
