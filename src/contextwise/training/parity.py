"""What the parity task brings to a recipe in the place of a corpus; all else of a run is as for any other.

``data.synthetic`` stands for ``data.corpus`` and decides ``data.context`` (the tokens of a sample). Two more settings are read,
since samples are what one counts here: ``training.samples_per_step`` for ``tokens_per_step``, and ``training.epochs`` for
``steps``.
"""

from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset
from transformers import PreTrainedConfig

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.data.synthetic import ParityData, ParityStream, Samples, open_samples, vocabulary
from contextwise.data.synthetic.storage import StoredSamples
from contextwise.models.parity import ParityMLPConfig, ParityTransformerConfig
from contextwise.models.sizes import ModelSize

if TYPE_CHECKING:
    from contextwise.training.recipe import Recipe

Source = Samples | StoredSamples
SHAPES = {
    "parity_transformer": ModelSize(layers=3, width=208, heads=4, learning_rate=1e-3),
    "parity_mlp": ModelSize(layers=1, width=512, heads=1, learning_rate=1e-3),
}
"""The models' families, which have no named sizes; the Transformer's is the paper's (intrinsic entropy, Section 4.3)."""
VALIDATION_SEED = 0
"""Runs of every seed are validated on the same samples."""
_OF_CORPORA = ("replay", "watch")


def without_corpus(values: Any) -> Any:
    """Before ``data`` is checked: with ``synthetic`` there is no corpus, and the length of a sample is the context."""
    if not isinstance(values, dict) or values.get("synthetic") is None:
        return values
    if values.get("corpus"):
        raise ConfigError("corpus and synthetic are both given; leave one of them out")
    given = [name for name in _OF_CORPORA if values.get(name) is not None]
    if given:
        raise ConfigError(f"{given[0]} needs a corpus, but the data are synthetic; leave it out")
    data = synthetic_settings(values["synthetic"])
    if values.get("context", data.length) != data.length:
        raise ConfigError(
            f"context is {values['context']}, but a sample has {data.length} tokens, its bits and its task; leave it out"
        )
    return values | {"corpus": "", "context": data.length}


def synthetic_settings(values: Any) -> ParityData:
    """``data.synthetic`` as settings.

    Raises:
        ConfigError: what is wrong with it.
    """
    if isinstance(values, ParityData):
        return values
    if not isinstance(values, dict):
        raise ConfigError(
            f"synthetic is {values!r}, but must be the settings of the task, such as bits and tasks"
        )
    return validate(ParityData, values, "data.synthetic")


def in_samples(values: Any) -> Any:
    """Before a recipe is checked: ``samples_per_step`` and ``epochs`` as tokens and steps."""
    data, training = (
        (values.get(name) for name in ("data", "training")) if isinstance(values, dict) else (None, None)
    )
    if not (isinstance(data, dict) and isinstance(training, dict) and data.get("synthetic") is not None):
        return values
    settings, training = synthetic_settings(data["synthetic"]), dict(training)
    batch = training.pop("samples_per_step", None)
    if batch is not None:
        training["tokens_per_step"] = _whole_number("samples_per_step", batch) * settings.length
    training.setdefault("micro_batch_tokens", training.get("tokens_per_step"))  # the models are small
    epochs = training.pop("epochs", None)
    if epochs is not None:
        if settings.samples is None or batch is None:
            raise ConfigError(
                "training.epochs needs data.synthetic.samples, of which an epoch consists, and training.samples_per_step"
            )
        training["steps"] = -(-_whole_number("epochs", epochs) * settings.samples // batch)
    return values | {"training": training}


def _whole_number(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"training.{name} is {value!r}, but must be a whole number of at least 1")
    return value


def check(recipe: "Recipe") -> None:
    """Refuse what does not go together.

    Raises:
        ConfigError: a model for text on synthetic samples, or the other way round, or settings for something else.
    """
    model, synthetic = recipe.model, recipe.data.synthetic
    if (synthetic is not None) != (model.family in SHAPES) or (synthetic is not None and model.pretrained):
        own = model.pretrained or f"model.family {model.family}"
        raise ConfigError(
            f"data.synthetic needs one of its own models, not {own}; set model.family to {' or '.join(SHAPES)}"
            if synthetic is not None
            else f"{own} is a model for data.synthetic, not for a corpus; choose another family"
        )
    if model.feature_size is not None and model.family != "parity_mlp":
        raise ConfigError(f"model.feature_size is of parity_mlp, not of {model.family}; leave it out")
    if synthetic is None:
        return
    for name in ("context_predictor", "multi_token", "vocab_size", "max_context", "size", "extra_layers"):
        if getattr(model, name) != type(model).model_fields[name].default:
            raise ConfigError(f"model.{name} does not go with data.synthetic; leave it out")
    if recipe.objective.name != "causal":
        raise ConfigError(
            f"the objective {recipe.objective.name!r} is for text, but the data are synthetic; leave it out"
        )
    if recipe.training.contextwise_every:
        raise ConfigError(
            "training.contextwise_every needs a corpus, but the data are synthetic; set it to 0"
        )


def model_config(
    family: str, shape: ModelSize, feature_size: int | None, vocab_size: int, context: int
) -> PreTrainedConfig:
    """Configuration of the model for inputs of ``vocab_size`` tokens, ``context`` of them a sample."""
    bits, tasks = context - 1, vocab_size - vocabulary(0)
    if family == "parity_mlp":
        return ParityMLPConfig(bits, tasks, feature_size or 80, shape.width, shape.layers)
    return ParityTransformerConfig(
        bits,
        tasks,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
    )


def source(recipe: "Recipe") -> Source:
    """The training samples: drawn when they are read, or from the disk.

    Raises:
        DataError: those on the disk are not there, damaged or others.
    """
    data = _data(recipe)
    drawn = Samples(data, recipe.seed)
    if data.stored is None:
        return drawn
    stored = open_samples(drawn, data.stored)
    wanted = data.samples or recipe.training.total_steps * recipe.training.tokens_per_step // data.length
    if len(stored) < wanted:
        raise ConfigError(
            f"data.synthetic.stored has {len(stored):,} samples, but the run takes {wanted:,}; set samples to at most that "
            "many, or write more"
        )
    return stored


def config(recipe: "Recipe") -> PreTrainedConfig:
    """Configuration of the recipe's model."""
    return recipe.model_config_for(_data(recipe).vocab_size, None)


def streams(recipe: "Recipe") -> tuple[Dataset, dict[str, Dataset]]:
    """The training examples of the whole run, and those to validate on."""
    data = _data(recipe)
    length = recipe.training.total_steps * recipe.training.tokens_per_step // data.length
    held_out = Samples(data, VALIDATION_SEED, "validation")
    validation = ParityStream(held_out, data.validation_samples, None)
    return ParityStream(source(recipe), length, data.samples), {"loss": validation}


def _data(recipe: "Recipe") -> ParityData:
    assert recipe.data.synthetic is not None
    return recipe.data.synthetic
