"""Configurations of a CUE model and of its parts: a language model of sentences given their contexts."""

from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from contextwise.models.composition import OwnConfig, as_config, check_whole
from contextwise.settings import ConfigError

FORMS = ("transformer", "concatenate")


class CuePartConfig(OwnConfig):
    """Base class of the configurations; each is its own text configuration, whatever the names of its fields."""

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """Return this configuration; transformers would return a field named ``decoder`` or ``text_encoder``."""
        return self


class CueContextConfig(CuePartConfig):
    """Configuration of :class:`~contextwise_papers.cue.parts.CueContextEncoder`, from C to W channels.

    The paper does not give the number of blocks; 2 match its 6.6M parameters approximately (Table 1). With 0 e_cue is the plain
    mean (Table 4, "no context transformer"). 4 heads are those of its other modules. ``text_encoder`` describes the encoder of
    the context vectors (:meth:`.TextEncoder.about`), ``contexts`` those of the training (:class:`.ContextSettings`).
    """

    model_type = "cue_context_encoder"
    attribute_map = {"hidden_size": "width"}  # noqa: RUF012 - the name and form that transformers reads

    def __init__(
        self,
        text_width: int = 768,
        width: int = 512,
        layers: int = 2,
        heads: int = 4,
        feed_forward: int | None = None,
        text_encoder: dict[str, Any] | None = None,
        contexts: dict[str, Any] | None = None,
        context_dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        self.text_width, self.width = text_width, width
        self.layers, self.heads = layers, heads
        self.feed_forward = 4 * width if feed_forward is None else feed_forward
        self.text_encoder, self.contexts = text_encoder or {}, contexts or {}
        self.context_dropout = context_dropout
        sizes = {"text_width": text_width, "width": width, "feed_forward": self.feed_forward}
        check_whole(1, "the context encoder", **sizes)
        check_whole(0, "the context encoder", layers=layers)
        if layers:
            _heads_divide("the context encoder", heads, width)
        if not 0 <= context_dropout < 1:
            raise ConfigError(f"context_dropout is {context_dropout}, but must be at least 0 and below 1")
        super().__init__(**kwargs)


class CueDecoderConfig(CuePartConfig):
    """Configuration of :class:`~contextwise_papers.cue.parts.CueDecoder`; six layers and four heads in CUE, Section 3.3.

    The form ``concatenate`` has no Transformer, and ignores ``width``: the vocabulary head reads each state concatenated with
    e_cue (Table 4, "no decoder transformer"). Without ``sentence_inputs`` one learned vector replaces all states and their
    positions, so that predictions depend only on the contexts, and are the same at each step ("no sentence inputs").
    """

    model_type = "cue_decoder"
    attribute_map = {  # noqa: RUF012
        "hidden_size": "width",
        "num_hidden_layers": "layers",
        "num_attention_heads": "heads",
        "max_position_embeddings": "max_positions",
    }

    def __init__(
        self,
        input_width: int = 512,
        width: int | None = None,
        cue_width: int = 512,
        layers: int = 6,
        heads: int = 4,
        vocab_size: int = 28_996,
        max_positions: int = 512,
        form: str = "transformer",
        sentence_inputs: bool = True,
        **kwargs: Any,
    ) -> None:
        if form not in FORMS:
            raise ConfigError(f"the decoder's form is {form!r}, but must be one of {', '.join(FORMS)}")
        if form == "concatenate":
            width, layers = input_width + cue_width, 0
        self.input_width, self.width, self.cue_width = input_width, width or input_width, cue_width
        self.layers, self.heads = layers, heads
        self.vocab_size, self.max_positions = vocab_size, max_positions
        self.form, self.sentence_inputs = form, sentence_inputs
        sizes = {"input_width": input_width, "width": self.width, "cue_width": cue_width}
        check_whole(1, "the decoder", **sizes, vocab_size=vocab_size, max_positions=max_positions)
        if form == "transformer":
            check_whole(1, "the decoder", layers=layers)
            _heads_divide("the decoder", heads, self.width)
        kwargs.setdefault("tie_word_embeddings", False)
        super().__init__(**kwargs)


class UnigramConfig(CuePartConfig):
    """Configuration of :class:`~contextwise_papers.cue.parts.UnigramAutoencoder` (CUE, Section 4.2.1).

    ``widths`` are those of the hidden layers from input to code. ``eos_token_id`` is not a word, and is not counted in bags.
    """

    model_type = "unigram_autoencoder"
    # For counting operations: there is no attention.
    num_hidden_layers, num_attention_heads = 0, 1

    def __init__(
        self, vocab_size: int = 28_996, widths: list[int] | None = None, eos_token_id: int | None = None, **kwargs: Any
    ) -> None:
        self.vocab_size, self.eos_token_id = vocab_size, eos_token_id
        self.widths = [128, 16] if widths is None else list(widths)
        if not self.widths or min(self.widths) < 1 or vocab_size < 1:
            raise ConfigError(
                f"the autoencoder's widths are {self.widths} and its vocabulary {vocab_size}, but all must be at least 1"
            )
        kwargs.setdefault("tie_word_embeddings", False)
        super().__init__(**kwargs)

    @property
    def code_width(self) -> int:
        return self.widths[-1]

    @property
    def hidden_size(self) -> int:
        """Width of the input of the layer that predicts the vocabulary."""
        return self.widths[0] if len(self.widths) > 1 else self.widths[-1]


class ProxyConfig(CuePartConfig):
    """Configuration of :class:`~contextwise_papers.cue.parts.ProxyEncoder` (CUE, Section 4.2.2); ``noise``: sigma of Eq. 7."""

    model_type = "cue_proxy"
    attribute_map = {"hidden_size": "width"}  # noqa: RUF012
    sub_configs = {"autoencoder": UnigramConfig}  # noqa: RUF012

    def __init__(
        self,
        autoencoder: UnigramConfig | dict[str, Any] | None = None,
        width: int = 512,
        noise: float = 0.0,
        **kwargs: Any,
    ) -> None:
        self.autoencoder: UnigramConfig = _nested(UnigramConfig, autoencoder) or UnigramConfig()
        self.width, self.noise = width, noise
        check_whole(1, "the proxy encoder", width=width)
        if noise < 0:
            raise ConfigError(f"the proxy's noise is {noise}, but must not be negative")
        super().__init__(**kwargs)


class CueConfig(CuePartConfig):
    """Configuration of :class:`~contextwise_papers.cue.CueForCausalLM`.

    Args:
        sentence_encoder: configuration of a causal language model of transformers or of this package (GPT-2's if None).
        context_encoder: configuration of the context encoder; None for no context encoder (e_cue is zero unless given).
        decoder: configuration of the decoder; by default of the paper's size, for this sentence encoder.
        proxy: configuration of the proxy encoder, which replaces the context encoder for a corpus without contexts.
    """

    model_type = "cue"
    _parts_with_tokens = property(lambda self: (self.sentence_encoder.get_text_config(), self.decoder))
    vocab_size = property(
        lambda self: self.decoder.vocab_size, lambda self, size: _set(self._parts_with_tokens, "vocab_size", size)
    )
    hidden_size = property(lambda self: self.decoder.hidden_size)
    num_hidden_layers = property(lambda self: self.decoder.num_hidden_layers)
    num_attention_heads = property(lambda self: self.decoder.num_attention_heads)
    sub_configs = {  # noqa: RUF012
        "sentence_encoder": AutoConfig,
        "context_encoder": CueContextConfig,
        "decoder": CueDecoderConfig,
        "proxy": ProxyConfig,
    }

    def __init__(
        self,
        sentence_encoder: PreTrainedConfig | dict[str, Any] | None = None,
        context_encoder: CueContextConfig | dict[str, Any] | None = None,
        decoder: CueDecoderConfig | dict[str, Any] | None = None,
        proxy: ProxyConfig | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.sentence_encoder = as_config(sentence_encoder)
        self.context_encoder: CueContextConfig | None = _nested(CueContextConfig, context_encoder)
        self.proxy: ProxyConfig | None = _nested(ProxyConfig, proxy)
        text, source = self.sentence_encoder.get_text_config(), self.context_encoder or self.proxy
        width = source.width if source is not None else text.hidden_size
        self.decoder: CueDecoderConfig = _nested(CueDecoderConfig, decoder) or CueDecoderConfig(
            input_width=text.hidden_size, cue_width=width, vocab_size=text.vocab_size
        )
        self._check()
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            kwargs.setdefault(name, getattr(self.sentence_encoder, name, None))
        kwargs["tie_word_embeddings"] = False
        super().__init__(**kwargs)

    def _check(self) -> None:
        text, decoder = self.sentence_encoder.get_text_config(), self.decoder
        if decoder.input_width != text.hidden_size:
            raise ConfigError(
                f"the decoder reads states of {decoder.input_width} channels, but the sentence encoder's have "
                f"{text.hidden_size}; use the sentence encoder that it was trained on, or train a new decoder"
            )
        if decoder.vocab_size != text.vocab_size:
            raise ConfigError(
                f"the decoder predicts {decoder.vocab_size} tokens, but the sentence encoder has {text.vocab_size}; "
                "both need the same tokenizer"
            )
        for what, part in (("context encoder", self.context_encoder), ("proxy encoder", self.proxy)):
            if part is not None and part.width != decoder.cue_width:
                raise ConfigError(
                    f"the decoder expects an e_cue of {decoder.cue_width} channels, but the {what} returns {part.width}; "
                    "give both the same width"
                )
        if self.proxy is not None and self.proxy.autoencoder.vocab_size != decoder.vocab_size:
            raise ConfigError(
                f"the unigram autoencoder has {self.proxy.autoencoder.vocab_size} tokens, but the decoder predicts "
                f"{decoder.vocab_size}; train both on the same corpus"
            )

    @property
    def max_position_embeddings(self) -> int | None:
        """The longest sentence, in tokens, that the sentence encoder and the decoder accept; None if unlimited."""
        limit = getattr(self.sentence_encoder.get_text_config(), "max_position_embeddings", None)
        if self.decoder.form == "concatenate":
            return limit
        return self.decoder.max_positions if limit is None else min(limit, self.decoder.max_positions)

    @max_position_embeddings.setter
    def max_position_embeddings(self, limit: int) -> None:
        _set(self._parts_with_tokens, "max_position_embeddings", limit)


def _set(configs: tuple[Any, ...], name: str, value: Any) -> None:
    for each in configs:
        setattr(each, name, value)


def _nested(kind: type[Any], config: Any) -> Any:
    """Return a configuration, built from its dictionary if needed; None stays None."""
    if isinstance(config, dict):
        return kind(**{name: value for name, value in config.items() if name != "model_type"})
    return config


def _heads_divide(whose: str, heads: int, width: int) -> None:
    if heads < 1 or width % heads:
        raise ConfigError(
            f"the width of {whose}, {width}, is not divisible by {heads} heads; choose a number of heads that divides it"
        )
