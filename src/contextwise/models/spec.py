"""What a kind of model offers beside its forward pass: how it is built, what its training costs, and its pretraining losses.

Each folder of models has a ``spec.py``, which registers its configurations, their classes and their :class:`ModelSpec`; that of
``stock`` is for the models of transformers. The functions at the end ask the specification of a configuration.
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
    """What training, evaluation and the counting of operations ask of a kind of model."""

    @abstractmethod
    def build(self, config: Any) -> Any:
        """A freshly initialised model."""

    @abstractmethod
    def flops_per_example(
        self, model: Any, inputs: int, outputs: int = 0, trained: Sequence[str] | None = None
    ) -> float:
        """Operations of everything but the vocabulary head, for one example, forward and backward.

        Args:
            model: may be on the meta device.
            inputs: positions of the decoder, or of the encoder.
            outputs: positions of an encoder-decoder's decoder.
            trained: the parts that are trained, of a model that is made of parts; its usual ones if not given.
        """

    @abstractmethod
    def flops_per_target(self, config: Any, trained: Sequence[str] | None = None) -> float:
        """Operations of the vocabulary head (of all heads) for one token that counts in the loss."""

    @abstractmethod
    def losses(self, model: Any, batch: Batch) -> Losses:
        """The pretraining losses of a batch."""


def register_model(
    config_class: type[PreTrainedConfig],
    model_class: type[PreTrainedModel],
    spec: ModelSpec | None = None,
    auto_class: Any = AutoModelForCausalLM,
) -> None:
    """Register a model of this package with transformers' Auto classes, and what it offers.

    Args:
        spec: that of the nearest base class of ``config_class`` that has one, if not given.
        auto_class: the Auto class that opens it.
    """
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    auto_class.register(config_class, model_class, exist_ok=True)
    if spec is not None:
        _SPECS[config_class] = spec


def register_stock(kind: Kind, spec: ModelSpec) -> None:
    """Register what the stock models of a kind offer."""
    _STOCK[kind] = spec


def register_models() -> None:
    """Import ``spec.py`` of every folder of models beside this file, each of which registers its own models."""
    for file in sorted(Path(__file__).parent.glob("*/spec.py")):
        importlib.import_module(f"contextwise.models.{file.parent.name}.spec")


def spec_of(config: PreTrainedConfig) -> ModelSpec:
    """The specification of a configuration's model: that of the nearest registered base class, else of its kind."""
    register_models()
    own = next((_SPECS[base] for base in type(config).__mro__ if base in _SPECS), None)
    return own or _STOCK[kind_of(config)]


def build_model(config: PreTrainedConfig) -> Any:
    """A freshly initialised model: a causal or masked language model, an encoder-decoder, or what else has a specification."""
    return spec_of(config).build(config)


_META_MODELS: dict[tuple[type, str], Any] = {}


def meta_model(config: PreTrainedConfig) -> Any:
    """The model of a configuration on the meta device, without memory, to be counted; built once for equal configurations.

    A plan asks for the same few models again and again, and drawing weights costs time on the meta device too.
    """
    key = type(config), config.to_json_string(use_diff=False)
    if key not in _META_MODELS:
        if len(_META_MODELS) == 64:
            _META_MODELS.clear()
        with torch.device("meta"):
            _META_MODELS[key] = build_model(config)
    return _META_MODELS[key]


def pretraining_losses(model: Any, batch: Batch) -> Losses:
    """The pretraining losses of a batch.

    Args:
        model: a causal or masked language model, or an encoder-decoder, of transformers or of this package.
        batch: ``input_ids``, ``labels`` and whatever else the objective's examples have.
    """
    return spec_of(model.config).losses(model, batch)


def training_flops_per_token(config: PreTrainedConfig, context: int) -> float:
    """Operations of one training token of a decoder whose every token is a target."""
    return training_flops_per_example(config, context) / context + training_flops_per_target(config)


def training_flops_per_example(
    config: PreTrainedConfig, inputs: int, outputs: int = 0, trained: Sequence[str] | None = None
) -> float:
    """Operations of everything but the vocabulary head, for one example; see :meth:`ModelSpec.flops_per_example`."""
    return spec_of(config).flops_per_example(meta_model(config), inputs, outputs, trained)


def training_flops_per_target(config: PreTrainedConfig, trained: Sequence[str] | None = None) -> float:
    """Operations of the vocabulary head for one token that counts in the loss; with several heads, of all of them."""
    return spec_of(config).flops_per_target(config, trained)
