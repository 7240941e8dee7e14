"""Configuration of ContextLM: the backbone's configuration, and how the context is predicted and injected."""

from typing import Any

from transformers import PreTrainedConfig

from contextwise.base.errors import ConfigError
from contextwise.models.composition import ComposedConfig, check_whole
from contextwise.models.contextlm.layers import INJECTIONS, POOLINGS
from contextwise.models.families import family_of


class ContextLMConfig(ComposedConfig):
    """Configuration of :class:`~contextwise.models.ContextLMForCausalLM`.

    Args:
        backbone_config: configuration of the decoder-only backbone (a transformers config, or its dictionary).
        chunk_size: w, tokens a chunk; at least 1. The paper's default is 4 (ContextLM, Section 3.1).
        predictor_layers: blocks of the context predictor, of the backbone's block class.
        pooling: how the w token vectors of a chunk become its context vector: ``mean``, ``mlp``, ``attention`` or
            ``latent_attention`` (see :mod:`contextwise.models.contextlm.layers`).
        injection: ``gate`` (``h + g * c`` with one learned factor per channel, zero-initialized, so that the model starts
            identical to its backbone), ``add`` (``h + c``, the paper's form), or one of ``scalar_gate``, ``norm_gate``,
            ``projection``, ``norm_add`` (see :mod:`contextwise.models.contextlm.layers`).
        injection_layer: number of backbone layers in the token encoder; 0 is the embedding alone (the paper's "0/12").
        inject_every_layer: add the context before every layer of the token decoder, with a separate gate for each,
            instead of before the first layer only.

    Raises:
        ConfigError: a value is out of range, or the backbone's family has no adapter.
    """

    model_type = "contextlm"

    def __init__(
        self,
        backbone_config: PreTrainedConfig | dict[str, Any] | None = None,
        chunk_size: int = 4,
        predictor_layers: int = 2,
        pooling: str = "mean",
        injection: str = "gate",
        injection_layer: int = 0,
        inject_every_layer: bool = False,
        **kwargs: Any,
    ) -> None:
        self._take_backbone(backbone_config, kwargs)
        self.chunk_size, self.predictor_layers, self.pooling = chunk_size, predictor_layers, pooling
        self.injection, self.injection_layer = injection, injection_layer
        self.inject_every_layer = inject_every_layer
        self._check()
        super().__init__(**kwargs)

    @property
    def cache_layers(self) -> int:
        """How many layers a key-value cache has: the backbone's, the predictor's, and the context state."""
        return self.num_hidden_layers + self.predictor_layers + 1

    @property
    def injections(self) -> int:
        """Number of decoder layers before which the context is added."""
        return self.num_hidden_layers - self.injection_layer if self.inject_every_layer else 1

    def _check(self) -> None:
        family_of(self.backbone_config)
        check_whole(1, chunk_size=self.chunk_size, predictor_layers=self.predictor_layers)
        check_whole(0, injection_layer=self.injection_layer)
        layers = self.num_hidden_layers
        if self.injection_layer >= layers:
            raise ConfigError(
                f"injection_layer is {self.injection_layer}, but must be a whole number from 0 to {layers - 1} (the backbone "
                f"has {layers} layers)"
            )
        for name, forms in (("pooling", POOLINGS), ("injection", INJECTIONS)):
            if getattr(self, name) not in forms:
                raise ConfigError(f"{name} is {getattr(self, name)!r}, but must be one of {', '.join(forms)}")
