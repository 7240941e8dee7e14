"""The model that a run starts from: a fresh one, or a pretrained one with or without a context pathway of its own."""

from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from contextwise.base.errors import ConfigError
from contextwise.models.building import build_model, pretraining_class
from contextwise.models.contextlm import ContextLMForCausalLM
from contextwise.models.kinds import kind_of
from contextwise.models.loading import load_as, load_model
from contextwise.models.losses import has_plain_head
from contextwise.training.cue import parts
from contextwise.training.recipe import Recipe


def starting_model(recipe: Recipe, config: PreTrainedConfig) -> Any:
    """Build the model of a recipe, in float32 on the CPU, ready to be trained.

    Args:
        recipe: says whether to start from a pretrained model, and what of it to train.
        config: the model's configuration.

    Raises:
        CheckpointError: no model could be loaded from ``model.pretrained``.
        ConfigError: its logits are not those of a plain vocabulary head, which the chunked loss needs.
    """
    settings = recipe.model
    if settings.cue is not None:
        return parts.starting_model(recipe, config)
    if settings.pretrained is None:
        return build_model(config)
    model = _pretrained(settings.pretrained, config)
    if config.vocab_size > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(config.vocab_size)  # for the objective's special tokens
    if settings.context_predictor is not None:
        model = ContextLMForCausalLM.from_backbone(model, **settings.context_predictor.model_dump())
        if settings.freeze_backbone:
            _freeze(model)
    return model.train()


def _pretrained(source: str, config: PreTrainedConfig) -> Any:
    """The weights at ``source`` in the class that is trained with ``config``, in float32 on the CPU.

    A head that the weights lack (the pair head, for an encoder that had none) is drawn anew.

    Raises:
        CheckpointError: no model could be loaded.
        ConfigError: its losses are not those that are computed here.
    """
    kind = kind_of(config)
    if kind == "decoder":
        model = load_model(source, dtype=torch.float32, device="cpu")
        if getattr(model.get_output_embeddings(), "bias", None) is not None or not has_plain_head(model):
            raise ConfigError(
                f"{source} scales, caps or shifts its logits, which the training loss here does not; "
                "choose a model whose vocabulary head is a plain matrix"
            )
        return model
    model = load_as(pretraining_class(config), kind, source, torch.float32, "cpu")
    like = {"encoder": ("BERT", "cls"), "encoder-decoder": ("T5", "_shift_right")}[kind]
    if not hasattr(model, like[1]):
        raise ConfigError(
            f"{source} is an {kind} of type {config.model_type!r}, whose losses are not computed here; choose one like "
            f"{like[0]}"
        )
    return model


def _freeze(model: ContextLMForCausalLM) -> None:
    """Leave nothing but the context pathway to the optimizer."""
    model.requires_grad_(False)
    model.context.requires_grad_(True)


def trained_parameters(model: PreTrainedModel | torch.nn.Module) -> int:
    """How many parameters the optimizer changes."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
