"""Configuration of ContextLM: the backbone's configuration, and how the context is predicted and injected."""

from typing import Any

from transformers import PreTrainedConfig

from contextwise.base.errors import ConfigError
from contextwise.models.composition import ComposedConfig
from contextwise.models.contextlm.injection import INJECTIONS
from contextwise.models.contextlm.pooling import POOLINGS
from contextwise.models.families import family_of


class ContextLMConfig(ComposedConfig):
    """Configuration of :class:`~contextwise.models.ContextLMForCausalLM`.

    Args:
        backbone_config: configuration of the decoder-only backbone (a transformers config, or its dictionary).
        chunk_size: w, tokens a chunk; at least 1. The paper's default is 4 (ContextLM, Section 3.1).
        predictor_layers: blocks of the context predictor, of the backbone's block class.
        pooling: how the w token vectors of a chunk become its context vector: ``mean``, ``mlp``, ``attention`` or
            ``latent_attention`` (see :mod:`contextwise.models.contextlm.pooling`).
        injection: ``gate`` (``h + g * c`` with one learned factor per channel, zero-initialized, so that the model starts
            identical to its backbone), ``add`` (``h + c``, the paper's form), or one of ``scalar_gate``, ``norm_gate``,
            ``projection``, ``norm_add`` (see :mod:`contextwise.models.contextlm.injection`).
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
        self.chunk_size = chunk_size
        self.predictor_layers = predictor_layers
        self.pooling = pooling
        self.injection = injection
        self.injection_layer = injection_layer
        self.inject_every_layer = inject_every_layer
        self._check()
        super().__init__(**kwargs)

    @property
    def decoder_layers(self) -> range:
        """Indices of the backbone layers that form the token decoder."""
        return range(self.injection_layer, self.num_hidden_layers)

    @property
    def cache_layers(self) -> int:
        """How many layers a key-value cache has: the backbone's, the predictor's, and the context state."""
        return self.num_hidden_layers + self.predictor_layers + 1

    @property
    def injections(self) -> int:
        """Number of decoder layers before which the context is added."""
        return len(self.decoder_layers) if self.inject_every_layer else 1

    def _check(self) -> None:
        family_of(self.backbone_config)
        layers = self.backbone_config.num_hidden_layers
        for name, low, high in (
            ("chunk_size", 1, None),
            ("predictor_layers", 1, None),
            ("injection_layer", 0, layers - 1),
        ):
            value = getattr(self, name)
            wrong_type = not isinstance(value, int) or isinstance(value, bool)
            if wrong_type or value < low or (high is not None and value > high):
                bound = (
                    f"at least {low}"
                    if high is None
                    else f"from {low} to {high} (the backbone has {layers} layers)"
                )
                raise ConfigError(f"{name} is {value!r}, but must be a whole number {bound}")
        for name, choices in (("pooling", POOLINGS), ("injection", INJECTIONS)):
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}, but must be one of {', '.join(choices)}"
                )
