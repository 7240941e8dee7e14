"""What goes together in a recipe of sentences: objective, contexts, stage and model."""

from typing import TYPE_CHECKING, Any

from contextwise.base.errors import ConfigError
from contextwise.training.settings import AUTOENCODER

if TYPE_CHECKING:
    from contextwise.training.recipe import Recipe

_SHAPE = ("pretrained", "freeze_backbone", "context_predictor", "multi_token", "vocab_size", "family")
_SIZES = ("size", "layers", "width", "heads", "feed_forward", "extra_layers", "max_context", "feature_size")


def in_sentences(values: Any) -> Any:
    """Before a recipe is checked: ``training.sentences_per_step`` as tokens, ``data.context`` for each sentence."""
    data, training = (
        (values.get(name) for name in ("data", "training")) if isinstance(values, dict) else (None, None)
    )
    if not (isinstance(data, dict) and isinstance(training, dict) and "sentences_per_step" in training):
        return values
    training, context = dict(training), data.get("context", 256)
    count = training.pop("sentences_per_step")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError(
            f"training.sentences_per_step is {count!r}, but must be a whole number of at least 1"
        )
    if "tokens_per_step" in training:
        raise ConfigError(
            "training.sentences_per_step and training.tokens_per_step are both given; leave one out"
        )
    if _name(values.get("objective")) != "sentence":
        raise ConfigError("training.sentences_per_step is for the objective 'sentence'; give tokens_per_step")
    if isinstance(context, int):  # what else it may be is told where data is checked
        training["tokens_per_step"] = count * context
    return values | {"training": training}


def _name(objective: Any) -> Any:
    return (
        objective.get("name")
        if isinstance(objective, dict)
        else getattr(objective, "name", None) or objective
    )


def check(recipe: "Recipe") -> None:
    """Refuse what does not go together.

    Raises:
        ConfigError: naming it.
    """
    model, data, sentences = recipe.model, recipe.data, recipe.objective.name == "sentence"
    if data.contexts is not None and model.cue is None:
        raise ConfigError("data.contexts says nothing without model.cue, which reads them; leave it out")
    if not sentences:
        what = "model.cue" if model.cue is not None else f"model.family {AUTOENCODER}"
        if model.cue is not None or model.family == AUTOENCODER:
            raise ConfigError(f"{what} is trained on single sentences; set objective: sentence")
        return
    for name in ("replay", "watch"):
        if getattr(data, name) is not None:
            raise ConfigError(f"data.{name} does not go with the objective 'sentence'; leave it out")
    if recipe.training.contextwise_every:
        raise ConfigError(
            "training.contextwise_every asks for the loss at each context, but a sentence has none before it; set it to 0"
        )
    if model.family == AUTOENCODER:
        _refuse(
            model,
            ("pretrained", "context_predictor", "multi_token", "layers", "heads", "size", "feed_forward"),
            AUTOENCODER,
        )
    if model.cue is not None:
        _check_cue(recipe)


def _check_cue(recipe: "Recipe") -> None:
    settings, data = recipe.model.cue, recipe.data
    assert settings is not None
    _refuse(recipe.model, (*_SHAPE, *_SIZES), "model.cue")
    if recipe.training.learning_rate is None:
        raise ConfigError(
            "training.learning_rate is missing: model.cue has no size with a rate of its own; 1e-3 is usual"
        )
    if settings.stage == "proxy" and data.contexts is not None:
        raise ConfigError(
            "data.contexts is given, but in stage proxy the decoder is trained without any; leave it out"
        )
    if settings.stage in ("adapt", "swap") and data.contexts is None:
        raise ConfigError(
            f"data.contexts is missing: stage {settings.stage} needs columns, or previous_sentence: true"
        )
    if data.contexts is None and settings.stage == "joint":
        names = ("text_encoder", "pooling", "text_tokens", "context_dropout")
        given = [name for name in names if getattr(settings, name)]
        if given:
            raise ConfigError(f"model.cue.{given[0]} says nothing without data.contexts; leave it out")


def _refuse(model: Any, names: tuple[str, ...], beside: str) -> None:
    for name in names:
        if getattr(model, name) != type(model).model_fields[name].default:
            raise ConfigError(f"model.{name} does not go with {beside}; leave it out")
