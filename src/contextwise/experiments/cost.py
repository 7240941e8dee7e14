"""Cost of training runs before any of them is started: parameters, tokens, FLOPs and memory, and the time of a step."""

import statistics
from dataclasses import dataclass
from pathlib import Path

import torch

from contextwise.base.errors import ConfigError
from contextwise.base.progress import console, progress_bar
from contextwise.experiments.executors import ExecutorSettings
from contextwise.models.building import parameter_count, training_memory
from contextwise.training.batches import tokens_per_pass
from contextwise.training.inputs import TrainingInputs, mean_targets
from contextwise.training.model import run_flops
from contextwise.training.parameters import Upstream
from contextwise.training.recipe import Recipe
from contextwise.training.settings import CorpusData


@dataclass(frozen=True)
class RunCost:
    """Cost of a training run, or of the forward passes of a measurement.

    ``state_bytes`` are those of weights, gradients and the optimizer's moments; ``activation_bytes`` an estimate of what one
    micro-batch's forward pass keeps for backward.
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

    ``vocab_size`` is that of a corpus that does not exist yet.
    """
    upstream = Upstream({str(recipe.folder): recipe for recipe in recipes}.get, vocab_size)
    return [cost_of(recipe, vocab_size, upstream) for recipe in recipes]


def cost_of(recipe: Recipe, vocab_size: int | None = None, upstream: Upstream | None = None) -> RunCost:
    """The cost of one run, checked against its corpus where that exists.

    ``upstream`` knows the runs that it is made from; without it all of them must exist.
    """
    context, data, model = recipe.data.context, recipe.data, recipe.model
    targets: float = context
    if recipe.objective.reads_sentences and upstream is not None:
        config, lengths = upstream.config_of(recipe), (context, 0)  # at most: sentences are shorter
    elif isinstance(data, CorpusData) and not Path(data.corpus).exists():
        if getattr(model, "vocab_size", None) is None and vocab_size is None:
            raise ConfigError(
                f"there is no corpus at {data.corpus}, and the size of its vocabulary is unknown; prepare the "
                "corpus, or give model.vocab_size"
            )
        config, lengths = recipe.model.config(recipe, vocab_size, None), (context, 0)
    else:
        inputs = TrainingInputs.open(recipe)
        config, lengths, targets = inputs.config, inputs.lengths, mean_targets(inputs.stream)
    stages, per_target = run_flops(recipe, config, lengths)
    flops = sum(examples * each for examples, each in stages)
    on_gpu = recipe.training.device == "cuda" or (recipe.training.device == "auto" and torch.cuda.is_available())
    positions = min(recipe.tokens_per_step, tokens_per_pass(recipe, "cuda" if on_gpu else "cpu"))
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


def seconds_per_step(
    recipes: dict[str, Recipe], rounds: int, executor: ExecutorSettings | None = None
) -> dict[str, float]:
    """Seconds of a training step of each recipe; arguments as for :func:`step_rounds`.

    The time of a recipe is the median over rounds of its ratio to the first recipe, times the first's median, so that a slow
    round counts for all recipes alike.
    """
    measured = step_rounds(recipes, rounds, executor)
    first = next(iter(measured.values()))
    base = statistics.median(first)
    return {
        name: base * statistics.median(a / b for a, b in zip(times, first, strict=True))
        for name, times in measured.items()
    }


def step_rounds(
    recipes: dict[str, Recipe], rounds: int, executor: ExecutorSettings | None = None
) -> dict[str, list[float]]:
    """Seconds of a training step of each recipe in each round, which makes a dry run of every recipe, in turning order.

    The steps get the threads of the ``executor`` of the runs that are planned; by default those of this process.
    """
    threads, quiet = torch.get_num_threads(), console.quiet
    measured: dict[str, list[float]] = {name: [] for name in recipes}
    names = list(recipes)
    torch.set_num_threads(threads if executor is None or executor.here else executor.run_threads)
    try:
        with progress_bar("timing", rounds * len(names), "dry runs") as advance:
            for number in range(rounds):
                turn = number % len(names)
                for name in names[turn:] + names[:turn]:
                    console.quiet = True  # the timed steps are no news
                    measured[name].append(_step(name, recipes[name]))
                    console.quiet = quiet
                    advance()
    finally:
        console.quiet = quiet
        torch.set_num_threads(threads)
    return measured


def _step(name: str, recipe: Recipe) -> float:
    """Seconds of a step; of stages with shorter windows their mean, by their shares of the tokens."""
    from contextwise.training.dry_run import dry_run

    total = 0.0
    for examples, context in recipe.windows:
        # A dry run times the last stage alone, so each stage is made a recipe of its own.
        data = {"context": context, "context_stages": {}} if len(recipe.windows) > 1 else {}
        seconds = dry_run(
            recipe.model_copy(update={"data": recipe.data.model_copy(update=data)}), saves=False
        ).step_seconds
        if seconds is None:
            raise ConfigError(
                f"{name} needs more memory than this machine has; set training.micro_batch_tokens lower, or choose a smaller "
                "size"
            )
        total += seconds * examples / recipe.examples
    return total
