"""The parts of a stage: its configuration, and the model that it starts from, with what is frozen frozen."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.models.building import build_model
from contextwise.models.cue import (
    CueConfig,
    CueContextConfig,
    CueDecoderConfig,
    ProxyConfig,
    UnigramAutoencoder,
    UnigramConfig,
)
from contextwise.models.loading import load_as, load_config, load_model, model_class
from contextwise.training.cue.settings import TRAINED, CueSettings

if TYPE_CHECKING:
    from contextwise.training.recipe import Recipe

TEXT_ENCODER, POOLING = "distilbert-base-cased", "cls"
"""Where neither the recipe nor the start says (CUE, Section 3.1)."""
Configs = Callable[[str], PreTrainedConfig]
"""From the name of a run, folder or Hub model to its configuration."""


@dataclass(frozen=True)
class TextFacts:
    """A frozen text encoder: width of its vectors (C), and what a context encoder keeps about it."""

    width: int
    about: dict[str, Any]


def text_choice(settings: CueSettings, configs: Configs = load_config) -> dict[str, Any]:
    """Name, pooling and limit of the text encoder: the recipe's, or those that the start's context encoder was trained with.

    Raises:
        CheckpointError, ConfigError: there is no such start, or it has no context encoder that could be kept.
    """
    kept: dict[str, Any] = {}
    if settings.start is not None and not settings.fresh_context_encoder:
        encoder = _start(settings.start, configs).context_encoder
        if encoder is None and settings.stage == "swap":
            raise ConfigError(
                f"model.cue.start is {settings.start}, which has no context encoder to keep; adapt it to contexts first"
            )
        kept = encoder.text_encoder if encoder is not None else {}
    return {
        "name": settings.text_encoder or kept.get("name") or TEXT_ENCODER,
        "pooling": settings.pooling or kept.get("pooling") or POOLING,
        "max_tokens": settings.text_tokens or kept.get("max_tokens"),
    }


def cue_config(recipe: "Recipe", text: TextFacts | None, configs: Configs = load_config) -> CueConfig:
    """The whole model's configuration in the stage of a recipe.

    Args:
        text: the frozen text encoder; None where no contexts are read. Whether it is the start's own is checked where it is
            opened.
        configs: where configurations of the runs that it is made from come from.

    Raises:
        CheckpointError: such a run is not there, or is something else.
        ConfigError: parts do not fit each other.
    """
    settings = recipe.model.cue
    assert settings is not None
    if settings.stage == "adapt":
        return _adapted(recipe, settings, text, configs)
    sentence = _sentence_config(settings.sentence_encoder or "", recipe.data.context, configs)
    if settings.stage == "swap":
        start = _start(settings.start or "", configs)
        assert start.context_encoder is not None  # said where the text encoder is chosen
        assert recipe.data.contexts is not None
        _check_width(settings, start)
        start.context_encoder.contexts = recipe.data.contexts.model_dump()  # the new decoder's
        return CueConfig(
            sentence_encoder=sentence,
            context_encoder=start.context_encoder,
            decoder=_decoder(settings, sentence, start.context_encoder.width, recipe.data.context),
        )
    width = settings.width or sentence.get_text_config().hidden_size
    proxy = None
    if settings.stage == "proxy":
        source = settings.autoencoder or ""
        autoencoder = configs(source)
        if not isinstance(autoencoder, UnigramConfig):
            raise CheckpointError(
                f"model.cue.autoencoder is {source}, a model of type {autoencoder.model_type!r}; train one with "
                "model.family unigram_autoencoder"
            )
        proxy = ProxyConfig(autoencoder=autoencoder, width=width, noise=settings.noise)
    encoder = None if text is None else _context_encoder(recipe, settings, text, width)
    decoder = _decoder(settings, sentence, width, recipe.data.context)
    return CueConfig(sentence_encoder=sentence, context_encoder=encoder, decoder=decoder, proxy=proxy)


def _adapted(recipe: "Recipe", settings: CueSettings, text: TextFacts | None, configs: Configs) -> CueConfig:
    """The start's model with its context encoder, or a fresh one, for the recipe's contexts."""
    assert recipe.data.contexts is not None
    start = _start(settings.start or "", configs)
    _check_width(settings, start)
    if start.decoder.max_positions < recipe.data.context:
        raise ConfigError(
            f"data.context is {recipe.data.context}, but the decoder of {settings.start} has only "
            f"{start.decoder.max_positions} positions"
        )
    encoder = start.context_encoder
    if encoder is None or settings.fresh_context_encoder:
        assert text is not None
        encoder = _context_encoder(recipe, settings, text, start.decoder.cue_width)
    else:
        for name in ("context_layers", "context_heads", "context_feed_forward"):
            if getattr(settings, name) is not None:
                raise ConfigError(
                    f"model.cue.{name} is given, but the context encoder of {settings.start} is gone on with; leave it "
                    "out, or set fresh_context_encoder: true"
                )
        encoder.contexts = recipe.data.contexts.model_dump()
        encoder.context_dropout = settings.context_dropout
    return CueConfig(sentence_encoder=start.sentence_encoder, context_encoder=encoder, decoder=start.decoder)


def _context_encoder(
    recipe: "Recipe", settings: CueSettings, text: TextFacts, width: int
) -> CueContextConfig:
    assert recipe.data.contexts is not None
    chosen = settings.chosen(context_layers=2, context_heads=4, context_feed_forward=4 * width)
    return CueContextConfig(
        text_width=text.width,
        width=width,
        layers=chosen["context_layers"],
        heads=chosen["context_heads"],
        feed_forward=chosen["context_feed_forward"],
        text_encoder=text.about,
        contexts=recipe.data.contexts.model_dump(),
        context_dropout=settings.context_dropout,
    )


def _decoder(
    settings: CueSettings, sentence: PreTrainedConfig, cue_width: int, positions: int
) -> CueDecoderConfig:
    text = sentence.get_text_config()
    width = text.hidden_size
    chosen = settings.chosen(decoder="transformer", decoder_layers=6, decoder_heads=4, sentence_inputs=True)
    return CueDecoderConfig(
        input_width=width,
        width=width,
        cue_width=cue_width,
        layers=chosen["decoder_layers"],
        heads=chosen["decoder_heads"],
        vocab_size=text.vocab_size,
        max_positions=positions,
        form=chosen["decoder"],
        sentence_inputs=chosen["sentence_inputs"],
    )


def _sentence_config(source: str, context: int, configs: Configs) -> PreTrainedConfig:
    config = configs(source)
    if isinstance(config, CueConfig):
        raise CheckpointError(
            f"model.cue.sentence_encoder is {source}, a whole CUE model; name its parts/sentence_encoder, or the run that "
            "trained that"
        )
    try:
        model_class(config)
    except CheckpointError:
        raise CheckpointError(
            f"model.cue.sentence_encoder is {source}, a model of type {config.model_type!r}; name a causal language model"
        ) from None
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and positions < context:
        raise ConfigError(
            f"data.context is {context}, but the sentence encoder {source} has only {positions} positions"
        )
    return config


def _start(source: str, configs: Configs) -> CueConfig:
    config = configs(source)
    if not isinstance(config, CueConfig):
        raise CheckpointError(
            f"model.cue.start is {source}, a model of type {config.model_type!r}; name a run of the stage joint, proxy, "
            "adapt or swap"
        )
    return config


def _check_width(settings: CueSettings, start: CueConfig) -> None:
    if settings.width not in (None, start.decoder.cue_width):
        raise ConfigError(
            f"model.cue.width is {settings.width}, but {settings.start} was trained with an e_cue of width "
            f"{start.decoder.cue_width}; leave width out, or start from another run"
        )


def starting_model(recipe: "Recipe", config: CueConfig) -> Any:
    """The whole model of a stage in float32 on the CPU: fresh parts drawn, earlier ones loaded, frozen what is not trained.

    Raises:
        CheckpointError: an earlier part cannot be loaded.
    """
    settings = recipe.model.cue
    assert settings is not None
    model = build_model(config)
    if settings.sentence_encoder is not None:
        _copy(load_model(settings.sentence_encoder, torch.float32, "cpu"), model.sentence_encoder)
        if settings.head != "random" and config.decoder.sentence_inputs:
            _copy_head(model)
    if settings.autoencoder is not None:
        what = "unigram auto-encoder"
        trained = load_as(UnigramAutoencoder, what, settings.autoencoder, torch.float32, "cpu")
        _copy(trained, model.proxy.autoencoder)
    if settings.start is not None:
        start: Any = load_model(settings.start, torch.float32, "cpu")
        for name in _kept(settings, start):
            _copy(getattr(start, name), getattr(model, name))
    freeze(model, settings.stage)
    return model.train()


def _kept(settings: CueSettings, start: Any) -> list[str]:
    """The start's parts that are gone on with."""
    if settings.stage == "swap":
        return ["context_encoder"]
    known = start.context_encoder is not None and not settings.fresh_context_encoder
    return ["sentence_encoder", "decoder", *(["context_encoder"] if known else [])]


def _copy_head(model: Any) -> None:
    """Let the decoder's vocabulary head start as the sentence encoder's, with nothing for what stands beside its states."""
    config = model.config.decoder
    if config.form == "concatenate" or config.width == config.input_width:
        with torch.no_grad():
            head = model.decoder.lm_head.weight
            head.zero_()
            head[:, : config.input_width] = model.sentence_encoder.get_output_embeddings().weight


def _copy(source: nn.Module, target: nn.Module) -> None:
    target.load_state_dict(source.state_dict())


def freeze(model: Any, stage: str) -> None:
    """Leave to the optimizer what a stage trains."""
    model.requires_grad_(False)
    for name in TRAINED[stage]:
        part = getattr(model, name)
        if part is not None:
            part.requires_grad_(True)
    if model.proxy is not None:
        model.proxy.autoencoder.requires_grad_(False)
