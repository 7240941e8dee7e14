"""The CUE model of a training stage: its configuration and initial weights, from the parts of earlier runs."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedConfig

from contextwise.models import build_model, load_config, load_model
from contextwise.models.loading import check_generates, load_as
from contextwise.settings import CheckpointError, ConfigError
from contextwise_papers.cue.config import CueConfig, CueContextConfig, CueDecoderConfig, ProxyConfig, UnigramConfig
from contextwise_papers.cue.encoding import TextSource
from contextwise_papers.cue.parts import UnigramAutoencoder
from contextwise_papers.cue.settings import TRAINED, AdaptStage, ProxyStage, SentenceSettings, Stage, Started, SwapStage

TEXT_ENCODER, POOLING = "distilbert-base-cased", "cls"
"""Used if neither the recipe nor the starting run names a text encoder (CUE, Section 3.1)."""
CONTEXT_BLOCKS = ("context_layers", "context_heads", "context_feed_forward")
Configs = Callable[[str], PreTrainedConfig]
"""Maps the name of a run, folder or Hub model to its configuration."""


def text_choice(recipe: Any, configs: Configs = load_config) -> dict[str, Any]:
    """Name, pooling and token limit of the text encoder: the recipe's, or those of the starting run's context encoder."""
    stage: Any = recipe.model.cue
    kept: dict[str, Any] = {}
    if isinstance(stage, Started):
        encoder = _start(stage, configs).context_encoder
        if encoder is None and isinstance(stage, SwapStage):
            raise ConfigError(
                f"model.cue.start is {stage.start}, which has no context encoder to keep; adapt it to contexts first"
            )
        kept = encoder.text_encoder if encoder is not None else {}
    name = stage.text_encoder or kept.get("name") or TEXT_ENCODER
    # Tokens of a text encoder that is trained are costly, as those of sentences are.
    longest = recipe.data.context if TextSource.parse(name).trained else None
    return {
        "name": name,
        "pooling": stage.pooling or kept.get("pooling") or POOLING,
        "max_tokens": kept.get("max_tokens") or longest,
    }


def cue_config(recipe: Any, text: dict[str, Any] | None, configs: Configs = load_config) -> CueConfig:
    """Build the whole model's configuration for the stage of a recipe.

    ``text`` describes the text encoder (:meth:`.TextEncoder.about`), None without contexts; the caller checks that it is that
    of the starting run.
    """
    stage: Any = recipe.model.cue
    context = recipe.data.context
    contexts = None if recipe.data.contexts is None else recipe.data.contexts.model_dump()
    proxy = encoder = None
    if isinstance(stage, Started):
        start = _start(stage, configs)
        encoder = start.context_encoder
        given = [name for name in CONTEXT_BLOCKS if getattr(stage, name, None) is not None]
        if encoder is None:
            encoder = _context_encoder(stage, contexts, text, start.decoder.cue_width)
        elif given:
            raise ConfigError(
                f"model.cue.{given[0]} is given, but the context encoder of {stage.start} is kept; remove it"
            )
        encoder.contexts, encoder.context_dropout = contexts or {}, stage.context_dropout
        if isinstance(stage, AdaptStage):
            _check_positions(context, start.decoder.max_positions, f"the decoder of {stage.start}")
            return CueConfig(sentence_encoder=start.sentence_encoder, context_encoder=encoder, decoder=start.decoder)
    sentence = _sentence_config(stage.sentence_encoder, context, configs)
    width = encoder.width if encoder is not None else stage.width or sentence.get_text_config().hidden_size
    if isinstance(stage, ProxyStage):
        autoencoder = configs(stage.autoencoder)
        if not isinstance(autoencoder, UnigramConfig):
            raise CheckpointError(
                f"model.cue.autoencoder is {stage.autoencoder}, a model of type {autoencoder.model_type!r}; train one with "
                "model.family unigram_autoencoder"
            )
        proxy = ProxyConfig(autoencoder=autoencoder, width=width, noise=stage.noise)
    elif encoder is None and text is not None:
        encoder = _context_encoder(stage, contexts, text, width)
    text_config = sentence.get_text_config()
    decoder = CueDecoderConfig(
        input_width=text_config.hidden_size,
        width=text_config.hidden_size,
        cue_width=width,
        layers=stage.decoder_layers or 6,
        heads=stage.decoder_heads or 4,
        vocab_size=text_config.vocab_size,
        max_positions=context,
        form=stage.decoder,
        sentence_inputs=stage.sentence_inputs,
    )
    return CueConfig(sentence_encoder=sentence, context_encoder=encoder, decoder=decoder, proxy=proxy)


def _context_encoder(stage: Any, contexts: dict[str, Any] | None, text: Any, width: int) -> CueContextConfig:
    return CueContextConfig(
        text_width=text["width"],
        width=width,
        layers=2 if stage.context_layers is None else stage.context_layers,
        heads=stage.context_heads or 4,
        feed_forward=stage.context_feed_forward or 4 * width,
        text_encoder=text,
        contexts=contexts,
        context_dropout=stage.context_dropout,
    )


def _sentence_config(source: str, context: int, configs: Configs) -> PreTrainedConfig:
    config = configs(source)
    if isinstance(config, CueConfig):
        raise CheckpointError(
            f"model.cue.sentence_encoder is {source}, a whole CUE model; name its parts/sentence_encoder, or the run that "
            "trained its sentence encoder"
        )
    try:
        check_generates(config)
    except CheckpointError:
        raise CheckpointError(
            f"model.cue.sentence_encoder is {source}, a model of type {config.model_type!r}; name a causal language model"
        ) from None
    positions = getattr(config, "max_position_embeddings", None)
    _check_positions(context, positions, f"the sentence encoder {source}")
    return config


def _check_positions(context: int, positions: int | None, whose: str) -> None:
    if positions is not None and positions < context:
        raise ConfigError(f"data.context is {context}, but {whose} has only {positions} positions")


def _start(stage: Started, configs: Configs) -> CueConfig:
    """The configuration of the starting run."""
    config = configs(stage.start)
    if not isinstance(config, CueConfig):
        raise CheckpointError(
            f"model.cue.start is {stage.start}, a model of type {config.model_type!r}; name a run of the stage joint, proxy, "
            "adapt or swap"
        )
    return config


def starting_model(stage: Stage, config: CueConfig) -> Any:
    """Build the whole model of a stage in float32 on the CPU.

    New parts have random weights, earlier ones are loaded, and parts that the stage does not train are frozen.
    """
    model: Any = build_model(config)
    if isinstance(stage, SentenceSettings):
        encoder = load_model(stage.sentence_encoder, torch.float32, "cpu")
        model.sentence_encoder.load_state_dict(encoder.state_dict())
        decoder = config.decoder
        fits = decoder.form == "concatenate" or decoder.width == decoder.input_width
        if stage.head != "random" and stage.sentence_inputs and fits:
            with torch.no_grad():  # a copy of the sentence encoder's, with zeros for additional inputs
                head = model.decoder.lm_head.weight
                head.zero_()
                head[:, : decoder.input_width] = model.sentence_encoder.get_output_embeddings().weight
    if isinstance(stage, ProxyStage):
        what = "unigram autoencoder"
        trained = load_as(UnigramAutoencoder, what, stage.autoencoder, torch.float32, "cpu")
        model.proxy.autoencoder.load_state_dict(trained.state_dict())
    if isinstance(stage, Started):
        start: Any = load_model(stage.start, torch.float32, "cpu")
        kept = [] if isinstance(stage, SwapStage) else ["sentence_encoder", "decoder"]
        if start.context_encoder is not None:
            kept.append("context_encoder")
        for name in kept:
            getattr(model, name).load_state_dict(getattr(start, name).state_dict())
    freeze(model, stage.stage)
    return model.train()


def freeze(model: Any, stage: str) -> None:
    """Freeze all parameters except those that a stage trains."""
    model.requires_grad_(False)
    for name in TRAINED[stage]:
        part = getattr(model, name)
        if part is not None:
            part.requires_grad_(True)
    if model.text_encoder is not None:
        model.text_encoder.requires_grad_("text_encoder" in TRAINED[stage])
    if model.proxy is not None:
        model.proxy.autoencoder.requires_grad_(False)
