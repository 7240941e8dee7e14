"""Configuration of multi-token prediction: a backbone's own configuration, how far ahead to predict, and with what heads."""

from typing import Any

from transformers import PreTrainedConfig

from contextwise.base.errors import ConfigError
from contextwise.models.composition import ComposedConfig
from contextwise.models.families import family_of

HEADS = ("layer", "linear")


class MultiTokenConfig(ComposedConfig):
    """Configuration of :class:`~contextwise.models.multitoken.MultiTokenForCausalLM`.

    Args:
        backbone_config: configuration of the decoder-only backbone (a transformers config, or its dictionary). Its
            ``num_hidden_layers`` are the layers of the trunk that all heads share. A ContextLM may be the backbone: its
            whole decoder is the trunk, and blocks of heads get no context of their own added.
        future_tokens: n, how many tokens ahead are predicted; at least 1. Head i predicts token t+i at position t.
        head: ``layer`` (Gloeckle et al. 2024: one more block of the backbone's kind for each head, the next-token head
            among them, then the shared final norm and the shared vocabulary matrix) or ``linear`` (a vocabulary matrix of
            its own for each head, on the final hidden state; objectives, Section 6.2.6).

    Layers are counted so that with ``head="layer"`` a forward pass for the next token alone runs ``num_hidden_layers + 1``
    blocks, and the model has as many parameters as a stock model of ``num_hidden_layers + future_tokens`` layers. The
    parameter-matched rival of a stock model with L layers is therefore a trunk of ``L - future_tokens`` layers. With
    ``head="linear"`` the trunk is the whole stock model, and each head after the first adds one vocabulary matrix.

    Raises:
        ConfigError: a value is out of its range, or the backbone is of a family that has no adapter.
    """

    model_type = "multitoken"
    keys_to_ignore_at_inference = ["past_key_values", "head_losses", "head_targets"]  # noqa: RUF012

    def __init__(
        self,
        backbone_config: PreTrainedConfig | dict[str, Any] | None = None,
        future_tokens: int = 4,
        head: str = "layer",
        **kwargs: Any,
    ) -> None:
        self._take_backbone(backbone_config, kwargs)
        self.future_tokens = future_tokens
        self.head = head
        self._check()
        super().__init__(**kwargs)

    @property
    def num_hidden_layers(self) -> int:
        """Blocks that keep keys and values: those of the trunk, and one for each ``layer`` head."""
        return self.backbone_config.num_hidden_layers + (self.future_tokens if self.head == "layer" else 0)

    @property
    def trunk_cache_layers(self) -> int:
        """How many layers of a key-value cache the trunk fills; those of ``layer`` heads lie behind them."""
        return (
            self.backbone_config.cache_layers if self.over_context else self.backbone_config.num_hidden_layers
        )

    @property
    def over_context(self) -> bool:
        """Whether the backbone is a ContextLM."""
        return self.backbone_config.model_type == "contextlm"

    def _check(self) -> None:
        if not self.over_context:
            family_of(self.backbone_config)
        n = self.future_tokens
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ConfigError(f"future_tokens is {n!r}, but must be a whole number of at least 1")
        if self.head not in HEADS:
            raise ConfigError(f"head is {self.head!r}, but must be one of {', '.join(HEADS)}")


def shorten(config: Any) -> None:
    """Take the last block away from the backbone that ``config`` describes.

    Raises:
        ConfigError: it has one block only, or its last block adds a context of its own.
    """
    stock = config.backbone_config if config.model_type == "contextlm" else config
    if stock.num_hidden_layers < 2:
        raise ConfigError("a backbone of one layer has none left for the trunk; use head='linear'")
    if stock is not config and (
        config.inject_every_layer or config.injection_layer > stock.num_hidden_layers - 2
    ):
        raise ConfigError(
            "this ContextLM adds its context before its last block too, which heads of a block each cannot; use head='linear'"
        )
    stock.num_hidden_layers -= 1
    if getattr(stock, "layer_types", None):
        stock.layer_types = stock.layer_types[:-1]
