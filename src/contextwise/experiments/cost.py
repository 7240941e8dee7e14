"""Cost of training runs, computed before any of them is started: parameters, tokens, FLOPs and memory."""

from dataclasses import dataclass
from pathlib import Path

from contextwise.base.errors import ConfigError
from contextwise.models.building import parameter_count, training_memory
from contextwise.models.spec import training_flops_per_target
from contextwise.training.inputs import TrainingInputs
from contextwise.training.model import model_config, stage_flops
from contextwise.training.parameters import Upstream
from contextwise.training.recipe import Recipe
from contextwise.training.settings import TRAINED, CorpusData, CueModel, SyntheticData


@dataclass(frozen=True)
class RunCost:
    """Cost of a training run or of a measurement.

    Attributes:
        parameters: of the model, embeddings included.
        flops: of training; of a measurement, of its forward passes.
        state_bytes: weights, gradients and the optimizer's moments.
        activation_bytes: of one micro-batch's forward pass, kept for backward; an estimate.
    """

    name: str
    parameters: int
    steps: int
    examples: int
    tokens: int
    flops: float
    state_bytes: int
    activation_bytes: int


def costs_of(recipes: list[Recipe], vocab_size: int | None = None) -> list[RunCost]:
    """The cost of each run; some may be made from others that have not been trained.

    Args:
        vocab_size: tokens of the vocabulary of a corpus that does not exist yet.

    Raises:
        ConfigError, DataError, CheckpointError: the corpus does not fit, or does not exist and its vocabulary is unknown.
    """
    upstream = Upstream({str(recipe.folder): recipe for recipe in recipes}.get, vocab_size)
    return [cost_of(recipe, vocab_size, upstream) for recipe in recipes]


def cost_of(recipe: Recipe, vocab_size: int | None = None, upstream: Upstream | None = None) -> RunCost:
    """The cost of one run, checked against its corpus where that exists.

    Args:
        vocab_size: tokens of the vocabulary of a corpus that does not exist yet.
        upstream: knows the runs that it is made from; without it all of them must exist.

    Raises:
        ConfigError, DataError: the corpus does not fit, or does not exist and its vocabulary is unknown.
    """
    context, data, model = recipe.data.context, recipe.data, recipe.model
    trained = TRAINED[model.cue.stage] if isinstance(model, CueModel) else None
    if recipe.objective.name == "sentence" and upstream is not None:
        config, lengths = upstream.config_of(recipe), (context, 0)  # at most: sentences are shorter
    elif isinstance(data, CorpusData) and not Path(data.corpus).exists():
        if getattr(model, "vocab_size", None) is None and vocab_size is None:
            raise ConfigError(
                f"there is no corpus at {data.corpus}, and the size of its vocabulary is unknown; prepare the "
                "corpus, or give model.vocab_size"
            )
        config, lengths = model_config(recipe, vocab_size, None), (context, 0)
    else:
        inputs = TrainingInputs.open(recipe)
        config, lengths = inputs.config, inputs.lengths
    targets = 1 if isinstance(data, SyntheticData) else lengths[0]
    per_target = training_flops_per_target(config)
    flops = sum(examples * each for examples, each in stage_flops(recipe, config, lengths, trained))
    positions = min(recipe.tokens_per_step, recipe.training.micro_batch_tokens or recipe.tokens_per_step)
    state_bytes, activation_bytes = training_memory(config, positions)
    return RunCost(
        name=recipe.name,
        parameters=parameter_count(config),
        steps=recipe.total_steps,
        examples=recipe.examples,
        tokens=recipe.total_tokens,
        flops=flops + recipe.examples * targets * per_target,
        state_bytes=state_bytes,
        activation_bytes=activation_bytes,
    )
