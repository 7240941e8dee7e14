"""What a kind of model offers beside its forward pass: how it is built, what its training costs, and its pretraining losses.

Each folder of models has a ``spec.py``, which registers its configurations, their classes and their :class:`ModelSpec`. Stock
models of transformers are described in :mod:`contextwise.models.stock`.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

if TYPE_CHECKING:
    from contextwise.models.pretraining import Batch, Losses

_SPECS: dict[type[PreTrainedConfig], "ModelSpec"] = {}


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
    def losses(self, model: Any, batch: "Batch") -> "Losses":
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


def register_models() -> None:
    """Import ``spec.py`` of every folder of models beside this file, each of which registers its own models."""
    for file in sorted(Path(__file__).parent.glob("*/spec.py")):
        importlib.import_module(f"contextwise.models.{file.parent.name}.spec")


def spec_of(config: PreTrainedConfig) -> ModelSpec:
    """What the model of a configuration offers; a subclass of a registered configuration has that one's."""
    register_models()
    own = next((_SPECS[base] for base in type(config).__mro__ if base in _SPECS), None)
    return own or importlib.import_module("contextwise.models.stock").stock_spec(config)
