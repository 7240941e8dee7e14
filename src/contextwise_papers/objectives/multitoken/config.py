"""Configuration of multi-token prediction: the backbone, the number of future tokens, and the type of heads."""

from typing import Any

from transformers import PreTrainedConfig

from contextwise.models.composition import ComposedConfig, check_whole
from contextwise.models.families import family_of
from contextwise.settings import ConfigError

HEADS = ("layer", "linear")


class MultiTokenConfig(ComposedConfig):
    """Configuration of :class:`~contextwise_papers.objectives.multitoken.MultiTokenForCausalLM`.

    Args:
        backbone_config: configuration of the decoder-only backbone (a transformers config, or its dictionary). Its
            ``num_hidden_layers`` are the layers of the trunk that all heads share. The backbone may be a ContextLM: its
            whole decoder is the trunk, and no context is added before the heads' blocks.
        future_tokens: n, the number of predicted future tokens; at least 1. Head i predicts token t+i at position t.
        head: ``layer`` (Gloeckle et al. 2024: one more block of the backbone's class for each head, including the
            next-token head, then the shared final norm and the shared vocabulary matrix) or ``linear`` (a separate
            vocabulary matrix for each head, on the final hidden state; objectives, Section 6.2.6).

    With ``head="layer"`` a forward pass for the next token alone runs ``num_hidden_layers + 1`` blocks, and the model has as
    many parameters as a stock model of ``num_hidden_layers + future_tokens`` layers: a trunk of ``L - future_tokens`` layers
    is parameter-matched to a stock model of L layers. With ``head="linear"`` the trunk is the whole stock model, and each
    head after the first adds one vocabulary matrix.

    Raises:
        ConfigError: a value is out of range, or the backbone's family has no adapter.
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
        self.future_tokens, self.head = future_tokens, head
        if not self.over_context:
            family_of(self.backbone_config)
        check_whole(1, future_tokens=future_tokens)
        if head not in HEADS:
            raise ConfigError(f"head is {head!r}, but must be one of {', '.join(HEADS)}")
        super().__init__(**kwargs)

    @property
    def num_hidden_layers(self) -> int:
        """Number of blocks with keys and values: those of the trunk, and one for each ``layer`` head."""
        return self.backbone_config.num_hidden_layers + (self.future_tokens if self.head == "layer" else 0)

    @num_hidden_layers.setter
    def num_hidden_layers(self, value: int) -> None:
        if self.head == "layer":  # its heads continue from the trunk's last block alone
            raise ConfigError(
                "a multi-token model with head='layer' cannot run fewer blocks; leave out assistant_early_exit"
            )
        self.backbone_config.num_hidden_layers = value

    @property
    def trunk_cache_layers(self) -> int:
        """Number of key-value cache layers of the trunk; those of ``layer`` heads follow them."""
        backbone = self.backbone_config
        return backbone.cache_layers if self.over_context else backbone.num_hidden_layers

    @property
    def over_context(self) -> bool:
        """Whether the backbone is a ContextLM."""
        return self.backbone_config.model_type == "contextlm"


def shorten(config: Any) -> None:
    """Remove the last block of the backbone that ``config`` describes; it must have two, and no context added before it."""
    stock = config.backbone_config if config.model_type == "contextlm" else config
    if stock.num_hidden_layers < 2:
        raise ConfigError("a backbone of one layer has none left for the trunk; use head='linear'")
    if stock is not config and (config.inject_every_layer or config.injection_layer > stock.num_hidden_layers - 2):
        raise ConfigError(
            "this ContextLM adds its context before its last block, which head='layer' does not support; use head='linear'"
        )
    stock.num_hidden_layers -= 1
    if getattr(stock, "layer_types", None):
        stock.layer_types = stock.layer_types[:-1]
