"""What the training runs of a reproduction take, worked out before any of them is started."""

from dataclasses import dataclass
from pathlib import Path

from contextwise.base.errors import ConfigError
from contextwise.models.building import parameter_count
from contextwise.models.flops import training_flops_per_example, training_flops_per_target
from contextwise.training.cue.parameters import Upstream
from contextwise.training.inputs import TrainingInputs
from contextwise.training.model import model_config
from contextwise.training.recipe import CorpusData, CueModel, Recipe, SyntheticData
from contextwise.training.recipe.cue import TRAINED

STATE_BYTES = 16
"""A parameter's weight, gradient and two moments in float32."""
ACTIVATION_BYTES = 34
"""Of a Transformer block for each position and channel in 16 bits, with attention that keeps no matrix of its own (Korthikanti
et al. 2022, "Reducing activation recomputation in large Transformer models", Section 4.1)."""


@dataclass(frozen=True)
class Planned:
    """What a training run will take, computed without starting it.

    Attributes:
        examples: over the whole run.
        flops: of training.
        state_bytes: weights, gradients and the optimizer's moments.
        activation_bytes: of a forward pass that backward needs, for one micro-batch; about.
    """

    name: str
    parameters: int
    steps: int
    examples: int
    tokens: int
    flops: float
    state_bytes: int
    activation_bytes: int


def plan_all(recipes: list[Recipe], vocab_size: int | None = None) -> list[Planned]:
    """Work out what runs take, some of which may be made from others that have not been trained.

    Args:
        vocab_size: tokens of the vocabulary of a corpus that is not there yet.

    Raises:
        ConfigError, DataError, CheckpointError: the corpus does not fit, or is not there and its vocabulary is not known.
    """
    by_folder = {str(recipe.folder): recipe for recipe in recipes}
    upstream = Upstream(by_folder.get, vocab_size)
    return [plan(recipe, vocab_size, upstream) for recipe in recipes]


def plan(recipe: Recipe, vocab_size: int | None = None, upstream: Upstream | None = None) -> Planned:
    """Work out what a run takes.

    Args:
        vocab_size: tokens of the vocabulary of a corpus that is not there yet.
        upstream: knows the runs that it is made from; all of them have to be there if not given.

    Raises:
        ConfigError, DataError: the corpus does not fit, or is not there and its vocabulary is not known.
    """
    steps, step_tokens = recipe.total_steps, recipe.tokens_per_step
    context, data, model = recipe.data.context, recipe.data, recipe.model
    trained = TRAINED[model.cue.stage] if isinstance(model, CueModel) else None
    if recipe.objective.name == "sentence" and upstream is not None:
        config, lengths = upstream.config_of(recipe), (context, 0)  # at most: sentences are shorter
    elif isinstance(data, CorpusData) and not Path(data.corpus).exists():
        if getattr(model, "vocab_size", None) is None and vocab_size is None:
            raise ConfigError(
                f"there is no corpus at {data.corpus}, and nothing says how large its vocabulary is; prepare the "
                "corpus, or give model.vocab_size"
            )
        config, lengths = model_config(recipe, vocab_size, None), (context, 0)
    else:
        task = TrainingInputs.open(recipe)
        config, lengths = task.config, task.lengths
    examples = recipe.examples
    parameters = parameter_count(config)
    targets = 1 if isinstance(data, SyntheticData) else lengths[0]
    flops = training_flops_per_example(config, *lengths, trained) + targets * training_flops_per_target(
        config
    )
    positions = min(step_tokens, recipe.training.micro_batch_tokens or step_tokens)
    layers, width = getattr(config, "num_hidden_layers", 0), getattr(config, "hidden_size", 0)
    return Planned(
        name=recipe.name,
        parameters=parameters,
        steps=steps,
        examples=examples,
        tokens=steps * step_tokens,
        flops=examples * flops,
        state_bytes=STATE_BYTES * parameters,
        activation_bytes=ACTIVATION_BYTES * positions * layers * width,
    )
