"""Configuration of ContextLM: the backbone's configuration, and how the context is predicted and injected."""

from typing import Any

from transformers import PreTrainedConfig

from contextwise.base.errors import ConfigError
from contextwise.models.composition import ComposedConfig, check_whole
from contextwise.models.contextlm.layers import INJECTIONS, PAPER_FORMS, POOLINGS
from contextwise.models.families import family_of

INITIAL_CONTEXTS = ("first_token", "zero")


class ContextLMConfig(ComposedConfig):
    """Configuration of :class:`~contextwise.models.ContextLMForCausalLM`.

    Args:
        backbone_config: configuration of the decoder-only backbone (a transformers config, or its dictionary).
        chunk_size: w, tokens a chunk; at least 1. The paper's default is 4 (ContextLM, Section 3.1).
        predictor_layers: blocks of the context predictor, of the backbone's block class.
        pooling: how the w token vectors of a chunk become its context vector: ``mean``, ``mlp``, ``attention`` or
            ``latent_attention`` (see :mod:`contextwise.models.contextlm.layers`).
        injection: ``gate`` (``h + g * c`` with one learned factor per channel, zero-initialized, so that the model starts
            identical to its backbone), ``add`` (``h + c``, as the paper prints it), ``paper`` (that of its authors' code for
            this family of backbones: ``shared_norm`` for GPT-2, ``add`` for others), or one of ``shared_norm``, ``own_norms``,
            ``normed_gate`` (see :mod:`contextwise.models.contextlm.layers`). The configuration keeps the form that ``paper``
            stands for.
        injection_layer: number of backbone layers in the token encoder; 0 is the embedding alone (the paper's "0/12").
        inject_every_layer: add the context before every layer of the token decoder, with a separate gate for each,
            instead of before the first layer only.
        predictor_norm: a norm of the backbone's class at the end of the predictor; by default only with ``paper`` on GPT-NeoX.
        initial_context: c_init, the context before the first complete chunk: ``first_token`` (h_0, as the paper says) or
            ``zero``, the default with ``paper``.

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
        predictor_norm: bool | None = None,
        initial_context: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._take_backbone(backbone_config, kwargs)
        paper = injection == "paper"
        form = PAPER_FORMS.get(self.backbone_config.model_type, PAPER_FORMS["llama"])
        self.predictor_norm = (paper and form.predictor_norm) if predictor_norm is None else predictor_norm
        self.initial_context = ("zero" if paper else "first_token") if initial_context is None else initial_context
        self.chunk_size, self.predictor_layers, self.pooling = chunk_size, predictor_layers, pooling
        self.injection, self.injection_layer = form.injection if paper else injection, injection_layer
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
        if not isinstance(self.predictor_norm, bool):
            raise ConfigError(f"predictor_norm is {self.predictor_norm!r}, but must be true or false")
        known = (("pooling", POOLINGS), ("injection", [*INJECTIONS, "paper"]), ("initial_context", INITIAL_CONTEXTS))
        for name, forms in known:
            if getattr(self, name) not in forms:
                raise ConfigError(f"{name} is {getattr(self, name)!r}, but must be one of {', '.join(forms)}")
